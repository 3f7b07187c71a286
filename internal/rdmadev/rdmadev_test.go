package rdmadev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/testneeds"
)

// writeTree writes a root of sysfs. A text that begins with "-> " is a link, and one of "/" a directory.
func writeTree(t *testing.T, tree map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range tree {
		path = filepath.Join(root, path)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			target, isLink := strings.CutPrefix(text, "-> ")
			switch {
			case isLink:
				err = os.Symlink(target, path)
			case text == "/":
				err = os.MkdirAll(path, 0o755)
			default:
				err = os.WriteFile(path, []byte(text+"\n"), 0o644)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// hostTree has physical, virtual and scalable functions, one with two RDMA devices, soft-RoCE, and a device of which
// nothing can be read.
func hostTree() map[string]string {
	tree := map[string]string{}
	device := func(dir, name, netdev string) {
		tree[filepath.Join("class/infiniband", name)] = "-> ../../" + filepath.Join(dir, "infiniband", name)
		tree[filepath.Join(dir, "infiniband", name, "ports/1/gid_attrs/ndevs/0")] = netdev
		tree[filepath.Join(dir, "infiniband", name, "ports/1/gid_attrs/ndevs/1")] = netdev
	}
	netdev := func(dir, name string) {
		tree[filepath.Join("class/net", name)] = "-> ../../" + filepath.Join(dir, "net", name)
		if !strings.Contains(dir, "virtual") {
			tree[filepath.Join(dir, "net", name, "device")] = "-> ../../../" + filepath.Base(dir)
		}
		tree[filepath.Join(dir, "net", name, "mtu")] = "4200"
	}
	function := func(bus, dir string) {
		tree[filepath.Join("bus", bus, "devices", filepath.Base(dir))] = "-> ../../../" + dir
	}
	const pf, vf, sf, switchdev, soft = "devices/pci/0000:3b:00.0", "devices/pci/0000:3b:00.2", "devices/pci/0000:3b:00.0/mlx5_core.sf.4", "devices/pci/0000:5e:00.0", "devices/virtual"
	function("pci", pf)
	device(pf, "mlx5_0", "pf0")
	netdev(pf, "pf0")
	function("pci", vf)
	device(vf, "mlx5_2", "vf0")
	netdev(vf, "vf0")
	function("auxiliary", sf)
	device(sf, "mlx5_4", "sf4")
	netdev(sf, "sf4")
	function("pci", switchdev)
	device(switchdev, "mlx5_5", "uplink")
	device(switchdev, "mlx5_6", "rep0")
	netdev(switchdev, "uplink")
	netdev(switchdev, "rep0")
	device(soft, "rxe0", "soft0")
	netdev(soft, "soft0")
	netdev(soft, "plain0")
	// Nothing of mlx5_1 is as it should be.
	tree["class/infiniband/mlx5_1"] = "-> ../../devices/virtual/infiniband/mlx5_1"
	tree["devices/virtual/infiniband/mlx5_1/ports"] = "no directory"
	tree["devices/virtual/infiniband/mlx5_1/node_guid/x"] = "no file"
	for i, name := range []string{"mlx5_0", "mlx5_2", "mlx5_4", "mlx5_5", "mlx5_6", "rxe0"} {
		tree[fmt.Sprintf("class/infiniband_verbs/uverbs%d/ibdev", i+1)] = name
		tree[fmt.Sprintf("class/infiniband_mad/umad%d/ibdev", i+1)] = name
		tree[fmt.Sprintf("class/infiniband_mad/umad%d/port", i+1)] = "1"
		tree[fmt.Sprintf("class/infiniband_mad/issm%d/ibdev", i+1)] = name
	}
	tree["class/infiniband_mad/umad7/ibdev"], tree["class/infiniband_mad/umad7/port"] = "mlx5_0", "2"
	tree["class/infiniband_verbs/uverbs0/ibdev/x"] = "no file"
	tree["class/infiniband_mad/umad0/ibdev/x"] = "no file"
	tree["class/infiniband_verbs/abi_version"], tree["class/infiniband_mad/abi_version"] = "6", "5"
	return tree
}

// describe lists all that a Mapper says of the tree.
func describe(m Mapper) string {
	var b strings.Builder
	for _, name := range []string{"pf0", "vf0", "sf4", "uplink", "rep0", "soft0", "plain0", "none0"} {
		functions, err := m.FunctionDevices(name)
		device, failed := m.InterfaceDevice(name)
		fmt.Fprintf(&b, "%s: function %v %v, device %q %v\n", name, functions, err, device, failed)
	}
	for _, name := range []string{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_4", "mlx5_5", "mlx5_6", "rxe0", "none_0"} {
		netdevs, failed := m.DeviceInterfaces(name)
		uverbs, err := m.UverbsNode(name)
		fmt.Fprintf(&b, "%s: %v %v, %q %v", name, netdevs, failed, uverbs, errors.Is(err, fs.ErrNotExist))
		for port := 1; port <= 2; port++ {
			umad, err := m.UmadNode(name, port)
			fmt.Fprintf(&b, ", %q %v", umad, errors.Is(err, fs.ErrNotExist))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

const hostWant = `pf0: function [mlx5_0] <nil>, device "mlx5_0" <nil>
vf0: function [mlx5_2] <nil>, device "mlx5_2" <nil>
sf4: function [mlx5_4] <nil>, device "mlx5_4" <nil>
uplink: function [mlx5_5 mlx5_6] <nil>, device "mlx5_5" <nil>
rep0: function [mlx5_5 mlx5_6] <nil>, device "mlx5_6" <nil>
soft0: function [] <nil>, device "rxe0" <nil>
plain0: function [] <nil>, device "" <nil>
none0: function [] <nil>, device "" <nil>
mlx5_0: [pf0] <nil>, "/dev/infiniband/uverbs1" false, "/dev/infiniband/umad1" false, "/dev/infiniband/umad7" false
mlx5_1: [] <nil>, "" true, "" true, "" true
mlx5_2: [vf0] <nil>, "/dev/infiniband/uverbs2" false, "/dev/infiniband/umad2" false, "" true
mlx5_4: [sf4] <nil>, "/dev/infiniband/uverbs3" false, "/dev/infiniband/umad3" false, "" true
mlx5_5: [uplink] <nil>, "/dev/infiniband/uverbs4" false, "/dev/infiniband/umad4" false, "" true
mlx5_6: [rep0] <nil>, "/dev/infiniband/uverbs5" false, "/dev/infiniband/umad5" false, "" true
rxe0: [soft0] <nil>, "/dev/infiniband/uverbs6" false, "/dev/infiniband/umad6" false, "" true
none_0: [] <nil>, "" true, "" true, "" true
`

func TestFiles(t *testing.T) {
	if got := describe(Files{writeTree(t, hostTree())}); got != hostWant {
		t.Errorf("got\n%s\nwant\n%s", got, hostWant)
	}
	// Without RDMA, nothing fails.
	empty := Files{t.TempDir()}
	if device, err := empty.InterfaceDevice("eth0"); device != "" || err != nil {
		t.Errorf("%q, %v", device, err)
	}
	if _, err := empty.UverbsNode("mlx5_0"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	// A directory of devices that cannot be listed is an error, and a class of nodes as well.
	loop := Files{writeTree(t, map[string]string{"class/infiniband": "-> infiniband", "class/infiniband_verbs": "-> infiniband_verbs", "class/infiniband_mad": "-> infiniband_mad"})}
	_, device := loop.InterfaceDevice("eth0")
	_, uverbs := loop.UverbsNode("mlx5_0")
	_, umad := loop.UmadNode("mlx5_0", 1)
	for _, err := range []error{device, uverbs, umad} {
		if !errors.Is(err, syscall.ELOOP) {
			t.Errorf("%v, want %v", err, syscall.ELOOP)
		}
	}
}

func TestOpen(t *testing.T) {
	for sys, want := range map[string]Mapper{"": Library{}, "/sys": Library{}, "/sys/": Library{}, "/tmp/sys": Files{"/tmp/sys"}} {
		if got := Open(sys); got != want {
			t.Errorf("%q: %#v, want %#v", sys, got, want)
		}
	}
}

// A panic of the library is an error of the call.
func TestGuardCall(t *testing.T) {
	var address []byte
	if err := guardCall(func() { _ = address[12:] }); err == nil || !strings.Contains(err.Error(), "rdmamap failed: runtime error: slice bounds") {
		t.Error(err)
	}
}

// TestLibraryOnThisMachine checks that nothing fails, whatever this machine has.
func TestLibraryOnThisMachine(t *testing.T) {
	m := Open("")
	for _, name := range []string{"lo", "none0"} {
		if device, err := m.InterfaceDevice(name); device != "" || err != nil {
			t.Errorf("%s: %q, %v", name, device, err)
		}
	}
	if _, err := m.UverbsNode("none_0"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err := m.UmadNode("none_0", 1); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// treeVariable passes the tree to the test in the namespaces.
const treeVariable = "GRAYLINK_RDMADEV_TREE"

// TestLibraryReadsTheSameTree holds both implementations against one tree. The library reads /sys only, so that the
// test runs again in a mount namespace that has the tree there, and in a network namespace with its interfaces.
func TestLibraryReadsTheSameTree(t *testing.T) {
	if root := os.Getenv(treeVariable); root != "" {
		if err := syscall.Mount(root, liveRoot, "", syscall.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		for _, pair := range [][2]string{{"soft0", "uplink"}, {"rep0", "plain0"}} {
			if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: pair[0]}, PeerName: pair[1]}); err != nil {
				t.Fatal(err)
			}
		}
		if got := describe(Library{}); got != hostWant {
			t.Errorf("rdmamap found\n%s\nwant\n%s", got, hostWant)
		}
		return
	}
	testneeds.Root(t, "to make namespaces")
	c := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestLibraryReadsTheSameTree$")
	c.Env = append(os.Environ(), treeVariable+"="+writeTree(t, hostTree()))
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET}
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
