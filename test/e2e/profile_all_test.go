//go:build all

package e2e

import (
	"testing"
	"time"
)

// TestFleetProfile runs the faults of TestAlerts with profile fleet: the analyzers have the windows of flows from the agents,
// and Prometheus scrapes series per flow once a minute. TestAlerts has -alerts.profile for the rest.
func TestFleetProfile(t *testing.T) {
	profile, kinds := *alertProfile, *alertKinds
	t.Cleanup(func() { *alertProfile, *alertKinds = profile, kinds })
	*alertProfile, *alertKinds = "fleet", "delay,loss,blackhole,nic-slow,ecn,link-down"
	c := newChain(t, "e2epr", 2)
	c.wait(3*time.Minute, "the network is innocent", c.innocent)
	c.wait(30*time.Second, "every probe is traced", c.everyPathTraced)
	c.faults()
}
