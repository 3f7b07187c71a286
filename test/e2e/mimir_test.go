//go:build distributed

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/test/distributed"
)

// mimirChain is a chain whose series are those of a tenant of Mimir.
type mimirChain struct {
	engineChain
	enough string // limits that suffice, by graylink size
}

// TestMimir runs everything that an operator runs with Mimir in place of one Prometheus: limits that are too low are named by
// an alert, and with those that graylink size prints nothing is refused; an ingester and the elected Prometheus are killed;
// faults are named at the webhook by alerts of Mimir's ruler.
func TestMimir(t *testing.T) {
	x := &mimirChain{}
	x.chain = newChainWith(t, "e2emi", "../../deploy/lab/demo.yaml", 1, []string{"--schedule.cadence=40ms"}, x.start)
	for _, s := range []struct {
		name string
		run  func()
	}{{"series", x.tooFewSeries}, {"ruler", x.ruler}, {"ingester", x.copyKilled}, {"replica", x.electedKilled}, {"faults", x.faults}, {"nothing refused", x.nothingRefused}, {"rate", x.rateTooLow}} {
		t.Run(s.name, func(t *testing.T) {
			x.t = t
			began := time.Now()
			s.run()
			t.Logf("%.0f s", time.Since(began).Seconds())
		})
		x.t = t
		if t.Failed() && s.name == "series" {
			return // the network is not innocent
		}
	}
}

// Limits that are too low. The flows of the lab have 1,696 series, and some 7,000 samples come each second.
const (
	fewSeries  = 1000
	fewSamples = 2000 // a second, for both distributors together
)

// start starts Mimir with a limit of series that is too low.
func (x *mimirChain) start(c *chain, addresses []string) {
	stdout, stderr, code := graylink(c.t, "size", "--topology", c.topo, "--format", "mimir-overrides", "--tenant", distributed.Tenant, "--distributors", "2")
	if code != 0 {
		c.t.Fatalf("graylink size: %d: %s", code, stderr)
	}
	x.enough = stdout
	x.engine = startEngine(c, addresses, "mimir", []string{distributed.Prometheus, distributed.Mimir}, func(ctx context.Context, o distributed.Options) (*distributed.Engine, error) {
		return distributed.StartMimir(ctx, o, withLimit(c.t, x.enough, "max_global_series_per_user", fewSeries))
	})
	c.server = "\n  http_headers: {" + distributed.TenantHeader + ": {values: [" + distributed.Tenant + "]}}"
	c.header = http.Header{distributed.TenantHeader: {distributed.Tenant}}
}

// withLimit returns limits of tenants of which one has another value.
func withLimit(t *testing.T, overrides, name string, value int) string {
	t.Helper()
	lines := strings.Split(overrides, "\n")
	i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(strings.TrimSpace(l), name+":") })
	if i < 0 {
		t.Fatalf("no limit %s in %s", name, overrides)
	}
	lines[i] = lines[i][:strings.Index(lines[i], ":")+1] + " " + strconv.Itoa(value)
	return strings.Join(lines, "\n")
}

// seriesOf returns the series of a process.
func (x *mimirChain) seriesOf(address string) (s series) {
	x.t.Helper()
	x.wait(time.Minute, "the series of "+address, func() bool {
		body, code := x.get("http://"+address+"/metrics", nil)
		s = readSeries(bytes.NewReader(body))
		return code == http.StatusOK
	})
	return s
}

// refused returns how many samples each process of Mimir has refused, by reason.
func (x *mimirChain) refused() map[string]float64 {
	x.t.Helper()
	out := map[string]float64{}
	for _, name := range x.engine.ProcessNames() {
		if slices.Contains(distributed.Replicas, name) {
			continue
		}
		for series, v := range x.seriesOf(x.engine.MimirAddress(name)) {
			_, labels, is := strings.Cut(series, "cortex_discarded_samples_total{")
			if _, reason, has := strings.Cut(labels, `reason="`); is && has && v > 0 {
				reason, _, _ = strings.Cut(reason, `"`)
				out[name+" "+reason] += v
			}
		}
	}
	return out
}

// failed returns how many samples and histograms a Prometheus has failed to write.
func (x *mimirChain) failed(replica string) float64 {
	x.t.Helper()
	return x.seriesOf(x.engine.ReplicaAddress(replica)).sum(`^prometheus_remote_storage_(samples|histograms)_failed_total`)
}

// limitNamed checks that a limit that is too low is named by an alert at the webhook, and that no verdict comes of it.
func (x *mimirChain) limitNamed(began time.Time, setting string) {
	t := x.t
	var named, refused time.Time
	x.wait(4*time.Minute, "an alert names "+setting, func() bool {
		for _, m := range x.messages(began) {
			switch {
			case m.status != "firing":
			case m.name == "GraylinkLimitReached" && strings.Contains(m.summary, " "+setting+":"):
				named = m.at
			case m.name == "GraylinkSamplesRefused":
				refused = m.at
			}
			if m.ofFabric() {
				t.Fatalf("at the webhook: %s", m)
			}
		}
		state, incidents := x.verdicts(x.analyzers[0])
		if slices.ContainsFunc(incidents, func(in incident.Incident) bool { return in.OpenedAt.After(began) }) {
			t.Fatalf("a verdict: %+v", incidents)
		}
		if state == fabric.Suspect {
			t.Fatalf("the state is %s", state)
		}
		return !named.IsZero() && !refused.IsZero()
	})
	t.Logf("%s is named at the webhook after %.0f s, and GraylinkSamplesRefused is there after %.0f s", setting, named.Sub(began).Seconds(), refused.Sub(began).Seconds())
	for _, m := range x.messages(began) {
		if m.name == "GraylinkLimitReached" {
			t.Logf("  %s", m)
		}
	}
	t.Logf("refused: %v; failed: %.0f and %.0f", x.refused(), x.failed(distributed.Replicas[0]), x.failed(distributed.Replicas[1]))
	own := x.seriesOf(x.analyzers[0].address)
	state, _ := x.verdicts(x.analyzers[0])
	t.Logf("the analyzer: state %s, lag %.1f s, %.0f of %.0f flows observed", state, own["graylink_analyzer_lag_seconds"], float64(len(x.observations(x.analyzers[0]))), own["graylink_analyzer_expected_edges"])
}

// tooFewSeries checks that an alert names the limit of series that Mimir has started with, and that the network is innocent
// once the limit is raised.
func (x *mimirChain) tooFewSeries() {
	began := time.Now()
	x.limitNamed(began, "max_global_series_per_user")
	if x.innocent() {
		x.t.Error("the network is innocent although series are missing")
	}
	x.raise()
}

// raise gives the tenant the limits that graylink size prints, and waits until the network is innocent.
func (x *mimirChain) raise() {
	began := time.Now()
	if err := x.engine.SetOverrides(x.enough); err != nil {
		x.t.Fatal(err)
	}
	x.wait(5*time.Minute, "the network is innocent with limits that suffice", x.innocent)
	x.t.Logf("innocent %.0f s after the limits were raised", time.Since(began).Seconds())
}

// ruler checks that sums are those of each Prometheus alone, that series that the ruler records are there and are young, and
// that no rule fails.
func (x *mimirChain) ruler() {
	t, engine := x.t, x.engine
	const probes = `sum(rate(fabric_probe_sent_total[10s] offset 5s))`
	whole := x.valueAt(engine.QueryAddress(), probes, "")
	for _, name := range distributed.Replicas {
		if own := x.valueAt(engine.ReplicaAddress(name), probes, ""); math.Abs(whole/own-1) > 0.05 || !(own > 0) {
			t.Errorf("Mimir counts %.0f probes a second, and %s counts %.0f", whole, name, own)
		}
	}
	t.Logf("%.0f probes a second", whole)
	if n := x.valueAt(engine.QueryAddress(), "count("+x.ruleExpr("GraylinkReplicasCounted")+")", ""); !math.IsNaN(n) {
		t.Errorf("GraylinkReplicasCounted would fire for %v jobs though one Prometheus is accepted", n)
	}
	x.recorded()
	x.wait(2*time.Minute, "the ruler evaluates every rule without an error", func() bool { return len(x.failingRules()) == 0 })
	const ofASecond = "fabric:nic_probe_sent:rate_2s"
	raw, recorded := x.valueAt(engine.QueryAddress(), "time() - max(timestamp("+ofOneNode+"))", ""), x.valueAt(engine.QueryAddress(), "time() - max(timestamp("+ofASecond+"))", "")
	t.Logf("the newest sample of Prometheus is %.1f s old, and the newest that the ruler has recorded %.1f s", raw, recorded)
	if !(recorded < 10) {
		t.Errorf("what the ruler records is %.1f s old", recorded)
	}
}

// elected returns the Prometheus whose samples are accepted, and since when, by a distributor.
func (x *mimirChain) elected(distributor string) (replica string, since time.Time) {
	x.t.Helper()
	r, err := http.NewRequestWithContext(x.t.Context(), http.MethodGet, "http://"+x.engine.MimirAddress(distributor)+"/distributor/ha_tracker", nil)
	if err != nil {
		x.t.Fatal(err)
	}
	r.Header.Set("Accept", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		x.t.Fatal(err)
	}
	defer resp.Body.Close()
	var v struct {
		Elected []struct {
			UserID, Replica  string
			LastElectionTime time.Time
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil || len(v.Elected) != 1 || v.Elected[0].UserID != distributed.Tenant {
		x.t.Fatalf("elected: %+v, %v", v, err)
	}
	return v.Elected[0].Replica, v.Elected[0].LastElectionTime
}

// killReplica kills a Prometheus, either the one whose samples are accepted or the other one, and starts it again. It
// returns what became of the state, the longest time without a sample, and which Prometheus was accepted before and after.
func (x *mimirChain) killReplica(accepted bool) (d disturbed, gap time.Duration, before, after string) {
	t := x.t
	var killed time.Time
	name := ""
	d = x.watchState(watchSpan, func() {
		before, _ = x.elected("distributor-1")
		name = before
		if !accepted {
			name = otherReplica(before)
		}
		killed = time.Now()
		if err := x.engine.KillProcess(name); err != nil {
			t.Fatal(err)
		}
	})
	gap = x.gapOf(ofOneNode)
	after, since := x.elected("distributor-1")
	t.Logf("%s is killed: the longest time without a sample was %v; %s is elected, since %.1f s after", name, gap, after, since.Sub(killed).Seconds())
	if by2, _ := x.elected("distributor-2"); by2 != after {
		t.Errorf("distributors accept %s and %s", after, by2)
	}
	x.restart(name)
	return d, gap, before, after
}

func otherReplica(name string) string {
	if name == distributed.Replicas[0] {
		return distributed.Replicas[1]
	}
	return distributed.Replicas[0]
}

// electedKilled checks that no verdict comes of it when the Prometheus is killed whose samples are accepted, that the gap is
// the fail-over of Mimir and shown as insufficient evidence, and that nothing happens when the other one is killed.
func (x *mimirChain) electedKilled() {
	t := x.t
	if d, gap, before, after := x.killReplica(false); d.longest > failOver || gap > 2500*time.Millisecond || after != before {
		t.Errorf("no innocence for %v, no sample for %v, and %s is elected, after the other one than %s was killed", d.longest, gap, after, before)
	}
	d, gap, before, after := x.killReplica(true)
	if after == before {
		t.Errorf("%s is elected though it was killed", after)
	}
	if gap < 3*time.Second || gap > electionLimit {
		t.Errorf("no sample for %v, want the fail-over", gap)
	}
	if d.longest > electionLimit+failOver || d.states[fabric.InsufficientEvidence] == 0 {
		t.Errorf("no innocence for %v after %s was killed; states %v", d.longest, before, d.states)
	}
}

// electionLimit is the longest time without samples while Mimir accepts the other Prometheus. ha_tracker_failover_timeout is
// 5 s, an election was renewed up to 2 s before, and gossip and what waits in queues come to it.
const electionLimit = 15 * time.Second

// nothingRefused checks that no limit was reached since limits were those that graylink size prints.
func (x *mimirChain) nothingRefused() {
	t := x.t
	before, failed := x.refused(), x.failed(distributed.Replicas[0])+x.failed(distributed.Replicas[1])
	series := x.seriesOf(x.engine.MimirAddress(x.engine.Copies[0])).sum(`^cortex_ingester_memory_series$`)
	began := time.Now()
	x.pass(30, nil)
	after := x.refused()
	t.Logf("in %.0f s with %.0f series: refused before %v, and after %v", time.Since(began).Seconds(), series, before, after)
	for _, k := range slices.Sorted(maps.Keys(after)) {
		if strings.Contains(k, "limit") && after[k] > before[k] {
			t.Errorf("%s: %.0f samples are refused", k, after[k]-before[k])
		}
	}
	if now := x.failed(distributed.Replicas[0]) + x.failed(distributed.Replicas[1]); now > failed {
		t.Errorf("%.0f samples are not written", now-failed)
	}
	t.Logf("limits:\n%s", x.enough)
}

// rateTooLow checks that an alert names the limit of the rate, and that the network is innocent once it is raised.
func (x *mimirChain) rateTooLow() {
	began := time.Now()
	low := withLimit(x.t, withLimit(x.t, x.enough, "ingestion_rate", fewSamples), "ingestion_burst_size", fewSamples)
	if err := x.engine.SetOverrides(low); err != nil {
		x.t.Fatal(err)
	}
	x.limitNamed(began, "ingestion_rate")
	x.raise()
	x.wait(4*time.Minute, "the alert is resolved", func() bool {
		return slices.ContainsFunc(x.messages(began), func(m message) bool { return m.name == "GraylinkLimitReached" && m.status == "resolved" })
	})
}
