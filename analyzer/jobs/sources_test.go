package jobs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// logs keeps what is logged.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logs) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after two minutes: not %s", what)
		}
	}
}

// namesIn returns the names of the jobs that a register has, or nil if it knows of no source.
func namesIn(r *Register) []string {
	if m := r.MapAt(time.Now()); m != nil {
		return m.JobNames()
	}
	return nil
}

// follow runs a source until the test ends.
func follow(t *testing.T, run func(ctx context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
}

// TestSqueue has a program that prints what squeue does, fails, and prints its environment and arguments.
func TestSqueue(t *testing.T) {
	dir := t.TempDir()
	command, table := filepath.Join(dir, "squeue"), filepath.Join(dir, "table")
	// The files are replaced whole, since the test reads them while the program runs again.
	script := "#!/bin/sh\ncd " + dir + "\nprintf '%s\\n' \"$*\" > a && mv a arguments\nenv > e && mv e environment\ncat " + table + " || exit 1\n"
	if err := os.WriteFile(command, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(table+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(table+".new", table); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("SQUEUE_STATES", "PENDING")
	t.Setenv("SLURM_TIME_FORMAT", "relative")
	var log logs
	r := NewRegister(graph(t))
	s := &Slurm{Command: command, Every: 20 * time.Millisecond, Zone: time.UTC}
	put("JOBID|STATE|START_TIME|NODELIST|NAME\n4711|RUNNING|2026-11-22T02:00:00|h[1-2]|train|7\n")
	follow(t, func(ctx context.Context) { s.Follow(ctx, r, slog.New(slog.NewTextHandler(&log, nil))) })
	eventually(t, "the job is known", func() bool { return slices.Equal(namesIn(r), []string{"train|7"}) })
	if got := r.MapAt(time.Now()).NICsOf("train|7"); !slices.Equal(got, []string{"h1/eth1", "h1/eth2", "h2/eth1", "h2/eth2"}) {
		t.Errorf("NICs %q", got)
	}
	arguments, err := os.ReadFile(filepath.Join(dir, "arguments"))
	if err != nil || strings.TrimSpace(string(arguments)) != strings.Join(squeueArguments, " ") {
		t.Errorf("arguments %q (%v)", arguments, err)
	}
	environment, err := os.ReadFile(filepath.Join(dir, "environment"))
	if err != nil || strings.Contains(string(environment), "SQUEUE_STATES") || strings.Count(string(environment), "SLURM_TIME_FORMAT=") != 1 || !strings.Contains(string(environment), "SLURM_TIME_FORMAT=standard") {
		t.Errorf("environment %s (%v)", environment, err)
	}
	// The controller is away: known placements stay, and one line is logged.
	if err := os.Remove(table); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the failure is logged", func() bool { return log.count("exit status 1: cat:") == 1 })
	put("JOBID|STATE|START_TIME|NODELIST|NAME\n")
	eventually(t, "the job has ended", func() bool { return r.MapAt(time.Now()) != nil && len(namesIn(r)) == 0 })
	if n := log.count("level=ERROR"); n != 1 {
		t.Errorf("%d errors, want one: %s", n, log.text.String())
	}
}

func TestSqueueThatIsMissing(t *testing.T) {
	s := &Slurm{Command: filepath.Join(t.TempDir(), "squeue"), Every: time.Second, Zone: time.UTC}
	if err := s.read(t.Context(), NewRegister(graph(t))); err == nil || !strings.Contains(err.Error(), s.Command) {
		t.Errorf("%v, want the command", err)
	}
}

// podServer lists and watches pods as the API server of Kubernetes does: watches begin at a version, and are answered
// with 410 if that was compacted.
type podServer struct {
	t *testing.T
	*httptest.Server

	mu        sync.Mutex
	version   int
	compacted int // events up to this version are gone
	pods      map[string]map[string]any
	events    []podEvent
	watches   int
	lists     int
	down      bool
	changed   chan struct{} // is closed with every event
}

type podEvent struct {
	version int
	kind    string
	label   string
	object  map[string]any
}

func newPodServer(t *testing.T) *podServer {
	s := &podServer{t: t, version: 100, pods: map[string]map[string]any{}, changed: make(chan struct{})}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

// set makes a pod be as described, or not be at all if node is "".
func (s *podServer) set(uid, job, node, phase string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	kind := "MODIFIED"
	if s.pods[uid] == nil {
		kind = "ADDED"
	}
	object := map[string]any{
		"metadata": map[string]any{"name": uid, "namespace": "ml", "uid": uid, "resourceVersion": fmt.Sprint(s.version), "labels": map[string]any{watchedLabels[0]: job}},
		"spec":     map[string]any{"nodeName": node}, "status": map[string]any{"phase": phase, "startTime": "2026-11-22T02:00:05Z"}}
	if s.pods[uid] = object; node == "" {
		kind = eventDeleted
		delete(s.pods, uid)
	}
	s.add(kind, watchedLabels[0], object)
}

func (s *podServer) add(kind, label string, object map[string]any) {
	s.events = append(s.events, podEvent{s.version, kind, label, object})
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *podServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	down := s.down
	s.mu.Unlock()
	q := r.URL.Query()
	label := q.Get("labelSelector")
	switch {
	case r.URL.Path != "/api/v1/pods" || !slices.Contains(watchedLabels, label):
		http.Error(w, "bad request", http.StatusBadRequest)
	case down:
		http.Error(w, "not now", http.StatusServiceUnavailable)
	case q.Get("watch") == "true":
		s.watch(w, r, label)
	default:
		s.list(w, q.Get("continue"), label)
	}
}

// list answers with one pod a page.
func (s *podServer) list(w http.ResponseWriter, next, label string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	var all []map[string]any
	if label == watchedLabels[0] {
		for _, uid := range slices.Sorted(maps.Keys(s.pods)) {
			all = append(all, s.pods[uid])
		}
	}
	from := 0
	_, _ = fmt.Sscan(next, &from)
	meta := map[string]any{"resourceVersion": fmt.Sprint(s.version)}
	page := all[min(from, len(all)):min(from+1, len(all))]
	if from+1 < len(all) {
		meta["continue"] = fmt.Sprint(from + 1)
	}
	if page == nil {
		page = []map[string]any{}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "PodList", "metadata": meta, "items": page})
}

func (s *podServer) watch(w http.ResponseWriter, r *http.Request, label string) {
	at := 0
	if _, err := fmt.Sscan(r.URL.Query().Get("resourceVersion"), &at); err != nil {
		http.Error(w, "no version", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.watches++
	gone := at < s.compacted
	s.mu.Unlock()
	enc := json.NewEncoder(w)
	if gone {
		_ = enc.Encode(map[string]any{"type": "ERROR", "object": map[string]any{"kind": "Status", "code": 410, "message": "too old resource version"}})
		return
	}
	for {
		s.mu.Lock()
		changed, down := s.changed, s.down
		var send []podEvent
		for _, e := range s.events {
			if e.version > at && e.label == label {
				send = append(send, e)
			}
		}
		s.mu.Unlock()
		if down {
			return
		}
		for _, e := range send {
			at = e.version
			if enc.Encode(map[string]any{"type": e.kind, "object": e.object}) != nil {
				return
			}
		}
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func TestPodsAreWatched(t *testing.T) {
	s := newPodServer(t)
	s.set("a", "train7", "h1", "Running")
	s.set("b", "train7", "h2", "Pending")
	s.set("c", "", "h3", "Running") // of no job
	s.set("d", "eval", "h4", "Succeeded")
	var log logs
	r := NewRegister(graph(t))
	k := &Kubernetes{Client: s.Client(), URL: s.URL}
	follow(t, func(ctx context.Context) { k.Follow(ctx, r, slog.New(slog.NewTextHandler(&log, nil))) })
	are := func(what string, want ...string) {
		t.Helper()
		eventually(t, fmt.Sprintf("%s: %q", what, want), func() bool {
			m := r.MapAt(time.Now())
			if m == nil {
				return false
			}
			var got []string
			for _, name := range m.JobNames() {
				got = append(got, name+" "+strings.Join(m.NICsOf(name), " "))
			}
			return slices.Equal(got, want)
		})
	}
	are("listed, over pages", "ml/train7 h1/eth1 h1/eth2 h2/eth1 h2/eth2")
	s.set("e", "eval", "h5", "Running")
	are("a pod more", "ml/eval h5/eth1 h5/eth2", "ml/train7 h1/eth1 h1/eth2 h2/eth1 h2/eth2")
	s.set("a", "train7", "h1", "Succeeded")
	are("a pod that ended", "ml/eval h5/eth1 h5/eth2", "ml/train7 h2/eth1 h2/eth2")
	s.set("e", "", "", "")
	are("a pod that was deleted", "ml/train7 h2/eth1 h2/eth2")

	// The server is away, forgets its events, and comes back with other pods: they are listed again.
	s.mu.Lock()
	s.down = true
	close(s.changed)
	s.changed = make(chan struct{})
	lists := s.lists
	s.mu.Unlock()
	s.set("b", "", "", "")
	s.set("f", "bench", "h6", "Running")
	s.mu.Lock()
	s.compacted, s.events = s.version, nil
	s.mu.Unlock()
	eventually(t, "the failure is logged", func() bool { return log.count("cannot read placements from Kubernetes") >= 1 })
	if got := namesIn(r); !slices.Equal(got, []string{"ml/train7"}) {
		t.Errorf("while the server is away: %q, want what was known", got)
	}
	s.mu.Lock()
	s.down = false
	s.mu.Unlock()
	are("after a gap", "ml/bench h6/eth1 h6/eth2")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lists == lists {
		t.Error("the pods were not listed again")
	}
	if n := log.count("level=ERROR"); n > 2 {
		t.Errorf("%d errors, want one for each label: %s", n, log.text.String())
	}
}

// answering answers every request with a text.
type answering []byte

func (a answering) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(a)), Header: http.Header{}}, nil
}

// FuzzWatch: whatever a server sends, the watch ends with a version or an error, and the placements have names.
func FuzzWatch(f *testing.F) {
	f.Add([]byte(`{"type":"ADDED","object":{"metadata":{"uid":"a","resourceVersion":"7","labels":{"job-name":"x"}},"spec":{"nodeName":"h1"},"status":{"phase":"Running"}}}` + "\n" + `{"type":"DELETED","object":{"metadata":{"uid":"a","resourceVersion":"8"}}}`))
	f.Add([]byte(`{"type":"ERROR","object":{"code":410}}`))
	f.Add([]byte(`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}` + `{"type"`))
	g := graph(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		k := &Kubernetes{URL: "http://api", Client: &http.Client{Transport: answering(text)}}
		for _, label := range watchedLabels {
			k.replace(label, map[string]podPlace{})
		}
		version, err := k.watch(t.Context(), watchedLabels[0], "1")
		if version == "" {
			t.Errorf("no version (%v)", err)
		}
		r := NewRegister(g)
		if err := k.publish(r); err == nil {
			for _, name := range namesIn(r) {
				if name == "" {
					t.Error("a job without a name")
				}
			}
		}
	})
}
