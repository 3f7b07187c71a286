//go:build all

package e2e

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/test/lastrelease"
)

// lastRelease returns the last release, and a directory with its programs. The directory is below that of the programs under
// test, so that clean finds its processes as well.
func lastRelease(t *testing.T) (release lastrelease.Release, dir string) {
	t.Helper()
	release = lastrelease.Find(t, "../..")
	dir = filepath.Join(bin, release.Version)
	if err := os.Symlink(release.Programs(t, "../.."), dir); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	return release, dir
}

// keysInState returns the identifiers of the keys in the coordinator's state.
func (f *fleet) keysInState() (ids []int) {
	f.t.Helper()
	text, err := os.ReadFile(filepath.Join(f.dir, "state.json"))
	if err != nil {
		f.t.Fatal(err)
	}
	var s struct{ Keys []struct{ ID int } }
	if err := json.Unmarshal(text, &s); err != nil {
		f.t.Fatal(err)
	}
	for _, k := range s.Keys {
		ids = append(ids, k.ID)
	}
	return ids
}

// TestUpgradeAndBack: the coordinator, then the agents, one after another, are replaced by those of this checkout, and all
// of them by those of the last release again, on the same files. The schedule, the keys and the edges stay, and the coordinator's
// replacement costs no probe. An agent that is replaced does not answer while it starts: of its edges alone, the probes of
// that moment are lost.
func TestUpgradeAndBack(t *testing.T) {
	need(t)
	_, previous := lastRelease(t)
	f := newFleet(t, "upgrade", "testdata/readme-fabric.yaml")
	f.bin = previous
	f.startCoordinator()
	for _, n := range f.nodes() {
		f.startAgent(n)
	}
	n := len(f.nodes())
	f.connected(n)
	f.probing(n)
	f.answering(10)
	calm := f.base()
	f.answering(100)
	f.usualSkipped = percentile(f.skippedShares(calm), 0.5)
	schedule, keys := f.scheduled(), f.keysInState()
	if len(keys) == 0 || len(schedule) != n {
		t.Fatalf("keys %v, a schedule of %d nodes", keys, len(schedule))
	}
	stays := func(what string) {
		t.Helper()
		f.connected(n)
		f.wait(30*time.Second, what+": the same schedule", func() bool { return reflect.DeepEqual(f.scheduled(), schedule) })
		if now := f.keysInState(); !slices.Equal(now, keys) {
			t.Errorf("%s: keys %v, and %v before", what, now, keys)
		}
	}
	replaceCoordinator := func(what, by string) {
		before, base := f.answering(10), f.base()
		stop(t, f.coordinator)
		f.bin = by
		f.startCoordinator()
		stays(what)
		f.answering(100)
		f.undisturbed(what, base, before)
	}
	replaceAgents := func(what, by string) {
		f.bin = by
		for _, node := range f.nodes() {
			before := f.answering(10)
			stop(t, f.agents[node])
			stopped := time.Now()
			f.startAgent(node)
			f.connected(n)
			f.probing(n)
			after := f.answering(100)
			lost := 0.0
			for id, now := range after {
				was, known := before[id]
				touched := strings.Contains(id, node+"/")
				switch {
				case !touched && (!known || now.lost != was.lost):
					t.Errorf("%s, %s: edge %s lost %v probes, and does not touch the node", what, node, id, now.lost-was.lost)
				case known && !strings.HasPrefix(id, node+"/"):
					lost = max(lost, now.lost-was.lost)
				}
			}
			t.Logf("%s: %s answered again after %.1f s; at most %v probes of an edge were lost", what, node, time.Since(stopped).Seconds(), lost)
		}
		stays(what)
	}
	replaceCoordinator("the coordinator of this checkout", bin)
	replaceAgents("agents of this checkout", bin)
	replaceCoordinator("back to the last release's coordinator", previous)
	replaceAgents("back to the last release's agents", previous)
	if edges := slices.Sorted(maps.Keys(f.edges())); len(edges) == 0 {
		t.Error("no edges in the end")
	}
}
