package observe

import (
	"slices"
	"strconv"
	"strings"

	"github.com/graylink/graylink/internal/csig"
)

// Family describes a family of series.
type Family struct {
	Name    string // Prometheus name
	Help    string
	Counter bool     // a gauge otherwise
	Labels  []string // in order
}

// Point is a sample of a family.
type Point struct {
	*Family
	Values []string // of Labels
	Value  float64
}

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
	packets = &Family{"fabric_csig_packets_total",
		"Packets that arrived with a tag that could be used, by its signal, format and locator.", true, packetLabels}
	bandwidth = &Family{"fabric_csig_available_bytes_per_second",
		"Least available bandwidth among the hops of a path in the last window.", false, boundLabels}
	share = &Family{"fabric_csig_available_ratio",
		"Least available share of a link's speed among the hops of a path in the last window.", false, boundLabels}
	delay = &Family{"fabric_csig_hop_delay_seconds",
		"Largest delay of a single hop of a path in the last window.", false, boundLabels}
	info = &Family{"fabric_csig_locator_info",
		"Ports that have a locator by the profile, if tags of flows had it; always 1.", false, locatorLabels}
	dropped = &Family{"fabric_csig_dropped_total",
		"Tags that arrived and are not used, by reason.", true, []string{"nic", "reason"}}
	downPorts = &Family{"fabric_csig_port_down_info",
		"Ports that were reported to be down by tags of the last window or the present one; always 1.", false, []string{"port"}}
	supported = &Family{"fabric_csig_path_supported",
		"Whether tagged packets arrive where others do; absent while that is unknown.", false, flowLabels}
	dropHops = &Family{"fabric_csig_tag_drop_info",
		"Address of the switch at which tagged packets of an unsupported path end; always 1.", false, dropLabels}
	capturedPackets = &Family{"graylink_csig_captured_packets_total",
		"Tagged frames that the kernel had for the captures of a NIC.", true, []string{"nic"}}
	captureDrops = &Family{"graylink_csig_capture_drops_total",
		"Tagged frames that did not fit into the buffers of the captures of a NIC.", true, []string{"nic"}}
	profiles = &Family{"graylink_csig_profile_info",
		"Hash of the profile by which in-band signals are read; always 1.", false, []string{"hash"}}
)

// Families lists all families, by name.
func Families() []*Family {
	out := []*Family{packets, bandwidth, share, delay, info, dropped, downPorts, supported, dropHops, capturedPackets,
		captureDrops, profiles}
	slices.SortFunc(out, func(a, b *Family) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// scales has the family of each signal's value, and by what it is divided. Queue has none.
var scales = [csig.Signals]struct {
	family  *Family
	divisor float64
}{csig.Bandwidth: {bandwidth, 8}, csig.Share: {share, csig.Million}, csig.Delay: {delay, 1e9}}

// AppendPoints appends the samples of statistics of tags by a profile.
func (s *Stats) AppendPoints(out []Point, p *csig.Profile) []Point {
	seen := map[locator]bool{}
	for i := range s.Flows {
		out = s.Flows[i].appendPoints(out, seen)
	}
	for f, all := range map[csig.Format]map[string]uint16{csig.Compact: p.CompactLocators, csig.Wide: p.WideLocators} {
		for port, l := range all {
			if seen[locator{f, l}] {
				sw, name, _ := strings.Cut(port, ":")
				out = append(out, Point{info, []string{f.String(), strconv.Itoa(int(l)), name, sw}, 1})
			}
		}
	}
	for _, n := range s.NICs {
		for _, why := range Reasons() {
			out = append(out, Point{dropped, []string{n.NIC, why.String()}, float64(n.Dropped[why])})
		}
		if c := n.Capture; c != nil {
			out = append(out, Point{capturedPackets, []string{n.NIC}, float64(c.Packets)}, Point{captureDrops, []string{n.NIC}, float64(c.Drops)})
		}
	}
	for _, port := range s.DownPorts {
		out = append(out, Point{downPorts, []string{port}, 1})
	}
	return append(out, Point{profiles, []string{s.ProfileHash}, 1})
}

// dataFlow is the value of the label flow for packets that are not of probes.
const dataFlow = "data"

// appendPoints appends the samples of a flow, and adds the locators of its tags to those seen.
func (f *FlowStats) appendPoints(out []Point, seen map[locator]bool) []Point {
	flow := dataFlow
	if !f.Data {
		flow = strconv.Itoa(f.Number)
	}
	for i := range f.Directions {
		d, direction := &f.Directions[i], directionNames[i]
		for _, c := range d.Packets {
			seen[locator{c.Format, c.Locator}] = true
			values := []string{direction, f.Dst, flow, c.Format.String(), strconv.Itoa(int(c.Locator)), c.Signal.String(), f.Src}
			out = append(out, Point{packets, values, float64(c.Packets)})
		}
		for signal, v := range d.Last {
			scale := scales[signal]
			if !v.Known || scale.family == nil {
				continue
			}
			out = append(out, Point{scale.family, []string{"lower", direction, f.Dst, flow, f.Src}, float64(v.Lower) / scale.divisor})
			if v.HasUpper {
				out = append(out, Point{scale.family, []string{"upper", direction, f.Dst, flow, f.Src}, float64(v.Upper) / scale.divisor})
			}
		}
	}
	switch f.Supported {
	case Supported:
		out = append(out, Point{supported, []string{f.Dst, flow, f.Src}, 1})
	case Unsupported:
		out = append(out, Point{supported, []string{f.Dst, flow, f.Src}, 0})
		if f.DroppedAt.IsValid() {
			out = append(out, Point{dropHops, []string{f.DroppedAt.String(), f.Dst, flow, f.Src}, 1})
		}
	}
	return out
}
