package tracing

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestTargets(t *testing.T) {
	answer := `[{"targets":["10.0.0.1:9868"],"labels":{"__meta_graylink_node":"h1","__scheme__":"https"}}]`
	coordinator := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if answer == "" || r.URL.Path != "/api/v1/targets" {
			http.Error(w, "not whole yet", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, answer)
	}))
	defer coordinator.Close()
	targets := &Targets{Client: coordinator.Client(), Coordinator: coordinator.URL, Log: slog.New(slog.DiscardHandler)}
	if err := targets.refreshTargets(t.Context()); err != nil || targets.URLOf("h1") != "https://10.0.0.1:9868" || targets.URLOf("h2") != "" {
		t.Errorf("h1 at %q, h2 at %q, %v", targets.URLOf("h1"), targets.URLOf("h2"), err)
	}
	answer = ""
	if err := targets.refreshTargets(t.Context()); err == nil || targets.URLOf("h1") == "" {
		t.Errorf("while the coordinator is away h1 is at %q, %v", targets.URLOf("h1"), err)
	}
	agents := HTTPAgents{Client: coordinator.Client(), URL: targets.URLOf}
	if _, err := agents.TracedPaths(t.Context(), "h2", 0); err == nil || !strings.Contains(err.Error(), "its address is unknown") {
		t.Errorf("an agent that is nowhere: %v", err)
	}
	for _, bad := range []string{"", "{}", `[{"targets":[],"labels":{"__meta_graylink_node":"h1","__scheme__":"http"}}]`,
		`[{"targets":["a:1"],"labels":{"__scheme__":"http"}}]`, `[{"targets":["a:1"],"labels":{"__meta_graylink_node":"h1","__scheme__":"file"}}]`} {
		if got, err := parseTargets(strings.NewReader(bad)); err == nil {
			t.Errorf("%s: %v", bad, got)
		}
	}
}

func FuzzParseTargets(f *testing.F) {
	f.Add(`[{"targets":["10.0.0.1:9868"],"labels":{"__meta_graylink_node":"h1","__scheme__":"https"}}]`)
	f.Fuzz(func(t *testing.T, text string) {
		at, err := parseTargets(strings.NewReader(text))
		if err != nil && at != nil {
			t.Errorf("addresses from what is none: %v, %v", at, err)
		}
	})
}
