package maintenance

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/webaccess"
)

const topo = `version: 1
switches: [{name: leaf1, role: leaf}, {name: leaf2, role: leaf}, {name: spine1, role: spine}]
nodes: [{name: h1, nics: [{device: eth1}, {device: eth2}]}, {name: h2, nics: [{device: eth1}]}]
links:
  - {a: "h1/eth1", b: "leaf1:dn1"}
  - {a: "h1/eth2", b: "leaf1:dn2"}
  - {a: "h2/eth1", b: "leaf2:dn1"}
  - {a: "leaf1:up1", b: "spine1:dn1"}
  - {a: "leaf2:up1", b: "spine1:dn2"}
`

var now = time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)

func graph(t testing.TB) *fabric.Graph {
	t.Helper()
	tp, found := fabric.ParseTopology("t.yaml", []byte(topo))
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return fabric.NewGraph(tp)
}

func elements(ws []Window) string {
	var out []string
	for _, w := range ws {
		out = append(out, w.Element)
	}
	return strings.Join(out, " ")
}

// TestCovers: rule 1, for ways through cables and for verdicts.
func TestCovers(t *testing.T) {
	g := graph(t)
	up := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	access := fabric.Direction{From: "h1/eth1", To: "leaf1:dn1"}
	for _, tt := range []struct {
		element          string
		up, access       bool
		covers, coversNo []fabric.Element
	}{
		{"spine1", true, false, []fabric.Element{{ID: "spine1", Kind: fabric.KindSwitch}, {ID: up.LinkID(), Kind: fabric.KindLink}, {ID: "spine1:dn2", Kind: fabric.KindPort}, {ID: "leaf1:up1@tc3", Kind: fabric.KindQueue}, {ID: "leaf1->spine1->leaf2", Kind: fabric.KindCorridor}},
			[]fabric.Element{{ID: "leaf1", Kind: fabric.KindSwitch}, {ID: "leaf1", Kind: fabric.KindLeafUplinks}, {ID: "h1/eth1", Kind: fabric.KindNIC}, {ID: "leaf1->leaf2", Kind: fabric.KindPair}}},
		{up.LinkID(), true, false, []fabric.Element{{ID: up.LinkID(), Kind: fabric.KindLink}, {ID: "leaf1:up1", Kind: fabric.KindPort}}, []fabric.Element{{ID: "spine1", Kind: fabric.KindSwitch}, {ID: "leaf2:up1--spine1:dn2", Kind: fabric.KindLink}}},
		{"leaf1:up1", true, false, []fabric.Element{{ID: up.LinkID(), Kind: fabric.KindLink}}, nil},
		{"h1", false, true, []fabric.Element{{ID: "h1", Kind: fabric.KindHost}, {ID: "h1/eth2", Kind: fabric.KindNIC}, {ID: "h1/eth1", Kind: fabric.KindClock}}, []fabric.Element{{ID: "h2/eth1", Kind: fabric.KindNIC}}},
		{"h1/eth1", false, true, []fabric.Element{{ID: "h1/eth1", Kind: fabric.KindNIC}, {ID: access.LinkID(), Kind: fabric.KindLink}}, []fabric.Element{{ID: "h1", Kind: fabric.KindHost}, {ID: "h1/eth2", Kind: fabric.KindNIC}}},
		{"h2/eth1", false, false, []fabric.Element{{ID: "h2", Kind: fabric.KindHost}}, nil},
		{"leaf1", true, true, []fabric.Element{{ID: "leaf1", Kind: fabric.KindLeafUplinks}, {ID: "leaf2->leaf1", Kind: fabric.KindPair}, {ID: "h1/eth1", Kind: fabric.KindNIC}}, []fabric.Element{{ID: "leaf2", Kind: fabric.KindSwitch}}},
	} {
		w := Window{Element: tt.element}
		if w.TouchesDirection(up) != tt.up || w.TouchesDirection(up.Reverse()) != tt.up || w.TouchesDirection(access) != tt.access {
			t.Errorf("%s: uplink %v, access %v", tt.element, w.TouchesDirection(up), w.TouchesDirection(access))
		}
		for _, e := range tt.covers {
			if !w.CoversVerdict(g, &fabric.Verdict{Element: e}) {
				t.Errorf("%s does not cover %+v", tt.element, e)
			}
		}
		for _, e := range tt.coversNo {
			if w.CoversVerdict(g, &fabric.Verdict{Element: e}) {
				t.Errorf("%s covers %+v", tt.element, e)
			}
		}
	}
	w := Window{Element: "leaf1"}
	if !w.CoversVerdict(g, &fabric.Verdict{Element: fabric.Element{ID: "leaf2", Kind: fabric.KindSwitch}, Equivalent: []fabric.Element{{ID: "leaf1", Kind: fabric.KindSwitch}}}) {
		t.Error("an equivalent is not covered")
	}
}

// TestInForce: a window is in force from its beginning to its end, or to when it is taken back,
// and that is remembered.
func TestInForce(t *testing.T) {
	r := NewRegister(graph(t))
	r.ReplaceSource(SourceFile, []Window{{Element: "spine1", From: now, Until: now.Add(time.Hour)}, {Element: "leaf1", Until: now}, {Element: "h1"}}, now)
	for _, tt := range []struct {
		from, to time.Duration
		want     string
	}{{-time.Minute, -time.Second, "h1 leaf1"}, {-time.Minute, 0, "h1 leaf1 spine1"}, {time.Second, time.Minute, "h1 spine1"}, {time.Hour + time.Second, 2 * time.Hour, "h1"}} {
		if got := elements(r.WindowsBetween(now.Add(tt.from), now.Add(tt.to))); got != tt.want {
			t.Errorf("from %s to %s: %q, want %q", tt.from, tt.to, got, tt.want)
		}
	}
	end := now.Add(10 * time.Minute)
	r.ReplaceSource(SourceFile, []Window{}, end)
	if got := elements(r.WindowsBetween(end.Add(-time.Second), end.Add(time.Second))); got != "h1 spine1" {
		t.Errorf("taken back within the interval: %q", got)
	}
	if got := elements(r.WindowsBetween(end.Add(time.Second), end.Add(2*time.Second))); got != "" {
		t.Errorf("after it was taken back: %q", got)
	}
	if got := elements((*Register)(nil).WindowsBetween(now, now)) + elements((*Register)(nil).CurrentWindows(now)); got != "" {
		t.Errorf("no register: %q", got)
	}
}

func TestParse(t *testing.T) {
	r := NewRegister(graph(t))
	ws, err := Parse("m.yaml", []byte("maintenance:\n- {element: spine1, from: 2026-11-22T02:00:00Z, until: 2026-11-22T04:00:00Z, by: ann, reason: optics, relearn: true}\n- {element: h1/eth2, until: 2026-11-22T05:00:00Z}\n"), r.CheckElement)
	if err != nil || len(ws) != 2 || !ws[0].Relearn || ws[0].By != "ann" || !ws[0].Until.Equal(now.Add(time.Hour)) || !ws[1].From.IsZero() {
		t.Errorf("%+v, %v", ws, err)
	}
	if ws, err := Parse("m.json", []byte(`{"maintenance": [{"element": "leaf1:up1--spine1:dn1", "until": "2026-11-22T04:00:00Z"}]}`), r.CheckElement); err != nil || len(ws) != 1 {
		t.Errorf("JSON: %+v, %v", ws, err)
	}
	if ws, err := Parse("m.yaml", nil, r.CheckElement); err != nil || ws == nil || len(ws) != 0 {
		t.Errorf("an empty file: %+v, %v", ws, err)
	}
	for text, want := range map[string]string{
		"maintenance:\n- {element: spine9}\n":                                                          `m.yaml:2: maintenance[0].element: "spine9" is not in the topology: want a switch`,
		"maintenance:\n- {element: spine1, until: 2026-11-22T04:00:00Z}\n- {by: ann}\n":                `m.yaml:3: maintenance[1].element: is missing`,
		"maintenance:\n- {element: spine1}\n":                                                          `m.yaml:2: maintenance[0].until is missing: every window has an end`,
		"maintenance:\n- {element: spine1, until: soon}\n":                                             `m.yaml:2: maintenance[0]: `,
		"maintenance:\n- {element: spine1, from: 2026-11-22T04:00:00Z, until: 2026-11-22T02:00:00Z}\n": `m.yaml:2: maintenance[0].until: 2026-11-22T02:00:00Z is not after from`,
		"maintenance:\n- {element: spine1, from: {at: noon}, until: 2026-11-22T04:00:00Z}\n":           `m.yaml:2: maintenance[0]: from: a mapping`,
		"maintenance:\n- {element: spine1, untill: 2026-11-22T04:00:00Z}\n":                            `m.yaml:2: maintenance[0]: unknown field "untill": want element,`,
		"maintenance: [spine1]\n":                                                                      `m.yaml:1: maintenance[0]: want a mapping`,
		"drained: []\n":                                                                                `m.yaml: `,
		"maintenance: [\n":                                                                             `m.yaml: `,
		"maintenance:\n- {element: \"spine1:dn1--leaf1:up1\"}\n":                                       `is not in the topology`,
	} {
		if _, err := Parse("m.yaml", []byte(text), r.CheckElement); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// TestAFileThatBreaks: rule 6.
func TestAFileThatBreaks(t *testing.T) {
	r := NewRegister(graph(t))
	f := &File{Path: filepath.Join(t.TempDir(), "m.yaml")}
	put := func(text string) error {
		if err := os.WriteFile(f.Path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return UpdateSource(t.Context(), r, f, now)
	}
	if err := UpdateSource(t.Context(), r, f, now); err != nil || len(r.CurrentWindows(now)) != 0 {
		t.Errorf("no file: %v", err)
	}
	if err := put("maintenance: [{element: spine1, until: 2026-11-22T04:00:00Z}]"); err != nil || elements(r.CurrentWindows(now)) != "spine1" {
		t.Errorf("%v: %q", err, elements(r.CurrentWindows(now)))
	}
	if err := put("maintenance: [{element: nothing}]"); err == nil || elements(r.CurrentWindows(now)) != "spine1" {
		t.Errorf("a bad file: %v, %q", err, elements(r.CurrentWindows(now)))
	}
	if err := put("maintenance: [{element: h2, until: 2026-11-22T04:00:00Z}]"); err != nil || elements(r.CurrentWindows(now)) != "h2" {
		t.Errorf("repaired: %v, %q", err, elements(r.CurrentWindows(now)))
	}
	id := r.CurrentWindows(now)[0].ID
	if err := put("# a comment\nmaintenance: [{element: h2, until: 2026-11-22T04:00:00Z}]"); err != nil || r.CurrentWindows(now)[0].ID != id {
		t.Errorf("the same window has another name: %v", err)
	}
}

const silences = `[
 {"id":"s1","status":{"state":"active"},"matchers":[{"name":"element","value":"spine1","isRegex":false,"isEqual":true}],"startsAt":"2026-11-22T02:00:00.000Z","endsAt":"2026-11-22T04:00:00.000Z","createdBy":"ann","comment":"optics"},
 {"id":"s2","status":{"state":"active"},"matchers":[{"name":"element","value":"leaf.","isRegex":true}],"startsAt":"2026-11-22T02:00:00Z","endsAt":"2026-11-22T04:00:00Z","createdBy":"bob","comment":""},
 {"id":"s3","status":{"state":"active"},"matchers":[{"name":"element","value":"h1"},{"name":"severity","value":"warning"}],"startsAt":"2026-11-22T02:00:00Z","endsAt":"2026-11-22T04:00:00Z"},
 {"id":"s4","status":{"state":"expired"},"matchers":[{"name":"element","value":"h1"}],"startsAt":"2026-11-22T02:00:00Z","endsAt":"2026-11-22T02:30:00Z"},
 {"id":"s5","status":{"state":"active"},"matchers":[{"name":"element","value":"elsewhere"}],"startsAt":"2026-11-22T02:00:00Z","endsAt":"2026-11-22T04:00:00Z"},
 {"id":"s6","status":{"state":"active"},"matchers":[{"name":"element","value":"h1","isEqual":false}],"startsAt":"2026-11-22T02:00:00Z","endsAt":"2026-11-22T04:00:00Z"},
 {"id":"s7","status":{"state":"active"},"matchers":[{"name":"alertname","value":"GraylinkSuspect"}],"startsAt":"2026-11-22T02:00:00Z","endsAt":"2026-11-22T04:00:00Z"},
 {"id":"s8","status":{"state":"pending"},"matchers":[{"name":"element","value":"h2"}],"startsAt":"2026-11-22T03:30:00Z","endsAt":"2026-11-22T04:00:00Z"}
]`

// TestSilences: those about elements and nothing less are windows. (Rules 6 and 7.)
func TestSilences(t *testing.T) {
	answer, status := silences, http.StatusOK
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/am/api/v2/silences" {
			t.Errorf("asked %s", r.URL.Path)
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(answer))
	}))
	defer srv.Close()
	r := NewRegister(graph(t))
	a := &Alertmanager{Client: srv.Client(), URL: srv.URL + "/am/", Elements: []string{"spine1", "leaf1", "leaf2", "h1", "h2"}}
	if err := UpdateSource(t.Context(), r, a, now); err != nil {
		t.Fatal(err)
	}
	if got := elements(r.WindowsBetween(now, now)); got != "leaf1 leaf2 spine1" {
		t.Errorf("in force: %q", got)
	}
	if got := elements(r.CurrentWindows(now)); got != "h2 leaf1 leaf2 spine1" {
		t.Errorf("and to come: %q", got)
	}
	if w := r.WindowsBetween(now, now)[2]; w.String() != "under maintenance by ann until 2026-11-22T04:00:00Z: optics" {
		t.Errorf("%s", &w)
	}
	for _, broken := range []struct {
		status int
		answer string
	}{{http.StatusBadGateway, "[]"}, {http.StatusOK, "{"}, {http.StatusOK, `{"a":1}`}} {
		status, answer = broken.status, broken.answer
		if err := UpdateSource(t.Context(), r, a, now); err == nil || len(r.WindowsBetween(now, now)) != 3 {
			t.Errorf("%+v: %v, %d windows", broken, err, len(r.WindowsBetween(now, now)))
		}
	}
	status, answer = http.StatusOK, "[]"
	if err := UpdateSource(t.Context(), r, a, now); err != nil || len(r.CurrentWindows(now)) != 0 {
		t.Errorf("no silences any more: %v, %d windows", err, len(r.CurrentWindows(now)))
	}
}

func TestAPI(t *testing.T) {
	clock := now
	r := NewRegister(graph(t))
	config := filepath.Join(t.TempDir(), "web.yml")
	if err := os.WriteFile(config, []byte("basic_auth_users: {ann: $2y$10$x}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	policy := &webaccess.Policy{AdminAPI: true, Log: slog.New(slog.NewTextHandler(&log, nil))}
	mux := http.NewServeMux()
	(&API{Register: r, Policy: policy, Now: func() time.Time { return clock }}).RegisterHandlers(mux)
	call := func(method, path, body, remote string) (int, string) {
		req := httptest.NewRequest(method, path, strings.NewReader(body))
		req.RemoteAddr = remote
		rec := httptest.NewRecorder()
		mux.ServeHTTP(rec, req)
		return rec.Code, rec.Body.String()
	}
	const here, far, path = "127.0.0.1:5", "10.0.0.9:5", "/api/v1/maintenance"
	if code, _ := call("POST", path, `{"element":"spine1","by":"ann"}`, far); code != http.StatusForbidden {
		t.Errorf("anybody may: %d", code)
	}
	for body, want := range map[string]string{
		`{"element":"spine9","by":"ann"}`:                                                `field "element": "spine9" is not in the topology`,
		`{"element":"spine1"}`:                                                           `field "by" is missing`,
		`{"element":"spine1","by":"ann"}`:                                                `field "until" is missing: every window has an end`,
		`{"element":"spine1","by":"ann","until":"2026-11-22T02:00:00Z"}`:                 `field "until"`,
		`{"element":"spine1","by":"ann","duration":"-1h"}`:                               `field "duration"`,
		`{"element":"spine1","by":"ann","duration":"1h","until":"2026-11-22T08:00:00Z"}`: `field "duration"`,
		`{"element":"spine1","by":"ann","drain":true}`:                                   `unknown field "drain"`,
		`{`: `request:`,
		`{"reason":"` + strings.Repeat("x", maxRequest) + `"}`: `request:`,
	} {
		if code, text := call("POST", path, body, here); code != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%.60s: %d %s", body, code, text)
		}
	}
	code, text := call("POST", path, `{"element":"spine1","by":"ann","duration":"2h","reason":"optics"}`, here)
	var w Window
	if err := json.Unmarshal([]byte(text), &w); err != nil || code != http.StatusCreated || !w.Until.Equal(now.Add(2*time.Hour)) || w.Source != SourceAPI || w.ID == "" {
		t.Fatalf("%d %s %v", code, text, err)
	}
	if code, text := call("GET", path, "", far); code != 200 || !strings.Contains(text, `"by":"ann"`) {
		t.Errorf("%d %s", code, text)
	}
	clock = clock.Add(time.Minute)
	if code, _ := call("DELETE", path+"/"+w.ID, "", far); code != http.StatusForbidden {
		t.Errorf("anybody ends it: %d", code)
	}
	if code, _ := call("DELETE", path+"/"+w.ID, "", here); code != http.StatusNoContent || len(r.CurrentWindows(clock)) != 0 {
		t.Errorf("%d, %+v", code, r.CurrentWindows(clock))
	}
	if got := elements(r.WindowsBetween(now, clock)); got != "spine1" {
		t.Errorf("it is forgotten that there was one: %q", got)
	}
	if code, _ := call("DELETE", path+"/"+w.ID, "", here); code != http.StatusNotFound {
		t.Errorf("ended twice: %d", code)
	}
	if line := "by=loopback from=127.0.0.1:5 element=spine1"; !strings.Contains(log.String(), line) {
		t.Errorf("the log does not have %q:\n%s", line, &log)
	}
	// Who is authenticated has made the window, whatever the request says.
	policy.WebConfig = config
	as := func(user, body string) (int, string) {
		req := httptest.NewRequest("POST", path, strings.NewReader(body))
		req.RemoteAddr = far
		req.SetBasicAuth(user, "checked by the exporter toolkit")
		rec := httptest.NewRecorder()
		mux.ServeHTTP(rec, req)
		return rec.Code, rec.Body.String()
	}
	if code, text := as("ann", `{"element":"spine1","by":"bob","duration":"2h"}`); code != http.StatusBadRequest || !strings.Contains(text, `authenticated as "ann"`) {
		t.Errorf("by of another: %d %s", code, text)
	}
	if code, text := as("ann", `{"element":"spine1","duration":"2h","reason":"a\nlevel=ERROR"}`); code != http.StatusCreated || !strings.Contains(text, `"by":"ann"`) {
		t.Errorf("without by: %d %s", code, text)
	}
	if code, _ := as("bob", `{"element":"spine1","by":"bob","duration":"2h"}`); code != http.StatusForbidden {
		t.Errorf("a user that the web configuration does not have: %d", code)
	}
	if strings.Contains(log.String(), "\nlevel=ERROR") || !strings.Contains(log.String(), "by=ann from=10.0.0.9:5") {
		t.Errorf("log:\n%s", &log)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("maintenance:\n- {element: spine1, from: 2026-11-22T02:00:00Z, until: 2026-11-22T04:00:00Z, by: ann, reason: optics, relearn: true}\n"))
	f.Add([]byte("maintenance: [&a {element: h1}, *a, {<<: *a}]"))
	r := NewRegister(graph(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		ws, err := Parse("m", b, r.CheckElement)
		if err != nil && (ws != nil || bytes.ContainsRune([]byte(err.Error()), '\n')) {
			t.Errorf("%d windows, %v", len(ws), err)
		}
		for _, w := range ws {
			if r.CheckElement(w.Element) != nil {
				t.Errorf("%q is taken", w.Element)
			}
		}
	})
}

func FuzzSilences(f *testing.F) {
	f.Add([]byte(silences))
	r := NewRegister(graph(f))
	all := []string{"spine1", "leaf1", "h1"}
	f.Fuzz(func(t *testing.T, b []byte) {
		ws, err := parseSilences(b, all, r.CheckElement)
		if (err == nil) == (ws == nil) {
			t.Errorf("%v, %v", ws, err)
		}
		for _, w := range ws {
			if slices.Contains([]string{"", "elsewhere"}, w.Element) {
				t.Errorf("%+v", w)
			}
		}
	})
}
