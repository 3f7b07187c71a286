package paths

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
	"github.com/graylink/graylink/internal/sighting"
)

// large returns 16,384 NICs: four planes of four pods with 32 leaves of 32 NICs.
func large() *fabric.Graph {
	return fabric.NewGraph(clos.NewTopology(clos.Options{Tiers: 3, Planes: 4, Pods: 4, LeavesPerPod: 32, SpinesPerPod: 32, CoresPerRow: 8, NICsPerLeaf: 32, NICsPerNode: 8, RailOptimised: true}))
}

// way picks one of the shortest paths, as a hash would.
func way(st *Stitcher, src, dst string, rng *rand.Rand) fabric.Path {
	first, in := st.g.LeafOf(src)
	last, out := st.g.LeafOf(dst)
	dist := st.distancesFrom(st.index[first])
	sw := st.index[last]
	if dist[sw] == unreachable {
		return nil
	}
	p := make(fabric.Path, dist[sw]+1)
	for level := int(dist[sw]); ; level-- {
		p[level] = fabric.Hop{Switch: st.names[sw], Out: out}
		if level == 0 {
			p[0].In = in
			return p
		}
		for n, i := 0, 0; i < len(st.cables[sw]); i++ {
			c := st.cables[sw][i]
			if int(dist[c.far]) != level-1 {
				continue
			}
			if n++; rng.IntN(n) == 0 {
				p[level].In, out = c.port, c.farPort
			}
		}
		sw = st.index[fabric.OwnerOf(st.g.PeerOf(st.names[sw]+":"+p[level].In))]
	}
}

// meshed calls fn with n flows, probes and replies by turns, every NIC probing as
// many others of its plane.
func meshed(g *fabric.Graph, n int, rng *rand.Rand, fn func(fabric.Flow)) {
	planes := map[string][]string{}
	for _, nic := range g.NICIDs() {
		p := g.NIC(nic).Plane
		planes[p] = append(planes[p], nic)
	}
	nics := g.NICIDs()
	for i := 0; i < n; i += 2 {
		src := nics[i/2%len(nics)]
		peers := planes[g.NIC(src).Plane]
		dst := peers[rng.IntN(len(peers))]
		if dst == src {
			dst = peers[(rng.IntN(len(peers)-1)+1)%len(peers)]
		}
		e := fabric.Flow{Src: src, Dst: dst, Number: i / 2 / len(nics)}
		fn(e)
		e.Reply = true
		fn(e)
	}
}

func heapMB() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / 1e6
}

// rssMB returns the process's resident memory and its greatest so far.
func rssMB(b *testing.B) (now, most float64) {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Skip("resident memory: ", err)
	}
	for _, line := range strings.Split(string(data), "\n") {
		var kb float64
		if n, _ := fmt.Sscanf(line, "VmRSS: %f kB", &kb); n == 1 {
			now = kb / 1e3
		} else if n, _ := fmt.Sscanf(line, "VmHWM: %f kB", &kb); n == 1 {
			most = kb / 1e3
		}
	}
	return now, most
}

// BenchmarkMillion measures a million flows over 16,384 NICs; run it with -benchtime 1x.
func BenchmarkMillion(b *testing.B) {
	const flows = 1_000_000
	for range b.N {
		g := large()
		st := NewStitcher(g)
		rng := rand.New(rand.NewPCG(7, 7))
		before := heapMB()
		s := NewStore(g)
		at := sec(0)
		var edges []fabric.Flow
		sightingOf := func(e fabric.Flow, at time.Time) pathReport {
			src, dst := e.Endpoints()
			p := way(st, src, dst, rng)
			return pathReport{source: BySightings, at: at, Resolved: resolved(p), since: at, sightedHops: 1<<len(p) - 1}
		}
		meshed(g, flows, rng, func(e fabric.Flow) {
			applyReport(b, s, e, sightingOf(e, at))
			if len(edges) < 100_000 {
				edges = append(edges, e)
			}
		})
		b.ReportMetric(heapMB()-before, "store-MB")
		b.ReportMetric(float64(len(s.routes.byEnds)), "routes")
		rng.Shuffle(len(edges), func(i, j int) { edges[i], edges[j] = edges[j], edges[i] })
		for i := range g.Topo.Switches {
			s.recordSwitchAnswer(g.Topo.Switches[i].Name, sec(60), sec(60))
		}
		start := time.Now()
		for _, e := range edges {
			s.CurrentBinding(e)
		}
		b.ReportMetric(float64(time.Since(start).Nanoseconds())/float64(len(edges)), "ns/Bind")
		start = time.Now()
		for _, e := range edges {
			if got, _ := s.BindingAt(e, sec(50), sec(52)); got.State != fabric.PathValid {
				b.Fatal(got)
			}
		}
		b.ReportMetric(float64(time.Since(start).Nanoseconds())/float64(len(edges)), "ns/At")

		words := make([]pathReport, flows/100)
		for i := range words {
			words[i] = sightingOf(edges[i], sec(70))
		}
		start = time.Now()
		for i, w := range words {
			applyReport(b, s, edges[i], w)
		}
		b.ReportMetric(float64(time.Since(start).Microseconds())/1e3, "ms/1%")

		spine := g.Topo.Links[0].ID()
		start = time.Now()
		n := len(s.FlowsCrossing(fabric.Element{ID: spine, Kind: fabric.KindLink}))
		b.ReportMetric(float64(time.Since(start).Microseconds())/1e3, "ms/link")
		b.ReportMetric(float64(n), "flows/link")
		start = time.Now()
		n = len(s.FlowsCrossing(fabric.Element{ID: g.Topo.Switches[0].Name, Kind: fabric.KindSwitch}))
		b.ReportMetric(float64(time.Since(start).Microseconds())/1e3, "ms/switch")
		b.ReportMetric(float64(n), "flows/switch")
		start = time.Now()
		s.ExpireFlows(sec(70))
		b.ReportMetric(float64(time.Since(start).Microseconds())/1e3, "ms/Expire")
		now, most := rssMB(b)
		b.ReportMetric(now, "rss-MB")
		b.ReportMetric(most, "rss-max-MB")
		runtime.KeepAlive(s)
	}
}

// BenchmarkMillionSighted measures the tables of all switches on the way of a million
// flows; run it with -benchtime 1x.
func BenchmarkMillionSighted(b *testing.B) {
	const flows = 1_000_000
	for range b.N {
		topo := clos.NewTopology(clos.Options{Tiers: 3, Planes: 4, Pods: 4, LeavesPerPod: 32, SpinesPerPod: 32, CoresPerRow: 8, NICsPerLeaf: 32, NICsPerNode: 8, RailOptimised: true})
		addr := netip.MustParseAddr("10.0.0.0")
		for i := range topo.Nodes {
			for j := range topo.Nodes[i].NICs {
				addr = addr.Next()
				topo.Nodes[i].NICs[j].Addresses = []netip.Addr{addr}
			}
		}
		g := fabric.NewGraph(topo)
		st := NewStitcher(g)
		rng := rand.New(rand.NewPCG(8, 8))
		before := heapMB()
		reports := make([]sighting.Report, len(st.names))
		enter := func(e fabric.Flow, at time.Time) {
			src, dst := e.Endpoints()
			f := sighting.Flow{Src: netip.AddrPortFrom(g.ProbeAddress(src), ports.SourcePort+uint16(e.Number)), Dst: netip.AddrPortFrom(g.ProbeAddress(dst), ports.StampPort)}
			if e.Reply {
				f = sighting.Flow{Src: netip.AddrPortFrom(g.ProbeAddress(src), ports.StampPort), Dst: netip.AddrPortFrom(g.ProbeAddress(dst), ports.SourcePort+uint16(e.Number))}
			}
			for _, h := range way(st, src, dst, rng) {
				r := &reports[st.index[h.Switch]]
				r.Flows = append(r.Flows, sighting.FlowPorts{Flow: f, Ports: []sighting.Port{{Name: h.In, First: at, Last: at}}})
			}
		}
		var edges []fabric.Flow
		meshed(g, flows, rng, func(e fabric.Flow) {
			enter(e, sec(0))
			if len(edges) < flows/100 {
				edges = append(edges, e)
			}
		})
		s := NewSightings(NewStore(g), ports)
		round := func(version uint64, at time.Time) (spent time.Duration, most time.Duration) {
			for i := range reports {
				r := &reports[i]
				r.Switch, r.Instance, r.Since, r.Version, r.At, r.Fresh = st.names[i], "i", version-1, version, at, 3*time.Second
				start := time.Now()
				if err := s.ApplyReport(r.Switch, r, at, at); err != nil {
					b.Fatal(err)
				}
				took := time.Since(start)
				spent, most = spent+took, max(most, took)
				r.Flows = nil
			}
			return spent, most
		}
		all, _ := round(1, sec(1))
		b.ReportMetric(all.Seconds(), "s/all")
		b.ReportMetric(heapMB()-before, "heap-MB")
		if n := s.store.StateCounts()[fabric.PathValid]; n != s.store.Len() || n < flows*9/10 {
			b.Fatalf("%d of %d flows have a path", n, s.store.Len())
		}
		quiet, _ := round(2, sec(2))
		b.ReportMetric(float64(quiet.Microseconds())/1e3, "ms/quiet")
		for _, e := range edges {
			enter(e, sec(3))
		}
		changed, most := round(3, sec(3))
		b.ReportMetric(float64(changed.Microseconds())/1e3, "ms/1%")
		b.ReportMetric(float64(most.Microseconds())/1e3, "ms/worst-report")
		now, _ := rssMB(b)
		b.ReportMetric(now, "rss-MB")
	}
}
