package fakesys

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// Build makes the tree of a node in root. What root holds is replaced where a tree was built there
// before; a directory that holds anything else is refused with ErrNotOurs.
func Build(root string, n Node) error {
	if err := n.Validate(); err != nil {
		return err
	}
	if err := empty(root); err != nil {
		return err
	}
	text, err := yaml.Marshal(n)
	if err != nil {
		return err
	}
	l := newLayout(n)
	l.files[path.Join(private, "node.yaml")] = string(text)
	if err := l.write(root); err != nil {
		return fmt.Errorf("building a tree in %s: %w", root, err)
	}
	t, err := Open(root)
	if err != nil {
		return err
	}
	for i, s := range n.Then {
		if err := t.Do(s); err != nil {
			return wrong(fmt.Sprintf("then[%d]", i), "%s: %v", s, err)
		}
	}
	return nil
}

// ErrNotOurs is of a directory that holds no tree that was built here.
var ErrNotOurs = errors.New("holds no tree of graylink fakesys")

// private is the directory of a tree that is none of the node's.
const private = ".fakesys"

// empty makes root an empty directory with the marker in it.
func empty(root string) error {
	entries, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(entries) > 0 {
		if info, err := os.Lstat(filepath.Join(root, private)); err != nil || !info.IsDir() {
			return fmt.Errorf("%s is not empty and %w: an empty directory is expected", root, ErrNotOurs)
		}
	}
	for _, dir := range []string{"sys", "proc", "dev", private + "/" + taken, private + "/" + staging} {
		if err := os.RemoveAll(filepath.Join(root, dir)); err != nil {
			return err
		}
	}
	for _, dir := range []string{taken, staging} {
		if err := os.MkdirAll(filepath.Join(root, private, dir), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// layout is a tree before it is written. Paths are relative to the root.
type layout struct {
	files map[string]string // what they hold
	links map[string]string // where they point: a path relative to the root; to itself is unreadable
	dirs  map[string]bool   // those that may be empty
	node  Node
	of    map[string]Device // devices by address
	vfs   map[string][]string
	// home is the directory of an interface, master the bond it is in.
	home, master map[string]string
	index        int
	kmsg         strings.Builder
	records      int
}

func newLayout(n Node) *layout {
	l := &layout{
		files: map[string]string{}, links: map[string]string{}, dirs: map[string]bool{}, node: n,
		of: map[string]Device{}, vfs: map[string][]string{}, home: map[string]string{}, master: map[string]string{},
	}
	for _, d := range n.Devices {
		if d.PCI != "" {
			l.of[d.PCI] = d
		}
		if d.VFOf != "" {
			l.vfs[d.VFOf] = append(l.vfs[d.VFOf], d.PCI)
		}
		for _, f := range d.Net {
			l.home[f.Name] = path.Join(l.dir(d), "net", f.Name)
			if f.Bond == nil {
				continue
			}
			for _, s := range f.Bond.Slaves {
				l.master[s] = f.Name
			}
		}
	}
	for _, dir := range []string{"sys/class/infiniband", "sys/class/net", "sys/bus/pci/devices", "sys/bus/pci/drivers", "sys/devices/virtual"} {
		l.dirs[dir] = true
	}
	l.home["lo"] = "sys/devices/virtual/net/lo"
	l.log("", "Linux version 6.8.0-fakesys")
	l.netdev(Device{}, Net{Name: "lo", Type: 772, MTU: 65536, Address: "00:00:00:00:00:00", OperState: "unknown", Speed: -1})
	for _, d := range n.Devices {
		if d.PCI != "" {
			l.function(d)
		}
		for _, f := range d.Net {
			l.netdev(d, f)
		}
		if d.RDMA != nil {
			l.rdma(d, *d.RDMA)
		}
	}
	l.proc()
	return l
}

// dir is the directory of a device: a function is behind a root port of its own, and virtual
// functions are where their physical one is.
func (l *layout) dir(d Device) string {
	if d.PCI == "" {
		return "sys/devices/virtual"
	}
	return path.Join(port(d), d.PCI)
}

// port is the directory of the root port that a function is behind.
func port(d Device) string {
	addr := d.PCI
	if d.VFOf != "" {
		addr = d.VFOf
	}
	domain, bus := addr[:4], addr[5:7]
	b, _ := strconv.ParseUint(bus, 16, 8) // the address is valid
	if b == 0 {
		return path.Join("sys/devices", "pci"+domain+":00")
	}
	root := fmt.Sprintf("%s:%02x", domain, b-1)
	return path.Join("sys/devices", "pci"+root, root+":01.0")
}

// put writes attributes, each with the newline that the kernel ends them with.
func (l *layout) put(dir string, attributes map[string]string) {
	for name, v := range attributes {
		l.files[path.Join(dir, name)] = v + "\n"
	}
}

// unreadable is a file that is there and cannot be read.
func (l *layout) unreadable(file string) { l.links[file] = file }

func (l *layout) log(device, text string) {
	l.kmsg.WriteString(record(6, l.records, int64(l.records)*1000, device, text))
	l.records++
}

func (l *layout) function(d Device) {
	dir, kind := l.dir(d), drivers[d.Driver]
	class := "0x020000"
	if d.RDMA != nil && slices.ContainsFunc(d.RDMA.Ports, func(p Port) bool { return p.LinkLayer == "" || p.LinkLayer == "InfiniBand" }) {
		class = "0x020700"
	}
	speed, width := or(d.LinkSpeed, kind.speed, "8.0 GT/s PCIe"), orInt(d.LinkWidth, kind.width, 8)
	vendor, id := or(d.Vendor, kind.vendor, "0x8086"), or(d.ID, kind.id, "0x0001")
	if d.VFOf != "" {
		l.links[path.Join(dir, "physfn")] = l.dir(l.of[d.VFOf])
	} else {
		for i, vf := range l.vfs[d.PCI] {
			l.links[path.Join(dir, "virtfn"+strconv.Itoa(i))] = l.dir(l.of[vf])
		}
	}
	maxSpeed, maxWidth := or(d.MaxLinkSpeed, kind.speed, speed), orInt(d.MaxLinkWidth, kind.width, width)
	if d.VFOf != "" { // the link is the physical function's: the registers of a virtual one read as zero
		speed, width = "Unknown", 0
	}
	l.pci(dir, d.PCI, d.Driver, class, vendor, id, d.NUMA, d.VFOf == "")
	l.put(dir, map[string]string{
		"current_link_speed": speed, "current_link_width": strconv.Itoa(width),
		"max_link_speed": maxSpeed, "max_link_width": strconv.Itoa(maxWidth),
	})
	if n := len(l.vfs[d.PCI]); d.TotalVFs > 0 || n > 0 {
		l.put(dir, map[string]string{"sriov_totalvfs": strconv.Itoa(max(d.TotalVFs, n)), "sriov_numvfs": strconv.Itoa(n), "sriov_drivers_autoprobe": "1"})
	}
	l.log(d.PCI, fmt.Sprintf("%s %s: enabled device", d.Driver, d.PCI))
	bridge := port(d)
	if addr := path.Base(bridge); pciIs.MatchString(addr) && l.files[path.Join(bridge, "uevent")] == "" {
		l.pci(bridge, addr, "pcieport", "0x060400", "0x8086", "0x352a", d.NUMA, true)
		l.put(bridge, map[string]string{
			"current_link_speed": or(d.LinkSpeed, maxSpeed), "current_link_width": strconv.Itoa(orInt(d.LinkWidth, maxWidth)),
			"max_link_speed": maxSpeed, "max_link_width": strconv.Itoa(maxWidth),
		})
	}
}

// pci is what all functions have, bridges too.
func (l *layout) pci(dir, addr, driver, class, vendor, id string, numa int, aer bool) {
	l.put(dir, map[string]string{
		"uevent": fmt.Sprintf("DRIVER=%s\nPCI_CLASS=%s\nPCI_ID=%s:%s\nPCI_SUBSYS_ID=%s:0000\nPCI_SLOT_NAME=%s",
			driver, strings.ToUpper(class[3:]), strings.ToUpper(vendor[2:]), strings.ToUpper(id[2:]), strings.ToUpper(vendor[2:]), addr),
		"vendor": vendor, "device": id, "subsystem_vendor": vendor, "subsystem_device": "0x0000", "class": class, "revision": "0x00",
		"numa_node": strconv.Itoa(numa), "enable": "1",
	})
	l.links[path.Join(dir, "driver")] = path.Join("sys/bus/pci/drivers", driver)
	l.links[path.Join(dir, "subsystem")] = "sys/bus/pci"
	l.links[path.Join("sys/bus/pci/devices", addr)] = dir
	l.links[path.Join("sys/bus/pci/drivers", driver, addr)] = dir
	for kind, f := range aerFiles {
		if !aer {
			break
		}
		var b strings.Builder
		for _, n := range append(slices.Clone(f.names), f.total) {
			b.WriteString(n + " 0\n")
		}
		l.files[path.Join(dir, "aer_dev_"+kind)] = b.String()
	}
}

func (l *layout) rdma(d Device, r RDMA) {
	dir, kind := path.Join(l.dir(d), "infiniband", r.Name), drivers[d.Driver]
	if _, known := drivers[d.Driver]; !known {
		kind.nodeType = "1: CA"
	}
	guid := or(r.NodeGUID, l.guid(d, r))
	attributes := map[string]string{
		"node_type": or(r.NodeType, kind.nodeType), "node_guid": guid, "sys_image_guid": or(r.SysImageGUID, guid),
		"node_desc": or(r.NodeDesc, l.hostname()+" "+r.Name), "fw_ver": or(r.Firmware, kind.firmware),
		"uevent": "NAME=" + r.Name,
	}
	// The driver's own attributes, not every driver has them.
	for name, v := range map[string]string{"hca_type": or(r.HCAType, kind.hcaType), "board_id": or(r.BoardID, kind.boardID), "parent": r.Parent} {
		if v != "" {
			attributes[name] = v
		}
	}
	if kind.hcaType != "" {
		attributes["hw_rev"] = "0"
	}
	l.put(dir, attributes)
	l.links[path.Join(dir, "subsystem")] = "sys/class/infiniband"
	l.links[path.Join("sys/class/infiniband", r.Name)] = dir
	if d.PCI != "" {
		l.links[path.Join(dir, "device")] = l.dir(d)
	}
	l.counters(path.Join(dir, "hw_counters"), kind.set.device)
	for i, p := range r.Ports {
		l.rdmaPort(d, r, guid, kind.set, path.Join(dir, "ports", strconv.Itoa(p.number(i))), p.number(i), p)
	}
	l.dirs[path.Join(dir, "ports")] = true
}

func (l *layout) rdmaPort(d Device, r RDMA, guid string, set counterSet, dir string, number int, p Port) {
	layer, state := or(p.LinkLayer, "InfiniBand"), or(p.State, "4: ACTIVE")
	phys := "5: LinkUp"
	if state == "1: DOWN" {
		phys = map[string]string{"InfiniBand": "2: Polling"}[layer]
		phys = or(phys, "3: Disabled")
	}
	mask, lid := "0x04010000", uint16(0)
	if layer == "InfiniBand" {
		mask, lid = "0xa751e848", uint16(1+hash(l.hostname(), dir)%0xbffe) // of the unicast LIDs
	}
	smLID := uint16(0)
	if layer == "InfiniBand" {
		smLID = 1
	}
	l.put(dir, map[string]string{
		"state": state, "phys_state": or(p.PhysState, phys), "rate": p.Rate, "link_layer": layer,
		"lid": fmt.Sprintf("%#x", orInt(p.LID, lid)), "sm_lid": fmt.Sprintf("%#x", orInt(p.SMLID, smLID)),
		"lid_mask_count": "0", "sm_sl": "0", "cap_mask": or(p.CapMask, mask), "pkeys/0": "0xffff",
	})
	if set.counters {
		l.counters(path.Join(dir, "counters"), slices.Concat(madErrors, madTraffic))
	}
	hw := slices.Clone(set.hw)
	if layer == "Ethernet" {
		hw = append(hw, set.hwEth...)
	}
	if len(hw) > 0 {
		l.counters(path.Join(dir, "hw_counters"), hw)
		l.put(dir, map[string]string{"hw_counters/lifespan": lifespan})
	}
	for sub, given := range map[string]map[string]uint64{"counters": p.Counters, "hw_counters": p.HWCounters} {
		for name, v := range given {
			l.put(path.Join(dir, sub), map[string]string{name: strconv.FormatUint(v, 10)})
		}
	}
	l.gids(dir, layer, p, l.defaultGIDs(d, r, guid, layer, number, p))
}

// gids writes the table of GIDs. The kernel refuses to read the type of an entry that is empty, and
// the interface of one that has none.
func (l *layout) gids(dir, layer string, p Port, gids []GID) {
	size := p.GIDTable
	if size == 0 {
		size = map[string]int{"Ethernet": 16}[layer]
		size = max(orInt(size, 8), len(gids))
	}
	for i := range size {
		n := strconv.Itoa(i)
		g := GID{GID: strings.TrimSuffix(strings.Repeat("0000:", 8), ":")}
		if i < len(gids) {
			g = gids[i]
			g.Type = or(g.Type, gidTypes[0])
		}
		l.put(dir, map[string]string{"gids/" + n: g.GID})
		for sub, v := range map[string]string{"types": g.Type, "ndevs": g.NetDev} {
			if file := path.Join("gid_attrs", sub, n); v != "" {
				l.put(dir, map[string]string{file: v})
			} else {
				l.unreadable(path.Join(dir, file))
			}
		}
	}
}

// defaultGIDs are, of InfiniBand, the GUID's, and else those of the interface: link-local and of its
// IPv4 address, of both types where the driver has both.
func (l *layout) defaultGIDs(d Device, r RDMA, guid, layer string, number int, p Port) []GID {
	if p.NoGIDs || len(p.GIDs) > 0 {
		return p.GIDs
	}
	const linkLocal = "fe80:0000:0000:0000:"
	if layer != "Ethernet" {
		return []GID{{GID: linkLocal + guid}}
	}
	devs, types := d.Net, gidTypes
	if r.Parent != "" {
		types = gidTypes[1:] // rxe speaks RoCE v2 only
		devs = nil
		for _, d := range l.node.Devices {
			devs = append(devs, slices.DeleteFunc(slices.Clone(d.Net), func(f Net) bool { return f.Name != r.Parent })...)
		}
		number = 1
	}
	var out []GID
	for i, f := range devs {
		if f.DevPort != number-1 && (f.DevPort != 0 || i != number-1) {
			continue
		}
		mac := l.mac(f)
		name, ip := f.Name, f.IPv4
		if m := l.master[f.Name]; m != "" { // addresses are the bond's
			name = m
			ip = l.netOf(m).IPv4
		}
		gids := []string{linkLocal + eui64(mac)}
		if a, err := netip.ParseAddr(ip); err == nil {
			b := a.As4()
			gids = append(gids, fmt.Sprintf("0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x", b[0], b[1], b[2], b[3]))
		}
		for _, g := range gids {
			for _, t := range types {
				out = append(out, GID{g, t, name})
			}
		}
		break
	}
	return out
}

func (l *layout) netOf(name string) Net {
	for _, d := range l.node.Devices {
		for _, f := range d.Net {
			if f.Name == name {
				return f
			}
		}
	}
	return Net{}
}

func (l *layout) counters(dir string, names []string) {
	for _, n := range names {
		v := uint64(0)
		if traffic[n] || slices.Contains(madTraffic, n) || slices.Contains(netTraffic, n) {
			v = 1_000_000 + hash(dir, n)%1_000_000_000_000
		}
		l.put(dir, map[string]string{n: strconv.FormatUint(v, 10)})
	}
}

func (l *layout) netdev(d Device, f Net) {
	l.index++
	dir := l.home[f.Name]
	state := or(f.OperState, "up")
	carrier, speed, flags := "1", f.Speed, 0x1003 // up, broadcast, multicast
	if state != "up" && state != "unknown" {
		carrier, speed = "0", -1
	}
	kind := f.Type
	if kind == 0 {
		kind = 1
		if d.RDMA != nil && len(d.RDMA.Ports) > 0 && f.DevPort < len(d.RDMA.Ports) && or(d.RDMA.Ports[f.DevPort].LinkLayer, "InfiniBand") == "InfiniBand" {
			kind = 32
		}
	}
	mac, mtu, length := l.mac(f), 1500, 6
	broadcast := "ff:ff:ff:ff:ff:ff"
	if kind == 32 {
		if len(mac) < 30 { // queue pair, and GID: RFC 4391
			var r RDMA
			if d.RDMA != nil {
				r = *d.RDMA
			}
			g := or(r.NodeGUID, l.guid(d, r))
			mac = "00:00:10:49:fe:80:00:00:00:00:00:00:" + pairs(strings.ReplaceAll(g, ":", ""))
		}
		mtu, length, broadcast = 2044, 20, "00:ff:ff:ff:ff:12:40:1b:ff:ff:00:00:00:00:00:00:ff:ff:ff:ff"
	}
	if kind == 772 {
		flags, broadcast = 0x9, "00:00:00:00:00:00"
	}
	if m := l.master[f.Name]; m != "" {
		flags |= 0x800
		l.links[path.Join(dir, "master")] = l.home[m]
		l.links[path.Join(dir, "upper_"+m)] = l.home[m]
		l.put(path.Join(dir, "bonding_slave"), map[string]string{"mii_status": state, "state": "active", "link_failure_count": "0"})
	}
	if f.Bond != nil {
		flags |= 0x400
		slaves := strings.Join(f.Bond.Slaves, " ")
		l.put(path.Join(dir, "bonding"), map[string]string{
			"mode": or(f.Bond.Mode, "802.3ad 4"), "slaves": slaves, "mii_status": state, "miimon": "100", "lacp_rate": "fast 1",
			"xmit_hash_policy": "layer3+4 1",
		})
		for _, s := range f.Bond.Slaves {
			l.links[path.Join(dir, "lower_"+s)] = l.home[s]
		}
	}
	index := strconv.Itoa(l.index)
	ups := (f.CarrierChanges + 1) / 2
	l.put(dir, map[string]string{
		"address": mac, "addr_len": strconv.Itoa(length), "broadcast": broadcast, "type": strconv.Itoa(kind),
		"mtu": strconv.Itoa(orInt(f.MTU, mtu)), "operstate": state, "carrier": carrier, "speed": strconv.Itoa(orInt(speed, -1)),
		"duplex": map[bool]string{true: "full", false: "unknown"}[speed > 0], "flags": fmt.Sprintf("%#x", flags),
		"ifindex": index, "iflink": index, "dev_id": "0x0", "dev_port": strconv.Itoa(f.DevPort),
		"carrier_changes": strconv.FormatUint(f.CarrierChanges, 10), "carrier_up_count": strconv.FormatUint(ups, 10),
		"carrier_down_count": strconv.FormatUint(f.CarrierChanges-ups, 10), "tx_queue_len": "1000",
		"uevent": "INTERFACE=" + f.Name + "\nIFINDEX=" + index,
	})
	l.files[path.Join(dir, "ifalias")] = ""
	l.counters(path.Join(dir, "statistics"), slices.Concat(netErrors, netTraffic))
	for name, v := range f.Statistics {
		l.put(path.Join(dir, "statistics"), map[string]string{name: strconv.FormatUint(v, 10)})
	}
	l.links[path.Join(dir, "subsystem")] = "sys/class/net"
	l.links[path.Join("sys/class/net", f.Name)] = dir
	if d.PCI != "" {
		l.links[path.Join(dir, "device")] = l.dir(d)
	}
}

// bootTime is when a node was booted, in seconds of Unix.
const bootTime = 1767225600

func (l *layout) proc() {
	id := or(l.node.BootID, uuid(l.hostname()))
	l.put("proc", map[string]string{
		"sys/kernel/random/boot_id": id, "sys/kernel/hostname": l.hostname(), "sys/kernel/osrelease": "6.8.0-fakesys",
		"stat": fmt.Sprintf("cpu  0 0 0 0 0 0 0 0 0 0\nbtime %d", bootTime),
	})
	l.files[kmsgFile] = l.kmsg.String()
}

func (l *layout) write(root string) error {
	for _, dir := range slices.Sorted(maps.Keys(l.dirs)) {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	made := map[string]bool{}
	mkdir := func(name string) error {
		dir := path.Dir(name)
		if made[dir] {
			return nil
		}
		made[dir] = true
		return os.MkdirAll(filepath.Join(root, dir), 0o755)
	}
	for _, name := range slices.Sorted(maps.Keys(l.files)) {
		if err := mkdir(name); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(l.files[name]), 0o644); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.links)) {
		if err := mkdir(name); err != nil {
			return err
		}
		to := path.Base(name)
		if l.links[name] != name {
			// Up to what the target's directory is in, as fs/kernfs/symlink.c does: the last
			// part of a link to a function is always its address.
			rel, err := filepath.Rel(path.Dir(name), path.Dir(l.links[name]))
			if err != nil {
				return err
			}
			to = path.Join(rel, path.Base(l.links[name]))
		}
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			return err
		}
	}
	return nil
}

func (l *layout) hostname() string { return or(l.node.Hostname, "node") }

// oui is of the addresses that are made up here: NVIDIA's.
const oui = "b83fd2"

func (l *layout) mac(f Net) string {
	if f.Address == "" && f.Bond != nil && len(f.Bond.Slaves) > 0 {
		return l.mac(l.netOf(f.Bond.Slaves[0]))
	}
	return or(f.Address, pairs(fmt.Sprintf("%s%06x", oui, hash(l.hostname(), f.Name)&0xffffff)))
}

// guid is of the first interface's address, as firmware makes it, or of the device's name.
func (l *layout) guid(d Device, r RDMA) string {
	for _, f := range d.Net {
		if f.Address != "" && len(f.Address) < 18 {
			a := strings.ReplaceAll(f.Address, ":", "")
			return quads(a[:6] + "0300" + a[6:])
		}
	}
	return quads(fmt.Sprintf("%s0300%06x", oui, hash(l.hostname(), d.PCI, r.Name)&0xffffff))
}

// eui64 is the interface identifier of an Ethernet address: RFC 4291, appendix A.
func eui64(mac string) string {
	a := strings.ReplaceAll(mac, ":", "")
	first, _ := strconv.ParseUint(a[:2], 16, 8)
	return quads(fmt.Sprintf("%02x%sfffe%s", first^2, a[2:6], a[6:12]))
}

func pairs(hex string) string { return grouped(hex, 2) }
func quads(hex string) string { return grouped(hex, 4) }

func grouped(hex string, n int) string {
	var out []string
	for c := range slices.Chunk([]byte(hex), n) {
		out = append(out, string(c))
	}
	return strings.Join(out, ":")
}

func hash(parts ...string) uint64 {
	h := fnv.New64a()
	for _, p := range parts {
		fmt.Fprintf(h, "%s\x00", p)
	}
	return h.Sum64()
}

// uuid makes an identifier out of a text.
func uuid(of string) string {
	a, b := hash(of), hash(of, "rest")
	return fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", a>>32, a>>16&0xffff, a&0xfff, 0x8000|b>>48&0x3fff, b&0xffffffffffff)
}

func or(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

func orInt[T int | uint16](values ...T) T {
	for _, v := range values {
		if v != 0 {
			return v
		}
	}
	return 0
}
