package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/graylink/graylink/analyzer/daemon"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/agentapi/client"
	"github.com/graylink/graylink/internal/webaccess"
)

// analyzer is one of several analyzers of a fleet, whose web configuration authenticates ann.
type analyzer struct {
	t *testing.T
	d *daemon.Daemon
}

// newAnalyzer starts one that knows the coordinators of rigs. Its Prometheus is away.
func newAnalyzer(t *testing.T, rigs ...*rig) *analyzer {
	t.Helper()
	dir := rigs[0].dir
	file := filepath.Join(t.TempDir(), "analyzer.yaml")
	config := fmt.Sprintf(`topology_file: %s/topology.yaml
prometheus: {url: "http://127.0.0.1:1"}
agents: {url: "http://127.0.0.1:1/{node}"}
maintenance:
  coordinator: {address: "unix:%s", standby_addresses: ["unix:%s"], ca_file: %[1]s/ca.crt, cert_file: %[1]s/analyzer.crt, key_file: %[1]s/analyzer.key}
`, dir, rigs[0].unix, rigs[1].unix)
	web := filepath.Join(dir, "web.yml")
	for name, text := range map[string]string{file: config, web: "basic_auth_users: {ann: $2y$10$x}\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d, err := daemon.New(file, &webaccess.Policy{AdminAPI: true, WebConfig: web, Log: slog.New(slog.DiscardHandler)}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return &analyzer{t, d}
}

func (a *analyzer) stop() {
	if err := a.d.Close(); err != nil {
		a.t.Error(err)
	}
}

// call sends a request as ann, whose password the exporter toolkit has checked.
func (a *analyzer) call(method, path, body string) (code int, text string) {
	q := httptest.NewRequest(method, path, strings.NewReader(body))
	q.SetBasicAuth("ann", "checked")
	w := httptest.NewRecorder()
	a.d.ServeHTTP(w, q)
	return w.Code, w.Body.String()
}

// windows returns the elements under maintenance, with the name of who made each and the source.
func (a *analyzer) windows() string {
	a.t.Helper()
	_, text := a.call("GET", "/api/v1/maintenance", "")
	var list struct{ Maintenance []maintenance.Window }
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		a.t.Fatalf("%v: %s", err, text)
	}
	out := []string{}
	for _, w := range list.Maintenance {
		out = append(out, w.Element+" by "+w.By+" at "+w.Source)
	}
	return strings.Join(out, ", ")
}

func (a *analyzer) up() bool {
	_, text := a.call("GET", "/metrics", "")
	return strings.Contains(text, `graylink_analyzer_maintenance_source_up{source="coordinator"} 1`)
}

func newMaintenancePair(t *testing.T) (a, b *rig) {
	t.Helper()
	a, b, _ = newRigPair(t, nil)
	a.options.MaintenanceClients, b.options.MaintenanceClients = []string{"analyzer"}, []string{"analyzer"}
	a.issue("analyzer")
	a.start()
	t.Cleanup(func() { a.stop() })
	b.start()
	t.Cleanup(func() { b.stop() })
	until(t, "one leads, the other follows", func() bool { return a.c.Leads() && following(b)() })
	return a, b
}

// A window that is made at one analyzer is at the other one, and survives the restart of the analyzers, of both coordinators,
// and a change of the leader.
func TestWindowsAreTheSameForAllAnalyzers(t *testing.T) {
	a, b := newMaintenancePair(t)
	one, two := newAnalyzer(t, a, b), newAnalyzer(t, b, a)
	defer func() { one.stop(); two.stop() }()
	const path = "/api/v1/maintenance"
	code, text := one.call("POST", path, `{"element":"spine1","duration":"2h","reason":"optics"}`)
	var w maintenance.Window
	if err := json.Unmarshal([]byte(text), &w); err != nil || code != http.StatusCreated || w.Source != maintenance.SourceCoordinator || w.By != "ann" || w.ID == "" {
		t.Fatalf("%d %s %v", code, text, err)
	}
	const want = "spine1 by ann at coordinator"
	if got := one.windows(); got != want {
		t.Errorf("right after the answer: %q, want %q", got, want)
	}
	until(t, "the other analyzer has the window", func() bool { return two.windows() == want })
	for body, want := range map[string]string{
		`{"element":"spine9","duration":"2h"}`: "not in the topology",
		`{"element":"spine1"}`:                 "every window has an end",
		`{"element":"spine1","duration":"2h","reason":"` + strings.Repeat("x", 2000) + `"}`: "2000 octets",
	} {
		if code, text := two.call("POST", path, body); code != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%.60s: %d %s", body, code, text)
		}
	}

	two.stop()
	two = newAnalyzer(t, b, a)
	until(t, "an analyzer that was restarted has the window", func() bool { return two.windows() == want })

	if err := b.c.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.stop() // for good
	until(t, "the analyzers follow the new leader", func() bool { return one.windows() == want && two.windows() == want && one.up() && two.up() })
	if code, text := one.call("POST", path, `{"element":"h1","duration":"2h"}`); code != http.StatusCreated {
		t.Fatalf("at the new leader: %d %s", code, text)
	}
	until(t, "the other analyzer has both", func() bool { return two.windows() == "h1 by ann at coordinator, "+want })

	// Without a coordinator the windows stay, the analyzers say so, and nothing is made or ended.
	b.stop()
	until(t, "the analyzers notice", func() bool { return !one.up() && !two.up() })
	if got := two.windows(); got != "h1 by ann at coordinator, "+want {
		t.Errorf("without a coordinator: %q", got)
	}
	if code, text := one.call("POST", path, `{"element":"h2","duration":"2h"}`); code != http.StatusServiceUnavailable || strings.Count(text, "\n") != 1 {
		t.Errorf("made without a coordinator: %d %s", code, text)
	}
	if code, _ := one.call("DELETE", path+"/"+w.ID, ""); code != http.StatusServiceUnavailable {
		t.Errorf("ended without a coordinator: %d", code)
	}
	if _, text := two.call("GET", path, ""); !strings.Contains(text, `"source":"coordinator","up":false`) {
		t.Errorf("the API does not say that windows cannot be read: %s", text)
	}

	b.start()
	until(t, "the windows are there after a restart of the coordinator", func() bool { return one.up() && one.windows() == "h1 by ann at coordinator, "+want })
	if code, text := two.call("DELETE", path+"/"+w.ID, ""); code != http.StatusNoContent || two.windows() != "h1 by ann at coordinator" {
		t.Errorf("%d %s, then %q", code, text, two.windows())
	}
	until(t, "the other analyzer has it ended", func() bool { return one.windows() == "h1 by ann at coordinator" })
	if code, _ := two.call("DELETE", path+"/"+w.ID, ""); code != http.StatusNotFound {
		t.Errorf("ended twice: %d", code)
	}
	// A new configuration keeps them, also while no coordinator answers.
	b.stop()
	if err := one.d.ReloadConfig(); err != nil {
		t.Fatal(err)
	}
	if got := one.windows(); got != "h1 by ann at coordinator" {
		t.Errorf("after a reload: %q", got)
	}
}

// The right to keep windows is that of the names in --maintenance.clients.
func TestWindowsNeedARight(t *testing.T) {
	a, b := newMaintenancePair(t)
	windows := func(name string, rigs ...*rig) *client.Windows {
		a.issue(name)
		var addresses []string
		for _, r := range rigs {
			addresses = append(addresses, "unix:"+r.unix)
		}
		w, err := client.NewWindows(addresses, "coordinator", a.keeper(name))
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	m := &agentapi.MaintenanceWindow{Element: "spine1", FromUnixNs: time.Now().UnixNano(), UntilUnixNs: time.Now().Add(time.Hour).UnixNano(), By: "ann"}
	node := windows("h1", a)
	_, err := node.List(t.Context(), nil)
	_, err2 := node.Open(t.Context(), m)
	for _, err := range []error{err, err2, node.End(t.Context(), "x", "ann")} {
		if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "--maintenance.clients") {
			t.Errorf("a node: %v", err)
		}
	}
	if _, err := windows("analyzer", b).Open(t.Context(), m); status.Code(err) != codes.Unavailable {
		t.Errorf("at a standby: %v", err)
	}
	if w, err := windows("analyzer", b, a).Open(t.Context(), m); err != nil || w.GetId() == "" {
		t.Errorf("at the leader, behind a standby: %v", err)
	}
	if s := a.c.Stats(); s.WindowRequests["denied"] != 3 || s.WindowRequests["done"] != 1 || s.Windows != 1 {
		t.Errorf("%v, %d windows", s.WindowRequests, s.Windows)
	}
}
