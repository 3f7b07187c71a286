package routing_test

import (
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/routing"
	"github.com/graylink/graylink/internal/fabric"
)

// TestStraysNameTheSwitch: two flows that leave their chosen paths behind one switch show that it forwards elsewhere. One may be traced in the
// moment of a change.
func TestStraysNameTheSwitch(t *testing.T) {
	stray := func(n int, sw, next, seen string) routing.Stray {
		return routing.Stray{Flow: fabric.Flow{Src: "h1/eth1", Dst: "h5/eth1", Number: n}, Switch: sw, Next: next, Seen: seen}
	}
	w, m := routing.NewWatcher(), &routing.Moment{Now: time.Unix(1000, 0), Step: time.Second, Graph: fabric.NewGraph(&fabric.Topology{Version: 1})}
	held := func() []routing.Finding {
		return slices.DeleteFunc(w.Review(m), func(f routing.Finding) bool { return f.Kind != routing.Misforwarded || f.Phase != routing.Holds })
	}
	m.Strays = []routing.Stray{stray(0, "leaf1", "spine1", "spine2"), stray(1, "leaf1", "spine3", "spine2"), stray(2, "leaf2", "spine1", "spine2")}
	if got := held(); len(got) != 0 {
		t.Fatalf("one flow at each place: %+v", got)
	}
	m.Now = m.Now.Add(time.Second)
	m.Strays = append(m.Strays, stray(3, "leaf1", "spine1", "spine4"))
	for range 2 {
		got := held()
		if len(got) != 1 || got[0].ID != "leaf1" || got[0].Prefix != "spine1" || got[0].Flows != 2 || !got[0].Since.Equal(time.Unix(1000, 0)) ||
			!slices.Equal(got[0].Others, []fabric.Element{{ID: "spine2", Kind: fabric.KindSwitch}, {ID: "spine4", Kind: fabric.KindSwitch}}) {
			t.Fatalf("two flows: %+v", got)
		}
		m.Now = m.Now.Add(time.Second)
	}
	m.Strays = nil
	if got := held(); len(got) != 0 {
		t.Errorf("afterwards: %+v", got)
	}
}
