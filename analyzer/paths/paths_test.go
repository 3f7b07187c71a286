package paths

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

const topo = `version: 1
switches:
  - {name: leaf1, role: leaf, addresses: [192.168.255.1]}
  - {name: leaf2, role: leaf}
  - {name: spine1, role: spine, addresses: [192.168.255.11]}
  - {name: spine2, role: spine}
nodes:
  - {name: h1, nics: [{device: eth1}]}
  - {name: h2, nics: [{device: eth1}]}
  - {name: h3, nics: [{device: eth1}]}
links:
  - {a: "h1/eth1", b: "leaf1:dn1", a_address: 10.0.1.2/24, b_address: 10.0.1.1/24}
  - {a: "h3/eth1", b: "leaf1:dn2", a_address: 10.0.3.2/24, b_address: 10.0.3.1/24}
  - {a: "h2/eth1", b: "leaf2:dn1", a_address: 10.0.2.2/24, b_address: 10.0.2.1/24}
  - {a: "leaf1:up1", b: "spine1:dn1", a_address: 172.16.0.0/31, b_address: 172.16.0.1/31}
  - {a: "leaf1:up2", b: "spine2:dn1", a_address: 172.16.0.2/31, b_address: 172.16.0.3/31}
  - {a: "leaf2:up1", b: "spine1:dn2", a_address: 172.16.0.4/31, b_address: 172.16.0.5/31}
  - {a: "leaf2:up2", b: "spine2:dn2", a_address: 172.16.0.6/31, b_address: 172.16.0.7/31}
`

func graph(t testing.TB) *fabric.Graph {
	t.Helper()
	tp, found := fabric.ParseTopology("t.yaml", []byte(topo))
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return fabric.NewGraph(tp)
}

// hops reads addresses, "*" being a silent hop.
func hops(s string) []fabric.RawHop {
	var out []fabric.RawHop
	for i, f := range strings.Fields(s) {
		h := fabric.RawHop{TTL: i + 1}
		if f != "*" {
			h.Address = netip.MustParseAddr(f)
		}
		out = append(out, h)
	}
	return out
}

const viaSpine1 = "leaf1[dn1>up1] spine1[dn1>dn2] leaf2[up1>dn1]"

func TestResolve(t *testing.T) {
	g := graph(t)
	tests := []struct {
		name     string
		src, dst string
		hops     string
		reached  bool
		state    fabric.PathState
		path     string // or the number of candidates when unknown
		cands    int
	}{
		{"every hop answers", "h1/eth1", "h2/eth1", "10.0.1.1 172.16.0.1 172.16.0.4", true, fabric.PathValid, viaSpine1, 0},
		{"replies: without evidence that they arrived", "h1/eth1", "h2/eth1", "10.0.1.1 172.16.0.1 172.16.0.4 * *", false, fabric.PathValid, viaSpine1, 0},
		{"same leaf", "h1/eth1", "h3/eth1", "10.0.1.1", true, fabric.PathValid, "leaf1[dn1>dn2]", 0},
		{"a silent spine given away by the next port", "h1/eth1", "h2/eth1", "10.0.1.1 * 172.16.0.6", true, fabric.PathValid, "leaf1[dn1>up2] spine2[dn1>dn2] leaf2[up2>dn1]", 0},
		{"a silent last leaf", "h1/eth1", "h2/eth1", "10.0.1.1 172.16.0.1 *", true, fabric.PathValid, viaSpine1, 0},
		{"spine and last leaf silent: two ways fit", "h1/eth1", "h2/eth1", "10.0.1.1 * *", true, fabric.PathUnknown, "", 2},
		{"it ends at the first leaf", "h1/eth1", "h2/eth1", "10.0.1.1 * *", false, fabric.PathUnknown, "", 2},
		{"it ends at the spine", "h1/eth1", "h2/eth1", "10.0.1.1 172.16.0.1 *", false, fabric.PathUnknown, "", 1},
		{"nothing answers", "h1/eth1", "h2/eth1", "* * *", false, fabric.PathUnknown, "", 2},
		{"an unknown address", "h1/eth1", "h2/eth1", "10.0.1.1 9.9.9.9 172.16.0.4", true, fabric.PathUnknown, "", 0},
		{"ports that no cable joins", "h1/eth1", "h2/eth1", "10.0.1.1 172.16.0.1 172.16.0.6", true, fabric.PathUnknown, "", 0},
		{"the wrong first port", "h1/eth1", "h2/eth1", "10.0.3.1 172.16.0.1 172.16.0.4", true, fabric.PathUnknown, "", 0},
		{"switches that answer by their own address", "h1/eth1", "h2/eth1", "192.168.255.1 192.168.255.11 172.16.0.4", true, fabric.PathValid, viaSpine1, 0},
		{"shorter than any way there is", "h1/eth1", "h2/eth1", "10.0.1.1 172.16.0.1", true, fabric.PathUnknown, "", 0},
	}
	for _, tt := range tests {
		r := fabric.ResolveTrace(g, tt.src, tt.dst, fabric.Trace{State: fabric.PathValid, Reached: tt.reached, Hops: hops(tt.hops)})
		if r.State != tt.state || r.Path.CanonicalKey() != tt.path || len(r.Candidates) != tt.cands {
			t.Errorf("%s: %s %q with %d candidates, want %s %q with %d; notes %q", tt.name, r.State, r.Path.CanonicalKey(), len(r.Candidates), tt.state, tt.path, tt.cands, r.Notes)
		}
		if r.State == fabric.PathUnknown && len(r.Notes) == 0 {
			t.Errorf("%s: nothing says why the path is unknown", tt.name)
		}
	}
}

func TestStore(t *testing.T) {
	s := NewStore(graph(t))
	at := func(sec int64) time.Time { return time.Unix(sec, 0) }
	e := fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1"}
	update := func(sec int64, h string, reached bool) {
		t.Helper()
		if err := s.AddTrace(fabric.Trace{Edge: e.String(), State: fabric.PathValid, TracedAt: at(sec), Reached: reached, Hops: hops(h)}); err != nil {
			t.Fatal(err)
		}
	}
	if b, ok := s.CurrentBinding(e); ok || b.State != fabric.PathUnknown {
		t.Fatalf("an empty store knows %+v", b)
	}
	update(10, "10.0.1.1 172.16.0.1 172.16.0.4", true)
	update(20, "10.0.1.1 172.16.0.1 172.16.0.4", true)
	if b, _ := s.CurrentBinding(e); b.State != fabric.PathValid || !b.Since.Equal(at(10)) || !b.Checked.Equal(at(20)) || s.Version() != 1 {
		t.Errorf("after two equal traces: %+v, version %d", b, s.Version())
	}
	// The way is lost: where the packets went stands, as stale.
	update(30, "10.0.1.1 * *", false)
	if b, _ := s.CurrentBinding(e); b.State != fabric.PathStale || b.Path.CanonicalKey() != viaSpine1 {
		t.Errorf("after a trace that got lost: %+v", b)
	}
	// An answer that was overtaken changes nothing.
	update(25, "10.0.1.1 172.16.0.3 172.16.0.6", true)
	if b, _ := s.CurrentBinding(e); b.Path.CanonicalKey() != viaSpine1 {
		t.Errorf("an old trace replaced a new one: %+v", b)
	}
	update(40, "10.0.1.1 172.16.0.3 172.16.0.6", true)
	b, _ := s.CurrentBinding(e)
	if b.State != fabric.PathValid || b.Path[1].Switch != "spine2" || s.Version() != 2 {
		t.Errorf("after a reroute: %+v, version %d", b, s.Version())
	}
	// Windows of the past: before the last proof of the old way, between, after.
	if b, _ := s.BindingAt(e, at(12), at(14)); b.Path.CanonicalKey() != viaSpine1 {
		t.Errorf("second 12 to 14: %+v", b)
	}
	if b, _ := s.BindingAt(e, at(35), at(37)); len(b.Path) != 0 || len(b.Candidates) != 2 || b.State != fabric.PathUnknown {
		t.Errorf("second 35 to 37: %+v", b)
	}
	if b, _ := s.BindingAt(e, at(41), at(43)); b.Path[1].Switch != "spine2" || b.State != fabric.PathValid {
		t.Errorf("second 41 to 43: %+v", b)
	}
	cross := s.FlowsCrossing(fabric.Element{ID: "leaf1:up2--spine2:dn1", Kind: fabric.KindLink})
	if len(cross) != 1 || cross[0] != e {
		t.Errorf("crossing %v", cross)
	}
	if n := s.StateCounts(); n[fabric.PathValid] != 1 {
		t.Errorf("states %v", n)
	}
	// A node that repeats its last good trace says nothing new.
	if err := s.AddTrace(fabric.Trace{Edge: e.String(), State: fabric.PathStale, TracedAt: at(50), Reached: true, Hops: hops("10.0.1.1 172.16.0.1 172.16.0.4")}); err != nil {
		t.Fatal(err)
	}
	if b, _ := s.CurrentBinding(e); b.State != fabric.PathStale || b.Path[1].Switch != "spine2" {
		t.Errorf("after a stale trace: %+v", b)
	}
	for _, bad := range []string{"x", "h1/eth1>h9/eth1#0"} {
		if err := s.AddTrace(fabric.Trace{Edge: bad}); err == nil {
			t.Errorf("a trace of %q passes", bad)
		}
	}
}

// TestBalancedFlowHasNoPath: whatever single answers say.
func TestBalancedFlowHasNoPath(t *testing.T) {
	r := fabric.ResolveTrace(graph(t), "h1/eth1", "h2/eth1", fabric.Trace{State: fabric.PathUnknown, Balanced: true, Reached: true, Hops: hops("10.0.1.1 172.16.0.1 172.16.0.4")})
	if r.State != fabric.PathUnknown || len(r.Candidates) != 2 {
		t.Errorf("%s %q with %d candidates", r.State, r.Path.CanonicalKey(), len(r.Candidates))
	}
}

// FuzzResolve: whatever answers, a path is made of cables that exist, or unknown.
func FuzzResolve(f *testing.F) {
	f.Add([]byte{1, 4, 7}, true)
	f.Add([]byte{1, 0, 8, 0}, false)
	g := graph(f)
	var addrs []netip.Addr
	for _, l := range g.Topo.Links {
		addrs = append(addrs, l.AAddress.Addr(), l.BAddress.Addr())
	}
	f.Fuzz(func(t *testing.T, picks []byte, reached bool) {
		tr := fabric.Trace{State: fabric.PathValid, Reached: reached}
		for i, p := range picks {
			h := fabric.RawHop{TTL: i + 1}
			if n := int(p) % (len(addrs) + 1); n > 0 {
				h.Address = addrs[n-1]
			}
			tr.Hops = append(tr.Hops, h)
		}
		r := fabric.ResolveTrace(g, "h1/eth1", "h2/eth1", tr)
		if (r.State == fabric.PathValid) != (len(r.Path) > 0) {
			t.Fatalf("state %s with path %q", r.State, r.Path.CanonicalKey())
		}
		for _, d := range r.Path.LinkDirections("h1/eth1", "h2/eth1") {
			if g.PeerOf(d.From) != d.To {
				t.Fatalf("path %s crosses %s, which is no cable", r.Path.CanonicalKey(), d)
			}
		}
	})
}
