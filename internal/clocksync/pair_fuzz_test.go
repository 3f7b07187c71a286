package clocksync

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
)

// FuzzPair gives a pair any stamps that a far clock may claim: it must not fail, and its estimates must
// be finite numbers.
func FuzzPair(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3}, false)
	b := newBench(Kernel, 0.4, 3, 1)
	var seed []byte
	for range 400 {
		b.step(10e6)
		seed = binary.AppendVarint(seed, int64(b.wait(forward)))
		seed = binary.AppendVarint(seed, int64(b.wait(reverse)))
	}
	f.Add(seed, true)
	f.Fuzz(func(t *testing.T, raw []byte, hardware bool) {
		k := Kernel
		if hardware {
			k = Hardware
		}
		p := NewPair(k)
		now, n := int64(1e18), 0
		next := func() (v int64, ok bool) {
			v, used := binary.Varint(raw)
			if used <= 0 {
				return 0, false
			}
			raw = raw[used:]
			return v, true
		}
		for {
			there, ok1 := next()
			back, ok2 := next()
			if !ok1 || !ok2 {
				break
			}
			now += 10e6
			p.AddForward(now, now+there)
			p.AddReverse(now+there+1e6, now+1e6+back)
			if n++; n%20 == 0 {
				p.SetHint(Relation{Ref: now, Offset: there, Rate: float64(back) * 1e-9}, math.Abs(float64(there)))
				e := p.CloseWindow(now)
				for _, v := range []float64{e.Rate, e.Sigma, e.RateSigma, e.Wander, e.RateWander, e.Inherited} {
					if math.IsNaN(v) || math.IsInf(v, 0) {
						t.Fatalf("%+v", e)
					}
				}
			}
		}
	})
}

// TestPairStaysSane gives pairs stamps that no clocks would have.
func TestPairStaysSane(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := NewPair(Kind(seed % 2))
		now := int64(1e18)
		for n := range 4000 {
			there, back := int64(r.Uint64()>>r.IntN(60)), int64(r.Uint64()>>r.IntN(60))
			if r.IntN(2) == 0 {
				there = -there
			}
			now += 10e6
			p.AddForward(now, now+there)
			p.AddReverse(now+there+1e6, now+1e6+back)
			if n%20 == 19 {
				p.SetHint(Relation{Ref: now, Offset: there, Rate: float64(back) * 1e-9}, math.Abs(float64(there)))
				e := p.CloseWindow(now)
				for _, v := range []float64{e.Rate, e.Sigma, e.RateSigma, e.Wander, e.RateWander, e.Inherited} {
					if math.IsNaN(v) || math.IsInf(v, 0) {
						t.Fatalf("seed %d: %+v", seed, e)
					}
				}
			}
		}
	}
}
