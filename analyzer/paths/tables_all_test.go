//go:build all

package paths

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ibfabric/ibtest"
	"github.com/graylink/graylink/internal/ibmad"
)

// TestStoreAsIbtracert compares what the store has of 500 random flows with ibtracert, by OpenSM's engines minhop, updn, ftree and
// dor, with one, two and four LIDs a port, and of fifty flows after a link went and came back.
func TestStoreAsIbtracert(t *testing.T) {
	ibtest.RequireTools(t)
	for _, engine := range []string{"minhop", "updn", "ftree", "dor"} {
		net, uplink := ibtest.FatTree(6, 3, 4), `"leaf1"[5]`
		if engine == "dor" {
			net, uplink = ibtest.Torus(4, 3, 2), `"sw1"[1]`
		}
		for lmc := range 3 {
			t.Run(fmt.Sprintf("%s-lmc%d", engine, lmc), func(t *testing.T) {
				sim := ibtest.Start(t, net, ibtest.Options{Engine: engine, LMC: lmc})
				transport, err := ibmad.DialIbsim(sim.SocketName(), "h1")
				if err != nil {
					t.Fatal(err)
				}
				client := ibmad.NewClient(transport, ibmad.Config{})
				defer client.Close()
				watch := &ibfabric.Watch{Client: client, Now: time.Now, MaxGap: time.Minute}
				var store *Store
				var tables *Tables
				follow := func(n int, seed uint64) {
					t.Helper()
					r, err := watch.Read(t.Context())
					for reads := 0; err == nil && reads < 100; reads++ {
						if store == nil {
							topo, found := r.Fabric.BuildTopology()
							if len(found) > 0 {
								t.Fatal(found)
							}
							store = NewStore(fabric.NewGraph(topo))
							tables = NewTables(store, 0)
						}
						if tables.ApplyReading(r); reads > 0 && !r.Broken {
							break // equal to the one before it
						}
						r, err = watch.Read(t.Context())
					}
					if err != nil || r.Broken {
						t.Fatal("no two readings agree: ", err)
					}
					storeAsIbtracert(t, sim, r.Fabric, store, tables, randomFlows(store.Graph().NICIDs(), n, seed))
				}
				follow(500, 1)
				sim.ChangeAndWait("Unlink " + uplink)
				follow(50, 2)
				sim.ChangeAndWait("ReLink " + uplink)
				follow(50, 3)
			})
		}
	}
}

// randomFlows returns different flows between NICs, in both directions.
func randomFlows(nics []string, n int, seed uint64) (all []fabric.Flow) {
	rng := rand.New(rand.NewPCG(seed, 1))
	seen := map[[2]int]bool{}
	for len(all) < n && len(seen) < len(nics)*(len(nics)-1) {
		p := [2]int{rng.IntN(len(nics)), rng.IntN(len(nics))}
		if p[0] != p[1] && !seen[p] {
			seen[p] = true
			all = append(all, fabric.Flow{Src: nics[p[0]], Dst: nics[p[1]], Reply: len(all)%2 == 1})
		}
	}
	return all
}

// storeAsIbtracert compares the paths of flows in the store with ibtracert, which runs from four hosts at a time.
func storeAsIbtracert(t *testing.T, sim *ibtest.Fabric, f *ibfabric.Fabric, store *Store, tables *Tables, flows []fabric.Flow) {
	t.Helper()
	work := make(chan fabric.Flow, len(flows))
	for _, e := range flows {
		tables.FollowFlow(e, time.Now())
		work <- e
	}
	close(work)
	lid := func(nic string) uint16 {
		l, err := f.FindLID(nic)
		if err != nil {
			t.Error(err)
		}
		return uint16(l)
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for e := range work {
				from, to := e.Endpoints()
				links, err := sim.TraceRoute(fmt.Sprintf("h%d", i+2), lid(from), lid(to))
				for range 4 { // its queries time out on a busy machine
					if !errors.Is(err, ibtest.ErrLost) {
						break
					}
					links, err = sim.TraceRoute(fmt.Sprintf("h%d", i+2), lid(from), lid(to))
				}
				b, ok := store.CurrentBinding(e)
				if want := named(f, from, to, links); err != nil || !ok || b.State != fabric.PathValid || b.Source != ByTables || !slices.Equal(want, b.Path) {
					t.Errorf("%s is bound to %s (%v), and ibtracert says %s (%v)", e, b.Path.CanonicalKey(), b.State, want.CanonicalKey(), err)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d flows equal to ibtracert", len(flows))
}
