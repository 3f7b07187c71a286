package web

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibsubnet"
)

// someSubnets returns a subnet that is confirmed, one that is not yet, one that cannot be read, one without tables, one whose paths are
// stale, and one that was never read.
func someSubnets(now time.Time) []ibsubnet.View {
	return []ibsubnet.View{
		{Subnet: "ib0", Origin: "agent https://sm-a:9873: device mlx5_0, changes by /var/log/opensm.log", ReadAt: now.Add(-300 * time.Millisecond), Confirmed: true, Readings: 9, Switches: 54, Tables: 54, Nodes: 648, Silent: 1},
		{Subnet: "ib1", Origin: "device mlx5_1", ReadAt: now, Readings: 1, Switches: 6, Tables: 5, Nodes: 8},
		{Subnet: "ib2", Origin: "files net and lfts", ReadAt: now.Add(-time.Hour), Readings: 4, Failures: 2, Err: "lfts: no such <file>", Switches: 2, Nodes: 4},
		{Subnet: "ib4", Origin: "UFM https://ufm", ReadAt: now, Confirmed: true, Switches: 2, Nodes: 4, Found: []string{"no lfts_file is configured"}},
		{Subnet: "ib5", Origin: "agent https://a", ReadAt: now.Add(-time.Minute), ConfirmedAt: now.Add(-time.Minute), StaleAfter: 10 * time.Second, Failures: 9, Err: "no route to host", Switches: 2, Tables: 2, Nodes: 4},
		{Subnet: "ib3", Failures: 1, Err: "umad0: permission denied"},
	}
}

// TestSubnetsOnThePage checks that the page says of each subnet what is read, how old that is, and from where; and nothing without subnets.
func TestSubnetsOnThePage(t *testing.T) {
	g := loadDemo(t)
	h := handler(g, healthy(g))
	if body, _ := page(t, h, "/"); strings.Contains(body, "InfiniBand") {
		t.Error("the panel is there without subnets")
	}
	h.Subnets = func() []ibsubnet.View { return someSubnets(h.Now()) }
	body, all := page(t, h, "/")
	contains(t, body, "InfiniBand subnets (6)", "54 switches, 648 other nodes, 1 queries without an answer", "agent https://sm-a:9873: device mlx5_0", "not confirmed yet: paths are stale",
		"no forwarding tables: there are cables, and no paths: no lfts_file", "paths are stale, and no verdict rests on them: confirmed last 1 min 0 s ago; cannot be read: no route",
		"cannot be read: lfts: no such &lt;file&gt;", "cannot be read: umad0: permission denied")
	noForeignScript(t, all)
	var states []string
	for _, e := range all {
		if e.attr["data-subnet"] != "" {
			states = append(states, e.attr["data-subnet"])
		}
	}
	if strings.Join(states, " ") != "ib0 ib1 ib2 ib4 ib5 ib3" {
		t.Errorf("the rows are %q", states)
	}
}

// TestLookAtSubnets takes a picture of the page with subnets, if somebody wants to look at it.
func TestLookAtSubnets(t *testing.T) {
	if os.Getenv("GRAYLINK_SCREENSHOTS") == "" {
		return
	}
	g := loadDemo(t)
	h := handler(g, healthy(g))
	h.Subnets = func() []ibsubnet.View { return someSubnets(h.Now()) }
	shoot(t, h, "subnets", "/", false)
}
