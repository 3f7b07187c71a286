package audit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
)

var start = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// site is a fabric whose flows are made up by a model of links that knows nothing of the checks.
type site struct {
	g       *fabric.Graph
	rng     *rand.Rand
	windows int
	perFlow uint64 // probes of a flow in a window
	sparse  int    // one of so many pairs of NICs is probed
	loss    map[fabric.Direction]float64
	added   map[fabric.Direction]time.Duration
	marked  map[fabric.Direction]float64
	missing map[string]bool // links
	// polarised are switches that send everything by their first uplink.
	polarised map[string]bool
	stalled   map[string]bool // nodes
	steps     map[string]bool // NICs whose clock steps
	noAgent   map[string]bool // nodes
	swaps     []Swap
	// cabled is the fabric as it is, which is the plan unless cables are swapped.
	cabled *fabric.Graph
}

func newSite(seed uint64, leaves, spines, nics int) *site {
	g := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: leaves, SpinesPerPod: spines, NICsPerLeaf: nics}))
	return &site{g: g, cabled: g, rng: rand.New(rand.NewPCG(seed, 7)), windows: 6, perFlow: 2000, sparse: 3, loss: map[fabric.Direction]float64{}, added: map[fabric.Direction]time.Duration{}, marked: map[fabric.Direction]float64{},
		missing: map[string]bool{}, polarised: map[string]bool{}, stalled: map[string]bool{}, steps: map[string]bool{}, noAgent: map[string]bool{}}
}

// route returns the path of a flow, and nil if a cable that it needs is missing.
func (s *site) route(src, dst string) fabric.Path {
	var usable []fabric.Path
	for _, p := range s.cabled.ShortestPaths(src, dst, 64) {
		if !slices.ContainsFunc(p.LinkDirections(src, dst), func(d fabric.Direction) bool { return s.missing[d.LinkID()] }) {
			usable = append(usable, p)
		}
	}
	if len(usable) == 0 {
		return nil
	}
	// Each switch chooses among its ports, however many paths are behind them.
	for hop := range len(usable[0]) {
		var ports []string
		for _, p := range usable {
			if !slices.Contains(ports, p[hop].Out) {
				ports = append(ports, p[hop].Out)
			}
		}
		port := ports[s.rng.IntN(len(ports))]
		if s.polarised[usable[0][hop].Switch] {
			port = ports[0]
		}
		usable = slices.DeleteFunc(usable, func(p fabric.Path) bool { return p[hop].Out != port })
	}
	return usable[0]
}

// observe returns the evidence of an audit.
func (s *site) observe() *Evidence {
	r := NewRecorder(s.g, start)
	type flow struct {
		f    fabric.Flow
		path fabric.Path
	}
	var flows []flow
	nics := s.g.NICIDs()
	for i, src := range nics {
		for j, dst := range nics {
			if i == j || (i+j)%s.sparse != 0 || fabric.OwnerOf(src) == fabric.OwnerOf(dst) {
				continue
			}
			for n := range 2 {
				f := fabric.Flow{Src: src, Dst: dst, Number: n}
				flows = append(flows, flow{f, s.route(src, dst)})
				f.Reply = true
				flows = append(flows, flow{f, s.route(dst, src)})
			}
		}
	}
	for w := range s.windows {
		x := &Window{Hosts: map[string]string{}, Clocks: map[string]ClockState{}}
		for _, nic := range nics {
			node := fabric.OwnerOf(nic)
			if s.noAgent[node] {
				continue
			}
			steps, bound := 0.0, int64(900)
			if s.steps[nic] && w > 2 {
				steps = 1
			}
			x.Clocks[nic] = ClockState{State: lockedState, BoundNS: &bound, Steps: &steps}
			if s.stalled[node] {
				x.Hosts[node] = "its probe loop was late by 3.00 s"
			}
		}
		for _, f := range flows {
			if !s.noAgent[fabric.OwnerOf(f.f.Src)] {
				x.Observations = append(x.Observations, s.observeFlow(f.f, f.path, x))
			}
		}
		r.AddWindow(x)
	}
	return r.Evidence(start.Add(time.Minute), s.swaps, nil)
}

func (s *site) observeFlow(f fabric.Flow, path fabric.Path, x *Window) *fabric.Observation {
	src, dst := f.Endpoints()
	o := &fabric.Observation{Edge: f.String(), Src: src, Dst: dst, Class: "be", Sent: s.perFlow, PathState: fabric.PathUnknown, Timestamp: "hardware"}
	for _, nic := range []string{src, dst} {
		o.HostSuspect = o.HostSuspect || x.Hosts[fabric.OwnerOf(nic)] != "" || s.noAgent[fabric.OwnerOf(nic)]
	}
	if path == nil {
		o.Lost = o.Sent
		return o
	}
	o.Path, o.PathState = path, fabric.PathValid
	arrives, delay, marked := 1.0, 800.0, 0.0
	for _, d := range path.LinkDirections(src, dst) {
		arrives *= 1 - s.loss[d]
		marked += float64(o.Sent) * s.marked[d]
		delay += 600 + float64(s.added[d])
	}
	if arrives < 1 {
		o.Lost = uint64(distuv.Binomial{N: float64(s.perFlow), P: 1 - arrives, Src: s.rng}.Rand())
	}
	ecn := uint64(marked)
	o.ECN = &ecn
	p50, p99, bound := int64(delay+s.rng.NormFloat64()*50), int64(delay+4000+s.rng.NormFloat64()*400), int64(1800)
	o.OWD, o.ClockErrorNS = &fabric.Quantiles{P50: &p50, P99: &p99}, &bound
	return o
}

// fabricLink returns the n-th link between switches.
func (s *site) fabricLink(n int) (up, down fabric.Direction) {
	var all []*fabric.Link
	for i := range s.g.Topo.Links {
		if !s.g.Topo.Links[i].IsAccess() {
			all = append(all, &s.g.Topo.Links[i])
		}
	}
	l := all[n%len(all)]
	up = fabric.Direction{From: l.A, To: l.B}
	if s.g.SwitchTier(fabric.OwnerOf(l.A)) > s.g.SwitchTier(fabric.OwnerOf(l.B)) {
		up = up.Reverse()
	}
	return up, up.Reverse()
}

func whole(g *fabric.Graph) Scope { return Scope{g: g, kind: "fabric"} }

func (s *site) audit() Report { return Run(s.observe(), DefaultCriteria(), whole(s.g)) }

func checkOf(t *testing.T, r *Report, id string) *Check {
	t.Helper()
	for i := range r.Checks {
		if r.Checks[i].ID == id {
			return &r.Checks[i]
		}
	}
	t.Fatalf("the report has no check %s", id)
	return nil
}

// failedElements returns what failed, as CHECK ELEMENT.
func failedElements(r *Report) (out []string) {
	for _, c := range r.Checks {
		for _, i := range c.Items {
			if i.Status == Fail || i.Status == Warn {
				out = append(out, c.ID+" "+i.Element)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func describe(r *Report) string {
	var b strings.Builder
	for _, c := range r.Checks {
		fmt.Fprintf(&b, "%s %s %d: %s\n", c.ID, c.Status, c.Population, c.Text)
		for _, i := range c.Items[:min(8, len(c.Items))] {
			fmt.Fprintf(&b, "   %s %s %s: %s\n", i.Status, i.Element, i.Direction, i.Text)
		}
	}
	return b.String()
}

func TestListChecksAreTheOnesThatRun(t *testing.T) {
	r := newSite(1, 2, 2, 2).audit()
	var ids []string
	for _, c := range r.Checks {
		ids = append(ids, c.ID)
	}
	if !slices.Equal(ids, ListChecks()) {
		t.Errorf("%v run, and %v are listed", ids, ListChecks())
	}
}

// Rule 1: a fabric without a fault passes, and no check is unknown.
func TestRule1CleanFabricsPass(t *testing.T) {
	for seed := range uint64(10) {
		r := newSite(seed, 4, 4, 8).audit()
		if r.Status != Pass || r.ExitCode() != 0 || len(failedElements(&r)) > 0 {
			t.Errorf("seed %d: %s\n%s", seed, r.Status, describe(&r))
		}
	}
}

// Every fault is named by the right check at the right element, and nothing else is named.
func TestFaultsAreNamedByTheRightCheck(t *testing.T) {
	for seed := range uint64(12) {
		for _, x := range []struct {
			name  string
			fault func(*site) []string
		}{
			{"loss of 0.1 %", func(s *site) []string {
				up, _ := s.fabricLink(int(seed))
				s.loss[up] = 0.001
				return []string{"A3 " + up.LinkID()}
			}},
			{"20 us more in both directions", func(s *site) []string {
				up, down := s.fabricLink(int(seed))
				s.added[up], s.added[down] = 20*time.Microsecond, 20*time.Microsecond
				return []string{"A4 " + up.LinkID()}
			}},
			{"30 us more in one direction", func(s *site) []string {
				_, down := s.fabricLink(int(seed))
				s.added[down] = 30 * time.Microsecond
				return []string{"A4 " + down.LinkID(), "A5 " + down.LinkID()}
			}},
			{"a missing cable", func(s *site) []string {
				up, _ := s.fabricLink(int(seed))
				s.missing[up.LinkID()] = true
				return []string{"A2 " + up.LinkID()}
			}},
			{"a missing access cable", func(s *site) []string {
				nic := s.g.NICIDs()[seed]
				cable := fabric.LinkID(nic, s.g.PeerOf(nic))
				s.missing[cable] = true
				return []string{"A2 " + cable}
			}},
			{"a polarised hash", func(s *site) []string {
				up, _ := s.fabricLink(int(seed))
				s.polarised[fabric.OwnerOf(up.From)] = true
				return []string{"A7 " + fabric.OwnerOf(up.From)}
			}},
			{"a clock that steps", func(s *site) []string {
				nic := s.g.NICIDs()[seed]
				s.steps[nic] = true
				return []string{"A11 " + nic}
			}},
		} {
			s := newSite(seed, 4, 4, 8)
			want := x.fault(s)
			r := s.audit()
			if got := failedElements(&r); !slices.Equal(got, want) || r.Status != Fail || r.ExitCode() != 2 {
				t.Errorf("%s, seed %d: %v failed, want %v\n%s", x.name, seed, got, want, describe(&r))
			}
		}
	}
}

// Two faults at once are both named.
func TestRule3TwoFaultsAreNamedOnceEach(t *testing.T) {
	for seed := range uint64(8) {
		s := newSite(seed, 4, 4, 8)
		lossy, _ := s.fabricLink(int(seed))
		slow, back := s.fabricLink(int(seed) + 5)
		s.loss[lossy] = 0.002
		s.added[slow], s.added[back] = 40*time.Microsecond, 40*time.Microsecond
		r := s.audit()
		want := []string{"A3 " + lossy.LinkID(), "A4 " + slow.LinkID()}
		if got := failedElements(&r); !slices.Equal(got, want) {
			t.Errorf("seed %d: %v failed, want %v\n%s", seed, got, want, describe(&r))
		}
	}
}

// Rule 5: a starved host, and nodes without agents, are unknown and never fail.
func TestRule5HostsMakeUnknown(t *testing.T) {
	s := newSite(3, 4, 4, 8)
	s.stalled[fabric.OwnerOf(s.g.NICIDs()[0])] = true
	r := s.audit()
	if r.Status != Unknown || r.ExitCode() != 3 || len(failedElements(&r)) > 0 || checkOf(t, &r, "A13").Status != Unknown {
		t.Errorf("a starved host: %s\n%s", r.Status, describe(&r))
	}
	s = newSite(3, 4, 4, 8)
	for i, n := range s.g.Topo.Nodes {
		s.noAgent[n.Name] = i%2 == 0
	}
	r = s.audit()
	if r.Status != Unknown || len(failedElements(&r)) > 0 {
		t.Errorf("half the agents are gone: %s\n%s", r.Status, describe(&r))
	}
}

func TestSwappedCablesAreNamed(t *testing.T) {
	s := newSite(1, 4, 4, 8)
	a, _ := s.fabricLink(0)
	b, _ := s.fabricLink(5)
	s.swaps = []Swap{{Planned: [2]string{a.LinkID(), b.LinkID()}, Found: [2]string{fabric.LinkID(a.From, b.To), fabric.LinkID(b.From, a.To)}, Flows: 12}}
	r := s.audit()
	want := []string{"A2 " + a.LinkID(), "A2 " + b.LinkID()}
	slices.Sort(want)
	if got := failedElements(&r); !slices.Equal(got, want) {
		t.Errorf("%v failed, want %v", got, want)
	}
}

func TestNeighboursAreComparedWithThePlan(t *testing.T) {
	s := newSite(1, 4, 4, 8)
	e := s.observe()
	up, _ := s.fabricLink(0)
	other, _ := s.fabricLink(5)
	e.Neighbours = []Neighbour{{Port: up.From, Far: up.To}, {Port: other.From, Far: up.To}, {Port: other.To, Far: "a-name-without-a-plan:1"}}
	r := Run(e, DefaultCriteria(), whole(s.g))
	if got, want := failedElements(&r), []string{"A2 " + other.LinkID()}; !slices.Equal(got, want) {
		t.Errorf("%v failed, want %v", got, want)
	}
}

// TestEarlierPathsShowNoCable: a flow that crossed a link before it went down does not show that the link is there: neither one that
// ended then, nor one of which nothing says where it goes since.
func TestEarlierPathsShowNoCable(t *testing.T) {
	for name, change := range map[string]func(*FlowRecord){
		"ended": func(f *FlowRecord) { f.Windows, f.Confirmed = 1, 1 },
		"stale": func(f *FlowRecord) { f.Confirmed = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(1, 4, 4, 8)
			up, _ := s.fabricLink(0)
			before := s.observe()
			s.missing[up.LinkID()] = true
			e := s.observe()
			for _, f := range before.Flows {
				if slices.Contains(f.Path.LinkDirections(f.Src, f.Dst), up) {
					f.Flow.Number = 9
					change(&f)
					e.Flows = append(e.Flows, f)
					break
				}
			}
			r := Run(e, DefaultCriteria(), whole(s.g))
			if got, want := failedElements(&r), []string{"A2 " + up.LinkID()}; !slices.Equal(got, want) {
				t.Errorf("%v failed, want %v", got, want)
			}
		})
	}
}

// TestLostFlowsWereSpread: flows that a dead direction loses cannot be traced any more. They were spread as before, and the switch
// is not blamed for avoiding the direction.
func TestLostFlowsWereSpread(t *testing.T) {
	s := newSite(1, 4, 4, 8)
	up, _ := s.fabricLink(0)
	s.loss[up] = 1
	e := s.observe()
	for i := range e.Flows {
		if f := &e.Flows[i]; slices.Contains(f.Path.LinkDirections(f.Src, f.Dst), up) {
			f.Confirmed = 0
		}
	}
	r := Run(e, DefaultCriteria(), whole(s.g))
	if got := failedElements(&r); !slices.Contains(got, "A3 "+up.LinkID()) || slices.ContainsFunc(got, func(at string) bool { return strings.HasPrefix(at, "A7 ") }) {
		t.Errorf("%v failed, want A3 %s and not A7", got, up.LinkID())
	}
}

// Rule 4: a kind of paths with too few members is unknown.
func TestRule4FewMembersAreUnknown(t *testing.T) {
	s := newSite(1, 4, 4, 8)
	c := DefaultCriteria()
	c.Delay.MinMembers = 1e6
	r := Run(s.observe(), c, whole(s.g))
	if a4 := checkOf(t, &r, "A4"); a4.Status != Unknown || r.ExitCode() != 3 {
		t.Errorf("A4 is %s, and the exit code is %d", a4.Status, r.ExitCode())
	}
}

// Rule 2: few probes bound nothing, and that is unknown.
func TestRule2FewProbesAreUnknown(t *testing.T) {
	s := newSite(1, 4, 4, 8)
	s.perFlow = 2
	r := s.audit()
	a3 := checkOf(t, &r, "A3")
	if a3.Status != Unknown || !strings.Contains(a3.Items[0].Text, "29956 probes are needed") { // ln(0.05)/ln(1-1e-4)
		t.Errorf("A3 is %s: %s", a3.Status, a3.Items[0].Text)
	}
}

// Rule 6: without evidence nothing passes that needs any.
func TestRule6NoEvidenceIsUnknown(t *testing.T) {
	g := newSite(1, 2, 2, 2).g
	r := Run(NewRecorder(g, start).Evidence(start, nil, nil), DefaultCriteria(), whole(g))
	for _, c := range r.Checks {
		if c.Status != Unknown {
			t.Errorf("%s is %s", c.ID, c.Status)
		}
	}
	c := DefaultCriteria()
	c.Required = nil
	if r := Run(NewRecorder(g, start).Evidence(start, nil, nil), c, whole(g)); r.Status != Pass || r.Checks[0].Required {
		t.Errorf("nothing is required: %s", r.Status)
	}
}

func TestScopesLimitWhatIsJudged(t *testing.T) {
	s := newSite(1, 4, 4, 8)
	up, _ := s.fabricLink(0)
	s.loss[up] = 0.01
	e := s.observe()
	node := s.g.Topo.Nodes[0].Name
	for text, want := range map[string]Status{"fabric": Fail, "link:" + up.LinkID(): Fail, "node:" + node: Pass} {
		scope, err := ParseScope(s.g, text)
		if err != nil {
			t.Fatal(err)
		}
		r := Run(e, DefaultCriteria(), scope)
		if a3 := checkOf(t, &r, "A3"); a3.Status != want || r.Scope != text {
			t.Errorf("%s: A3 is %s, want %s\n%s", text, a3.Status, want, describe(&r))
		}
	}
	for _, text := range []string{"", "fabric:x", "pod:none", "plane:none", "node:none", "link:a--b", "maintenance:1"} {
		if _, err := ParseScope(s.g, text); err == nil {
			t.Errorf("scope %q is accepted", text)
		}
	}
}

// The values are those of R 4.3: qbeta(0.95, x+1, n-x) and qbeta(0.05, x, n-x+1), and of 1-0.05^(1/n).
func TestBoundsAreThoseOfClopperAndPearson(t *testing.T) {
	for _, x := range []struct {
		lost, n      uint64
		lower, upper float64
	}{
		{0, 100, 0, 0.029513}, {0, 60000, 0, 4.99277e-5}, {10, 10, 0.741134, 1}, {0, 0, 0, 1},
		// Two-sided 90 % intervals of 1 of 10 and of 5 of 10: Clopper and Pearson 1934, also binom.test(conf.level=0.9).
		{1, 10, 0.005116, 0.394163}, {5, 10, 0.222441, 0.777559},
	} {
		lower, upper := LowerBound(x.lost, x.n, 0.95), UpperBound(x.lost, x.n, 0.95)
		if math.Abs(lower-x.lower) > 2e-6 || math.Abs(upper-x.upper) > 2e-6 {
			t.Errorf("%d of %d: %.6g to %.6g, want %.6g to %.6g", x.lost, x.n, lower, upper, x.lower, x.upper)
		}
	}
}

// The upper bound holds for at least 95 % of 1,000 links whose loss is known.
func TestLossBoundHolds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, p := range []float64{1e-5, 1e-4, 1e-3, 0.02} {
		for _, n := range []float64{3000, 60000} {
			holds := 0
			for range 1000 {
				if UpperBound(uint64(distuv.Binomial{N: n, P: p, Src: rng}.Rand()), uint64(n), 0.95) >= p {
					holds++
				}
			}
			// 950 is expected at least; 930 is three standard deviations below it.
			t.Logf("loss %g, %g probes: the bound holds for %d of 1000 links", p, n, holds)
			if holds < 930 {
				t.Errorf("loss %g, %g probes: the bound holds for %d of 1000 links", p, n, holds)
			}
		}
	}
}

// The probabilities of the chi-square distribution are those of tables: 3.841 and 6.635 with one degree of freedom.
func TestUniformProbability(t *testing.T) {
	for _, x := range []struct {
		counts []int
		want   float64
	}{
		{[]int{10, 10}, 1}, {[]int{100 - 10, 100 + 10}, 0.157299}, {[]int{24, 0}, 9.634e-7},
		{[]int{8, 0}, 4 * 0.00390625}, {[]int{3}, 1}, {[]int{0, 0}, 1}, // 2*2 ways, each of 2^-8
	} {
		if p := uniformProbability(x.counts); math.Abs(p-x.want) > 1e-3*x.want {
			t.Errorf("%v: %g, want %g", x.counts, p, x.want)
		}
	}
}

func TestCriteriaAreStrict(t *testing.T) {
	for text, want := range map[string]string{
		"loss: {max_ratio: 0}":             "loss.max_ratio",
		"loss: {confidence: 1}":            "loss.confidence",
		"los: {max_ratio: 1}":              "los not found",
		"required: [A1, A99]":              "required[1]",
		"delay: {max_added: 0s}":           "delay.max_added",
		"clocks: {max_bound: fast}":        "line 1",
		"ecmp: {significance: .nan}":       "ecmp.significance",
		"hosts: {max_excluded: 2}":         "hosts.max_excluded",
		"coverage: {min_flows: 0}":         "coverage.min_flows",
		"idle: {max_marked: -1}":           "idle.max_marked",
		"idle: {max_discards: .nan}":       "idle.max_discards",
		"wiring: {chance: 0.5}":            "wiring.chance",
		"asymmetry: {max_difference: -1s}": "asymmetry.max_difference",
	} {
		if _, err := ParseCriteria("c.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "c.yaml") {
			t.Errorf("%s: %v, want an error with %q", text, err, want)
		}
	}
	c, err := ParseCriteria("c.yaml", []byte("loss: {max_ratio: 1e-5}\nrequired: [A3]\n"))
	if err != nil || c.Loss.MaxRatio != 1e-5 || c.Loss.Confidence != 0.95 || len(c.Required) != 1 {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := ParseCriteria("empty", nil); err != nil || c.Loss != DefaultCriteria().Loss {
		t.Errorf("an empty file: %+v, %v", c, err)
	}
}

func TestCompareSaysWhatWasRepaired(t *testing.T) {
	s := newSite(1, 4, 4, 8)
	up, _ := s.fabricLink(0)
	s.loss[up] = 0.01
	before := s.audit()
	after := newSite(1, 4, 4, 8).audit()
	got := Compare(&before, &after)
	if got.Before != Fail || got.After != Pass || got.Incomplete {
		t.Errorf("%+v", got)
	}
	if want := (Change{"A3", up.LinkID(), Fail, Pass}); !slices.Contains(got.Changes, want) {
		t.Errorf("changes %v lack %v", got.Changes, want)
	}
	if same := Compare(&after, &after); len(same.Changes) > 0 {
		t.Errorf("an audit differs from itself: %v", same.Changes)
	}
}
