//go:build distributed

package e2e

import (
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/test/distributed"
)

var (
	engineKinds    = flag.String("engine.kinds", "blackhole,link-down,loss,delay,congest,flap,ecn,nic-slow,switch-slow,incast,miscable", "faults of TestDistributed, separated by commas")
	engineSeeds    = flag.String("engine.seeds", "1", "seeds of TestDistributed, A..B")
	enginePrograms = flag.String("engine.programs", "", "directory with prometheus and thanos; they are built if it is empty")
)

// engineChain is a chain whose series are kept by a distributed engine.
type engineChain struct {
	*chain
	engine *distributed.Engine
}

// startEngine starts the engine of a chain, and returns the pairs by which its files differ.
func startEngine(c *chain, addresses []string) *distributed.Engine {
	c.t.Helper()
	dir := *enginePrograms
	programs := distributed.Programs{Prometheus: dir + "/prometheus", Thanos: dir + "/thanos"}
	if dir == "" {
		var err error
		if programs, err = distributed.BuildPrograms(c.t.Context(), "../../tools", c.t.TempDir()); err != nil {
			c.t.Fatal(err)
		}
	}
	e, err := distributed.Start(c.t.Context(), distributed.Options{Programs: programs, Files: "../../deploy/prometheus/thanos", Dir: c.dir, Replace: addresses,
		FreeAddress: func() string { return freeAddress(c.t) }})
	c.t.Cleanup(func() {
		for _, name := range e.ProcessNames() {
			c.t.Logf("%s took %.1f s of processor time", name, e.CPUSeconds(name))
		}
		if err := e.Close(); err != nil {
			c.t.Error(err)
		}
		for _, name := range e.ProcessNames() {
			if c.t.Failed() {
				c.t.Logf("%s said:\n%s", name, tail(e.LogOf(name), 3000))
			}
		}
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.prometheus = e.QueryAddress()
	return e
}

// TestDistributed runs everything that an operator runs with a distributed engine in place of one Prometheus: the faults
// of docs/alerts.md are named by an analyzer beside the querier, and come to the webhook by the ruler's alerts.
func TestDistributed(t *testing.T) {
	x := &engineChain{}
	x.chain = newChainWith(t, "e2edi", "../../deploy/lab/demo.yaml", 1, []string{"--schedule.cadence=40ms"}, func(c *chain, addresses []string) { x.engine = startEngine(c, addresses) })
	began := time.Now()
	x.wait(5*time.Minute, "the network is innocent", x.innocent)
	t.Logf("innocent after %.0f s", time.Since(began).Seconds())
	for _, s := range []struct {
		name string
		run  func()
	}{{"faults", x.faults}} {
		t.Run(s.name, func(t *testing.T) {
			x.t = t
			began := time.Now()
			s.run()
			t.Logf("%.0f s", time.Since(began).Seconds())
		})
		x.t = t
	}
}

// webhookLimit is the time in which nine of ten faults are at the webhook, in seconds.
const webhookLimit = 15

// faults breaks one thing after the other, and checks that each makes one message.
func (x *engineChain) faults() {
	t := x.t
	kinds, err := demo.ParseKinds(*engineKinds)
	if err != nil {
		t.Fatal(err)
	}
	from, to, err := demo.ParseSeeds(*engineSeeds)
	if err != nil {
		t.Fatal(err)
	}
	seen := x.watch()
	var rows []string
	var webhook []float64
	for seed := from; seed <= to; seed++ {
		for _, kind := range kinds {
			p := x.planned(kind, seed)
			o := x.strike([]demo.PlannedFault{p}, seed, nil)[0]
			t.Logf("| %s | %d | %s | %.1f | %.1f | %.1f | %v |", o.kind, o.seed, o.element, o.verdict, o.webhook, o.resolved, o.right)
			rows = append(rows, strings.Join([]string{"", o.kind, o.element}, " | "))
			for _, b := range append(o.besides, o.wrong...) {
				t.Logf("  besides, or wrong: %s", b)
			}
			if !o.right || len(o.besides) > 0 {
				x.explain(seen, p, o.began)
				t.Errorf("%s at %s, seed %d: not exactly one alert that names it", kind, p.Element, seed)
			}
			if o.right {
				webhook = append(webhook, o.webhook)
			}
		}
	}
	if p := percentile(webhook, 0.9); p > webhookLimit {
		t.Errorf("faults are at the webhook after %.1f s, P90; %d s are allowed", p, webhookLimit)
	}
}
