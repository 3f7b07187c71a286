package clocksync

import (
	"encoding/binary"
	"math"
	"reflect"
	"strings"
	"testing"
)

func sampleReport() *Report {
	r := &Report{Node: "h1", End: 1_700_000_000_000_000_000}
	for i, dst := range []string{"h2/eth1", "h3/eth1", "h2/eth2", "h4/bond.1/x"} {
		r.Pairs = append(r.Pairs, PairEstimate{
			ID: PairID{Src: "h1/eth1", Dst: dst, Flow: i, Kind: Kind(i % 2)},
			Estimate: Estimate{Quality: Fine, Ref: r.End - 1_000_000_000 + int64(i), Offset: -3_000_000_000 + int64(i)*700, Rate: float64(float32(-12.5e-6)),
				Sigma: 12, RateSigma: 1.0 / (1 << 27), Inherited: float64(i), Delay: 5200, FirstDelay: 5100, Samples: [2]int32{198, 200}, Moves: uint32(i), Detours: 2}})
	}
	r.Joins = []Join{{A: "h1", B: "h1/eth1", Ref: r.End, Offset: 37_000_000_012, Width: 1800}}
	return r
}

func sampleUpdate() *Update {
	return &Update{Frame: 1 << 60, Relative: true, Maps: []ClockMap{
		{"h1", Map{State: Locked, Ref: 1_700_000_000_000_000_000, Offset: -12345, Rate: float64(float32(3e-6)), Sigma: 8, RateSigma: 1.0 / (1 << 28), Allowance: 75, Component: 1, Steps: 2, Drifts: 1, Peers: 16}},
		{"h1/eth1", Map{State: Holdover, Ref: -5, Offset: math.MinInt64, Component: 7}},
	}}
}

func TestReportComesBack(t *testing.T) {
	want := sampleReport()
	b := want.AppendTo(nil)
	got, err := ParseReport(b)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%v\n%+v\n%+v", err, got, want)
	}
	for i := range b {
		if _, err := ParseReport(b[:i]); err == nil {
			t.Fatalf("the first %d of %d octets are no report", i, len(b))
		}
	}
	if _, err := ParseReport(append(b, 0)); err == nil {
		t.Error("an octet more was taken")
	}
}

func TestUpdateComesBack(t *testing.T) {
	want := sampleUpdate()
	b := want.AppendTo(nil)
	got, err := ParseUpdate(b)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%v\n%+v\n%+v", err, got, want)
	}
	for i := range b {
		if _, err := ParseUpdate(b[:i]); err == nil {
			t.Fatalf("the first %d of %d octets are no update", i, len(b))
		}
	}
}

// TestReportIsSmall checks that a pair takes some 35 octets if every NIC probes 16 others of 128 nodes.
func TestReportIsSmall(t *testing.T) {
	r := Report{Node: "node-0001", End: 1_700_000_000_000_000_000}
	for i := range 128 {
		e := sampleReport().Pairs[0].Estimate
		e.Ref -= int64(i) * 12_345_678
		e.Offset = int64(i*i*7919%5_000_000) * 1000
		r.Pairs = append(r.Pairs, PairEstimate{ID: PairID{Src: "node-0001/mlx5_" + string(rune('0'+i%8)), Dst: "node-" + string(rune('a'+i%16)) + "/mlx5_" + string(rune('0'+i%8))}, Estimate: e})
	}
	if per := float64(len(r.AppendTo(nil))) / 128; per > 40 {
		t.Errorf("%.1f octets a pair", per)
	}
}

// TestReportLeavesOut checks that numbers that no clock can have are not sent, and do not keep the
// others from being sent.
func TestReportLeavesOut(t *testing.T) {
	r := sampleReport()
	bad := map[string]func(p *PairEstimate){
		"nothing known": func(p *PairEstimate) { p.Estimate = Estimate{} },
		"not a number":  func(p *PairEstimate) { p.Rate = math.NaN() },
		"infinite":      func(p *PairEstimate) { p.Sigma = math.Inf(1) },
		"negative":      func(p *PairEstimate) { p.RateSigma = -1 },
		"another's":     func(p *PairEstimate) { p.ID.Src = "h2/eth1" },
		"a prefix's":    func(p *PairEstimate) { p.ID.Src = "h11/eth1" },
		"no NIC":        func(p *PairEstimate) { p.ID.Dst = "h2" },
		"flow":          func(p *PairEstimate) { p.ID.Flow = -1 },
	}
	for _, spoil := range bad {
		p := sampleReport().Pairs[0]
		spoil(&p)
		r.Pairs = append(r.Pairs, p)
	}
	r.Joins = append(r.Joins, Join{A: "h1", B: "h1"}, Join{A: "h1", B: "h2/eth1"}, Join{A: "h1", B: "h1/eth1", Width: -1})
	got, err := ParseReport(r.AppendTo(nil))
	if err != nil || !reflect.DeepEqual(got, sampleReport()) {
		t.Fatalf("%v\n%+v", err, got)
	}
}

// TestParseErrors checks that errors name the invalid field.
func TestParseErrors(t *testing.T) {
	head := appendName(nil, "h1")
	head = binary.AppendVarint(head, 0)
	names := []byte{1, 2, 'h', '2', 1, 1, 'e'}
	pair := append(append(append([]byte{}, head...), names...), 1, 0, 0, 0, 0, 0x11, 0, 0)
	tail := make([]byte, 23)
	float := func(v float32) []byte { return binary.BigEndian.AppendUint32(nil, math.Float32bits(v)) }
	for want, b := range map[string][]byte{
		"node: cut short":           nil,
		"node: empty":               {0},
		"node: \"a/\" has a slash":  {2, 'a', '/'},
		"nodes: 200 do not fit":     append(append([]byte{}, head...), 200, 1),
		"nodes: 2097151 is more":    append(append([]byte{}, head...), 0xff, 0xff, 0x7f),
		"name of a device: empty":   append(append([]byte{}, head...), 0, 1, 0, 0, 0),
		"source: 0 of 0":            append(append(append([]byte{}, head...), 0, 0, 1), tail...),
		"pair 0: rate: NaN":         append(append(append([]byte{}, pair...), float(float32(math.NaN()))...), tail...),
		"pair 0: rate: 2 ":          append(append(append([]byte{}, pair...), float(2)...), tail...),
		"pair 0: sigma: NaN":        append(append(append([]byte{}, pair...), 0, 0, 0, 0, 0x7f, 0xff), tail...),
		"pair 0: sigma: +Inf":       append(append(append([]byte{}, pair...), 0, 0, 0, 0, 0x7f, 0x80), tail...),
		"pair 0: rate sigma: -":     append(append(append([]byte{}, pair...), 0, 0, 0, 0, 0, 0, 0x80, 0), tail...),
		"pair 0: quality: 0":        append(append(append(append([]byte{}, head...), names...), 1, 0, 0, 0, 0, 0x10), tail...),
		"pair 0: kind: 2":           append(append(append(append([]byte{}, head...), names...), 1, 0, 0, 0, 0, 0x21), tail...),
		"joined clock: is the cloc": append(append(append([]byte{}, head...), names...), 0, 1, 0, 0, 0, 0, 0),
		"unexpected data":           append(append(append([]byte{}, head...), names...), 0, 0, 0),
	} {
		if _, err := ParseReport(b); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "clock report: ") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for want, b := range map[string][]byte{
		"relative: 2":                {1, 2},
		"maps: 9 do not fit":         {1, 1, 9},
		"map 0: state: 4 is more":    append([]byte{1, 1, 1, 1, 'x', 4}, tail...),
		"map 0: clock: 512 is more ": append([]byte{1, 1, 1, 0x80, 4}, tail...),
	} {
		if _, err := ParseUpdate(b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestDeviationRoundsUp checks that a deviation is never too small, and too large by less than a
// hundredth.
func TestDeviationRoundsUp(t *testing.T) {
	for v := 1e-12; v < maxDeviation; v *= 1.37 {
		r := wireReader{b: appendDeviation(nil, v)}
		if got := r.readDeviation("v"); r.err != nil || got < v || got > 1.01*v {
			t.Errorf("%g came back as %g, %v", v, got, r.err)
		}
	}
	for _, v := range []float64{0, maxDeviation} {
		r := wireReader{b: appendDeviation(nil, v)}
		if got := r.readDeviation("v"); r.err != nil || got != v {
			t.Errorf("%g came back as %g, %v", v, got, r.err)
		}
	}
}

// FuzzReport checks that a parsed report is written and read back the same.
func FuzzReport(f *testing.F) {
	f.Add(sampleReport().AppendTo(nil))
	f.Add((&Report{Node: "h"}).AppendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseReport(b)
		if err != nil {
			return
		}
		again, err := ParseReport(r.AppendTo(nil))
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Fatalf("%v\n%+v\n%+v", err, again, r)
		}
	})
}

// FuzzUpdate checks that a parsed update is written and read back the same.
func FuzzUpdate(f *testing.F) {
	f.Add(sampleUpdate().AppendTo(nil))
	f.Add((&Update{}).AppendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		u, err := ParseUpdate(b)
		if err != nil {
			return
		}
		again, err := ParseUpdate(u.AppendTo(nil))
		if err != nil || !reflect.DeepEqual(again, u) {
			t.Fatalf("%v\n%+v\n%+v", err, again, u)
		}
	})
}
