package plancheck

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plan"
)

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
		topo, found := fabric.ParseTopology("c4.yaml", text)
		if err := found.Err(); err != nil {
			t.Fatal(err)
		}
		n, err := plan.NewNetwork(fabric.NewGraph(topo), plan.DefaultGoodput)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range c.exclude {
			if err := n.Exclude(e, "test"); err != nil {
				t.Fatal(err)
			}
		}
		f, err := os.Open(dir + c.jobs)
		if err != nil {
			t.Fatal(err)
		}
		jobs, err := plan.ParseJobs(c.jobs, f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		catalogue, hash := plan.NewCatalogue(n), plan.NewHash(n, 7)
		err = n.Pairs(jobs, func(src string, dst []string) error {
			for i := range 64 {
				if e, ok := hash.Entry(src, dst, uint16(plan.FirstRoCEPort+i)); ok {
					catalogue.Add(&e)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		p, err := plan.Make(&plan.Request{Network: n, Catalogue: catalogue, Jobs: jobs, QPs: 8, Steps: 500_000})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := p.Write(&out); err != nil {
			t.Fatal(err)
		}
		if err := Check(text, out.Bytes()); err != nil {
			t.Errorf("%s: %v", c.jobs, err)
		}
		if wrong := plan.Check(n, catalogue, p); len(wrong) > 0 {
			t.Errorf("%s: the planner's own check: %s", c.jobs, wrong[0])
		}
		good = out.Bytes()
	}
	for _, change := range [][2]string{{`"busbw_gbps":`, `"busbw_gbps":1`}, {`"flow_label":`, `"flow_label":1`}} {
		if bad := strings.Replace(string(good), change[0], change[1], 1); Check(text, []byte(bad)) == nil {
			t.Errorf("a plan with %s passes", change[1])
		}
	}
}
