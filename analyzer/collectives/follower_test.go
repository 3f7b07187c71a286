package collectives

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/collectives/collectivestest"
	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sim/collective"
)

// hosts is the number of nodes of the test's fabric, half of them under each of two leaves with one spine.
const hosts = 8

func newGraph(t testing.TB) *fabric.Graph {
	t.Helper()
	var b strings.Builder
	b.WriteString("version: 1\nswitches:\n  - {name: spine1, role: spine, tier: 2, pod: p, plane: a}\n  - {name: leaf1, role: leaf, tier: 1, pod: p, plane: a}\n  - {name: leaf2, role: leaf, tier: 1, pod: p, plane: a}\nnodes:\n")
	for h := 1; h <= hosts; h++ {
		fmt.Fprintf(&b, "  - {name: h%d, nics: [{device: eth1, plane: a, rail: 0, addresses: [10.0.%d.1]}, {device: eth2, plane: a, rail: 1, addresses: [10.0.%d.2]}]}\n", h, h, h)
	}
	b.WriteString("links:\n  - {a: \"leaf1:up1\", b: \"spine1:dn1\", speed_gbps: 400}\n  - {a: \"leaf2:up1\", b: \"spine1:dn2\", speed_gbps: 400}\n")
	for h := 1; h <= hosts; h++ {
		for e := 1; e <= 2; e++ {
			fmt.Fprintf(&b, "  - {a: \"h%d/eth%d\", b: \"leaf%d:h%de%d\", speed_gbps: 400}\n", h, e, 1+(h-1)/(hosts/2), h, e)
		}
	}
	topology, findings := fabric.ParseTopology("test", []byte(b.String()))
	if err := findings.Err(); err != nil {
		t.Fatal(err)
	}
	return fabric.NewGraph(topology)
}

// rig is a Follower of agents by a clock that the test sets.
type rig struct {
	t      *testing.T
	agents *collectivestest.Agents
	*Follower
	now  time.Time
	snap snapshot.Snapshot
	jobs *jobs.Register
}

func newRig(t *testing.T) *rig {
	t.Helper()
	g := newGraph(t)
	r := &rig{t: t, jobs: jobs.NewRegister(g), now: time.Unix(1_790_000_000, 0)}
	var names []string
	for i := range g.Topo.Nodes {
		names = append(names, g.Topo.Nodes[i].Name)
	}
	r.agents = collectivestest.NewAgents(t, names...)
	r.Follower = New(Options{Graph: g, Client: r.agents.Client(), URL: func(node string) string { return r.agents.URL + "/" + node },
		Snapshot: func() snapshot.Snapshot { return r.snap }, Jobs: r.jobs, Now: func() time.Time { return r.now }})
	return r
}

// step lets a second pass: all nodes are read, and a cycle is run.
func (r *rig) step() State {
	r.now = r.now.Add(time.Second)
	for _, name := range r.names {
		r.Pull(context.Background(), name)
	}
	return r.Cycle(r.now)
}

// replay gives the agents records when their time comes, and returns the state of each second.
func (r *rig) replay(records []ccl.Record, each func(State)) {
	for i := 0; i < len(records); {
		for ; i < len(records) && workload.TimeOf(records[i]) <= r.now.UnixNano(); i++ {
			r.agents.Add(records[i])
		}
		each(r.step())
	}
}

func simulate(t *testing.T, fault collective.Kind) collective.Run {
	t.Helper()
	run, err := collective.Simulate(collective.Config{Seed: 2, DP: 4, TP: 2, PP: 1, Steps: 60, Fault: fault})
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// TestFollowLateRank: the records of all agents together give the same diagnosis as a file of them, with the job that the scheduler
// runs there, and only seconds after the fault.
func TestFollowLateRank(t *testing.T) {
	r, run := newRig(t), simulate(t, collective.LateRank)
	r.jobs.ReplaceSource("test", []jobs.Placement{{Job: "train", Nodes: []string{"h1", "h2", "h3", "h4"}}, {Job: "other", Nodes: []string{"h5"}}})
	var found workload.Diagnosis
	var at time.Time
	r.replay(run.Records, func(s State) {
		if len(s.Report.Diagnoses) > 0 && at.IsZero() {
			found, at = s.Report.Diagnoses[0], s.At
		}
	})
	if found.Syndrome != workload.NonCommSlow || !slices.Equal(found.Nodes, []string{run.Truth.Place.Host}) || found.Job != "train" || found.Network.State != workload.Innocent {
		t.Errorf("%+v, truth %+v", found, run.Truth)
	}
	if after := at.Sub(run.Truth.BeganAt); after < 0 || after > 8*time.Second {
		t.Errorf("found %v after the fault", after)
	}
	s := r.State()
	if rep, ok := s.JobReport("train"); !ok || len(rep.Diagnoses) != 1 || rep.State != workload.Suspect || rep.Coverage.RanksSeen == 0 || rep.Coverage.RanksSeen != rep.Coverage.RanksExpected {
		t.Errorf("%v %+v", ok, rep)
	}
	if _, ok := s.JobReport("other"); ok {
		t.Error("a job without records has a report")
	}
	if c := r.Counts(); c.Nodes != hosts || c.Unread != 0 || c.Records == 0 || c.Dropped[DropForeignHost] != 0 {
		t.Errorf("%+v", c)
	}
	asked := map[string]bool{}
	for range len(r.asks) {
		o := <-r.asks
		r.askFor(context.Background(), o)
		for _, h := range o.Hosts {
			asked[fmt.Sprintf("%s %s %s %d", h, o.Comm, o.Op, o.Seq)] = true
		}
	}
	got := r.agents.Asked()
	if len(asked) == 0 || len(got) != len(asked) || slices.ContainsFunc(got, func(a string) bool { return !asked[a] }) {
		t.Errorf("operations that took twice as long as normal: %v, and asked for %v", asked, got)
	}
}

// slowCell lets a job with a slow connection run, with what the fabric says, and returns the diagnosis of it.
func slowCell(t *testing.T, each func(r *rig, truth *collective.Truth)) workload.Diagnosis {
	t.Helper()
	r, run := newRig(t), simulate(t, collective.SlowCell)
	r.replay(run.Records, func(State) { each(r, &run.Truth) })
	s := r.State()
	if len(s.Report.Diagnoses) != 1 || s.Report.Diagnoses[0].Syndrome != workload.CommSlow {
		t.Fatalf("%+v", s.Report.Diagnoses)
	}
	return s.Report.Diagnoses[0]
}

// linksOf returns views of all links: covered by one healthy flow each.
func linksOf(g *fabric.Graph) (out []snapshot.LinkView) {
	for _, d := range g.LinkDirections() {
		out = append(out, snapshot.LinkView{From: d.From, To: d.To, Edges: 1})
	}
	return out
}

// TestNetworkOfSlowCell: an open incident in the connection's direction makes the network guilty. Without one there is not enough
// evidence until another communicator is known to use the same ways normally, however clean the probes are.
func TestNetworkOfSlowCell(t *testing.T) {
	var loss float64
	accuse := func(began, direction func(truth *collective.Truth) string, scenario fabric.Scenario, shift time.Duration) workload.Diagnosis {
		return slowCell(t, func(r *rig, truth *collective.Truth) {
			r.snap.At = r.now
			from, to := began(truth), direction(truth)
			seen := truth.BeganAt.Add(shift)
			if r.now.Before(seen) {
				return
			}
			link := fabric.LinkID(from, to)
			r.snap.Incidents = []incident.Incident{{Open: true, LastSeen: r.now, Verdict: fabric.Verdict{ID: "v1", Element: fabric.Element{Kind: fabric.KindAccessLink, ID: link},
				Direction: fabric.Direction{From: from, To: to}.String(), Scenario: scenario, FirstSeen: seen, Symptom: fabric.Symptom{LossRatio: loss}}}}
		})
	}
	nic := func(truth *collective.Truth) string {
		return fmt.Sprintf("%s/eth%d", truth.Place.Host, truth.Place.GPU+1)
	}
	g := newGraph(t)
	port := func(truth *collective.Truth) string { return g.PeerOf(nic(truth)) }
	if d := accuse(nic, port, fabric.Corridor, 2*time.Second); d.Network.State != workload.Guilty || len(d.Isolate.Links) != 1 || d.Network.Element != d.Isolate.Links[0] {
		t.Errorf("a delay on the way: %+v", d.Network)
	}
	for name, d := range map[string]workload.Diagnosis{
		"in the other direction": accuse(port, nic, fabric.Corridor, 2*time.Second),
		"long before":            accuse(nic, port, fabric.Corridor, -time.Minute),
	} {
		if d.Network.State != workload.Insufficient {
			t.Errorf("a delay %s: %+v", name, d.Network)
		}
	}
	if d := accuse(nic, port, fabric.HardFailure, -time.Minute); d.Network.State != workload.Guilty {
		t.Errorf("a hard failure that lasts: %+v", d.Network)
	}
	loss = 0.2
	if d := accuse(nic, port, fabric.Corridor, -time.Minute); d.Network.State != workload.Guilty {
		t.Errorf("a loss that lasts: %+v", d.Network)
	}
	if d := accuse(port, nic, fabric.Corridor, -time.Minute); d.Network.State != workload.Insufficient {
		t.Errorf("a loss that lasts, in the other direction: %+v", d.Network)
	}
	loss = 0.001
	if d := accuse(nic, port, fabric.Corridor, -time.Minute); d.Network.State != workload.Insufficient {
		t.Errorf("a small loss long before: %+v", d.Network)
	}
	clean := slowCell(t, func(r *rig, _ *collective.Truth) { r.snap.At, r.snap.Links = r.now, linksOf(g) })
	if n := clean.Network; n.State != workload.Insufficient || n.Coverage == nil || *n.Coverage != 1 || !strings.Contains(n.Reason, "no other job") {
		t.Errorf("clean probes alone: %+v", n)
	}
	partly := slowCell(t, func(r *rig, _ *collective.Truth) { r.snap.At, r.snap.Links = r.now, linksOf(g)[:4] })
	if n := partly.Network; n.State != workload.Insufficient || n.Coverage == nil || *n.Coverage != 0 || !strings.Contains(n.Reason, "do not cover") {
		t.Errorf("few clean probes: %+v", n)
	}
}

// TestForeignHosts (rule 1): what a node says of other hosts is counted and changes nothing.
func TestForeignHosts(t *testing.T) {
	r := newRig(t)
	at := ccl.KnownNanos(r.now.UnixNano())
	from := func(rank int, host string) ccl.From {
		return ccl.From{Job: "t7", Comm: "c", Rank: rank, NRanks: 4, Host: host}
	}
	r.agents.AddTo("h1",
		&ccl.Comm{Job: "t7", Comm: "c", NRanks: 4, Ranks: []ccl.Member{{Rank: 0, Host: "h1", NIC: "h1/eth1"}, {Rank: 1, Host: "h2"}, {Rank: 2, Host: "h1", NIC: "h2/eth1"}}},
		&ccl.Op{From: from(3, "h2"), Seq: 1, Op: "AllReduce", StartNS: at, ExecNS: ccl.KnownNanos(1), State: ccl.Completed},
		&ccl.Beat{From: from(1, ""), AtNS: at})
	r.step()
	kept := []ccl.Record{&ccl.Op{From: from(3, "h2")}, &ccl.Edge{From: from(3, "h1")}, &ccl.Beat{From: from(1, "")}}
	if foreign := ownRecords("h1", kept); foreign != 1 || kept[0].(*ccl.Op).Host != "h1" || kept[1].(*ccl.Edge).Host != "h1" || kept[2].(*ccl.Beat).Host != "" {
		t.Errorf("%d, %+v", foreign, kept)
	}
	if c := r.Counts(); c.Dropped[DropForeignHost] != 3 || c.Records != 3 {
		t.Errorf("%+v", c)
	}
}

// TestOrderOfRecords (rule 3): records wait for earlier ones, also those of a clock that is ahead, and not without a bound.
func TestOrderOfRecords(t *testing.T) {
	now := time.Unix(1_790_000_000, 0)
	beat := func(after time.Duration) ccl.Record {
		return &ccl.Beat{AtNS: ccl.KnownNanos(now.Add(after).UnixNano())}
	}
	q := queue{most: 4}
	if dropped := q.add([]ccl.Record{beat(0), beat(-time.Second), beat(time.Hour), beat(time.Millisecond), beat(0)}, now); dropped != 1 {
		t.Errorf("%d are dropped", dropped)
	}
	if got := q.take(now); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	got := q.take(now.Add(reorderHorizon))
	if len(got) != 2 || got[0].at >= got[1].at {
		t.Errorf("%+v", got)
	}
	if got = q.take(now.Add(longestWait)); len(got) != 2 || len(q.waiting) != 0 {
		t.Errorf("those of clocks that are ahead: %+v", got)
	}
}

// TestNodesThatDoNotAnswer (rules 4 and 6): they are counted, read less often and are silent if others answer. Lost records are
// counted, and reading goes on.
func TestNodesThatDoNotAnswer(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	beat := &ccl.Beat{From: ccl.From{Job: "t7", Comm: "c", NRanks: 1, Host: "h1"}, AtNS: ccl.KnownNanos(1)}
	r.agents.AddTo("h1", beat)
	r.step()
	r.agents.Break("h2", http.StatusNotFound)
	if again := r.Pull(ctx, "h2"); again != absentEvery {
		t.Errorf("without collectives: again after %v", again)
	}
	r.agents.Break("h1", http.StatusInternalServerError)
	last := time.Duration(0)
	for range 6 {
		again := r.Pull(ctx, "h1")
		if again < last || again > maxBackoff || again <= pullEvery {
			t.Errorf("again after %v", again)
		}
		last = again
	}
	if c := r.Counts(); c.Nodes != hosts-2 || c.Unread != 1 {
		t.Errorf("%+v", c)
	}
	if s := r.Silent(r.now); len(s) != 0 {
		t.Errorf("at once silent: %v", s)
	}
	if s := r.Silent(r.now.Add(silentAfter)); !slices.Equal(s, []string{"h1"}) {
		t.Errorf("silent: %v", s)
	}
	for _, n := range []string{"h3", "h4", "h5", "h6"} {
		r.agents.Break(n, http.StatusBadGateway)
		r.Pull(ctx, n)
	}
	if s := r.Silent(r.now.Add(silentAfter)); len(s) != 0 {
		t.Errorf("most nodes are unread, and silent: %v", s)
	}
	r.agents.Break("h1", 0)
	r.agents.AddTo("h1", beat)
	r.agents.Lose("h1")
	r.agents.AddTo("h1", beat, beat)
	if again := r.Pull(ctx, "h1"); again != pullEvery {
		t.Errorf("it answers: again after %v", again)
	}
	if c := r.Counts(); c.Dropped[DropMissed] != 1 || c.Records != 3 {
		t.Errorf("%+v", c)
	}
}

// TestWrongAnswers: an answer of another node, and one that is no page, change nothing.
func TestWrongAnswers(t *testing.T) {
	r := newRig(t)
	r.agents.AddTo("h1", &ccl.Beat{From: ccl.From{Job: "t7", Comm: "c", NRanks: 1, Host: "h1"}, AtNS: ccl.KnownNanos(1)})
	r.opts.URL = func(string) string { return r.agents.URL + "/h1" }
	for node, want := range map[string]string{"h2": `of node "h1"`} {
		if _, err := r.fetch(context.Background(), node, map[string][]string{"after": {"0"}, "limit": {"9"}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v", err)
		}
	}
	if again := r.Pull(context.Background(), "h2"); again == pullEvery || r.Counts().Records != 0 {
		t.Errorf("again after %v, %+v", again, r.Counts())
	}
	r.opts.URL = func(string) string { return "" }
	if again := r.Pull(context.Background(), "h1"); again == pullEvery {
		t.Error("an unknown address is read")
	}
}

// TestInherit: after a reload of the configuration nothing is read twice, and the diagnoses stay.
func TestInherit(t *testing.T) {
	r, run := newRig(t), simulate(t, collective.LateRank)
	r.replay(run.Records, func(State) {})
	next := New(r.opts)
	next.InheritFrom(r.Follower)
	read := r.Counts().Records
	r.Follower = next
	s := r.step()
	if len(s.Report.Diagnoses) != 1 || r.Counts().Records != read {
		t.Errorf("%+v, %d records instead of %d", s.Report.Diagnoses, r.Counts().Records, read)
	}
	for range 700 { // cycles without records, as after the end of the job
		s = r.Cycle(r.now)
	}
	if len(s.Report.Diagnoses) != 0 || s.Report.Coverage.Communicators != 0 {
		t.Errorf("a job that is long over: %+v", s.Report)
	}
	next.InheritFrom(nil)
}

// TestNodesStillToBeRead (rule 5): after a start, and while a node has more than it answered, nothing is concluded, but for ten
// seconds at most.
func TestNodesStillToBeRead(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	old := &ccl.Beat{From: ccl.From{Job: "t7", Comm: "c", NRanks: 1, Host: "h1"}, AtNS: ccl.KnownNanos(r.now.Add(-time.Minute).UnixNano())}
	r.agents.AddTo("h1", old)
	r.Pull(ctx, "h1")
	if s := r.Cycle(r.now); s.Report.Records.Read != 0 {
		t.Errorf("%d records are judged before all nodes were read", s.Report.Records.Read)
	}
	if s := r.Cycle(r.now.Add(catchUp)); s.Report.Records.Read != 1 || !s.At.Equal(r.now.Add(catchUp)) {
		t.Errorf("%+v", s)
	}
	if s := r.step(); s.Report.Records.Read != 1 || !r.held.IsZero() {
		t.Errorf("%+v", s)
	}
	r.page = 10
	many := make([]ccl.Record, pagesAtOnce*r.page+1)
	for i := range many {
		many[i] = old
	}
	r.agents.AddTo("h1", many...)
	if s := r.step(); s.Report.Records.Read != 1 {
		t.Errorf("%d records are judged before the node was read to its end", s.Report.Records.Read)
	}
	if s := r.step(); s.Report.Records.Read != uint64(len(many)+1) {
		t.Errorf("%d records are judged of %d", s.Report.Records.Read, len(many)+1)
	}
}
