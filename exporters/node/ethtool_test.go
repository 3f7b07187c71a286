package node

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mdlayher/netlink"

	"github.com/graylink/graylink/internal/nicethtool/ethtooltest"
	"github.com/graylink/graylink/internal/nicethtool/module"
	"github.com/graylink/graylink/internal/nodeagent/health"
	"github.com/graylink/graylink/internal/nodeagent/health/healthtest"
)

// qsfpDD returns the memory of a CMIS module whose first lane is dark.
func qsfpDD() module.Image {
	img := module.Image{}
	block := func(bank, page uint8, upper bool) []byte {
		b := make([]byte, module.Half)
		img[module.Block{Address: module.A0, Bank: bank, Page: page, Upper: upper}] = b
		return b
	}
	low, p0, p1 := block(0, 0, false), block(0, 0, true), block(0, 1, true)
	block(0, 2, true)
	p11 := block(0, 0x11, true)
	low[0], low[1], low[3], low[14] = 0x18, 0x50, 3<<1, 45 // QSFP-DD, 5.0, ready, 45 C
	copy(p0[1:], "ACME            ")
	copy(p0[20:], "PART            A1SERIAL          ")
	for _, v := range p0[:94] {
		p0[94] += v // checksum of 128 to 221
	}
	p1[158-128], p1[159-128], p1[160-128] = 1<<1, 1, 1<<2 // loss of signal; temperature; receive power
	p11[147-128] = 1                                      // loss of signal of lane 1
	for i := 1; i < 8; i++ {
		p11[186-128+2*i] = 0x20 // 8192, of 0.1 uW
	}
	return img
}

func TestEthtoolSeries(t *testing.T) {
	k := &ethtooltest.Kernel{}
	frames := ethtooltest.EncodeAttributes(func(e *netlink.AttributeEncoder) {
		e.Uint8(3, 1)
		e.Nested(5, func(e *netlink.AttributeEncoder) error { e.Uint64(3, 77); return nil })
	})
	fec := ethtooltest.EncodeAttributes(func(e *netlink.AttributeEncoder) {
		e.Uint32(4, 50)
		e.Nested(5, func(e *netlink.AttributeEncoder) error {
			e.Bytes(2, []byte{3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0}) // little-endian, as the machines that we test on
			return nil
		})
	})
	link := ethtooltest.EncodeAttributes(func(e *netlink.AttributeEncoder) { e.Uint8(5, 4); e.Uint32(7, 6) })
	f := &ethtooltest.Interface{Driver: "mlx5_core", Names: []string{"rx_discards_phy", "outbound_pci_stalled_rd", "rx0_packets", "strange"}, Values: []uint64{11, 50, 1, 2},
		Replies: map[uint8][][]byte{21: {frames}, 29: {fec}, 6: {link}}, Module: qsfpDD()}
	k.SetInterface("eno3", f)
	p := newPatient(t, "h100", func(o *health.Options) { o.Ethtool.Mode, o.Ethtool.Kernel = health.EthtoolOn, k })
	p.PollFor(time.Second)
	ask := func() string {
		p.PollEthtool(healthtest.Start)
		return p.exposition()
	}
	got := ask()
	for _, want := range []string{
		`fabric_nic_driver_statistic_total{counter="rx_discards_phy",nic="h1/eno3"} 11`, "!outbound_pci_stalled_rd", "!rx0_packets", "!strange", `graylink_node_nic_ethtool_statistics_left_out{nic="h1/eno3"} 2`,
		`fabric_nic_pause_frames_total{direction="receive",nic="h1/eno3"} 77`, `!direction="transmit",nic="h1/eno3"`,
		`fabric_nic_fec_mode{is="active",mode="rs",nic="h1/eno3"} 1`, `fabric_nic_fec_mode{is="active",mode="baser",nic="h1/eno3"} 0`, `!fabric_nic_fec_mode{is="configured"`,
		`fabric_nic_port_fec_corrected_blocks_total{nic="h1/eno3"} 3`, `fabric_nic_port_lane_fec_corrected_blocks_total{lane="2",nic="h1/eno3"} 2`, `!fec_uncorrectable`,
		`fabric_nic_link_down_events_total{nic="h1/eno3"} 6`, `fabric_nic_link_extended_state{nic="h1/eno3",state="no cable",substate=""} 1`,
		`fabric_nic_module_info{nic="h1/eno3",oui="",part="PART",revision="A1",serial="SERIAL",standard="CMIS 5.0",type="QSFP-DD",vendor="ACME"} 1`,
		`fabric_nic_module_temperature_celsius{nic="h1/eno3"} 45`, `!fabric_nic_module_voltage_volts`, `!fabric_nic_module_transmit_power_watts`,
		`fabric_nic_module_receive_power_watts{lane="1",nic="h1/eno3"} 0`, `fabric_nic_module_receive_power_watts{lane="2",nic="h1/eno3"} 0.0008192`,
		`fabric_nic_module_flag{flag="receive_loss_of_signal",lane="1",nic="h1/eno3"} 1`, `!flag="receive_loss_of_signal",lane="2"`,
		`fabric_nic_module_state{cause="",nic="h1/eno3",state="ModuleReady"} 1`, `graylink_node_nic_ethtool_errors_total{why="unreadable"} 0`,
	} {
		if not, is := strings.CutPrefix(want, "!"); is == strings.Contains(got, not) {
			t.Errorf("%s", want)
		}
	}

	f.Errors = map[int]error{31: syscall.EPERM, 29: syscall.EIO}
	ask()
	got = ask()
	for _, want := range []string{`graylink_node_nic_ethtool_errors_total{why="unreadable"} 2`, `graylink_node_nic_ethtool_denied{part="module"} 1`, `!fabric_nic_module_`, `!fabric_nic_fec_`, `!_fec_`, "rx_discards_phy"} {
		if not, is := strings.CutPrefix(want, "!"); is == strings.Contains(got, not) {
			t.Errorf("%s", want)
		}
	}
	log := p.Log()
	if n := strings.Count(log, "CAP_NET_ADMIN"); n != 1 {
		t.Errorf("the missing privilege is logged %d times", n)
	}
	if n := strings.Count(log, "ethtool eno3 fec"); n != 1 {
		t.Errorf("the failing part is logged %d times", n)
	}
}

func TestDriverCounter(t *testing.T) {
	for name, want := range map[string]bool{"rx_packets": true, "rx_discards_phy": true, "rx_err_lane_0_phy": true, "rx_prio3_pause": true, "rx_prio3_pause_duration": true, "link_down_events_phy": true,
		"rx_out_of_buffer": true, "tx_vport_rdma_unicast_bytes": true, "rx_64_bytes_phy": true, "outbound_pci_stalled_rd": false, "outbound_pci_stalled_rd_events": true, "peer_ifindex": false,
		"link_speed": false, "tx_pending_packets": false, "rx_ring_max_packets": false, "temperature": false, "": false, "7": false, "port.rx_dropped": true, "rx_xdp_redirect": true} {
		if got := driverCounter(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
