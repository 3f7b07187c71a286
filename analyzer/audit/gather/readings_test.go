package gather

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/audit"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/evidence/evidencetest"
	"github.com/graylink/graylink/internal/fabric"
)

// series are those of a site that reads its switches and NICs, over two minutes before now.
const series = `
load 15s
  fabric_switch_port_speed_bytes_per_second{switch="leaf1",port="up1"} 50e9x8
  fabric_switch_port_speed_bytes_per_second{switch="nowhere",port="up1"} 1x8
  fabric_switch_port_mtu_bytes{switch="leaf1",port="up1"} 9216x8
  fabric_switch_port_pfc_receive_frames_total{switch="leaf1",port="up1",priority="3"} 0+15x8
  fabric_switch_port_pfc_transmit_frames_total{switch="leaf1",port="up1",priority="3"} 0+30x8
  fabric_switch_port_receive_discards_total{switch="leaf1",port="up1"} 4x8
  fabric_nic_port_rate_bytes_per_second{nic="h1/eth1"} 25e9x8
  fabric_nic_port_state{nic="h1/eth1",state="ACTIVE"} 1x8
  fabric_nic_port_state{nic="h1/eth1",state="DOWN"} 0x8
  fabric_nic_port_carrier_changes_total{nic="h1/eth1"} 2x8
  fabric_nic_finding{nic="h1/eth1",code="rate_below_expected",severity="warning"} 0 0 1 1 0 0 0 0 0
  fabric_nic_finding{nic="h2/eth1",code="other",severity="fatal"} 0x8
`

// past is a database whose now is the end of the series.
type past struct {
	evidence.Querier
	failing string
}

func (p past) QueryInstant(ctx context.Context, query string, _ time.Time) ([]evidence.Sample, error) {
	if p.failing != "" && strings.Contains(query, p.failing) {
		return nil, errors.New("overloaded")
	}
	return p.Querier.QueryInstant(ctx, query, time.Unix(120, 0))
}

func TestReadingsAreThoseOfTheSeries(t *testing.T) {
	topo, found := fabric.LoadTopology("../../../deploy/lab/demo.yaml")
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	db := evidencetest.NewQuerier(t, series)
	var said []string
	c := &collector{o: Options{Graph: fabric.NewGraph(topo), DB: past{Querier: db}, Progress: func(format string, _ ...any) { said = append(said, format) }}}
	got := c.readPorts(t.Context(), 2*time.Minute)
	number := func(v float64) *float64 { return &v }
	want := &readings{ports: map[string]audit.PortReading{"leaf1:up1": {SpeedGbps: number(400), MTUBytes: number(9216), PauseFrames: number(360), Discards: number(0)}, "h1/eth1": {SpeedGbps: number(200)}},
		nics: map[string]audit.NICReading{"h1/eth1": {Watched: true, CarrierChanges: number(0), Findings: map[string]string{"rate_below_expected": "warning"}}}}
	for at, p := range got.ports { // increase extrapolates
		if p.PauseFrames != nil && *p.PauseFrames > 350 && *p.PauseFrames < 370 {
			*p.PauseFrames = 360
		}
		got.ports[at] = p
	}
	if !reflect.DeepEqual(got, want) || len(said) > 0 {
		t.Errorf("%+v %+v, want %+v; said %q", got.ports["leaf1:up1"], got.nics, want, said)
	}
	// A query that fails is left out, and the others are used.
	c.o.DB = past{Querier: db, failing: "mtu_bytes"}
	got = c.readPorts(t.Context(), 2*time.Minute)
	if p := got.ports["leaf1:up1"]; p.MTUBytes != nil || p.SpeedGbps == nil || len(said) != 1 {
		t.Errorf("%+v; said %q", p, said)
	}
}

func TestWindowsAreMultiplesOfTheScrapeInterval(t *testing.T) {
	for _, x := range []struct{ scrape, duration, want time.Duration }{
		{time.Second, 10 * time.Minute, 10 * time.Second},
		{time.Second, 18 * time.Second, 3 * time.Second},
		{15 * time.Second, 10 * time.Minute, 30 * time.Second},
		{time.Second, 8 * time.Hour, 4 * time.Minute},
		{200 * time.Millisecond, time.Second, 400 * time.Millisecond},
	} {
		o := Options{Scrape: x.scrape, Duration: x.duration}
		if got := o.windowLength(); got != x.want {
			t.Errorf("%s every %s: windows of %s, want %s", x.duration, x.scrape, got, x.want)
		}
	}
}
