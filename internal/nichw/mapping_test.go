package nichw

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/graylink/graylink/internal/fakesys"
	"github.com/graylink/graylink/internal/testneeds"
)

// mapped lists the interfaces of ports and the devices of interfaces.
func mapped(p *Poll) string {
	var out []string
	for _, d := range p.Devices {
		for _, port := range d.Ports {
			out = append(out, fmt.Sprintf("%s.%d=%s", d.Name, port.Number, port.Netdev))
		}
	}
	for _, f := range p.Interfaces {
		out = append(out, f.Name+"="+f.Device)
	}
	return strings.Join(out, " ")
}

// TestFunctionsOfInterfaces follows a node whose RDMA devices come after their interfaces: a PCI function with a
// representor, and a scalable function, whose directory names no PCI function.
func TestFunctionsOfInterfaces(t *testing.T) {
	root := tree{
		"pf/uevent": "PCI_SLOT_NAME=0000:3b:00.0", "class/net/eth0/device": "-> ../../../pf", "class/net/eth0/mtu": "4200",
		"class/net/rep0/device": "-> ../../../pf", "class/net/rep0/mtu": "4200", "pf/mlx5_core.sf.4/uevent": "DRIVER=mlx5_core.sf",
		"class/net/sf4/device": "-> ../../../pf/mlx5_core.sf.4", "class/net/sf4/mtu": "4200", "class/infiniband": "",
	}.build(t)
	r := New(Options{Sys: root})
	poll := func(want string) {
		t.Helper()
		p := r.Poll(at, ReadAll)
		if got := mapped(p); got != want || len(p.Errors) != 0 {
			t.Errorf("%s %v, want %s", got, p.Errors, want)
		}
	}
	poll("eth0= rep0= sf4=")
	add := func(dir, name string) {
		put(t, root, filepath.Join(dir, "infiniband", name, "ports/1/state"), "4: ACTIVE")
		put(t, root, filepath.Join("class/infiniband", name), "-> ../../"+filepath.Join(dir, "infiniband", name))
	}
	add("pf", "mlx5_0")
	poll("mlx5_0.1= eth0=mlx5_0 rep0=mlx5_0 sf4=")
	add("pf/mlx5_core.sf.4", "mlx5_4")
	poll("mlx5_0.1= mlx5_4.1=sf4 eth0=mlx5_0 rep0=mlx5_0 sf4=mlx5_4")
	for _, path := range []string{"class/infiniband/mlx5_0", "pf/infiniband"} {
		if err := os.RemoveAll(filepath.Join(root, path)); err != nil {
			t.Fatal(err)
		}
	}
	poll("mlx5_4.1=sf4 eth0= rep0= sf4=mlx5_4")

	// A list that cannot be read is an error of its own, and is read again.
	put(t, root, "pf/infiniband", "-> infiniband")
	r.RelistAll()
	for range 2 {
		p := r.Poll(at, ReadAll)
		if got := mapped(p); got != "mlx5_4.1=sf4 eth0= rep0= sf4=mlx5_4" || len(p.Errors) != 2 || p.Errors[0].Sort != Unreadable || !strings.HasSuffix(p.Errors[0].Path, "class/net/eth0/device/infiniband") {
			t.Errorf("%s, %v", got, p.Errors)
		}
	}
	if err := os.Remove(filepath.Join(root, "pf/infiniband")); err != nil {
		t.Fatal(err)
	}
	poll("mlx5_4.1=sf4 eth0= rep0= sf4=mlx5_4")
}

// treeVariable passes the trees to the test in the namespace.
const treeVariable = "GRAYLINK_NICHW_TREES"

// TestSysOfTheMachine reads the nodes of fakesys as /sys, where rdmamap maps, and as another root. It runs again in a
// mount namespace for that.
func TestSysOfTheMachine(t *testing.T) {
	if root := os.Getenv(treeVariable); root != "" {
		all := func(string, bool) bool { return true }
		for _, p := range fakesys.Profiles() {
			sys := filepath.Join(root, p.Name, "sys")
			if err := syscall.Mount(sys, "/sys", "", syscall.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
			want := mapped(New(Options{Sys: sys, Interface: all}).Poll(at, ReadAll))
			if got := mapped(New(Options{Interface: all}).Poll(at, ReadAll)); got != want || want == "" {
				t.Errorf("%s: in /sys %s, in another root %s", p.Name, got, want)
			}
			t.Logf("%s: %s", p.Name, want)
		}
		return
	}
	testneeds.Root(t, "to make a mount namespace")
	root := t.TempDir()
	for _, p := range fakesys.Profiles() {
		n := p.Node()
		n.Then = nil // a read that hangs would only cost time
		if err := fakesys.BuildTree(filepath.Join(root, p.Name), n); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.run=^TestSysOfTheMachine$")
	c.Env = append(os.Environ(), treeVariable+"="+root)
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := c.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
