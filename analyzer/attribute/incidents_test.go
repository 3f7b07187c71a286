package attribute

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/evidence/evidencetest"
	"github.com/graylink/graylink/internal/fabric"
)

// TestIncidents checks the causes of incidents that switches of several vendors reported by gNMI every ten seconds, and
// InfiniBand ports by MADs every second. The header of each file has the verdict and all of its causes, and may have
// words of the summary.
func TestIncidents(t *testing.T) {
	files, err := filepath.Glob("testdata/incidents/*.txt")
	if err != nil || len(files) < 8 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		header := map[string]string{}
		for line := range strings.Lines(string(b)) {
			if key, value, ok := strings.Cut(strings.TrimPrefix(line, "# "), ": "); ok && strings.HasPrefix(line, "#") {
				header[key] = strings.TrimSpace(value)
			}
		}
		f := strings.Fields(header["verdict"])
		if len(f) != 4 || header["causes"] == "" {
			t.Fatalf("%s: verdict %q, causes %q", file, header["verdict"], header["causes"])
		}
		v := fabric.Verdict{Element: fabric.Element{Kind: fabric.Kind(f[0]), ID: f[1]}, Direction: f[2], Scenario: fabric.Scenario(f[3]), Symptom: fabric.Symptom{AddedDelayNS: 1e6}}
		a := Attributor{DB: evidencetest.NewQuerier(t, string(b)), Scrape: time.Second}
		for _, q := range []struct {
			now  int64
			want string
		}{{begin, ""}, {begin + 29, header["causes"]}} {
			got, err := a.Attribute(t.Context(), graph(t), Request{Verdict: v, Since: time.Unix(q.now-25, 0), SureSince: time.Unix(q.now-20, 0), Now: time.Unix(q.now, 0)})
			if err != nil {
				t.Fatal(err)
			}
			var said []string
			for _, c := range got.Causes {
				said = append(said, c.Cause+" at "+c.Element)
			}
			if s := strings.Join(said, ", "); s != q.want {
				t.Errorf("%s, second %d: causes %q, want %q; %s", filepath.Base(file), q.now, s, q.want, got.Summary)
			} else if q.want != "" && !strings.Contains(got.Summary, header["names"]) {
				t.Errorf("%s: the summary lacks %q: %s", filepath.Base(file), header["names"], got.Summary)
			} else if q.want != "" {
				t.Logf("%s: %s", filepath.Base(file), got.Summary)
			}
		}
	}
}
