package localize

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

// FuzzLocalize checks that, whatever is in a file, verdicts name elements of the topology, the report is
// JSON, and nothing crashes.
func FuzzLocalize(f *testing.F) {
	g := worldtest.NewClos(f, 2, 2, 2)
	w := worldtest.NewWorld(g, 1)
	w.Delay[fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}] = 2e6
	var file bytes.Buffer
	for n := range 2 {
		for i, o := range w.Observe(n) {
			line, err := json.Marshal(o)
			if err != nil {
				f.Fatal(err)
			}
			if i%3 == 0 {
				f.Add(append(line, '\n'))
			}
			file.Write(append(line, '\n'))
		}
	}
	f.Add(file.Bytes())
	for _, weights := range [][]float64{nil, {1, 3}, {0, 1}, {1e-300, 1e12}} {
		for i, o := range w.Observe(0) {
			o.Path, o.PathState, o.Sprayed, o.Paths, o.Weights = nil, fabric.PathUnknown, true, g.ShortestPaths(o.Src, o.Dst, 4), weights
			if len(o.Paths) != len(weights) {
				o.Weights = nil
			}
			line, err := json.Marshal(o)
			if err != nil {
				f.Fatal(err)
			}
			if i%9 == 0 {
				f.Add(append(line, '\n'))
			}
		}
	}
	huge := strings.NewReplacer(`"sent":200`, `"sent":1099511627776`, `"p50":`, `"p50":28823037615171`, `"owd_ns":{`, `"owd_ns":{"min":-288230376151711744,`).Replace(file.String())
	f.Add([]byte(huge))
	f.Add([]byte("{\"edge\":\"h1/eth1>h3/eth1\",\"start\":\"2199-01-01T00:00:00Z\",\"window_ns\":1,\"sent\":9,\"lost\":9}\n{\"edge\":\"h1/eth1>h3/eth1\",\"start\":\"1970-01-01T00:00:00Z\",\"window_ns\":86400000000000,\"sent\":9,\"lost\":9}\nNaN\n{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			return
		}
		var obs []*fabric.Observation
		err := fabric.ReadObservations(bytes.NewReader(data), func(_ int, o *fabric.Observation) error {
			if CheckObservation(g, o) == nil {
				obs = append(obs, o)
			}
			return nil
		}, func(fabric.LineError) {})
		if err != nil {
			t.Fatal(err)
		}
		rep, bad, err := Localizer{Graph: g, Window: 10 * time.Second}.Run(obs)
		if err != nil || len(bad) > len(obs) {
			t.Fatalf("%d bad paths in %d observations, %v", len(bad), len(obs), err)
		}
		if _, err := json.Marshal(rep); err != nil {
			t.Error(err)
		}
		for _, v := range rep.Verdicts {
			if v.Confidence < 0 || v.Confidence > 1 || v.Summary == "" || v.Action == "" || v.Symptom.LossRatio < 0 || v.Symptom.LossRatio > 1 || v.Element.ID == "" {
				t.Errorf("%+v", v)
			}
		}
	})
}

// TestLocalizeAbsurdNumbers: the largest numbers that a file may hold do not add up to
// verdicts of the other sign.
func TestLocalizeAbsurdNumbers(t *testing.T) {
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 2), 1)
	obs := w.Observe(0)
	const most = int64(1) << 58
	for i, o := range obs {
		v := most
		if i%2 == 0 {
			v = -most
		}
		o.OWD.P50, o.OWD.P99, o.Sent, o.Lost = &v, &v, 1<<40, uint64(i)
		if i%3 == 0 {
			bound := most
			o.ClockErrorNS = &bound
		}
	}
	rep, err := FindFaults(w.Graph, obs, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := json.Marshal(rep); err != nil {
		t.Error(err)
	}
	for _, v := range rep.Verdicts {
		if v.Symptom.AddedDelayNS < 0 {
			t.Errorf("%s adds %d ns", v.Element.ID, v.Symptom.AddedDelayNS)
		}
	}
}

func TestLocalizeRefusesTooManyWindows(t *testing.T) {
	w := worldtest.NewWorld(worldtest.NewClos(t, 1, 2, 1), 1)
	one := w.Observe(0)[0]
	obs := make([]*fabric.Observation, maxWindows+1)
	for i := range obs {
		o := *one
		o.Start = one.Start.Add(time.Duration(i) * time.Minute)
		obs[i] = &o
	}
	if _, err := FindFaults(w.Graph, obs, time.Second); err == nil || !strings.Contains(err.Error(), "use a longer window") {
		t.Errorf("error %v", err)
	}
}

// TestLocalizeExcludesPathsOverNoLink checks that the other observations are explained as before.
func TestLocalizeExcludesPathsOverNoLink(t *testing.T) {
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 2), 3)
	d := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	w.Delay[d] = 2e6
	obs := w.Observe(0)
	for i, odd := range []fabric.Path{
		{{Switch: "leaf1", In: "dn1", Out: "nowhere"}, {Switch: "spine1", In: "dn1", Out: "dn2"}},
		{{Switch: "leaf1", In: "dn1", Out: "up1"}, {Switch: "spine2", In: "dn3", Out: "dn2"}},
		{{Switch: "spine1", In: "dn1", Out: "dn2"}},
	} {
		o := *obs[i]
		o.Path = odd
		if i == 2 {
			o.Path, o.Paths, o.PathState = nil, []fabric.Path{odd}, fabric.PathUnknown
		}
		obs = append(obs, &o)
	}
	rep, bad, err := Localizer{Graph: w.Graph, Window: 10 * time.Second}.Run(obs)
	if err != nil || len(bad) != 3 || bad[0].Observation != len(obs)-3 || !strings.Contains(bad[0].Err.Error(), "nowhere") {
		t.Fatalf("%v, %v", bad, err)
	}
	if len(rep.Verdicts) != 1 || rep.Verdicts[0].Direction != d.String() || rep.Edges.Duplicates != 0 {
		t.Errorf("%+v", rep.Verdicts)
	}
}

func TestLocalizeTakesAliasesForTheNIC(t *testing.T) {
	topo, found := fabric.ParseTopology("t.yaml", []byte(`version: 1
switches: [{name: leaf1, role: leaf}]
nodes: [{name: a, nics: [{device: e, aliases: [mlx5_0]}]}, {name: b, nics: [{device: e}]}]
links: [{a: a/e, b: "leaf1:1"}, {a: b/e, b: "leaf1:2"}]
`))
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	var obs []*fabric.Observation
	for i, line := range []string{`"a/mlx5_0>b/e"`, `"a/e>b/e#0"`, `"a/mlx5_0>b/e#0/r"`} {
		o, err := fabric.ParseObservation(fmt.Appendf(nil, `{"edge":%s,"start":"2026-11-20T10:00:%02dZ","window_ns":1000000000,"sent":100,"lost":0}`, line, i))
		if err != nil {
			t.Fatal(err)
		}
		obs = append(obs, o)
	}
	rep, err := FindFaults(fabric.NewGraph(topo), obs, 10*time.Second)
	if err != nil || rep.Edges.Total != 2 || obs[2].Edge != "a/e>b/e#0/r" || obs[2].Src != "b/e" {
		t.Errorf("%+v, %v", rep.Edges, err)
	}
}
