package serve

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/evidence/promserver"
)

func alert(name, kind string, fires bool) promserver.Alert {
	a := promserver.Alert{Fingerprint: name, Labels: map[string]string{"alertname": name, "graylink": kind}, Annotations: map[string]string{"summary": name}, StartsAt: time.Unix(1000, 0)}
	if !fires {
		a.EndsAt = time.Unix(2000, 0)
	}
	return a
}

// hook returns a webhook whose messages a test receives. The receiver answers with the codes that are given, one after
// another, and then with 200.
func hook(t *testing.T, codes ...int) (*webhook, chan string) {
	t.Helper()
	got := make(chan string, 100)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m webhookMessage
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil || m.Version != "4" || len(m.Alerts) != 1 || m.Status != m.Alerts[0].Status || m.Alerts[0].EndsAt.IsZero() != (m.Status == "firing") {
			t.Errorf("%+v, %v: want a message of one alert", m, err)
		}
		code := http.StatusOK
		if len(codes) > 0 {
			code, codes = codes[0], codes[1:]
		}
		w.WriteHeader(code)
		got <- m.Status + " " + m.CommonLabels["alertname"]
	}))
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(file, []byte(s.URL+"/secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := newWebhook(file, "http://page", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	w.retry = time.Millisecond
	return w, got
}

// next returns the next messages.
func next(t *testing.T, got chan string, n int) string {
	t.Helper()
	var out []string
	for range n {
		select {
		case m := <-got:
			out = append(out, m)
		case <-time.After(30 * time.Second):
			t.Fatalf("no message after %q", out)
		}
	}
	return strings.Join(out, ", ")
}

func TestWebhook(t *testing.T) {
	w, got := hook(t)
	go w.run(t.Context())
	w.notify([]promserver.Alert{alert("FabricFault", "verdict", true), alert("Symptom", "symptom", true), alert("Before", "health", false)})
	if m := next(t, got, 1); m != "firing FabricFault" {
		t.Errorf("%q", m)
	}
	for range 3 { // as rules are evaluated
		w.notify([]promserver.Alert{alert("FabricFault", "verdict", true)})
	}
	w.notify([]promserver.Alert{alert("FabricFault", "verdict", false)})
	w.notify([]promserver.Alert{alert("FabricFault", "verdict", false), alert("Last", "health", true)})
	if m := next(t, got, 2); m != "resolved FabricFault, firing Last" && m != "firing Last, resolved FabricFault" {
		t.Errorf("%q: want each state once, and no symptom", m)
	}
	// An alert that fires for long is repeated.
	for answered := false; !answered; time.Sleep(time.Millisecond) {
		w.mu.Lock()
		if answered = len(w.alerts) == 1 && !w.alerts["Last"].due; answered {
			w.alerts["Last"].sent = time.Now().Add(-repeatAfter)
		}
		w.mu.Unlock()
	}
	w.notify([]promserver.Alert{alert("Last", "health", true)})
	if m := next(t, got, 1); m != "firing Last" {
		t.Errorf("%q: want it again", m)
	}
}

// What cannot be sent waits, and only its last state does. What is refused is not repeated.
func TestWebhookFails(t *testing.T) {
	w, got := hook(t, http.StatusInternalServerError, http.StatusTooManyRequests, http.StatusOK, http.StatusBadRequest)
	w.notify([]promserver.Alert{alert("Short", "verdict", true), alert("Long", "verdict", true)})
	w.notify([]promserver.Alert{alert("Short", "verdict", false)})
	go w.run(t.Context())
	if m := next(t, got, 3); m != "firing Long, firing Long, firing Long" {
		t.Errorf("%q: want three attempts, and nothing of what was over before it was sent", m)
	}
	w.notify([]promserver.Alert{alert("Refused", "verdict", true)})
	w.notify([]promserver.Alert{alert("Long", "verdict", false)})
	if m := next(t, got, 2); strings.Count(m, "Refused") != 1 || strings.Count(m, "resolved Long") != 1 {
		t.Errorf("%q: want one attempt of what is refused", m)
	}
	for name, text := range map[string]string{"no URL": "nothing", "two": "http://a http://b", "another scheme": "ftp://a"} {
		file := filepath.Join(t.TempDir(), "url")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := newWebhook(file, "", nil); err == nil || strings.Contains(err.Error(), "//a") {
			t.Errorf("%s: %v, want an error without the URL", name, err)
		}
	}
}

// The error of a request has no URL, which may hold a secret.
func TestWebhookKeepsItsSecret(t *testing.T) {
	w, _ := hook(t)
	w.url = "http://127.0.0.1:1/secret"
	if err := w.send(t.Context(), alert("A", "verdict", true)); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}
