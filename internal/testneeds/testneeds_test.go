package testneeds

import (
	"fmt"
	"os"
	"testing"
)

// recorder records how a test ends first, and what it says then. It goes on, where a test would not.
type recorder struct {
	testing.TB
	ended, text string
}

func (r *recorder) Helper()           {}
func (r *recorder) Fatal(args ...any) { r.end("failed", args) }
func (r *recorder) Skip(args ...any)  { r.end("skipped", args) }

func (r *recorder) end(how string, args []any) {
	if r.ended == "" {
		r.ended, r.text = how, fmt.Sprint(args...)
	}
}

func TestMissingFeatures(t *testing.T) {
	for _, c := range []struct{ required, ended string }{{"", "skipped"}, {"0", "skipped"}, {"1", "failed"}} {
		t.Setenv("GRAYLINK_REQUIRE_ALL", c.required)
		r := &recorder{TB: t}
		Missing(r, "the program ip")
		if r.ended != c.ended || r.text != "needs the program ip" {
			t.Errorf("with %q it %s: %s", c.required, r.ended, r.text)
		}
		r = &recorder{TB: t}
		Root(r, "network namespaces")
		if os.Geteuid() == 0 {
			c.ended = ""
		}
		if r.ended != c.ended || c.ended != "" && r.text != "needs root: network namespaces" {
			t.Errorf("with %q it %s: %s", c.required, r.ended, r.text)
		}
	}
}
