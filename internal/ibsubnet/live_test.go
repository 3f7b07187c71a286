package ibsubnet_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibagent"
	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ibfabric/ibtest"
	"github.com/graylink/graylink/internal/ibmad"
	"github.com/graylink/graylink/internal/ibsubnet"
	"github.com/graylink/graylink/internal/ufm/ufmtest"
)

// hangLimit is after how long a test gives up.
const hangLimit = 5 * time.Minute

// TestSourcesReadOneSubnet reads the subnet of a real OpenSM by a device, by an agent, by the files of ibnetdiscover and dump_lfts,
// and by a simulated UFM's inventory with the file of dump_lfts, before and after a link is lost: all of them fill a store with the
// same paths between all NICs.
// The lost link ends what the device and the agent confirm, and the files of before are no longer believed.
func TestSourcesReadOneSubnet(t *testing.T) {
	sim := ibtest.Start(t, ibtest.FatTree(4, 2, 2), ibtest.Options{Engine: "ftree"})
	config := ibagent.DefaultConfig()
	config.Device, config.Sample, config.Listen, config.Tables, config.OpenSMLog = "ibsim:"+sim.SocketName()+"/h2", false, "127.0.0.1:0", true, sim.LogPath()
	agent, err := ibagent.Start(config, ibmad.Open, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	dir := t.TempDir()
	files := &ibsubnet.Files{NetDiscover: filepath.Join(dir, "net"), LFTs: filepath.Join(dir, "lfts"), Log: sim.LogPath()}
	server := ufmtest.New(t)
	sources := []ibsubnet.Source{
		&ibsubnet.Device{Name: "ibsim:" + sim.SocketName() + "/h1", Log: sim.LogPath()},
		&ibsubnet.Agents{Client: &http.Client{}, URLs: []string{"http://" + agent.ListenAddress()}},
		files,
		&ibsubnet.UFM{Events: ufmEvents(t, server, "token"), LFTs: files.LFTs, InventoryInterval: time.Hour},
	}
	defer func() {
		for _, s := range sources {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}()
	events := []any{}
	inventory := func(event map[string]any) { // what UFM would find itself
		f, _, err := ibsubnet.ReadFiles(files.NetDiscover, "")
		if err != nil {
			t.Fatal(err)
		}
		publish(server, f)
		events = append(events, event)
		server.SetJSON("/app/events", events)
	}
	dump := func() { // with the times of a minute later, since it is not known when writing began
		for name, program := range map[string]string{files.NetDiscover: "ibnetdiscover", files.LFTs: "dump_lfts"} {
			text, err := sim.Run("h3", program)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if at := time.Now().Add(2 * time.Minute); os.Chtimes(name, at, at) != nil {
				t.Fatal("cannot change the time of", name)
			}
		}
	}
	dump()
	inventory(event(1, "352", "Network Added"))
	links := agree(t, sources)
	began := time.Now()
	sim.ChangeAndWait(`Unlink "leaf0"[3]`)
	if r, err := sources[0].Read(t.Context()); err == nil && !r.Broken {
		t.Error("the device confirms its tables although the log reports a change")
	}
	for end := time.Now().Add(hangLimit); ; time.Sleep(5 * time.Millisecond) {
		if r, err := sources[1].Read(t.Context()); err != nil || r.Broken {
			t.Logf("the agent's paths ended %v after the command that cut a link", time.Since(began).Round(time.Millisecond))
			break
		}
		if time.Now().After(end) {
			t.Fatal("the agent confirms its tables although the log reports a change")
		}
	}
	dump()
	inventory(event(2, "329", "Link is Down"))
	if after := agree(t, sources); after != links-1 {
		t.Errorf("%d links after one of %d was lost", after, links)
	}
	// A change of which the files do not know.
	sim.ChangeAndWait(`ReLink "leaf0"[3]`)
	for _, name := range []string{files.NetDiscover, files.LFTs} {
		if err := os.Chtimes(name, began, began); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := files.Read(t.Context()); err == nil {
		t.Error("files of before a change are believed")
	}
}

// agree reads all sources until each confirms what it reads and all fill a store with the same paths. It returns the number of cables.
func agree(t *testing.T, sources []ibsubnet.Source) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
	defer cancel()
	why := ""
	var graph *fabric.Graph // of the first source
	for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		var walks []string
		cables := 0
		why = ""
		for _, s := range sources {
			r, err := s.Read(ctx)
			if err != nil || r.Broken {
				why = s.Origin() + " confirms nothing"
				break
			}
			cables = len(r.Fabric.ListCables())
			if graph == nil {
				topo, found := r.Fabric.BuildTopology()
				if len(found) > 0 {
					t.Fatal(found)
				}
				graph = fabric.NewGraph(topo)
			}
			text, err := storedPaths(graph, r)
			if err != nil {
				why = s.Origin() + ": " + err.Error()
				break
			}
			walks = append(walks, text)
		}
		if why == "" && len(slices.Compact(walks)) == 1 {
			return cables
		}
		if why == "" {
			why = "the sources give different paths"
		}
	}
	t.Fatal(why)
	return 0
}

// storedPaths returns the paths between all NICs of a graph, from a store that a reading has confirmed. It fails if one is not valid.
func storedPaths(g *fabric.Graph, r ibfabric.Reading) (string, error) {
	store := paths.NewStore(g)
	tables := paths.NewTables(store, 0)
	tables.ApplyReading(ibfabric.Reading{Fabric: r.Fabric, Begun: r.Begun.Add(-time.Minute), Ended: r.Begun.Add(-time.Minute), Broken: true})
	var flows []fabric.Flow
	for _, src := range store.Graph().NICIDs() {
		for _, dst := range store.Graph().NICIDs() {
			if src != dst {
				flows = append(flows, fabric.Flow{Src: src, Dst: dst})
				tables.FollowFlow(flows[len(flows)-1], r.Begun)
			}
		}
	}
	tables.ApplyReading(r)
	var out strings.Builder
	for _, e := range flows {
		b, _ := store.BindingAt(e, r.Begun.Add(-time.Second), r.Begun)
		if b.State != fabric.PathValid {
			return "", fmt.Errorf("%v: %s, %q", e, b.State, b.Notes)
		}
		fmt.Fprintln(&out, e, b.State, b.Path)
	}
	return out.String(), nil
}

// allWalks returns the walks between all LIDs of CAs in one text.
func allWalks(f *ibfabric.Fabric) string {
	var out strings.Builder
	for a := range int32(len(f.Nodes)) {
		for b := range int32(len(f.Nodes)) {
			if a == b || a < int32(f.Switches) || b < int32(f.Switches) {
				continue
			}
			hops, err := f.Walk(f.FirstLID(ibfabric.End{Node: a, Port: 1}), f.FirstLID(ibfabric.End{Node: b, Port: 1}))
			fmt.Fprint(&out, f.NodeName(a), " ", f.NodeName(b), err != nil)
			for _, h := range hops {
				fmt.Fprint(&out, " ", f.NodeName(h.Switch), h.In, h.Out)
			}
			out.WriteByte('\n')
		}
	}
	return out.String()
}

// TestTheSecondAgentTakesOver has two agents of one subnet, of which the first ends. The next reading is the second's, and confirms
// the paths: within three intervals, of which a source takes one a reading.
func TestTheSecondAgentTakesOver(t *testing.T) {
	sim := ibtest.Start(t, ibtest.FatTree(3, 2, 2), ibtest.Options{})
	var agents []*ibagent.Agent
	source := &ibsubnet.Agents{Client: &http.Client{}}
	for _, host := range []string{"h1", "h2"} {
		config := ibagent.DefaultConfig()
		config.Device, config.Sample, config.Listen, config.Tables = "ibsim:"+sim.SocketName()+"/"+host, false, "127.0.0.1:0", true
		a, err := ibagent.Start(config, ibmad.Open, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { a.Close() })
		agents = append(agents, a)
		source.URLs = append(source.URLs, "http://"+a.ListenAddress())
		// Each has read the subnet twice.
		alone := &ibsubnet.Agents{Client: &http.Client{}, URLs: source.URLs[len(source.URLs)-1:]}
		eventually(t, alone, host, confirmed)
	}
	before := eventually(t, source, "the first agent", confirmed)
	if !strings.Contains(source.Origin(), source.URLs[0]) {
		t.Fatal(source.Origin())
	}
	graph := fabric.NewGraph(func() *fabric.Topology { topo, _ := before.Fabric.BuildTopology(); return topo }())
	want, err := storedPaths(graph, before)
	if err != nil {
		t.Fatal(err)
	}
	if err := agents[0].Close(); err != nil {
		t.Fatal(err)
	}
	for reading := 1; ; reading++ {
		r, err := source.Read(t.Context())
		if err == nil && (!r.Broken || !r.Since.IsZero()) {
			if text, err := storedPaths(graph, ibfabric.Reading{Fabric: r.Fabric, Begun: r.Begun, Ended: r.Ended}); err != nil || text != want {
				t.Errorf("the second agent gives other paths: %v", err)
			}
			t.Logf("reading %d after the first agent ended confirms the paths", reading)
			return
		}
		if reading == 3 {
			t.Fatalf("three readings after the first agent ended: broken %v, %v", r.Broken, err)
		}
	}
}
