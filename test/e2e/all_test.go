//go:build all

package e2e

import (
	"strings"
	"testing"
	"time"
)

// What make test-all has beyond make test: docs/testing.md lists it with the reasons.

const (
	everything         = true
	weightedRoutes     = true
	hostsPerLeaf       = 3
	silenceSpanDefault = 40 * time.Second
	floodLasts         = 10 * time.Second
	lieSpan            = 5 * time.Minute
)

var (
	lieKinds          = []string{"delay", "loss", "blackhole"}
	healthyTopologies = []string{"../../deploy/lab/demo.yaml", "../../internal/lab/testdata/odd.yaml"}
	muteTopologies    = []string{"../../deploy/lab/demo.yaml", "../../deploy/lab/demo-ipv6.yaml", "../../internal/lab/testdata/clos3.yaml"}
)

// TestDemoClocks: a clock that is wrong by seconds already is named when it jumps
// or changes its rate, and nothing else is. (A lab of its own: a clock that moves within half
// a minute of a delay on its NIC is distrusted and not named.)
func TestDemoClocks(t *testing.T) {
	need(t)
	stdout, stderr, _ := graylink(t, "demo", "--name", "e2e", "--web.listen-address", "127.0.0.1:0", "--format", "json", "--fault", "clock-step,clock-drift")
	out := outcomes(t, stdout)
	if len(out) != 2 || !strings.Contains(stderr, "wrong on purpose") {
		t.Fatalf("%d outcomes, want 2:\n%s", len(out), stderr)
	}
	judge(t, out)
	clean(t, "e2e")
}

// TestDemoOtherTopologies: three tiers; absent addresses, odd port names and uneven leaves.
func TestDemoOtherTopologies(t *testing.T) {
	need(t)
	for _, tt := range []struct{ file, faults string }{{"clos3.yaml", "delay"}, {"odd.yaml", "delay"}} {
		stdout, stderr, _ := graylink(t, "demo", "--name", "e2e", "--web.listen-address", "127.0.0.1:0", "--format", "json",
			"--topology", "../../internal/lab/testdata/"+tt.file, "--fault", tt.faults)
		out := outcomes(t, stdout)
		if len(out) != strings.Count(tt.faults, ",")+1 {
			t.Fatalf("%s: %d outcomes:\n%s", tt.file, len(out), stderr)
		}
		judge(t, out)
		clean(t, "e2e")
	}
}
