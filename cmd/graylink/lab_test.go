package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/internal/testneeds"
)

// graylinkLab runs "graylink lab ARGS" and returns its exit code and what it printed.
func graylinkLab(t *testing.T, args ...string) (code int, stdout string) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	keep := os.Stdout
	os.Stdout = w
	printed := make(chan string)
	go func() {
		var b bytes.Buffer
		io.Copy(&b, r)
		printed <- b.String()
	}()
	app := kingpin.New("graylink", "")
	commands := map[string]command{}
	addLab(app, commands)
	code = run(app, commands, append([]string{"lab"}, args...))
	os.Stdout = keep
	w.Close()
	return code, <-printed
}

// needLab skips a test on a machine that cannot have a lab.
func needLab(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("builds a fabric: left out by -short")
	}
	testneeds.Root(t, "it makes network namespaces")
}

func TestLabCommands(t *testing.T) {
	needLab(t)
	t.Setenv(lab.StateDirEnv, t.TempDir())
	name := fmt.Sprintf("cmdtest%d", os.Getpid())
	t.Cleanup(func() {
		if err := lab.Down(t.Context(), name); err != nil {
			t.Error(err)
		}
	})
	const demoFile = "../../deploy/lab/demo.yaml"
	bad := t.TempDir() + "/bad.yaml"
	if err := os.WriteFile(bad, []byte("version: 1\nswitchs: []\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"status"}, 1, ""},
		{[]string{"fault", "list"}, 1, ""},
		{[]string{"up"}, 1, ""},
		{[]string{"up", "--topology", bad}, 1, ""},
		{[]string{"up", "--topology", demoFile}, 0, ""},
		{[]string{"up", "--topology", demoFile}, 1, ""},
		{[]string{"list"}, 0, name},
		{[]string{"status"}, 0, "leaf1:up1"},
		{[]string{"fault", "add", "melt", "--at", "spine1"}, 1, ""},
		{[]string{"fault", "add", "blackhole", "--at", "spine9"}, 1, ""},
		{[]string{"fault", "add", "loss", "--at", "leaf1:up1--spine1:dn1", "--loss", "0"}, 1, ""},
		{[]string{"fault", "add", "blackhole", "--at", "leaf1:up1--spine1:dn1"}, 0, "f1 blackhole at leaf1:up1--spine1:dn1 direction leaf1:up1->spine1:dn1"},
		{[]string{"fault", "list", "--format", "json"}, 0, `"id": "f1"`},
		{[]string{"status"}, 0, "f1 blackhole"},
		{[]string{"fault", "clear", "f7"}, 1, ""},
		{[]string{"fault", "clear", "f1"}, 0, ""},
		{[]string{"fault", "add", "clock-step", "--at", "h1/eth1", "--step", "0s"}, 1, ""},
		{[]string{"fault", "add", "clock-step", "--at", "h1/eth1", "--step=-1ms"}, 0, "f2 clock-step at h1/eth1 step -1ms by bend"},
		{[]string{"fault", "add", "clock-drift", "--at", "h1/eth1"}, 0, "f3 clock-drift at h1/eth1 drift 50 ppm by bend"},
		{[]string{"fault", "clear"}, 0, ""},
		{[]string{"exec", "h1", "--", "sh", "-c", "exit 42"}, 42, ""},
		{[]string{"exec", "h1", "--", "sh", "-c", "kill -9 $$"}, 137, ""},
		{[]string{"exec", "h1", "--", "ip", "-br", "addr", "show", "eth1"}, 0, "10.0.1.2/24"},
		{[]string{"exec", "absent", "--", "true"}, 1, ""},
		{[]string{"down"}, 0, ""},
		{[]string{"down"}, 0, ""},
		{[]string{"list"}, 0, ""},
	} {
		code, out := graylinkLab(t, append([]string{"--name", name}, c.args...)...)
		if code != c.code || !strings.Contains(out, c.want) {
			t.Errorf("graylink lab %q: exit code %d, want %d; printed %q, want %q in it", c.args, code, c.code, out, c.want)
		}
		if c.args[len(c.args)-1] == "json" && !json.Valid([]byte(out)) {
			t.Errorf("graylink lab %q: not JSON: %s", c.args, out)
		}
	}
}

// TestSourceRoutedLabCommands builds a lab whose hosts choose paths, and has a switch forget a neighbour.
func TestSourceRoutedLabCommands(t *testing.T) {
	needLab(t)
	t.Setenv(lab.StateDirEnv, t.TempDir())
	name := fmt.Sprintf("cmdsrv6%d", os.Getpid())
	t.Cleanup(func() {
		if err := lab.Down(t.Context(), name); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"up", "--topology", "../../deploy/lab/demo.yaml", "--forwarding", "srv6"}, 1, ""},
		{[]string{"up", "--topology", "../../deploy/lab/spray.yaml", "--forwarding", "srv6"}, 0, ""},
		{[]string{"status"}, 0, "forwarding srv6, addresses ipv6"},
		{[]string{"status"}, 0, "  fcbb:bb00:8::/48\n"},
		{[]string{"status", "--format", "json"}, 0, `"locator": "fcbb:bb00:8::/48"`},
		{[]string{"topology"}, 0, "locator: fcbb:bb00:8::/48"},
		{[]string{"fault", "add", "sid-unknown", "--at", "leaf1->leaf2"}, 1, ""},
		{[]string{"fault", "add", "sid-unknown", "--at", "leaf1->spine2"}, 0, "f1 sid-unknown at leaf1->spine2 by routes"},
		{[]string{"fault", "clear"}, 0, ""},
		{[]string{"down"}, 0, ""},
	} {
		code, out := graylinkLab(t, append([]string{"--name", name}, c.args...)...)
		if code != 0 && c.code == 0 && c.args[0] == "up" {
			if _, err := os.Stat("/proc/sys/net/ipv6/conf/all/seg6_enabled"); err != nil {
				testneeds.Missing(t, "a kernel that processes SRv6 segments")
			}
		}
		if code != c.code || !strings.Contains(out, c.want) {
			t.Errorf("graylink lab %q: exit code %d, want %d; printed %q, want %q in it", c.args, code, c.code, out, c.want)
		}
	}
}

// TestTopologyOfTheDemo checks which fabric the demo has by --forwarding.
func TestTopologyOfTheDemo(t *testing.T) {
	for _, c := range []struct {
		forwarding, topology, kind string
		want                       fabric.Forwarding
		err                        string
	}{
		{kind: demo.Namespaces},
		{forwarding: "spray", kind: demo.Simulated, want: fabric.Spray},
		{forwarding: "srv6", kind: demo.Namespaces, want: fabric.SRv6},
		{topology: "../../deploy/lab/srv6.yaml", kind: demo.Namespaces, want: fabric.SRv6},
		{topology: "../../deploy/lab/srv6.yaml", forwarding: "ecmp", kind: demo.Simulated, want: fabric.ECMP},
		{topology: "../../deploy/lab/srv6.yaml", kind: demo.Simulated, err: "needs root and a fabric of network namespaces"},
		{forwarding: "srv6", kind: demo.Simulated, err: "needs root and a fabric of network namespaces"},
	} {
		o := demoFlags{forwarding: c.forwarding, topology: c.topology, fabric: c.kind}
		topo, err := o.loadTopology()
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%+v: error %v", c, err)
			}
		case err != nil || topo.Forwarding != c.want || topo.IsSourceRouted() == topo.Switches[0].Locator.IsZero():
			t.Errorf("%+v: %+v, %v", c, topo, err)
		}
	}
}
