package nichw

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// tree is files by path; "-> x" is a link, "" a directory.
type tree map[string]string

func (tr tree) build(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range tr {
		put(t, root, path, text)
	}
	return root
}

func put(t testing.TB, root, path, text string) {
	t.Helper()
	full := filepath.Join(root, path)
	var err error
	if to, ok := strings.CutPrefix(text, "-> "); ok {
		_ = os.MkdirAll(filepath.Dir(full), 0o755)
		err = os.Symlink(to, full)
	} else if text == "" {
		err = os.MkdirAll(full, 0o755)
	} else {
		_ = os.MkdirAll(filepath.Dir(full), 0o755)
		err = os.WriteFile(full, []byte(text+"\n"), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// device adds an mlx5 device with one port and the interface behind it.
func (tr tree) device(name, pci, netdev string) {
	d := "class/infiniband/" + name + "/"
	for path, text := range map[string]string{
		"hca_type": "MT4129", "fw_ver": "28.39.1002", "board_id": "MT_0000000838", "node_guid": "b83f:d203:00fe:c365",
		"device/uevent": "DRIVER=mlx5_core\nPCI_CLASS=20000\nPCI_SLOT_NAME=" + pci, "device/driver": "-> ../../../../bus/pci/drivers/mlx5_core",
		"device/sriov_totalvfs": "16", "device/current_link_speed": "32.0 GT/s PCIe", "device/current_link_width": "16", "device/max_link_speed": "32.0 GT/s PCIe",
		"device/max_link_width": "16", "device/aer_dev_fatal": "Undefined 0\nTOTAL_ERR_FATAL 0", "device/aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 2", "device/aer_dev_correctable": "RxErr 7\nTOTAL_ERR_COR 7",
		"ports/1/state": "4: ACTIVE", "ports/1/phys_state": "5: LinkUp", "ports/1/rate": "400 Gb/sec (4X NDR)", "ports/1/link_layer": "Ethernet",
		"ports/1/counters/symbol_error": "3", "ports/1/counters/link_downed": "0", "ports/1/hw_counters/out_of_sequence": "9", "ports/1/hw_counters/lifespan": "10",
		"ports/1/gids/0": "fe80:0000:0000:0000:ba3f:d2ff:fec3:65c4", "ports/1/gid_attrs/types/0": "RoCE v2", "ports/1/gid_attrs/ndevs/0": netdev,
		"ports/1/gids/1": "0000:0000:0000:0000:0000:ffff:0a33:ba20", "ports/1/gid_attrs/types/1": "RoCE v2", "ports/1/gid_attrs/ndevs/1": netdev,
		"ports/1/gids/2": "fe80:0000:0000:0000:0000:0000:0000:0000",
	} {
		tr[d+path] = text
	}
	tr.netdev(netdev, "-> ../../infiniband/"+name+"/device")
}

func (tr tree) netdev(name, device string) {
	n := "class/net/" + name + "/"
	for path, text := range map[string]string{"operstate": "up", "carrier": "1", "speed": "400000", "mtu": "4200", "carrier_changes": "4", "statistics/rx_bytes": "100", "statistics/tx_errors": "0"} {
		tr[n+path] = text
	}
	if device != "" {
		tr[n+"device"] = device
	}
}

func find(t *testing.T, p *Poll, name string) *Device {
	t.Helper()
	i := slices.IndexFunc(p.Devices, func(d Device) bool { return d.Name == name })
	if i < 0 {
		t.Fatalf("no device %s in %+v", name, p.Devices)
	}
	return &p.Devices[i]
}

func value(cs []Counter, name string) string {
	for _, c := range cs {
		if c.Name == name {
			return fmt.Sprint(c.Value)
		}
	}
	return "absent"
}

var at = time.Unix(1_800_000_000, 0)

func TestADeviceIsReadWhole(t *testing.T) {
	tr := tree{}
	tr.device("mlx5_0", "0000:3b:00.0", "eth0")
	p := New(Options{Sys: tr.build(t)}).Poll(at, ReadAll)
	if len(p.Errors) > 0 || !p.DevicesKnown || !p.InterfacesKnown || len(p.Devices) != 1 || len(p.Interfaces) != 1 {
		t.Fatalf("%+v", p)
	}
	d := find(t, p, "mlx5_0")
	if d.Kind != MLX5 || d.Driver != "mlx5_core" || d.Function != Physical || d.HCAType != "MT4129" || d.Firmware != "28.39.1002" || d.Board != "MT_0000000838" || d.PCI.Address != "0000:3b:00.0" ||
		*d.PCI.Speed != 32e9 || *d.PCI.Width != 16 || *d.PCI.Correctable != 7 || *d.PCI.NonFatal != 2 || *d.PCI.Fatal != 0 {
		t.Errorf("device %+v, PCI %+v", d, d.PCI)
	}
	port := d.Ports[0]
	if port.State != Active || port.Phys != LinkUp || *port.Rate != 50e9 || port.LinkLayer != "Ethernet" || port.Netdev != "eth0" {
		t.Errorf("port %+v", port)
	}
	if value(port.Counters, "symbol_error") != "3" || value(port.Hardware, "out_of_sequence") != "9" || value(port.Hardware, "lifespan") != "absent" || value(port.Counters, "port_xmit_wait") != "absent" {
		t.Errorf("counters %v %v", port.Counters, port.Hardware)
	}
	if len(port.GIDs) != 2 || !port.GIDsKnown || port.GIDs[0].IsIPv4() || !port.GIDs[1].IsIPv4() || port.GIDs[1].Type != "RoCE v2" {
		t.Errorf("GIDs %+v", port.GIDs)
	}
	f := p.Interfaces[0]
	if f.Device != "mlx5_0" || f.OperState != "up" || !*f.Carrier || *f.Speed != 50e9 || *f.MTU != 4200 || *f.Changes != 4 || value(f.Counters, "rx_bytes") != "100" || f.PCI.Address != "0000:3b:00.0" {
		t.Errorf("interface %+v", f)
	}
}

// TestRule1AbsentIsAbsent: files that are not there, and attributes that the kernel has no value of.
func TestRule1AbsentIsAbsent(t *testing.T) {
	root := tree{"class/infiniband/rxe0/ports/1/state": "1: DOWN", "class/infiniband/rxe0/parent": "eth9", "class/net/eth9/operstate": "down", "class/net/eth9/speed": "-1"}.build(t)
	p := New(Options{Sys: root, Interface: func(string, bool) bool { return true }}).Poll(at, ReadAll)
	if len(p.Errors) > 0 {
		t.Fatalf("errors %v", p.Errors)
	}
	d := find(t, p, "rxe0")
	port := d.Ports[0]
	if d.Kind != RXE || d.PCI != nil || d.Function != Plain || d.HCAType != "" || port.State != Down || port.Phys != PhysUnknown || port.Rate != nil || len(port.Counters)+len(port.GIDs) != 0 || port.GIDsKnown || port.Netdev != "eth9" {
		t.Errorf("%+v", d)
	}
	f := p.Interfaces[0]
	if f.Speed != nil || f.Carrier != nil || f.Changes != nil || f.MTU != nil || f.Device != "rxe0" || f.OperState != "down" {
		t.Errorf("%+v", f)
	}
}

// A table of GIDs as soft-RoCE in a Debian kernel has it: 1024 entries, those that hold something at
// the start, and the attributes of an empty one cannot be read.
func TestALongTableOfGIDsIsReadFromItsStart(t *testing.T) {
	const port = "class/infiniband/soft/ports/1/"
	tr := tree{"class/infiniband/soft/parent": "eth0", port + "state": "4: ACTIVE", port + "link_layer": "Ethernet"}
	for i := range 1024 {
		gid := "0000:0000:0000:0000:0000:0000:0000:0000"
		if i < 100 {
			gid = fmt.Sprintf("0000:0000:0000:0000:0000:ffff:0a00:%04x", i+1)
			tr[port+"gid_attrs/types/"+strconv.Itoa(i)] = "RoCE v2"
		}
		tr[port+"gids/"+strconv.Itoa(i)] = gid
	}
	p := New(Options{Sys: tr.build(t), Interface: func(string, bool) bool { return true }}).Poll(at, ReadAll)
	d := find(t, p, "soft")
	if len(p.Errors) > 0 || len(d.Ports) != 1 || !d.Ports[0].GIDsKnown || len(d.Ports[0].GIDs) != 100 {
		t.Fatalf("errors %v, device %+v: 100 GIDs are expected", p.Errors, d)
	}
	for i, g := range d.Ports[0].GIDs {
		if g.Index != i {
			t.Errorf("GID %d has the index %d", i, g.Index)
		}
	}
	if d.Kind != RXE {
		t.Errorf("kind %q: a device with a parent is rxe, by any name", d.Kind)
	}
}

// TestRule2AFileFailsByItself: the rest of its port, of its device and all others are read.
func TestRule2AFileFailsByItself(t *testing.T) {
	tr := tree{}
	tr.device("mlx5_0", "0000:3b:00.0", "eth0")
	tr.device("mlx5_1", "0000:5e:00.0", "eth1")
	port := "class/infiniband/mlx5_0/ports/1/"
	tr[port+"counters/symbol_error"] = "N/A (no PMA)"
	tr[port+"rate"] = "fast"
	tr[port+"state"] = "9: WONDERFUL"
	delete(tr, port+"hw_counters/out_of_sequence")
	tr[port+"hw_counters/out_of_sequence/x"] = "a directory is unreadable for everybody"
	p := New(Options{Sys: tr.build(t)}).Poll(at, ReadAll)
	got := map[string]Sort{}
	for _, e := range p.Errors {
		if e.Device != "mlx5_0" {
			t.Errorf("%+v", e)
		}
		got[filepath.Base(e.Path)] = e.Sort
	}
	want := map[string]Sort{"symbol_error": Malformed, "rate": Malformed, "state": Malformed, "out_of_sequence": Unreadable}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("errors %v, want %v", p.Errors, want)
	}
	bad, good := find(t, p, "mlx5_0").Ports[0], find(t, p, "mlx5_1").Ports[0]
	if bad.State != StateUnknown || bad.Rate != nil || bad.Phys != LinkUp || value(bad.Counters, "link_downed") != "0" || value(bad.Counters, "symbol_error") != "absent" {
		t.Errorf("%+v", bad)
	}
	if good.State != Active || value(good.Counters, "symbol_error") != "3" {
		t.Errorf("%+v", good)
	}
}

// stuck makes reads of some files hang: time passes only while one does, so that nothing
// else ever seems to, however slow the machine is.
type stuck struct {
	mu      sync.Mutex
	now     time.Time
	release map[string]chan struct{} // by the end of a path
}

func (s *stuck) in(r *Reader) {
	s.now = at
	r.files.patience = 20 * time.Millisecond // of the real ticker; the clock is ours
	r.files.now = func() time.Time { s.mu.Lock(); defer s.mu.Unlock(); return s.now }
	r.files.fetchPath = func(path string, k kind, buf []byte) result {
		for end, c := range s.release {
			if strings.HasSuffix(path, end) {
				s.mu.Lock()
				s.now = s.now.Add(time.Minute)
				s.mu.Unlock()
				<-c
			}
		}
		return fetchPath(path, k, buf)
	}
}

func (p *Poll) sorts() (out []string) {
	for _, e := range p.Errors {
		out = append(out, filepath.Base(e.Path)+" "+string(e.Sort))
	}
	return out
}

// TestRule3AHangingFileIsLeftAlone: and everything else is read, in this poll and the next.
func TestRule3AHangingFileIsLeftAlone(t *testing.T) {
	tr := tree{}
	tr.device("mlx5_0", "0000:3b:00.0", "eth0")
	tr.device("mlx5_1", "0000:5e:00.0", "eth1")
	r := New(Options{Sys: tr.build(t)})
	c := make(chan struct{})
	(&stuck{release: map[string]chan struct{}{"mlx5_0/ports/1/counters/link_downed": c}}).in(r)
	for range 3 {
		p := r.Poll(at, ReadAll)
		if got := p.sorts(); !slices.Equal(got, []string{"link_downed hanging"}) || p.Hanging != 1 {
			t.Fatalf("errors %v, %d hang", got, p.Hanging)
		}
		bad := find(t, p, "mlx5_0").Ports[0]
		if bad.State != Active || value(bad.Counters, "symbol_error") != "3" || value(bad.Counters, "link_downed") != "absent" || find(t, p, "mlx5_1").Ports[0].State != Active {
			t.Fatalf("%+v", bad)
		}
	}
	close(c)
	for end := time.Now().Add(time.Minute); ; {
		p := r.Poll(at, ReadAll)
		if len(p.Errors) == 0 && p.Hanging == 0 && value(find(t, p, "mlx5_0").Ports[0].Counters, "link_downed") == "0" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("it returned, and is not read again: %+v", p.Errors)
		}
	}
}

// TestRule3ADeviceThatHangsCostsABoundedNumber: of threads, and of a poll's time.
func TestRule3ADeviceThatHangsCostsABoundedNumber(t *testing.T) {
	tr := tree{}
	tr.device("mlx5_0", "0000:3b:00.0", "eth0")
	tr.device("mlx5_1", "0000:5e:00.0", "eth1")
	s := stuck{release: map[string]chan struct{}{}}
	c := make(chan struct{})
	defer close(c)
	for i := range 20 {
		file := fmt.Sprintf("mlx5_0/ports/1/counters/c%02d", i)
		tr["class/infiniband/"+file], s.release[file] = "1", c
	}
	r := New(Options{Sys: tr.build(t)})
	s.in(r)
	for poll, want := range []int{2, 4, 4, 4} {
		p := r.Poll(at, ReadAll)
		if p.Hanging != want {
			t.Errorf("poll %d: %d threads hang, want %d", poll, p.Hanging, want)
		}
		if good := find(t, p, "mlx5_1").Ports[0]; good.State != Active || value(good.Counters, "symbol_error") != "3" {
			t.Errorf("poll %d: the other device: %+v", poll, good)
		}
		if n := len(p.Errors); n < 20 {
			t.Errorf("poll %d: %d files are missing without a word, %v", poll, 20-n, p.sorts())
		}
	}
}

// TestAPipeHangs: as files of sysfs do whose driver is stuck, for the real clock.
func TestAPipeHangs(t *testing.T) {
	t.Parallel()
	tr := tree{}
	tr.device("mlx5_0", "0000:3b:00.0", "eth0")
	root := tr.build(t)
	pipe := filepath.Join(root, "class/infiniband/mlx5_0/ports/1/counters/port_xmit_wait")
	if err := syscall.Mkfifo(pipe, 0o644); err != nil {
		t.Fatal(err)
	}
	r := New(Options{Sys: root, Patience: 200 * time.Millisecond})
	p := r.Poll(at, ReadAll)
	if !slices.Contains(p.sorts(), "port_xmit_wait hanging") {
		t.Errorf("errors %v", p.sorts())
	}
	// This opens the pipe for a reader that waits, which then gets the end of the file.
	f, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

// TestRule4GoneIsNotInAListThatCouldBeRead.
func TestRule4GoneIsNotInAListThatCouldBeRead(t *testing.T) {
	tr := tree{}
	tr.device("mlx5_0", "0000:3b:00.0", "eth0")
	root := tr.build(t)
	r := New(Options{Sys: root})
	r.Poll(at, ReadAll)
	list := filepath.Join(root, "class/infiniband")
	if err := os.Rename(list, list+".away"); err != nil {
		t.Fatal(err)
	}
	put(t, root, "class/infiniband", "no directory") // reads as ENOTDIR
	if err := os.Remove(list); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("infiniband", list); err != nil { // a loop: ELOOP
		t.Fatal(err)
	}
	if p := r.Poll(at, ReadAll); p.DevicesKnown || len(p.Errors) == 0 {
		t.Errorf("a list that cannot be read: %+v", p)
	}
	if err := os.Remove(list); err != nil {
		t.Fatal(err)
	}
	if p := r.Poll(at, ReadAll); !p.DevicesKnown || len(p.Devices) != 0 || len(p.Errors) != 0 {
		t.Errorf("no list is no devices: %+v", p)
	}
	if err := os.Rename(list+".away", list); err != nil {
		t.Fatal(err)
	}
	if p := r.Poll(at, ReadAll); len(p.Devices) != 1 || p.Devices[0].Ports[0].State != Active {
		t.Errorf("it is back: %+v", p)
	}
}

// TestRule5WhatADeviceHasIsLookedUpAgain: when a file went, and every few polls.
func TestRule5WhatADeviceHasIsLookedUpAgain(t *testing.T) {
	tr := tree{}
	tr.device("mlx5_0", "0000:3b:00.0", "eth0")
	root := tr.build(t)
	r := New(Options{Sys: root, RelistEvery: 3})
	counters := "class/infiniband/mlx5_0/ports/1/counters/"
	r.Poll(at, ReadAll)
	put(t, root, counters+"port_xmit_wait", "8")
	if err := os.Remove(filepath.Join(root, counters+"symbol_error")); err != nil {
		t.Fatal(err)
	}
	p := r.Poll(at, ReadAll) // sees that one went
	if got := p.Devices[0].Ports[0].Counters; value(got, "symbol_error") != "absent" {
		t.Errorf("%v", got)
	}
	p = r.Poll(at, ReadAll)
	if got := p.Devices[0].Ports[0].Counters; value(got, "port_xmit_wait") != "8" || len(p.Errors) != 0 {
		t.Errorf("%v, %v", got, p.Errors)
	}
	put(t, root, "class/infiniband/mlx5_0/ports/2/state", "1: DOWN")
	r.Poll(at, ReadAll)
	if p = r.Poll(at, ReadAll); len(p.Devices[0].Ports) != 2 {
		t.Errorf("a second port is not seen in three polls: %+v", p.Devices[0].Ports)
	}
}

func TestFunctions(t *testing.T) {
	tr := tree{}
	tr.device("mlx5_0", "0000:93:00.1", "eth0")
	tr.device("mlx5_18", "0000:93:01.2", "eth18")
	tr.device("mlx5_2", "0000:b3:01.2", "eth2")
	delete(tr, "class/infiniband/mlx5_18/device/sriov_totalvfs")
	tr["class/infiniband/mlx5_18/device/physfn"] = "-> ../0000:93:00.1"
	delete(tr, "class/infiniband/mlx5_2/device/sriov_totalvfs")
	p := New(Options{Sys: tr.build(t)}).Poll(at, ReadAll)
	var got []string
	for _, d := range p.Devices {
		got = append(got, d.Name+" "+d.Function.String()+" "+d.PCI.Parent)
	}
	if want := []string{"mlx5_0 physical ", "mlx5_2 plain ", "mlx5_18 virtual 0000:93:00.1"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestKinds(t *testing.T) {
	for _, tt := range []struct {
		driver, name string
		want         Kind
	}{{"mlx5_core", "mlx5_0", MLX5}, {"mlx5_core", "renamed", MLX5}, {"mlx4_core", "mlx4_0", MLX4}, {"efa", "rdmap16s27", EFA}, {"ice", "irdma0", IRDMA}, {"", "rxe0", RXE},
		{"", "mlx5_bond_0", MLX5}, {"", "rdmap0s31", EFA}, {"bnxt_en", "mlx5_fake", "bnxt_en"}, {"", "strange", ""}} {
		if got := kindOf(tt.driver, tt.name); got != tt.want {
			t.Errorf("driver %q, name %q: %q, want %q", tt.driver, tt.name, got, tt.want)
		}
	}
}

func TestWhichInterfaces(t *testing.T) {
	tr := tree{}
	tr.device("mlx5_0", "0000:3b:00.0", "eth0")
	tr.netdev("lo", "")
	tr.netdev("veth1", "")
	root := tr.build(t)
	for _, tt := range []struct {
		of   func(string, bool) bool
		want string
	}{{nil, "[eth0]"}, {func(n string, d bool) bool { return d || n == "veth1" }, "[eth0 veth1]"}} {
		var got []string
		for _, f := range New(Options{Sys: root, Interface: tt.of}).Poll(at, ReadAll).Interfaces {
			got = append(got, f.Name)
		}
		if fmt.Sprint(got) != tt.want {
			t.Errorf("%v, want %s", got, tt.want)
		}
	}
}

// TestWhatIsNotReadKeepsItsValue: counters are read less often than states.
func TestWhatIsNotReadKeepsItsValue(t *testing.T) {
	tr := tree{}
	tr.device("mlx5_0", "0000:3b:00.0", "eth0")
	root := tr.build(t)
	r := New(Options{Sys: root})
	r.Poll(at, ReadAll)
	put(t, root, "class/infiniband/mlx5_0/ports/1/counters/symbol_error", "77")
	put(t, root, "class/infiniband/mlx5_0/ports/1/state", "1: DOWN")
	p := r.Poll(at, ReadStates)
	if port := p.Devices[0].Ports[0]; port.State != Down || value(port.Counters, "symbol_error") != "3" || len(port.GIDs) != 2 {
		t.Errorf("%+v", port)
	}
}

// TestTheBootIsTold: where it can be read, and the poll is no worse where it cannot.
func TestBootIsReported(t *testing.T) {
	root := tree{"sys/class/net/lo/mtu": "65536", "proc/sys/kernel/random/boot_id": "cafab2fa-15c5-47a6-acd6-d0e8e8e13f0c"}.build(t)
	r := New(Options{Sys: filepath.Join(root, "sys"), Proc: filepath.Join(root, "proc")})
	if p := r.Poll(at, ReadStates); p.Boot != "cafab2fa-15c5-47a6-acd6-d0e8e8e13f0c" {
		t.Errorf("%q", p.Boot)
	}
	put(t, root, "proc/sys/kernel/random/boot_id", " ")
	if p := r.Poll(at, ReadStates); p.Boot != "" || !p.InterfacesKnown {
		t.Errorf("an empty file: %+v", p)
	}
	if _, err := BootID(filepath.Join(root, "nowhere")); err == nil {
		t.Error("no file, and no error")
	}
}

func TestParsers(t *testing.T) {
	rates := map[string]string{"400 Gb/sec (4X NDR)": "50000000000", "2.5 Gb/sec (1X SDR)": "312500000", "0 Gb/sec": "none", "100 Gb/sec": "12500000000", "": "bad", "400": "bad", "400 Mb/sec": "bad",
		"-1 Gb/sec": "bad", "1e300 Gb/sec": "bad", "NaN Gb/sec": "bad"}
	for in, want := range rates {
		v, ok, err := parseRate(in)
		if got := shown(v, ok, err); got != want {
			t.Errorf("rate %q: %s, want %s", in, got, want)
		}
	}
	speeds := map[string]string{"400000": "50000000000", "-1": "none", "0": "none", "": "bad", "fast": "bad", "99999999999999": "bad"}
	for in, want := range speeds {
		v, ok, err := parseSpeed(in)
		if got := shown(v, ok, err); got != want {
			t.Errorf("speed %q: %s, want %s", in, got, want)
		}
	}
	links := map[string]string{"16.0 GT/s PCIe": "1.6e+10", "2.5 GT/s": "2.5e+09", "Unknown": "none", "Unknown speed": "none", "": "bad", "16": "bad", "NaN GT/s": "bad"}
	for in, want := range links {
		v, ok, err := parseLinkSpeed(in)
		if got := shown(v, ok, err); got != want {
			t.Errorf("link speed %q: %s, want %s", in, got, want)
		}
	}
	states := map[string]string{"4: ACTIVE": "4", "1: DOWN": "1", "5: ACTIVE_DEFER": "5", "0: NOP": "0", "6: X": "bad", "ACTIVE": "bad", "-1: X": "bad", "": "bad"}
	for in, want := range states {
		v, err := parseState(in, States[:])
		if got := shown(v, true, err); got != want {
			t.Errorf("state %q: %s, want %s", in, got, want)
		}
	}
	gids := map[string]string{"fe80:0000:0000:0000:ba3f:d2ff:fec3:65c4": "fe80::ba3f:d2ff:fec3:65c4", "0000:0000:0000:0000:0000:0000:0000:0000": "none", "fe80:0000:0000:0000:0000:0000:0000:0000": "none",
		"0000:0000:0000:0000:0000:ffff:0a33:ba20": "::ffff:10.51.186.32", "10.0.0.1": "bad", "fe80::1%eth0": "bad", "": "bad"}
	for in, want := range gids {
		v, ok, err := parseGID(in)
		if got := shown(v, ok, err); got != want {
			t.Errorf("GID %q: %s, want %s", in, got, want)
		}
	}
	numbers := map[string]string{"0": "0", "18446744073709551615": "18446744073709551615", "18446744073709551616": "bad", "-1": "bad", "": "bad", "N/A (no PMA)": "bad", "12 ": "bad", "0x10": "bad"}
	for in, want := range numbers {
		v, err := parseNumber([]byte(in))
		if got := shown(v, true, err); got != want {
			t.Errorf("number %q: %s, want %s", in, got, want)
		}
	}
	if v, err := parseAER("RxErr 1\nTOTAL_ERR_COR 12\n", "TOTAL_ERR_COR"); v != 12 || err != nil {
		t.Errorf("%d, %v", v, err)
	}
	if _, err := parseAER("RxErr 1", "TOTAL_ERR_COR"); err == nil {
		t.Error("no total, and no error")
	}
}

func shown(v any, ok bool, err error) string {
	switch {
	case err != nil:
		return "bad"
	case !ok:
		return "none"
	}
	return fmt.Sprint(v)
}

// FuzzParsers: no text crashes a parser, and what is accepted is within bounds.
func FuzzParsers(f *testing.F) {
	for _, s := range []string{"400 Gb/sec (4X NDR)", "4: ACTIVE", "16.0 GT/s PCIe", "fe80::1", "-1", "N/A (no PMA)", "TOTAL_ERR_COR 3", "PCI_SLOT_NAME=0000:3b:00.0", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if v, ok, err := parseRate(s); err == nil && (v < 0 || v > maxRate || ok && v == 0 && !strings.HasPrefix(s, "0")) {
			t.Errorf("rate %q: %d", s, v)
		}
		if v, ok, err := parseSpeed(s); err == nil && ok && (v <= 0 || v > maxRate) {
			t.Errorf("speed %q: %d", s, v)
		}
		if v, ok, err := parseLinkSpeed(s); err == nil && ok && !(v > 0 && v < 1e12) {
			t.Errorf("link speed %q: %g", s, v)
		}
		if n, err := parseState(s, PhysStates[:]); err == nil && (n < 0 || n >= len(PhysStates)) {
			t.Errorf("state %q: %d", s, n)
		}
		_, _, _ = parseGID(s)
		_, _ = parseAER(s, "TOTAL_ERR_COR")
		_ = parseUevent(s, "PCI_SLOT_NAME")
		_, _ = parseNumber([]byte(s))
	})
}

// fleet makes the files of a node with n NICs with as many counters as an mlx5 device has.
func fleet(b *testing.B, n int) string {
	tr := tree{}
	for i := range n {
		name := fmt.Sprintf("mlx5_%d", i)
		tr.device(name, fmt.Sprintf("0000:%02x:00.0", i), fmt.Sprintf("eth%d", i))
		for c := range 25 {
			tr[fmt.Sprintf("class/infiniband/%s/ports/1/counters/c%d", name, c)] = "12345678"
			tr[fmt.Sprintf("class/infiniband/%s/ports/1/hw_counters/h%d", name, c)] = "12345678"
		}
	}
	return tr.build(b)
}

func BenchmarkPoll34(b *testing.B) {
	root := fleet(b, 34)
	for _, parts := range []struct {
		name string
		Parts
	}{{"states", ReadStates}, {"counters", ReadStates | ReadCounters}, {"all", ReadAll}} {
		b.Run(parts.name, func(b *testing.B) {
			r := New(Options{Sys: root, RelistEvery: 1 << 30})
			r.Poll(at, ReadAll)
			b.ReportAllocs()
			for b.Loop() {
				r.Poll(at, parts.Parts)
			}
		})
	}
}
