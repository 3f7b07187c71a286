//go:build all

package e2e

import (
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/internal/plan"
)

// planBy has an analyzer plan jobs, and returns the plan.
func (c *chain) planBy(r *replica, jobs string) *plan.Plan {
	c.t.Helper()
	resp, err := http.Post("http://"+r.address+"/api/v1/plan?qps=8", "application/json", strings.NewReader(jobs))
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		c.t.Fatalf("%s: %s", resp.Status, text)
	}
	p, err := plan.Read(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	if len(p.Assignments) == 0 || len(p.Unplaced) > 0 {
		c.t.Fatalf("%d queue pairs have a port, and %d have none", len(p.Assignments), len(p.Unplaced))
	}
	return p
}

// crossing counts the queue pairs of a plan on a link, in both directions.
func crossing(p *plan.Plan, d fabric.Direction) (n int) {
	for i := range p.Assignments {
		if l := p.Assignments[i].Links; slices.Contains(l, d.String()) || slices.Contains(l, d.Reverse().String()) {
			n++
		}
	}
	return n
}

// TestPlanAvoidsAVerdict: agents, Prometheus and an analyzer run, and packets on a link are delayed. The first plan that the analyzer
// makes once it names the link has no queue pair on it, and neither has the plan that graylink plan makes with the analyzer's verdicts,
// from a catalogue of before the fault.
func TestPlanAvoidsAVerdict(t *testing.T) {
	const topology, jobs = "../../deploy/lab/demo.yaml", "{jobs: [{job: ring, order: [h1, h3, h5, h7]}]}"
	c := newChain(t, "e2epv", 1)
	r := c.analyzers[0]
	c.wait(3*time.Minute, "the network is innocent", c.innocent)
	c.wait(time.Minute, "every probe is traced", c.everyPathTraced)
	bad := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	began := time.Now()
	if n := crossing(c.planBy(r, jobs), bad); n == 0 {
		t.Fatalf("no queue pair on %s before the fault", bad)
	}
	t.Logf("the first plan, with all traces, took %.2f s", time.Since(began).Seconds())
	entries, code := c.get("http://"+r.address+"/api/v1/catalogue", nil)
	if code != http.StatusOK || !strings.Contains(string(entries), `"out":"up1"`) {
		t.Fatalf("the catalogue: %d, %d octets", code, len(entries))
	}
	c.write("paths.jsonl", string(entries))
	c.write("ring.yaml", jobs)

	// The agents have not been given --rdma.queue-pairs, and graylink job says so.
	if stdout, stderr, _ := graylink(t, "job", "train1", "--analyzer", "http://"+r.address); !strings.Contains(stdout, "  rate       unknown\n") ||
		!strings.Contains(stdout, "The queue pairs of h3 were not read: agent of \"h3\": it runs without --rdma.queue-pairs") {
		t.Errorf("graylink job: %s%s", stdout, stderr)
	}

	id := c.fault(lab.Fault{Kind: lab.KindDelay, At: bad.LinkID(), Direction: bad.String(), Delay: 2 * time.Millisecond})
	struck := time.Now()
	var seen incident.Incident
	c.wait(2*time.Minute, "a verdict on the link", func() bool {
		_, all := c.verdicts(r)
		at := slices.IndexFunc(all, func(in incident.Incident) bool { return in.Open && in.Element.ID == bad.LinkID() })
		if at >= 0 {
			seen = all[at]
		}
		return at >= 0
	})
	noted := time.Now()
	p := c.planBy(r, jobs)
	t.Logf("the verdict was noted %.2f s after the fault, and the plan came %.2f s after that", noted.Sub(struck).Seconds(), time.Since(noted).Seconds())
	if n := crossing(p, bad); n != 0 {
		t.Errorf("%d queue pairs of the first plan after the verdict are on %s", n, bad)
	}
	excludes := func(p *plan.Plan) bool {
		return slices.Contains(p.Excluded, plan.Exclusion{Element: bad.LinkID(), Reason: "verdict " + seen.ID})
	}
	if !excludes(p) {
		t.Errorf("excluded: %v, want %s", p.Excluded, bad.LinkID())
	}
	make := func(more ...string) *plan.Plan {
		t.Helper()
		stdout, stderr, code := graylink(t, append([]string{"plan", "--topology", topology, "--jobs", c.file("ring.yaml"), "--catalogue", c.file("paths.jsonl"), "--qps", "8", "--format", "json"}, more...)...)
		p, err := plan.Read(strings.NewReader(stdout))
		if code != 0 || err != nil {
			t.Fatalf("exit code %d, %v: %s", code, err, stderr)
		}
		return p
	}
	if crossing(make(), bad) == 0 {
		t.Error("the command does not use the link without verdicts")
	}
	if p := make("--verdicts", "http://"+r.address); crossing(p, bad) != 0 || !excludes(p) {
		t.Errorf("the command with the analyzer's verdicts: %d queue pairs on %s, excluded %v", crossing(p, bad), bad, p.Excluded)
	}
	c.heal(id)
	c.wait(2*time.Minute, "the network is innocent again", c.innocent)
	if p := make("--verdicts", "http://"+r.address); crossing(p, bad) == 0 || len(p.Excluded) != 0 {
		t.Errorf("after the verdict: %d queue pairs on %s, excluded %v", crossing(p, bad), bad, p.Excluded)
	}
	if err := os.Remove(c.file("paths.jsonl")); err != nil {
		t.Error(err)
	}
}
