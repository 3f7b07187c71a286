package clocksync

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// Traces of two edges of a lab of network namespaces, with eight agents probing and kernel stamps. All
// agents read one kernel clock, which each bent by the values below, so that the right results of the
// pairs are known.
//
// A record is an octet (0 for a probe, 1 for a reply, 2 for the end of a window) and varints: the
// change of its first time since the record before and, for a packet, the change of received minus
// sent.
var bent = map[string]struct {
	ref, offset int64
	rate        float64
}{
	"h1": {1795272133722261194, 1234567000, 17e-6},
	"h2": {1795272133719217044, -2000000000, -22e-6},
	"h5": {1795272133715581471, 3000000000, 8e-6},
}

// truthAt returns how far peer is ahead of h1 when h1 shows a time.
func truthAt(peer string, local int64) int64 {
	h1, far := bent["h1"], bent[peer]
	t := local - h1.offset
	t -= int64(h1.rate * float64(t-h1.ref))
	return t + far.offset + int64(far.rate*float64(t-far.ref)) - local
}

// replay gives a recorded trace to a pair, and each window's estimate to each.
func replay(t *testing.T, file string, each func(window int, e Estimate)) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	p := NewPair(Kernel)
	next := func() int64 {
		v, n := binary.Varint(b)
		if n <= 0 {
			t.Fatalf("%s: a record is cut off", file)
		}
		b = b[n:]
		return v
	}
	var sent, delay int64
	for windows := 0; len(b) > 0; {
		kind := b[0]
		b = b[1:]
		if kind == 2 {
			each(windows, p.CloseWindow(sent+next()))
			windows++
			continue
		}
		sent += next()
		delay += next()
		if kind == 0 {
			p.AddForward(sent, sent+delay)
		} else {
			p.AddReverse(sent, sent+delay)
		}
	}
}

func TestRecordedIdle(t *testing.T) {
	worst := 0.0
	replay(t, "idle.trace", func(window int, e Estimate) {
		if e.Quality == None {
			if window > 3 {
				t.Errorf("window %d: nothing known", window)
			}
			return
		}
		off := math.Abs(float64(e.Offset - truthAt("h2", e.Ref)))
		if bound := StatisticalBound(math.Hypot(math.Hypot(e.Sigma, e.Wander), e.Inherited), 0, 0); off > bound {
			t.Errorf("window %d: %.0f ns off, bound %.0f", window, off, bound)
		}
		if window >= 10 {
			worst = max(worst, off)
		}
	})
	t.Logf("%.0f ns off at worst", worst)
	if worst > 1000 {
		t.Errorf("%.0f ns off at worst, want less than a microsecond", worst)
	}
}

// TestRecordedDelay has 2 ms more on the way to h5 from its 27th second to its 38th.
func TestRecordedDelay(t *testing.T) {
	worst, during := 0.0, int64(0)
	replay(t, "delay.trace", func(window int, e Estimate) {
		off := math.Abs(float64(e.Offset - truthAt("h5", e.Ref)))
		if e.Quality == None {
			if window > 3 {
				t.Errorf("window %d: nothing known", window)
			}
			return
		}
		if bound := StatisticalBound(math.Hypot(math.Hypot(e.Sigma, e.Wander), e.Inherited), 0, 0); off > bound {
			t.Errorf("window %d: %.0f ns off, bound %.0f", window, off, bound)
		}
		if window >= 10 {
			worst = max(worst, off)
		}
		during = max(during, e.Delay)
	})
	t.Logf("%.0f ns off at worst; the delay was seen as %d us of a direction", worst, during/1000)
	if worst > 20e3 || during < 900e3 {
		t.Errorf("%.0f ns off at worst, mean delay of both ways at most %d ns: 2 ms one way must show as a delay", worst, during)
	}
}
