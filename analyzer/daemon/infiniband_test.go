package daemon

import (
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ibsubnet"
	"github.com/graylink/graylink/internal/webaccess"
)

const subnets = `topology_file: topology.yaml
prometheus: {url: "http://prometheus:9090"}
infiniband:
`

// TestSubnetsOfAConfiguration checks that a configuration needs no agents if it has a subnet, and where its files are.
func TestSubnetsOfAConfiguration(t *testing.T) {
	file := write(t, subnets+`- {subnet: ib0, source: device, device: mlx5_0, m_key_file: keys/m, opensm_log: /var/log/opensm.log}
- {subnet: ib1, source: agent, urls: ["https://a:9872", "https://b:9872"], tls_config: {ca_file: ca.crt}}
- {subnet: ib2, source: files, ibnetdiscover_file: net, lfts_file: /l, adaptive_file: far}
- {subnet: ib3, source: ufm, lfts_file: l, ufm: {endpoint: "https://ufm", auth: {token_file: token}}}
- {subnet: ib4, source: device, device: umad0, ufm: {endpoint: "https://ufm", auth: {username_file: u, password_file: p}, interval: 2s}}
- {subnet: ib5, source: ufm, ufm: {endpoint: "https://ufm", auth: {cert_file: c, key_file: k}}}
`)
	c, err := LoadConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := strings.TrimSuffix(file, "/analyzer.yaml")
	if s := c.InfiniBand; s[0].MKeyFile != dir+"/keys/m" || s[0].Timeout != 200*time.Millisecond || s[1].Client.TLSConfig.CAFile != dir+"/ca.crt" || s[2].NetDiscover != dir+"/net" || s[2].LFTs != "/l" {
		t.Errorf("%+v", s)
	}
	if s := c.InfiniBand; s[3].UFM.Auth.TokenFile != dir+"/token" || s[3].UFM.Interval != 5*time.Second || s[3].UFM.Settle != 10*time.Second || s[4].UFM.Interval != 2*time.Second || s[5].UFM.Auth.KeyFile != dir+"/k" {
		t.Errorf("%+v, %+v, %+v", s[3].UFM, s[4].UFM, s[5].UFM)
	}
	c.InfiniBand[1].Client.TLSConfig.CAFile = "" // there is none
	lines, err := c.DescribeSubnets()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"infiniband: ib0 is read from device mlx5_0, changes by /var/log/opensm.log", "infiniband: ib1 is read from agent https://a:9872", "infiniband: ib2 is read from files " + dir + "/net and /l, with the groups of adaptive routing of " + dir + "/far",
		"infiniband: ib3 is read from UFM https://ufm, changes by its events, tables by " + dir + "/l", "infiniband: ib4 is read from device umad0, changes by the events of UFM https://ufm",
		"infiniband: ib5 is read from UFM https://ufm, changes by its events, no forwarding tables"}
	for i, age := range []string{"10s", "10s", "15m0s", "1m0s", "10s", "1m0s"} {
		want[i] += "; paths are stale after " + age
	}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("%q, want %q", lines, want)
	}
}

func TestBadSubnets(t *testing.T) {
	for text, want := range map[string]string{
		"- {source: device, device: umad0}\n": "analyzer.yaml:4: infiniband[0].subnet: a name is required",
		"- {subnet: a}\n":                     "analyzer.yaml:4: infiniband[0].source: \"\": device, agent, ufm or files is expected",
		"- {subnet: a, source: ufm}\n":        "analyzer.yaml:4: infiniband[0].ufm: required by source: ufm",
		"- {subnet: a, source: ufm, lfts_file: l, device: d, ufm: {endpoint: \"https://u\", auth: {token_file: t}}}\n":   "analyzer.yaml:4: infiniband[0].device: it does not belong to source: ufm",
		"- {subnet: a, source: ufm, ufm: {endpoint: \"https://u\"}}\n":                                                   "analyzer.yaml:4: infiniband[0].ufm.auth: files with credentials",
		"- {subnet: a, source: ufm, ufm: {endpoint: \"http://u\", auth: {token_file: t}}}\n":                             "analyzer.yaml:4: infiniband[0].ufm.endpoint: https is expected",
		"- {subnet: a, source: ufm, ufm: {endpoint: \"https://u\", auth: {token_file: t, cert_file: c, key_file: k}}}\n": "analyzer.yaml:4: infiniband[0].ufm.auth: one of",
		"- {subnet: a, source: ufm, ufm: {endpoint: \"https://u\", auth: {token_file: t}, interval: 10ms}}\n":            "analyzer.yaml:4: infiniband[0].ufm.interval: 10ms: 100ms",
		"- {subnet: a, source: ufm, ufm: {endpoint: \"https://u\", auth: {token_file: t}, inventory_interval: 1s}}\n":    "analyzer.yaml:4: infiniband[0].ufm.inventory_interval: 1s: 5s",
		"- {subnet: a, source: ufm, ufm: {endpoint: \"https://u\", auth: {token_file: t}, timeout: 1ms}}\n":              "analyzer.yaml:4: infiniband[0].ufm.timeout: 1ms",
		"- {subnet: a, source: device}\n":                                                                  "analyzer.yaml:4: infiniband[0].device: required by source: device",
		"- {subnet: a, source: device, device: umad0, urls: [\"http://a\"]}\n":                             "analyzer.yaml:4: infiniband[0].urls: it does not belong to source: device",
		"- {subnet: a, source: device, device: umad0, timeout: 0s}\n":                                      "analyzer.yaml:4: infiniband[0].timeout: 0s: 1ms to 1m0s",
		"- {subnet: a, source: device, device: umad0, stale_after: -1s}\n":                                 "analyzer.yaml:4: infiniband[0].stale_after: -1s: 0s to",
		"- {subnet: a, source: agent}\n":                                                                   "analyzer.yaml:4: infiniband[0].urls: required",
		"- {subnet: a, source: agent, urls: [\"http://a\", \"x y\"]}\n":                                    "analyzer.yaml:4: infiniband[0].urls[1]: ",
		"- {subnet: a, source: agent, urls: [\"http://a\"], opensm_log: l}\n":                              "analyzer.yaml:4: infiniband[0].opensm_log: it does not belong",
		"- {subnet: a, source: agent, urls: [\"http://a\"], bearer_token: a, basic_auth: {username: b}}\n": "analyzer.yaml:4: infiniband[0]: ",
		"- {subnet: a, source: files, lfts_file: l}\n":                                                     "analyzer.yaml:4: infiniband[0].ibnetdiscover_file: required",
		"- {subnet: a, source: device, device: umad0}\n- {subnet: a, source: device, device: umad1}\n":     "analyzer.yaml:5: infiniband[1].subnet: \"a\": another subnet has this name",
		"- {subnet: a, sorce: device}\n":                                                                   "analyzer.yaml:4: sorce: there is no such key here",
	} {
		if _, err := LoadConfig(write(t, subnets+text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s%v\nwant %q", text, err, want)
		}
	}
}

// readTree returns the fabric of files that ibnetdiscover and dump_lfts wrote.
func readTree(t *testing.T) *ibfabric.Fabric {
	t.Helper()
	s := &ibsubnet.Files{NetDiscover: "../../internal/ibfabric/testdata/tree.ibnetdiscover", LFTs: "../../internal/ibfabric/testdata/tree.lfts"}
	r, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r.Fabric
}

// TestDaemonReadsASubnet has an agent that hands out the subnet of a file. The daemon's series and page say that it is read, and
// when the agent fails, that it is not.
func TestDaemonReadsASubnet(t *testing.T) {
	f := readTree(t)
	server := ibsubnet.NewServer()
	agent := httptest.NewServer(server)
	defer agent.Close()
	server.Apply(ibfabric.Reading{Fabric: f, Begun: time.Now(), Ended: time.Now()}, "device umad0")
	file := write(t, `topology_file: topology.yaml
prometheus: {url: "`+emptyPrometheus(t).URL+`"}
infiniband: [{subnet: ib0, source: agent, urls: ["`+agent.URL+`"]}]
evidence: {scrape_interval: 100ms}
`)
	d, err := New(file, &webaccess.Policy{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	says := func(path, what string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			_, body := get(t, d, "GET", path, there)
			if strings.Contains(body, what) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s does not say %q", path, what)
			}
		}
	}
	says("/", "InfiniBand subnets (1)")
	says("/", "<td class=\"innocent\">confirmed</td>")
	says("/", "agent "+agent.URL+": device umad0")
	says("/metrics", `graylink_analyzer_subnet_age_seconds{subnet="ib0"} `)
	says("/metrics", `graylink_analyzer_subnet_readings_total{result="failed",subnet="ib0"} 0`)
	agent.Close()
	says("/", "cannot be read: agent "+agent.URL)
}
