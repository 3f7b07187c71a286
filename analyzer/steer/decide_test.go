package steer

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/fabric"
)

var noon = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// fabricOf returns a leaf with nodes h1 to hN.
func fabricOf(t testing.TB, n int) *fabric.Graph {
	t.Helper()
	var b strings.Builder
	b.WriteString("version: 1\nswitches: [{name: leaf1, role: leaf}]\nnodes:\n")
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&b, "  - {name: h%d, nics: [{device: eth1}]}\n", i)
	}
	b.WriteString("links:\n")
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&b, "  - {a: \"h%d/eth1\", b: \"leaf1:dn%d\"}\n", i, i)
	}
	top, findings := fabric.ParseTopology("topology.yaml", []byte(b.String()))
	if err := findings.Err(); err != nil {
		t.Fatal(err)
	}
	return fabric.NewGraph(top)
}

// placed returns the placements of jobs as the scheduler has them.
func placed(g *fabric.Graph, all ...jobs.Placement) *jobs.Map {
	r := jobs.NewRegister(g)
	r.ReplaceSource("slurm", all)
	return r.MapAt(noon)
}

func nodeNames(from, to int) (out []string) {
	for i := from; i <= to; i++ {
		out = append(out, fmt.Sprintf("h%d", i))
	}
	return out
}

// hang returns a diagnosis that a node has stopped.
func hang(id, job string, nodes ...string) workload.Diagnosis {
	return workload.Diagnosis{ID: id, Job: job, Syndrome: workload.NonCommHang, Pattern: workload.Absent, Nodes: nodes, BeganAt: noon.Add(-30 * time.Second),
		Open: true, Confidence: 0.999, Network: workload.Network{State: workload.Innocent}, Isolate: workload.Isolate{Nodes: nodes}, Summary: "The job waits."}
}

// scene is what a decision rests on.
type scene struct {
	now, before Cycle
	s           Surroundings
	history     []Action
	trusted     []string
}

// accepted returns a scene in which node h1 of job train is acted on.
func accepted(t testing.TB) *scene {
	g := fabricOf(t, 40)
	d := hang("d1", "train", "h1")
	return &scene{now: Cycle{noon, []workload.Diagnosis{d}}, before: Cycle{noon.Add(-time.Second), []workload.Diagnosis{d}},
		s: Surroundings{Graph: g, Jobs: placed(g, jobs.Placement{Job: "train", Nodes: nodeNames(1, 8)}, jobs.Placement{Job: "other", Nodes: nodeNames(9, 40)}),
			Witnesses: []Witness{{"h1", SilentAgent, noon}}, Sources: []maintenance.SourceState{{Source: "file", Up: true}}}}
}

func (c *scene) decide() []Decision { return Decide(c.now, c.before, c.s, c.history, c.trusted) }

// both changes the diagnosis of both cycles.
func (c *scene) both(change func(d *workload.Diagnosis)) {
	for _, all := range [][]workload.Diagnosis{c.now.Diagnoses, c.before.Diagnoses} {
		change(&all[0])
	}
}

// only changes the diagnosis of this cycle.
func (c *scene) only(change func(d *workload.Diagnosis)) { change(&c.now.Diagnoses[0]) }

// acted adds an action of the past.
func (c *scene) acted(ago time.Duration, id, job, node string) {
	c.history = append(c.history, Action{At: noon.Add(-ago), ID: id, Job: job, Node: node, Done: true})
}

// slow makes the diagnosis one of a slow job that began some time ago.
func (c *scene) slow(s workload.Syndrome, ago time.Duration) {
	c.both(func(d *workload.Diagnosis) { d.Syndrome, d.BeganAt = s, noon.Add(-ago) })
}

// window puts an element under maintenance.
func (c *scene) window(element string) {
	c.s.Maintenance = append(c.s.Maintenance, maintenance.Window{Element: element, From: noon.Add(-time.Hour)})
}

// decisionCases are scenes and the reason to refuse h1, or "" if it is acted on.
var decisionCases = []struct {
	name   string
	want   Reason
	change func(c *scene)
}{
	{"accepted", "", func(*scene) {}},
	{"of the past", NotOpen, func(c *scene) { c.only(func(d *workload.Diagnosis) { d.Open = false }) }},
	{"network guilty", NetworkGuilty, func(c *scene) { c.both(func(d *workload.Diagnosis) { d.Network.State = workload.Guilty }) }},
	{"network guilty now", NetworkGuilty, func(c *scene) { c.only(func(d *workload.Diagnosis) { d.Network.State = workload.Guilty }) }},
	{"network guilty before", NotConfirmed, func(c *scene) { c.before.Diagnoses[0].Network.State = workload.Guilty }},
	{"network undecided", "", func(c *scene) { c.both(func(d *workload.Diagnosis) { d.Network.State = workload.Insufficient }) }},
	{"network absent", NetworkUnknown, func(c *scene) { c.both(func(d *workload.Diagnosis) { d.Network.State = "" }) }},
	{"no node", NoNode, func(c *scene) { c.both(func(d *workload.Diagnosis) { d.Isolate.Nodes = nil }) }},
	{"acted on before", AlreadyActed, func(c *scene) { c.acted(48*time.Hour, "d1", "train", "h2") }},
	{"no syndrome", UnknownSyndrome, func(c *scene) { c.slow("tired", time.Hour) }},
	{"slow for 59 s", TooShort, func(c *scene) { c.slow(workload.CommSlow, 59*time.Second) }},
	{"slow for 60 s", "", func(c *scene) { c.slow(workload.NonCommSlow, 60*time.Second) }},
	{"slow since when", TooShort, func(c *scene) {
		c.both(func(d *workload.Diagnosis) { d.Syndrome, d.BeganAt = workload.CommSlow, time.Time{} })
	}},
	{"confidence 0.98", LowConfidence, func(c *scene) { c.only(func(d *workload.Diagnosis) { d.Confidence = 0.98 }) }},
	{"confidence 0.99", "", func(c *scene) { c.both(func(d *workload.Diagnosis) { d.Confidence = 0.99 }) }},
	{"confidence NaN", LowConfidence, func(c *scene) {
		c.only(func(d *workload.Diagnosis) { d.Confidence /= 0; d.Confidence -= d.Confidence })
	}},
	{"confidence 2", LowConfidence, func(c *scene) { c.only(func(d *workload.Diagnosis) { d.Confidence = 2 }) }},
	{"first cycle", NotConfirmed, func(c *scene) { c.before = Cycle{} }},
	{"same cycle twice", NotConfirmed, func(c *scene) { c.before.At = noon }},
	{"another node before", NotConfirmed, func(c *scene) { c.before.Diagnoses[0].Isolate.Nodes = []string{"h2"} }},
	{"another job before", NotConfirmed, func(c *scene) { c.before.Diagnoses[0].Job = "other" }},
	{"less confidence before", NotConfirmed, func(c *scene) { c.before.Diagnoses[0].Confidence = 0.98 }},
	{"no placements", PlacementUnknown, func(c *scene) { c.s.Jobs = nil }},
	{"job of a line", JobUnknown, func(c *scene) { c.both(func(d *workload.Diagnosis) { d.Job = "forged" }) }},
	{"node of another job", NotInPlacement, func(c *scene) { c.both(func(d *workload.Diagnosis) { d.Job = "other" }) }},
	{"no topology", NodeUnknown, func(c *scene) { c.s.Graph = nil }},
	{"source of windows is away", MaintenanceUnknown, func(c *scene) { c.s.Sources = append(c.s.Sources, maintenance.SourceState{Source: "coordinator"}) }},
	{"node in maintenance", InMaintenance, func(c *scene) { c.window("h1") }},
	{"NIC in maintenance", InMaintenance, func(c *scene) { c.window("h1/eth1") }},
	{"cable in maintenance", InMaintenance, func(c *scene) { c.window("h1/eth1--leaf1:dn1") }},
	{"port in maintenance", InMaintenance, func(c *scene) { c.window("leaf1:dn1") }},
	{"leaf in maintenance", InMaintenance, func(c *scene) { c.window("leaf1") }},
	{"another node in maintenance", "", func(c *scene) { c.window("h2"); c.window("leaf1:dn2") }},
	{"no witness", NoWitness, func(c *scene) { c.s.Witnesses = nil }},
	{"witness against another node", NoWitness, func(c *scene) { c.s.Witnesses[0].Node = "h2" }},
	{"old witness", NoWitness, func(c *scene) { c.s.Witnesses[0].At = noon.Add(-witnessAge - 1) }},
	{"witness of the future", NoWitness, func(c *scene) { c.s.Witnesses[0].At = noon.Add(1) }},
	{"witness of no known kind", NoWitness, func(c *scene) { c.s.Witnesses[0].Kind = "rumour" }},
	{"witness that claims trust", NoWitness, func(c *scene) { c.s.Witnesses[0].Kind = TrustedRecord }},
	{"NIC as witness", "", func(c *scene) { c.s.Witnesses[0].Kind = NICFinding }},
	{"kernel as witness", "", func(c *scene) { c.s.Witnesses[0].Kind = KernelFinding }},
	{"account that is not trusted", NoWitness, func(c *scene) {
		c.s.Witnesses, c.s.Accounts, c.trusted = nil, map[string]string{"train": "eve"}, []string{"ann"}
	}},
	{"account of another job", NoWitness, func(c *scene) {
		c.s.Witnesses, c.s.Accounts, c.trusted = nil, map[string]string{"other": "ann"}, []string{"ann"}
	}},
	{"no account", NoWitness, func(c *scene) {
		c.s.Witnesses, c.s.Accounts, c.trusted = nil, map[string]string{"train": ""}, []string{""}
	}},
	{"trusted account", "", func(c *scene) {
		c.s.Witnesses, c.s.Accounts, c.trusted = nil, map[string]string{"train": "ann"}, []string{"ann"}
	}},
	{"node within a day", NodeActed, func(c *scene) { c.acted(23*time.Hour, "d0", "before", "h1") }},
	{"node a day ago", "", func(c *scene) { c.acted(24*time.Hour, "d0", "before", "h1") }},
	{"job within ten minutes", JobLimit, func(c *scene) { c.acted(9*time.Minute, "d0", "train", "h2") }},
	{"two nodes in the hour", HourLimit, func(c *scene) { c.acted(59*time.Minute, "a", "x", "h20"); c.acted(time.Minute, "b", "y", "h21") }},
	{"one node in the hour", "", func(c *scene) { c.acted(60*time.Minute, "a", "x", "h20"); c.acted(time.Minute, "b", "y", "h21") }},
	{"of eight nodes one a day", DayLimit, func(c *scene) { c.acted(23*time.Hour, "d0", "train", "h2") }},
	{"clock set back", HourLimit, func(c *scene) { c.acted(-48*time.Hour, "a", "x", "h20"); c.acted(-48*time.Hour, "b", "y", "h21") }},
	{"five nodes at once", TooManyNodes, func(c *scene) { c.add("other", 9, 12) }},
	{"four nodes at once", "", func(c *scene) { c.add("other", 9, 11) }},
	{"five nodes, one elsewhere", "", func(c *scene) { c.add("other", 9, 11); c.add("train", 20, 20) }},
}

// add adds a diagnosis of later nodes of a job to both cycles.
func (c *scene) add(job string, from, to int) {
	for i := from; i <= to; i++ {
		d := hang(fmt.Sprintf("more%d", i), job, fmt.Sprintf("h%d", i))
		d.BeganAt = noon.Add(-time.Second)
		c.now.Diagnoses, c.before.Diagnoses = append(c.now.Diagnoses, d), append(c.before.Diagnoses, d)
	}
}

// reasonsOutside are those that a Steerer adds, with their tests in steer_test.go.
var reasonsOutside = []Reason{NotLeader, LeaderUnknown, AuditUnavailable}

func TestRule2EachReasonToRefuse(t *testing.T) {
	tested := map[Reason]bool{}
	for _, r := range reasonsOutside {
		tested[r] = true
	}
	for _, c := range decisionCases {
		t.Run(c.name, func(t *testing.T) {
			s := accepted(t)
			c.change(s)
			d := s.decide()[0]
			want := Refuse
			if c.want == "" {
				want = Act
			}
			if d.Result != want || d.Reason != c.want {
				t.Errorf("%s %q, want %s %q", d.Result, d.Reason, want, c.want)
			}
			if d.Result == Act && (d.Node != "h1" || d.Target != "h1" || d.Witness == "") {
				t.Errorf("%+v, want h1 with a witness", d)
			}
			tested[c.want] = true
		})
	}
	for _, r := range Reasons() {
		if !tested[r] {
			t.Errorf("no test refuses with %s", r)
		}
	}
}

func TestTheSchedulersNameIsTheTarget(t *testing.T) {
	c := accepted(t)
	// jobs.Map leaves out jobs without any node of the topology.
	c.s.Jobs = placed(c.s.Graph, jobs.Placement{Job: "train", Nodes: []string{"h1.example.org", "h2"}})
	if d := c.decide()[0]; d.Result != Act || d.Target != "h1.example.org" {
		t.Errorf("%+v, want h1.example.org as the target", d)
	}
}

func TestRule6LinksOfAGuiltyNetworkAreProposed(t *testing.T) {
	c := accepted(t)
	c.both(func(d *workload.Diagnosis) {
		d.Network.State, d.Isolate = workload.Guilty, workload.Isolate{Links: []string{"h1/eth1--leaf1:dn1"}}
	})
	got := c.decide()
	if len(got) != 1 || got[0].Reason != NetworkGuilty || !slices.Equal(got[0].Links, []string{"h1/eth1--leaf1:dn1"}) {
		t.Errorf("%+v, want the link proposed and nothing done", got)
	}
}

// A job of 32 nodes may lose two a day, so that a diagnosis of two nodes is one action on both.
func TestADiagnosisOfTwoNodesIsOneAction(t *testing.T) {
	c := accepted(t)
	c.both(func(d *workload.Diagnosis) { *d = hang("d1", "other", "h9", "h10") })
	c.s.Witnesses = []Witness{{"h9", NICFinding, noon}, {"h10", KernelFinding, noon}}
	got := c.decide()
	if len(got) != 2 || got[0].Result != Act || got[1].Result != Act || got[0].Node != "h10" {
		t.Errorf("%+v, want both nodes acted on", got)
	}
}

func TestRule4AnInterruptedActionIsContinuedForTenMinutes(t *testing.T) {
	for _, ago := range []time.Duration{resumeWithin - 1, resumeWithin} {
		c := accepted(t)
		c.history = []Action{{At: noon.Add(-ago), ID: "d1", Job: "train", Node: "h1"}}
		// The limits would forbid a new action.
		c.acted(0, "a", "x", "h20")
		c.acted(0, "b", "y", "h21")
		d := c.decide()[0]
		if resumed := ago < resumeWithin; d.Resumed != resumed || (d.Result == Act) != resumed {
			t.Errorf("begun %v ago: %+v", ago, d)
		}
		c.window("h1")
		if d := c.decide()[0]; d.Result == Act {
			t.Errorf("begun %v ago, in maintenance now: %+v", ago, d)
		}
	}
}

// One thousand diagnoses of one cycle, each of one job, exceed nothing.
func TestRule5LimitsHoldUnderAThousandDiagnoses(t *testing.T) {
	const n = 1000
	g := fabricOf(t, n)
	for _, test := range []struct {
		name        string
		nodes, acts int
	}{{"a thousand nodes", n, 0}, {"four nodes", 4, 2}, {"one node", 1, 1}} {
		t.Run(test.name, func(t *testing.T) {
			var all []workload.Diagnosis
			var running []jobs.Placement
			c := &scene{s: Surroundings{Graph: g}}
			for i := range n {
				node := fmt.Sprintf("h%d", i%test.nodes+1)
				all = append(all, hang(fmt.Sprintf("d%d", i), fmt.Sprintf("job%d", i), node))
				running = append(running, jobs.Placement{Job: fmt.Sprintf("job%d", i), Nodes: []string{node, "h999"}})
				c.s.Witnesses = append(c.s.Witnesses, Witness{node, SilentAgent, noon})
			}
			c.s.Jobs = placed(g, running...)
			c.now, c.before = Cycle{noon, all}, Cycle{noon.Add(-time.Second), all}
			acts := 0
			for _, d := range c.decide() {
				if d.Result == Act {
					acts++
				}
			}
			if acts != test.acts {
				t.Errorf("%d actions, want %d", acts, test.acts)
			}
		})
	}
}
