package e2e

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

var (
	alertKinds     = flag.String("alerts.kinds", "blackhole,congest", "faults of TestAlerts, separated by commas")
	alertSeeds     = flag.String("alerts.seeds", "1", "seeds of TestAlerts, A..B")
	alertTable     = flag.Bool("alerts.table", false, "TestAlerts judges seconds, on a machine that does nothing else, and not each fault")
	alertDraw      = flag.String("alerts.draw", "", "directory in which TestAlerts draws the dashboards while the last fault lasts, for people to look at")
	alertProfile   = flag.String("alerts.profile", "full", "where the analyzers of TestAlerts have the windows of flows from: full, Prometheus, or fleet, the agents")
	alertAnalyzers = flag.Int("alerts.analyzers", 2, "analyzers of TestAlerts, beside the same Prometheus")
)

// planned returns a fault as the demo would choose it.
func (c *chain) planned(kind string, seed uint64) demo.PlannedFault {
	c.t.Helper()
	p, err := demo.PlanFault(c.g, kind, seed, demo.Params{Delay: 2 * time.Millisecond, Loss: 0.1, Step: time.Millisecond, DriftPPM: 50})
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

func (c *chain) fault(f lab.Fault) (id string) {
	c.t.Helper()
	id, err := c.l.AddFault(c.t.Context(), f)
	if err != nil {
		// The parts of the test that follow need a healthy fabric.
		c.t.Fatal(errors.Join(err, c.l.ClearFault(c.t.Context(), "")))
	}
	return id
}

func (c *chain) heal(id string) {
	c.t.Helper()
	if err := c.l.ClearFault(c.t.Context(), id); err != nil {
		c.t.Fatal(err)
	}
}

// alerted holds the outcome of one fault.
type alerted struct {
	kind, element              string
	seed                       uint64
	began                      time.Time
	verdict, webhook, resolved float64 // seconds since the fault, and since the healing
	receiver, summary, causes  string
	ids                        map[string]string // of the verdict, by analyzer
	missed                     float64           // cycles that an analyzer had no evidence in, or left out
	right                      bool
	wrong                      []string // what is not as it should be
	besides                    []string // other messages
}

// named returns the incidents that name a fault in an analyzer since a moment.
func (c *chain) named(r *replica, p demo.PlannedFault, since time.Time) (out []incident.Incident) {
	_, incidents := c.verdicts(r)
	for i := range incidents {
		if incidents[i].OpenedAt.After(since) && p.NamedBy(&incidents[i].Verdict) {
			out = append(out, incidents[i])
		}
	}
	return out
}

// missed returns how many cycles the analyzers skipped or had no evidence in.
func (c *chain) missed() (n float64) {
	for _, r := range c.analyzers {
		_, m := c.cycles(r)
		n += m
	}
	return n
}

// misblamed says what is wrong with the causes of a verdict about a fault of a kind, if
// anything is: a queue that is full is congestion with the queue as evidence; packets
// that are lost, late or marked without one are none.
func misblamed(p demo.PlannedFault, v *fabric.Verdict) string {
	a := v.Attribution
	if a == nil {
		return "the element's series were not asked for"
	}
	switch p.Fault.Kind {
	case lab.KindCongest:
		// What waited, or how often the queue held packets back.
		if !slices.ContainsFunc(a.Causes, func(x fabric.Cause) bool {
			return x.Cause == fabric.CauseCongestion && x.Element == p.Fault.At && (strings.Contains(x.Text, "waited on average") || strings.Contains(x.Text, "queue_overlimits"))
		}) || !slices.Contains(v.Causes, fabric.CauseCongestion) {
			return "no congestion with the queue of " + p.Fault.At + " as evidence"
		}
	case lab.KindLoss, lab.KindECN, lab.KindDelay, lab.KindBlackhole:
		switch {
		case a.State == fabric.NoCauseData:
			return "no series of its ports were read"
		case slices.Contains(v.Causes, fabric.CauseCongestion):
			return "congestion is blamed, and no queue was full"
		}
	}
	return ""
}

// strike breaks what the plans say, all at the same moment, waits for the alerts, heals and
// waits until all is over. No two plans may have a switch in common.
func (c *chain) strike(plans []demo.PlannedFault, seed uint64, whileBroken func()) []alerted {
	c.t.Helper()
	outs := make([]alerted, len(plans))
	elements := make([]map[string]bool, len(plans)) // that an analyzer named for a fault
	for i, p := range plans {
		outs[i] = alerted{kind: p.Fault.Kind, seed: seed, element: p.Element, ids: map[string]string{}}
		elements[i] = map[string]bool{}
	}
	missed := c.missed()
	// What was before was over at the end of a cycle; faults come at any time in one.
	time.Sleep(time.Duration(seed*617%1000) * time.Millisecond)
	began := time.Now()
	var ids []string
	for i, p := range plans {
		outs[i].began = time.Now()
		ids = append(ids, c.fault(p.Fault))
	}
	alert := func(i int) *message {
		for _, r := range c.analyzers {
			for _, in := range c.named(r, plans[i], began) {
				elements[i][in.Element.ID] = true
				if s := in.OpenedAt.Sub(outs[i].began).Seconds(); outs[i].verdict == 0 || s < outs[i].verdict {
					outs[i].verdict = s
				}
			}
		}
		for _, m := range c.messages(began) {
			if m.status == "firing" && elements[i][m.element] {
				return &m
			}
		}
		return nil
	}
	const patience = 45 * time.Second
	last := 0.0
	for end, waiting := began.Add(patience), len(plans); waiting > 0 && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		waiting = 0
		for i := range outs {
			o := &outs[i]
			if o.right {
				continue
			}
			m := alert(i)
			if m == nil {
				waiting++
				continue
			}
			o.right, o.webhook, o.receiver, o.summary = true, m.at.Sub(o.began).Seconds(), m.receiver, m.summary
			last = max(last, m.at.Sub(began).Seconds())
		}
	}
	for i := range outs {
		outs[i].missed = c.missed() - missed
	}
	if whileBroken != nil {
		whileBroken()
	}
	// What would come besides has three cycles and a group's interval to do so, and so have
	// the causes.
	<-time.After(max(0, time.Until(began.Add(time.Duration(last*float64(time.Second)+8e9)))))
	for i := range outs {
		if outs[i].right {
			c.agree(plans[i], began, &outs[i])
		}
	}
	healed := time.Now()
	for _, id := range ids {
		c.heal(id)
	}
	over := func() bool {
		firing := map[string]time.Time{}
		for _, m := range c.messages(began) {
			delete(firing, m.receiver+m.name+m.element)
			if m.status == "firing" {
				firing[m.receiver+m.name+m.element] = m.at
				continue
			}
			for i := range outs {
				if m.at.After(healed) && elements[i][m.element] {
					outs[i].resolved = m.at.Sub(healed).Seconds()
				}
			}
		}
		return len(firing) == 0 && c.innocent()
	}
	for end := healed.Add(2 * time.Minute); time.Now().Before(end) && !over(); {
		time.Sleep(100 * time.Millisecond)
	}
	seen := map[string]bool{}
	once := make([]int, len(outs))
	for _, m := range c.messages(began) {
		about := slices.IndexFunc(elements, func(of map[string]bool) bool { return of[m.element] })
		switch {
		case m.status != "firing":
		case about >= 0 && m.receiver == outs[about].receiver:
			once[about]++
		case seen[m.receiver+m.name+m.summary]:
		case m.ofFabric():
			i := max(about, 0)
			outs[i].besides = append(outs[i].besides, m.String())
		default:
			c.t.Logf("about Graylink itself: %s", m) // on a machine that is busy with other things it is right
		}
		seen[m.receiver+m.name+m.summary] = true
	}
	for i, n := range once {
		if n > 1 {
			outs[i].wrong = append(outs[i].wrong, fmt.Sprintf("%d messages about it were sent", n))
		}
	}
	return outs
}

// switchesOf returns the switches at the ends of a fault's element.
func switchesOf(p demo.PlannedFault) []string {
	a, b, ok := fabric.SplitLink(p.Element)
	if !ok {
		return []string{fabric.OwnerOf(p.Element)}
	}
	return []string{fabric.OwnerOf(a), fabric.OwnerOf(b)}
}

// together groups plans whose elements have no switch in common, so that they can be broken
// at the same moment.
func together(plans []demo.PlannedFault) (groups [][]demo.PlannedFault) {
	for _, p := range plans {
		free := func(group []demo.PlannedFault) bool {
			return !slices.ContainsFunc(group, func(o demo.PlannedFault) bool {
				return slices.ContainsFunc(switchesOf(o), func(s string) bool { return slices.Contains(switchesOf(p), s) })
			})
		}
		if i := slices.IndexFunc(groups, free); i >= 0 {
			groups[i] = append(groups[i], p)
			continue
		}
		groups = append(groups, []demo.PlannedFault{p})
	}
	return groups
}

// agree takes down what the analyzers say of a fault: the same verdict, by its identifier,
// and the right causes.
func (c *chain) agree(p demo.PlannedFault, began time.Time, out *alerted) {
	c.t.Helper()
	var v *fabric.Verdict
	for _, r := range c.analyzers {
		named := c.named(r, p, began)
		// Series are queried every few cycles, and counted every second.
		for end := time.Now().Add(30 * time.Second); len(named) == 1 && misblamed(p, &named[0].Verdict) != "" && time.Now().Before(end); named = c.named(r, p, began) {
			time.Sleep(200 * time.Millisecond)
		}
		if len(named) != 1 {
			out.wrong = append(out.wrong, fmt.Sprintf("%s has %d verdicts that name it", r.name, len(named)))
			continue
		}
		out.ids[r.name], v = named[0].ID, &named[0].Verdict
		if said := misblamed(p, v); said != "" {
			out.wrong = append(out.wrong, r.name+": "+said)
		}
		out.causes = strings.Join(v.Causes, ", ")
		if v.Attribution != nil {
			out.causes += ": " + v.Attribution.Summary
		}
	}
	ids := slices.Compact(slices.Sorted(maps.Values(out.ids)))
	// One that missed a cycle may have a later first window.
	if len(ids) > 1 && out.missed == 0 {
		out.wrong = append(out.wrong, fmt.Sprintf("analyzers that missed nothing name it by different identifiers: %v", out.ids))
	}
}

// TestAlerts has one stack of everything that an operator runs, two analyzers among it, and
// what happens to it is its subtests: an hour in which nothing is broken (or seconds of
// it), work on the fabric that was announced, and faults.
func TestAlerts(t *testing.T) {
	c := newChain(t, "e2eal", *alertAnalyzers)
	began := time.Now()
	c.wait(3*time.Minute, "the network is innocent", c.innocent)
	t.Logf("innocent after %.0f s", time.Since(began).Seconds())
	c.wait(30*time.Second, "every probe is traced", c.everyPathTraced)
	// Causes need what was before: the Collector runs for a while when its part comes.
	var collector *collected
	for _, s := range []struct {
		name string
		run  func()
	}{{"silence", c.silence}, {"maintenance", c.maintenance}, {"faults", c.faults}, {"lies", c.lies}, {"unplugged", c.unplugged},
		{"collected", func() { collector.causes() }}} {
		if s.name == "lies" {
			collector = c.startCollector()
		}
		t.Run(s.name, func(t *testing.T) {
			if s.name == "collected" && collector == nil {
				t.Skip("needs otelcol-graylink (make collector)")
			}
			c.t = t
			began := time.Now()
			s.run()
			t.Logf("%.0f s", time.Since(began).Seconds())
		})
		c.t = t
	}
}

// draw draws the present dashboards into a directory. "" means that nothing is drawn.
func (c *chain) draw(dir string) {
	if dir == "" {
		return
	}
	out, err := exec.Command("go", "run", "../dashview", "--prometheus", "http://"+c.prometheus, "--out", dir, "--span", "3m").CombinedOutput()
	if err != nil {
		c.t.Errorf("dashview: %v", err)
	}
	c.t.Logf("%s", out)
}

// faults checks that for every fault one message with the element arrives at the webhook, though two analyzers name
// it, and a second one when it is over. Nothing else is sent, and dashboards show data while something is broken.
// make alerts has other kinds and the table of seconds.
func (c *chain) faults() {
	t := c.t
	kinds, err := demo.ParseKinds(demo.Namespaces, lab.RoutingStatic, fabric.ECMP, *alertKinds)
	if err != nil {
		t.Fatal(err)
	}
	from, to, err := demo.ParseSeeds(*alertSeeds)
	if err != nil {
		t.Fatal(err)
	}
	seen := c.watch()
	type row struct {
		verdict, webhook, resolved []float64
		right, alone, all          int
	}
	rows := map[string]*row{}
	judge := func(o alerted) {
		r := rows[o.kind]
		if r == nil {
			r = &row{}
			rows[o.kind] = r
		}
		r.all++
		t.Logf("%s seed %d at %s: verdict %.1f s, webhook %.1f s (%s: %s), resolved %.1f s after healing; %v, %.0f cycles missed", o.kind, o.seed, o.element, o.verdict, o.webhook, o.receiver,
			o.summary, o.resolved, o.ids, o.missed)
		t.Logf("  causes: %s", o.causes)
		for _, b := range o.besides {
			t.Logf("  besides: %s", b)
		}
		for _, w := range o.wrong {
			t.Logf("  wrong: %s", w)
		}
		if len(o.besides) > 0 || !o.right {
			c.explain(seen, c.planned(o.kind, o.seed), o.began)
		}
		if o.right {
			r.right++
			r.verdict, r.webhook = append(r.verdict, o.verdict), append(r.webhook, o.webhook)
		}
		if len(o.besides) == 0 {
			r.alone++
		}
		if o.resolved > 0 {
			r.resolved = append(r.resolved, o.resolved)
		}
		if !*alertTable && (!o.right || len(o.besides) > 0 || len(o.wrong) > 0 || o.resolved == 0) {
			t.Errorf("%s at %s: not exactly one alert that is resolved, with the right causes", o.kind, o.element)
		}
	}
	for seed := from; seed <= to; seed++ {
		var plans []demo.PlannedFault
		for _, kind := range kinds {
			plans = append(plans, c.planned(kind, seed))
		}
		groups := together(plans)
		if *alertTable { // seconds are compared: each fault has the fabric to itself
			groups = nil
			for _, p := range plans {
				groups = append(groups, []demo.PlannedFault{p})
			}
		}
		for i, group := range groups {
			var look func()
			if seed == to && i == len(groups)-1 {
				look = func() {
					c.dashboards()
					c.draw(*alertDraw)
				}
			}
			for _, o := range c.strike(group, seed, look) {
				judge(o)
			}
		}
	}
	for _, kind := range kinds {
		r := rows[kind]
		t.Logf("| %s | %d of %d | %d | %.1f | %.1f | %.1f | %.1f | %.1f |", kind, r.right, r.all, r.alone, percentile(r.verdict, 0.5), percentile(r.verdict, 0.9),
			percentile(r.webhook, 0.5), percentile(r.webhook, 0.9), percentile(r.resolved, 0.9))
		if !*alertTable {
			continue
		}
		limit := 18.0
		if kind == "blackhole" || kind == "link-down" {
			limit = 8
		}
		if p := percentile(r.webhook, 0.9); p > limit {
			t.Errorf("%s: at the webhook after %.1f s, P90; %.0f are allowed", kind, p, limit)
		}
	}
}
