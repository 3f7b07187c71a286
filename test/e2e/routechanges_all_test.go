//go:build all

package e2e

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

var (
	routeChanges = flag.Int("route.changes", 50, "changes of routes of TestNoWindowOfAWrongPath")
	routeWindows = flag.Int("route.windows", 20_000, "the least number of windows with a path that it judges")
)

// routeChange is a change that FRR makes of routes, and how it is taken back.
type routeChange struct {
	name     string
	do, undo func() error
}

// changesByFRR returns the changes, which FRR makes by itself: sessions are shut down and opened, prefixes are withdrawn and come
// back, links of a group of equal paths go down and up, and maximum-paths changes.
func (d *routedDemo) changesByFRR() []routeChange {
	var out []routeChange
	var fault string
	byFault := func(f lab.Fault) {
		out = append(out, routeChange{f.Kind + " " + f.At, func() (err error) { fault, err = d.Lab().AddFault(d.t.Context(), f); return err }, func() error { return d.Lab().ClearFault(d.t.Context(), fault) }})
	}
	session := func(sw, port string) {
		set := func(how string) func() error {
			return func() error { d.vtysh(sw, "configure terminal", "router bgp", how); return nil }
		}
		out = append(out, routeChange{"session " + sw + ":" + port, set("neighbor " + port + " shutdown"), set("no neighbor " + port + " shutdown")})
	}
	for i := 1; i <= 4; i++ {
		leaf, other := fmt.Sprintf("leaf%d", i), fmt.Sprintf("leaf%d", i%4+1)
		spine := fmt.Sprintf("spine%d", i%2+1)
		session(leaf, fmt.Sprintf("up%d", i%2+1))
		byFault(lab.Fault{Kind: lab.KindWithdrawn, At: spine + "->" + leaf})
		byFault(lab.Fault{Kind: lab.KindLinkDown, At: fmt.Sprintf("%s:up%d--%s:dn%d", leaf, i%2+1, spine, i)})
		byFault(lab.Fault{Kind: lab.KindECMPShrunk, At: leaf, Paths: 1})
		byFault(lab.Fault{Kind: lab.KindWrongASPath, At: spine + "->" + other})
		session(spine, fmt.Sprintf("dn%d", i%4+1))
		byFault(lab.Fault{Kind: lab.KindBlackhole, At: fmt.Sprintf("%s:up%d->%s:dn%d", leaf, 2-i%2, fmt.Sprintf("spine%d", 2-i%2), i), Sessions: true})
	}
	return out
}

// judgedWindow is a window as the analyzer judged it.
type judgedWindow struct {
	edge       string
	start, end time.Time
	path       fabric.Path
	state      fabric.PathState
}

// windowTruth is what the packets of a window did, compared with the path that the window is bound to.
type windowTruth int

const (
	rightPath   windowTruth = iota // packets took it, and no other
	lostOnPath                     // they were lost on the way
	otherPath                      // packets took another path
	mixedPaths                     // some took it, and some another
	withoutSome                    // the flow sent none
)

// judgeWindow compares a window with the packets of its flow.
func judgeWindow(w *judgedWindow, f *packetFlow) (windowTruth, []string) {
	used := f.portsIn(w.start, w.end)
	if len(used) == 0 {
		return withoutSome, nil
	}
	var bound, others []string
	for _, h := range w.path {
		bound = append(bound, h.Switch+":"+h.In)
	}
	for _, p := range used {
		if !slices.Contains(bound, p) {
			others = append(others, p)
		}
	}
	arrived := slices.Contains(used, bound[len(bound)-1])
	switch {
	case len(others) == 0 && arrived:
		return rightPath, nil
	case len(others) == 0:
		return lostOnPath, nil
	case arrived && (len(bound) < 3 || slices.Contains(used, bound[1])):
		return mixedPaths, others
	}
	return otherPath, others
}

// collectWindows appends the windows of each cycle of the analyzer until stop is closed.
func (d *routedDemo) collectWindows(stop chan struct{}) (out []judgedWindow) {
	var last time.Time
	for {
		select {
		case <-stop:
			return out
		case <-time.After(50 * time.Millisecond):
		}
		snap := d.Loop().Snapshot()
		if snap.At.Equal(last) {
			continue
		}
		last = snap.At
		for i := range snap.Edges {
			o := &snap.Edges[i].Obs
			out = append(out, judgedWindow{o.Edge, o.Start, o.Start.Add(time.Duration(o.WindowNS)), o.Path, o.PathState})
		}
	}
}

// TestNoWindowOfAWrongPath: FRR changes routes 50 times while all flows are probed. No window is bound to a path that its packets
// did not take, or to one of two that they took, by what packet sockets of all switches received.
func TestNoWindowOfAWrongPath(t *testing.T) {
	d := startRouted(t, "e2erc", "../../deploy/lab/demo.yaml", demo.Options{Cadence: 20 * time.Millisecond})
	d.awaitRoutes()
	stop, collected := make(chan struct{}), make(chan []judgedWindow)
	go func() { collected <- d.collectWindows(stop) }()
	type moment struct {
		name string
		at   time.Time
	}
	var moments []moment
	time.Sleep(4 * time.Second)
	all := d.changesByFRR()
	for i := 0; len(moments) < *routeChanges; i++ {
		c := all[i/2%len(all)]
		name, act := c.name, c.do
		if i%2 == 1 {
			name, act = "back: "+c.name, c.undo
		}
		moments = append(moments, moment{name, time.Now()})
		if err := act(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(moments[len(moments)-1].at.Add(changeEvery)))
	}
	time.Sleep(8 * time.Second)
	close(stop)
	windows := <-collected
	moments = append(moments, moment{"end", time.Now()})
	flows := d.truth.byName()
	counts, unknown, shown := map[windowTruth]int{}, 0, 0
	type calm struct{ unbound, moved map[string]int }
	calms := make([]calm, len(moments))
	for i := range calms {
		calms[i] = calm{map[string]int{}, map[string]int{}}
	}
	for i := range windows {
		w := &windows[i]
		f := flows[w.edge]
		if f == nil {
			t.Fatalf("flow %s is not of the fabric", w.edge)
		}
		n := max(0, slices.IndexFunc(moments, func(m moment) bool { return m.at.After(w.end) })-1)
		if w.state != fabric.PathValid {
			unknown++
			calms[n].unbound[w.edge]++
			continue
		}
		truth, others := judgeWindow(w, f)
		counts[truth]++
		if truth == otherPath || truth == mixedPaths {
			if shown++; shown <= 20 {
				t.Errorf("%s from %s to %s, after %q: bound to %s, and packets entered %s", w.edge, w.start.Sub(moments[n].at), w.end.Sub(moments[n].at), moments[n].name, w.path.CanonicalKey(), strings.Join(others, ", "))
			}
		}
	}
	for i, m := range moments[:len(moments)-1] {
		var spans []float64
		for _, n := range calms[i].unbound {
			spans = append(spans, float64(n))
		}
		t.Logf("%-40s %3d flows without a valid path: for %.0f s (median), %.0f s (longest)", m.name, len(spans), percentile(spans, 0.5), percentile(spans, 1))
	}
	valid := len(windows) - unknown
	wrong := counts[otherPath] + counts[mixedPaths]
	t.Logf("%d changes: of %d windows with a path %d are right, %d have packets that were lost on it, %d sent none, %d are wrong (%d mixed); %d windows have no valid path",
		len(moments)-1, valid, counts[rightPath], counts[lostOnPath], counts[withoutSome], wrong, counts[mixedPaths], unknown)
	if valid < *routeWindows {
		t.Errorf("%d windows have a path, want %d", valid, *routeWindows)
	}
	if wrong > 0 {
		t.Errorf("%d windows are bound to a wrong path", wrong)
	}
}

// changeEvery is the time from one change to the next.
const changeEvery = 5 * time.Second
