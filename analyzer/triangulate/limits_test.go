package triangulate

import (
	"math"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// Tests on both sides of limits that no scenario reaches exactly.

func TestRule6LinksOfASwitchAreAbsorbedUpToItsOwnEffect(t *testing.T) {
	sw := Suspect{Element: Element{Kind: fabric.KindSwitch, Name: "spine1"}, AddedDelayNS: 1000, LossRatio: 0.1, TailDelayNS: 500}
	tail := sw
	tail.TailDelayNS = 1500
	link := func(delay, tail int64, loss float64) Suspect {
		return Suspect{Element: Element{Kind: fabric.KindLink, Name: "leaf1:u1--spine1:1"}, AddedDelayNS: delay, TailDelayNS: tail, LossRatio: loss}
	}
	other := link(1000, 0, 0)
	other.Name = "leaf1:u2--spine2:1"
	for _, tt := range []struct {
		what   string
		sw     Suspect
		link   Suspect
		remain int
	}{
		{"as much delay", sw, link(1000, 0, 0), 1}, {"more delay", sw, link(1001, 0, 0), 2},
		{"as much loss", sw, link(0, 0, 0.1), 1}, {"more loss", sw, link(0, 0, 0.1001), 2},
		{"a tail as long as the switch's delay", sw, link(0, 1000, 0), 1}, {"a longer one", sw, link(0, 1001, 0), 2},
		{"a tail as long as the switch's", tail, link(0, 1500, 0), 1}, {"one longer than that", tail, link(0, 1501, 0), 2},
		{"a link elsewhere", sw, other, 2},
	} {
		if got := absorbSwitchLinks([]Suspect{tt.link, tt.sw}); len(got) != tt.remain {
			t.Errorf("%s: %d suspects remain, want %d", tt.what, len(got), tt.remain)
		}
	}
}

func TestRule4NoFlowDecidesAlone(t *testing.T) {
	s := &search{p: DefaultParameters()}
	for _, tt := range []struct {
		named  int
		gain   float64
		useful int
		others float64
		want   bool
	}{
		{0, 4.5, 2, 2, true}, {0, 4.4, 2, 2, false}, {1, 2, 2, 2, true}, {1, 1.9, 2, 2, false},
		{0, 100, 1, 2, false}, {0, 100, 2, 1.9, false},
	} {
		s.namedCount = tt.named
		if got := s.isWorthNaming(&candidate{fit: fit{gain: tt.gain, useful: tt.useful, others: tt.others}}); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

func TestPricesGrowWithLargeFabricsOnly(t *testing.T) {
	even := DefaultParameters()
	turn := even.Broken * math.Exp(even.PriceDirection)
	for _, tt := range []struct{ directions, more float64 }{{turn / 2, 0}, {turn, 0}, {2 * turn, math.Ln2}} {
		p := even
		p.scalePrices(int(math.Round(tt.directions)))
		for what, diff := range map[string]float64{"a direction": p.PriceDirection - even.PriceDirection, "a switch": p.PriceSwitch - even.PriceSwitch, "a pair": p.PricePair - even.PricePair} {
			if math.Abs(diff-tt.more) > 1e-3 {
				t.Errorf("%.0f directions: %s costs %g more, want %g", tt.directions, what, diff, tt.more)
			}
		}
	}
}

// TestManyMarksSayWhatAFewDo: beyond MarkPackets packets, their number changes nothing.
func TestManyMarksSayWhatAFewDo(t *testing.T) {
	m := model{p: DefaultParameters()}
	cost := func(packets, marks uint64) float64 {
		f := &judge.Finding{Marked: true, Obs: &fabric.Observation{ECN: &marks}}
		return m.markCost(&flow{finding: f, sent: packets}, 0)
	}
	few, some, many := cost(10, 1), cost(20, 2), cost(2000, 200)
	if math.Abs(many-some) > 1e-9 || math.Abs(few-some*10/12) > 1e-9 || some < 0.5 || some > m.p.MarkCap {
		t.Errorf("one mark of 10 packets costs %g nats, 2 of 20 cost %g, 200 of 2,000 cost %g", few, some, many)
	}
}

// TestALinkAddsWhatItsLowerHalfIsLateBy: the median counts if the lower quartile is above the noise of the mean.
func TestALinkAddsWhatItsLowerHalfIsLateBy(t *testing.T) {
	for _, tt := range []struct {
		left []float64
		want float64
	}{
		{[]float64{100, 200, 300, 400}, 200}, // four standard errors of the mean of four are 100
		{[]float64{99, 200, 300, 400}, 0},
		{[]float64{89.5, 200, 300, 400, 500}, 300}, // the second is the quartile of five
		{[]float64{500, 89, 400, 89, 300}, 0},
		{[]float64{10, 20, 70, 100, 200, 300, 400, 500, 600}, 200}, // the third is the quartile of nine
	} {
		x := &tomography{noise: 50, unexplained: append([]float64(nil), tt.left...), flowsOn: make([][]int32, 1), delays: map[component]float64{}}
		for i := range tt.left {
			x.flowsOn[0] = append(x.flowsOn[0], int32(i))
		}
		x.descendDelays()
		if x.delays[0] != tt.want {
			t.Errorf("flows late by %v: the link adds %g, want %g", tt.left, x.delays[0], tt.want)
		}
		for i := range tt.left {
			if x.unexplained[i] != tt.left[i]-tt.want {
				t.Errorf("flow %d: %g is left of %g", i, x.unexplained[i], tt.left[i])
			}
		}
	}
}

func TestADelayOfHostNoiseIsNotReported(t *testing.T) {
	s := &search{p: DefaultParameters(), flows: []flow{{finding: &judge.Finding{Obs: &fabric.Observation{}}}}}
	at := func(kind fabric.Kind, l load) *candidate {
		c := &candidate{Element: Element{Kind: kind}, special: []member{{}}}
		c.fit.load = l
		return c
	}
	lossy := load{delay: 5000, survive: math.Log(0.9)}
	for _, tt := range []struct {
		what   string
		stamps string
		c      *candidate
		want   bool
	}{
		{"just below", "kernel", at(fabric.KindNIC, load{delay: 24_999}), true},
		{"at it", "kernel", at(fabric.KindNIC, load{delay: 25_000}), false},
		{"hardware, below", "hardware", at(fabric.KindNIC, load{delay: 2499}), true},
		{"hardware, at it", "hardware", at(fabric.KindNIC, load{delay: 2500}), false},
		{"user, below", "user", at(fabric.KindNIC, load{delay: 249_999}), true},
		{"user, at it", "user", at(fabric.KindNIC, load{delay: 250_000}), false},
		{"a host", "kernel", at(fabric.KindHost, load{delay: 24_999}), true},
		{"a link", "kernel", at(fabric.KindLink, load{delay: 24_999}), false},
		{"a switch", "kernel", at(fabric.KindSwitch, load{delay: 24_999}), false},
		{"with loss", "kernel", at(fabric.KindNIC, lossy), false},
		{"a tail", "kernel", at(fabric.KindNIC, load{delay: 5000, tail: 300_000}), false},
	} {
		s.flows[0].finding.Obs.Timestamp = tt.stamps
		if got := s.isHostNoise(tt.c); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.what, got, tt.want)
		}
	}
}
