package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/internal/schedule/clos"
)

const udp = 17

// threeTierFabric returns three tiers: two pods of four leaves and two spines, four cores, 16 or 24 hosts.
func threeTierFabric() *fabric.Topology {
	return clos.NewTopology(clos.Options{Tiers: 3, Pods: 2, LeavesPerPod: 4, SpinesPerPod: 2, CoresPerRow: 2, NICsPerLeaf: hostsPerLeaf})
}

// ways is a demo whose paths are looked at.
type ways struct {
	t *testing.T
	*demo.Demo
	name string
}

// truth returns the kernels' own choice for every flow. A flow without a route is absent.
func (w *ways) truth() map[fabric.Flow]fabric.Path {
	w.t.Helper()
	g := w.Graph()
	walk, err := w.Lab().NewWalk()
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[fabric.Flow]fabric.Path{}
	for _, e := range w.Loop().PathStore().FlowsBetween("", "") {
		from, to := e.Endpoints()
		sport, dport := uint16(demo.SourcePort+e.Number), uint16(demo.StampPort)
		if e.Reply {
			sport, dport = dport, sport
		}
		if p, err := walk.KernelPath(w.t.Context(), g.ProbeAddress(from), g.ProbeAddress(to), udp, sport, dport); err == nil {
			out[e] = p
		}
	}
	return out
}

// compare holds what is bound against the truth.
func compare(truth map[fabric.Flow]fabric.Path, bound func(fabric.Flow) (fabric.Path, fabric.PathState)) (right, wrong, open int, first string) {
	for e, want := range truth {
		got, state := bound(e)
		switch {
		case state != fabric.PathValid:
			open++
			if first == "" {
				first = fmt.Sprintf("%s: %s", e, state)
			}
		case got.CanonicalKey() == want.CanonicalKey():
			right++
		default:
			wrong++
			first = fmt.Sprintf("%s: bound to %s, the kernels send it %s", e, got.CanonicalKey(), want.CanonicalKey())
		}
	}
	return right, wrong, open, first
}

func (w *ways) bound(e fabric.Flow) (fabric.Path, fabric.PathState) {
	b, _ := w.Loop().PathStore().CurrentBinding(e)
	return b.Path, b.State
}

// traced makes the nodes trace all of their flows now, a few nodes at a time.
func (w *ways) traced() map[fabric.Flow]fabric.Resolved {
	w.t.Helper()
	g := w.Graph()
	byNode := map[string][]string{}
	for _, e := range w.Loop().PathStore().FlowsBetween("", "") {
		from, _ := e.Endpoints()
		byNode[fabric.OwnerOf(from)] = append(byNode[fabric.OwnerOf(from)], e.String())
	}
	out := map[fabric.Flow]fabric.Resolved{}
	var mu sync.Mutex
	var tracing sync.WaitGroup
	slots := make(chan struct{}, 6)
	for node, edges := range byNode {
		tracing.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
			defer cancel()
			traces, err := demo.LabAgents(w.Lab()).TraceFlows(ctx, node, edges)
			if err != nil {
				w.t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for _, tr := range traces {
				e, err := fabric.ParseFlow(tr.Edge)
				if err != nil {
					w.t.Error(err)
					return
				}
				from, to := e.Endpoints()
				out[e] = fabric.ResolveTrace(g, from, to, tr)
			}
		})
	}
	tracing.Wait()
	if w.t.Failed() {
		w.t.FailNow()
	}
	return out
}

// TestPaths: in three tiers, what the switches see and what traces find is what the
// kernels do, for every flow; changes of routes are followed without a window that
// is bound to the wrong path; and switches that are silent make paths unknown, not
// wrong.
func TestPaths(t *testing.T) {
	need(t)
	const name = "e2ep"
	d := startDemo(t, demo.Options{Name: name, Topology: threeTierFabric(), Flows: 2, Cadence: 50 * time.Millisecond, NoTraces: true})
	w := &ways{t, d, name}
	t.Run("Agree", func(t *testing.T) { w.agree(t) })
	t.Run("Discover", func(t *testing.T) { w.discover(t) })
	t.Run("Change", func(t *testing.T) { w.changes(t) })
	t.Run("Silent", func(t *testing.T) { w.silent(t) })
}

// agree compares all flows, by tier.
func (w *ways) agree(t *testing.T) {
	truth := w.truth()
	if want := w.Loop().Snapshot().Expected; len(truth) != want {
		t.Fatalf("%d flows have a route, %d are expected", len(truth), want)
	}
	traces := w.traced()
	trace := func(e fabric.Flow) (fabric.Path, fabric.PathState) { return traces[e].Path, traces[e].State }
	tiers := map[int]map[fabric.Flow]fabric.Path{}
	for e, p := range truth {
		tier := w.Graph().PathTier(e.Src, e.Dst)
		if tiers[tier] == nil {
			tiers[tier] = map[fabric.Flow]fabric.Path{}
		}
		tiers[tier][e] = p
	}
	t.Logf("%d switches, %d hosts", len(w.Graph().Topo.Switches), len(w.Graph().Topo.Nodes))
	for _, tier := range slices.Sorted(maps.Keys(tiers)) {
		for _, source := range []struct {
			name  string
			bound func(fabric.Flow) (fabric.Path, fabric.PathState)
		}{{"sightings", w.bound}, {"traces", trace}} {
			right, wrong, open, first := compare(tiers[tier], source.bound)
			t.Logf("tier %d: %9s: %d of %d flows as the kernels send them, %d wrong, %d not known", tier, source.name, right, len(tiers[tier]), wrong, open)
			if right != len(tiers[tier]) {
				t.Errorf("tier %d, %s: %s", tier, source.name, first)
			}
		}
	}
}

// discover makes the topology from the reports of switches and nodes.
func (w *ways) discover(t *testing.T) {
	file := filepath.Join(t.TempDir(), "discovered.yaml")
	_, stderr, code := graylink(t, "topology", "discover", "--lab", w.name, "--output", file)
	if code != 0 {
		t.Fatalf("exit code %d:\n%s", code, stderr)
	}
	got := loadTopology(t, file)
	ids := func(topo *fabric.Topology) (all []string) {
		for _, l := range topo.Links {
			all = append(all, l.ID())
		}
		slices.Sort(all)
		return all
	}
	if have, want := ids(got), ids(w.Graph().Topo); !slices.Equal(have, want) {
		t.Errorf("%d links discovered, %d are there:\n%v\n%v", len(have), len(want), have, want)
	}
	t.Logf("discovered %d switches, %d nodes, %d of %d links", len(got.Switches), len(got.Nodes), len(got.Links), len(w.Graph().Topo.Links))
}

// changes changes routes in five ways while all flows are probed.
func (w *ways) changes(t *testing.T) {
	g := w.Graph()
	var link string
	for _, l := range g.Topo.Links {
		if !l.IsAccess() && g.SwitchTier(fabric.OwnerOf(l.A)) == 1 {
			link = l.ID()
			break
		}
	}
	leaf := w.aLeaf()
	routes := w.ecmp(t, leaf)
	for _, c := range []struct {
		name string
		do   func() error
	}{
		{"link down", func() error {
			_, err := w.Lab().AddFault(t.Context(), lab.Fault{Kind: lab.KindLinkDown, At: link})
			return err
		}},
		{"link up", func() error { return w.Lab().ClearFault(t.Context(), "") }},
		{"ECMP member removed", func() error { return w.replace(leaf, routes, func(hops []string) []string { return hops[:1] }) }},
		{"ECMP weights 1:8", func() error {
			return w.replace(leaf, routes, func(hops []string) []string { return []string{hops[0] + " weight 1", hops[1] + " weight 8"} })
		}},
		{"ECMP as before", func() error { return w.replace(leaf, routes, func(hops []string) []string { return hops }) }},
	} {
		if c.name == "ECMP weights 1:8" && !weightedRoutes {
			continue // make test-all has it: with members removed and added again, flows move as well
		}
		w.change(t, c.name, c.do)
	}
}

// period is a time in which the truth did not change.
type period struct {
	from, to time.Time // to zero: it lasts
	truth    map[fabric.Flow]fabric.Path
}

// change makes one change and holds every window against the truth of its time.
func (w *ways) change(t *testing.T, name string, do func() error) {
	t.Helper()
	periods := []period{{truth: w.truth()}}
	stop := make(chan struct{})
	first := make(chan map[fabric.Flow]map[string]time.Time)
	go func() { first <- w.watch(stop) }()
	next := func() {
		now := time.Now()
		periods = append(periods, period{from: now, truth: w.truth()})
	}
	periods[0].to = time.Now()
	if err := do(); err != nil {
		t.Fatal(err)
	}
	next()
	changed := periods[0].to
	if faults, err := w.Lab().ActiveFaults(); err == nil && len(faults) == 1 {
		// The other switches learn of it three seconds later.
		for deadline := time.Now().Add(15 * time.Second); !faults[0].Withdrawn && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			periods[len(periods)-1].to = time.Now()
			if faults, err = w.Lab().ActiveFaults(); err != nil {
				t.Fatal(err)
			}
		}
		changed = time.Now()
		next()
	}
	last := &periods[len(periods)-1]
	moved := 0
	for e, p := range last.truth {
		if p.CanonicalKey() != periods[0].truth[e].CanonicalKey() {
			moved++
		}
	}
	wrong, windows, after := 0, 0, []float64{}
	bound := map[fabric.Flow]bool{}
	seen := map[time.Time]bool{}
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		for e, p := range last.truth {
			if got, state := w.bound(e); !bound[e] && state == fabric.PathValid && got.CanonicalKey() == p.CanonicalKey() {
				bound[e] = true
			}
		}
		snap := w.Loop().Snapshot()
		if seen[snap.At] {
			continue
		}
		seen[snap.At] = true
		newest := time.Time{}
		for i := range snap.Edges {
			o := &snap.Edges[i].Obs
			start, end := o.Start, o.Start.Add(time.Duration(o.WindowNS))
			if end.After(newest) {
				newest = end
			}
			e, err := fabric.ParseFlow(o.Edge)
			if err != nil || o.PathState != fabric.PathValid || end.Before(periods[0].to) {
				continue
			}
			windows++
			if !could(periods, e, start, end, o.Path) {
				wrong++
				if wrong <= 3 {
					t.Logf("%s: window %s to %s after the change is bound to %s", e, start.Sub(changed), end.Sub(changed), o.Path.CanonicalKey())
				}
			}
		}
		if len(bound) == len(last.truth) && newest.Sub(changed) > 5*time.Second {
			break
		}
	}
	close(stop)
	for e, at := range <-first {
		if p := last.truth[e].CanonicalKey(); p != periods[0].truth[e].CanonicalKey() && !at[p].IsZero() {
			after = append(after, max(0, at[p].Sub(changed).Seconds()))
		}
	}
	t.Logf("%s: %d of %d flows moved; bound to the new path after %.1f s (median), %.1f s (last); %d of %d windows bound to a wrong path",
		name, moved, len(last.truth), percentile(after, 0.5), percentile(after, 1), wrong, windows)
	if moved == 0 {
		t.Errorf("%s: no flow moved", name)
	}
	if n := len(last.truth) - len(bound); n > 0 {
		t.Errorf("%s: %d flows are not bound to their new path", name, n)
	}
	if wrong > 0 {
		t.Errorf("%s: %d windows are bound to a wrong path", name, wrong)
	}
}

// watch notes when each flow was first bound to each of its paths.
func (w *ways) watch(stop chan struct{}) map[fabric.Flow]map[string]time.Time {
	first := map[fabric.Flow]map[string]time.Time{}
	edges := w.Loop().PathStore().FlowsBetween("", "")
	for {
		select {
		case <-stop:
			return first
		case <-time.After(20 * time.Millisecond):
		}
		now := time.Now()
		for _, e := range edges {
			p, state := w.bound(e)
			if state != fabric.PathValid {
				continue
			}
			if first[e] == nil {
				first[e] = map[string]time.Time{}
			}
			if k := p.CanonicalKey(); first[e][k].IsZero() {
				first[e][k] = now
			}
		}
	}
}

// could reports whether all packets of a window can have taken a path: no other path
// was the truth of a time in it. Between two periods either was; and while a flow's
// probes do not arrive, there are no replies that could have gone another way.
func could(periods []period, e fabric.Flow, start, end time.Time, p fabric.Path) bool {
	for i := range periods {
		q := &periods[i]
		if (i > 0 && !end.After(q.from)) || (!q.to.IsZero() && !start.Before(q.to)) {
			continue // not of its time
		}
		if _, arrives := q.truth[e.ProbeFlow()]; e.Reply && !arrives {
			continue
		}
		if truth, ok := q.truth[e]; ok && truth.CanonicalKey() != p.CanonicalKey() {
			return false
		}
	}
	return true
}

func (w *ways) aLeaf() string {
	for _, s := range w.Graph().Topo.Switches {
		if w.Graph().SwitchTier(s.Name) == 1 {
			return s.Name
		}
	}
	return ""
}

// ip runs ip in a switch's namespace.
func (w *ways) ip(sw string, args ...string) ([]byte, error) {
	cmd := w.Lab().Command(w.t.Context(), sw, append([]string{"ip"}, args...)...)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("ip %v in %s: %w", args, sw, err)
	}
	return out, nil
}

// ecmp lists the routes of a switch that have two next hops, those as "ip route"
// writes them.
func (w *ways) ecmp(t *testing.T, sw string) map[string][]string {
	t.Helper()
	out, err := w.ip(sw, "-j", "route", "show", "table", "main", "proto", "static")
	if err != nil {
		t.Fatal(err)
	}
	var routes []struct {
		Dst      string
		Nexthops []struct{ Gateway, Dev string }
	}
	if err := json.Unmarshal(out, &routes); err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for _, r := range routes {
		if len(r.Nexthops) != 2 {
			continue
		}
		for _, h := range r.Nexthops {
			found[r.Dst] = append(found[r.Dst], "nexthop via "+h.Gateway+" dev "+h.Dev+" onlink")
		}
	}
	if len(found) == 0 {
		t.Fatalf("%s has no route by two next hops", sw)
	}
	return found
}

// replace writes the routes of a switch anew, all at once.
func (w *ways) replace(sw string, routes map[string][]string, hops func([]string) []string) error {
	var batch strings.Builder
	for dst, have := range routes {
		fmt.Fprintf(&batch, "route replace %s proto static", dst)
		for _, h := range hops(have) {
			h, weight, ok := strings.Cut(h, " weight ")
			h, _ = strings.CutSuffix(h, " onlink")
			if ok {
				h += " weight " + weight
			}
			fmt.Fprintf(&batch, " %s onlink", h)
		}
		batch.WriteByte('\n')
	}
	cmd := w.Lab().Command(w.t.Context(), sw, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(batch.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("routes of %s: %w: %s", sw, err, out)
	}
	return nil
}

// silent takes a spine's agent away and makes it answer no trace.
func (w *ways) silent(t *testing.T) {
	sw := ""
	for _, s := range w.Graph().Topo.Switches {
		if w.Graph().SwitchTier(s.Name) == 2 {
			sw = s.Name
			break
		}
	}
	netns, err := w.Lab().NetnsOf(sw)
	if err != nil {
		t.Fatal(err)
	}
	pids, err := exec.Command("ip", "netns", "pids", netns).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range strings.Fields(string(pids)) {
		var n int
		if _, err := fmt.Sscan(pid, &n); err == nil {
			if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := w.Lab().AddFault(t.Context(), lab.Fault{Kind: lab.KindMute, At: sw}); err != nil {
		t.Fatal(err)
	}
	truth := w.truth()
	crossing := 0
	for e, p := range truth {
		from, to := e.Endpoints()
		if (fabric.Element{ID: sw, Kind: fabric.KindSwitch}).CrossedBy(p, from, to) {
			crossing++
		}
	}
	// Its table is believed for ten seconds after its last answer; then its flows are bound without it.
	ignored := func() bool {
		tables, _ := w.Loop().Sources().SwitchStates()
		return time.Since(tables[sw].AnsweredAt) > 12*time.Second
	}
	for end := time.Now().Add(time.Minute); !ignored(); time.Sleep(200 * time.Millisecond) {
		if _, wrong, _, first := compare(truth, w.bound); wrong > 0 {
			t.Fatalf("%d wrong: %s", wrong, first)
		}
		if time.Now().After(end) {
			t.Fatalf("the table of %s is still believed after a minute", sw)
		}
	}
	right, wrong, open, first := compare(truth, w.bound)
	t.Logf("%s without agent: %d of %d flows cross it; by sightings %d right, %d wrong, %d not known", sw, crossing, len(truth), right, wrong, open)
	if wrong > 0 {
		t.Error(first)
	}
	if open > crossing {
		t.Errorf("%d flows are not known, %d cross the silent switch: %s", open, crossing, first)
	}
	traces := w.traced()
	right, wrong, open, first = compare(truth, func(e fabric.Flow) (fabric.Path, fabric.PathState) { return traces[e].Path, traces[e].State })
	t.Logf("%s mute: by traces %d right, %d wrong, %d not known", sw, right, wrong, open)
	if wrong > 0 {
		t.Error(first)
	}
	if open > crossing {
		t.Errorf("%d flows are not known, %d cross the mute switch: %s", open, crossing, first)
	}
}

// slowMiscable selects a slower variant: by traces alone the test takes half a minute more.
var slowMiscable = flag.Bool("paths.miscable-by-traces", false, "TestDemoMiscable also with traces alone")

// TestDemoMiscable: two swapped cables are named, with what the switches see and
// with traces alone.
func TestDemoMiscable(t *testing.T) {
	need(t)
	all := []string{"--sightings-only"}
	if *slowMiscable {
		all = append(all, "--trace-only")
	}
	for _, how := range all {
		stdout, stderr, _ := graylink(t, "demo", "--name", "e2e", "--web.listen-address", "127.0.0.1:0", "--format", "json", "--fault", "miscable", how)
		out := outcomes(t, stdout)
		if len(out) != 1 {
			t.Fatalf("%s: %d outcomes, want 1:\n%s", how, len(out), stderr)
		}
		if o := out[0]; !o.ElementMatch || !o.ScenarioMatch {
			t.Errorf("%s: %+v", how, o.Verdict)
		} else {
			t.Logf("%s: %s, after %.1f s", how, o.Verdict.Summary, *o.SecondsToVerdict)
		}
		clean(t, "e2e")
	}
}
