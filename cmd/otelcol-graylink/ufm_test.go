//go:build collector

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/pki/pkitest"
	"github.com/graylink/graylink/internal/ufm/ufmtest"
)

// scope matches the labels that the exporter adds.
var scope = regexp.MustCompile(`otel_scope_[a-z_]+="[^"]*",`)

// TestUFMInBothPipelines checks that a collector as a process reads a UFM once for metrics and logs: series are
// scraped, and an event and an alarm arrive by OTLP.
func TestUFMInBothPipelines(t *testing.T) {
	s := ufmtest.New(t)
	for path, name := range map[string]string{"/resources/systems": "systems.json", "/resources/ports": "ports_rest.json", "/resources/links": "links.json"} {
		text, err := os.ReadFile(filepath.Join("../../internal/ufm/testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		s.SetBody("/ufmRestV3"+path, string(text))
	}
	s.SetJSON("/app/ufm_version", map[string]string{"ufm_release_version": "6.24.1"})
	s.SetJSON("/app/unhealthy_ports", []string{})
	s.SetJSON("/app/events", []string{})
	s.SetJSON("/app/alarms", []map[string]any{{"id": 1, "name": "Module status FAULT", "event_type": 394, "severity": "Critical", "object_name": "0002c90300f172a0", "reason": "fatal"}})

	address, scrape, dir := freePort(t), freePort(t), t.TempDir()
	sink := logsSink(t, "grpc", address)
	config := filepath.Join(dir, "collector.yaml")
	if err := os.WriteFile(config, []byte(fmt.Sprintf(`
receivers:
  ufm: {endpoint: "%s", auth: {token_file: %s}, tls: {ca_file: %s}, interval: 200ms, inventory_interval: 1h, subnet: ib0, state_file: %s}
exporters:
  prometheus: {endpoint: "%s"}
  otlp_grpc: {endpoint: "%s", tls: {insecure: true}}
service:
  pipelines:
    metrics: {receivers: [ufm], exporters: [prometheus]}
    logs: {receivers: [ufm], exporters: [otlp_grpc]}
  telemetry: {metrics: {level: none}, logs: {level: warn}}
`, s.URL, s.TokenFile, s.CAFile, filepath.Join(dir, "ufm.json"), scrape, address)), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, asCollector+"=1", os.Args[0], "--config", config)

	names := func() map[string]int {
		out := map[string]int{}
		for _, l := range sink.AllLogs() {
			list := l.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords()
			for i := range list.Len() {
				out[list.At(i).EventName()+" "+list.At(i).Body().Str()]++
			}
		}
		return out
	}
	until(t, "the alarm arrives", func() bool { return names()["ufm.alarm fatal"] > 0 })
	s.SetJSON("/app/events", []map[string]any{{"id": 5, "name": "Link is Down", "event_type": "329", "type": "IBPort", "severity": "Warning", "timestamp": "2024-05-28 08:03:05",
		"object_name": "0002c90300f172a0_1", "description": "Link went down: x"}})
	until(t, "the event arrives", func() bool { return names()["ufm.event Link went down: x"] > 0 })
	var page string
	defer func() {
		if t.Failed() {
			t.Log(page)
		}
	}()
	until(t, "the change is counted", func() bool {
		page = scope.ReplaceAllString(get(t, "http://"+scrape+"/metrics"), "")
		return strings.Contains(page, `fabric_subnet_changes_total{reason="link_down",subnet="ib0"} 1`)
	})
	for _, want := range []string{
		`fabric_switch_port_neighbor_info{port="1",remote="r-ufm59",remote_chassis="0xec0d9a0300d42e54",remote_port="mlx5_0",switch="leaf1"} 1`,
		`fabric_switch_port_expected_speed_bytes_per_second{port="1",switch="leaf1"} 2.5e+10`,
		pkitest.Line(t, s.CAFile, pki.UseAuthority), "# TYPE graylink_certificate_expiry_timestamp_seconds gauge",
		"# TYPE fabric_subnet_changes_total counter", "# TYPE fabric_nic_port_lanes gauge",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("%s is not there", want)
		}
	}
	inventories := 0
	for _, asked := range s.RequestURIs() {
		if strings.HasSuffix(asked, "/resources/ports") {
			inventories++
		}
	}
	if inventories != 1 {
		t.Errorf("the inventory was read %d times: metrics and logs do not share a receiver", inventories)
	}
	if got := names(); got["ufm.alarm fatal"] != 1 || got["ufm.event Link went down: x"] != 1 || len(got) != 2 {
		t.Errorf("arrived: %v", got)
	}
}
