package coordinator

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/coordinator"
	"github.com/graylink/graylink/internal/schedule"
	"github.com/graylink/graylink/internal/webaccess"
)

// fixedTargets answers with targets that the test chooses.
type fixedTargets struct {
	list  []coordinator.Target
	whole bool
}

func (f *fixedTargets) targets() ([]coordinator.Target, bool) { return f.list, f.whole }

func readGroups(t *testing.T, b []byte) (out []targetGroup) {
	t.Helper()
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	return out
}

// The file is written when the targets are whole, and only when they have changed. A short list never replaces it.
func TestTargetFileFollowsTheTargets(t *testing.T) {
	file := filepath.Join(t.TempDir(), "targets.json")
	var logs strings.Builder
	source := &fixedTargets{list: []coordinator.Target{{Node: "h1", Address: "10.0.0.1:9868", Scheme: "http", Software: "1", Connected: true}}}
	f := &TargetFile{path: file, targets: source.targets, log: slog.New(slog.NewTextHandler(&logs, nil))}
	if f.update(); f.written != nil {
		t.Fatal("a list that is not whole was written")
	}
	source.whole = true
	f.update()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := []targetGroup{{[]string{"10.0.0.1:9868"}, map[string]string{"__scheme__": "http", "__meta_graylink_node": "h1", "__meta_graylink_version": "1", "__meta_graylink_connected": "true"}}}
	if got := readGroups(t, b); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v (%v), want 0644: Prometheus is another user", info.Mode(), err)
	}
	old := time.Unix(1700000000, 0)
	if err := os.Chtimes(file, old, old); err != nil {
		t.Fatal(err)
	}
	f.update()
	if info, err := os.Stat(file); err != nil || !info.ModTime().Equal(old) {
		t.Errorf("the file was written without a change, at %v (%v)", info.ModTime(), err)
	}
	source.list = append(source.list, coordinator.Target{Node: "h2", Address: "10.0.0.2:9868", Scheme: "http"})
	f.update()
	if b, err = os.ReadFile(file); err != nil || len(readGroups(t, b)) != 2 {
		t.Errorf("%s (%v), want two groups", b, err)
	}
	source.list, source.whole = nil, false
	if f.update(); len(readGroups(t, f.written)) != 2 {
		t.Errorf("%s: a coordinator that has just started replaced the list", f.written)
	}
	f.path, source.list, source.whole = filepath.Join(file, "no directory"), nil, true
	f.update()
	f.update()
	if n := strings.Count(logs.String(), "cannot write the file of targets"); n != 1 {
		t.Errorf("logged %d times, want once:\n%s", n, &logs)
	}
}

// newTestCoordinator returns a coordinator of the node h1, which its state knows at 192.0.2.7.
func newTestCoordinator(t *testing.T) *coordinator.Coordinator {
	t.Helper()
	o := coordinator.DefaultOptions()
	o.TopologyFile, o.StateFile = filepath.Join(t.TempDir(), "topology.yaml"), filepath.Join(t.TempDir(), "state.json")
	for file, text := range map[string]string{
		o.TopologyFile: "version: 1\nswitches: [{name: leaf1, role: leaf}]\nnodes: [{name: h1, nics: [{device: eth1}]}, {name: h2, nics: [{device: eth1}]}]\nlinks: [{a: h1/eth1, b: \"leaf1:dn1\"}, {a: h2/eth1, b: \"leaf1:dn2\"}]\n",
		o.StateFile:    `{"version":1,"agents":[{"node":"h1","present":true,"last_seen":"2026-01-01T00:00:00Z","web":":9868","from":"192.0.2.7"}]}`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o.Planner.Make = schedule.Make
	c, err := coordinator.New(o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c.Step()
	return c
}

// A file that has the targets already is not written when the coordinator starts. The file and the endpoint have the same
// content.
func TestTargetFileEqualsTheEndpoint(t *testing.T) {
	c := newTestCoordinator(t)
	file := filepath.Join(t.TempDir(), "targets.json")
	log := slog.New(slog.DiscardHandler)
	f := NewTargetFile(file, c, log)
	f.update()
	w := httptest.NewRecorder()
	Handler(c, &webaccess.Policy{}, log, nil).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/targets", nil))
	b, err := os.ReadFile(file)
	if err != nil || string(b) != w.Body.String() || w.Code != http.StatusOK {
		t.Fatalf("the file has %s (%v), the endpoint answers %d %s", b, err, w.Code, w.Body)
	}
	if groups := readGroups(t, b); len(groups) != 1 || groups[0].Targets[0] != "192.0.2.7:9868" {
		t.Fatalf("%v, want the agent of the state", groups)
	}
	old := time.Unix(1700000000, 0)
	if err := os.Chtimes(file, old, old); err != nil {
		t.Fatal(err)
	}
	NewTargetFile(file, c, log).update()
	if info, err := os.Stat(file); err != nil || !info.ModTime().Equal(old) {
		t.Errorf("the start wrote the file at %v (%v)", info.ModTime(), err)
	}
}

func TestCheckTargetFile(t *testing.T) {
	for path, ok := range map[string]bool{"/run/targets.json": true, "/run/targets": false, "targets.yml": false} {
		if err := CheckTargetFile(path); (err == nil) != ok {
			t.Errorf("%s: %v", path, err)
		}
	}
}
