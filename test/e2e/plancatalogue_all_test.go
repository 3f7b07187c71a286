//go:build all

package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/internal/plan"
)

// planLab is a lab whose catalogues are traced.
type planLab struct {
	*lab.Lab
	t *testing.T
}

// inNetns runs a command in the namespace of a switch.
func (l planLab) inNetns(element, command string) {
	l.t.Helper()
	netns, err := l.NetnsOf(element)
	if err != nil {
		l.t.Fatal(err)
	}
	if out, err := exec.Command("ip", append([]string{"netns", "exec", netns}, strings.Fields(command)...)...).CombinedOutput(); err != nil {
		l.t.Fatalf("%s: %s: %v: %s", element, command, err, out)
	}
}

// catalogue traces the catalogue of pairs.
func (l planLab) catalogue(args ...string) []plan.Entry {
	l.t.Helper()
	stdout, stderr, code := graylink(l.t, append([]string{"plan", "catalogue", "--lab", l.Name()}, args...)...)
	if code != 0 {
		l.t.Fatalf("exit code %d: %s", code, stderr)
	}
	var out []plan.Entry
	err := plan.ReadCatalogue(strings.NewReader(stdout), func(_ int, e *plan.Entry) error {
		kept := *e
		kept.Path = append(fabric.Path{}, e.Path...)
		out = append(out, kept)
		return nil
	}, func(bad fabric.LineError) { l.t.Error(bad) })
	if err != nil {
		l.t.Fatal(err)
	}
	return out
}

// checkKernels compares every entry with the route that the kernels of the switches answer for its tuple.
func (l planLab) checkKernels(entries []plan.Entry) {
	l.t.Helper()
	walk, err := l.NewWalk()
	if err != nil {
		l.t.Fatal(err)
	}
	for i := range entries {
		e := &entries[i]
		want, err := walk.KernelPath(l.t.Context(), e.SrcAddr, e.DstAddr, udp, e.SPort, e.DPort)
		if err != nil {
			l.t.Fatal(err)
		}
		if e.State != plan.Valid || fmt.Sprint(e.Path) != fmt.Sprint(want) {
			l.t.Errorf("%s>%s %d: %s path %v, want the kernels' %v", e.Src, e.Dst, e.SPort, e.State, e.Path, want)
		}
	}
}

// TestPlanCatalogue: the paths of RoCE flows that are traced are those that the switches' kernels choose, before and after a
// link was lost, and none of them has what is excluded. Where a switch hashes the queue pair or sprays packets, the
// catalogue has no path.
func TestPlanCatalogue(t *testing.T) {
	const name = "e2eplan"
	l := planLab{fabricOf(t, name, "testdata/plan-fabric.yaml"), t}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		clean(t, name)
	})
	pairs := []string{"--pair", "h1/eth1>h3/eth1", "--pair", "h2/eth2>h4/eth2", "--pair", "h3/eth1>h2/eth1"}
	entries := l.catalogue(pairs...)
	l.checkKernels(entries)
	perUplink := map[string]int{}
	for _, e := range entries {
		perUplink[e.Src+" "+e.Path[0].Out]++
	}
	t.Logf("%d entries: %v", len(entries), perUplink)
	for _, nic := range []string{"h1/eth1", "h2/eth2", "h3/eth1"} {
		for up := 1; up <= 4; up++ {
			if n := perUplink[fmt.Sprintf("%s up%d", nic, up)]; n < 4 {
				t.Errorf("%s: %d ports by up%d, want 8/4+2 at least", nic, n, up)
			}
		}
	}
	for _, e := range l.catalogue(append(pairs, "--exclude", "leaf1:up2--spine2:dn1")...) {
		if e.Path[0].Switch == "leaf1" && e.Path[0].Out == "up2" {
			t.Errorf("%+v has the link that is excluded", e)
		}
	}
	if _, err := l.AddFault(t.Context(), lab.Fault{Kind: lab.KindLinkDown, At: "leaf1:up3--spine3:dn1"}); err != nil {
		t.Fatal(err)
	}
	l.checkKernels(l.catalogue("--pair", "h1/eth1>h3/eth1"))

	// A marked packet leaves leaf3 by another uplink than the hash of its tuple says.
	l.inNetns("leaf3", "ip rule add fwmark 1 table 77")
	l.inNetns("leaf3", "ip route add default via 172.20.49.1 table 77")
	for _, x := range []struct {
		match string
		want  plan.Reason
	}{
		{"-m u32 --u32 32&0xFFFFFF=0xFFFFFF", plan.HashBeyondTuple}, // the destination queue pair of the BTH
		{"-m statistic --mode random --probability 0.5", plan.Sprayed},
	} {
		l.inNetns("leaf3", "iptables -t mangle -F PREROUTING")
		l.inNetns("leaf3", "iptables -t mangle -A PREROUTING -i dn1 -p udp --dport 4791 "+x.match+" -j MARK --set-mark 1")
		entries := l.catalogue("--pair", "h3/eth1>h1/eth1")
		for _, e := range entries {
			if e.State != plan.Unknown || e.Reason != x.want || len(e.Path) > 0 {
				t.Errorf("%s: %+v, want no path and reason %s", x.match, e, x.want)
				break
			}
		}
		if len(entries) == 0 {
			t.Errorf("%s: no entries", x.match)
		}
	}
}
