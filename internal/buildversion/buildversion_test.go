package buildversion

import (
	"runtime/debug"
	"strings"
	"testing"
)

func TestChoose(t *testing.T) {
	module := func(v string) *debug.BuildInfo { return &debug.BuildInfo{Main: debug.Module{Version: v}} }
	for _, c := range []struct {
		linked string
		info   *debug.BuildInfo
		want   string
	}{
		{"1.2.0", module("v1.1.0"), "1.2.0"},
		{"", module("v0.0.0-20261123150000-0123456789ab"), "v0.0.0-20261123150000-0123456789ab"},
		{"", module("(devel)"), "unknown"},
		{"", nil, "unknown"},
	} {
		if got := choose(c.linked, c.info); got != c.want {
			t.Errorf("choose(%q, %v) = %q, want %q", c.linked, c.info, got, c.want)
		}
	}
}

func TestPrintNamesProgramAndVersion(t *testing.T) {
	want := "graylink-node, version " + Version()
	if got := Print("graylink-node"); !strings.HasPrefix(got, want) || Version() == "" {
		t.Errorf("%q, want it to begin with %q", got, want)
	}
}
