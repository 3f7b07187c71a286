package nichw

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"github.com/graylink/graylink/internal/rdmadev"
)

var errNoPorts = errors.New("a device without ports")

// interfaceFiles is a network interface.
type interfaceFiles struct {
	name       string
	toRead     fileGroup
	stale      bool
	ignored    bool // it is not of interest
	function   *file
	rdma       *file // RDMA devices of the function
	slaves     *file
	pci        *pciFiles
	operstate  *file
	carrier    *file
	speed, mtu *file
	master     *file
	changes    *file
	counters   counterFiles
}

func newInterfaceFiles(sys string, m rdmadev.Mapper, name string) *interfaceFiles {
	dir := filepath.Join(sys, "class/net", name)
	f := func(name string, k kind) *file {
		return &file{path: filepath.Join(dir, name), kind: k, toleratesInvalid: true}
	}
	rdma := f("device/infiniband", kindAnswer)
	rdma.query = func() (any, error) { return m.FunctionDevices(name) }
	return &interfaceFiles{name: name, stale: true, function: f("device", kindTarget), rdma: rdma, slaves: f("bonding/slaves", kindText), pci: newPCIFiles(filepath.Join(dir, "device")),
		operstate: f("operstate", kindText), carrier: f("carrier", kindNumber), speed: f("speed", kindText), mtu: f("mtu", kindNumber), master: f("master", kindTarget),
		// Not under statistics/, where the seed has it.
		changes: f("carrier_changes", kindNumber), counters: counterFiles{dir: f("statistics", kindNames)}}
}

func (s *interfaceFiles) directoryFiles() *fileGroup {
	return &fileGroup{device: s.name, files: []*file{s.function, s.rdma, s.counters.dir}}
}

func (s *interfaceFiles) applyListing(of func(name string, device bool) bool) {
	if !s.stale {
		return
	}
	s.ignored = !of(s.name, s.function.ok)
	s.counters.applyListing()
	s.stale = s.counters.dir.err != nil || s.function.err != nil || s.rdma.err != nil
}

// functionDevices returns the RDMA devices of the interface's function as they were last listed.
func (s *interfaceFiles) functionDevices() []string {
	if !s.rdma.ok {
		return nil
	}
	devices, _ := s.rdma.answer.([]string)
	return devices
}

func (s *interfaceFiles) filesToRead(parts Parts) *fileGroup {
	s.toRead.device, s.toRead.files = s.name, s.toRead.files[:0]
	add := func(files ...*file) { s.toRead.files = append(s.toRead.files, files...) }
	if parts&ReadStates != 0 {
		add(s.operstate, s.carrier, s.speed)
	}
	if parts&ReadCounters != 0 {
		add(s.changes)
		add(s.counters.files...)
		add(s.pci.errorCountFiles()...)
	}
	if parts&ReadIdentity != 0 {
		add(s.mtu, s.master, s.slaves)
		add(s.pci.identityFiles()...)
	}
	return &s.toRead
}

func (s *interfaceFiles) buildInterface(errs *fileErrors) Interface {
	errs.addFrom(s.function, s.rdma, s.slaves, s.operstate, s.carrier, s.speed, s.mtu, s.master, s.changes, s.counters.dir)
	out := Interface{Name: s.name, Kind: Ethernet, Function: s.pci.sriovFunction(), PCI: s.pci.buildPCI(s.name, errs), Counters: s.counters.counterValues(errs)}
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
			errs.addMalformed(s.name, s.speed, err)
		}
		if ok {
			out.Speed = &v
		}
	}
	if s.mtu.ok {
		out.MTU = clonePointer(&s.mtu.value)
	}
	if s.changes.ok {
		out.Changes = clonePointer(&s.changes.value)
	}
	if s.master.ok {
		out.Master = s.master.text
	}
	if s.slaves.ok {
		out.Members = strings.Fields(s.slaves.text)
		slices.Sort(out.Members)
	}
	s.stale = s.stale || s.counters.anyGone()
	return out
}
