package probe

import (
	"net/netip"
	"testing"

	"github.com/graylink/graylink/internal/srv6"
)

func TestMostSwitchesOfACarrier(t *testing.T) {
	block := srv6.Block{0xfc, 0xbb, 0xbb, 0}
	for _, c := range []struct {
		sids []srv6.SID
		want int
	}{
		{[]srv6.SID{1, srv6.Decapsulate}, 1},
		{[]srv6.SID{1, 3, 2, srv6.Decapsulate}, 3},
		{[]srv6.SID{0xf001, 2, srv6.Decapsulate}, 3},
		{[]srv6.SID{1, 3, 5, 4, 2, srv6.Decapsulate}, 5},
	} {
		carrier, err := srv6.EncodeCarrier(block, c.sids...)
		if err != nil {
			t.Fatal(err)
		}
		if got := mostSwitches(carrier); got != c.want {
			t.Errorf("%v: %d switches, want %d", carrier, got, c.want)
		}
	}
	if got := mostSwitches(netip.MustParseAddr("fcbb:bb00::")); got != 0 {
		t.Errorf("a carrier that lists nothing has %d switches", got)
	}
}

func TestHopsOfAChosenPath(t *testing.T) {
	l1, s1, l2 := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"), netip.MustParseAddr("fd00::3")
	expired := func(a netip.Addr) []traceAnswer { return []traceAnswer{{from: a}} }
	ends := func(a netip.Addr) []traceAnswer { return []traceAnswer{{from: a, inside: true}} }
	for name, tt := range map[string]struct {
		answers  [][]traceAnswer
		want     string
		balanced bool
	}{
		"all answer":          {[][]traceAnswer{expired(l1), expired(s1), ends(l2)}, "fd00::1 fd00::2 fd00::3", false},
		"it ends sooner":      {[][]traceAnswer{expired(l1), ends(l2), ends(l2)}, "fd00::1 fd00::3", false},
		"one is silent":       {[][]traceAnswer{expired(l1), nil, ends(l2)}, "fd00::1 * fd00::3", false},
		"the last is silent":  {[][]traceAnswer{expired(l1), expired(s1), nil}, "fd00::1 fd00::2", false},
		"none answers":        {[][]traceAnswer{nil, nil, nil}, "", false},
		"two at one limit":    {[][]traceAnswer{expired(l1), {{from: s1}, {from: l2}}, ends(l2)}, "fd00::1 fd00::2 fd00::3", true},
		"the far end answers": {[][]traceAnswer{expired(l1), expired(s1), {{reached: true}}}, "fd00::1 fd00::2", false},
	} {
		q := &pathTrace{}
		for i, a := range tt.answers {
			q.answers[i+1] = a
		}
		var p TracedPath
		q.buildChosen(&p, len(tt.answers))
		if hops(p) != tt.want || p.Balanced != tt.balanced {
			t.Errorf("%s: %s, balanced %t", name, hops(p), p.Balanced)
		}
	}
	both := []Hop{{TTL: 1, Address: l1}, {TTL: 2, Address: s1}}
	for name, tt := range map[string]struct {
		hops []Hop
		want bool
	}{
		"the same":  {both, true},
		"shorter":   {both[:1], true},
		"silent":    {[]Hop{{TTL: 1}, {TTL: 2}}, true},
		"another":   {[]Hop{{TTL: 1}, {TTL: 2, Address: l2}}, false},
		"one more":  {[]Hop{{TTL: 1}, {TTL: 2}, {TTL: 3, Address: l2}}, false},
		"no answer": {nil, true},
	} {
		if got := agreesWith(tt.hops, both); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
}
