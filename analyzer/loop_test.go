package analyzer

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/internal/fabric"
)

// rig runs a Loop on a world. It answers the loop's PromQL from the world's flows, and its trace requests from
// the world's paths. The test sets the time.
type rig struct {
	t      *testing.T
	w      *world
	loop   *Loop
	now    time.Time
	names  map[string]string // query text -> name
	frame  map[fabric.Flow]*fabric.Observation
	silent map[string]bool                     // nodes whose agent does not answer
	late   map[string]bool                     // nodes whose probe loop is starved
	blind  bool                                // no trace is answered
	steps  map[string]float64                  // that nodes count, by NIC
	states map[string]string                   // of clocks, by NIC
	bursts bool                                // what is lost is lost in every other second
	rules  func(series string) (recorded bool) // nil: all are
	asked  func(name string, only func(fabric.Flow) bool)
}

func newRig(t *testing.T, seed uint64) *rig { return newRigOf(t, clos(t, 2, 4, 2), seed) }

func newRigOf(t *testing.T, g *fabric.Graph, seed uint64) *rig {
	r := &rig{t: t, w: newWorld(g, seed), now: time.Unix(100000, 0).UTC(), names: map[string]string{}, silent: map[string]bool{}, late: map[string]bool{}}
	s := evidence.DefaultSettings()
	for name, q := range s.WindowQueries() {
		r.names[q] = name
	}
	for name, q := range s.OverviewQueries() {
		r.names[q] = name
	}
	r.loop = NewLoop(LoopOptions{Graph: r.w.g, DB: r, Agents: r, Settings: s, Expected: len(r.w.edges)})
	return r
}

func (r *rig) QueryInstant(_ context.Context, query string, _ time.Time) ([]evidence.Sample, error) {
	if strings.Contains(query, "fabric_switch_port_neighbor_info") {
		return nil, nil // there is no agent
	}
	var out []evidence.Sample
	query, only := unrestricted(r.t, query)
	name := r.names[query]
	if name == "" {
		r.t.Errorf("unknown query %s", query)
	}
	if r.asked != nil {
		r.asked(name, only)
	}
	out = append(out, r.overview(name)...)
	for _, nic := range r.w.g.NICIDs() {
		node := fabric.OwnerOf(nic)
		switch name {
		case "age":
			age := 0.4
			if r.silent[node] {
				age = 5
			}
			out = append(out, evidence.Sample{Labels: map[string]string{"nic": nic}, Value: age})
		case "stalled":
			v := 0.0
			if r.late[node] {
				v = 2
			}
			out = append(out, evidence.Sample{Labels: map[string]string{"nic": nic}, Value: v})
		case "clock":
			out = append(out, evidence.Sample{Labels: map[string]string{"clock": nic}, Value: 1e-6})
		case "steps":
			if v, ok := r.steps[nic]; ok {
				out = append(out, evidence.Sample{Labels: map[string]string{"clock": nic}, Value: v})
			}
		case "state":
			if v, ok := r.states[nic]; ok {
				out = append(out, evidence.Sample{Labels: map[string]string{"clock": nic, "state": v}, Value: 1})
			}
		}
	}
	for e, o := range r.frame {
		if !only(e) {
			continue
		}
		put := func(v float64) {
			labels := map[string]string{"src": e.Src, "dst": e.Dst, "flow": strconv.Itoa(e.Number), "tier": strconv.Itoa(o.Tier), "plane": o.Plane, "direction": "forward", "timestamp": "kernel"}
			if e.Reply {
				labels["direction"] = "reverse"
			}
			out = append(out, evidence.Sample{Labels: labels, Value: v})
		}
		back := r.frame[fabric.Flow{Src: e.Src, Dst: e.Dst, Reply: true}]
		got, returned := float64(o.Sent-o.Lost), 0.0
		if !e.Reply {
			returned = float64(back.Sent - back.Lost)
		}
		blackout := !e.Reply && returned == 0
		switch name {
		case "sent":
			put(float64(o.Sent))
		case "lost":
			if !e.Reply && blackout || e.Reply && o.Lost == o.Sent {
				put(0) // nothing came to account for it
			} else {
				put(float64(o.Lost))
			}
		case "back":
			if !e.Reply {
				put(returned)
			}
		case "hardSent":
			if !e.Reply {
				put(float64(o.Sent) / 2)
			}
		case "hardGot":
			if !e.Reply {
				put(got / 2)
			}
		case "hardBack":
			if second := r.now.Unix() % 2; !e.Reply && r.bursts {
				put(float64(o.Sent)/2 - float64(second)*(float64(o.Sent)-returned))
			} else if !e.Reply {
				put(returned / 2)
			}
		case "count":
			if o.OWD != nil {
				put(float64(o.Sent - o.Lost))
			}
		case "p50":
			if o.OWD != nil {
				put(float64(*o.OWD.P50) / 1e9)
			}
		case "p99":
			if o.OWD != nil {
				put(float64(*o.OWD.P99) / 1e9)
			}
		}
	}
	return out, nil
}

func (r *rig) TracedPaths(context.Context, string) ([]fabric.Trace, error) { return nil, nil }

func (r *rig) TraceFlows(_ context.Context, _ string, edges []string) ([]fabric.Trace, error) {
	var out []fabric.Trace
	if r.blind {
		return nil, nil
	}
	for _, s := range edges {
		e, err := fabric.ParseFlow(s)
		if err != nil {
			return nil, err
		}
		out = append(out, r.trace(e))
	}
	return out, nil
}

// trace answers hop by hop until the flow's packets are lost.
func (r *rig) trace(e fabric.Flow) fabric.Trace {
	from, to := e.Endpoints()
	t := fabric.Trace{Edge: e.String(), State: fabric.PathValid, TracedAt: r.now, Reached: !e.Reply}
	p := r.w.paths[e]
	dirs := p.LinkDirections(from, to)
	for i := range p {
		hop := fabric.RawHop{TTL: i + 1}
		for _, d := range dirs[:i+1] {
			if r.w.loss[d] >= 1 {
				t.Reached, t.State = false, fabric.PathUnknown
			}
		}
		if t.State == fabric.PathValid {
			hop.Address = r.address(dirs[i].To)
		}
		t.Hops = append(t.Hops, hop)
	}
	return t
}

func (r *rig) address(end string) netip.Addr {
	l := r.w.g.LinkAt(end)
	if l.A == end {
		return l.AAddress.Addr()
	}
	return l.BAddress.Addr()
}

// step lets a second pass.
func (r *rig) step() Snapshot {
	r.t.Helper()
	r.now = r.now.Add(time.Second)
	r.frame = map[fabric.Flow]*fabric.Observation{}
	for _, o := range r.w.observe(0) {
		e, err := o.ParseFlow()
		if err != nil {
			r.t.Fatal(err)
		}
		r.frame[e] = o
	}
	if err := r.loop.RunCycle(r.t.Context(), r.now); err != nil {
		r.t.Fatal(err)
	}
	for {
		select {
		case a := <-r.loop.traceRequests:
			var names []string
			for _, e := range a.edges {
				names = append(names, e.String())
				delete(r.loop.beingTraced, e)
			}
			traces, err := r.TraceFlows(r.t.Context(), a.node, names)
			if err != nil {
				r.t.Fatal(err)
			}
			r.loop.storeTraces(traces)
			continue
		case a := <-r.loop.causeRequests:
			r.loop.answerCauseRequest(r.t.Context(), a)
			continue
		default:
		}
		return r.loop.Snapshot()
	}
}

// until steps until cond holds, at most n times, and returns how many it took.
func (r *rig) until(n int, what string, cond func(Snapshot) bool) int {
	r.t.Helper()
	for i := 1; i <= n; i++ {
		if cond(r.step()) {
			return i
		}
	}
	r.t.Fatalf("not within %d cycles: %s; state %+v", n, what, r.loop.Snapshot().Report.Edges)
	return 0
}

func (r *rig) learn() {
	r.t.Helper()
	for e := range r.w.paths {
		r.loop.storeTraces([]fabric.Trace{r.trace(e)})
	}
	r.until(20, "baselines and innocence", func(s Snapshot) bool {
		return s.Baselines == len(r.w.edges) && s.Report.State == fabric.Innocent
	})
}

func openVerdicts(s Snapshot) []string {
	var out []string
	for _, v := range s.Report.Verdicts {
		out = append(out, v.Element.ID+" "+v.Direction+" "+string(v.Scenario))
	}
	return out
}

func TestLoopNothingIsSaidBeforeBaselines(t *testing.T) {
	r := newRig(t, 1)
	for range 5 {
		if s := r.step(); s.Report.State != fabric.InsufficientEvidence {
			t.Fatalf("state %s without a baseline", s.Report.State)
		}
	}
}

func TestLoopDelay(t *testing.T) {
	r := newRig(t, 1)
	r.learn()
	d := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	r.w.delay[d] = 2e6
	took := r.until(8, "a verdict", func(s Snapshot) bool { return s.Report.State == fabric.Suspect && len(s.Report.Verdicts) > 0 })
	if took < confirmOf {
		t.Errorf("verdict after %d windows, before %d confirmed it", took, confirmOf)
	}
	s := r.loop.Snapshot()
	if v := openVerdicts(s); len(v) != 1 || v[0] != d.LinkID()+" "+d.String()+" corridor" {
		t.Fatalf("verdicts %q", v)
	}
	id := s.Report.Verdicts[0].ID
	for range 10 {
		s = r.step()
	}
	if len(s.Incidents) != 1 || s.Incidents[0].ID != id {
		t.Errorf("a verdict that lasts became %d incidents", len(s.Incidents))
	}
	delete(r.w.delay, d)
	r.until(12, "the all-clear", func(s Snapshot) bool { return len(s.Report.Verdicts) == 0 })
	r.until(5, "innocence", func(s Snapshot) bool { return s.Report.State == fabric.Innocent })
	if in := r.loop.Snapshot().Incidents[0]; in.Open || in.Cleared == nil || in.Closed == "" {
		t.Errorf("closed incident %+v", in)
	}
}

// TestLoopFlap: a fifth of the packets is lost in every window of two seconds, and all
// of that in one of the two.
func TestLoopFlap(t *testing.T) {
	for _, bursts := range []bool{true, false} {
		r := newRig(t, 1)
		r.learn()
		d := fabric.Direction{From: "spine1:dn1", To: "leaf1:up1"}
		r.w.loss[d], r.bursts = 0.2, bursts
		r.until(8, "a verdict", func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 })
		for range 4 {
			r.step()
		}
		want := d.LinkID() + " " + d.String() + " corridor"
		if bursts {
			want = d.LinkID() + " " + d.String() + " flap"
		}
		if v := openVerdicts(r.loop.Snapshot()); len(v) != 1 || v[0] != want {
			t.Errorf("verdicts %q, want %q", v, want)
		}
		r.w.loss[d] = 0
		took := r.until(20, "the all-clear", func(s Snapshot) bool { return len(s.Report.Verdicts) == 0 })
		if bursts && took < spanningClearAfter {
			t.Errorf("cleared after %d cycles: it may have paused", took)
		}
	}
}

// TestLoopWaitsForDistinguishingFlows: while the other leaves are silent, the two links
// from leaf1 over a spine to leaf2 are crossed by the same flows.
func TestLoopWaitsForDistinguishingFlows(t *testing.T) {
	const asks = "the verdict waits for the flows that could distinguish the elements"
	d := fabric.Direction{From: "spine1:dn2", To: "leaf2:up1"}
	begin := func(t *testing.T) *rig {
		r := newRig(t, 5)
		r.learn()
		r.w.delay[d] = 2e6
		r.others(true)
		return r
	}
	right := d.LinkID() + " " + d.String() + " corridor"
	open := func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 }
	t.Run("they come back in time", func(t *testing.T) {
		r := begin(t)
		for range confirmOf + openAfter + 1 {
			if s := r.step(); open(s) {
				t.Fatalf("%q: %s", openVerdicts(s), asks)
			}
		}
		r.others(false)
		r.until(6, "a verdict", open)
		if v := openVerdicts(r.loop.Snapshot()); len(v) != 1 || v[0] != right {
			t.Errorf("verdicts %q, want %q", v, right)
		}
	})
	t.Run("they come back too late", func(t *testing.T) {
		r := begin(t)
		if took := r.until(confirmOf+distinguishCycles+1, "a verdict", open); took < distinguishCycles {
			t.Errorf("after %d cycles: %s", took, asks)
		}
		s := r.loop.Snapshot()
		first := s.Report.Verdicts[0]
		link := fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink}
		if first.Element == link || !slices.Contains(first.Equivalent, link) {
			t.Fatalf("%q with equivalents %v, want another link, and %v among them", openVerdicts(s), first.Equivalent, link)
		}
		r.others(false)
		r.until(6, "the right name", func(s Snapshot) bool { v := openVerdicts(s); return len(v) == 1 && v[0] == right })
		s = r.loop.Snapshot()
		if s.Report.Verdicts[0].FirstSeen != first.FirstSeen || !strings.Contains(s.Incidents[1].Closed, "replaced") {
			t.Errorf("incidents %+v", s.Incidents)
		}
	})
}

// others makes all agents but those under leaf1 and leaf2 silent, or speak again.
func (r *rig) others(silent bool) {
	for _, nic := range r.w.g.NICIDs() {
		if leaf := fabric.OwnerOf(r.w.g.PeerOf(nic)); leaf != "leaf1" && leaf != "leaf2" {
			r.silent[fabric.OwnerOf(nic)] = silent
		}
	}
}

func TestLoopGlitchIsNoVerdict(t *testing.T) {
	r := newRig(t, 2)
	r.learn()
	d := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	for range 5 {
		r.w.delay[d] = 2e6
		r.step()
		r.step()
		delete(r.w.delay, d)
		for range 4 {
			if s := r.step(); len(s.Incidents) != 0 {
				t.Fatalf("two bad windows made %q", openVerdicts(s))
			}
		}
	}
}

// TestLoopLinkDown: all that crosses a link dies, is routed around three
// seconds later, and the verdict must stand until the link is used again.
func TestLoopLinkDown(t *testing.T) {
	r := newRig(t, 3)
	r.learn()
	d := fabric.Direction{From: "spine1:dn2", To: "leaf2:up1"}
	el := fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink}
	old := map[fabric.Flow]fabric.Path{}
	r.w.loss[d] = 1
	detour := func(e fabric.Flow) {
		from, to := e.Endpoints()
		for _, p := range r.w.g.ShortestPaths(from, to, 16) {
			if !el.CrossedBy(p, from, to) {
				old[e], r.w.paths[e] = r.w.paths[e], p
				return
			}
		}
	}
	// The switch at the link's end reroutes at once, the others three seconds later.
	for e, p := range r.w.paths {
		from, to := e.Endpoints()
		if el.CrossedBy(p, from, to) && len(p) > 1 && p[0].Switch == "leaf2" {
			detour(e)
		}
	}
	took := 0
	for range 3 {
		took++
		if s := r.step(); len(s.Report.Verdicts) > 0 {
			break
		}
	}
	for e, p := range r.w.paths {
		from, to := e.Endpoints()
		if el.CrossedBy(p, from, to) {
			detour(e)
		}
	}
	if len(r.loop.Snapshot().Report.Verdicts) == 0 {
		took += r.until(4, "a verdict", func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	}
	if took > 5 {
		t.Errorf("verdict after %d s, a hard failure's is due within 5", took)
	}
	for range 40 {
		s := r.step()
		if v := openVerdicts(s); len(v) != 1 || v[0] != d.LinkID()+" "+d.String()+" hard_failure" {
			t.Fatalf("verdicts while the link is unused: %q", v)
		}
	}
	if in := r.loop.Snapshot().Incidents[0]; in.Held == "" {
		t.Error("nothing says why the verdict is held")
	}
	delete(r.w.loss, d)
	for e, p := range old {
		r.w.paths[e] = p
	}
	r.until(15, "the all-clear after the link is used again", func(s Snapshot) bool { return len(s.Report.Verdicts) == 0 })
}

// TestLoopOldPathsClearNothing: flows that look healthy by a path traced before
// the failure have been routed around it; they do not clear it.
func TestLoopOldPathsClearNothing(t *testing.T) {
	r := newRig(t, 3)
	r.learn()
	d := fabric.Direction{From: "spine1:dn2", To: "leaf2:up1"}
	r.w.loss[d] = 1
	r.until(5, "a verdict", func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	r.blind = true
	delete(r.w.loss, d) // as the probes see it: all of them arrive again
	for range 30 {
		if s := r.step(); len(s.Report.Verdicts) != 1 {
			t.Fatal("cleared by paths that were never traced again")
		}
	}
	r.blind = false
	r.until(12, "the all-clear", func(s Snapshot) bool { return len(s.Report.Verdicts) == 0 })
}

func TestLoopBlackholeStays(t *testing.T) {
	r := newRig(t, 4)
	r.learn()
	d := fabric.Direction{From: "leaf3:up2", To: "spine2:dn3"}
	r.w.loss[d] = 1
	r.until(5, "a verdict", func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	for range 20 {
		if v := openVerdicts(r.step()); len(v) != 1 || v[0] != d.LinkID()+" "+d.String()+" hard_failure" {
			t.Fatalf("verdicts %q", v)
		}
	}
	delete(r.w.loss, d)
	r.until(15, "the all-clear", func(s Snapshot) bool { return len(s.Report.Verdicts) == 0 })
	if n := len(r.loop.Snapshot().Incidents); n != 1 {
		t.Errorf("%d incidents from one fault", n)
	}
}

// TestLoopHostTrouble: a node that is starved or silent never makes a verdict
// against the fabric, however bad its numbers are.
func TestLoopHostTrouble(t *testing.T) {
	for name, break_ := range map[string]func(r *rig){
		"starved": func(r *rig) { r.late["h3"] = true },
		"silent":  func(r *rig) { r.silent["h3"] = true },
	} {
		r := newRig(t, 5)
		r.learn()
		break_(r)
		in := fabric.Direction{From: r.w.g.PeerOf("h3/eth1"), To: "h3/eth1"}
		r.w.loss[in], r.w.delay[in.Reverse()] = 1, 9e6
		for range 15 {
			if s := r.step(); len(s.Incidents) != 0 || s.Hosts["h3"] == "" {
				t.Fatalf("%s: verdicts %q, hosts %v", name, openVerdicts(s), s.Hosts)
			}
		}
	}
}

// TestHardLossIsTakenBack: hard loss is remembered when the loss has gone, and
// forgotten when the host turns out to be starved.
func TestHardLossIsTakenBack(t *testing.T) {
	e := fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1"}
	lossy := judge.Finding{Flow: e, Obs: &fabric.Observation{Sent: 100, Lost: 100}, Condition: judge.Degraded, Lossy: true, Hard: true}
	clean := judge.Finding{Flow: e, Obs: &fabric.Observation{Sent: 100}, Condition: judge.Healthy}
	starved := judge.Finding{Flow: e, Obs: &fabric.Observation{Sent: 100, HostSuspect: true}, HostSuspect: true}
	for name, tt := range map[string]struct {
		last judge.Finding
		want judge.Condition
	}{"routed around": {clean, judge.Degraded}, "starved": {starved, judge.Undecided}} {
		l := NewLoop(LoopOptions{})
		var out []judge.Finding
		for _, f := range []judge.Finding{lossy, lossy, tt.last} {
			l.cycle++
			out, _ = l.confirmFindings([]judge.Finding{f})
		}
		if len(out) != 1 || out[0].Condition != tt.want {
			t.Errorf("%s: %+v", name, out)
		}
	}
}

// TestHardLossThatBeganInASecond: the second in whose course the answers ended is the first of
// two; what is missing in it is no loss yet, but no health either.
func TestHardLossThatBeganInASecond(t *testing.T) {
	e := fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1"}
	window := func(lost, lately uint64) judge.Finding {
		f := judge.Finding{Flow: e, Obs: &fabric.Observation{Sent: 200, Lost: lost, LastSecond: &fabric.Count{Sent: 100, Lost: lately}}, Condition: judge.Healthy}
		if lost > 0 {
			f.Condition, f.Lossy = judge.Degraded, true
		}
		return f
	}
	healthy, undecided, degraded := judge.Healthy, judge.Undecided, judge.Degraded
	for name, tt := range map[string]struct {
		windows []judge.Finding
		want    []judge.Condition
	}{
		"at once":            {[]judge.Finding{window(0, 0), window(0, 40), window(200, 100)}, []judge.Condition{healthy, undecided, degraded}},
		"hardly any missing": {[]judge.Finding{window(0, 0), window(0, 4), window(200, 100)}, []judge.Condition{healthy, healthy, undecided}},
		"they came back":     {[]judge.Finding{window(0, 0), window(0, 40), window(0, 0)}, []judge.Condition{healthy, undecided, healthy}},
		"a burst":            {[]judge.Finding{window(0, 0), window(0, 10), window(20, 0)}, []judge.Condition{healthy, undecided, undecided}},
	} {
		l := NewLoop(LoopOptions{})
		for i, f := range tt.windows {
			l.cycle++
			if out, _ := l.confirmFindings([]judge.Finding{f}); out[0].Condition != tt.want[i] {
				t.Errorf("%s, window %d: condition %v, want %v", name, i, out[0].Condition, tt.want[i])
			}
		}
	}
}

// TestHardLossKeepsItsPath: a flow that goes on losing everything while its path
// is being traced anew stands for the path it had.
func TestHardLossKeepsItsPath(t *testing.T) {
	e := fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1"}
	was := fabric.Path{{Switch: "leaf1", In: "dn1", Out: "up1"}}
	with := func(p fabric.Path) judge.Finding {
		return judge.Finding{Flow: e, Obs: &fabric.Observation{Sent: 100, Lost: 100, Path: p}, Condition: judge.Degraded, Lossy: true, Hard: true}
	}
	l := NewLoop(LoopOptions{})
	for i, p := range []fabric.Path{was, was, nil, nil} {
		l.cycle++
		out, _ := l.confirmFindings([]judge.Finding{with(p)})
		if i > 0 && (len(out) != 1 || out[0].Condition != judge.Degraded || out[0].Obs.Path.CanonicalKey() != was.CanonicalKey()) {
			t.Errorf("window %d: %+v", i, out)
		}
	}
}

// TestWhatLostEverythingWentTheOldWay: between two traces a flow may have taken
// either path, unless all it sent was lost: the new one carries packets.
func TestWhatLostEverythingWentTheOldWay(t *testing.T) {
	r := newRig(t, 8)
	e := fabric.Flow{Src: "h1/eth1", Dst: "h8/eth1"}
	ways := r.w.g.ShortestPaths("h1/eth1", "h8/eth1", 2)
	at := r.now
	for i, p := range ways {
		r.w.paths[e], r.now = p, at.Add(time.Duration(i)*4*time.Second)
		r.loop.storeTraces([]fabric.Trace{r.trace(e)})
	}
	for _, tt := range []struct {
		lost  uint64
		state fabric.PathState
		path  string
	}{{100, fabric.PathStale, ways[0].CanonicalKey()}, {50, fabric.PathUnknown, ""}, {0, fabric.PathUnknown, ""}} {
		o := &fabric.Observation{Edge: e.String(), Src: e.Src, Dst: e.Dst, Start: at.Add(time.Second), WindowNS: 1e9, Sent: 100, Lost: tt.lost}
		r.loop.bindPath(o)
		if o.PathState != tt.state || o.Path.CanonicalKey() != tt.path || (tt.path == "") != (len(o.Paths) == 2) {
			t.Errorf("%d of 100 lost: %s %q, %d candidates; want %s %q", tt.lost, o.PathState, o.Path.CanonicalKey(), len(o.Paths), tt.state, tt.path)
		}
	}
}

// TestLoopClockStep: by the flows alone a clock that jumps is named, while it is
// off and until it has been steady for a while.
func TestLoopClockStep(t *testing.T) {
	r := newRig(t, 6)
	r.learn()
	was := *r.loop.flowRecords[fabric.Flow{Src: "h2/eth1", Dst: "h5/eth1"}].baseline.P50
	r.w.clock["h2/eth1"] = 5e6
	if took := r.until(8, "a verdict", func(s Snapshot) bool { return len(s.Incidents) > 0 }); took != openAfter {
		t.Errorf("verdict after %d windows, want %d", took, openAfter)
	}
	for range 30 {
		s := r.step()
		if v := openVerdicts(s); len(v) != 1 || v[0] != "h2/eth1  clock" || s.Report.Verdicts[0].Kind != fabric.KindClock {
			t.Fatalf("verdicts %q", v)
		}
	}
	s := r.loop.Snapshot()
	if text := s.Report.Verdicts[0].Summary; !strings.Contains(text, "The clock of h2/eth1 jumped ahead by about 5 ms") {
		t.Errorf("summary %q", text)
	}
	if s.Report.Edges.ClockSuspect != 28 || s.Report.Edges.Degraded != 0 {
		t.Errorf("edges %+v", s.Report.Edges)
	}
	delete(r.w.clock, "h2/eth1")
	took := r.until(20, "the all-clear", func(s Snapshot) bool { return len(s.Report.Verdicts) == 0 })
	if took < 10 || took > 11 {
		t.Errorf("all-clear after %d s, want 10", took)
	}
	r.until(5, "innocence", func(s Snapshot) bool { return s.Report.State == fabric.Innocent })
	if len(r.loop.Snapshot().Incidents) != 1 {
		t.Errorf("incidents %+v", r.loop.Snapshot().Incidents)
	}
	if is := *r.loop.flowRecords[fabric.Flow{Src: "h2/eth1", Dst: "h5/eth1"}].baseline.P50; is-was > 1000 || was-is > 1000 {
		t.Errorf("the clock's step moved a baseline from %d to %d ns", was, is)
	}
}

func TestLoopClockDrift(t *testing.T) {
	r := newRig(t, 6)
	r.learn()
	for range 12 {
		r.w.clock["h2/eth1"] -= 50e3
		r.step()
	}
	s := r.loop.Snapshot()
	if v := openVerdicts(s); len(v) != 1 || v[0] != "h2/eth1  clock" || !strings.Contains(s.Report.Verdicts[0].Summary, "ppm slower than before") {
		t.Errorf("verdicts %q: %+v", v, s.Report.Verdicts)
	}
}

// TestLoopClockCounts: what a node counts names its clock though the flows are
// measured right again.
func TestLoopClockCounts(t *testing.T) {
	r := newRig(t, 6)
	r.learn()
	r.steps = map[string]float64{"h2/eth1": 3, "h3/eth1": 1}
	r.step()
	r.steps["h2/eth1"] = 4
	if took := r.until(4, "a verdict", func(s Snapshot) bool { return len(s.Incidents) > 0 }); took != openAfter {
		t.Errorf("verdict after %d windows, want %d", took, openAfter)
	}
	if v := openVerdicts(r.loop.Snapshot()); len(v) != 1 || v[0] != "h2/eth1  clock" {
		t.Fatalf("verdicts %q", v)
	}
	if took := r.until(20, "the all-clear", func(s Snapshot) bool { return len(s.Report.Verdicts) == 0 }); took != 10 {
		t.Errorf("all-clear after %d s, want 10", took)
	}
}

// TestLoopClockCountsLater: a node that counts a change which the flows showed before gives the summary. The
// affected flows stay.
func TestLoopClockCountsLater(t *testing.T) {
	r := newRig(t, 6)
	r.learn()
	r.steps = map[string]float64{"h2/eth1": 3}
	r.step()
	r.w.clock["h2/eth1"] = 5e6
	r.until(8, "a verdict", func(s Snapshot) bool { return len(s.Incidents) > 0 })
	delete(r.w.clock, "h2/eth1")
	r.steps["h2/eth1"] = 4
	r.step()
	in := r.loop.Snapshot().Incidents[0]
	if !strings.Contains(in.Summary, "its node recorded the change") || in.Evidence.ExplainedEdges != 28 || in.BlastRadius.Edges != 28 || len(in.Edges) != 28 {
		t.Errorf("%q, %+v", in.Summary, in.Evidence)
	}
}

// TestLoopADelayDragsAClock: a node counts a step because its NIC became slow. Clocks are
// innocent, and the NIC is named.
func TestLoopADelayDragsAClock(t *testing.T) {
	r := newRig(t, 6)
	r.learn()
	r.steps = map[string]float64{"h2/eth1": 3}
	r.step()
	d := fabric.Direction{From: "leaf1:dn2", To: "h2/eth1"}
	named := map[string]bool{}
	cycles := func(n int) {
		for range n {
			for _, v := range openVerdicts(r.step()) {
				named[v] = true
			}
		}
	}
	r.w.delay[d], r.w.clock["h2/eth1"] = 2e6, 1e6
	cycles(2)
	r.steps["h2/eth1"] = 4
	cycles(10)
	r.w.clock["h2/eth1"] = 0
	cycles(10)
	if named["h2/eth1  clock"] || !named["h2/eth1 leaf1:dn2->h2/eth1 bad_nic"] {
		t.Errorf("verdicts %v", named)
	}
	clear(named)
	r.w.delay[d], r.w.clock["h2/eth1"] = 0, -1e6
	cycles(2)
	r.steps["h2/eth1"] = 5
	cycles(2)
	r.w.clock["h2/eth1"] = 0
	cycles(20)
	for v := range named {
		if v != "h2/eth1 leaf1:dn2->h2/eth1 bad_nic" {
			t.Errorf("verdict %q when it is over", v)
		}
	}
}

// TestLoopAClockVerdictDoesNotWait: flows elsewhere that are not confirmed yet say
// nothing about a clock.
func TestLoopAClockVerdictDoesNotWait(t *testing.T) {
	r := newRig(t, 6)
	r.learn()
	r.w.clock["h2/eth1"] = 5e6
	r.w.slow["leaf4"] = 2e6
	r.step()
	if v := openVerdicts(r.step()); len(v) != 1 || v[0] != "h2/eth1  clock" {
		t.Errorf("verdicts %q in the second window", v)
	}
}

// TestLoopClocksMakeNoDelay: with an unrelated clock no delay counts. Losses count, and the sum of both
// directions has no direction.
func TestLoopClocksMakeNoDelay(t *testing.T) {
	d := fabric.Direction{From: "leaf1:dn2", To: "h2/eth1"}
	for name, doubt := range map[string]func(r *rig){
		"converging": func(r *rig) { r.states = map[string]string{"h2/eth1": "converging"} },
		"lost":       func(r *rig) { r.states = map[string]string{"h2/eth1": "lost"} },
	} {
		r := newRig(t, 6)
		r.learn()
		doubt(r)
		r.w.clock["h2/eth1"] = 2e6
		for range 15 {
			if s := r.step(); len(s.Incidents) != 0 || s.Report.Edges.ClockSuspect != 28 {
				t.Fatalf("%s: verdicts %q, edges %+v", name, openVerdicts(s), s.Report.Edges)
			}
		}
		r.w.loss[d] = 0.2
		r.until(10, "a verdict about the loss", func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 })
		if v := r.loop.Snapshot().Report.Verdicts; len(v) != 1 || v[0].Element.ID != "h2/eth1" || v[0].Kind != fabric.KindNIC || v[0].Symptom.AddedDelayNS != 0 {
			t.Errorf("%s: verdicts %+v", name, v)
		}
		r = newRig(t, 6)
		r.learn()
		doubt(r)
		r.w.clock["h2/eth1"], r.w.delay[d] = 2e6, 4e6
		r.until(10, "a verdict by the sums", func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 })
		if v := openVerdicts(r.loop.Snapshot()); len(v) != 1 || v[0] != "h2/eth1  bad_nic" {
			t.Errorf("%s: verdicts %q by the sums", name, v)
		}
	}
	for _, state := range []string{"locked", "holdover"} {
		r := newRig(t, 6)
		r.learn()
		r.states = map[string]string{"h2/eth1": state}
		r.w.delay[d] = 2e6
		r.until(10, "a verdict", func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	}
}

// TestLoopIncidentDoesNotTeach: a fault of a minute must not become normal.
func TestLoopIncidentDoesNotTeach(t *testing.T) {
	r := newRig(t, 7)
	r.learn()
	r.w.slow["spine1"] = 1e6
	r.until(8, "a verdict", func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	for range 150 {
		if v := openVerdicts(r.step()); len(v) != 1 || v[0] != "spine1  hot_spine" {
			t.Fatalf("verdicts %q", v)
		}
	}
}

// A delay measured with inexact clocks does not become normal.
func TestLoopLearnsNothingFromVagueClocks(t *testing.T) {
	r := newRig(t, 1)
	r.learn()
	e := r.w.edges[0]
	p50 := int64(5000)
	obs := fabric.Observation{Edge: e.String(), OWD: &fabric.Quantiles{P50: &p50}}
	f := judge.Finding{Flow: e, Obs: &obs, Condition: judge.Healthy}
	for bound, want := range map[int64]int{maxLearnBound / 2: 1, maxLearnBound + 1: 0} {
		m := r.loop.recordFor(e)
		m.p50 = m.p50[:learnWindows]
		obs.ClockErrorNS = &bound
		r.loop.learnBaselines([]judge.Finding{f})
		if got := len(m.p50) - learnWindows; got != want {
			t.Errorf("with a bound of %d ns %d windows were learnt from, want %d", bound, got, want)
		}
	}
}
