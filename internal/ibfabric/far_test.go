package ibfabric

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibmad"
)

// far is a file of two switches, as the grammar of a program that reads ibdiagnet's files describes it (CrackedPoly/Rapimt, ibfar.pest).
const far = `# ibdiagnet
File version: 1

Switch 0x0000000000200000 (leaf0)
Groups Definition:
Group     Sub Group     WHBF     Ports
--------------------------------------------
0         0             0        3,
0         1             0        4,3,
1         0             0        4,
2         0             0

LFT Definition:
PLFT_NUM: 0, top: 0x13
LID       Static Port   Lid State   Group
--------------------------------------------
0x0004    0             Static      0
0x000c    3             Free        0
0x000e    4             HBF         1
0x000f    3             Bounded     0
0x0010    3             Static      0

Switch 0x0000000000200003 (spine0)
Groups Definition:
Group     Sub Group     WHBF     Ports
--------------------------------------------
0         0             0        2,
LFT Definition:
PLFT_NUM: 0, top: 0x13
LID       Static Port   Lid State   Group
--------------------------------------------
0x000c    2             Free        0
`

// readFAR returns the tree with the choices of a file.
func readFAR(t *testing.T, text string) (*Fabric, []string) {
	t.Helper()
	f, found, err := tree(t).ReadAdaptive("far", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return f, found
}

// TestReadAdaptive: all parts of a group may carry the packets to a LID with another state than Static. A LID with one port has one path.
func TestReadAdaptive(t *testing.T) {
	f, found := readFAR(t, far)
	if len(found) > 0 {
		t.Error(found)
	}
	for lid, want := range map[LID][]uint8{4: nil, 12: {3, 4}, 14: {4}, 15: {3, 4}, 16: nil, 99: nil} {
		if got := f.Adaptive[mustSwitch(t, f, "leaf0")].PortsTo(lid); !slices.Equal(got, want) {
			t.Errorf("LID %d: ports %d, want %d", lid, got, want)
		}
	}
	for dst, want := range map[LID]int{12: 2, 14: 1, 15: 2, 16: 1} {
		for sl := range uint8(16) {
			all, whole, err := f.CandidateWalks(2, dst, sl, 8)
			if err != nil || !whole || len(all) != want {
				t.Errorf("LID %d, service level %d: %d candidates (%v), want %d", dst, sl, len(all), err, want)
			}
		}
	}
	r, _, err := f.FindPath("h0/hca", "12", 0)
	if err != nil || r.State != fabric.PathUnknown || len(r.Hops) != 0 || len(r.Candidates) != 2 {
		t.Errorf("%+v (%v)", r, err)
	}
	before, _ := readFAR(t, far)
	if after, _ := readFAR(t, strings.Replace(far, "0x000c    3             Free        0", "0x000c    3             Free        1", 1)); !f.Equal(before) || f.Equal(after) || f.Equal(tree(t)) {
		t.Error("readings with the same choices differ, or those with others do not")
	}
}

func mustSwitch(t *testing.T, f *Fabric, name string) int32 {
	t.Helper()
	e, ok := f.ByName(name)
	if !ok {
		t.Fatal(name)
	}
	return e.Node
}

// TestPrivateTables: no walk crosses a switch with private forwarding tables.
func TestPrivateTables(t *testing.T) {
	const table = "LFT Definition:\nPLFT_NUM: 1, top: 0x13\nLID Static Port Lid State Group\n---\n0x000c 2 Free 77\n"
	f, found := readFAR(t, far+table)
	if len(found) != 1 || !strings.Contains(found[0], "line 34: spine0 has private forwarding tables, which are not supported") {
		t.Errorf("%q", found)
	}
	var lost *WalkError
	if _, err := f.Walk(2, 15); !errors.Is(err, ErrPrivate) || !errors.As(err, &lost) || lost.At != "spine0" {
		t.Errorf("%v", err)
	}
	if _, err := f.Walk(2, 14); err != nil {
		t.Errorf("a path by spine1: %v", err)
	}
	// One of the candidates crosses spine0.
	if r, _, err := f.FindPath("2", "12", 0); err != nil || r.State != fabric.PathUnknown || len(r.Candidates) != 0 {
		t.Errorf("%+v (%v)", r, err)
	}
}

// TestChoicesWithoutALink: a switch does not choose a port that is down.
func TestChoicesWithoutALink(t *testing.T) {
	f, _ := readFAR(t, far)
	leaf0 := mustSwitch(t, f, "leaf0")
	static := f.LFTs[leaf0][12]
	other := uint8(3 + 4 - int(static))
	f.PortAt(End{leaf0, other}).State = ibmad.PortDown
	if all, whole, err := f.CandidateWalks(2, 12, 0, 8); err != nil || !whole || len(all) != 1 || all[0][0].Out != static {
		t.Errorf("%v (%v)", all, err)
	}
	f.PortAt(End{leaf0, static}).State = ibmad.PortDown // the table still has it
	if _, _, err := f.CandidateWalks(2, 12, 0, 8); !errors.Is(err, ErrDeadEnd) {
		t.Errorf("%v", err)
	}
}

// TestAdaptiveOfOtherTables: a file that does not fit the forwarding tables or the fabric is said to.
func TestAdaptiveOfOtherTables(t *testing.T) {
	text := strings.Replace(far, "0x000e    4 ", "0x000e    3 ", 1) + "Switch 0x77\nGroups Definition:\n0 0 0 9,\n"
	f, found := readFAR(t, text)
	if _, err := f.Walk(2, 14); !errors.Is(err, ErrStale) {
		t.Errorf("a walk across leaf0: %v", err)
	}
	if len(found) != 2 || !strings.Contains(found[0], "line 19: port 3 is that of LID 14, and port 4 by the forwarding table of leaf0: no path across it is known") || !strings.Contains(found[1], "the fabric has no switch 0x0000000000000077") {
		t.Errorf("%q", found)
	}
}

func TestBadAdaptive(t *testing.T) {
	for _, x := range []struct{ from, to, want string }{
		{far, "", "far:0: no line begins with Switch"},
		{"Switch 0x0000000000200000", "Switch leaf0", `far:4: Switch: a number of 64 bits, base 16 is expected, not "leaf0 (leaf0)"`},
		{"Switch 0x0000000000200003", "Switch 0x0000000000200000", `far:23: Switch: one whose groups were not read before is expected`},
		{"0         1             0        4,3,", "0         1             0        4,255,", `far:9: Ports: a port, 1 to 254 is expected, not "255"`},
		{"0         1             0        4,3,", "0 1", `far:9: Ports: a group, a sub group, WHBF and ports is expected, not "0 1"`},
		{"2         0             0", "20000 0 0", `far:11: Group: a number below 16384 is expected, not "20000"`},
		{"0x000c    3             Free        0", "0x000c    3             Fast        0", `far:18: Lid State: Static, Free, Bounded or HBF is expected, not "Fast"`},
		{"0x000c    3             Free        0", "0x000c    3             Free        9", `far:18: Group: a group that is defined above is expected, not "9"`},
		{"0x000c    3             Free        0", "0xc000    3             Free        0", `far:18: LID: 0x0 to 0xbfff is expected, not "0xc000"`},
		{"0x000c    3             Free        0", "0x000c    3             Free", `far:18: LID: a LID, a port, a state and a group is expected`},
		{"PLFT_NUM: 0", "PLFT_NUM: x", `far:14: PLFT_NUM: a number of 8 bits, base 10 is expected, not "x, top: 0x13"`},
	} {
		if _, _, err := tree(t).ReadAdaptive("far", strings.NewReader(strings.Replace(far, x.from, x.to, 1))); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%q: %v, want %s", x.to, err, x.want)
		}
	}
}

// TestRoutersEndASubnet: a walk does not cross a router, and names it.
func TestRoutersEndASubnet(t *testing.T) {
	f := tree(t)
	e, _ := f.ByName("h1/hca")
	f.Nodes[e.Node].Type = ibmad.NodeRouter
	leaf0 := mustSwitch(t, f, "leaf0")
	f.LFTs[leaf0] = slices.Clone(f.LFTs[leaf0])
	f.LFTs[leaf0][14] = 2 // to the router
	var lost *WalkError
	if _, err := f.Walk(2, 14); !errors.Is(err, ErrRouter) || !errors.As(err, &lost) || !strings.Contains(lost.Error(), "the port leads to the router h1/hca") {
		t.Errorf("%v", err)
	}
	if hops, err := f.Walk(2, f.FirstLID(e)); err != nil || len(hops) != 1 {
		t.Errorf("to the router itself: %v (%v)", hops, err)
	}
}
