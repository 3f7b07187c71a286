package audit

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func loadBandwidth(t *testing.T, file string, hosts ...string) []BandwidthRun {
	t.Helper()
	runs, err := LoadBandwidth(filepath.Join("testdata", "bandwidth", file), hosts)
	if err != nil {
		t.Fatal(err)
	}
	return runs
}

func TestBandwidthOfNCCLTests(t *testing.T) {
	runs := loadBandwidth(t, "all_reduce.txt")
	if len(runs) != 1 {
		t.Fatalf("%+v", runs)
	}
	r := runs[0]
	if want := "all_reduce_perf, 4 ranks on 2 hosts, NVIDIA H100 80GB HBM3, float sum"; r.Test != want || !slices.Equal(r.Hosts, []string{"h1", "h2"}) {
		t.Errorf("%q on %v, want %q", r.Test, r.Hosts, want)
	}
	// The bus bandwidth of the out-of-place operations, in 1e9 octets a second.
	want := []BandwidthPoint{{SizeBytes: 1048576, BytesPerSecond: 20.97e9}, {SizeBytes: 268435456, BytesPerSecond: 181.7e9, Wrong: 2}}
	if !slices.Equal(r.Points, want) {
		t.Errorf("%+v, want %+v", r.Points, want)
	}
	// Without the line of the name, the command has it. The operation has no reduction and no in-place check.
	older := loadBandwidth(t, "alltoall_old.txt")
	if len(older) != 1 || older[0].Test != "alltoall_perf, 2 ranks on 2 hosts, Tesla V100-SXM2-32GB, float" || len(older[0].Points) != 1 || older[0].Points[0].BytesPerSecond != 11.14e9 {
		t.Errorf("%+v", older)
	}
}

func TestBandwidthOfPerftest(t *testing.T) {
	runs := loadBandwidth(t, "ib_write_bw.txt", "h2", "h1")
	if len(runs) != 1 || runs[0].Test != "RDMA_Write BW Test, RC, 2 queue pairs, depth 128" || !slices.Equal(runs[0].Hosts, []string{"h1", "h2"}) {
		t.Fatalf("%+v", runs)
	}
	if p := runs[0].Points; len(p) != 1 || p[0].SizeBytes != 65536 || math.Abs(p[0].BytesPerSecond-46500*1048576) > 1 {
		t.Errorf("%+v", p)
	}
	gbit := loadBandwidth(t, "ib_write_bw_gbits.txt", "h1", "h2")
	// 392.11 Gbit/s and 392.13 of two repetitions
	if p := gbit[0].Points; len(p) != 1 || math.Abs(p[0].BytesPerSecond-392.12e9/8) > 1 {
		t.Errorf("%+v", p)
	}
}

func TestBandwidthIsStrict(t *testing.T) {
	nccl, err := os.ReadFile(filepath.Join("testdata", "bandwidth", "all_reduce.txt"))
	if err != nil {
		t.Fatal(err)
	}
	perf, err := os.ReadFile(filepath.Join("testdata", "bandwidth", "ib_write_bw.txt"))
	if err != nil {
		t.Fatal(err)
	}
	both := []string{"h1", "h2"}
	for name, x := range map[string]struct {
		text  string
		hosts []string
		want  string
	}{
		"nothing":             {"", nil, "no table"},
		"another program":     {"hello\n", nil, "no table"},
		"no name":             {strings.ReplaceAll(string(nccl), "all_reduce_perf", "x"), nil, "the name of the test is expected"},
		"no ranks":            {strings.ReplaceAll(string(nccl), "Rank", "rank"), nil, "lines of the ranks"},
		"a short row":         {strings.Replace(string(nccl), "    0    86.47", "    86.47", 1), nil, "f:14: 12 columns: 13 are expected"},
		"no number":           {strings.Replace(string(nccl), "20.97", "fast", 1), nil, `busbw: "fast"`},
		"a second run":        {string(nccl) + string(nccl), nil, "a second run begins"},
		"no hosts":            {string(perf), nil, "NODE,NODE=FILE"},
		"one host":            {string(perf), []string{"h1", "h1"}, "NODE,NODE=FILE"},
		"an unknown unit":     {strings.ReplaceAll(string(perf), "MB/sec", "kB/sec"), both, `unit "kB/sec"`},
		"a second test":       {string(perf) + string(perf), both, "a second test begins"},
		"no title":            {strings.Replace(string(perf), "RDMA_Write BW Test", "", 1), both, "the title of the test"},
		"a negative value":    {strings.Replace(string(perf), "46500.00", "-1", 1), both, "BW average"},
		"a value that is NaN": {strings.Replace(string(perf), "46500.00", "nan", 1), both, "BW average"},
	} {
		if _, err := ParseBandwidth("f", []byte(x.text), x.hosts); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want %q", name, err, x.want)
		}
	}
}

// newRun returns a run of a pair of hosts.
func newRun(gbps float64, hosts ...string) BandwidthRun {
	return BandwidthRun{File: strings.Join(hosts, "-") + ".txt", Test: fmt.Sprintf("RDMA_Write BW Test on %d hosts", len(hosts)), Hosts: hosts,
		Points: []BandwidthPoint{{SizeBytes: 2, BytesPerSecond: 5}, {SizeBytes: 1 << 20, BytesPerSecond: gbps * 1e9 / 8}}}
}

func TestBandwidthIsComparedWithLikeRuns(t *testing.T) {
	s := newSite(1, 4, 4, 8)
	var h []string
	for i := range s.g.Topo.Nodes {
		h = append(h, s.g.Topo.Nodes[i].Name)
	}
	h = h[:4]
	pairs := func(gbps func(a, b int) float64) (out []BandwidthRun) {
		for a := range h {
			for b := a + 1; b < len(h); b++ {
				out = append(out, newRun(gbps(a, b), h[a], h[b]))
			}
		}
		return out
	}
	good := pairs(func(a, b int) float64 { return 390 + float64(a) })
	onePair := pairs(func(a, b int) float64 {
		if a == 0 && b == 1 {
			return 200
		}
		return 390
	})
	oneHost := pairs(func(a, b int) float64 {
		if a == 2 || b == 2 {
			return 200
		}
		return 390
	})
	oneHost = append(oneHost, pairs(func(a, b int) float64 { // more pairs at the usual speed, one of them with the slow host
		return 390
	})[:2]...)
	wrong := slices.Clone(good)
	wrong[3].Points = []BandwidthPoint{{SizeBytes: 1 << 20, BytesPerSecond: 390e9 / 8, Wrong: 3}}
	for name, x := range map[string]struct {
		runs   []BandwidthRun
		status Status
		at     []string
		text   string
	}{
		"no runs":       {nil, Unknown, nil, ""},
		"good":          {good, Pass, nil, ""},
		"a pair":        {onePair, Fail, []string{h[0] + "," + h[1]}, "200.0 Gbit/s"},
		"a host":        {oneHost, Fail, []string{h[2]}, "3 of its 4 runs are slow"},
		"wrong values":  {wrong, Fail, []string{strings.Join(good[3].Hosts, ",")}, "3 values were wrong"},
		"too few":       {good[:3], Unknown, []string{h[0] + "," + h[1], h[0] + "," + h[2], h[0] + "," + h[3]}, "3 runs are like it"},
		"another test":  {append(slices.Clone(good), newRun(100, h[:3]...)), Unknown, []string{strings.Join(h[:3], ",")}, "1 runs are like it"},
		"unknown hosts": {append(slices.Clone(good), newRun(100, "x", "y")), Fail, []string{"x,y"}, "100.0 Gbit/s"},
	} {
		e := s.observe()
		e.Runs = x.runs
		r := Run(e, DefaultCriteria(), whole(s.g))
		c := checkOf(t, &r, "A14")
		var at []string
		for _, i := range c.Items {
			at = append(at, i.Element)
		}
		if c.Status != x.status || !slices.Equal(at, x.at) || len(x.at) > 0 && !strings.Contains(c.Items[0].Text, x.text) {
			t.Errorf("%s: %s at %v, want %s at %v\n%s", name, c.Status, at, x.status, x.at, describe(&r))
		}
	}
	// Runs of hosts outside the scope are compared with, and not judged.
	scope, err := ParseScope(s.g, "node:"+h[3])
	if err != nil {
		t.Fatal(err)
	}
	e := s.observe()
	e.Runs = onePair
	r := Run(e, DefaultCriteria(), scope)
	if c := checkOf(t, &r, "A14"); c.Status != Pass || c.Population != 3 {
		t.Errorf("%s of %d runs", c.Status, c.Population)
	}
}

// Whatever an output has, it is refused, or has runs that can be compared.
func FuzzParseBandwidth(f *testing.F) {
	files, err := filepath.Glob(filepath.Join("testdata", "bandwidth", "*.txt"))
	if err != nil || len(files) == 0 {
		f.Fatal(files, err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	s := newSite(1, 2, 2, 1)
	f.Fuzz(func(t *testing.T, text []byte) {
		runs, err := ParseBandwidth("f", text, []string{"a", "b"})
		if err != nil {
			return
		}
		if len(runs) == 0 {
			t.Fatal("no error and no run")
		}
		for _, r := range runs {
			if r.Test == "" || len(r.Hosts) == 0 || len(r.Points) == 0 {
				t.Errorf("%+v", r)
			}
			for _, p := range r.Points {
				if p.BytesPerSecond < 0 || math.IsNaN(p.BytesPerSecond) || math.IsInf(p.BytesPerSecond, 0) {
					t.Errorf("%+v", p)
				}
			}
		}
		e := NewRecorder(s.g, start).Evidence(start, nil, nil)
		e.Runs = slices.Concat(runs, runs, runs, runs)
		if c := checkBandwidth(newStudy(e, DefaultCriteria(), whole(s.g))); c.Population != 4*len(runs) {
			t.Errorf("%d runs are judged", c.Population)
		}
	})
}
