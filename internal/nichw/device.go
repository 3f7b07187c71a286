package nichw

import (
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// maxPorts and maxEntries bound what a broken tree can make us read.
const (
	maxPorts   = 64
	maxEntries = 512
)

// counterShelf are the counters of one directory.
type counterShelf struct {
	dir   *file
	files []*file
}

// notCounters are files beside hardware counters that are settings.
var notCounters = []string{"lifespan"}

// learn has a file for every entry of the directory. Files of before are kept: they hold values.
func (c *counterShelf) learn() {
	if !c.dir.ok {
		if c.dir.gone {
			c.files = nil
		}
		return
	}
	var files []*file
	for _, name := range c.dir.names[:min(len(c.dir.names), maxEntries)] {
		if slices.Contains(notCounters, name) {
			continue
		}
		path := filepath.Join(c.dir.path, name)
		if i := slices.IndexFunc(c.files, func(f *file) bool { return f.path == path }); i >= 0 {
			files = append(files, c.files[i])
			continue
		}
		files = append(files, &file{path: path, kind: number, lax: true})
	}
	c.files = files
}

func (c *counterShelf) read(errs *errorsOf) []Counter {
	out := make([]Counter, 0, len(c.files))
	for _, f := range c.files {
		errs.of(f)
		if f.ok {
			out = append(out, Counter{filepath.Base(f.path), f.value})
		}
	}
	return out
}

// gone reports whether a file that was there went.
func (c *counterShelf) gone() bool {
	return slices.ContainsFunc(c.files, func(f *file) bool { return f.gone })
}

// pciShelf is a PCI function.
type pciShelf struct {
	uevent, driver, physfn, total    *file
	speed, maxSpeed, width, maxWidth *file
	correctable, nonFatal, fatal     *file
}

func newPCIShelf(dir string) *pciShelf {
	f := func(name string, k kind) *file { return &file{path: filepath.Join(dir, name), kind: k, lax: true} }
	return &pciShelf{uevent: f("uevent", text), driver: f("driver", target), physfn: f("physfn", target), total: f("sriov_totalvfs", number),
		speed: f("current_link_speed", text), maxSpeed: f("max_link_speed", text), width: f("current_link_width", number), maxWidth: f("max_link_width", number),
		correctable: f("aer_dev_correctable", text), nonFatal: f("aer_dev_nonfatal", text), fatal: f("aer_dev_fatal", text)}
}

func (p *pciShelf) identity() []*file {
	return []*file{p.uevent, p.driver, p.physfn, p.total, p.speed, p.maxSpeed, p.width, p.maxWidth}
}

func (p *pciShelf) counters() []*file { return []*file{p.correctable, p.nonFatal, p.fatal} }

// function is what SR-IOV makes of it: a virtual function has a link to its physical one,
// and a physical one says how many it can have.
func (p *pciShelf) function() Function {
	switch {
	case p.physfn.ok:
		return Virtual
	case p.total.ok:
		return Physical
	}
	return Plain
}

func (p *pciShelf) read(device string, errs *errorsOf) *PCI {
	errs.of(p.identity()...)
	errs.of(p.counters()...)
	address := ""
	if p.uevent.ok {
		address = parseUevent(p.uevent.text, "PCI_SLOT_NAME")
	}
	if address == "" {
		return nil
	}
	out := &PCI{Address: address}
	if p.physfn.ok {
		out.Parent = p.physfn.text
	}
	speed := func(f *file) *float64 {
		if !f.ok {
			return nil
		}
		v, ok, err := parseLinkSpeed(f.text)
		if err != nil {
			errs.malformed(device, f, err)
		}
		if !ok {
			return nil
		}
		return &v
	}
	width := func(f *file) *uint64 {
		if !f.ok || f.value == 0 || f.value > 32 {
			return nil // 0 and 255 are what the kernel says of a function without a link
		}
		return &f.value
	}
	total := func(f *file, name string) *uint64 {
		if !f.ok {
			return nil
		}
		v, err := parseAER(f.text, name)
		if err != nil {
			errs.malformed(device, f, err)
			return nil
		}
		return &v
	}
	out.Speed, out.MaxSpeed, out.Width, out.MaxWidth = speed(p.speed), speed(p.maxSpeed), clone(width(p.width)), clone(width(p.maxWidth))
	out.Correctable, out.NonFatal, out.Fatal = total(p.correctable, "TOTAL_ERR_COR"), total(p.nonFatal, "TOTAL_ERR_NONFATAL"), total(p.fatal, "TOTAL_ERR_FATAL")
	return out
}

func clone(v *uint64) *uint64 {
	if v == nil {
		return nil
	}
	x := *v
	return &x
}

// deviceShelf is an RDMA device.
type deviceShelf struct {
	name, dir string
	shelf     shelf // what is read in this poll
	stale     bool  // its directories have to be listed
	list      *file // ports
	nets      *file // interfaces of the same function
	parent    *file // of a device without hardware: its interface
	pci       *pciShelf
	hca, fw   *file
	board     *file
	guid      *file
	ports     []*portShelf
}

func newDeviceShelf(sys, name string) *deviceShelf {
	dir := filepath.Join(sys, "class/infiniband", name)
	f := func(name string, k kind) *file { return &file{path: filepath.Join(dir, name), kind: k} }
	return &deviceShelf{name: name, dir: dir, stale: true, list: f("ports", names), nets: f("device/net", names), parent: f("parent", text),
		pci: newPCIShelf(filepath.Join(dir, "device")), hca: f("hca_type", text), fw: f("fw_ver", text), board: f("board_id", text), guid: f("node_guid", text)}
}

// directories are what has to be listed.
func (d *deviceShelf) directories() *shelf {
	s := &shelf{device: d.name, files: []*file{d.list, d.nets}}
	for _, p := range d.ports {
		s.files = append(s.files, p.counters.dir, p.hardware.dir, p.table)
	}
	return s
}

// learn takes over what was listed.
func (d *deviceShelf) learn() {
	if !d.stale {
		return
	}
	if !d.list.ok {
		if d.list.gone {
			d.ports, d.stale = nil, false
		}
		return // asked again in the next poll
	}
	var ports []*portShelf
	complete := true
	for _, name := range d.list.names[:min(len(d.list.names), maxPorts)] {
		n, err := strconv.Atoi(name)
		if err != nil || n < 1 {
			continue
		}
		i := slices.IndexFunc(d.ports, func(p *portShelf) bool { return p.number == n })
		if i < 0 {
			ports = append(ports, newPortShelf(filepath.Join(d.dir, "ports", name), n))
			complete = false // what it has is asked next
			continue
		}
		p := d.ports[i]
		p.learn()
		ports = append(ports, p)
		complete = complete && p.counters.dir.err == nil && p.hardware.dir.err == nil && p.table.err == nil
	}
	d.ports, d.stale = ports, !complete
}

// wanted are the files of some parts.
func (d *deviceShelf) wanted(parts Parts) *shelf {
	d.shelf.device, d.shelf.files = d.name, d.shelf.files[:0]
	add := func(files ...*file) { d.shelf.files = append(d.shelf.files, files...) }
	for _, p := range d.ports {
		if parts&ReadStates != 0 {
			add(p.state, p.phys, p.rate)
		}
		if parts&ReadCounters != 0 {
			add(p.counters.files...)
			add(p.hardware.files...)
		}
		if parts&ReadGIDs != 0 {
			for _, g := range p.gids {
				add(g.value, g.sort, g.netdev)
			}
		}
		if parts&ReadIdentity != 0 {
			add(p.layer)
		}
	}
	if parts&ReadIdentity != 0 {
		add(d.hca, d.fw, d.board, d.guid, d.parent)
		add(d.pci.identity()...)
	}
	if parts&ReadCounters != 0 {
		add(d.pci.counters()...)
	}
	return &d.shelf
}

// device is what the files say.
func (d *deviceShelf) device(errs *errorsOf) Device {
	errs.of(d.list, d.nets, d.hca, d.fw, d.board, d.guid, d.parent)
	told := func(f *file) string {
		if !f.ok {
			return ""
		}
		return f.text
	}
	out := Device{Name: d.name, HCAType: told(d.hca), Firmware: told(d.fw), Board: told(d.board), GUID: told(d.guid), Driver: told(d.pci.driver), Function: d.pci.function(),
		PCI: d.pci.read(d.name, errs)}
	out.Kind = kindOf(out.Driver, d.name)
	if out.Kind == "" && d.parent.ok {
		out.Kind = RXE // by any name: no other driver has the attribute
	}
	if d.list.gone {
		errs.malformed(d.name, d.list, errNoPorts)
	}
	for _, p := range d.ports {
		port := p.port(d.name, errs)
		if port.Netdev == "" && len(d.ports) == 1 {
			port.Netdev = told(d.parent)
		}
		if port.Netdev == "" && len(d.ports) == 1 && d.nets.ok && len(d.nets.names) == 1 {
			port.Netdev = d.nets.names[0]
		}
		out.Ports = append(out.Ports, port)
		d.stale = d.stale || p.counters.gone() || p.hardware.gone()
	}
	slices.SortFunc(out.Ports, func(a, b Port) int { return a.Number - b.Number })
	return out
}

var (
	drivers = map[string]Kind{"mlx5_core": MLX5, "mlx4_core": MLX4, "efa": EFA, "irdma": IRDMA, "ice": IRDMA, "i40e": IRDMA, "rdma_rxe": RXE, "siw": SIW}
	// byDeviceName is for devices without a driver link: those that have no hardware, and
	// those whose link cannot be read.
	byDeviceName = []struct {
		name *regexp.Regexp
		kind Kind
	}{{regexp.MustCompile(`^mlx5_`), MLX5}, {regexp.MustCompile(`^mlx4_`), MLX4}, {regexp.MustCompile(`^(rdmap\d+s\d+|efa_)`), EFA}, {regexp.MustCompile(`^irdma`), IRDMA},
		{regexp.MustCompile(`^rxe`), RXE}, {regexp.MustCompile(`^siw`), SIW}}
)

func kindOf(driver, name string) Kind {
	if driver != "" {
		if k, ok := drivers[driver]; ok {
			return k
		}
		return Kind(driver)
	}
	for _, x := range byDeviceName {
		if x.name.MatchString(name) {
			return x.kind
		}
	}
	return ""
}

// portShelf is a port.
type portShelf struct {
	number             int
	dir                string
	state, phys, rate  *file
	layer              *file
	counters, hardware counterShelf
	table              *file
	gids               []*gidShelf
}

// gidShelf is an entry of a port's table.
type gidShelf struct {
	index               int
	value, sort, netdev *file
}

func newPortShelf(dir string, n int) *portShelf {
	f := func(name string, k kind) *file { return &file{path: filepath.Join(dir, name), kind: k} }
	return &portShelf{number: n, dir: dir, state: f("state", text), phys: f("phys_state", text), rate: f("rate", text), layer: f("link_layer", text),
		counters: counterShelf{dir: f("counters", names)}, hardware: counterShelf{dir: f("hw_counters", names)}, table: f("gids", names)}
}

func (p *portShelf) learn() {
	p.counters.learn()
	p.hardware.learn()
	if !p.table.ok {
		return
	}
	// A directory is listed by name, 10 before 2, and a table fills from its start: rxe's has
	// 1024 entries (drivers/infiniband/sw/rxe/rxe_param.h), of which a few hold anything.
	var indexes []int
	for _, name := range p.table.names {
		if n, err := strconv.Atoi(name); err == nil && n >= 0 && strconv.Itoa(n) == name {
			indexes = append(indexes, n)
		}
	}
	slices.Sort(indexes)
	var gids []*gidShelf
	for _, n := range indexes[:min(len(indexes), maxEntries)] {
		name := strconv.Itoa(n)
		if i := slices.IndexFunc(p.gids, func(g *gidShelf) bool { return g.index == n }); i >= 0 {
			gids = append(gids, p.gids[i])
			continue
		}
		// The kernel says EINVAL of the type and the interface of an entry that is empty.
		f := func(dir string) *file { return &file{path: filepath.Join(p.dir, dir, name), kind: text, lax: true} }
		gids = append(gids, &gidShelf{index: n, value: f("gids"), sort: f("gid_attrs/types"), netdev: f("gid_attrs/ndevs")})
	}
	p.gids = gids
}

func (p *portShelf) port(device string, errs *errorsOf) Port {
	errs.of(p.state, p.phys, p.rate, p.layer, p.counters.dir, p.hardware.dir, p.table)
	out := Port{Number: p.number, Counters: p.counters.read(errs), Hardware: p.hardware.read(errs), GIDsKnown: p.table.ok}
	numbered := func(f *file, names []string) int {
		if !f.ok {
			return 0
		}
		n, err := parseState(f.text, names)
		if err != nil {
			errs.malformed(device, f, err)
		}
		return n
	}
	out.State, out.Phys = State(numbered(p.state, States[:])), Phys(numbered(p.phys, PhysStates[:]))
	if p.rate.ok {
		rate, ok, err := parseRate(p.rate.text)
		if err != nil {
			errs.malformed(device, p.rate, err)
		}
		if ok {
			out.Rate = &rate
		}
	}
	if p.layer.ok {
		out.LinkLayer = p.layer.text
	}
	for _, g := range p.gids {
		errs.of(g.value)
		if g.value.err != nil || !g.value.ok && !g.value.gone && g.value.text == "" {
			out.GIDsKnown = false // not all of it
		}
		if !g.value.ok {
			continue
		}
		a, ok, err := parseGID(g.value.text)
		if err != nil {
			errs.malformed(device, g.value, err)
			out.GIDsKnown = false
		}
		if !ok {
			continue
		}
		// Those of an empty entry cannot be read, in ways that differ between kernels.
		// So is the interface of one that has none.
		errs.of(g.sort)
		if out.LinkLayer == "Ethernet" {
			errs.of(g.netdev)
		}
		x := GID{Index: g.index, Address: a}
		if g.sort.ok {
			x.Type = g.sort.text
		}
		if g.netdev.ok {
			x.Netdev = g.netdev.text
			if out.Netdev == "" {
				out.Netdev = x.Netdev
			}
		}
		out.GIDs = append(out.GIDs, x)
	}
	return out
}
