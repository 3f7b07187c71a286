package e2e

import (
	"flag"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

var (
	alertKinds     = flag.String("alerts.kinds", "blackhole,congest", "faults of TestAlerts, separated by commas")
	alertSeeds     = flag.String("alerts.seeds", "1", "seeds of TestAlerts, A..B")
	alertTable     = flag.Bool("alerts.table", false, "TestAlerts judges seconds, on a machine that does nothing else, and not each fault")
	alertDraw      = flag.String("alerts.draw", "", "directory in which TestAlerts draws the dashboards while the last fault lasts, for people to look at")
	alertAnalyzers = flag.Int("alerts.analyzers", 2, "analyzers of TestAlerts, beside the same Prometheus")
)

// planned is a fault as the demo would choose it.
func (c *chain) planned(kind string, seed uint64) demo.Planned {
	c.t.Helper()
	p, err := demo.Plan(c.g, kind, seed, demo.Params{Delay: 2 * time.Millisecond, Loss: 0.1, Step: time.Millisecond, DriftPPM: 50})
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

func (c *chain) fault(f lab.Fault) (id string) {
	c.t.Helper()
	id, err := c.l.AddFault(c.t.Context(), f)
	if err != nil {
		c.t.Fatal(err)
	}
	return id
}

func (c *chain) heal(id string) {
	c.t.Helper()
	if err := c.l.ClearFault(c.t.Context(), id); err != nil {
		c.t.Fatal(err)
	}
}

// alerted is what became of one fault.
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

// named are the incidents that name a fault in an analyzer since a moment.
func (c *chain) named(r *replica, p demo.Planned, since time.Time) (out []analyzer.Incident) {
	_, incidents := c.verdicts(r)
	for i := range incidents {
		if incidents[i].OpenedAt.After(since) && p.Names(&incidents[i].Verdict) {
			out = append(out, incidents[i])
		}
	}
	return out
}

// missed are the cycles that analyzers left out, or had no evidence in.
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
func misblamed(p demo.Planned, v *fabric.Verdict) string {
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

// strike breaks something, waits for the alert, heals it and waits until it is over.
func (c *chain) strike(kind string, seed uint64, whileBroken func()) alerted {
	c.t.Helper()
	p := c.planned(kind, seed)
	out := alerted{kind: kind, seed: seed, element: p.Element, ids: map[string]string{}}
	missed := c.missed()
	// What was before was over at the end of a cycle; faults come at any time in one.
	time.Sleep(time.Duration(seed*617%1000) * time.Millisecond)
	began := time.Now()
	out.began = began
	id := c.fault(p.Fault)
	elements := map[string]bool{}
	first := func() *message {
		for _, r := range c.analyzers {
			for _, in := range c.named(r, p, began) {
				elements[in.Element.Element] = true
				if s := in.OpenedAt.Sub(began).Seconds(); out.verdict == 0 || s < out.verdict {
					out.verdict = s
				}
			}
		}
		for _, m := range c.messages(began) {
			if m.status == "firing" && elements[m.element] {
				return &m
			}
		}
		return nil
	}
	const patience = 45 * time.Second
	for end := began.Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if m := first(); m != nil {
			out.right, out.webhook, out.receiver, out.summary = true, m.at.Sub(began).Seconds(), m.receiver, m.summary
			break
		}
	}
	out.missed = c.missed() - missed
	if whileBroken != nil {
		whileBroken()
	}
	// What would come besides has three cycles and a group's interval to do so, and so have
	// the causes.
	<-time.After(max(0, time.Until(began.Add(time.Duration(out.webhook*float64(time.Second)+8e9)))))
	if out.right {
		c.agree(p, began, &out)
	}
	healed := time.Now()
	c.heal(id)
	over := func() bool {
		firing := map[string]time.Time{}
		for _, m := range c.messages(began) {
			delete(firing, m.receiver+m.name+m.element)
			if m.status == "firing" {
				firing[m.receiver+m.name+m.element] = m.at
			} else if m.at.After(healed) && elements[m.element] {
				out.resolved = m.at.Sub(healed).Seconds()
			}
		}
		return len(firing) == 0 && c.innocent()
	}
	for end := healed.Add(2 * time.Minute); time.Now().Before(end) && !over(); {
		time.Sleep(100 * time.Millisecond)
	}
	seen := map[string]bool{}
	once := 0
	for _, m := range c.messages(began) {
		switch {
		case m.status != "firing":
		case elements[m.element] && m.receiver == out.receiver:
			once++
		case seen[m.receiver+m.name+m.summary]:
		case m.ofFabric():
			out.besides = append(out.besides, m.String())
		default:
			c.t.Logf("about Graylink itself: %s", m) // on a machine that is busy with other things it is right
		}
		seen[m.receiver+m.name+m.summary] = true
	}
	if once > 1 {
		out.wrong = append(out.wrong, fmt.Sprintf("it was told of %d times", once))
	}
	return out
}

// agree takes down what the analyzers say of a fault: the same verdict, by its identifier,
// and the right causes.
func (c *chain) agree(p demo.Planned, began time.Time, out *alerted) {
	c.t.Helper()
	var v *fabric.Verdict
	for _, r := range c.analyzers {
		named := c.named(r, p, began)
		// Series are asked for every few cycles, and counted every second.
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
	for _, s := range []struct {
		name string
		run  func()
	}{{"silence", c.silence}, {"maintenance", c.maintenance}, {"faults", c.faults}, {"unplugged", c.unplugged}, {"collected", c.collected}} {
		t.Run(s.name, func(t *testing.T) {
			c.t = t
			began := time.Now()
			s.run()
			t.Logf("%.0f s", time.Since(began).Seconds())
		})
		c.t = t
	}
}

// draw draws the dashboards as they are now; "": nowhere.
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

// faults: for every fault one message arrives at the webhook, though two analyzers name it,
// with the element, and tells when it is over; nothing else is sent; and dashboards show
// data while something is broken. make alerts has other kinds and the table of seconds.
func (c *chain) faults() {
	t := c.t
	kinds, err := demo.ParseKinds(*alertKinds)
	if err != nil {
		t.Fatal(err)
	}
	from, to, err := demo.ParseSeeds(*alertSeeds)
	if err != nil {
		t.Fatal(err)
	}
	seen := c.watch()
	for _, kind := range kinds {
		var verdict, webhook, resolved []float64
		right, alone := 0, 0
		for seed := from; seed <= to; seed++ {
			var look func()
			if kind == kinds[len(kinds)-1] && seed == to {
				look = func() {
					c.dashboards()
					c.draw(*alertDraw)
				}
			}
			o := c.strike(kind, seed, look)
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
				c.explain(seen, c.planned(kind, seed), o.began)
			}
			if o.right {
				right++
				verdict, webhook = append(verdict, o.verdict), append(webhook, o.webhook)
			}
			if len(o.besides) == 0 {
				alone++
			}
			if o.resolved > 0 {
				resolved = append(resolved, o.resolved)
			}
			if !*alertTable && (!o.right || len(o.besides) > 0 || len(o.wrong) > 0 || o.resolved == 0) {
				t.Errorf("%s at %s: not exactly one alert that is resolved, with the right causes", kind, o.element)
			}
		}
		t.Logf("| %s | %d of %d | %d | %.1f | %.1f | %.1f | %.1f | %.1f |", kind, right, to-from+1, alone, percentile(verdict, 0.5), percentile(verdict, 0.9),
			percentile(webhook, 0.5), percentile(webhook, 0.9), percentile(resolved, 0.9))
		if !*alertTable {
			continue
		}
		limit := 18.0
		if kind == "blackhole" || kind == "link-down" {
			limit = 8
		}
		if p := percentile(webhook, 0.9); p > limit {
			t.Errorf("%s: at the webhook after %.1f s, P90; %.0f are allowed", kind, p, limit)
		}
	}
}
