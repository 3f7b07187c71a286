//go:build all

package e2e

import (
	"flag"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/test/chaos"
)

var soakSpan = flag.Duration("soak.span", time.Minute, "how long TestSoak lasts; make soak does for 45 minutes")

// What a soak allows.
const (
	soakGrowth   = 8.0             // MB of resident memory of a program, from the first to the last tenth
	soakWarmUp   = 5 * time.Minute // until the first sample, or a fifth of the span
	soakSamples  = 240
	soakSlack    = 2 // files and goroutines, of which some are of requests that are on the way
	soakProgress = 5 * time.Minute
)

// TestSoak lets everything that an operator runs work on a healthy fabric with cross traffic, and disturbs nothing. Verdicts,
// lost probes, and growth of memory, open files and goroutines are errors. Processes and packets are observed at the kernel.
func TestSoak(t *testing.T) {
	c := newChain(t, "e2esoak", 2)
	c.wait(3*time.Minute, "the network is innocent", c.innocent)
	c.wait(time.Minute, "every probe is traced", c.everyPathTraced)
	defer c.crossTraffic()()
	o := c.observe()
	time.Sleep(min(soakWarmUp, *soakSpan/5))
	began, said := time.Now(), time.Now()
	before := o.account()
	looks, innocent := 0, 0
	known := map[string]bool{}
	for every := max(time.Second, *soakSpan/soakSamples); time.Since(began) < *soakSpan; time.Sleep(every) {
		o.sample()
		for _, r := range c.analyzers {
			_, incidents := c.verdicts(r)
			for _, in := range incidents {
				if in.OpenedAt.After(began) && !known[r.name+in.ID] {
					known[r.name+in.ID] = true
					t.Errorf("%6.0f s  %s: %s", time.Since(began).Seconds(), r.name, in.Summary)
				}
			}
		}
		if looks++; c.innocent() {
			innocent++
		}
		if time.Since(said) >= soakProgress {
			said = time.Now()
			t.Logf("%6.0f s  innocent in %d of %d looks, %d verdicts\n%s", time.Since(began).Seconds(), innocent, looks, len(known), o.table())
		}
	}
	for _, m := range c.messages(began) {
		if m.ofFabric() {
			t.Errorf("at the webhook: %s", m)
		} else {
			t.Logf("about Graylink itself: %s", m)
		}
	}
	kept := settle(before, o.account(), nil)
	t.Logf("%.0f s: innocent in %d of %d looks, %d verdicts; %s\n%s", time.Since(began).Seconds(), innocent, looks, len(known), kept, o.table())
	for _, w := range kept.wrong {
		t.Error(w)
	}
	for name := range o.usage {
		o.judgeGrowth(name)
	}
}

// judgeGrowth reports what of a program grew by more than a soak allows.
func (o *observer) judgeGrowth(name string) {
	t := o.c.t
	t.Helper()
	rss, ok := o.trend(name, rssOf)
	if !ok {
		t.Errorf("%s has %d samples, which show no trend", name, len(o.usage[name]))
		return
	}
	if rss.Growth() >= soakGrowth {
		t.Errorf("%s grew by %.1f MB, from %.1f to %.1f; less than %.0f are allowed", name, rss.Growth(), rss.First, rss.Last, soakGrowth)
	}
	routines, known := chaos.FitTrend(o.at[name], o.routine[name])
	files, _ := o.trend(name, filesOf)
	if !known || slices.Max(o.routine[name]) == 0 {
		t.Errorf("%s publishes no number of goroutines", name)
	}
	for what, x := range map[string]chaos.Trend{"open files": files, "goroutines": routines} {
		if x.Grew && x.Growth() > soakSlack {
			t.Errorf("%s: %s grew from %.0f to %.0f", name, what, x.First, x.Last)
		}
	}
}
