package paths

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ibfabric/ibtest"
	"github.com/graylink/graylink/internal/ibmad"
)

// tracert is what ibtracert said of an edge, and when it ran.
type tracert struct {
	edge       fabric.Flow
	begun, end time.Time
	links      []ibtest.Link
	err        error
}

// TestNoWindowIsBoundToAStaleTable runs ibtracert on random pairs while links go and
// come and OpenSM reroutes. A binding for the time in which ibtracert ran must be what
// it said: a valid path held all that time, whatever the order in which tables were
// written and read.
//
// Once OpenSM's log reports changes, which then come at any time. Once nothing does,
// and no change is undone between two readings.
func TestNoWindowIsBoundToAStaleTable(t *testing.T) {
	ibtest.RequireTools(t)
	t.Run("logged", func(t *testing.T) { noStaleTable(t, true) })
	t.Run("polled", func(t *testing.T) { noStaleTable(t, false) })
}

func noStaleTable(t *testing.T, logged bool) {
	sim := ibtest.Start(t, ibtest.FatTree(4, 3, 2), ibtest.Options{Engine: "ftree"})
	transport, err := ibmad.DialIbsim(sim.SocketName(), "h1")
	if err != nil {
		t.Fatal(err)
	}
	client := ibmad.NewClient(transport, ibmad.Config{})
	defer client.Close()
	watch := &ibfabric.Watch{Client: client, Now: time.Now, SettleTime: 500 * time.Millisecond, MaxGap: 10 * time.Second, CableInterval: time.Second}
	if logged {
		log, err := ibfabric.OpenLog(sim.LogPath())
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		watch.PollChange, watch.Settled = log.PollChange, log.Settled
	}
	first, err := watch.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f := first.Fabric
	topo, found := f.BuildTopology()
	if len(found) > 0 {
		t.Fatal(found)
	}
	store := NewStore(fabric.NewGraph(topo))
	tables := NewTables(store, 0)
	tables.ApplyReading(first)
	var all []fabric.Flow
	for _, src := range store.Graph().NICIDs() {
		for _, dst := range store.Graph().NICIDs() {
			if src != dst {
				e := fabric.Flow{Src: src, Dst: dst, Reply: len(all)%2 == 0}
				all = append(all, e)
				tables.FollowFlow(e, time.Now())
			}
		}
	}
	lid := func(nic string) uint16 {
		l, err := f.FindLID(nic)
		if err != nil {
			t.Fatal(err)
		}
		return uint16(l)
	}
	var asked []tracert
	var mu sync.Mutex
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i, host := range []string{"h2", "h5"} {
		rng := rand.New(rand.NewPCG(uint64(i), 2))
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				e := all[rng.IntN(len(all))]
				from, to := e.Endpoints()
				x := tracert{edge: e, begun: time.Now()}
				x.links, x.err = sim.TraceRoute(host, lid(from), lid(to))
				x.end = time.Now()
				mu.Lock()
				asked = append(asked, x)
				mu.Unlock()
			}
		})
	}
	var reads atomic.Int64
	reading := func() {
		r, err := watch.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		tables.ApplyReading(r)
		reads.Add(1)
		time.Sleep(5 * time.Millisecond) // so that others get the processor
	}
	changes := make(chan struct{})
	go func() {
		defer close(changes)
		for _, command := range []string{`Unlink "leaf0"[3]`, `ReLink "leaf0"[3]`, `Unlink "leaf2"[4]`, `Unlink "leaf1"[5]`, `ReLink "leaf2"[4]`, `ReLink "leaf1"[5]`} {
			n := sim.CountSubnetUp()
			sim.RunConsole(command)
			late := time.Now().Add(20 * time.Second)
			wait := func(more func() bool) {
				for more() && time.Now().Before(late) {
					time.Sleep(5 * time.Millisecond)
				}
			}
			wait(func() bool { return sim.CountSubnetUp() == n })
			if read := reads.Load(); !logged {
				wait(func() bool { return reads.Load() < read+20 })
			}
		}
	}()
	for done := false; !done; {
		select {
		case <-changes:
			done = true
		default:
			reading()
		}
	}
	// Until all is calm, and some more.
	for calm := time.Now().Add(watch.SettleTime + 800*time.Millisecond); time.Now().Before(calm); {
		reading()
	}
	close(stop)
	wg.Wait()
	reading()

	states := map[fabric.PathState]int{}
	ways := map[string]bool{}
	for _, x := range asked {
		if errors.Is(x.err, ibtest.ErrLost) {
			continue // its own questions go by LID, and by tables that change
		}
		b, _ := store.BindingAt(x.edge, x.begun, x.end)
		states[b.State]++
		if b.State != fabric.PathValid {
			continue
		}
		from, to := x.edge.Endpoints()
		if want := named(f, from, to, x.links); x.err != nil || !slices.Equal(want, b.Path) {
			t.Errorf("%s from %s to %s is bound to %s, and ibtracert says %s (%v)", x.edge, x.begun, x.end, b.Path.CanonicalKey(), want.CanonicalKey(), x.err)
		}
		ways[x.edge.String()+b.Path.CanonicalKey()] = true
	}
	t.Logf("%d traces, %d readings: %v; %d paths of %d edges", len(asked), reads.Load(), states, len(ways), len(all))
	if states[fabric.PathValid] == 0 || store.Version() <= uint64(len(all)) {
		t.Errorf("the test shows nothing: %v, version %d", states, store.Version())
	}
	for _, e := range all {
		tables.FollowFlow(e, time.Now())
		b, ok := store.CurrentBinding(e)
		if !ok || b.State != fabric.PathValid || b.Source != ByTables {
			t.Errorf("%s in the end: %+v", e, b)
		}
	}
}

// named returns ibtracert's route as a path.
func named(f *ibfabric.Fabric, from, to string, links []ibtest.Link) fabric.Path {
	var p fabric.Path
	for _, l := range links {
		if n := len(p); n > 0 {
			p[n-1].Out = strconv.Itoa(int(l.Out))
		}
		e, ok := f.ByGUID(ibfabric.GUID(l.GUID))
		if !ok {
			return fabric.Path{{Switch: fmt.Sprintf("%#x", l.GUID)}}
		}
		if int(e.Node) < f.Switches {
			p = append(p, fabric.Hop{Switch: f.NodeName(e.Node), In: strconv.Itoa(int(l.In))})
		}
	}
	return p
}
