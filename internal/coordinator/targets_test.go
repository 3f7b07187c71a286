package coordinator

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/agentapi"
)

// An agent is scraped only at the address that it connects from, at its node's address in the topology,
// or in the prefixes for targets, at a port of the range, and by the scheme of the coordinator.
func TestRule6AnAgentDoesNotChooseItsTarget(t *testing.T) {
	text := strings.NewReplacer("{name: h2,", "{name: h2, address: 10.9.0.2,", "{name: h3,", "{name: h3, address: h3.example,", "{name: h4,", "{name: h4, address: 10.9.0.4,").Replace(clos(2, 2))
	for _, c := range []struct {
		name, node, from, web, scheme string
		want, reason                  string
	}{
		{"no host", "h1", "10.1.0.1", ":9868", "", "10.1.0.1:9868", ""},
		{"any host", "h1", "10.1.0.1", "0.0.0.0:9868", "", "10.1.0.1:9868", ""},
		{"any host of IPv6", "h1", "fd00::1", "[::]:9868", "", "[fd00::1]:9868", ""},
		{"where it comes from", "h1", "10.1.0.1", "10.1.0.1:9868", "", "10.1.0.1:9868", ""},
		{"where it comes from, mapped", "h1", "10.1.0.1", "[::ffff:10.1.0.1]:9868", "", "[::ffff:10.1.0.1]:9868", ""},
		{"metadata of a cloud", "h1", "10.1.0.1", "169.254.169.254:80", "http", "10.1.0.1:9868", refusedAddress},
		{"elsewhere, at the port", "h1", "10.1.0.1", "203.0.113.5:9868", "", "10.1.0.1:9868", refusedAddress},
		{"a name", "h1", "10.1.0.1", "prometheus.example:9868", "", "10.1.0.1:9868", refusedAddress},
		{"its own name over the network", "h1", "10.1.0.1", "h1:9868", "", "10.1.0.1:9868", refusedAddress},
		{"its default over the network", "h1", "10.1.0.1", "127.0.0.1:9868", "", "10.1.0.1:9868", refusedLoopback},
		{"loopback of IPv6", "h1", "10.1.0.1", "[::1]:9868", "", "10.1.0.1:9868", refusedLoopback},
		{"loopback on one host", "h1", "127.0.0.1", "127.0.0.1:9868", "", "127.0.0.1:9868", ""},
		{"another port", "h1", "10.1.0.1", ":9870", "", "10.1.0.1:9868", refusedPort},
		{"a port of the range", "h1", "10.1.0.1", ":9901", "", "10.1.0.1:9901", ""},
		{"another scheme", "h1", "10.1.0.1", ":9868", "https", "10.1.0.1:9868", refusedScheme},
		{"in the prefixes", "h1", "10.1.0.1", "10.5.0.1:9868", "", "10.5.0.1:9868", ""},
		{"another node's, in the prefixes", "h1", "10.1.0.1", "10.9.0.4:9868", "", "10.1.0.1:9868", refusedForeign},
		{"a NIC of another node, in the prefixes", "h1", "10.1.0.1", addr(4) + ":9868", "", "10.1.0.1:9868", refusedForeign},
		{"the topology's", "h2", "10.1.0.1", "10.9.0.2:9868", "", "10.9.0.2:9868", ""},
		{"no host, one in the topology", "h2", "10.1.0.1", ":9868", "", "10.9.0.2:9868", ""},
		{"elsewhere, one in the topology", "h2", "10.1.0.1", "169.254.169.254:9868", "", "10.9.0.2:9868", refusedAddress},
		{"the topology's name", "h3", "10.1.0.1", "h3.example:9868", "", "h3.example:9868", ""},
		{"its name by a socket", "h1", "", "h1:9868", "", "h1:9868", ""},
		{"loopback by a socket", "h1", "", "127.0.0.1:9868", "", "h1:9868", refusedAddress},
		{"another name by a socket", "h1", "", "h2:9868", "", "h1:9868", refusedAddress},
		{"in the prefixes, by a socket", "h1", "", "10.5.0.1:9868", "", "10.5.0.1:9868", ""},
	} {
		f := start(t, text, func(o *Options) {
			o.RegistrySettle = 0
			o.WebPrefixes = []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("10.9.0.0/16"), netip.MustParsePrefix("10.0.0.0/16")}
			o.WebPorts = PortRanges{{9868, 9868}, {9900, 9910}}
		})
		h := hello(c.node, 0)
		h.Web = &agentapi.WebEndpoint{Address: c.web, Scheme: c.scheme}
		if _, err := f.registerAgent(h, identity{names: []string{c.node}, from: c.from}); err != nil {
			t.Fatal(err)
		}
		f.run(stepEvery)
		check := func(when string) {
			t.Helper()
			got, ok := f.Targets()
			if !ok || len(got) != 1 || got[0].Address != c.want || got[0].Scheme != "http" {
				t.Errorf("%s%s: %+v, want %s by http", c.name, when, got, c.want)
			}
			for reason, n := range f.Stats().Refused {
				if want := reason == c.reason; want != (n == 1) || n > 1 {
					t.Errorf("%s%s: %d are refused by %q, want %q", c.name, when, n, reason, c.reason)
				}
			}
		}
		check("")
		f.run(saveEvery)
		if said := strings.Count(f.logs.String(), "an agent is not scraped at its advertised address"); said > 1 || (said == 1) != (c.reason != "") {
			t.Errorf("%s: logged %d times", c.name, said)
		}
		f.restart()
		f.run(stepEvery)
		check(" after a restart")
	}
}

// The state of an earlier version was not checked: targets are served after the agents have connected
// again.
func TestRule6TargetsOfAnEarlierVersionAreWaitedFor(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	old := `{"version":1,"agents":[{"node":"h1","present":true,"last_seen":"2026-11-20T09:00:00Z","web":"169.254.169.254:80","scheme":"https"}]}`
	if err := os.WriteFile(f.opts.StateFile, []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	f.restart()
	f.run(stepEvery)
	if got, ok := f.Targets(); ok {
		t.Errorf("targets %v before the agents came", got)
	}
	f.mustConnect(hello("h1", 0))
	f.run(f.opts.RegistrySettle)
	if got, ok := f.Targets(); !ok || len(got) != 1 || got[0].Address != "192.0.2.1:9868" {
		t.Errorf("targets %v, %v", got, ok)
	}
}

func TestParsePortRanges(t *testing.T) {
	for _, text := range []string{"", "x", "0", "65536", "9-8", "1-", "-1", "1-2-3"} {
		if _, err := ParsePortRanges([]string{text}); err == nil || !strings.Contains(err.Error(), "want a port or a range of ports") {
			t.Errorf("%q: %v", text, err)
		}
	}
	got, err := ParsePortRanges([]string{"9868", "9900-9910"})
	if err != nil || !got.contains(9868) || !got.contains(9905) || got.contains(9869) || got.contains(9911) {
		t.Errorf("%v, %v", got, err)
	}
}
