//go:build all

package e2e

import "testing"

// TestDemoOfIPv6 breaks links, a NIC and a switch of a fabric of IPv6. Each is named, and nothing else.
func TestDemoOfIPv6(t *testing.T) {
	need(t)
	stdout, stderr, code := graylink(t, "demo", "--name", "e2ev6", "--web.listen-address", "127.0.0.1:0", "--format", "json", "--topology", ipv6Topology,
		"--fault", "delay,loss,blackhole,ecn,link-down,nic-slow,switch-slow,congest")
	clean(t, "e2ev6")
	if code != 0 {
		t.Errorf("exit code %d:\n%s", code, stderr)
	}
	judge(t, outcomes(t, stdout))
}
