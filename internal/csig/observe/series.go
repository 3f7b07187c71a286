package observe

import (
	"slices"
	"strconv"
	"strings"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/points"
)

// Labels of families.
var (
	flowLabels     = []string{"dst", "flow", "src"}
	boundLabels    = []string{"bound", "direction", "dst", "flow", "src"}
	packetLabels   = []string{"direction", "dst", "flow", "format", "locator", "signal", "src"}
	dropLabels     = []string{"address", "dst", "flow", "src"}
	locatorLabels  = []string{"format", "locator", "port", "switch"}
	directionNames = [2]string{"forward", "reverse"}
)

// The families of in-band signals (docs/metrics.md).
var (
	packets         = points.NewCounter("fabric_csig_packets_total", "Packets that arrived with a tag that could be used, by its signal, format and locator.", packetLabels...)
	bandwidth       = points.NewGauge("fabric_csig_available_bytes_per_second", "Least available bandwidth among the hops of a path in the last window.", boundLabels...)
	share           = points.NewGauge("fabric_csig_available_ratio", "Least available share of a link's speed among the hops of a path in the last window.", boundLabels...)
	delay           = points.NewGauge("fabric_csig_hop_delay_seconds", "Largest delay of a single hop of a path in the last window.", boundLabels...)
	info            = points.NewGauge("fabric_csig_locator_info", "Ports that have a locator by the profile, if tags of flows had it; always 1.", locatorLabels...)
	dropped         = points.NewCounter("fabric_csig_dropped_total", "Tags that arrived and are not used, by reason.", "nic", "reason")
	downPorts       = points.NewGauge("fabric_csig_port_down_info", "Ports that were reported to be down by tags of the last window or the present one; always 1.", "port")
	supported       = points.NewGauge("fabric_csig_path_supported", "Whether tagged packets arrive where others do; absent while that is unknown.", flowLabels...)
	dropHops        = points.NewGauge("fabric_csig_tag_drop_info", "Address of the switch at which tagged packets of an unsupported path end; always 1.", dropLabels...)
	capturedPackets = points.NewCounter("graylink_csig_captured_packets_total", "Tagged frames that the kernel had for the captures of a NIC.", "nic")
	captureDrops    = points.NewCounter("graylink_csig_capture_drops_total", "Tagged frames that did not fit into the buffers of the captures of a NIC.", "nic")
	profiles        = points.NewGauge("graylink_csig_profile_info", "Hash of the profile by which in-band signals are read; always 1.", "hash")
)

// Families lists all families, by name.
func Families() []*points.Family {
	out := []*points.Family{packets, bandwidth, share, delay, info, dropped, downPorts, supported, dropHops, capturedPackets,
		captureDrops, profiles}
	slices.SortFunc(out, func(a, b *points.Family) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// scales has the family of each signal's value, and by what it is divided. Queue has none.
var scales = [csig.Signals]struct {
	family  *points.Family
	divisor float64
}{csig.Bandwidth: {bandwidth, 8}, csig.Share: {share, csig.Million}, csig.Delay: {delay, 1e9}}

// AppendPoints appends the samples of statistics of tags by a profile.
func (s *Stats) AppendPoints(out []points.Point, p *csig.Profile) []points.Point {
	seen := map[locator]bool{}
	for i := range s.Flows {
		out = s.Flows[i].appendPoints(out, seen)
	}
	for f, all := range map[csig.Format]map[string]uint16{csig.Compact: p.CompactLocators, csig.Wide: p.WideLocators} {
		for port, l := range all {
			if seen[locator{f, l}] {
				sw, name, _ := strings.Cut(port, ":")
				out = append(out, info.NewPoint(1, f.String(), strconv.Itoa(int(l)), name, sw))
			}
		}
	}
	for _, n := range s.NICs {
		for _, why := range Reasons() {
			out = append(out, dropped.NewPoint(float64(n.Dropped[why]), n.NIC, why.String()))
		}
		if c := n.Capture; c != nil {
			out = append(out, capturedPackets.NewPoint(float64(c.Packets), n.NIC), captureDrops.NewPoint(float64(c.Drops), n.NIC))
		}
	}
	for _, port := range s.DownPorts {
		out = append(out, downPorts.NewPoint(1, port))
	}
	return append(out, profiles.NewPoint(1, s.ProfileHash))
}

// dataFlow is the value of the label flow for packets that are not of probes.
const dataFlow = "data"

// appendPoints appends the samples of a flow, and adds the locators of its tags to those seen.
func (f *FlowStats) appendPoints(out []points.Point, seen map[locator]bool) []points.Point {
	flow := dataFlow
	if !f.Data {
		flow = strconv.Itoa(f.Number)
	}
	for i := range f.Directions {
		d, direction := &f.Directions[i], directionNames[i]
		for _, c := range d.Packets {
			seen[locator{c.Format, c.Locator}] = true
			values := []string{direction, f.Dst, flow, c.Format.String(), strconv.Itoa(int(c.Locator)), c.Signal.String(), f.Src}
			out = append(out, packets.NewPoint(float64(c.Packets), values...))
		}
		for signal, v := range d.Last {
			scale := scales[signal]
			if !v.Known || scale.family == nil {
				continue
			}
			out = append(out, scale.family.NewPoint(float64(v.Lower)/scale.divisor, "lower", direction, f.Dst, flow, f.Src))
			if v.HasUpper {
				out = append(out, scale.family.NewPoint(float64(v.Upper)/scale.divisor, "upper", direction, f.Dst, flow, f.Src))
			}
		}
	}
	switch f.Supported {
	case Supported:
		out = append(out, supported.NewPoint(1, f.Dst, flow, f.Src))
	case Unsupported:
		out = append(out, supported.NewPoint(0, f.Dst, flow, f.Src))
		if f.DroppedAt.IsValid() {
			out = append(out, dropHops.NewPoint(1, f.DroppedAt.String(), f.Dst, flow, f.Src))
		}
	}
	return out
}
