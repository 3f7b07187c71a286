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

// BuildTree makes the tree of a node in root. What root holds is replaced where a tree was built there
// before; a directory that holds anything else is refused with ErrNotOurs.
func BuildTree(root string, n Node) error {
	if err := n.Validate(); err != nil {
		return err
	}
	if err := prepareRoot(root); err != nil {
		return err
	}
	text, err := yaml.Marshal(n)
	if err != nil {
		return err
	}
	l := newLayout(n)
	l.files[path.Join(privateDir, "node.yaml")] = string(text)
	if err := l.writeTree(root); err != nil {
		return fmt.Errorf("building a tree in %s: %w", root, err)
	}
	t, err := Open(root)
	if err != nil {
		return err
	}
	for i, s := range n.Then {
		if err := t.RunStep(s); err != nil {
			return newFieldError(fmt.Sprintf("then[%d]", i), "%s: %v", s, err)
		}
	}
	return nil
}

// ErrNotOurs is of a directory that holds no tree that was built here.
var ErrNotOurs = errors.New("holds no tree of graylink fakesys")

// privateDir is the directory of a tree that is none of the node's.
const privateDir = ".fakesys"

// prepareRoot makes root an empty directory with the marker in it.
func prepareRoot(root string) error {
	entries, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(entries) > 0 {
		if info, err := os.Lstat(filepath.Join(root, privateDir)); err != nil || !info.IsDir() {
			return fmt.Errorf("%s is not empty and %w: an empty directory is expected", root, ErrNotOurs)
		}
	}
	for _, dir := range []string{"sys", "proc", "dev", privateDir + "/" + removedDir, privateDir + "/" + stagingDir} {
		if err := os.RemoveAll(filepath.Join(root, dir)); err != nil {
			return err
		}
	}
	for _, dir := range []string{removedDir, stagingDir} {
		if err := os.MkdirAll(filepath.Join(root, privateDir, dir), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// layout is a tree before it is written. Paths are relative to the root.
type layout struct {
	files       map[string]string // what they hold
	links       map[string]string // where they point: a path relative to the root; to itself is unreadable
	dirs        map[string]bool   // those that may be empty
	node        Node
	deviceByPCI map[string]Device // devices by address
	vfs         map[string][]string
	// netDir is the directory of an interface, master the bond it is in.
	netDir, master map[string]string
	index          int
	kmsg           strings.Builder
	recordCount    int
}

func newLayout(n Node) *layout {
	l := &layout{
		files: map[string]string{}, links: map[string]string{}, dirs: map[string]bool{}, node: n,
		deviceByPCI: map[string]Device{}, vfs: map[string][]string{}, netDir: map[string]string{}, master: map[string]string{},
	}
	for _, d := range n.Devices {
		if d.PCI != "" {
			l.deviceByPCI[d.PCI] = d
		}
		if d.VFOf != "" {
			l.vfs[d.VFOf] = append(l.vfs[d.VFOf], d.PCI)
		}
		for _, f := range d.Net {
			l.netDir[f.Name] = path.Join(l.deviceDir(d), "net", f.Name)
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
	l.netDir["lo"] = "sys/devices/virtual/net/lo"
	l.addLogRecord("", "Linux version 6.8.0-fakesys")
	l.addNetdev(Device{}, Net{Name: "lo", Type: 772, MTU: 65536, Address: "00:00:00:00:00:00", OperState: "unknown", Speed: -1})
	for _, d := range n.Devices {
		if d.PCI != "" {
			l.addFunction(d)
		}
		for _, f := range d.Net {
			l.addNetdev(d, f)
		}
		if d.RDMA != nil {
			l.addRDMA(d, *d.RDMA)
		}
	}
	l.addProc()
	return l
}

// deviceDir returns the directory of a device. A function is behind a root port of its own, and virtual functions are
// where their physical one is.
func (l *layout) deviceDir(d Device) string {
	if d.PCI == "" {
		return "sys/devices/virtual"
	}
	return path.Join(rootPortDir(d), d.PCI)
}

// rootPortDir returns the directory of the root port that a function is behind.
func rootPortDir(d Device) string {
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

// putAttributes writes attributes, each with the newline that the kernel ends them with.
func (l *layout) putAttributes(dir string, attributes map[string]string) {
	for name, v := range attributes {
		l.files[path.Join(dir, name)] = v + "\n"
	}
}

// addUnreadable adds a file that exists and cannot be read.
func (l *layout) addUnreadable(file string) { l.links[file] = file }

func (l *layout) addLogRecord(device, text string) {
	l.kmsg.WriteString(kmsgRecord(6, l.recordCount, int64(l.recordCount)*1000, device, text))
	l.recordCount++
}

func (l *layout) addFunction(d Device) {
	dir, kind := l.deviceDir(d), drivers[d.Driver]
	class := "0x020000"
	if d.RDMA != nil && slices.ContainsFunc(d.RDMA.Ports, func(p Port) bool { return p.LinkLayer == "" || p.LinkLayer == "InfiniBand" }) {
		class = "0x020700"
	}
	speed, width := firstNonEmpty(d.LinkSpeed, kind.speed, "8.0 GT/s PCIe"), firstNonZero(d.LinkWidth, kind.width, 8)
	vendor, id := firstNonEmpty(d.Vendor, kind.vendor, "0x8086"), firstNonEmpty(d.ID, kind.id, "0x0001")
	if d.VFOf != "" {
		l.links[path.Join(dir, "physfn")] = l.deviceDir(l.deviceByPCI[d.VFOf])
	} else {
		for i, vf := range l.vfs[d.PCI] {
			l.links[path.Join(dir, "virtfn"+strconv.Itoa(i))] = l.deviceDir(l.deviceByPCI[vf])
		}
	}
	maxSpeed, maxWidth := firstNonEmpty(d.MaxLinkSpeed, kind.speed, speed), firstNonZero(d.MaxLinkWidth, kind.width, width)
	if d.VFOf != "" { // the link is the physical function's: the registers of a virtual one read as zero
		speed, width = "Unknown", 0
	}
	l.addPCI(dir, d.PCI, d.Driver, class, vendor, id, d.NUMA, d.VFOf == "")
	l.putAttributes(dir, map[string]string{
		"current_link_speed": speed, "current_link_width": strconv.Itoa(width),
		"max_link_speed": maxSpeed, "max_link_width": strconv.Itoa(maxWidth),
	})
	if n := len(l.vfs[d.PCI]); d.TotalVFs > 0 || n > 0 {
		l.putAttributes(dir, map[string]string{"sriov_totalvfs": strconv.Itoa(max(d.TotalVFs, n)), "sriov_numvfs": strconv.Itoa(n), "sriov_drivers_autoprobe": "1"})
	}
	l.addLogRecord(d.PCI, fmt.Sprintf("%s %s: enabled device", d.Driver, d.PCI))
	bridge := rootPortDir(d)
	if addr := path.Base(bridge); pciPattern.MatchString(addr) && l.files[path.Join(bridge, "uevent")] == "" {
		l.addPCI(bridge, addr, "pcieport", "0x060400", "0x8086", "0x352a", d.NUMA, true)
		l.putAttributes(bridge, map[string]string{
			"current_link_speed": firstNonEmpty(d.LinkSpeed, maxSpeed), "current_link_width": strconv.Itoa(firstNonZero(d.LinkWidth, maxWidth)),
			"max_link_speed": maxSpeed, "max_link_width": strconv.Itoa(maxWidth),
		})
	}
}

// addPCI adds the files that all functions have, including bridges.
func (l *layout) addPCI(dir, addr, driver, class, vendor, id string, numa int, aer bool) {
	l.putAttributes(dir, map[string]string{
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

func (l *layout) addRDMA(d Device, r RDMA) {
	dir, kind := path.Join(l.deviceDir(d), "infiniband", r.Name), drivers[d.Driver]
	if _, known := drivers[d.Driver]; !known {
		kind.nodeType = "1: CA"
	}
	guid := firstNonEmpty(r.NodeGUID, l.nodeGUID(d, r))
	attributes := map[string]string{
		"node_type": firstNonEmpty(r.NodeType, kind.nodeType), "node_guid": guid, "sys_image_guid": firstNonEmpty(r.SysImageGUID, guid),
		"node_desc": firstNonEmpty(r.NodeDesc, l.hostname()+" "+r.Name), "fw_ver": firstNonEmpty(r.Firmware, kind.firmware),
		"uevent": "NAME=" + r.Name,
	}
	// The driver's own attributes, not every driver has them.
	for name, v := range map[string]string{"hca_type": firstNonEmpty(r.HCAType, kind.hcaType), "board_id": firstNonEmpty(r.BoardID, kind.boardID), "parent": r.Parent} {
		if v != "" {
			attributes[name] = v
		}
	}
	if kind.hcaType != "" {
		attributes["hw_rev"] = "0"
	}
	l.putAttributes(dir, attributes)
	l.links[path.Join(dir, "subsystem")] = "sys/class/infiniband"
	l.links[path.Join("sys/class/infiniband", r.Name)] = dir
	if d.PCI != "" {
		l.links[path.Join(dir, "device")] = l.deviceDir(d)
	}
	l.addCounters(path.Join(dir, "hw_counters"), kind.set.device)
	for i, p := range r.Ports {
		l.addRDMAPort(d, r, guid, kind.set, path.Join(dir, "ports", strconv.Itoa(p.numberAt(i))), p.numberAt(i), p)
	}
	l.dirs[path.Join(dir, "ports")] = true
}

func (l *layout) addRDMAPort(d Device, r RDMA, guid string, set counterSet, dir string, number int, p Port) {
	layer, state := firstNonEmpty(p.LinkLayer, "InfiniBand"), firstNonEmpty(p.State, "4: ACTIVE")
	phys := "5: LinkUp"
	if state == "1: DOWN" {
		phys = map[string]string{"InfiniBand": "2: Polling"}[layer]
		phys = firstNonEmpty(phys, "3: Disabled")
	}
	mask, lid := "0x04010000", uint16(0)
	if layer == "InfiniBand" {
		mask, lid = "0xa751e848", uint16(1+hashOf(l.hostname(), dir)%0xbffe) // of the unicast LIDs
	}
	smLID := uint16(0)
	if layer == "InfiniBand" {
		smLID = 1
	}
	l.putAttributes(dir, map[string]string{
		"state": state, "phys_state": firstNonEmpty(p.PhysState, phys), "rate": p.Rate, "link_layer": layer,
		"lid": fmt.Sprintf("%#x", firstNonZero(p.LID, lid)), "sm_lid": fmt.Sprintf("%#x", firstNonZero(p.SMLID, smLID)),
		"lid_mask_count": "0", "sm_sl": "0", "cap_mask": firstNonEmpty(p.CapMask, mask), "pkeys/0": "0xffff",
	})
	if set.counters {
		l.addCounters(path.Join(dir, "counters"), slices.Concat(madErrors, madTraffic))
	}
	hw := slices.Clone(set.hw)
	if layer == "Ethernet" {
		hw = append(hw, set.hwEth...)
	}
	if len(hw) > 0 {
		l.addCounters(path.Join(dir, "hw_counters"), hw)
		l.putAttributes(dir, map[string]string{"hw_counters/lifespan": lifespan})
	}
	for sub, given := range map[string]map[string]uint64{"counters": p.Counters, "hw_counters": p.HWCounters} {
		for name, v := range given {
			l.putAttributes(path.Join(dir, sub), map[string]string{name: strconv.FormatUint(v, 10)})
		}
	}
	l.addGIDs(dir, layer, p, l.defaultGIDs(d, r, guid, layer, number, p))
}

// addGIDs writes the table of GIDs. The kernel refuses to read the type of an entry that is empty, and
// the interface of one that has none.
func (l *layout) addGIDs(dir, layer string, p Port, gids []GID) {
	size := p.GIDTable
	if size == 0 {
		size = map[string]int{"Ethernet": 16}[layer]
		size = max(firstNonZero(size, 8), len(gids))
	}
	for i := range size {
		n := strconv.Itoa(i)
		g := GID{GID: strings.TrimSuffix(strings.Repeat("0000:", 8), ":")}
		if i < len(gids) {
			g = gids[i]
			g.Type = firstNonEmpty(g.Type, gidTypes[0])
		}
		l.putAttributes(dir, map[string]string{"gids/" + n: g.GID})
		for sub, v := range map[string]string{"types": g.Type, "ndevs": g.NetDev} {
			if file := path.Join("gid_attrs", sub, n); v != "" {
				l.putAttributes(dir, map[string]string{file: v})
			} else {
				l.addUnreadable(path.Join(dir, file))
			}
		}
	}
}

// defaultGIDs returns the default GIDs of a port. For InfiniBand that is the GUID's, and else those of the interface:
// link-local and of its IPv4 address, of both types if the driver has both.
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
		types = gidTypes[1:] // rxe supports RoCE v2 only
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
		mac := l.macAddress(f)
		name, ip := f.Name, f.IPv4
		if m := l.master[f.Name]; m != "" { // addresses are the bond's
			name = m
			ip = l.netOf(m).IPv4
		}
		gids := []string{linkLocal + eui64FromMAC(mac)}
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

func (l *layout) addCounters(dir string, names []string) {
	for _, n := range names {
		v := uint64(0)
		if traffic[n] || slices.Contains(madTraffic, n) || slices.Contains(netTraffic, n) {
			v = 1_000_000 + hashOf(dir, n)%1_000_000_000_000
		}
		l.putAttributes(dir, map[string]string{n: strconv.FormatUint(v, 10)})
	}
}

func (l *layout) addNetdev(d Device, f Net) {
	l.index++
	dir := l.netDir[f.Name]
	state := firstNonEmpty(f.OperState, "up")
	carrier, speed, flags := "1", f.Speed, 0x1003 // up, broadcast, multicast
	if state != "up" && state != "unknown" {
		carrier, speed = "0", -1
	}
	kind := f.Type
	if kind == 0 {
		kind = 1
		if d.RDMA != nil && len(d.RDMA.Ports) > 0 && f.DevPort < len(d.RDMA.Ports) && firstNonEmpty(d.RDMA.Ports[f.DevPort].LinkLayer, "InfiniBand") == "InfiniBand" {
			kind = 32
		}
	}
	mac, mtu, length := l.macAddress(f), 1500, 6
	broadcast := "ff:ff:ff:ff:ff:ff"
	if kind == 32 {
		if len(mac) < 30 { // queue pair, and GID: RFC 4391
			var r RDMA
			if d.RDMA != nil {
				r = *d.RDMA
			}
			g := firstNonEmpty(r.NodeGUID, l.nodeGUID(d, r))
			mac = "00:00:10:49:fe:80:00:00:00:00:00:00:" + hexPairs(strings.ReplaceAll(g, ":", ""))
		}
		mtu, length, broadcast = 2044, 20, "00:ff:ff:ff:ff:12:40:1b:ff:ff:00:00:00:00:00:00:ff:ff:ff:ff"
	}
	if kind == 772 {
		flags, broadcast = 0x9, "00:00:00:00:00:00"
	}
	if m := l.master[f.Name]; m != "" {
		flags |= 0x800
		l.links[path.Join(dir, "master")] = l.netDir[m]
		l.links[path.Join(dir, "upper_"+m)] = l.netDir[m]
		l.putAttributes(path.Join(dir, "bonding_slave"), map[string]string{"mii_status": state, "state": "active", "link_failure_count": "0"})
	}
	if f.Bond != nil {
		flags |= 0x400
		slaves := strings.Join(f.Bond.Slaves, " ")
		l.putAttributes(path.Join(dir, "bonding"), map[string]string{
			"mode": firstNonEmpty(f.Bond.Mode, "802.3ad 4"), "slaves": slaves, "mii_status": state, "miimon": "100", "lacp_rate": "fast 1",
			"xmit_hash_policy": "layer3+4 1",
		})
		for _, s := range f.Bond.Slaves {
			l.links[path.Join(dir, "lower_"+s)] = l.netDir[s]
		}
	}
	index := strconv.Itoa(l.index)
	ups := (f.CarrierChanges + 1) / 2
	l.putAttributes(dir, map[string]string{
		"address": mac, "addr_len": strconv.Itoa(length), "broadcast": broadcast, "type": strconv.Itoa(kind),
		"mtu": strconv.Itoa(firstNonZero(f.MTU, mtu)), "operstate": state, "carrier": carrier, "speed": strconv.Itoa(firstNonZero(speed, -1)),
		"duplex": map[bool]string{true: "full", false: "unknown"}[speed > 0], "flags": fmt.Sprintf("%#x", flags),
		"ifindex": index, "iflink": index, "dev_id": "0x0", "dev_port": strconv.Itoa(f.DevPort),
		"carrier_changes": strconv.FormatUint(f.CarrierChanges, 10), "carrier_up_count": strconv.FormatUint(ups, 10),
		"carrier_down_count": strconv.FormatUint(f.CarrierChanges-ups, 10), "tx_queue_len": "1000",
		"uevent": "INTERFACE=" + f.Name + "\nIFINDEX=" + index,
	})
	l.files[path.Join(dir, "ifalias")] = ""
	l.addCounters(path.Join(dir, "statistics"), slices.Concat(netErrors, netTraffic))
	for name, v := range f.Statistics {
		l.putAttributes(path.Join(dir, "statistics"), map[string]string{name: strconv.FormatUint(v, 10)})
	}
	l.links[path.Join(dir, "subsystem")] = "sys/class/net"
	l.links[path.Join("sys/class/net", f.Name)] = dir
	if d.PCI != "" {
		l.links[path.Join(dir, "device")] = l.deviceDir(d)
	}
}

// bootTime is when a node was booted, in seconds of Unix.
const bootTime = 1767225600

func (l *layout) addProc() {
	id := firstNonEmpty(l.node.BootID, uuidFrom(l.hostname()))
	l.putAttributes("proc", map[string]string{
		"sys/kernel/random/boot_id": id, "sys/kernel/hostname": l.hostname(), "sys/kernel/osrelease": "6.8.0-fakesys",
		"stat": fmt.Sprintf("cpu  0 0 0 0 0 0 0 0 0 0\nbtime %d", bootTime),
	})
	l.files[kmsgFile] = l.kmsg.String()
}

func (l *layout) writeTree(root string) error {
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

func (l *layout) hostname() string { return firstNonEmpty(l.node.Hostname, "node") }

// oui is of the addresses that are made up here: NVIDIA's.
const oui = "b83fd2"

func (l *layout) macAddress(f Net) string {
	if f.Address == "" && f.Bond != nil && len(f.Bond.Slaves) > 0 {
		return l.macAddress(l.netOf(f.Bond.Slaves[0]))
	}
	return firstNonEmpty(f.Address, hexPairs(fmt.Sprintf("%s%06x", oui, hashOf(l.hostname(), f.Name)&0xffffff)))
}

// nodeGUID returns a GUID made from the first interface's address, as firmware does, or from the device's name.
func (l *layout) nodeGUID(d Device, r RDMA) string {
	for _, f := range d.Net {
		if f.Address != "" && len(f.Address) < 18 {
			a := strings.ReplaceAll(f.Address, ":", "")
			return hexQuads(a[:6] + "0300" + a[6:])
		}
	}
	return hexQuads(fmt.Sprintf("%s0300%06x", oui, hashOf(l.hostname(), d.PCI, r.Name)&0xffffff))
}

// eui64FromMAC returns the interface identifier of an Ethernet address: RFC 4291, appendix A.
func eui64FromMAC(mac string) string {
	a := strings.ReplaceAll(mac, ":", "")
	first, _ := strconv.ParseUint(a[:2], 16, 8)
	return hexQuads(fmt.Sprintf("%02x%sfffe%s", first^2, a[2:6], a[6:12]))
}

func hexPairs(hex string) string { return groupHex(hex, 2) }
func hexQuads(hex string) string { return groupHex(hex, 4) }

func groupHex(hex string, n int) string {
	var out []string
	for c := range slices.Chunk([]byte(hex), n) {
		out = append(out, string(c))
	}
	return strings.Join(out, ":")
}

func hashOf(parts ...string) uint64 {
	h := fnv.New64a()
	for _, p := range parts {
		fmt.Fprintf(h, "%s\x00", p)
	}
	return h.Sum64()
}

// uuidFrom makes an identifier out of a text.
func uuidFrom(of string) string {
	a, b := hashOf(of), hashOf(of, "rest")
	return fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", a>>32, a>>16&0xffff, a&0xfff, 0x8000|b>>48&0x3fff, b&0xffffffffffff)
}

func firstNonEmpty(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

func firstNonZero[T int | uint16](values ...T) T {
	for _, v := range values {
		if v != 0 {
			return v
		}
	}
	return 0
}
