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
  fabric_switch_port_module_receive_power_watts{switch="leaf1",port="up1",lane="1"} 0.0005x8
  fabric_switch_port_module_receive_power_watts{switch="leaf1",port="up1",lane="2"} 0x8
  fabric_switch_port_module_bias_amperes{switch="leaf1",port="up1",lane="2"} 0.06x8
  fabric_switch_port_module_temperature_celsius{switch="leaf1",port="up1"} 41x8
  fabric_switch_port_lane_pre_fec_ber_ratio{switch="leaf1",port="up1",lane="2"} 1e-6x8
  fabric_switch_port_pre_fec_ber_ratio{switch="leaf1",port="up1"} 2e-7x8
  fabric_switch_port_lanes{switch="leaf1",port="up1"} 2x8
  fabric_switch_port_expected_lanes{switch="leaf1",port="up1"} 4x8
  fabric_switch_port_fec_mode{switch="leaf1",port="up1",mode="Standard RS-FEC - (544,514)"} 1x8
  fabric_switch_port_qos_info{switch="leaf1",port="up1",dscp_map="ROCE",queue_map="Q",pfc="3"} 1x8
  fabric_switch_port_queue_qos_info{switch="leaf1",port="up1",tc="3",ecn_profile="LOSSLESS"} 1x8
  fabric_switch_ecn_profile_info{switch="leaf1",profile="LOSSLESS",ecn="ecn_all",min_threshold="1000",max_threshold="2000",probability="5"} 1x8
  fabric_nic_module_transmit_power_watts{nic="h1/eth1",lane="1"} 0.001x8
  fabric_nic_module_voltage_volts{nic="h1/eth1"} 3.3x8
  fabric_nic_module_info{nic="h1/eth1",vendor="V",part="P-1",serial="s",oui="o",type="t",revision="",standard=""} 1x8
  fabric_nic_module_threshold{nic="h1/eth1",monitor="temperature",is="high_alarm"} 75x8
  fabric_nic_module_threshold{nic="h1/eth1",monitor="temperature",is="low_alarm"} -5x8
  fabric_nic_link_lanes{nic="h1/eth1"} 4x8
  fabric_nic_fec_mode{nic="h1/eth1",is="active",mode="rs"} 1x8
  fabric_nic_fec_mode{nic="h1/eth1",is="active",mode="off"} 0x8
  fabric_nic_fec_mode{nic="h1/eth1",is="configured",mode="rs"} 1x8
  fabric_nic_port_info{nic="h1/eth1",board="B",type="T",driver="mlx5_core",firmware="28.1",device="d",interface="eth1",kind="k",link_layer="Ethernet",pci="p",port="1",function=""} 1x8
  fabric_nic_pci_link_lanes{nic="h1/eth1",is="current"} 8x8
  fabric_nic_pci_link_lanes{nic="h1/eth1",is="max"} 16x8
  fabric_nic_pci_link_transfers_per_second{nic="h1/eth1",is="current"} 32e9x8
  fabric_nic_pause_enabled{nic="h1/eth1",what="receive"} 0x8
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
	want := &readings{
		ports: map[string]audit.PortReading{
			"leaf1:up1": {SpeedGbps: number(400), MTUBytes: number(9216), PauseFrames: number(360), Discards: number(0), Lanes: number(2), ExpectedLanes: number(4), FEC: "Standard RS-FEC - (544,514)"},
			"h1/eth1":   {SpeedGbps: number(200), Lanes: number(4), FEC: "rs"}},
		nics: map[string]audit.NICReading{"h1/eth1": {Watched: true, CarrierChanges: number(0), Findings: map[string]string{"rate_below_expected": "warning"}}},
		modules: map[string]audit.ModuleReading{
			"leaf1:up1": {TemperatureCelsius: number(41), PreFECBER: number(2e-7), Lanes: map[string]audit.LaneReading{"1": {ReceiveWatts: number(0.0005)},
				"2": {ReceiveWatts: number(0), BiasAmperes: number(0.06), PreFECBER: number(1e-6)}}},
			"h1/eth1": {Type: "V P-1", VoltageVolts: number(3.3), Lanes: map[string]audit.LaneReading{"1": {TransmitWatts: number(0.001)}},
				Limits: map[string]audit.ModuleLimits{"temperature": {HighAlarm: number(75), LowAlarm: number(-5)}}}},
		configured: map[string]audit.Configured{
			"leaf1:up1": {Settings: map[string]string{"DSCP map": "ROCE", "map of traffic classes to queues": "Q", "PFC priorities": "3", "ECN profile of queue 3": "LOSSLESS"}},
			"leaf1":     {Settings: map[string]string{"ECN profile LOSSLESS": "ecn ecn_all, min_threshold 1000, max_threshold 2000, probability 5"}},
			"h1/eth1": {Model: "T B", Settings: map[string]string{"driver": "mlx5_core", "firmware": "28.1", "PCIe width": "x8", "PCIe speed": "32 GT/s", "pause frames obeyed": "no",
				"FEC rs enabled": "yes"}}}}
	for at, p := range got.ports { // increase extrapolates
		if p.PauseFrames != nil && *p.PauseFrames > 350 && *p.PauseFrames < 370 {
			*p.PauseFrames = 360
		}
		got.ports[at] = p
	}
	if !reflect.DeepEqual(got, want) || len(said) > 0 {
		t.Errorf("%+v\nwant\n%+v; said %q", got, want, said)
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
