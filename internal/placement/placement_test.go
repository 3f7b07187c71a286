package placement

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

// whole has every key.
const whole = `jobs:
- job: train7
  id: "4711"
  nodes: ["h[1-2]"]
  nics: [h3/eth1]
  ranks: [{rank: 1, node: h3}, {rank: 0, node: h1, gpu: 2, nic: h1/eth1}]
  start: 2026-11-22T02:00:00Z
  end: 2026-11-23T02:00:00Z
  collective: alltoall
  order: [h3, "h[1-2]"]
  qps: 8
  demand_gbps: 100.5
- {job: copy, qps: 4, flows: [{src: h1/bond0, dst: h2/bond0, qps: 2}, {src: h2/bond0, dst: h1/bond0}]}
- &a {job: ranked, ranks: [{rank: 0, node: h2}, {rank: 1, node: h1}]}
`

func TestParse(t *testing.T) {
	got, err := Parse("f", []byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	gpu, demand := 2, 100.5
	want := []Job{
		{Job: "train7", ID: "4711", Nodes: []string{"h1", "h2"}, NICs: []string{"h3/eth1"}, Ranks: []Rank{{Node: "h1", GPU: &gpu, NIC: "h1/eth1"}, {Rank: 1, Node: "h3"}},
			Start: time.Date(2026, 11, 22, 2, 0, 0, 0, time.UTC), End: time.Date(2026, 11, 23, 2, 0, 0, 0, time.UTC),
			Collective: AllToAll, Order: []string{"h3", "h1", "h2"}, QPs: 8, DemandGbps: &demand, Line: 2},
		{Job: "copy", QPs: 4, Flows: []Flow{{"h1/bond0", "h2/bond0", 2}, {Src: "h2/bond0", Dst: "h1/bond0"}}, Line: 13},
		{Job: "ranked", Nodes: []string{"h2", "h1"}, Ranks: []Rank{{Node: "h2"}, {Rank: 1, Node: "h1"}}, Line: 14},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	if got[0].Name() != "train7.4711" || got[1].Name() != "copy" || !got[0].Sends() || !got[1].Sends() || got[2].Sends() {
		t.Errorf("%q, %q", got[0].Name(), got[1].Name())
	}
	if none, err := Parse("f", nil); err != nil || none == nil || len(none) != 0 {
		t.Errorf("an empty file: %v, %v", none, err)
	}
}

// Rule 1: an error names the file, the line, the field, and what is expected.
func TestErrorsNameLineAndField(t *testing.T) {
	for _, x := range [][2]string{
		{"jobs: 5", "f: "},
		{"placements: []", "f: "},
		{"jobs:\n- 5", "f:2: jobs[0]: a mapping is expected with job, id"},
		{"jobs:\n- {nodes: [h1]}", "f:2: jobs[0].job: is missing: a name is expected"},
		{"jobs:\n- {job: a}\n- {job: b, nodse: [h1]}", `f:3: jobs[1]: unknown field "nodse": one of job, id`},
		{"jobs:\n- {job: a, job: b}", "f:2: jobs[0]: job: is given twice"},
		{"jobs:\n- job: a\n  start: {at: noon}", "f:2: jobs[0]: start: a mapping: a text, a number, a time or a list"},
		{"jobs:\n- job: a\n  start: noon", "f:3: jobs[0].start: "},
		{"jobs:\n- job: a\n  nodes:\n  - h1\n  - \"h[\"", "f:5: jobs[0].nodes: hosts"},
		{"jobs:\n- job: a\n  order: [\"h[2-1]\"]", "f:3: jobs[0].order: hosts"},
		{"jobs:\n- job: a\n  start: 2026-11-22T04:00:00Z\n  end: 2026-11-22T02:00:00Z", "f:4: jobs[0].end: 2026-11-22T02:00:00Z is before start"},
		{"jobs:\n- job: a\n  qps: 0", "f:3: jobs[0].qps: 0: a whole number from 1 to 1024 is expected"},
		{"jobs:\n- job: a\n  qps: 1025", "f:3: jobs[0].qps: 1025: a whole number from 1 to 1024 is expected"},
		{"jobs:\n- job: a\n  qps: 0x0", "f:3: jobs[0].qps: 0: a whole number"},
		{"jobs:\n- job: a\n  qps: many", "f:3: jobs[0].qps: unmarshal errors: line 3: cannot unmarshal !!str `many` into...: a whole number is expected"},
		{"jobs:\n- job: a\n  demand_gbps: -1", "f:3: jobs[0].demand_gbps: -1: a number above 0 is expected"},
		{"jobs:\n- job: a\n  demand_gbps: .inf", "f:3: jobs[0].demand_gbps: +Inf: a number above 0 is expected"},
		{"jobs:\n- job: a\n  demand_gbps: .nan", "f:3: jobs[0].demand_gbps: NaN: a number above 0 is expected"},
		{"jobs:\n- job: a\n  collective: tree", `f:3: jobs[0].collective: "tree": ring or alltoall is expected`},
		{"jobs:\n- job: a\n  flows: 5", "f:3: jobs[0].flows: "},
		{"jobs:\n- job: a\n  flows:\n  - [h1/eth1, h2/eth1]", "f:4: jobs[0].flows: "},
		{"jobs:\n- job: a\n  flows:\n  - {src: h1, dst: h2/eth1}", `f:4: jobs[0].flows[0].src: "h1": a NIC or bond is expected (node/device)`},
		{"jobs:\n- job: a\n  flows:\n  - {src: h1/eth1, dst: h2/eth1}\n  - {src: h1/eth1}", `f:5: jobs[0].flows[1].dst: "": a NIC or bond is expected (node/device)`},
		{"jobs:\n- job: a\n  flows:\n  - {src: h1/eth1, dst: h2/eth1, qps: 0}", "f:4: jobs[0].flows[0].qps: 0: a whole number from 1 to 1024 is expected"},
		{"jobs:\n- job: a\n  flows:\n  - {src: h1/eth1, dst: h2/eth1, qp: 1}", `f:4: jobs[0].flows[0]: unknown field "qp": one of src, dst, qps is expected`},
		{"jobs:\n- job: a\n  order: [h1, h2]\n  flows:\n  - {src: h1/eth1, dst: h2/eth1}", "f:5: jobs[0].flows: no order and no collective are expected beside flows"},
		{"jobs:\n" + strings.Repeat("- {job: a, nodes: [\"h[1-99999]\"]}\n", 11), "f:12: jobs[10]: at most 1000000 nodes, NICs and flows are expected"},
	} {
		if got, err := Parse("f", []byte(x[0])); err == nil || !strings.Contains(err.Error(), x[1]) || got != nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want %s", x[0], err, x[1])
		}
	}
}

// FuzzParse: a file is refused with one line that names the file, or all its values are valid.
func FuzzParse(f *testing.F) {
	for _, text := range []string{whole, "jobs: [&a {job: b}, *a]", "jobs: [{job: a, order: [h1, \"h[2-3]\"], qps: 4, demand_gbps: 10}]", "jobs:\n- {job: a, flows: [&f {src: a/b, dst: c/d}, *f]}"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := Parse("f", text)
		if (err == nil) == (all == nil) || err != nil && (strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "f:")) {
			t.Fatalf("%d jobs, %v", len(all), err)
		}
		for i := range all {
			j := &all[i]
			if j.Job == "" || j.QPs < 0 || j.QPs > MaxQPs || len(j.Nodes)+len(j.Order)+len(j.Flows) > MaxNodes || len(j.Flows) > 0 && (j.Collective != "" || len(j.Order) > 0) {
				t.Fatalf("%+v", j)
			}
		}
	})
}
