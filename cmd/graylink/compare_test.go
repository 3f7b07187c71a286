package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/analyzer/compare"
	"github.com/graylink/graylink/internal/plainjson"
)

// TestCompare checks the request, the exit codes of the help text, and the text.
func TestCompare(t *testing.T) {
	section := func(s compare.Section) compare.Section {
		s.Kind, s.Quantity, s.Unit = compare.NICs, compare.MedianDelay, compare.Nanoseconds
		return s
	}
	changed := section(compare.Section{Compared: 9, ChangesLeftOut: 3, Changes: []compare.Change{{Place: compare.Place{Element: "h1/eth1", Side: "destination"}, AtLeast: 4e4,
		Before: compare.Spread{Low: 9e3, Median: 1e4, High: 11e3}, After: compare.Spread{Low: 51e3, Median: 6e4, High: 61e3}}}})
	for _, tt := range []struct {
		name     string
		sections []compare.Section
		status   int
		code     int
	}{
		{"nothing", []compare.Section{section(compare.Section{Compared: 9})}, http.StatusOK, 0},
		{"worse, and a part is not known", []compare.Section{changed, section(compare.Section{Error: "timeout"})}, http.StatusOK, 2},
		{"missing", []compare.Section{section(compare.Section{Compared: 9, Missing: []compare.Place{{Element: "h1/eth1"}}})}, http.StatusOK, 2},
		{"a part is not known", []compare.Section{section(compare.Section{Compared: 9}), section(compare.Section{Error: "timeout"})}, http.StatusOK, 3},
		{"nothing is known", []compare.Section{section(compare.Section{})}, http.StatusOK, 3},
		{"refused", nil, http.StatusBadRequest, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if got, want := r.URL.String(), "/api/v1/compare?from=24h&kind=nic&limit=7&span=1h0m0s&to=2026-11-28T10%3A00%3A00Z"; got != want {
					t.Errorf("asked %s, want %s", got, want)
				}
				w.WriteHeader(tt.status)
				if err := plainjson.NewEncoder(w).Encode(compare.Comparison{Sections: tt.sections}); err != nil {
					t.Error(err)
				}
			}))
			defer srv.Close()
			for _, format := range []string{"text", "json"} {
				app, commands := kingpin.New("graylink", ""), map[string]command{}
				addCompare(app, commands)
				if code := run(app, commands, []string{"compare", "--analyzer", srv.URL, "--format", format, "--from", "24h", "--to", "2026-11-28T10:00:00Z", "--span", "1h", "--kind", "nic", "--limit", "7"}); code != tt.code {
					t.Errorf("exit code %d, want %d", code, tt.code)
				}
			}
		})
	}
	var b bytes.Buffer
	if err := printComparison(&b, &compare.Comparison{Sections: []compare.Section{changed, section(compare.Section{Error: "timeout"})}, Warnings: []string{"a\x1bstore"}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"4 values became worse", "1 of 2 comparisons are not known", `"a\x1bstore"`, "NICs, slower (median)\n", "h1/eth1, packets to it  10 µs  → 60 µs  by at least 40 µs", "3 more are left out.", "NICs, slower (median): Unknown: timeout."} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("lacks %q:\n%s", want, b.String())
		}
	}
}
