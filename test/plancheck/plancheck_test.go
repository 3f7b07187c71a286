package plancheck

import (
	"bytes"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plan"
)

// small is a fabric of three leaves and two spines whose links have speeds of their own.
const small = `version: 1
switches:
- {name: l1, role: leaf}
- {name: l2, role: leaf}
- {name: l3, role: leaf}
- {name: s1, role: spine}
- {name: s2, role: spine}
nodes:
- {name: h1, nics: [{device: e0}]}
- {name: h2, nics: [{device: e0}]}
- {name: h3, nics: [{device: e0}]}
- {name: h4, nics: [{device: e0}]}
- {name: h5, nics: [{device: e0}]}
- {name: h6, nics: [{device: e0}]}
links:
- {a: h1/e0, b: "l1:h1", speed_gbps: 400}
- {a: h2/e0, b: "l1:h2", speed_gbps: 400}
- {a: h3/e0, b: "l2:h3", speed_gbps: 400}
- {a: h4/e0, b: "l2:h4", speed_gbps: 400}
- {a: h5/e0, b: "l3:h5", speed_gbps: 400}
- {a: h6/e0, b: "l3:h6", speed_gbps: 400}
- {a: "l1:s1", b: "s1:l1", speed_gbps: 200}
- {a: "l1:s2", b: "s2:l1", speed_gbps: 400}
- {a: "l2:s1", b: "s1:l2", speed_gbps: 400}
- {a: "l2:s2", b: "s2:l2", speed_gbps: 100}
- {a: "l3:s1", b: "s1:l3", speed_gbps: 200}
- {a: "l3:s2", b: "s2:l3", speed_gbps: 400}
`

const smallJobs = `jobs:
- {job: a, order: [h1, h3]}
- {job: b, order: [h2, h5], demand_gbps: 150}
- {job: c, order: [h6, h4]}
`

// planOf returns the plan of jobs on a topology, without some elements.
func planOf(t *testing.T, topology []byte, jobsText string, qps int, exclude ...string) []byte {
	t.Helper()
	text, _ := planAndCatalogue(t, topology, jobsText, qps, exclude...)
	return text
}

// planAndCatalogue returns a plan, and the lines of the catalogue that it is made with.
func planAndCatalogue(t *testing.T, topology []byte, jobsText string, qps int, exclude ...string) (text, lines []byte) {
	t.Helper()
	topo, found := fabric.ParseTopology("topology.yaml", topology)
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	n, err := plan.NewNetwork(fabric.NewGraph(topo), plan.DefaultGoodput)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range exclude {
		if err := n.Exclude(e, "test"); err != nil {
			t.Fatal(err)
		}
	}
	jobs, err := plan.ParseJobs("jobs.yaml", strings.NewReader(jobsText))
	if err != nil {
		t.Fatal(err)
	}
	catalogue, hash := plan.NewCatalogue(n), plan.NewHash(n, 7)
	err = n.Pairs(jobs, func(src string, dst []string) error {
		for i := range 64 {
			if e, ok := hash.Entry(src, dst, uint16(plan.FirstRoCEPort+i)); ok {
				catalogue.Add(&e)
				var err error
				if lines, err = plan.AppendEntry(lines, &e); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.Make(&plan.Request{Network: n, Catalogue: catalogue, Jobs: jobs, QPs: qps, Steps: 500_000})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := p.Write(&out); err != nil {
		t.Fatal(err)
	}
	if wrong := plan.Check(n, catalogue, p); len(wrong) > 0 {
		t.Errorf("the planner's own check: %s", wrong[0])
	}
	return out.Bytes(), lines
}

// TestAttainableRates: over all paths of a catalogue that has all, the optimum is that of the topology. Without those by s2, the links to s1 alone
// carry the jobs.
func TestAttainableRates(t *testing.T) {
	text, lines := planAndCatalogue(t, []byte(small), smallJobs, 16)
	solver := Dense{Cells: 1e6}
	nothing := func(string) bool { return false }
	ideal, err := IdealRates([]byte(small), text, nothing, solver)
	if err != nil {
		t.Fatal(err)
	}
	all, err := AttainableRates([]byte(small), text, lines, nothing, solver)
	if err != nil {
		t.Fatal(err)
	}
	var some []byte
	for line := range strings.Lines(string(lines)) {
		if !strings.Contains(line, `"s2"`) {
			some = append(some, line...)
		}
	}
	few, err := AttainableRates([]byte(small), text, some, nothing, solver)
	if err != nil {
		t.Fatal(err)
	}
	for job, want := range map[string]float64{"a": 90.5, "b": 90.5, "c": 181 - 90.5} {
		if math.Abs(all[job]-ideal[job]) > Tolerance*ideal[job] || math.Abs(few[job]-want) > Tolerance*want {
			t.Errorf("job %s: %.3f of %.3f over all paths, and %.3f by s1, want %.3f", job, all[job], ideal[job], few[job], want)
		}
	}
}

// TestSolutions reads what clp writes, and what it does not.
func TestSolutions(t *testing.T) {
	x, err := readSolution(strings.NewReader("Optimal - objective value      -2.0411523\n      0 x0             2.0411523                       0\n      2 x2                     1              0.33333333\n"), 3)
	if err != nil || len(x) != 3 || x[0] != 2.0411523 || x[1] != 0 || x[2] != 1 {
		t.Errorf("%v (%v)", x, err)
	}
	for _, bad := range []string{"", "Infeasible - objective value 0\n", "Optimal - objective value 1\n 9 x9 1 0\n", "Optimal - objective value 1\n**   0 x0 1 0\n", "Optimal - objective value 1\n 0 x0 much 0\n"} {
		if _, err := readSolution(strings.NewReader(bad), 3); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}

// TestIdealRates compares the fractional optimum of plans with that of a linear program of a library.
func TestIdealRates(t *testing.T) {
	for _, lost := range []string{"", "l1:s1--s1:l1", "l3:s2--s2:l3"} {
		var exclude []string
		if lost != "" {
			exclude = []string{lost}
		}
		from, to, _ := strings.Cut(lost, "--")
		text := planOf(t, []byte(small), smallJobs, 16, exclude...)
		want, err := IdealRates([]byte(small), text, func(d string) bool { return d == from+"->"+to || d == to+"->"+from }, Dense{Cells: 1e6})
		if err != nil {
			t.Fatal(err)
		}
		p, err := plan.Read(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range p.Jobs {
			t.Logf("without %q: job %s has %.3f, the program gives %.3f", lost, j.Job, *j.IdealGbps, want[j.Job])
			if math.Abs(*j.IdealGbps-want[j.Job]) > Tolerance*want[j.Job] {
				t.Errorf("without %q: job %s has an ideal of %.3f Gb/s, and the program gives %.3f", lost, j.Job, *j.IdealGbps, want[j.Job])
			}
		}
	}
}

// TestPlansOfC4 checks plans of the calibration, and that a wrong rate and a wrong port are found.
func TestPlansOfC4(t *testing.T) {
	const dir = "../../deploy/plan/"
	text, err := os.ReadFile(dir + "c4.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var good []byte
	for _, c := range []struct {
		jobs    string
		exclude []string
	}{{"e1.yaml", nil}, {"e2.yaml", nil}, {"e3.yaml", []string{"spine5", "spine6", "spine7", "spine8"}}, {"e4.yaml", []string{"leaf1-left:up1--spine1:dn1"}}} {
		jobs, err := os.ReadFile(dir + c.jobs)
		if err != nil {
			t.Fatal(err)
		}
		good = planOf(t, text, string(jobs), 8, c.exclude...)
		if err := Check(text, good); err != nil {
			t.Errorf("%s: %v", c.jobs, err)
		}
	}
	for _, change := range [][2]string{{`"busbw_gbps":`, `"busbw_gbps":1`}, {`"flow_label":`, `"flow_label":1`}} {
		if bad := strings.Replace(string(good), change[0], change[1], 1); Check(text, []byte(bad)) == nil {
			t.Errorf("a plan with %s passes", change[1])
		}
	}
}
