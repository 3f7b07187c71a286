package web

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/catalogue"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plan"
)

// keptAnswers is an observer with answers by job.
type keptAnswers struct {
	of     map[string]*catalogue.Running
	wanted []catalogue.Question
}

func (k *keptAnswers) Kept(q catalogue.Question) *catalogue.Running { return k.of[q.Job] }
func (k *keptAnswers) Want(q catalogue.Question)                    { k.wanted = append(k.wanted, q) }

// runningJobs returns a snapshot with placements, and an observer with answers about two of the three jobs.
func runningJobs(t *testing.T) (*fabric.Graph, snapshot.Snapshot, *keptAnswers) {
	t.Helper()
	g := loadDemo(t)
	s := healthy(g)
	r := jobs.NewRegister(g)
	r.ReplaceSource("f", []jobs.Placement{{Job: "train<script>", Nodes: []string{"h1", "h3", "h5", "h7"}}, {Job: "eval", Nodes: []string{"h2", "h4"}}, {Job: "young", Nodes: []string{"h6", "h8"}}})
	s.Placed = r.MapAt(noon())
	rate := func(v float64) *float64 { return &v }
	var links []plan.LinkShare
	for i, l := range g.Topo.Links {
		if l.IsAccess() {
			continue
		}
		now := []float64{1.75, 0.25, 1, 1.25}[i%4]
		links = append(links, plan.LinkShare{Link: l.A + "->" + l.B, Now: now, Plan: 1}, plan.LinkShare{Link: l.B + "->" + l.A, Now: 2 - now, Plan: 1})
	}
	return g, s, &keptAnswers{of: map[string]*catalogue.Running{
		"train<script>": {Job: "train<script>", At: noon().Add(-12 * time.Second), Reasons: []string{}, Links: links,
			Observed: &plan.ObservedJob{Job: "train<script>", QPs: 64, Known: 64, Assumed: "ring", BusbwGbps: rate(206.9), PlannedGbps: rate(362), IdealGbps: rate(362),
				HurtBy: []plan.Collision{{Link: "leaf1:up1->spine1:dn1", CapacityGbps: 362, QPs: map[string]int{"train<script>": 9, "eval": 5}}},
				ByQPs:  []plan.Draw{{QPs: 1, P10: 181, Median: 181, P90: 362}, {QPs: 8, P10: 206.9, Median: 241.3, P90: 289.6}}},
			Others: []plan.ObservedJob{{Job: "eval", QPs: 16, Known: 16, BusbwGbps: rate(206.9), PlannedGbps: rate(362)}}},
		"eval": {Job: "eval", At: noon(), Reasons: []string{"The queue pairs of h4 were not read: agent of \"h4\": 404 Not Found."}, Observed: &plan.ObservedJob{Job: "eval", QPs: 8, AtMostGbps: rate(362)}},
	}}
}

// TestWhatQueuePairsDo: the page has the panel where agents list queue pairs, and observes the job that the reader has chosen. It draws the
// loads of now and of a plan where they are known, and says why the rate is unknown where it is.
func TestWhatQueuePairsDo(t *testing.T) {
	g, s, answers := runningJobs(t)
	h := handler(g, s)
	if body, _ := page(t, h, "/?job=eval"); strings.Contains(body, `id="running"`) {
		t.Error("the panel is there although no agent lists queue pairs")
	}
	h.Observer, h.MayObserve = answers, func(*http.Request) error { return nil }
	body, _ := page(t, h, "/")
	contains(t, body, `id="running"`, `<option value="eval">`, `<option value="train&lt;script&gt;">`)
	if len(answers.wanted) != 0 {
		t.Errorf("%v are observed although no job was chosen", answers.wanted)
	}
	body, all := page(t, h, "/?job=train%3Cscript%3E&adaptive_routing=off")
	contains(t, body, "Observed 13 s ago.", "206.9 Gb/s", "362.0 Gb/s", "a ring in the order of its nodes is assumed", "is held back by leaf1:up1-&gt;spine1:dn1 (362 Gb/s), which is full with queue pairs: 5 of eval, 9 of train&lt;script&gt;.",
		"with 8 queue pairs a connection and ports by chance: 241.3 Gb/s at the median", "Queue pairs as they run: the fullest link would need 175 % of its capacity, and 6 need more than all of it.",
		"With the source ports of a plan: the fullest link would need 100 % of its capacity, and none needs more than all of it.", `name="adaptive_routing" value="off" checked="checked"`)
	noForeignScript(t, all)
	if over, bars := with(all, "class", "load over"), with(all, "class", "load"); len(over) != 6 || len(over)+len(bars) != 32 {
		t.Errorf("%d bars, of which %d have too much", len(over)+len(bars), len(over))
	}
	if len(answers.wanted) != 1 || answers.wanted[0] != (catalogue.Question{Job: "train<script>", DSCP: 26, AdaptiveRouting: "off"}) {
		t.Errorf("observed: %+v", answers.wanted)
	}
	body, all = page(t, h, "/?job=eval")
	contains(t, body, "at most 362.0 Gb/s", "Why no rate is known", "The queue pairs of h4 were not read")
	if len(with(all, "class", "loads")) != 0 {
		t.Error("loads are drawn that are not known")
	}
	body, _ = page(t, h, "/?job=young")
	contains(t, body, `data-running="busy"`)
	body, _ = page(t, h, "/?job=other")
	contains(t, body, "No such job runs now on a node of the topology.")
	body, _ = page(t, h, "/?job=eval&dscp=99")
	contains(t, body, "parameter &#34;dscp&#34;")
	if n := len(answers.wanted); n != 3 {
		t.Errorf("%d jobs were observed, want those that run and that were chosen by a valid query", n)
	}
	refuse := handler(g, s)
	refuse.Observer, refuse.MayObserve = answers, func(*http.Request) error { return errors.New("only <loopback> clients") }
	body, _ = page(t, refuse, "/?job=eval")
	contains(t, body, "Nothing is observed anew for you: only &lt;loopback&gt; clients.", "Observed 1 s ago.", "at most 362.0 Gb/s")
	body, _ = page(t, refuse, "/?job=young")
	contains(t, body, "The queue pairs of this job have not been observed yet.")
	if strings.Contains(body, `data-running="busy"`) || len(answers.wanted) != 3 {
		t.Errorf("a client that may not act has jobs observed: %v\n%s", answers.wanted, body)
	}
	refuse.MayObserve = nil
	if page(t, refuse, "/?job=young"); len(answers.wanted) != 3 {
		t.Errorf("jobs are observed although no client may act: %v", answers.wanted)
	}
	if os.Getenv("GRAYLINK_SCREENSHOTS") != "" {
		for _, dark := range []bool{false, true} {
			shoot(t, h, fmt.Sprintf("running-%v", dark), "/?job=train%3Cscript%3E", dark)
		}
	}
}

// Of many links, the fullest are drawn, in their order.
func TestTheFullestLinksAreDrawn(t *testing.T) {
	var links []plan.LinkShare
	for i := range 3 * maxBars {
		links = append(links, plan.LinkShare{Link: fmt.Sprint(i), Now: float64(i%3) / 2})
	}
	panels := drawLoads(links)
	if len(panels) != 2 || len(panels[0].Bars) != maxBars || panels[0].Bars[0].Text != "2 100 %" || panels[0].Bars[maxBars-1].Text != "899 100 %" {
		t.Errorf("%+v", panels)
	}
	if got := drawLoads([]plan.LinkShare{{Link: "a"}}); got != nil {
		t.Errorf("links that carry nothing are drawn: %+v", got)
	}
}
