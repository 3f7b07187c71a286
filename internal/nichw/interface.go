package nichw

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
)

var errNoPorts = errors.New("a device without ports")

// interfaceShelf is a network interface.
type interfaceShelf struct {
	name       string
	shelf      shelf
	stale      bool
	ignored    bool // nobody is interested in it
	function   *file
	slaves     *file
	pci        *pciShelf
	operstate  *file
	carrier    *file
	speed, mtu *file
	master     *file
	changes    *file
	counters   counterShelf
}

func newInterfaceShelf(sys, name string) *interfaceShelf {
	dir := filepath.Join(sys, "class/net", name)
	f := func(name string, k kind) *file { return &file{path: filepath.Join(dir, name), kind: k, lax: true} }
	return &interfaceShelf{name: name, stale: true, function: f("device", target), slaves: f("bonding/slaves", text), pci: newPCIShelf(filepath.Join(dir, "device")),
		operstate: f("operstate", text), carrier: f("carrier", number), speed: f("speed", text), mtu: f("mtu", number), master: f("master", target),
		// Not under statistics/, where the seed has it.
		changes: f("carrier_changes", number), counters: counterShelf{dir: f("statistics", names)}}
}

func (s *interfaceShelf) directories() *shelf {
	return &shelf{device: s.name, files: []*file{s.function, s.counters.dir}}
}

func (s *interfaceShelf) learn(of func(name string, device bool) bool) {
	if !s.stale {
		return
	}
	s.ignored = !of(s.name, s.function.ok)
	s.counters.learn()
	s.stale = s.counters.dir.err != nil || s.function.err != nil
}

func (s *interfaceShelf) wanted(parts Parts) *shelf {
	s.shelf.device, s.shelf.files = s.name, s.shelf.files[:0]
	add := func(files ...*file) { s.shelf.files = append(s.shelf.files, files...) }
	if parts&ReadStates != 0 {
		add(s.operstate, s.carrier, s.speed)
	}
	if parts&ReadCounters != 0 {
		add(s.changes)
		add(s.counters.files...)
		add(s.pci.counters()...)
	}
	if parts&ReadIdentity != 0 {
		add(s.mtu, s.master, s.slaves)
		add(s.pci.identity()...)
	}
	return &s.shelf
}

func (s *interfaceShelf) read(errs *errorsOf) Interface {
	errs.of(s.function, s.slaves, s.operstate, s.carrier, s.speed, s.mtu, s.master, s.changes, s.counters.dir)
	out := Interface{Name: s.name, Kind: Ethernet, Function: s.pci.function(), PCI: s.pci.read(s.name, errs), Counters: s.counters.read(errs)}
	if s.pci.driver.ok {
		out.Driver = s.pci.driver.text
	}
	if s.operstate.ok {
		out.OperState = s.operstate.text
	}
	if s.carrier.ok {
		up := s.carrier.value != 0
		out.Carrier = &up
	}
	if s.speed.ok {
		v, ok, err := parseSpeed(s.speed.text)
		if err != nil {
			errs.malformed(s.name, s.speed, err)
		}
		if ok {
			out.Speed = &v
		}
	}
	if s.mtu.ok {
		out.MTU = clone(&s.mtu.value)
	}
	if s.changes.ok {
		out.Changes = clone(&s.changes.value)
	}
	if s.master.ok {
		out.Master = s.master.text
	}
	if s.slaves.ok {
		out.Members = strings.Fields(s.slaves.text)
		slices.Sort(out.Members)
	}
	s.stale = s.stale || s.counters.gone()
	return out
}
