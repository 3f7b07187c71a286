package report_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/evidence/evidencetest"
	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/localize"
	"github.com/graylink/graylink/analyzer/looptest"
	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/analyzer/report"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
	sim "github.com/graylink/graylink/internal/sim/incident"
)

// case1 is a fault of a minute: one direction of a link adds 2 ms, and loses one packet of twenty.
type case1 struct {
	rig      *looptest.Rig
	snapshot snapshot.Snapshot
	in       incident.Incident
	now      time.Time
}

// bad returns the direction of the fault.
func bad() fabric.Direction { return fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"} }

// newCase runs a loop through a fault. open leaves the fault in place.
func newCase(t *testing.T, open bool) *case1 {
	t.Helper()
	c := &case1{rig: looptest.NewRig(t, 3)}
	c.rig.Now = time.Unix(600, 0).UTC()
	c.rig.Learn()
	c.rig.World.Delay[bad()] = 2e6
	c.rig.Until(10, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	for range 60 {
		c.rig.Step()
	}
	if !open {
		delete(c.rig.World.Delay, bad())
		c.rig.Until(60, "the end", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) == 0 })
	}
	c.snapshot = c.rig.Loop.Snapshot()
	c.in = c.snapshot.Incidents[0]
	c.now = c.rig.Now.Add(10 * time.Minute)
	if open {
		c.now = c.rig.Now
	}
	return c
}

// series writes what Prometheus has of the flows: ten packets a second each, by native histograms of schema 3. Those of the affected flows
// are in the bucket of 10 us before the fault, and in that of 2 ms during it.
func (c *case1) series() string {
	const fast, slow, every = -132, -71, 10
	var b strings.Builder
	b.WriteString("load 10s\n")
	first := int(c.in.FirstSeen.Unix()) / every
	end := int(c.now.Unix())/every + 1
	for _, f := range c.rig.World.Flows {
		of := report.FlowSelector(f)
		affected := slices.Contains(c.in.Edges, f.String())
		step := func(bucket int) string {
			return fmt.Sprintf("{{schema:3 sum:0.1 count:100 offset:%d buckets:[100]}}", bucket)
		}
		fmt.Fprintf(&b, "\tfabric_probe_owd_seconds%s ", strings.Replace(of, "}", `,class="",plane="a",tier="2",timestamp="kernel"}`, 1))
		if affected {
			fmt.Fprintf(&b, "{{schema:3}}+%sx%d {{schema:3 sum:1 count:%d offset:%d buckets:[%d]}}+%sx%d\n", step(fast), first, 100*first, fast, 100*first, step(slow), end-first-1)
		} else {
			fmt.Fprintf(&b, "{{schema:3}}+%sx%d\n", step(fast), end)
		}
		fmt.Fprintf(&b, "\tfabric_probe_sent_total%s 0+100x%d\n", of, end)
		if affected {
			fmt.Fprintf(&b, "\tfabric_probe_lost_total%s 0x%d 0+5x%d\n", of, first, end-first-1)
		} else {
			fmt.Fprintf(&b, "\tfabric_probe_lost_total%s 0x%d\n", of, end)
		}
	}
	return b.String()
}

func (c *case1) collector(db evidence.Querier) *report.Collector {
	s := evidence.SettingsFor(10 * time.Second)
	return &report.Collector{Snapshot: func() snapshot.Snapshot { return c.snapshot }, Store: c.rig.Loop.PathStore(), DB: db, Evidence: s, Version: "1.2.3", ConfigHash: "abc", Now: func() time.Time { return c.now }}
}

func (c *case1) report(t *testing.T, db evidence.Querier) *report.Report {
	t.Helper()
	r, err := c.collector(db).Report(t.Context(), c.in.ID)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestDistributionsAndLines compares the distributions and time lines of a report with what is known of the series, and with quantiles of
// Prometheus' own engine.
func TestDistributionsAndLines(t *testing.T) {
	c := newCase(t, false)
	db := evidencetest.NewQuerier(t, c.series())
	r := c.report(t, db)
	for _, q := range r.Queries {
		if q.Problem != "" {
			t.Errorf("%s: %s: %s", q.ID, q.Expr, q.Problem)
		}
	}
	if !r.Complete || len(r.Unknown) != 0 || r.Grain != "flow" || r.AffectedTotal != len(c.in.Edges) || len(r.Affected) != min(8, r.AffectedTotal) || len(r.Healthy) == 0 {
		t.Fatalf("complete %t, unknown %q, by %s, %d of %d affected flows, %d healthy ones", r.Complete, r.Unknown, r.Grain, len(r.Affected), r.AffectedTotal, len(r.Healthy))
	}
	limits := map[string][2]float64{"before": {9900, 10800}, "during": {1.95e6, 2.14e6}}
	for _, d := range r.Delays {
		var of report.Query
		for _, q := range r.Queries {
			if q.ID == d.Query {
				of = q
			}
		}
		for phi, got := range map[float64]*float64{0.5: d.P50NS, 0.9: d.P90NS, 0.99: d.P99NS} {
			want, err := db.QueryInstant(t.Context(), fmt.Sprintf("histogram_quantile(%g, %s)", phi, of.Expr), of.At)
			if err != nil || len(want) != 1 || got == nil || math.Abs(*got-want[0].Value*1e9) > 1 {
				t.Errorf("%s: the quantile %g is %v, the engine has %v (%v)", d.When, phi, got, want, err)
			}
		}
		if l := limits[d.When]; d.Unknown != "" || *d.P50NS < l[0] || *d.P50NS > l[1] || len(d.Buckets) == 0 {
			t.Errorf("%s: %+v", d.When, d)
		}
	}
	for _, f := range r.Affected {
		if f.Before.P50NS == nil || f.During.P50NS == nil || *f.Before.P50NS > 10800 || *f.During.P50NS < 1.95e6 || math.Abs(*f.During.LossRatio-0.05) > 0.001 || *f.Before.LossRatio != 0 || f.P50NS == nil || f.BaselineP50NS == nil {
			t.Errorf("%s: before %+v, during %+v", f.Flow, f.Before, f.During)
		}
	}
	for _, f := range r.Healthy {
		if f.Before.P50NS == nil || *f.During.P50NS > 10800 || *f.During.LossRatio != 0 || f.Near == "" {
			t.Errorf("%s: before %+v, during %+v", f.Flow, f.Before, f.During)
		}
	}
}

// TestHops: the named direction adds what the verdict says, one that healthy flows cross as well no more than they are late, and one that
// only affected flows cross may add as much as they are late.
func TestHops(t *testing.T) {
	c := newCase(t, false)
	r := c.report(t, evidencetest.NewQuerier(t, "load 1s\n\tup 1"))
	named := 0
	for _, f := range r.Affected {
		for _, h := range f.Path {
			switch {
			case h.From == bad().From && h.To == bad().To:
				named++
				if !h.Named || h.Bound || h.AddedDelayNS == nil || *h.AddedDelayNS != c.in.Symptom.AddedDelayNS || h.Degraded == nil || *h.Degraded == 0 {
					t.Errorf("the named hop: %+v", h)
				}
			case h.Named:
				t.Errorf("%+v is named", h)
			case *h.Flows > *h.Degraded && (h.AddedDelayNS == nil || !h.Bound || *h.AddedDelayNS > 100_000):
				t.Errorf("%s → %s, which healthy flows cross: %v", h.From, h.To, h.AddedDelayNS)
			}
		}
	}
	if named != len(r.Affected) {
		t.Errorf("%d of %d paths have the named hop", named, len(r.Affected))
	}
}

// counting counts queries.
type counting struct {
	evidencetest.Querier
	asked atomic.Int64
}

func (c *counting) QueryRange(ctx context.Context, query string, from, to time.Time, step time.Duration) ([]evidence.Series, error) {
	c.asked.Add(1)
	return c.Querier.QueryRange(ctx, query, from, to, step)
}

// TestReportStaysTheSame: the report of a closed verdict is the same whenever it is made, and it is asked for once. The viewers of an open
// verdict share one.
func TestReportStaysTheSame(t *testing.T) {
	c := newCase(t, false)
	db := &counting{Querier: evidencetest.NewQuerier(t, c.series())}
	encode := func(r *report.Report, format string) []byte {
		b, err := r.Encode(format, "")
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	one := c.collector(db)
	first, err := one.Report(t.Context(), c.in.ID)
	if err != nil {
		t.Fatal(err)
	}
	asked := db.asked.Load()
	c.now = c.now.Add(time.Hour)
	again, err := one.Report(t.Context(), c.in.ID)
	if err != nil || again != first || db.asked.Load() != asked {
		t.Errorf("a complete report is made again (%v)", err)
	}
	other := c.report(t, db)
	for _, format := range []string{report.JSON, report.HTML, report.Markdown} {
		if !bytes.Equal(encode(first, format), encode(other, format)) {
			t.Errorf("%s: another analyzer makes another report an hour later", format)
		}
	}
	broken := c.collector(failing{bare{errors.New("connection refused")}})
	if _, err := broken.Report(t.Context(), c.in.ID); err != nil {
		t.Fatal(err)
	}
	broken.DB = db
	c.now = c.now.Add(time.Minute)
	if mended, err := broken.Report(t.Context(), c.in.ID); err != nil || !bytes.Equal(encode(mended, report.JSON), encode(first, report.JSON)) {
		t.Errorf("the report of a time in which Prometheus was away is kept (%v)", err)
	}
	open := newCase(t, true)
	db = &counting{Querier: evidencetest.NewQuerier(t, open.series())}
	of := open.collector(db)
	made := make(chan *report.Report)
	for range 50 {
		go func() {
			r, err := of.Report(context.WithoutCancel(t.Context()), open.in.ID)
			if err != nil {
				t.Error(err)
			} else if r.Complete {
				t.Error("the report of an open verdict is complete")
			}
			made <- r
		}()
	}
	for range 50 {
		<-made
	}
	if db.asked.Load() != asked {
		t.Errorf("50 viewers cost %d queries over time, want %d as one does", db.asked.Load(), asked)
	}
	open.now = open.now.Add(time.Minute)
	if _, err := of.Report(t.Context(), open.in.ID); err != nil || db.asked.Load() != 2*asked {
		t.Errorf("a minute later it is not asked for again (%v)", err)
	}
	if _, err := of.Report(t.Context(), "none"); !errors.Is(err, report.ErrUnknown) {
		t.Errorf("an unknown identifier: %v", err)
	}
}

// bare answers single numbers only, as a backend without an API for anything else, or fails.
type bare struct{ err error }

func (b bare) QueryInstant(context.Context, string, time.Time) ([]evidence.Sample, error) {
	return nil, b.err
}

// failing answers nothing.
type failing struct{ bare }

func (f failing) QueryRange(context.Context, string, time.Time, time.Time, time.Duration) ([]evidence.Series, error) {
	return nil, f.err
}

func (f failing) QueryHistograms(context.Context, string, time.Time) ([]evidence.Histogram, error) {
	return nil, f.err
}

// TestUnknown: what Prometheus does not have is unknown with the reason, and the rest is shown.
func TestUnknown(t *testing.T) {
	c := newCase(t, false)
	counts := slices.DeleteFunc(strings.Split(c.series(), "\n"), func(line string) bool { return strings.Contains(line, "owd_seconds") })
	leaves := "load 10s\n\tfabric_leaf_pair_owd_seconds{leaf=\"leaf1\", peer_leaf=\"leaf2\", side=\"source\"} {{schema:3}}+{{schema:3 sum:1 count:10 offset:-71 buckets:[10]}}x300\n"
	recorded := "load 10s\n\tfabric:leafpair_owd_seconds:p50_2s{leaf=\"leaf1\", peer_leaf=\"leaf2\", side=\"source\"} 0.002x300\n"
	for name, x := range map[string]struct {
		db    evidence.Querier
		grain string
		want  []string
	}{
		"no series":              {evidencetest.NewQuerier(t, "load 1s\n\tup 1"), "leaf pair, recorded", []string{"Prometheus has nothing of these packets from that time"}},
		"no native histograms":   {evidencetest.NewQuerier(t, strings.Join(counts, "\n")), "leaf pair, recorded", []string{"Prometheus has nothing of these packets"}},
		"leaf pairs":             {evidencetest.NewQuerier(t, leaves), "leaf pair", []string{"leaf1 > leaf2", "2.0 ms"}},
		"recorded":               {evidencetest.NewQuerier(t, recorded), "leaf pair, recorded", []string{"leaf1 > leaf2", "2.0 ms", "no native histograms of these flows or of their leaves"}},
		"no server":              {failing{bare{errors.New("connection refused")}}, "flow", []string{"connection refused"}},
		"another kind of server": {bare{}, "flow", []string{"this backend has no time lines"}},
	} {
		r := c.report(t, x.db)
		b, err := r.Encode(report.HTML, "")
		if err != nil {
			t.Fatal(err)
		}
		if r.Grain != x.grain || len(r.Affected) == 0 {
			t.Errorf("%s: by %s, %d affected flows", name, r.Grain, len(r.Affected))
		}
		for _, want := range append(x.want, c.in.ID, "What happened", "Paths", "Queries", "Settings") {
			if !strings.Contains(strings.ReplaceAll(string(b), "&gt;", ">"), want) {
				t.Errorf("%s: the report lacks %q", name, want)
			}
		}
	}
}

// TestDirectionsOfLeafPairs: probes and replies that go from one leaf to another are counted apart, and each flow has the medians of its
// own kind.
func TestDirectionsOfLeafPairs(t *testing.T) {
	c := newCase(t, false)
	r := c.report(t, evidencetest.NewQuerier(t, `load 10s
	fabric:leafpair_owd_seconds:p50_2s{leaf="leaf1", peer_leaf="leaf2", side="source"} 0.002x300
	fabric:leafpair_owd_seconds:p50_2s{leaf="leaf2", peer_leaf="leaf1", side="destination"} 0.003x300`))
	seen := map[bool]int{}
	for _, f := range append(r.Affected, r.Healthy...) {
		if f.During.P50NS == nil {
			continue
		}
		id, err := fabric.ParseFlow(f.Flow)
		if err != nil {
			t.Fatal(err)
		}
		seen[id.Reply]++
		if want := map[bool]float64{false: 2e6, true: 3e6}[id.Reply]; math.Abs(*f.During.P50NS-want) > 1 {
			t.Errorf("%s: %g ns, want %g", f.Flow, *f.During.P50NS, want)
		}
	}
	if seen[false] == 0 || seen[true] == 0 {
		t.Errorf("%v flows have a median, by whether they are replies", seen)
	}
}

// TestRecalled: of a verdict from before the analyzer started its published values are shown, and what is not known is said.
func TestRecalled(t *testing.T) {
	c := newCase(t, false)
	end := c.in.FirstSeen.Add(time.Minute)
	c.snapshot.Incidents = []incident.Incident{{OpenedAt: c.in.FirstSeen, LastSeen: end, Cleared: &end, Closed: "cleared", Recalled: true,
		Verdict: fabric.Verdict{ID: "old", Element: c.in.Element, Direction: c.in.Direction, Symptom: c.in.Symptom, FirstSeen: c.in.FirstSeen}}}
	c.in = c.snapshot.Incidents[0]
	r := c.report(t, evidencetest.NewQuerier(t, "load 1s\n\tup 1"))
	if len(r.Affected) == 0 || r.Affected[0].P50NS != nil || len(r.Unknown) != 2 || !strings.Contains(r.Unknown[0], "before the analyzer was started") || !strings.Contains(r.Unknown[1], "by the paths of the present") {
		t.Errorf("%d flows, unknown %q", len(r.Affected), r.Unknown)
	}
}

// TestEveryNumber: each number of the verdict stands in each format.
func TestEveryNumber(t *testing.T) {
	for _, open := range []bool{true, false} {
		c := newCase(t, open)
		fillVerdict(&c.snapshot.Incidents[0].Verdict, c.rig.Now)
		r := c.report(t, evidencetest.NewQuerier(t, c.series()))
		checkNumbers(t, r)
	}
}

// checkNumbers wants each number of the verdict in each format that people read, and the whole verdict in JSON.
func checkNumbers(t *testing.T, r *report.Report) {
	t.Helper()
	raw, err := json.Marshal(r.Verdict)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	for token, err := d.Token(); err == nil; token, err = d.Token() {
		if n, ok := token.(json.Number); ok {
			all = append(all, n.String())
		}
	}
	if len(all) < 8 {
		t.Fatalf("the verdict has %d numbers", len(all))
	}
	for _, format := range []string{report.HTML, report.Markdown} {
		b, err := r.Encode(format, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range all {
			if !bytes.Contains(b, []byte("<code>"+n+"</code>")) && !bytes.Contains(b, []byte("`"+n+"`")) {
				t.Errorf("%s lacks the number %s", format, n)
			}
		}
	}
	b, err := r.Encode(report.JSON, "")
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Verdict json.RawMessage }
	var one, two any
	if err := errors.Join(json.Unmarshal(b, &got), json.Unmarshal(got.Verdict, &one), json.Unmarshal(raw, &two)); err != nil || fmt.Sprint(one) != fmt.Sprint(two) {
		t.Errorf("JSON has another verdict: %v", err)
	}
}

// fillVerdict fills in all parts that a verdict may have.
func fillVerdict(v *fabric.Verdict, at time.Time) {
	jobs, yes := 3, true
	other := fabric.Element{ID: "leaf1", Kind: fabric.KindSwitch}
	v.Prefix, v.Plane, v.Class, v.Runbook, v.Tier = "10.0.0.0/8", "a", "q", "docs/runbooks/link.md", 2
	v.Evidence.Asked = []fabric.Asked{{At: at, Asked: fabric.AskedHop, Between: []fabric.Element{v.Element, other}, Flows: []string{"h1/eth1>h3/eth1#7"}, Refused: []string{"too many"}, Excluded: []fabric.Element{other},
		Hops: []fabric.AskedHopProbe{{Flow: "h1/eth1>h3/eth1", Hop: 2, Switch: "spine1", Sent: 4711, Answered: 4690, Discarded: "moved"}}}}
	v.Evidence.ContraryEdges = 13
	v.Equivalent, v.Jobs, v.Causes = []fabric.Element{other}, []string{"ml/train"}, []string{fabric.CausePhysical}
	v.BlastRadius.Jobs = &jobs
	v.Shares = &fabric.PathShares{SprayedEdges: 17, Least: 0.21, Most: 0.53}
	v.Failovers = []fabric.Failover{{Direction: bad().String(), LossNS: 123456789, Flows: 19}}
	v.WouldSplit = []fabric.Measurement{{Meets: v.Element, Avoids: other, Src: "h1/eth1", Dst: "h3/eth1", Path: fabric.Path{{Switch: "leaf1", In: "dn1", Out: "up1"}}}}
	v.Attribution = &fabric.Attribution{State: fabric.CauseFound, Agrees: &yes, Summary: "the cable is dirty", Against: []string{"the queue was empty"}, From: at, Until: at.Add(time.Minute),
		Causes: []fabric.Cause{{Cause: fabric.CausePhysical, Element: "spine1:dn1", Peer: "leaf1:up1", Weight: 0.87, Text: "CRC errors grew by 42"}, {Cause: fabric.CauseRouting, Element: "leaf1", Weight: 0.3, Text: "moved"}}}
}

// TestEveryScenario makes the report of one incident of each scenario that the simulator knows.
func TestEveryScenario(t *testing.T) {
	f := sim.NewFabric(clos.NewTopology(clos.Options{Planes: 2, LeavesPerPod: 4, SpinesPerPod: 3, NICsPerLeaf: 6, NICsPerNode: 2}))
	seen := map[fabric.Scenario]bool{}
	for i, id := range sim.AllScenarios() {
		scenario := sim.Scenario{ID: id}
		made := scenario.MakeCase(f, uint64(i+1))
		rep, err := localize.FindFaults(f.Graph, made.Observations, sim.Window)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range rep.Verdicts {
			seen[v.Scenario] = true
			in := incident.Incident{Verdict: v, Open: true, OpenedAt: v.FirstSeen, LastSeen: v.FirstSeen.Add(time.Minute)}
			c := report.Collector{Snapshot: func() snapshot.Snapshot { return snapshot.Snapshot{Incidents: []incident.Incident{in}} }, Store: paths.NewStore(f.Graph), DB: failing{bare{errors.New("away")}},
				Evidence: evidence.DefaultSettings(), Now: func() time.Time { return v.FirstSeen.Add(time.Minute) }}
			r, err := c.Report(t.Context(), in.ID)
			if err != nil {
				t.Fatal(err)
			}
			checkNumbers(t, r)
		}
	}
	if len(seen) < 13 {
		t.Errorf("%d scenarios have a verdict: %v", len(seen), seen)
	}
}

// TestFilesAreBounded: the file of a verdict that affects a fabric of 16,384 NICs, with long names in each place, has at most a megabyte,
// and says what is left out.
func TestFilesAreBounded(t *testing.T) {
	c := newCase(t, true)
	in := &c.snapshot.Incidents[0]
	fillVerdict(&in.Verdict, c.rig.Now)
	in.BlastRadius = fabric.BlastRadius{NICs: 16384, Edges: 1 << 20}
	for _, name := range []string{"n", strings.Repeat("<&\">|`*_", 60)} {
		in.Edges, in.Equivalent, in.Jobs, in.Failovers = nil, nil, nil, nil
		asked := in.Evidence.Asked[0]
		asked.Flows, asked.Refused, asked.Hops = nil, nil, nil
		for i := range 16384 {
			nic := fmt.Sprintf("h%d%s/eth1", i, name)
			flow := fabric.Flow{Src: nic, Dst: fmt.Sprintf("h%d%s/eth1", (i+1)%16384, name)}.String()
			in.Edges = append(in.Edges, flow)
			in.Equivalent, in.Jobs = append(in.Equivalent, fabric.Element{ID: nic, Kind: fabric.KindNIC}), append(in.Jobs, "job"+nic)
			in.Failovers = append(in.Failovers, fabric.Failover{Direction: nic + "->" + nic, LossNS: int64(i), Flows: i})
			asked.Flows, asked.Refused = append(asked.Flows, flow), append(asked.Refused, nic)
			asked.Hops = append(asked.Hops, fabric.AskedHopProbe{Flow: flow, Hop: i, Switch: nic})
		}
		in.Evidence.Asked = slices.Repeat([]fabric.Asked{asked}, 3)
		in.Summary, in.Action = strings.Repeat(name, 2000), strings.Repeat(name, 2000)
		r := c.report(t, evidencetest.NewQuerier(t, "load 1s\n\tup 1"))
		for _, format := range []string{report.HTML, report.Markdown} {
			b, err := r.Encode(format, strings.Repeat("/* style */", 2000))
			if err != nil || len(b) > 1_000_000 || !bytes.Contains(b, []byte("left out")) || !bytes.Contains(b, []byte("16,344 more")) {
				t.Errorf("%.5q: %s has %d bytes (%v)", name, format, len(b), err)
			}
		}
	}
}

// TestMarkdownShowsNamesAsTheyAre: whatever a name is, each line of Markdown has the number of cells of its table, and no markup of a name
// is left unescaped.
func TestMarkdownShowsNamesAsTheyAre(t *testing.T) {
	c := newCase(t, true)
	for _, name := range []string{"a|b", "a\\|b", "`", "``x`", "<img src=x onerror=alert(1)>", "[a](javascript:alert(1))", "![a](http://x/y)", "\n# head\n", "*b* _i_ ~~s~~", "@all #12 http://evil www.evil.example a@b.c", "a\u202eb\u0000c"} {
		in := &c.snapshot.Incidents[0]
		fillVerdict(&in.Verdict, c.rig.Now)
		in.Element.ID, in.Summary, in.Action, in.Jobs, in.Plane = name, name, name, []string{name}, name
		in.Equivalent = []fabric.Element{{ID: name, Kind: fabric.Kind(name)}}
		b, err := c.report(t, bare{}).Encode(report.Markdown, "")
		if err != nil {
			t.Fatal(err)
		}
		columns := 0
		for line := range strings.Lines(string(b)) {
			line = strings.TrimSuffix(line, "\n")
			cells, outside := scanMarkdown(line)
			if strings.HasPrefix(line, "|") {
				if columns != 0 && cells != columns {
					t.Errorf("%q: a row of %d cells in a table of %d: %s", name, cells, columns, line)
				}
				columns = cells
			} else {
				columns = 0
			}
			for _, active := range []string{"<", "![", "](", "*", "_", "~~", "@", "#1", "://", "www.", "javascript:"} {
				if strings.Contains(outside, active) {
					t.Errorf("%q: %q is active in %s", name, active, line)
				}
			}
			if strings.HasPrefix(line, "# ") && !strings.HasPrefix(string(b), line) || strings.ContainsAny(line, "\u202e\u0000") {
				t.Errorf("%q: %q", name, line)
			}
		}
	}
}

// scanMarkdown returns the number of bars that divide cells, and the text of a line outside of code, without what is escaped. As in tables
// of GitHub's Markdown, a backslash escapes a bar also within code.
func scanMarkdown(line string) (bars int, outside string) {
	var out strings.Builder
	for i := 0; i < len(line); i++ {
		switch {
		case line[i] == '\\' && i+1 < len(line):
			i++
		case line[i] == '`':
			fence := line[i : i+len(line[i:])-len(strings.TrimLeft(line[i:], "`"))]
			rest := line[i+len(fence):]
			if end := strings.Index(rest, fence); end >= 0 {
				i += 2*len(fence) + end - 1
			}
		case line[i] == '|':
			bars++
		default:
			out.WriteByte(line[i])
		}
	}
	return bars, out.String()
}
