package ibfabric

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/ibmad"
)

// lid returns the LID of an element of the tree.
func lid(t *testing.T, f *Fabric, name string) LID {
	t.Helper()
	l, err := f.FindLID(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// changed returns a copy of the tree with tables and nodes of its own.
func changed(t *testing.T) *Fabric {
	f := tree(t)
	for i := range f.LFTs {
		f.LFTs[i] = slices.Clone(f.LFTs[i])
	}
	return f
}

func walkText(f *Fabric, hops []Hop) string {
	s := ""
	for _, h := range hops {
		s += strings.Join([]string{f.NodeName(h.Switch), string('0' + rune(h.In)), string('0' + rune(h.Out))}, " ") + "; "
	}
	return s
}

// Rule 1: the entry of the destination decides, and each LID of a port has its own; port 0 is the switch.
func TestWalkByTheTables(t *testing.T) {
	f := tree(t)
	for _, c := range []struct{ src, dst, want string }{
		{"h0/hca", "h1/hca", "leaf0 1 2; "},
		{"2", "14", "leaf0 1 4; spine1 1 2; leaf1 4 2; "},
		{"2", "15", "leaf0 1 3; spine0 1 2; leaf1 3 2; "}, // the second LID of h3, another path
		{"3", "15", "leaf0 1 3; spine0 1 2; leaf1 3 2; "}, // the same for each of the source's LIDs
		{"leaf0", "h1/hca", "leaf0 0 2; "},
		{"h0/hca", "leaf0", "leaf0 1 0; "},
		{"h0/hca", "spine1", "leaf0 1 4; spine1 1 0; "},
		{"h0/hca", "h0/hca", ""},
		{"2", "3", ""},
		{"leaf0", "leaf0", ""},
	} {
		hops, err := f.Walk(lid(t, f, c.src), lid(t, f, c.dst))
		if got := walkText(f, hops); err != nil || got != c.want {
			t.Errorf("%s to %s: %q (%v), not %q", c.src, c.dst, got, err, c.want)
		}
	}
}

// Rules 2 and 3: the error names the hop where a walk ends.
func TestWalkEnds(t *testing.T) {
	at := func(f *Fabric, name string) int32 { e, _ := f.ByName(name); return e.Node }
	for _, c := range []struct {
		name   string
		change func(f *Fabric)
		err    error
		want   string
	}{
		{"no entry", func(f *Fabric) { f.LFTs[at(f, "spine1")][14] = ibmad.NoRoute }, ErrDeadEnd, "LID 2 to LID 14, hop 2 at spine1: dead end: its table has no port for LID 14"},
		{"short table", func(f *Fabric) { f.LFTs[at(f, "leaf0")] = f.LFTs[at(f, "leaf0")][:14] }, ErrDeadEnd, "hop 1 at leaf0: dead end: its table has no port for LID 14"},
		{"no such port", func(f *Fabric) { f.LFTs[at(f, "leaf0")][14] = 77 }, ErrDeadEnd, "hop 1 at leaf0: dead end: it has no port 77"},
		{"another's CA", func(f *Fabric) { f.LFTs[at(f, "leaf1")][14] = 1 }, ErrDeadEnd, "hop 3 at leaf1:1: dead end: the port leads to h2/hca, which does not have LID 14"},
		{"not its own", func(f *Fabric) { f.LFTs[at(f, "leaf0")][14] = 0 }, ErrDeadEnd, "hop 1 at leaf0: dead end: its table has its own port for LID 14, which is h3/hca"},
		{"loop", func(f *Fabric) { f.LFTs[at(f, "spine1")][14] = 1 }, ErrLoop, "hop 3 at leaf0: loop: the packet was there at hop 1"},
		{"long loop", func(f *Fabric) {
			f.LFTs[at(f, "spine1")][14], f.LFTs[at(f, "leaf2")][14], f.LFTs[at(f, "spine0")][14], f.LFTs[at(f, "leaf1")][14] = 3, 3, 2, 4
		}, ErrLoop, "hop 6 at spine1: loop: the packet was there at hop 2"},
		{"unread", func(f *Fabric) { f.LFTs[at(f, "leaf1")] = nil }, ErrUnread, "hop 3 at leaf1"},
		{"nothing read", func(f *Fabric) { f.LFTs = nil }, ErrUnread, "hop 1 at leaf0"},
		{"down", func(f *Fabric) { f.PortAt(End{at(f, "leaf0"), 4}).State = ibmad.PortInit }, ErrDeadEnd, "hop 1 at leaf0:4: dead end: the port is not active"},
		{"no cable", func(f *Fabric) { f.PortAt(End{at(f, "leaf0"), 4}).Linked = false }, ErrDeadEnd, "hop 1 at leaf0:4: dead end: the port's neighbor is unknown"},
		{"source unplugged", func(f *Fabric) { e, _ := f.ByLID(2); f.PortAt(e).Linked = false }, ErrDeadEnd, "hop 0 at h0/hca: dead end"},
	} {
		f := changed(t)
		c.change(f)
		hops, err := f.Walk(2, 14)
		if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, not %s", c.name, err, c.want)
		}
		if _, _, err2 := f.CandidateWalks(2, 14, 0, 1); !errors.Is(err2, c.err) {
			t.Errorf("%s: candidates: %v, not %v", c.name, err2, err)
		}
		if len(hops) > 5 {
			t.Errorf("%s: %d hops", c.name, len(hops))
		}
	}
	f := changed(t)
	f.LFTs[at(f, "leaf1")][5] = 3
	if _, err := f.Walk(2, 5); !errors.Is(err, ErrDeadEnd) || !strings.Contains(err.Error(), "sends its own LID 5 out of port 3") {
		t.Error(err)
	}
	for _, pair := range [][2]LID{{2, 1000}, {1000, 2}, {0, 2}, {2, 0xFFFF}} {
		if _, err := f.Walk(pair[0], pair[1]); !errors.Is(err, ErrLID) {
			t.Error(pair, err)
		}
	}
}

// No path leads to two ports with one LID.
func TestWalkLIDTwice(t *testing.T) {
	text := strings.Replace(strange, "lid 3 lmc 0", "lid 1 lmc 0", 1)
	f, found, err := ReadNetDiscover("x", strings.NewReader(text))
	if err != nil || len(found) != 3 {
		t.Fatal(found, err)
	}
	if _, err := f.Walk(4, 1); !errors.Is(err, ErrLID) {
		t.Error(err)
	}
}

// Rule 4: there are candidates where a switch may choose, for the service levels with a choice.
func TestCandidates(t *testing.T) {
	f := tree(t)
	leaf0, _ := f.ByName("leaf0")
	f.Adaptive = make([]*Adaptive, f.Switches)
	f.Adaptive[leaf0.Node] = NewAdaptive(1<<2, map[LID][]uint8{14: {3, 4}})
	for _, c := range []struct {
		sl    uint8
		dst   LID
		limit int
		want  int
		whole bool
	}{{2, 14, 8, 2, true}, {2, 14, 1, 1, false}, {0, 14, 8, 1, true}, {2, 15, 8, 1, true}} {
		all, whole, err := f.CandidateWalks(2, c.dst, c.sl, c.limit)
		if err != nil || len(all) != c.want || whole != c.whole {
			t.Errorf("%+v: %v %v %v", c, all, whole, err)
		}
	}
	all, _, _ := f.CandidateWalks(2, 14, 2, 8)
	if got := walkText(f, all[0]) + "or " + walkText(f, all[1]); got != "leaf0 1 3; spine0 1 2; leaf1 3 2; or leaf0 1 4; spine1 1 2; leaf1 4 2; " {
		t.Error(got)
	}
	f.Adaptive[leaf0.Node] = NewAdaptive(1<<2, map[LID][]uint8{14: {2, 4}})
	if _, _, err := f.CandidateWalks(2, 14, 2, 8); !errors.Is(err, ErrDeadEnd) {
		t.Error(err)
	}
}
