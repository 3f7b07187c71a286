package serve

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/promslog"
	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/analyzer/daemon"
	"github.com/graylink/graylink/analyzer/evidence/promserver"
	"github.com/graylink/graylink/deploy"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/webaccess"
	"github.com/graylink/graylink/rules"
)

func options(t *testing.T) Options {
	t.Helper()
	return Options{Directory: t.TempDir(), AgentsAddress: "127.0.0.1:0", Names: []string{"10.0.0.9"}, Cadence: 10 * time.Millisecond, Retention: time.Hour,
		ExternalURL: &url.URL{Scheme: "http", Host: "127.0.0.1:9872"}, Listener: pki.NewWatch(), Policy: &webaccess.Policy{}, Log: slog.New(slog.DiscardHandler)}
}

// The configuration of the Prometheus has all jobs of the example, and no address of the network but the Alertmanagers'.
func TestPrometheusConfig(t *testing.T) {
	o := options(t)
	o.Alertmanagers = []string{"https://alerts.example:9093/prefix"}
	switches := &daemon.Switches{Names: []string{"leaf1"}}
	switches.URL = "http://{switch}.example:9871"
	text, err := prometheusConfig(deploy.PrometheusConfig, &o, switches)
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Alerting struct {
			Alertmanagers []struct {
				PathPrefix string `yaml:"path_prefix"`
			}
		}
		Scrape []struct {
			Job    string `yaml:"job_name"`
			Static []struct {
				Targets []string
				Labels  map[string]string
			} `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	if err := yaml.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	jobs := map[string]string{}
	for _, j := range c.Scrape {
		jobs[j.Job] = ""
		for _, s := range j.Static {
			jobs[j.Job] += strings.Join(s.Targets, " ") + s.Labels["instance"]
		}
	}
	for job, want := range map[string]string{"graylink-node-edges": "", "graylink-node-nics": "", "graylink-node": "", "graylink-analyzer": analyzerHost + ":80", "graylink-coordinator": coordinatorHost + ":80",
		"prometheus": prometheusHost + ":80", "graylink-switch": "leaf1.example:9871leaf1", "otelcol-graylink": ""} {
		if got, has := jobs[job]; !has || got != want {
			t.Errorf("job %s has the targets %q, want %q", job, got, want)
		}
	}
	if strings.Contains(text, "127.0.0.1") || len(c.Alerting.Alertmanagers) != 1 || c.Alerting.Alertmanagers[0].PathPrefix != "/prefix" {
		t.Errorf("an address of the example is left, or the Alertmanager is missing:\n%s", text)
	}
	// A real server accepts it, with the rules.
	server, err := promserver.New(promserver.Options{Config: text, Rules: rules.Files, Dial: newNetwork(coordinatorHost, analyzerHost, prometheusHost).dial, Log: promslog.NewNopLogger()})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"alerts:9093", "ftp://alerts", "http://user:secret@alerts", "http://"} {
		o.Alertmanagers = []string{bad}
		if _, err := prometheusConfig(deploy.PrometheusConfig, &o, nil); err == nil {
			t.Errorf("%s is accepted as the URL of an Alertmanager", bad)
		}
	}
}

func TestAuthority(t *testing.T) {
	o, now := options(t), time.Now()
	serial := func(name string, at time.Time) string {
		a, err := openAuthority(&o, at)
		if err != nil {
			t.Fatal(err)
		}
		p, err := readPair(a.files(name))
		if err != nil {
			t.Fatal(err)
		}
		return pki.ParseCertificates(p.Cert)[0].SerialNumber.String()
	}
	ca, first := serial("ca", now), serial(coordinatorName, now)
	if serial(coordinatorName, now.Add(ownLife/2)) != first {
		t.Error("a certificate is replaced although half of its life is left")
	}
	o.Names = append(o.Names, "site.example")
	named := serial(coordinatorName, now)
	if named == first {
		t.Error("the certificate lacks the new name of the host")
	}
	if serial(coordinatorName, now.Add(ownLife*3/4)) == named {
		t.Error("a certificate is not renewed when a quarter of its life is left")
	}
	if serial("ca", now) != ca {
		t.Error("the authority was replaced")
	}
	for _, file := range []string{"ca.key", "coordinator.key", "analyzer.key"} {
		if info, err := os.Stat(o.file("pki", file)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v: only the owner may read a key", file, info, err)
		}
	}
	if err := os.WriteFile(o.file("pki", "ca.key"), []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openAuthority(&o, now.Add(ownLife)); err == nil {
		t.Error("an authority without its key is accepted, or was replaced in silence")
	}
}

func TestNetworkInside(t *testing.T) {
	n := newNetwork("a.internal")
	go func() {
		c, err := n.listeners["a.internal"].Accept()
		if err == nil {
			_, err = io.WriteString(c, "hello")
		}
		if err := errors.Join(err, c.Close()); err != nil {
			t.Error(err)
		}
	}()
	c, err := n.dial(t.Context(), "tcp", "a.internal:80")
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := n.dial(ctx, "tcp", "a.internal:80"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v: a host that accepts nothing", err)
	}
	if err := n.listeners["a.internal"].Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := n.dial(t.Context(), "tcp", "a.internal:80"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v: a closed host", err)
	}
}

// What was discovered survives a restart and the silence of a node.
func TestDiscoveryIsKept(t *testing.T) {
	d, err := openDiscovery(t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	views := []fabric.NodeView{{Node: "h1", NICs: nics("h1", "10.0.0.1/24")}, {Node: "h2", NICs: nics("h2", "10.0.0.2/24")}}
	if changed, err := d.update(views[:1]); changed || err != nil || d.hasTopology() {
		t.Errorf("one node: %v, %v, want no topology", changed, err)
	}
	if text := d.describe(); !strings.Contains(text, "1 have connected") || !strings.Contains(text, "h1/eth0 shares no network") {
		t.Errorf("%s", text)
	}
	if changed, err := d.update(views); !changed || err != nil || !d.hasTopology() {
		t.Errorf("two nodes: %v, %v, want a topology", changed, err)
	}
	if changed, err := d.update(views[:1]); changed || err != nil {
		t.Errorf("a silent node: %v, %v, want no change", changed, err)
	}
	again, err := openDiscovery(d.topologyFile[:strings.LastIndex(d.topologyFile, "/")], slog.New(slog.DiscardHandler))
	if err != nil || !again.hasTopology() {
		t.Fatalf("after a restart: %v", err)
	}
	if changed, err := again.update(views); changed || err != nil {
		t.Errorf("the same after a restart: %v, %v", changed, err)
	}
	if err := os.WriteFile(d.reportsFile, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openDiscovery(d.topologyFile[:strings.LastIndex(d.topologyFile, "/")], slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), d.reportsFile) {
		t.Errorf("%v: want the name of the file that cannot be read", err)
	}
}

// A NIC whose switch falls silent stays where it was plugged in, also after a restart, until it hears another one.
func TestNeighboursAreKept(t *testing.T) {
	directory := t.TempDir()
	d, err := openDiscovery(directory, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	views := func(heard ...fabric.Neighbour) []fabric.NodeView {
		v := []fabric.NodeView{{Node: "h1", NICs: nics("h1", "10.0.0.1/24")}, {Node: "h2", NICs: nics("h2", "10.0.0.2/24")}}
		v[0].NICs[0].Neighbours = heard
		return v
	}
	leaf := func(name string) fabric.Neighbour {
		return fabric.Neighbour{System: name, Port: "swp1", Chassis: name, Forwards: true}
	}
	for _, step := range []struct {
		heard   []fabric.Neighbour
		changed bool
		want    string
	}{
		{nil, true, "h1/eth0--net-10.0.0.0_24:h1.eth0"}, {[]fabric.Neighbour{leaf("leaf1")}, true, "h1/eth0--leaf1:swp1"}, {nil, false, "h1/eth0--leaf1:swp1"},
		{[]fabric.Neighbour{leaf("leaf2")}, true, "h1/eth0--leaf2:swp1"}, {[]fabric.Neighbour{leaf("leaf1"), leaf("leaf2")}, true, "h1/eth0--net-10.0.0.0_24:h1.eth0"},
		{[]fabric.Neighbour{leaf("leaf1")}, true, "h1/eth0--leaf1:swp1"},
	} {
		changed, err := d.update(views(step.heard...))
		topology, problems := fabric.LoadTopology(d.topologyFile)
		if err != nil || changed != step.changed || len(problems.OnlyErrors()) > 0 || topology.Links[0].ID() != step.want {
			t.Errorf("%v: %v, %v, %v, %+v; want %s", step.heard, changed, err, problems, topology.Links, step.want)
		}
	}
	again, err := openDiscovery(directory, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if changed, err := again.update(views()); changed || err != nil {
		t.Errorf("a switch that is silent after a restart: %v, %v, want no change", changed, err)
	}
}

func nics(node, prefix string) []fabric.NICView {
	p := netip.MustParsePrefix(prefix)
	return []fabric.NICView{{NIC: node + "/eth0", Addresses: []netip.Addr{p.Addr()}, Networks: []netip.Prefix{p.Masked()}}}
}

// A configuration that is wrong stops the start, and names the line.
func TestStartRefuses(t *testing.T) {
	o := options(t)
	o.ConfigFile = o.file("analyzer.yml")
	for text, want := range map[string]string{"jobs: [{file: /nowhere, format: x}]\n": "analyzer.yml:1", "nothing: 1\n": "there is no such key"} {
		if err := os.WriteFile(o.ConfigFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Start(o)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
}

// The site's own certificates are renewed while it runs, with a topology file and without one.
func TestCertificatesAreRenewed(t *testing.T) {
	for name, discovers := range map[string]bool{"topology file": false, "discovery": true} {
		o := options(t)
		o.renewEvery = time.Millisecond
		if !discovers {
			o.TopologyFile = o.file("fabric.yaml")
			if err := os.WriteFile(o.TopologyFile, deploy.DemoTopology, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s, err := Start(o)
		if err != nil {
			t.Fatal(errors.Join(err, s.Close()))
		}
		file := s.authority.files(analyzerName).Cert
		if err := os.Remove(file); err != nil {
			t.Error(err)
		}
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
			if _, err = os.Stat(file); err == nil || time.Now().After(end) {
				break
			}
		}
		if err != nil {
			t.Errorf("%s: the certificate is not made again: %v", name, err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
