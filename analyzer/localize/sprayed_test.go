package localize

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

// sprayedFile returns a file of windows of a fabric whose leaves spray: 100 packets a second between all NICs, for some windows of
// a second. what a directed link loses and adds is given. weights are those of the paths to a leaf, nil if all are equal.
func sprayedFile(t *testing.T, g *fabric.Graph, seconds int, weights func(to string) []float64, loss map[fabric.Direction]float64, delay map[fabric.Direction]int64) []byte {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	var file bytes.Buffer
	p := func(v int64) *int64 { return &v }
	for second := range seconds {
		for _, src := range g.NICIDs() {
			for _, dst := range g.NICIDs() {
				if src == dst {
					continue
				}
				o := &fabric.Observation{Edge: fabric.Flow{Src: src, Dst: dst}.String(), Src: src, Dst: dst, Start: time.Unix(int64(1000+second), 0).UTC(), WindowNS: 1e9, Sent: 100, Timestamp: "kernel",
					Baseline: &fabric.Quantiles{P50: p(15_000), P99: p(20_000)}}
				ways, shares := g.ShortestPaths(src, dst, 64), []float64{1}
				if leaf, _ := g.LeafOf(dst); len(ways) > 1 {
					o.Sprayed, o.Paths, o.Weights = true, ways, weights(leaf)
					if shares = o.Weights; shares == nil {
						shares = make([]float64, len(ways))
						for i := range shares {
							shares[i] = 1
						}
					}
				} else {
					o.Path, o.PathState = ways[0], fabric.PathValid
				}
				total := 0.0
				for _, w := range shares {
					total += w
				}
				slow, by := 0, int64(0)
				for range o.Sent {
					way, left := 0, rng.Float64()*total
					for ; left >= shares[way]; way++ {
						left -= shares[way]
					}
					add, lost := int64(0), false
					for _, d := range ways[way].LinkDirections(src, dst) {
						add += delay[d]
						lost = lost || rng.Float64() < loss[d]
					}
					switch {
					case lost:
						o.Lost++
					case add > 0:
						slow, by = slow+1, add
					}
				}
				o.OWD = &fabric.Quantiles{P50: p(15_000), P90: p(17_000), P99: p(20_000)}
				for _, q := range []struct {
					portion float64
					at      *int64
				}{{0.5, o.OWD.P50}, {0.1, o.OWD.P90}, {0.01, o.OWD.P99}} {
					if float64(slow) > q.portion*float64(o.Sent-o.Lost) {
						*q.at += by
					}
				}
				line, err := json.Marshal(o)
				if err != nil {
					t.Fatal(err)
				}
				file.Write(append(line, '\n'))
			}
		}
	}
	return file.Bytes()
}

func localizeFile(t *testing.T, g *fabric.Graph, file []byte) fabric.Report {
	t.Helper()
	var obs []*fabric.Observation
	err := fabric.ReadObservations(bytes.NewReader(file), func(_ int, o *fabric.Observation) error {
		obs = append(obs, o)
		return nil
	}, func(e fabric.LineError) { t.Error(e) })
	if err != nil {
		t.Fatal(err)
	}
	rep, err := FindFaults(g, obs, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// TestLocalizeSprayedPackets names a link that loses or delays the packets of sprayed flows, with the share of their packets that cross it.
func TestLocalizeSprayedPackets(t *testing.T) {
	g := worldtest.NewClos(t, 4, 4, 4)
	d := fabric.Direction{From: "leaf2:up3", To: "spine3:dn2"}
	equal := func(string) []float64 { return nil }
	// Most packets to leaf1 go by spine3, and most others by spine4.
	unequal := func(to string) []float64 {
		if to == "leaf1" {
			return []float64{1, 1, 13, 1}
		}
		return []float64{1, 1, 1, 13}
	}
	for _, tt := range []struct {
		name       string
		weights    func(string) []float64
		loss       float64
		delay      int64
		equivalent int
		share      string
	}{
		{"loss", equal, 0.1, 0, 3, "It is crossed by 1/4 of the packets of "},
		{"delay", equal, 0, 2e6, 3, "It is crossed by 1/4 of the packets of 48 flows. The same packets may have crossed 3 other elements instead."},
		{"loss with weights", unequal, 0.1, 0, 0, "It is crossed by 1/16 to 81 % of the packets of "},
		{"delay with weights", unequal, 0, 2e6, 0, "It is crossed by 1/16 to 81 % of the packets of 48 flows. Confidence"},
	} {
		rep := localizeFile(t, g, sprayedFile(t, g, 3, tt.weights, map[fabric.Direction]float64{d: tt.loss}, map[fabric.Direction]int64{d: tt.delay}))
		if len(rep.Verdicts) != 1 {
			t.Errorf("%s: %+v", tt.name, rep.Verdicts)
			continue
		}
		v := rep.Verdicts[0]
		named := v.Element.ID == d.LinkID()
		for _, e := range v.Equivalent {
			named = named || e.ID == d.LinkID()
		}
		links := slices.DeleteFunc(slices.Clone(v.Equivalent), func(e fabric.Element) bool { return e.Kind != fabric.KindLink })
		if !named || len(links) != tt.equivalent || v.Kind != fabric.KindLink || !strings.HasPrefix(v.Direction, "leaf2:up") || !strings.Contains(v.Summary, tt.share) {
			t.Errorf("%s: %s %s, %v: %s", tt.name, v.Element.ID, v.Direction, v.Equivalent, v.Summary)
		}
		if s := v.Shares; s == nil || tt.equivalent > 0 && (s.Least != 0.25 || s.Most != 0.25) || tt.equivalent == 0 && (s.Least != 1.0/16 || s.Most != 13.0/16) || s.SprayedEdges > 48 {
			t.Errorf("%s: shares %+v", tt.name, v.Shares)
		}
		if tt.loss > 0 && (v.Symptom.LossRatio < 0.07 || v.Symptom.LossRatio > 0.14) || tt.delay > 0 && (v.Symptom.AddedDelayNS < 1_900_000 || v.Symptom.AddedDelayNS > 2_100_000) {
			t.Errorf("%s: %+v", tt.name, v.Symptom)
		}
	}
}

// TestLocalizeSprayedSilence: nothing is named where nothing is wrong, and the fabric is innocent.
func TestLocalizeSprayedSilence(t *testing.T) {
	g := worldtest.NewClos(t, 4, 4, 4)
	rep := localizeFile(t, g, sprayedFile(t, g, 3, func(string) []float64 { return nil }, nil, nil))
	if len(rep.Verdicts) != 0 || rep.State != fabric.Innocent || rep.Coverage.Links != 1 {
		t.Errorf("%s, %+v, coverage %+v", rep.State, rep.Verdicts, rep.Coverage)
	}
	// 16 flows of 100 probes a second lead from a leaf to each of three others, by four uplinks. The flows within leaves have one path.
	if p := rep.Paths; p.Mode != fabric.Spray || p.Sprayed != 192 || p.LeastProbesPerSecond == nil || *p.LeastProbesPerSecond != 1200 {
		t.Errorf("paths %+v", p)
	}
	if len(rep.LinkShares) != 2*len(g.Topo.Links) {
		t.Errorf("%d shares of %d directed links", len(rep.LinkShares), 2*len(g.Topo.Links))
	}
	for _, s := range rep.LinkShares {
		want := fabric.LinkShare{Direction: s.Direction, SprayedEdges: 48, Share: 0.25, ProbesPerSecond: 1200}
		if strings.Contains(s.Direction, "/") { // a NIC's
			want.SprayedEdges, want.Share, want.ProbesPerSecond = 12, 1, 1500
		}
		if s != want {
			t.Errorf("%+v, want %+v", s, want)
		}
	}
}

// TestCombineWindowsKeepsOtherWaysApart: windows are joined while their packets take the same paths with the same shares.
func TestCombineWindowsKeepsOtherWaysApart(t *testing.T) {
	g := worldtest.NewClos(t, 4, 2, 1)
	nics := g.NICIDs()
	ways := g.ShortestPaths(nics[0], nics[1], 4)
	window := func(second int64, paths []fabric.Path, weights ...float64) *fabric.Observation {
		return &fabric.Observation{Edge: nics[0] + ">" + nics[1] + "#0", Start: time.Unix(second, 0), Sent: 1, Sprayed: len(paths) > 0, Paths: paths, Weights: weights}
	}
	for _, tt := range []struct {
		name string
		in   []*fabric.Observation
		want []uint64
	}{
		{"the same", []*fabric.Observation{window(1, ways), window(2, append([]fabric.Path{}, ways...)), window(3, ways)}, []uint64{3}},
		{"one less", []*fabric.Observation{window(1, ways), window(2, ways[:3]), window(3, ways[:3])}, []uint64{1, 2}},
		{"another one", []*fabric.Observation{window(1, ways[:3]), window(2, ways[1:])}, []uint64{1, 1}},
		{"weights", []*fabric.Observation{window(1, ways, 1, 2, 3, 4), window(2, ways, 1, 2, 3, 4), window(3, ways, 4, 3, 2, 1)}, []uint64{2, 1}},
		{"no more sprayed", []*fabric.Observation{window(1, ways), window(2, nil)}, []uint64{1, 1}},
	} {
		out := combineWindows(tt.in)
		var got []uint64
		for _, o := range out {
			got = append(got, o.Sent)
		}
		if len(got) != len(tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
			continue
		}
		for i := range got {
			if got[i] != tt.want[i] {
				t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
			}
		}
	}
}
