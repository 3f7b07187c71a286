package jobs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// graph returns two planes of two spines and three leaves each, with two hosts under each pair of
// leaves; the node names are those that a scheduler would use.
func graph(t testing.TB) *fabric.Graph {
	t.Helper()
	var b strings.Builder
	b.WriteString("version: 1\nswitches:\n")
	for _, plane := range []string{"a", "b"} {
		for s := 1; s <= 2; s++ {
			fmt.Fprintf(&b, "  - {name: spine%d%s, role: spine, plane: %s}\n", s, plane, plane)
		}
		for l := 1; l <= 3; l++ {
			fmt.Fprintf(&b, "  - {name: leaf%d%s, role: leaf, plane: %s}\n", l, plane, plane)
		}
	}
	b.WriteString("nodes:\n")
	for h := 1; h <= 6; h++ {
		fmt.Fprintf(&b, "  - {name: h%d, nics: [{device: eth1, plane: a}, {device: eth2, plane: b}]}\n", h)
	}
	b.WriteString("links:\n")
	for i, plane := range []string{"a", "b"} {
		for h := 1; h <= 6; h++ {
			fmt.Fprintf(&b, "  - {a: \"h%d/eth%d\", b: \"leaf%d%s:dn%d\"}\n", h, i+1, (h+1)/2, plane, h)
		}
		for l := 1; l <= 3; l++ {
			for s := 1; s <= 2; s++ {
				fmt.Fprintf(&b, "  - {a: \"leaf%d%s:up%d\", b: \"spine%d%s:dn%d\"}\n", l, plane, s, s, plane, l)
			}
		}
	}
	tp, found := fabric.ParseTopology("t.yaml", []byte(b.String()))
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return fabric.NewGraph(tp)
}

var now = time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)

func placed(t *testing.T, all ...Placement) *Map {
	t.Helper()
	r := NewRegister(graph(t))
	r.ReplaceSource("test", all)
	return r.MapAt(now)
}

// TestCrossing: rule 3.
func TestCrossing(t *testing.T) {
	m := placed(t, Placement{Job: "wide", Nodes: []string{"h1", "h3"}}, Placement{Job: "under", Nodes: []string{"h1", "h2"}}, Placement{Job: "rail", NICs: []string{"h3/eth1", "h5/eth1"}}, Placement{Job: "one", Nodes: []string{"h6"}})
	for _, tt := range []struct {
		kind            fabric.Kind
		name, direction string
		want            string
	}{
		{fabric.KindLink, "leaf1a:up1--spine1a:dn1", "", "wide"},
		{fabric.KindLink, "leaf2a:up1--spine1a:dn2", "", "rail wide"},
		{fabric.KindLink, "leaf2b:up1--spine1b:dn2", "", "wide"},
		{fabric.KindLink, "leaf3a:up2--spine2a:dn3", "leaf3a:up2->spine2a:dn3", "rail"},
		{fabric.KindLink, "leaf3b:up2--spine2b:dn3", "", ""},
		{fabric.KindNIC, "h1/eth1", "leaf1a:dn1->h1/eth1", "under wide"},
		{fabric.KindNIC, "h6/eth2", "", "one"},
		{fabric.KindHost, "h3", "", "rail wide"},
		{fabric.KindSwitch, "leaf1a", "", "under wide"},
		{fabric.KindSwitch, "spine2b", "", "wide"},
		{fabric.KindLeafUplinks, "leaf1a", "", "wide"},
		{fabric.KindPort, "spine1a:dn3", "", "rail"},
		{fabric.KindQueue, "spine1a:dn3@tc3", "", "rail"},
		{fabric.KindPair, "leaf2a->leaf3a", "", "rail"},
		{fabric.KindCorridor, "leaf1a->spine2a->leaf2a", "", "wide"},
		{fabric.KindCorridor, "leaf1a->spine2a->leaf3a", "", ""},
		{fabric.KindClock, "h1/eth1", "", ""},
	} {
		v := fabric.Verdict{Element: fabric.Element{ID: tt.name, Kind: tt.kind}, Direction: tt.direction}
		if got := strings.Join(m.JobsCrossing(&v), " "); got != tt.want {
			t.Errorf("%s %s: %q, want %q", tt.kind, tt.name, got, tt.want)
		}
	}
	for name, want := range map[string]int{"wide": 2*2*2 + 2*2*2*2, "under": 8, "one": 4, "rail": 4 + 8} {
		if got := len(m.DirectionsOf(name)); got != want {
			t.Errorf("%s may cross %d ways, want %d", name, got, want)
		}
	}
	if got := (*Map)(nil).JobsCrossing(&fabric.Verdict{}); got != nil {
		t.Errorf("without a known placement: %q", got)
	}
}

// TestWhoRuns: rules 1, 2 and 4.
func TestWhoRuns(t *testing.T) {
	m := placed(t, Placement{Job: "a", ID: "1", Nodes: []string{"h1"}}, Placement{Job: "a", ID: "2", Nodes: []string{"h2"}}, Placement{Job: "b", ID: "3", Nodes: []string{"h3", "elsewhere", "leaf1a"}},
		Placement{Job: "c", Nodes: []string{"gone"}}, Placement{Job: "over", Nodes: []string{"h4"}, End: now}, Placement{Job: "later", Nodes: []string{"h4"}, Start: now.Add(time.Second)}, Placement{Job: "d", NICs: []string{"h4/eth9"}})
	if got := strings.Join(m.JobNames(), " "); got != "a.1 a.2 b" || m.Unknown != 4 {
		t.Errorf("%q, %d unknown", got, m.Unknown)
	}
	if p, ok := m.FindJob("2"); !ok || p.Job != "a.2" {
		t.Errorf("by its identifier: %+v", p)
	}
	if _, ok := m.FindJob("a"); ok {
		t.Error("one of two is found")
	}
	if !m.HasNIC("b", "h3/eth2") || m.HasNIC("b", "h1/eth1") {
		t.Error("NICs")
	}
	r := NewRegister(graph(t))
	if r.MapAt(now) != nil || (*Register)(nil).MapAt(now) != nil {
		t.Error("placements without a source")
	}
	r.ReplaceSource("x", []Placement{{Job: "soon", Nodes: []string{"h1"}, Start: now.Add(time.Minute)}})
	if first, again := r.MapAt(now), r.MapAt(now.Add(59*time.Second)); first != again || len(first.JobNames()) != 0 {
		t.Error("nothing began")
	}
	if got := r.MapAt(now.Add(time.Minute)).JobNames(); !slices.Equal(got, []string{"soon"}) {
		t.Errorf("%q", got)
	}
}

func TestHosts(t *testing.T) {
	for list, want := range map[string]string{
		"h1":                 "h1",
		"n[01-03,7],login":   "n01 n02 n03 n7 login",
		"rack[1-2]-n":        "rack1-n rack2-n",
		"n[099-101]":         "n099 n100 n101",
		"":                   "",
		"n[1-":               "error",
		"n[1]x[2]":           "error",
		"n[a]":               "error",
		"n[3-1]":             "error",
		"n[1-999999999]":     "error",
		"n[]":                "error",
		"n[0-99999],m[0-99]": "error",
	} {
		got, err := fabric.ExpandHosts(list)
		if text := strings.Join(got, " "); (err != nil) != (want == "error") || err == nil && text != want {
			t.Errorf("%q: %q, %v", list, text, err)
		}
	}
}

const scontrol = `JobId=4711 JobName=train7 UserId=ann(1000) Comment=NodeList=h9 JobState=RUNNING Reason=None RunTime=01:00:00 StartTime=2026-11-22T03:00:00 EndTime=2026-11-23T03:00:00 NodeList=h[1-2,5] BatchHost=h1 NumNodes=3 Command=/home/ann/run me.sh
JobId=4712 JobName=wait JobState=PENDING StartTime=Unknown EndTime=Unknown NodeList= NumNodes=3
JobId=4713 JobName=done JobState=COMPLETED StartTime=2026-11-22T01:00:00 EndTime=2026-11-22T02:00:00 NodeList=h3
`

const squeue = `             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)
              4711       gpu   train7      ann  R    1:00:00      3 h[1-2,5]
              4712       gpu     wait      bob PD       0:00      3 (Resources)
`

const pods = `{"kind":"List","items":[
 {"metadata":{"name":"w-0","namespace":"ml","labels":{"jobset.sigs.k8s.io/jobset-name":"train7","batch.kubernetes.io/job-name":"train7-w-0"}},"spec":{"nodeName":"h2"},"status":{"phase":"Running","startTime":"2026-11-22T02:00:05Z"}},
 {"metadata":{"name":"w-1","namespace":"ml","labels":{"jobset.sigs.k8s.io/jobset-name":"train7"}},"spec":{"nodeName":"h1"},"status":{"phase":"Running","startTime":"2026-11-22T02:00:00Z"}},
 {"metadata":{"name":"w-2","namespace":"ml","labels":{"jobset.sigs.k8s.io/jobset-name":"train7"}},"spec":{"nodeName":"h5"},"status":{"phase":"Succeeded"}},
 {"metadata":{"name":"dns","namespace":"kube-system"},"spec":{"nodeName":"h1"},"status":{"phase":"Running"}},
 {"metadata":{"name":"old","labels":{"job-name":"etl"}},"spec":{"nodeName":"h3"},"status":{"phase":"Running"}},
 {"metadata":{"name":"waits","labels":{"job-name":"etl2"}},"spec":{},"status":{"phase":"Pending"}}]}`

func TestParse(t *testing.T) {
	zone := time.FixedZone("site", 3600)
	for _, tt := range []struct {
		format, text string
		want         string
	}{
		{FormatScontrol, scontrol, "train7/4711 h1 h2 h5 2026-11-22T02:00:00Z"},
		{FormatScontrol, "No jobs in the system\n", ""},
		{FormatSqueue, squeue, "train7/4711 h1 h2 h5"},
		{FormatSqueue, "JOBID|NAME|STATE|START_TIME|NODELIST\n1|a b|RUNNING|2026-11-22T03:00:00|h1\n2|c|COMPLETED||\n", "a b/1 h1 2026-11-22T02:00:00Z"},
		{FormatKubernetes, pods, "ml/train7/ h1 h2 2026-11-22T02:00:00Z; etl/ h3"},
		{FormatPlacement, "jobs:\n- {job: train7, nodes: [\"h[1-2]\", h5], start: 2026-11-22T02:00:00Z, end: 2026-11-22T04:00:00Z}\n- {job: b, id: x, nics: [h1/eth1]}\n", "train7/ h1 h2 h5 2026-11-22T02:00:00Z 2026-11-22T04:00:00Z; b/x h1/eth1"},
		{FormatPlacement, `{"jobs":[{"job":"a","nodes":["h1"]}]}`, "a/ h1"},
		{FormatPlacement, "", ""},
	} {
		got, err := Parse(tt.format, "f", []byte(tt.text), zone)
		var text []string
		for _, p := range got {
			s := append([]string{p.Job + "/" + p.ID}, append(p.Nodes, p.NICs...)...)
			for _, at := range []time.Time{p.Start, p.End} {
				if !at.IsZero() {
					s = append(s, at.UTC().Format(time.RFC3339))
				}
			}
			text = append(text, strings.Join(s, " "))
		}
		if is := strings.Join(text, "; "); err != nil || is != tt.want {
			t.Errorf("%s: %q, %v; want %q", tt.format, is, err, tt.want)
		}
	}
	for _, tt := range []struct{ format, text, want string }{
		{"table", "", `format "table": want one of placement, scontrol, squeue, kubernetes`},
		{FormatScontrol, "\nJobName=x\n", "f:2: JobId is missing"},
		{FormatScontrol, "JobId=1 JobState=RUNNING NodeList=h[1-\n", "f:1: NodeList: hosts"},
		{FormatScontrol, "JobId=1 JobState=RUNNING StartTime=noon NodeList=h1\n", `f:1: StartTime: "noon": want a time`},
		{FormatScontrol, strings.Repeat("JobId=1 JobState=RUNNING NodeList=h[1-99999]\n", 1000), "f:11: more than 100000 jobs on 1000000 nodes"},
		{FormatSqueue, "4711 gpu train7\n", "f:1: no column JOBID in the header"},
		{FormatSqueue, "JOBID|NAME|STATE|NODELIST\n|x|R|h1\n", "f:2: JOBID is missing"},
		{FormatKubernetes, "{", "f: "},
		{FormatKubernetes, `{"kind":"Pod"}`, `f: kind: "Pod": want List or PodList`},
		{FormatPlacement, "jobs:\n- {nodes: [h1]}\n", "f:2: jobs[0].job: is missing"},
		{FormatPlacement, "jobs:\n- {job: a, hosts: [h1]}\n", `f:2: jobs[0]: unknown field "hosts"`},
		{FormatPlacement, "jobs:\n- {job: a, start: {at: noon}}\n", "f:2: jobs[0]: start: a mapping"},
		{FormatPlacement, "jobs:\n- {job: a, nodes: [\"h[\"]}\n", "f:2: jobs[0].nodes: hosts"},
		{FormatPlacement, "jobs:\n- {job: a, start: 2026-11-22T04:00:00Z, end: 2026-11-22T02:00:00Z}\n", "f:2: jobs[0].end:"},
		{FormatPlacement, "jobs:\n- job: a\n  ranks:\n  - {rank: 0, node: h1}\n  - {node: h2}\n", "f:5: jobs[0].ranks[1].rank: a number from 0 to 1"},
		{FormatPlacement, "jobs:\n- job: a\n  ranks:\n  - {rank: 0, node: h1}\n  - {rank: 2, node: h2}\n", "f:5: jobs[0].ranks[1].rank: a number from 0 to 1"},
		{FormatPlacement, "jobs:\n- job: a\n  ranks:\n  - {rank: 0, node: h1}\n  - {rank: 0, node: h2}\n", "f:5: jobs[0].ranks[1].rank: 0 is there twice"},
		{FormatPlacement, "jobs:\n- job: a\n  ranks:\n  - {rank: 0}\n", "f:4: jobs[0].ranks[0].node: is missing"},
		{FormatPlacement, "jobs:\n- job: a\n  nodes: [h1]\n  ranks:\n  - {rank: 0, node: h2}\n", `f:5: jobs[0].ranks[0].node: "h2" is no node of the job`},
		{FormatPlacement, "jobs:\n- job: a\n  ranks:\n  - {rank: 0, node: h2, gpu: -1}\n", "f:4: jobs[0].ranks[0].gpu: a number from 0 on"},
		{FormatPlacement, "jobs:\n- job: a\n  ranks:\n  - {rank: 0, node: h2, nic: h1/eth1}\n", "f:4: jobs[0].ranks[0].nic: a NIC of h2"},
		{FormatPlacement, "jobs:\n- job: a\n  ranks:\n  - {rank: 0, node: h2, host: h1}\n", `f:4: jobs[0].ranks[0]: unknown field "host"`},
		{FormatPlacement, "jobs:\n- job: a\n  ranks: 5\n", "f:3: jobs[0].ranks: "},
		{FormatPlacement, "jobs:\n- job: a\n  qps: 0\n", "f:3: jobs[0].qps: 0: a whole number from 1 to 1024"},
		{FormatPlacement, "placements: []\n", "f: "},
	} {
		if got, err := Parse(tt.format, "f", []byte(tt.text), zone); err == nil || !strings.Contains(err.Error(), tt.want) || got != nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s %q: %v, want %s", tt.format, tt.text, err, tt.want)
		}
	}
}

// TestAFileThatBreaks: rule 5.
func TestAFileThatBreaks(t *testing.T) {
	r := NewRegister(graph(t))
	f := &File{Path: filepath.Join(t.TempDir(), "jobs"), Format: FormatSqueue, Zone: time.UTC}
	if err := f.ReloadIfChanged(r); err == nil || r.MapAt(now) != nil {
		t.Errorf("no file: %v", err)
	}
	put := func(text string) error {
		if err := os.WriteFile(f.Path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return f.ReloadIfChanged(r)
	}
	if err := put(squeue); err != nil || len(r.MapAt(now).JobNames()) != 1 {
		t.Errorf("%v", err)
	}
	if err := put("slurm_load_jobs error: Unable to contact slurm controller\n"); err == nil || len(r.MapAt(now).JobNames()) != 1 {
		t.Errorf("broken: %v, %q", err, r.MapAt(now).JobNames())
	}
	if err := put(strings.SplitAfter(squeue, "\n")[0]); err != nil || r.MapAt(now) == nil || len(r.MapAt(now).JobNames()) != 0 {
		t.Errorf("no jobs: %v", err)
	}
}

func fuzz(f *testing.F, format string, seeds ...string) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		out, err := Parse(format, "f", b, time.UTC)
		if (err == nil) == (out == nil) || err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("%d jobs, %v", len(out), err)
		}
		for _, p := range out {
			if p.Job == "" || len(p.Nodes) > maxNodes {
				t.Errorf("%+v", p)
			}
		}
	})
}

func FuzzPlacement(f *testing.F) {
	fuzz(f, FormatPlacement, "jobs:\n- {job: train7, nodes: [\"h[1-2]\", h5], start: 2026-11-22T02:00:00Z}\n", "jobs: [&a {job: b}, *a]")
}
func FuzzScontrol(f *testing.F)   { fuzz(f, FormatScontrol, scontrol) }
func FuzzSqueue(f *testing.F)     { fuzz(f, FormatSqueue, squeue, "JOBID|NAME|STATE|NODELIST\n1|a|R|h1\n") }
func FuzzKubernetes(f *testing.F) { fuzz(f, FormatKubernetes, pods) }

// TestRanks: a rank has a place if one job alone is on the nodes and has as many ranks.
func TestRanks(t *testing.T) {
	all, err := Parse(FormatPlacement, "f", []byte(`jobs:
- {job: a, nodes: ["h[1-2]"], ranks: [{rank: 1, node: h2, gpu: 3, nic: h2/eth1}, {rank: 0, node: h1}]}
- {job: b, ranks: [{rank: 0, node: h3}, {rank: 1, node: h3}]}
- {job: c, nodes: [h4]}
`), time.UTC)
	if err != nil {
		t.Fatal(err)
	}
	if got := all[1].Nodes; !slices.Equal(got, []string{"h3"}) {
		t.Errorf("nodes of a job that has only ranks: %v", got)
	}
	r := NewRegister(graph(t))
	r.ReplaceSource("f", all)
	m := r.MapAt(now)
	for _, x := range []struct {
		hosts string
		ranks int
		want  string // node of rank 1
	}{{"h1", 2, "h2"}, {"h1 h2", 2, "h2"}, {"h1", 3, ""}, {"h1 h3", 2, ""}, {"h3", 2, "h3"}, {"h4", 2, ""}, {"h9", 2, ""}, {"", 2, ""}} {
		got, ok := m.PlaceOf(strings.Fields(x.hosts), x.ranks, 1)
		if got.Node != x.want || ok != (x.want != "") {
			t.Errorf("%+v: %+v %v", x, got, ok)
		}
		if got, ok := PlaceOf(all, "", strings.Fields(x.hosts), now, x.ranks, 1); got.Node != x.want || ok != (x.want != "") {
			t.Errorf("%+v without a topology: %+v %v", x, got, ok)
		}
	}
	if got, _ := m.PlaceOf([]string{"h1"}, 2, 1); got.GPU == nil || *got.GPU != 3 || got.NIC != "h2/eth1" {
		t.Errorf("%+v", got)
	}
	if got, ok := PlaceOf(all, "b", nil, now, 2, 0); !ok || got.Node != "h3" {
		t.Errorf("by the name of the job: %+v %v", got, ok)
	}
	var none *Map
	if _, ok := none.PlaceOf([]string{"h1"}, 2, 1); ok {
		t.Error("a place without placements")
	}
}
