//go:build all

package e2e

import (
	"flag"
	"fmt"
	"testing"
)

var routingSeeds = flag.Int("routing.seeds", 1, "seeds of TestDemoOfRouting")

// TestDemoOfRouting lets FRR route the demo's fabric, and makes the faults that only routing makes, and a slow link. Each is named,
// and no part is blamed for what routing did.
func TestDemoOfRouting(t *testing.T) {
	need(t)
	for seed := 1; seed <= *routingSeeds; seed++ {
		t.Run(fmt.Sprintf("seed%d", seed), func(t *testing.T) {
			stdout, stderr, code := graylink(t, "demo", "--name", "e2ero", "--web.listen-address", "127.0.0.1:0", "--format", "json", "--routing", "frr", "--seed", fmt.Sprint(seed),
				"--fault", "withdrawn,wrong-as-path,ecmp-shrunk,blackhole-fib,slow-convergence,delay,bgp-flap,bfd-false")
			clean(t, "e2ero")
			if code != 0 {
				t.Errorf("exit code %d:\n%s", code, stderr)
			}
			judge(t, outcomes(t, stdout))
		})
	}
}
