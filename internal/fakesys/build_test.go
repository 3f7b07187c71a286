package fakesys

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func build(t *testing.T, n Node) *Tree {
	t.Helper()
	root := t.TempDir()
	if err := BuildTree(root, n); err != nil {
		t.Fatal(err)
	}
	tree, err := Open(root)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func profile(t *testing.T, name string) *Tree {
	t.Helper()
	n, err := FindProfile(name)
	if err != nil {
		t.Fatal(err)
	}
	return build(t, n)
}

// read returns what a reader sees of a file, or a word for why it cannot be read.
func read(t *testing.T, tree *Tree, name string) string {
	t.Helper()
	info, err := os.Lstat(tree.Path(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "(absent)"
	case err != nil:
		t.Fatal(err)
	case info.Mode()&fs.ModeNamedPipe != 0:
		return "(hangs)"
	case info.IsDir():
		return "(directory)"
	}
	b, err := os.ReadFile(tree.Path(name))
	if err != nil {
		return "(unreadable)"
	}
	return strings.TrimSuffix(string(b), "\n")
}

func list(t *testing.T, tree *Tree, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(tree.Path(dir))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// checkLinks follows rule 1, and rule 3's links to themselves.
func checkLinks(t *testing.T, tree *Tree) (links, unreadable int) {
	t.Helper()
	root, err := filepath.EvalSymlinks(tree.Root())
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink == 0 {
			return err
		}
		to, err := os.Readlink(p)
		if err != nil {
			return err
		}
		if to == d.Name() {
			unreadable++
			return nil
		}
		links++
		if filepath.IsAbs(to) {
			t.Errorf("%s points to %s, which is absolute", p, to)
		}
		if strings.HasPrefix(p, filepath.Join(root, privateDir)) {
			return nil
		}
		end, err := filepath.EvalSymlinks(p)
		if err != nil {
			t.Errorf("%s: %v", p, err)
		} else if !strings.HasPrefix(end, root+"/") {
			t.Errorf("%s points to %s, outside of the tree", p, end)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return links, unreadable
}

const (
	ib  = "sys/class/infiniband/"
	net = "sys/class/net/"
)

var profileTests = []struct {
	name       string
	infiniband []string // devices; nil where they are counted only
	net        []string
	devices    int
	files      map[string]string
}{
	{
		name: "h100", devices: 9,
		infiniband: []string{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7", "mlx5_bond_0"},
		net: []string{
			"bond0", "eno3", "enp41s0f0np0", "enp41s0f1np1", "ibp154s0", "ibp192s0", "ibp206s0", "ibp220s0", "ibp24s0", "ibp64s0", "ibp79s0",
			"ibp94s0", "lo",
		},
		files: map[string]string{
			ib + "mlx5_0/hca_type":                                 "MT4129",
			ib + "mlx5_0/fw_ver":                                   "28.39.2048",
			ib + "mlx5_0/board_id":                                 "MT_0000000838",
			ib + "mlx5_0/node_type":                                "1: CA",
			ib + "mlx5_0/node_desc":                                "h100 mlx5_0",
			ib + "mlx5_0/ports/1/state":                            "4: ACTIVE",
			ib + "mlx5_0/ports/1/phys_state":                       "5: LinkUp",
			ib + "mlx5_0/ports/1/rate":                             "400 Gb/sec (4X NDR)",
			ib + "mlx5_0/ports/1/link_layer":                       "InfiniBand",
			ib + "mlx5_0/ports/1/lid":                              "0x20",
			ib + "mlx5_0/ports/1/sm_lid":                           "0x1",
			ib + "mlx5_0/ports/1/cap_mask":                         "0xa751e848",
			ib + "mlx5_0/ports/1/counters/link_downed":             "0",
			ib + "mlx5_0/ports/1/counters/VL15_dropped":            "0",
			ib + "mlx5_0/ports/1/hw_counters/lifespan":             "10",
			ib + "mlx5_0/ports/1/hw_counters/out_of_sequence":      "0",
			ib + "mlx5_0/ports/1/hw_counters/np_cnp_sent":          "(absent)",
			ib + "mlx5_bond_0/ports/1/hw_counters/np_cnp_sent":     "0",
			ib + "mlx5_bond_0/ports/1/hw_counters/rp_cnp_handled":  "0",
			ib + "mlx5_0/ports/1/gid_attrs/types/0":                "IB/RoCE v1",
			ib + "mlx5_0/ports/1/gid_attrs/types/1":                "(unreadable)",
			ib + "mlx5_0/ports/1/gid_attrs/ndevs/0":                "(unreadable)",
			ib + "mlx5_0/ports/1/gids/7":                           "0000:0000:0000:0000:0000:0000:0000:0000",
			ib + "mlx5_0/ports/1/gids/8":                           "(absent)",
			ib + "mlx5_0/device/driver/0000:18:00.0/vendor":        "0x15b3",
			ib + "mlx5_0/device/numa_node":                         "0",
			ib + "mlx5_7/device/numa_node":                         "1",
			ib + "mlx5_0/device/current_link_speed":                "32.0 GT/s PCIe",
			ib + "mlx5_0/device/current_link_width":                "16",
			ib + "mlx5_0/device/max_link_width":                    "16",
			ib + "mlx5_0/device/sriov_totalvfs":                    "16",
			ib + "mlx5_0/device/sriov_numvfs":                      "0",
			ib + "mlx5_0/device/physfn":                            "(absent)",
			ib + "mlx5_0/device/class":                             "0x020700",
			ib + "mlx5_0/device/net/ibp24s0/type":                  "32",
			ib + "mlx5_0/device/infiniband/mlx5_0/ports/1/sm_sl":   "0",
			ib + "mlx5_bond_0/ports/1/link_layer":                  "Ethernet",
			ib + "mlx5_bond_0/ports/1/lid":                         "0x0",
			ib + "mlx5_bond_0/ports/1/gid_attrs/types/1":           "RoCE v2",
			ib + "mlx5_bond_0/ports/1/gid_attrs/ndevs/3":           "bond0",
			ib + "mlx5_bond_0/ports/1/gids/3":                      "0000:0000:0000:0000:0000:ffff:0a3c:0020",
			ib + "mlx5_bond_0/device/net/enp41s0f0np0/operstate":   "up",
			ib + "mlx5_bond_0/device/device":                       "0xa2dc",
			net + "enp41s0f1np1/device/infiniband":                 "(absent)",
			net + "enp41s0f1np1/master/bonding/slaves":             "enp41s0f0np0 enp41s0f1np1",
			net + "bond0/bonding/mode":                             "802.3ad 4",
			net + "bond0/device":                                   "(absent)",
			net + "bond0/lower_enp41s0f0np0/bonding_slave/state":   "active",
			net + "ibp24s0/mtu":                                    "2044",
			net + "eno3/operstate":                                 "up",
			net + "eno3/carrier":                                   "1",
			net + "eno3/carrier_changes":                           "1",
			net + "eno3/speed":                                     "10000",
			net + "eno3/duplex":                                    "full",
			net + "eno3/type":                                      "1",
			net + "eno3/flags":                                     "0x1003",
			net + "eno3/dev_port":                                  "0",
			net + "eno3/mtu":                                       "1500",
			net + "eno3/statistics/rx_errors":                      "0",
			net + "eno3/statistics/carrier_changes":                "(absent)",
			net + "eno3/device/sriov_totalvfs":                     "(absent)",
			net + "lo/operstate":                                   "unknown",
			net + "lo/type":                                        "772",
			"sys/bus/pci/devices/0000:17:01.0/class":               "0x060400",
			"sys/bus/pci/devices/0000:18:00.0/infiniband/mlx5_0":   "(directory)",
			"sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0/net": "(directory)",
			"proc/sys/kernel/hostname":                             "h100",
		},
	},
	{
		name: "sriov34", devices: 34,
		files: map[string]string{
			ib + "mlx5_0/ports/1/gid_attrs/ndevs/0":    "eth0",
			ib + "mlx5_0/ports/1/gid_attrs/types/2":    "IB/RoCE v1",
			ib + "mlx5_0/ports/1/gids/3":               "0000:0000:0000:0000:0000:ffff:0a33:ba20",
			ib + "mlx5_1/ports/1/gid_attrs/ndevs/0":    "rdma4",
			ib + "mlx5_17/ports/1/state":               "4: ACTIVE",
			ib + "mlx5_17/device/sriov_totalvfs":       "16",
			ib + "mlx5_1/device/sriov_numvfs":          "16",
			ib + "mlx5_1/device/virtfn0/vendor":        "0x15b3",
			ib + "mlx5_1/device/virtfn15/physfn/class": "0x020000",
			ib + "mlx5_18/ports/1/state":               "1: DOWN",
			ib + "mlx5_18/ports/1/phys_state":          "3: Disabled",
			ib + "mlx5_18/ports/1/rate":                "40 Gb/sec (4X QDR)",
			ib + "mlx5_18/device/sriov_totalvfs":       "(absent)",
			ib + "mlx5_33/device/physfn/sriov_numvfs":  "16",
			ib + "mlx5_33/device/current_link_speed":   "Unknown",
			ib + "mlx5_33/device/current_link_width":   "0",
			ib + "mlx5_33/device/aer_dev_fatal":        "(absent)",
			net + "enp147s0f1v0/operstate":             "down",
			net + "enp147s0f1v0/carrier":               "0",
			net + "enp147s0f1v0/speed":                 "-1",
		},
	},
	{
		name: "a100", devices: 1, infiniband: []string{"mlx5_0"}, net: []string{"eno1", "ibp12s0", "lo"},
		files: map[string]string{ib + "mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)", ib + "mlx5_0/hca_type": "MT4123"},
	},
	{
		name: "efa", devices: 4, infiniband: []string{"rdmap79s0", "rdmap81s0", "rdmap83s0", "rdmap85s0"}, net: []string{"ens5", "lo"},
		files: map[string]string{
			ib + "rdmap79s0/ports/1/counters":                    "(absent)",
			ib + "rdmap79s0/ports/1/hw_counters/rdma_read_bytes": "0",
			ib + "rdmap79s0/hw_counters/cmds_err":                "0",
			ib + "rdmap79s0/hca_type":                            "(absent)",
			ib + "rdmap79s0/fw_ver":                              "",
			ib + "rdmap79s0/node_type":                           "7: unspecified",
			ib + "rdmap79s0/ports/1/link_layer":                  "Unknown",
			ib + "rdmap79s0/device/net":                          "(absent)",
			"sys/bus/pci/drivers/efa/0000:4f:00.0/vendor":        "0x1d0f",
			net + "ens5/device/vendor":                           "0x1d0f",
		},
	},
	{
		name: "irdma", devices: 2, infiniband: []string{"irdma0", "irdma1"}, net: []string{"ens1f0", "ens1f1", "lo"},
		files: map[string]string{
			ib + "irdma0/ports/1/counters":                       "(absent)",
			ib + "irdma0/ports/1/hw_counters/tcpRetransSegs":     "0",
			ib + "irdma0/fw_ver":                                 "1.71",
			ib + "irdma1/ports/1/gid_attrs/ndevs/0":              "ens1f1",
			"sys/bus/pci/drivers/ice/0000:b1:00.0/sriov_numvfs":  "0",
			"sys/bus/pci/drivers/ice/0000:b1:00.0/aer_dev_fatal": strings.Join(aerUncorrectable, " 0\n") + " 0\nTOTAL_ERR_FATAL 0",
		},
	},
	{
		name: "mlx4", devices: 1, infiniband: []string{"mlx4_0"}, net: []string{"eno1", "ens2d1", "ib0", "lo"},
		files: map[string]string{
			ib + "mlx4_0/hca_type":                      "MT4103",
			ib + "mlx4_0/ports/1/link_layer":            "InfiniBand",
			ib + "mlx4_0/ports/2/link_layer":            "Ethernet",
			ib + "mlx4_0/ports/2/gid_attrs/ndevs/0":     "ens2d1",
			ib + "mlx4_0/ports/2/counters/link_downed":  "0",
			ib + "mlx4_0/ports/2/hw_counters/sq_num_to": "0",
			ib + "mlx4_0/device/net/ib0/type":           "32",
			ib + "mlx4_0/device/net/ens2d1/dev_port":    "1",
			ib + "mlx4_0/device/net/ens2d1/type":        "1",
		},
	},
	{
		name: "rxe", devices: 1, infiniband: []string{"rxe0"}, net: []string{"eth0", "lo"},
		files: map[string]string{
			ib + "rxe0/parent":                          "eth0",
			ib + "rxe0/device":                          "(absent)",
			ib + "rxe0/hca_type":                        "(absent)",
			ib + "rxe0/ports/1/counters":                "(absent)",
			ib + "rxe0/ports/1/hw_counters/link_downed": "0",
			ib + "rxe0/ports/1/gid_attrs/ndevs/1":       "eth0",
			ib + "rxe0/ports/1/gid_attrs/types/1":       "RoCE v2",
			ib + "rxe0/ports/1/gid_attrs/types/2":       "(unreadable)",
			"sys/devices/virtual/infiniband/rxe0":       "(directory)",
		},
	},
	{
		name: "broken", devices: 9,
		files: map[string]string{
			ib + "mlx5_0/fw_ver":                        "(unreadable)",
			ib + "mlx5_0/hca_type":                      "MT4129",
			ib + "mlx5_1/ports/1/counters/VL15_dropped": "N/A (no PMA)",
			ib + "mlx5_2/ports/1/counters/symbol_error": "(hangs)",
			ib + "mlx5_3/ports/1/gids/0":                "0000:0000:0000:0000:0000:0000:0000:0000",
			ib + "mlx5_3/ports/1/gid_attrs/types/0":     "(unreadable)",
			ib + "mlx5_4/ports":                         "(absent)",
			ib + "mlx5_4/fw_ver":                        "28.39.2048",
		},
	},
}

func TestProfiles(t *testing.T) {
	covered := []string{}
	for _, test := range profileTests {
		covered = append(covered, test.name)
		t.Run(test.name, func(t *testing.T) {
			tree := profile(t, test.name)
			if links, _ := checkLinks(t, tree); links < 10 {
				t.Errorf("%d links", links)
			}
			devices := list(t, tree, ib)
			if len(devices) != test.devices || test.infiniband != nil && !slices.Equal(devices, test.infiniband) {
				t.Errorf("devices %q, want %d of %q", devices, test.devices, test.infiniband)
			}
			if got := list(t, tree, net); test.net != nil && !slices.Equal(got, test.net) {
				t.Errorf("interfaces %q, want %q", got, test.net)
			}
			for file, want := range test.files {
				if got := read(t, tree, file); got != want {
					t.Errorf("%s: %q, want %q", file, got, want)
				}
			}
			identities := map[string]string{}
			for _, d := range devices {
				guid := read(t, tree, ib+d+"/node_guid")
				if was := identities[guid]; was != "" || !guidPattern.MatchString(guid) {
					t.Errorf("%s has the GUID %q, as %q", d, guid, was)
				}
				identities[guid] = d
			}
			if id := read(t, tree, bootFile); !bootIDPattern.MatchString(id) {
				t.Errorf("boot id %q", id)
			}
			if log := read(t, tree, kmsgFile); !strings.HasPrefix(log, "6,0,0,-;Linux version ") {
				t.Errorf("kernel log %q", log)
			}
			if left := list(t, tree, privateDir+"/"+stagingDir); len(left) > 0 {
				t.Errorf("left over: %q", left)
			}
		})
	}
	for _, p := range Profiles() {
		if !slices.Contains(covered, p.Name) || p.Help == "" {
			t.Errorf("profile %s has no test or no help", p.Name)
		}
	}
	if _, err := FindProfile("h1000"); err == nil || !strings.Contains(err.Error(), `"h100"`) {
		t.Errorf("%v", err)
	}
}

func TestFunctionSaysWhoItIs(t *testing.T) {
	tree := profile(t, "a100")
	got := read(t, tree, "sys/class/infiniband/mlx5_0/device/uevent")
	want := "DRIVER=mlx5_core\nPCI_CLASS=20700\nPCI_ID=15B3:101B\nPCI_SUBSYS_ID=15B3:0000\nPCI_SLOT_NAME=0000:0c:00.0"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for link, want := range map[string]string{
		"sys/class/infiniband/mlx5_0":                "../../devices/pci0000:0b/0000:0b:01.0/0000:0c:00.0/infiniband/mlx5_0",
		"sys/class/infiniband/mlx5_0/device":         "../../../0000:0c:00.0",
		"sys/class/infiniband/mlx5_0/device/driver":  "../../../../bus/pci/drivers/mlx5_core",
		"sys/bus/pci/drivers/mlx5_core/0000:0c:00.0": "../../../../devices/pci0000:0b/0000:0b:01.0/0000:0c:00.0",
		"sys/class/net/lo":                           "../../devices/virtual/net/lo",
	} {
		if got, err := os.Readlink(tree.Path(link)); err != nil || got != want {
			t.Errorf("%s: %q %v, want %q", link, got, err, want)
		}
	}
}

// Rule 6.
func TestSameNodeSameTree(t *testing.T) {
	n, _ := FindProfile("sriov34")
	a, b := newLayout(n), newLayout(n)
	for name, text := range a.files {
		if b.files[name] != text {
			t.Errorf("%s: %q and %q", name, text, b.files[name])
		}
	}
	if len(a.files) != len(b.files) || len(a.links) != len(b.links) {
		t.Error("trees of different size")
	}
}

func TestBuildRefuses(t *testing.T) {
	n, _ := FindProfile("rxe")
	root := t.TempDir()
	mine := filepath.Join(root, "mine")
	if err := os.WriteFile(mine, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := BuildTree(root, n); !errors.Is(err, ErrNotOurs) || !strings.Contains(err.Error(), "an empty directory is expected") {
		t.Errorf("a directory with a file: %v", err)
	}
	if _, err := Open(root); !errors.Is(err, ErrNotOurs) {
		t.Errorf("opening it: %v", err)
	}
	if err := os.Remove(mine); err != nil {
		t.Fatal(err)
	}
	other, _ := FindProfile("broken")
	for _, n := range []Node{other, n} { // the second takes the place of the first
		if err := BuildTree(root, n); err != nil {
			t.Fatal(err)
		}
	}
	tree, err := Open(root)
	if err != nil {
		t.Fatal(err)
	}
	if got := list(t, tree, ib); !slices.Equal(got, []string{"rxe0"}) {
		t.Errorf("devices %q", got)
	}
	if got := list(t, tree, privateDir+"/"+removedDir); len(got) > 0 {
		t.Errorf("taken away: %q", got)
	}
	if err := BuildTree(filepath.Join(t.TempDir(), "a", "b"), n); err != nil {
		t.Errorf("a directory that is not there: %v", err)
	}
	n.Then = []string{"set rxe1/1 state 1: DOWN"}
	if err := BuildTree(root, n); err == nil || !strings.Contains(err.Error(), "then[0]: set rxe1/1 state 1: DOWN: the tree has no RDMA device rxe1") {
		t.Errorf("a step that fails: %v", err)
	}
}
