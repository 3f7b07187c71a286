package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// unplugged: a node's cable is out. What its NIC says of itself is a cause of the verdict.
func (c *chain) unplugged() {
	t := c.t
	const nic = "h1/eth1"
	set := func(is string) {
		t.Helper()
		if out, err := c.l.Command(t.Context(), "leaf1", "ip", "link", "set", "dn1", is).CombinedOutput(); err != nil {
			t.Fatalf("ip link set dn1 %s: %v: %s", is, err, out)
		}
	}
	began := time.Now()
	set("down")
	said := map[string]string{}
	c.wait(time.Minute, "every analyzer names it, with the NIC's own word", func() bool {
		for _, r := range c.analyzers {
			_, incidents := c.verdicts(r)
			for i := range incidents {
				v := &incidents[i]
				if a := v.Attribution; v.OpenedAt.After(began) && strings.Contains(v.Element.ID, "h1") && a != nil && slices.ContainsFunc(a.Causes, func(x fabric.Cause) bool {
					return x.Cause == fabric.CauseDown && x.Element == nic && strings.Contains(x.Text, "it is not ACTIVE, previously ACTIVE")
				}) {
					said[r.name] = fmt.Sprintf("%s %s: %s: %s", v.Kind, v.Element.ID, v.Scenario, a.Summary)
				}
			}
		}
		return len(said) == len(c.analyzers)
	})
	for name, text := range said {
		t.Logf("%s: %s", name, text)
	}
	set("up")
	c.wait(2*time.Minute, "the network is innocent", c.innocent)
}

// TestNICs checks that a link of veth that flaps three times makes an event each time, and one alert in Prometheus
// for the three together, which continues when the link is up again. Other NICs make none.
func TestNICs(t *testing.T) {
	c := newChain(t, "e2eni", 0, "interval: 15s\n", "interval: 3s\n", "group_wait: 30s\n", "group_wait: 2s\n") // sooner, for the test not to wait
	const nic, links = "h1/eth1", 3
	state := func(of, is string) bool {
		return c.agent("h1", "/metrics")[fmt.Sprintf(`fabric_nic_port_state{nic="%s",state="%s"}`, of, is)] == 1
	}
	events := func(severity string) int {
		return int(c.agent("h1", "/metrics")[`graylink_node_nic_events_total{code="state_down",severity="`+severity+`"}`])
	}
	known := func(expr string) bool { n, err := c.query(expr); return err == nil && n > 0 }
	c.wait(time.Minute, "the NIC is known to be up", func() bool {
		return state(nic, "ACTIVE") && known(`fabric_nic_port_carrier_changes_total{nic="h1/eth1"}`)
	})
	set := func(is string) time.Time {
		t.Helper()
		at := time.Now()
		if out, err := c.l.Command(t.Context(), "leaf1", "ip", "link", "set", "dn1", is).CombinedOutput(); err != nil {
			t.Fatalf("ip link set dn1 %s: %v: %s", is, err, out)
		}
		return at
	}
	began := time.Now()
	for i := range links {
		at := set("down")
		c.wait(20*time.Second, "the NIC is down, and reported", func() bool { return state(nic, "DOWN") && events("fatal") == i+1 })
		t.Logf("down: reported within %.1f s", time.Since(at).Seconds())
		set("up")
		c.wait(20*time.Second, "the NIC is up again, and reported", func() bool { return state(nic, "ACTIVE") && events("healthy") == i+1 })
	}
	const firing = `ALERTS{alertname="RepeatedNICLinkFlap", alertstate="firing"}`
	c.wait(time.Minute, "the webhook receives that the link flaps", func() bool {
		for _, m := range c.messages(began) {
			if m.name == "RepeatedNICLinkFlap" && m.status == "firing" && strings.Contains(m.summary, nic) {
				t.Logf("%s, %.1f s after the first", m, m.at.Sub(began).Seconds())
				return true
			}
		}
		return false
	})
	// Two more turns of the rule after the link came up: it goes on.
	up, turns := time.Now(), `max(timestamp(`+firing+`)) > %d`
	c.wait(time.Minute, "two more turns of the rule", func() bool { return known(fmt.Sprintf(turns, up.Unix()+6)) })
	if n, err := c.query(firing); err != nil || n != 1 || !state(nic, "ACTIVE") {
		t.Errorf("%d NICs have events (%v), and %s is up: want it alone", n, err, nic)
	}
	for _, m := range c.messages(began) {
		if strings.HasPrefix(m.name, "NIC") || m.name == "RepeatedNICLinkFlap" && (m.status != "firing" || !strings.Contains(m.summary, nic)) {
			t.Errorf("unexpected message: %s", m)
		}
	}
	if events("fatal") != links || events("healthy") != links {
		t.Errorf("%d fatal events and %d that end them, want %d each", events("fatal"), events("healthy"), links)
	}
}
