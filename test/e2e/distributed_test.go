//go:build distributed

package e2e

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/test/distributed"
)

var (
	engineKinds    = flag.String("engine.kinds", "blackhole,link-down,loss,delay,congest,flap,ecn,nic-slow,switch-slow,incast,miscable", "faults of TestDistributed, separated by commas")
	engineSeeds    = flag.String("engine.seeds", "1", "seeds of TestDistributed, A..B")
	enginePrograms = flag.String("engine.programs", "", "directory with prometheus, thanos and mimir; they are built if it is empty")
)

// engineChain is a chain whose series are kept by a distributed engine.
type engineChain struct {
	*chain
	engine *distributed.Engine
}

// startEngine starts the engine of a chain by files of deploy/prometheus and programs that it is made of. addresses are the
// pairs by which the files differ.
func startEngine(c *chain, addresses []string, files string, programs []string, start func(context.Context, distributed.Options) (*distributed.Engine, error)) *distributed.Engine {
	c.t.Helper()
	dir := *enginePrograms
	if dir == "" {
		dir = c.t.TempDir()
		if err := distributed.BuildPrograms(c.t.Context(), "../../tools", dir, programs...); err != nil {
			c.t.Fatal(err)
		}
	}
	e, err := start(c.t.Context(), distributed.Options{Programs: dir, Files: "../../deploy/prometheus/" + files, Dir: c.dir, Replace: addresses,
		FreeAddress: func() string { return freeAddress(c.t) }})
	c.t.Cleanup(func() {
		for _, name := range e.ProcessNames() {
			if seconds, known := e.CPUSeconds(name); known {
				c.t.Logf("%s took %.1f s of processor time", name, seconds)
			}
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
	x.chain = newChainWith(t, "e2edi", "../../deploy/lab/demo.yaml", 1, []string{"--schedule.cadence=40ms"}, func(c *chain, addresses []string) {
		x.engine = startEngine(c, addresses, "thanos", []string{distributed.Prometheus, distributed.Thanos}, distributed.StartThanos)
	})
	began := time.Now()
	x.wait(5*time.Minute, "the network is innocent", x.innocent)
	t.Logf("innocent after %.0f s", time.Since(began).Seconds())
	for _, s := range []struct {
		name string
		run  func()
	}{{"deduplication", x.deduplication}, {"receiver", x.copyKilled}, {"replica", x.replicaKilled}, {"faults", x.faults}, {"sidecars", x.sidecars}} {
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

// faults breaks one thing after the other, and checks that each is named at the webhook in time, and nothing else. Columns of
// the table: kind, seed, element, seconds from the fault to the verdict and to the webhook, seconds from healing to the
// resolved message, whether the fault is named, and cycles without evidence.
func (x *engineChain) faults() {
	t := x.t
	kinds, err := demo.ParseKinds(demo.Namespaces, lab.RoutingStatic, fabric.ECMP, *engineKinds)
	if err != nil {
		t.Fatal(err)
	}
	from, to, err := demo.ParseSeeds(*engineSeeds)
	if err != nil {
		t.Fatal(err)
	}
	seen := x.watch()
	var webhook []float64
	for seed := from; seed <= to; seed++ {
		for _, kind := range kinds {
			p := x.planned(kind, seed)
			o := x.strike([]demo.PlannedFault{p}, seed, nil)[0]
			t.Logf("| %s | %d | %s | %.1f | %.1f | %.1f | %v | %.0f |", o.kind, o.seed, o.element, o.verdict, o.webhook, o.resolved, o.right, o.missed)
			// A ticket that becomes a page, as more NICs are seen to be affected, is about the same fault.
			others := slices.DeleteFunc(slices.Clone(o.besides), func(m string) bool { return strings.Contains(m, ": FabricFault "+o.element+":") })
			for _, b := range slices.Concat(o.besides, o.wrong) {
				t.Logf("  besides: %s", b)
			}
			if !o.right || len(others) > 0 {
				x.explain(seen, p, o.began)
				t.Errorf("%s at %s, seed %d: not exactly one alert that names it", kind, p.Element, seed)
			}
			if o.right {
				webhook = append(webhook, o.webhook)
			}
		}
	}
	body, _ := x.get("http://"+x.analyzers[0].address+"/metrics", nil)
	own := readSeries(bytes.NewReader(body))
	t.Logf("%d faults are at the webhook after %.1f s, P50, and %.1f s, P90; the lag is %.1f s, the age of samples %.2f s", len(webhook), percentile(webhook, 0.5), percentile(webhook, 0.9),
		own["graylink_analyzer_lag_seconds"], own["graylink_analyzer_sample_age_seconds"])
	if p := percentile(webhook, 0.9); p > webhookLimit {
		t.Errorf("faults are at the webhook after %.1f s, P90; %d s are allowed", p, webhookLimit)
	}
}

// replicaAges returns how old the newest sample of a series is that each Prometheus has written, in seconds, by the copies.
func (x *engineChain) replicaAges() map[string]float64 {
	x.t.Helper()
	var v struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	x.getJSON("http://"+x.engine.QueryAddress()+"/api/v1/query?dedup=false&query="+url.QueryEscape("time() - max by (replica) (timestamp("+ofOneNode+"))"), &v)
	out := map[string]float64{}
	for _, r := range v.Data.Result {
		text, _ := r.Value[1].(string)
		age, err := strconv.ParseFloat(text, 64)
		if err != nil {
			x.t.Fatal(err)
		}
		out[r.Metric["replica"]] = math.Round(10*age) / 10
	}
	return out
}

// redundant waits until samples of both Prometheus come again.
func (x *engineChain) redundant() {
	x.t.Helper()
	began := time.Now()
	x.wait(2*time.Minute, "samples of both Prometheus", func() bool {
		ages := x.replicaAges()
		for _, name := range distributed.Replicas {
			if age, there := ages[name]; !there || age > 4 {
				return false
			}
		}
		return true
	})
	x.t.Logf("both Prometheus write after %.1f s", time.Since(began).Seconds())
}

// valueAt returns the value of an expression of one series at a server, with further parameters of the query.
func (x *engineChain) valueAt(address, expr, more string) float64 {
	x.t.Helper()
	var v struct {
		Error string
		Data  struct{ Result []struct{ Value [2]any } }
	}
	x.getJSON("http://"+address+"/api/v1/query?query="+url.QueryEscape(expr)+more, &v)
	if v.Error != "" || len(v.Data.Result) > 1 {
		x.t.Fatalf("%s at %s: %q, %d series", expr, address, v.Error, len(v.Data.Result))
	}
	if len(v.Data.Result) == 0 {
		return math.NaN()
	}
	text, _ := v.Data.Result[0].Value[1].(string)
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		x.t.Fatalf("%s at %s: %v", expr, address, err)
	}
	return f
}

// deduplication checks what the querier and the ruler make of two Prometheus and three copies: sums are those of each
// Prometheus alone, recorded series are numbers, and no rule fails.
func (x *engineChain) deduplication() {
	t, engine := x.t, x.engine
	const probes = `sum(rate(fabric_probe_sent_total[10s] offset 5s))`
	whole := x.valueAt(engine.QueryAddress(), probes, "")
	copies := x.valueAt(engine.QueryAddress(), probes, "&dedup=false")
	for _, name := range distributed.Replicas {
		if own := x.valueAt(engine.ReplicaAddress(name), probes, ""); math.Abs(whole/own-1) > 0.05 || !(own > 0) {
			t.Errorf("the querier counts %.0f probes a second, and %s counts %.0f", whole, name, own)
		}
	}
	t.Logf("%.0f probes a second; %.1f times as many without deduplication", whole, copies/whole)
	if copies < 5*whole { // three copies of two Prometheus
		t.Errorf("without deduplication there are %.0f probes a second and with it %.0f: the copies are not there", copies, whole)
	}
	counted := x.ruleExpr("GraylinkReplicasCounted")
	count := fmt.Sprintf("count(%s)", counted)
	if n := x.valueAt(engine.QueryAddress(), count, ""); !math.IsNaN(n) {
		t.Errorf("GraylinkReplicasCounted would fire for %v jobs though the querier deduplicates", n)
	}
	if n := x.valueAt(engine.QueryAddress(), count, "&dedup=false"); !(n >= 4) {
		t.Errorf("without deduplication GraylinkReplicasCounted would fire for %v jobs, want one for each of the agents' and more", n)
	}
	x.recorded()
	x.wait(2*time.Minute, "the ruler evaluates every rule without an error", func() bool { return len(x.failingRules()) == 0 })
}

// ruleFile is a file of rules.
type ruleFile struct {
	Groups []struct {
		Rules []struct{ Alert, Record, Expr string }
	}
}

// eachRule calls a function with every rule of rules/.
func (x *engineChain) eachRule(each func(alert, record, expr string)) {
	x.t.Helper()
	files, err := filepath.Glob("../../rules/*.rules.yaml")
	if err != nil || len(files) == 0 {
		x.t.Fatal(files, err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			x.t.Fatal(err)
		}
		var f ruleFile
		if err := yaml.Unmarshal(b, &f); err != nil {
			x.t.Fatal(err)
		}
		for _, g := range f.Groups {
			for _, r := range g.Rules {
				each(r.Alert, r.Record, r.Expr)
			}
		}
	}
}

// ruleExpr returns the expression of an alert.
func (x *engineChain) ruleExpr(alert string) (expr string) {
	x.t.Helper()
	x.eachRule(func(a, _, e string) {
		if a == alert {
			expr = e
		}
	})
	if expr == "" {
		x.t.Fatalf("there is no alert %s", alert)
	}
	return expr
}

// recorded checks that the series that the ruler records are there, once each, and are numbers.
func (x *engineChain) recorded() {
	t, found := x.t, 0
	x.eachRule(func(_, record, _ string) {
		if record == "" {
			return
		}
		series := x.valueAt(x.engine.QueryAddress(), "count("+record+")", "")
		if math.IsNaN(series) {
			return // as those about verdicts, or those of an hour
		}
		found++
		if n := x.valueAt(x.engine.QueryAddress(), "count(histogram_count("+record+"))", ""); !math.IsNaN(n) {
			t.Errorf("%v of %v series of %s are histograms", n, series, record)
		}
		if n := x.valueAt(x.engine.QueryAddress(), "count("+record+" unless "+record+" < -1e300)", ""); n != series {
			t.Errorf("%v of %v series of %s are numbers", n, series, record)
		}
	})
	t.Logf("%d recorded names have series, which are numbers", found)
	if found < 8 {
		t.Errorf("only %d recorded names have series", found)
	}
}

// failingRules returns the rules of the ruler whose last evaluation failed.
func (x *engineChain) failingRules() (out []string) {
	var rules struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
	}
	x.getJSON("http://"+x.engine.RulerAddress()+"/api/v1/rules", &rules)
	for _, g := range rules.Data.Groups {
		for _, r := range g.Rules {
			if r.Health != "ok" || r.LastError != "" {
				out = append(out, r.Name+": "+r.LastError)
			}
		}
	}
	return out
}

// disturbed is what happened to the state of the analyzer while a part of the engine was down.
type disturbed struct {
	longest, whole time.Duration // without innocence, at a time and together
	states         map[fabric.State]int
}

// watchState disturbs the engine, and watches the state for a while. A verdict or a message about the fabric is an error.
func (x *engineChain) watchState(span time.Duration, disturb func()) disturbed {
	t, r := x.t, x.analyzers[0]
	x.wait(time.Minute, "the network is innocent", x.innocent)
	out := disturbed{states: map[fabric.State]int{}}
	began := time.Now()
	disturb()
	innocentAt, last := began, began
	var ages []string
	for time.Since(began) < span {
		if int(time.Since(began).Seconds()) > len(ages) {
			ages = append(ages, fmt.Sprint(x.replicaAges()))
		}
		state, incidents := x.verdicts(r)
		now := time.Now()
		out.states[state]++
		if state == fabric.Innocent {
			innocentAt = now
		} else {
			out.whole += now.Sub(last)
		}
		out.longest, last = max(out.longest, now.Sub(innocentAt)), now
		const unanswered = fabric.State("") // not innocent, and no verdict
		if state != fabric.Innocent && state != fabric.InsufficientEvidence && state != unanswered {
			t.Fatalf("after %v the state is %s: %+v", now.Sub(began), state, incidents)
		}
		time.Sleep(50 * time.Millisecond)
	}
	_, incidents := x.verdicts(r)
	for _, in := range incidents {
		if in.OpenedAt.After(began) {
			t.Errorf("a verdict: %s", in.Summary)
		}
	}
	for _, m := range x.messages(began) {
		if m.ofFabric() {
			t.Errorf("at the webhook: %s", m)
		}
	}
	t.Logf("in %v no innocence for %v at a time and %v together; %v", span, out.longest.Round(50*time.Millisecond), out.whole.Round(50*time.Millisecond), out.states)
	if out.longest > failOver {
		t.Logf("ages of the newest samples of each Prometheus, each second: %s", strings.Join(ages, " "))
	}
	return out
}

// Times in which the engine fails over, and how long the state is watched after something was killed.
const (
	// Deduplication by penalty skips two intervals when it changes to the other Prometheus, and a window of two seconds with
	// the lag needs samples on both sides.
	failOver  = 10 * time.Second
	watchSpan = 30 * time.Second
)

// gapOf returns the longest time without a sample of a series that is scraped every second, in the last minute.
func (x *engineChain) gapOf(series string) time.Duration {
	x.t.Helper()
	now := time.Now()
	var v struct {
		Error string
		Data  struct{ Result []struct{ Values [][2]any } }
	}
	// The age of the newest sample, at steps of a tenth of a second.
	x.getJSON(fmt.Sprintf("http://%s/api/v1/query_range?query=%s&start=%.1f&end=%.1f&step=0.1", x.engine.QueryAddress(), url.QueryEscape("time() - max(timestamp("+series+"))"),
		float64(now.Add(-45*time.Second).UnixMilli())/1e3, float64(now.Add(-5*time.Second).UnixMilli())/1e3), &v)
	if v.Error != "" || len(v.Data.Result) != 1 || len(v.Data.Result[0].Values) == 0 {
		x.t.Fatalf("%s: %s, %d series", series, v.Error, len(v.Data.Result))
	}
	longest := 0.0
	for _, p := range v.Data.Result[0].Values {
		text, _ := p[1].(string)
		age, err := strconv.ParseFloat(text, 64)
		if err != nil {
			x.t.Fatal(err)
		}
		longest = max(longest, age)
	}
	return time.Duration(longest * float64(time.Second))
}

// ofOneNode is a series of one agent, which both Prometheus scrape every second.
const ofOneNode = `graylink_node_unhealthy_flows{instance="h1"}`

// copyKilled checks that nothing happens when one of three receivers or ingesters is killed, and when it comes back: two have every
// sample.
func (x *engineChain) copyKilled() {
	t := x.t
	killed := x.engine.Copies[1]
	d := x.watchState(watchSpan, func() {
		if err := x.engine.KillProcess(killed); err != nil {
			t.Fatal(err)
		}
	})
	if d.longest > failOver {
		t.Errorf("no innocence for %v after %s was killed", d.longest, killed)
	}
	gap := x.gapOf(ofOneNode)
	t.Logf("the longest time without a sample was %v", gap)
	if gap > 2500*time.Millisecond {
		t.Errorf("no sample for %v though two copies were there", gap)
	}
	x.restart(killed)
}

// restart starts a process again, and watches the state meanwhile, as watchState does. It may take longer than that until the
// process is ready.
func (x *engineChain) restart(name string) {
	x.t.Helper()
	x.watchState(watchSpan, func() {
		if err := x.engine.StartProcess(name); err != nil {
			x.t.Fatal(err)
		}
	})
	if err := x.engine.WaitReady(x.t.Context(), name); err != nil {
		x.t.Fatal(err)
	}
}

// replicaKilled checks that no verdict comes of it when one of two Prometheus is killed, and that the gap is that of the
// engine's fail-over and shown as insufficient evidence.
func (x *engineChain) replicaKilled() {
	t := x.t
	for _, killed := range distributed.Replicas {
		d := x.watchState(watchSpan, func() {
			if err := x.engine.KillProcess(killed); err != nil {
				t.Fatal(err)
			}
		})
		gap := x.gapOf(ofOneNode)
		t.Logf("%s: the longest time without a sample was %v", killed, gap)
		if d.longest > failOver || gap > 6*time.Second {
			t.Errorf("no innocence for %v, and no sample for %v, after %s was killed", d.longest, gap, killed)
		}
		x.restart(killed)
		x.redundant()
	}
}

// sidecars checks the layout without receivers: an analyzer beside a querier over the sidecars of both Prometheus names a
// fault, and so does the one beside the receivers.
func (x *engineChain) sidecars() {
	t := x.t
	address, err := x.engine.StartSidecars(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(x.file(x.analyzers[0].config()))
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{name: "analyzer-sidecars", address: freeAddress(t), bin: bin}
	x.write(r.config(), strings.Replace(string(b), x.engine.QueryAddress(), address, 1))
	x.analyze(r)
	defer stop(t, r.cmd)
	state := func() fabric.State { s, _ := x.verdicts(r); return s }
	x.wait(2*time.Minute, "the network is innocent by the sidecars", func() bool { return state() == fabric.Innocent })
	const probes = `sum(rate(fabric_probe_sent_total[10s] offset 5s))`
	if a, b := x.valueAt(address, probes, ""), x.valueAt(x.engine.QueryAddress(), probes, ""); math.Abs(a/b-1) > 0.05 {
		t.Errorf("%.0f probes a second by sidecars, %.0f by receivers", a, b)
	}
	p := x.planned("delay", 2)
	began := time.Now()
	id := x.fault(p.Fault)
	x.wait(45*time.Second, "the verdict by the sidecars", func() bool { return len(x.named(r, p, began)) == 1 })
	t.Logf("%s at %s is named after %.1f s", p.Fault.Kind, p.Element, x.named(r, p, began)[0].OpenedAt.Sub(began).Seconds())
	x.heal(id)
	x.wait(2*time.Minute, "the network is innocent again", func() bool { return state() == fabric.Innocent })
	_, incidents := x.verdicts(r)
	if wrong := slices.DeleteFunc(incidents, func(in incident.Incident) bool { return p.NamedBy(&in.Verdict) || in.OpenedAt.Before(began) }); len(wrong) > 0 {
		t.Errorf("verdicts besides: %+v", wrong)
	}
}
