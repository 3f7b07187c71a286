package routing_test

import (
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/routing"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

// overSpine returns a path from one leaf over a spine to another, with ports of the test's own.
func overSpine(from, spine, to string) fabric.Path {
	return fabric.Path{{Switch: from, In: "dn1", Out: "up-" + spine}, {Switch: spine, In: "dn-" + from, Out: "dn-" + to}, {Switch: to, In: "up-" + spine, Out: "dn1"}}
}

func TestRefusalsMeetPaths(t *testing.T) {
	p := overSpine("leaf1", "spine2", "leaf3")
	for _, test := range []struct {
		what string
		r    routing.Refusal
		want bool
	}{
		{"next switch", routing.Refusal{Switch: "spine2", Next: "leaf3"}, true},
		{"next switch elsewhere", routing.Refusal{Switch: "spine2", Next: "leaf1"}, false},
		{"other switch", routing.Refusal{Switch: "spine1", Next: "leaf3"}, false},
		{"own identifier", routing.Refusal{Switch: "spine2", Next: "spine2"}, true},
		{"link", routing.Refusal{Switch: "leaf1", Port: "up-spine2"}, true},
		{"other link", routing.Refusal{Switch: "leaf1", Port: "up-spine1"}, false},
		{"end", routing.Refusal{Switch: "leaf3", Last: true}, true},
		{"end elsewhere", routing.Refusal{Switch: "leaf1", Last: true}, false},
		{"identifier of nothing", routing.Refusal{Switch: "spine2"}, false},
	} {
		if got := test.r.Meets(p); got != test.want {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
}

func TestUnknownIdentifierIsFoundSoon(t *testing.T) {
	f := func(dst string, n int) fabric.Flow { return fabric.Flow{Src: "h1/eth1", Dst: dst, Number: n} }
	now := time.Unix(1000, 0)
	m := &routing.Moment{Now: now, Step: time.Second, Graph: fabric.NewGraph(&fabric.Topology{Version: 1}), Flows: []routing.Flow{
		{Flow: f("h5/eth1", 0), Path: overSpine("leaf1", "spine2", "leaf3")},
		{Flow: f("h5/eth1", 1), Path: overSpine("leaf1", "spine1", "leaf3")},
		{Flow: f("h7/eth1", 0), Path: overSpine("leaf1", "spine2", "leaf4")},
		{Flow: f("h6/eth1", 0), Path: overSpine("leaf1", "spine2", "leaf3")},
	}}
	m.Refusals = []routing.Refusal{{Switch: "spine2", SID: "0007", Prefix: "fcbb:bb00:7::/48", Next: "leaf3", NICs: 3}}
	w := routing.NewWatcher()
	held := func() []routing.Finding {
		return slices.DeleteFunc(w.Review(m), func(f routing.Finding) bool { return f.Kind != routing.UnknownSID })
	}
	if got := held(); len(got) != 1 || got[0].Phase != routing.MayHold {
		t.Fatalf("at once, while the other end may say the same: %+v", got)
	}
	m.Now = now.Add(2 * time.Second)
	got := held()
	if len(got) != 1 || got[0].ID != "spine2" || got[0].Phase != routing.Holds || got[0].Prefix != "fcbb:bb00:7::/48" || got[0].Flows != 2 ||
		!slices.Equal(got[0].Explained, []fabric.Flow{f("h5/eth1", 0), f("h6/eth1", 0)}) {
		t.Fatalf("got %+v", got)
	}
	m.Now = now.Add(3 * time.Second)
	if got = held(); len(got) != 1 || !got[0].Since.Equal(now) {
		t.Errorf("a second later: %+v", got)
	}
	// It explains what windows that reach back show, and then nothing.
	m.Refusals, m.Now = nil, now.Add(5*time.Second)
	if got = held(); len(got) != 1 || got[0].Phase != routing.Ended {
		t.Errorf("afterwards: %+v", got)
	}
	m.Now = now.Add(time.Minute)
	if got = held(); len(got) != 0 {
		t.Errorf("a minute later: %+v", got)
	}
}

// TestEndsOfALinkRefuseEachOther: what two neighbours say of each other is about the link between them, and holds later, for that link is
// named by then.
func TestEndsOfALinkRefuseEachOther(t *testing.T) {
	g := worldtest.NewClos(t, 2, 4, 2)
	now := time.Unix(1000, 0)
	m := &routing.Moment{Now: now, Step: time.Second, Graph: g, Flows: []routing.Flow{{Flow: fabric.Flow{Src: "h1/eth1", Dst: "h5/eth1"}, Path: overSpine("leaf1", "spine2", "leaf3")}},
		Refusals: []routing.Refusal{{Switch: "spine2", SID: "0007", Next: "leaf3", NICs: 3, Mutual: true}, {Switch: "leaf3", SID: "0002", Next: "spine2", NICs: 3, Mutual: true}}}
	w := routing.NewWatcher()
	for after, want := range []routing.Phase{routing.MayHold, routing.MayHold, routing.MayHold, routing.MayHold, routing.MayHold, routing.Holds} {
		m.Now = now.Add(time.Duration(after) * time.Second)
		got := slices.DeleteFunc(w.Review(m), func(f routing.Finding) bool { return f.Kind != routing.UnknownSID })
		if len(got) != 2 || got[0].Phase != want || got[1].Phase != want ||
			!slices.Equal(got[0].Others, []fabric.Element{{ID: "leaf3:up2--spine2:dn3", Kind: fabric.KindLink}}) {
			t.Errorf("after %d s: %+v", after, got)
		}
	}
}
