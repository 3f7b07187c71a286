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

// counterFiles are the counters of one directory.
type counterFiles struct {
	dir   *file
	files []*file
}

// notCounters are files beside hardware counters that are settings.
var notCounters = []string{"lifespan"}

// applyListing has a file for every entry of the directory. Files of before are kept: they hold values.
func (c *counterFiles) applyListing() {
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
		files = append(files, &file{path: path, kind: kindNumber, toleratesInvalid: true})
	}
	c.files = files
}

func (c *counterFiles) counterValues(errs *fileErrors) []Counter {
	out := make([]Counter, 0, len(c.files))
	for _, f := range c.files {
		errs.addFrom(f)
		if f.ok {
			out = append(out, Counter{filepath.Base(f.path), f.value})
		}
	}
	return out
}

// anyGone reports whether a file that was there went.
func (c *counterFiles) anyGone() bool {
	return slices.ContainsFunc(c.files, func(f *file) bool { return f.gone })
}

// pciFiles is a PCI function.
type pciFiles struct {
	uevent, driver, physfn, total    *file
	speed, maxSpeed, width, maxWidth *file
	correctable, nonFatal, fatal     *file
}

func newPCIFiles(dir string) *pciFiles {
	f := func(name string, k kind) *file {
		return &file{path: filepath.Join(dir, name), kind: k, toleratesInvalid: true}
	}
	return &pciFiles{uevent: f("uevent", kindText), driver: f("driver", kindTarget), physfn: f("physfn", kindTarget), total: f("sriov_totalvfs", kindNumber),
		speed: f("current_link_speed", kindText), maxSpeed: f("max_link_speed", kindText), width: f("current_link_width", kindNumber), maxWidth: f("max_link_width", kindNumber),
		correctable: f("aer_dev_correctable", kindText), nonFatal: f("aer_dev_nonfatal", kindText), fatal: f("aer_dev_fatal", kindText)}
}

func (p *pciFiles) identityFiles() []*file {
	return []*file{p.uevent, p.driver, p.physfn, p.total, p.speed, p.maxSpeed, p.width, p.maxWidth}
}

func (p *pciFiles) errorCountFiles() []*file { return []*file{p.correctable, p.nonFatal, p.fatal} }

// sriovFunction returns the device's role in SR-IOV: a virtual function has a link to its physical one, and a
// physical one has the number of virtual ones that it supports.
func (p *pciFiles) sriovFunction() Function {
	switch {
	case p.physfn.ok:
		return Virtual
	case p.total.ok:
		return Physical
	}
	return Plain
}

func (p *pciFiles) buildPCI(device string, errs *fileErrors) *PCI {
	errs.addFrom(p.identityFiles()...)
	errs.addFrom(p.errorCountFiles()...)
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
			errs.addMalformed(device, f, err)
		}
		if !ok {
			return nil
		}
		return &v
	}
	width := func(f *file) *uint64 {
		if !f.ok || f.value == 0 || f.value > 32 {
			return nil // the kernel has 0 and 255 for a function without a link
		}
		return &f.value
	}
	total := func(f *file, name string) *uint64 {
		if !f.ok {
			return nil
		}
		v, err := parseAER(f.text, name)
		if err != nil {
			errs.addMalformed(device, f, err)
			return nil
		}
		return &v
	}
	out.Speed, out.MaxSpeed, out.Width, out.MaxWidth = speed(p.speed), speed(p.maxSpeed), clonePointer(width(p.width)), clonePointer(width(p.maxWidth))
	out.Correctable, out.NonFatal, out.Fatal = total(p.correctable, "TOTAL_ERR_COR"), total(p.nonFatal, "TOTAL_ERR_NONFATAL"), total(p.fatal, "TOTAL_ERR_FATAL")
	return out
}

func clonePointer(v *uint64) *uint64 {
	if v == nil {
		return nil
	}
	x := *v
	return &x
}

// deviceFiles is an RDMA device.
type deviceFiles struct {
	name, dir string
	toRead    fileGroup // what is read in this poll
	stale     bool      // its directories have to be listed
	list      *file     // ports
	nets      *file     // interfaces of the same function
	parent    *file     // of a device without hardware: its interface
	pci       *pciFiles
	hca, fw   *file
	board     *file
	guid      *file
	ports     []*portFiles
}

func newDeviceFiles(sys, name string) *deviceFiles {
	dir := filepath.Join(sys, "class/infiniband", name)
	f := func(name string, k kind) *file { return &file{path: filepath.Join(dir, name), kind: k} }
	return &deviceFiles{name: name, dir: dir, stale: true, list: f("ports", kindNames), nets: f("device/net", kindNames), parent: f("parent", kindText),
		pci: newPCIFiles(filepath.Join(dir, "device")), hca: f("hca_type", kindText), fw: f("fw_ver", kindText), board: f("board_id", kindText), guid: f("node_guid", kindText)}
}

// directoryFiles returns the directories to list.
func (d *deviceFiles) directoryFiles() *fileGroup {
	s := &fileGroup{device: d.name, files: []*file{d.list, d.nets}}
	for _, p := range d.ports {
		s.files = append(s.files, p.counters.dir, p.hardware.dir, p.table)
	}
	return s
}

// applyListing takes over what was listed.
func (d *deviceFiles) applyListing() {
	if !d.stale {
		return
	}
	if !d.list.ok {
		if d.list.gone {
			d.ports, d.stale = nil, false
		}
		return // read again in the next poll
	}
	var ports []*portFiles
	complete := true
	for _, name := range d.list.names[:min(len(d.list.names), maxPorts)] {
		n, err := strconv.Atoi(name)
		if err != nil || n < 1 {
			continue
		}
		i := slices.IndexFunc(d.ports, func(p *portFiles) bool { return p.number == n })
		if i < 0 {
			ports = append(ports, newPortFiles(filepath.Join(d.dir, "ports", name), n))
			complete = false // its files are read next
			continue
		}
		p := d.ports[i]
		p.applyListing()
		ports = append(ports, p)
		complete = complete && p.counters.dir.err == nil && p.hardware.dir.err == nil && p.table.err == nil
	}
	d.ports, d.stale = ports, !complete
}

// filesToRead returns the files of some parts.
func (d *deviceFiles) filesToRead(parts Parts) *fileGroup {
	d.toRead.device, d.toRead.files = d.name, d.toRead.files[:0]
	add := func(files ...*file) { d.toRead.files = append(d.toRead.files, files...) }
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
		add(d.pci.identityFiles()...)
	}
	if parts&ReadCounters != 0 {
		add(d.pci.errorCountFiles()...)
	}
	return &d.toRead
}

// buildDevice returns the device that the files describe.
func (d *deviceFiles) buildDevice(errs *fileErrors) Device {
	errs.addFrom(d.list, d.nets, d.hca, d.fw, d.board, d.guid, d.parent)
	text := func(f *file) string {
		if !f.ok {
			return ""
		}
		return f.text
	}
	out := Device{Name: d.name, HCAType: text(d.hca), Firmware: text(d.fw), Board: text(d.board), GUID: text(d.guid), Driver: text(d.pci.driver), Function: d.pci.sriovFunction(),
		PCI: d.pci.buildPCI(d.name, errs)}
	out.Kind = kindOf(out.Driver, d.name)
	if out.Kind == "" && d.parent.ok {
		out.Kind = RXE // by any name: no other driver has the attribute
	}
	if d.list.gone {
		errs.addMalformed(d.name, d.list, errNoPorts)
	}
	for _, p := range d.ports {
		port := p.buildPort(d.name, errs)
		if port.Netdev == "" && len(d.ports) == 1 {
			port.Netdev = text(d.parent)
		}
		if port.Netdev == "" && len(d.ports) == 1 && d.nets.ok && len(d.nets.names) == 1 {
			port.Netdev = d.nets.names[0]
		}
		out.Ports = append(out.Ports, port)
		d.stale = d.stale || p.counters.anyGone() || p.hardware.anyGone()
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

// portFiles is a port.
type portFiles struct {
	number             int
	dir                string
	state, phys, rate  *file
	layer              *file
	counters, hardware counterFiles
	table              *file
	gids               []*gidFiles
}

// gidFiles is an entry of a port's table.
type gidFiles struct {
	index               int
	value, sort, netdev *file
}

func newPortFiles(dir string, n int) *portFiles {
	f := func(name string, k kind) *file { return &file{path: filepath.Join(dir, name), kind: k} }
	return &portFiles{number: n, dir: dir, state: f("state", kindText), phys: f("phys_state", kindText), rate: f("rate", kindText), layer: f("link_layer", kindText),
		counters: counterFiles{dir: f("counters", kindNames)}, hardware: counterFiles{dir: f("hw_counters", kindNames)}, table: f("gids", kindNames)}
}

func (p *portFiles) applyListing() {
	p.counters.applyListing()
	p.hardware.applyListing()
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
	var gids []*gidFiles
	for _, n := range indexes[:min(len(indexes), maxEntries)] {
		name := strconv.Itoa(n)
		if i := slices.IndexFunc(p.gids, func(g *gidFiles) bool { return g.index == n }); i >= 0 {
			gids = append(gids, p.gids[i])
			continue
		}
		// The kernel returns EINVAL for the type and the interface of an empty entry.
		f := func(dir string) *file {
			return &file{path: filepath.Join(p.dir, dir, name), kind: kindText, toleratesInvalid: true}
		}
		gids = append(gids, &gidFiles{index: n, value: f("gids"), sort: f("gid_attrs/types"), netdev: f("gid_attrs/ndevs")})
	}
	p.gids = gids
}

func (p *portFiles) buildPort(device string, errs *fileErrors) Port {
	errs.addFrom(p.state, p.phys, p.rate, p.layer, p.counters.dir, p.hardware.dir, p.table)
	out := Port{Number: p.number, Counters: p.counters.counterValues(errs), Hardware: p.hardware.counterValues(errs), GIDsKnown: p.table.ok}
	numbered := func(f *file, names []string) int {
		if !f.ok {
			return 0
		}
		n, err := parseState(f.text, names)
		if err != nil {
			errs.addMalformed(device, f, err)
		}
		return n
	}
	out.State, out.Phys = State(numbered(p.state, States[:])), Phys(numbered(p.phys, PhysStates[:]))
	if p.rate.ok {
		rate, ok, err := parseRate(p.rate.text)
		if err != nil {
			errs.addMalformed(device, p.rate, err)
		}
		if ok {
			out.Rate = &rate
		}
	}
	if p.layer.ok {
		out.LinkLayer = p.layer.text
	}
	for _, g := range p.gids {
		errs.addFrom(g.value)
		if g.value.err != nil || !g.value.ok && !g.value.gone && g.value.text == "" {
			out.GIDsKnown = false // not all of it
		}
		if !g.value.ok {
			continue
		}
		a, ok, err := parseGID(g.value.text)
		if err != nil {
			errs.addMalformed(device, g.value, err)
			out.GIDsKnown = false
		}
		if !ok {
			continue
		}
		// Those of an empty entry cannot be read, in ways that differ between kernels.
		// So is the interface of one that has none.
		errs.addFrom(g.sort)
		if out.LinkLayer == "Ethernet" {
			errs.addFrom(g.netdev)
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
