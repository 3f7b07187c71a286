//go:build all

package e2e

import (
	"errors"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

// TestSprayedFabrics runs fabrics of four spines that spray the packets of every flow, of network namespaces and simulated. Each
// flow between leaves is bound to its four paths, nothing is named in a minute without a fault, and one link that loses packets
// is noticed.
func TestSprayedFabrics(t *testing.T) {
	need(t)
	for _, c := range []struct {
		fabric, paths string
		traceOnly     bool
		noTraces      bool
	}{
		{fabric: demo.Namespaces, paths: "both"},
		{fabric: demo.Namespaces, paths: "traces", traceOnly: true},
		{fabric: demo.Simulated, paths: "sightings", noTraces: true},
	} {
		t.Run(c.fabric+" "+c.paths, func(t *testing.T) {
			topo := loadTopology(t, "../../deploy/lab/spray.yaml")
			d := startDemo(t, demo.Options{Name: "e2espray", Topology: topo, Fabric: c.fabric, TraceOnly: c.traceOnly, NoTraces: c.noTraces, Seed: 1, Progress: testLog{t}})
			flowsAreSprayed(t, d)
			sprayedInSilence(t, d)
			flowsAreSprayed(t, d)
			sprayedLossIsNoticed(t, d)
			if c.fabric == demo.Namespaces && !c.traceOnly {
				trimmedProbesAreDropped(t, d)
			}
		})
	}
}

// testLog writes progress to the log of a test.
type testLog struct{ t *testing.T }

func (w testLog) Write(p []byte) (int, error) {
	w.t.Helper()
	w.t.Logf("%s", p)
	return len(p), nil
}

// flowsAreSprayed checks that every flow between leaves is bound to all its paths, and every other one to its own.
func flowsAreSprayed(t *testing.T, d *demo.Demo) {
	t.Helper()
	s, g := d.Loop().Snapshot(), d.Graph()
	sprayed := 0
	for _, e := range s.Edges {
		f, err := e.Obs.ParseFlow()
		if err != nil {
			t.Fatal(err)
		}
		from, to := f.Endpoints()
		var want, got []string
		for _, p := range g.ShortestPaths(from, to, 1024) {
			want = append(want, p.CanonicalKey())
		}
		for _, p := range e.Obs.Paths {
			got = append(got, p.CanonicalKey())
		}
		slices.Sort(want)
		slices.Sort(got)
		switch {
		case len(want) == 1 && (e.Obs.Sprayed || e.Obs.PathState != fabric.PathValid || e.Obs.Path.CanonicalKey() != want[0]):
			t.Errorf("%s within a leaf: sprayed %t, %s %q", f, e.Obs.Sprayed, e.Obs.PathState, e.Obs.Path.CanonicalKey())
		case len(want) > 1 && (!e.Obs.Sprayed || e.Obs.PathState != fabric.PathUnknown || !slices.Equal(got, want)):
			t.Errorf("%s between leaves: sprayed %t, %s, paths %q, want %q", f, e.Obs.Sprayed, e.Obs.PathState, got, want)
		case len(want) > 1:
			sprayed++
		}
	}
	c := s.Report.Coverage
	if sprayed == 0 || s.Report.Edges.UnknownPath > 0 || c.Edges < 0.95 || c.Links < 1 {
		t.Errorf("%d of %d flows are sprayed; %d flows without a known path, coverage of flows %.2f, of links %.2f", sprayed, len(s.Edges), s.Report.Edges.UnknownPath, c.Edges, c.Links)
	}
	t.Logf("%d of %d flows are sprayed; coverage of flows %.2f, of links %.2f", sprayed, len(s.Edges), c.Edges, c.Links)
}

// sprayedInSilence checks that nothing is named without a fault.
func sprayedInSilence(t *testing.T, d *demo.Demo) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
		for _, in := range d.Loop().Snapshot().Incidents {
			t.Fatalf("without a fault, %s %s is named: %s", in.Kind, in.Element, in.Scenario)
		}
	}
}

// sprayedLossIsNoticed checks that a link of which one direction loses a tenth is noticed, and logs which elements are named.
func sprayedLossIsNoticed(t *testing.T, d *demo.Demo) {
	t.Helper()
	p := demo.PlannedFault{Fault: lab.Fault{Kind: lab.KindLoss, At: "leaf1:up2--spine2:dn1", Direction: "leaf1:up2->spine2:dn1", Loss: 0.1}, Element: "leaf1:up2--spine2:dn1", Kind: fabric.KindLink,
		Direction: "leaf1:up2->spine2:dn1", Scenarios: []fabric.Scenario{fabric.Corridor}, Params: map[string]any{}}
	out, err := d.RunFault(t.Context(), p, 1, 45*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if out.Verdict == nil || out.SecondsToVerdict == nil {
		t.Fatal("a link that loses a tenth of a quarter of the packets is not noticed")
	}
	t.Logf("%s %s is named after %.1f s, with the equivalents %v; it is the link or has it listed: %t; %d other verdicts", out.Verdict.Kind, out.Verdict.Element.ID, *out.SecondsToVerdict, out.Verdict.Equivalent,
		out.ElementMatch, len(out.FalseVerdicts))
}

// trimmedProbesAreDropped checks that probes of which a switch cuts a part off are counted as malformed, and that agents go on.
func trimmedProbesAreDropped(t *testing.T, d *demo.Demo) {
	t.Helper()
	value := valuesOf(t, d)
	// Agents publish what they dropped since they began, by reason.
	const dropped, acked = `sum(graylink_node_dropped_packets_total{reason="malformed"}) or vector(0)`, `sum(fabric_probe_acked_total)`
	// Within the STAMP packet, and within one of the TLVs behind it.
	for _, length := range []int{64, 90} {
		id, err := d.Lab().AddFault(t.Context(), lab.Fault{Kind: lab.KindTrim, At: "leaf2:dn1->h3/eth1", Length: length})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second) // for a scrape after the last whole probe
		before, answers := value(dropped), value(`sum(fabric_probe_acked_total{dst="h3/eth1"})`)
		time.Sleep(5 * time.Second)
		grown, others := value(dropped)-before, value(`sum(fabric_probe_acked_total{dst="h3/eth1"})`)-answers
		if grown < 100 || others > 0 {
			t.Errorf("%d octets of each packet to a host are left: agents dropped %g as malformed, and %g probes of it count as answered", length, grown, others)
		}
		t.Logf("%d octets of each packet to a host are left: agents dropped %g as malformed", length, grown)
		if err := d.Lab().ClearFault(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		before, answers = value(dropped), value(acked)
		time.Sleep(3 * time.Second)
		if grown, answered := value(dropped)-before, value(acked)-answers; grown > 0 || answered < 100 {
			t.Errorf("after the fault: agents dropped %g as malformed, and %g probes were answered", grown, answered)
		}
	}
}

// TestSprayingIsNoticed makes the switches of a fabric whose topology says nothing of it spray packets, and hash flows again.
// Flows are bound as they are forwarded some time later, by sightings alone and by traces alone. Meanwhile verdicts of information
// name the leaves, and nothing else.
func TestSprayingIsNoticed(t *testing.T) {
	need(t)
	topo := loadTopology(t, "../../deploy/lab/demo.yaml")
	for name, o := range map[string]demo.Options{"sightings": {NoTraces: true}, "traces": {TraceOnly: true}} {
		t.Run(name, func(t *testing.T) {
			o.Name, o.Topology, o.Fabric, o.Seed, o.Progress = "e2emode", topo, demo.Namespaces, 1, testLog{t}
			d := startDemo(t, o)
			sprayAtRandom(t, d)
			awaitSprayed(t, d, true)
			if err := setHashPolicy(d, "3"); err != nil {
				t.Fatal(err)
			}
			awaitSprayed(t, d, false)
		})
	}
}

// setHashPolicy makes all switches choose next hops by another hash.
func setHashPolicy(d *demo.Demo, policy string) error {
	return d.Lab().InEachSwitch(func(string, []lab.PortInterface) error {
		return os.WriteFile("/proc/sys/net/ipv4/fib_multipath_hash_policy", []byte(policy), 0)
	})
}

// sprayAtRandom gives each packet that a switch receives a random hash, by which the kernel chooses its next hop.
func sprayAtRandom(t *testing.T, d *demo.Demo) {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1), asm.FnGetPrandomU32.Call(), asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Reg(asm.R2, asm.R0), asm.FnSetHash.Call(), asm.Mov.Imm(asm.R0, -1), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	err = d.Lab().InEachSwitch(func(_ string, ports []lab.PortInterface) error {
		h, err := netlink.NewHandle(syscall.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		for _, p := range ports {
			attrs := netlink.QdiscAttrs{LinkIndex: p.Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
			if err := h.QdiscAdd(&netlink.Clsact{QdiscAttrs: attrs}); err != nil && !errors.Is(err, syscall.EEXIST) {
				return err
			}
			filter := &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: p.Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 1, Protocol: syscall.ETH_P_ALL},
				Fd: program.FD(), Name: "spray", DirectAction: true}
			if err := h.FilterAdd(filter); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = setHashPolicy(d, "1")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// awaitSprayed waits until nine of ten flows between leaves are bound as sprayed, or to a path, and until verdicts say so of all leaves
// with flows to others, or of none.
func awaitSprayed(t *testing.T, d *demo.Demo, want bool) {
	t.Helper()
	start, sprayed, bound, between, named := time.Now(), 0, 0, 0, 0
	for time.Since(start) < sprayedWithin {
		time.Sleep(time.Second)
		s := d.Loop().Snapshot()
		named = 0
		for _, in := range s.Incidents {
			switch {
			case !in.IsInformation() || in.Kind != fabric.KindSwitch:
				t.Fatalf("without a fault, %s %s is named: %s", in.Kind, in.Element, in.Scenario)
			case in.Open:
				named++
			}
		}
		sprayed, bound, between = 0, 0, 0
		leaves := map[string]bool{}
		for _, e := range s.Edges {
			if len(d.Graph().ShortestPaths(e.Obs.Src, e.Obs.Dst, 2)) < 2 {
				continue
			}
			leaf, _ := d.Graph().LeafOf(e.Obs.Src)
			leaves[leaf] = true
			between++
			if e.Obs.Sprayed {
				sprayed++
			} else if e.Obs.PathState == fabric.PathValid {
				bound++
			}
		}
		if between > 0 && (want && sprayed*10 >= between*9 && named == len(leaves) || !want && bound*10 >= between*9 && named == 0) {
			t.Logf("sprayed %t: %d of %d flows are bound as sprayed, and %d to a path, after %.0f s; verdicts on %d leaves", want, sprayed, between, bound, time.Since(start).Seconds(), named)
			return
		}
	}
	t.Errorf("sprayed %t: %d of %d flows are bound as sprayed, and %d to a path, after %.0f s; verdicts on %d switches", want, sprayed, between, bound, time.Since(start).Seconds(), named)
}

// sprayedWithin bounds the time in which spraying is noticed, and its end. Traces show the end late: each flow is traced once a minute.
const sprayedWithin = 8 * time.Minute
