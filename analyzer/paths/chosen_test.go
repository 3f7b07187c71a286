package paths

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// steeredGraph returns the graph of the tests with locators.
func steeredGraph(t *testing.T) (*fabric.Graph, map[string]int) {
	t.Helper()
	topo := *graph(t).Topo
	topo.Forwarding = fabric.SRv6
	topo.Switches = slices.Clone(topo.Switches)
	sids := map[string]int{}
	for i := range topo.Switches {
		l, err := fabric.ParseLocator(fmt.Sprintf("fcbb:bb00:%x::/48", i+1))
		if err != nil {
			t.Fatal(err)
		}
		topo.Switches[i].Locator = l
		sids[topo.Switches[i].Name] = i + 1
	}
	return fabric.NewGraph(&topo), sids
}

func TestChosenPathsAreBoundAtOnce(t *testing.T) {
	g, sids := steeredGraph(t)
	s := NewStore(g)
	carrier := func(p fabric.Path) netip.Addr {
		text := "fcbb:bb00"
		for _, h := range p {
			text += fmt.Sprintf(":%x", sids[h.Switch])
		}
		return netip.MustParseAddr(text + ":e000::")
	}
	chosen := func(n, spine int, at float64) fabric.Trace {
		return fabric.Trace{Edge: flow(n).String(), State: fabric.PathValid, TracedAt: sec(at), Carrier: carrier(by(spine))}
	}
	addTraces(t, s, chosen(0, 1, 10), chosen(1, 2, 10))
	for n, spine := range []int{1, 2} {
		b, ok := s.CurrentBinding(flow(n))
		if !ok || b.State != fabric.PathValid || b.Source != ByChoice || b.Path.CanonicalKey() != by(spine).CanonicalKey() {
			t.Errorf("flow %d: %+v, want the path over spine %d", n, b, spine)
		}
	}
	// Long after, without another report, it is stale as that of a trace is.
	if b, _ := s.BindingAt(flow(0), sec(10), sec(12)); b.State != fabric.PathValid {
		t.Errorf("two seconds later: %s", b.State)
	}
	later := sec(10).Add(traceHolds + time.Minute)
	if b, _ := s.BindingAt(flow(0), later, later.Add(time.Second)); b.State != fabric.PathStale {
		t.Errorf("long after: %s", b.State)
	}
	// Another choice replaces it, and one that leads elsewhere is none.
	addTraces(t, s, chosen(0, 2, 20))
	if b, _ := s.BindingAt(flow(0), sec(21), sec(22)); b.Path.CanonicalKey() != by(2).CanonicalKey() {
		t.Errorf("after another choice: %s", b.Path.CanonicalKey())
	}
	odd := chosen(2, 1, 20)
	odd.Carrier = netip.MustParseAddr("fcbb:bb00:1:99:e000::")
	addTraces(t, s, odd)
	if b, _ := s.CurrentBinding(flow(2)); b.State != fabric.PathUnknown || len(b.Notes) == 0 {
		t.Errorf("by an unknown switch: %+v", b)
	}
}

func TestChosenPathsNeedLocators(t *testing.T) {
	s := NewStore(graph(t))
	addTraces(t, s, fabric.Trace{Edge: flow(0).String(), State: fabric.PathValid, TracedAt: sec(1),
		Carrier: netip.MustParseAddr("fcbb:bb00:1:2:e000::")})
	if b, _ := s.CurrentBinding(flow(0)); b.State != fabric.PathUnknown || len(b.Notes) == 0 {
		t.Errorf("without locators: %+v", b)
	}
}

// TestTracesContradictChosenPaths: a trace by the carrier that finds other switches makes the path unknown, until one agrees again.
func TestTracesContradictChosenPaths(t *testing.T) {
	g, sids := steeredGraph(t)
	s := NewStore(g)
	traced := func(at float64, hops ...string) fabric.Trace {
		tr := fabric.Trace{Edge: flow(0).String(), State: fabric.PathValid, TracedAt: sec(at)}
		text := "fcbb:bb00"
		for _, h := range by(1) {
			text += fmt.Sprintf(":%x", sids[h.Switch])
		}
		tr.Carrier = netip.MustParseAddr(text + ":e000::")
		for i, end := range hops {
			h := fabric.RawHop{TTL: i + 1}
			if end != "" {
				h.Address = portAddress(t, g, end)
			}
			tr.Hops = append(tr.Hops, h)
		}
		return tr
	}
	in := func(p fabric.Path, i int) string { return p[i].Switch + ":" + p[i].In }
	right, other := by(1), by(2)
	for i, tt := range []struct {
		what string
		hops []string
		want fabric.PathState
		at   string // where packets come to instead
	}{
		{"no trace yet", nil, fabric.PathValid, ""},
		{"the chosen switches", []string{in(right, 0), in(right, 1), in(right, 2)}, fabric.PathValid, ""},
		{"another spine", []string{in(right, 0), in(other, 1), in(other, 2)}, fabric.PathUnknown, in(other, 1)},
		{"the same again", []string{in(right, 0), in(other, 1), in(other, 2)}, fabric.PathUnknown, in(other, 1)},
		{"silent switches", []string{"", "", in(right, 2)}, fabric.PathValid, ""},
		{"the last leaf by another port", []string{in(right, 0), "", in(other, 2)}, fabric.PathValid, ""},
		{"one switch more", []string{in(right, 0), in(right, 1), in(right, 2), in(other, 1)}, fabric.PathUnknown, in(other, 1)},
		{"the chosen ones again", []string{in(right, 0), in(right, 1), in(right, 2)}, fabric.PathValid, ""},
	} {
		addTraces(t, s, traced(float64(10+i), tt.hops...))
		b, _ := s.CurrentBinding(flow(0))
		strays := s.Strays()
		if b.State != tt.want || (len(strays) == 1) != (tt.at != "") {
			t.Errorf("%s: %+v, strays %+v", tt.what, b, strays)
			continue
		}
		if tt.at != "" && (strays[0].End != tt.at || strays[0].Flow != flow(0) || len(b.Notes) == 0) {
			t.Errorf("%s: %+v, notes %q", tt.what, strays[0], b.Notes)
		}
	}
}

// portAddress returns the address of a port.
func portAddress(t *testing.T, g *fabric.Graph, end string) netip.Addr {
	t.Helper()
	l := g.LinkAt(end)
	if l == nil {
		t.Fatalf("no link at %s", end)
	}
	if l.A == end {
		return l.AAddress.Addr()
	}
	return l.BAddress.Addr()
}
