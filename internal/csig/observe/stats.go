package observe

import (
	"net/netip"
	"slices"

	"github.com/graylink/graylink/internal/csig"
)

// Stats represents what in-band signals said up to one time, as series are made of it. It shares no memory with an Observer or its flows,
// so that it may be kept and read while they go on.
type Stats struct {
	ProfileHash string
	NICs        []NICStats
	Flows       []FlowStats
	DownPorts   []string // switch:port, sorted: those that tags of the last whole window or the present one report to be down
}

// NICStats represents what arrived at a NIC and is of no flow: the tags that are not used, and the frames of captures.
type NICStats struct {
	NIC     string
	Dropped DropCounts
	Capture *CaptureCounts // nil if frames of the NIC are not captured
}

// CaptureCounts are those of the kernel for the captures of a NIC's tagged frames.
type CaptureCounts struct {
	Packets uint64 // frames that the kernel had for the captures
	Drops   uint64 // those that did not fit into the buffers
}

// DropCounts has the number of tags that are not used, by reason. That of Used is always 0.
type DropCounts [reasons]uint64

// Support says whether tagged packets of a flow arrive where its packets without a tag do.
type Support uint8

// What is known of a path.
const (
	SupportUnknown Support = iota // too few packets were compared
	Supported
	Unsupported
)

func (s Support) String() string { return [...]string{"unknown", "supported", "unsupported"}[s] }

// FlowStats represents what the tags of a flow said. For data that is not of probes it represents all flows from one NIC to the other.
type FlowStats struct {
	Src, Dst   string            // NICs
	Number     int               // of the flow, as in fabric.FlowID; 0 with Data
	Data       bool              // packets that are no probes
	Directions [2]DirectionStats // forward, reverse
	Supported  Support
	DroppedAt  netip.Addr // of the switch at which tagged packets of an unsupported path end; invalid if it is not known
}

// DirectionStats represents what the tags of a flow said in one direction.
type DirectionStats struct {
	Packets []SignalPackets // since the flow was first observed, by signal, then by format and locator
	Last    [csig.Signals]LastValue
}

// SignalPackets is the number of packets whose tag had a signal and a locator.
type SignalPackets struct {
	Signal csig.Signal
	LocatorCount
}

// LastValue is the worst value of a signal in the last whole window of a flow. Without Known there was none.
type LastValue struct {
	Value
	Known bool
}

// Fill takes what a flow says at a time, in nanoseconds of the clock of Flow.Add. It keeps no reference to the flow, and uses the memory of
// Packets again. A nil flow, which is one too many, says nothing.
func (d *DirectionStats) Fill(f *Flow, now int64) {
	d.Packets, d.Last = d.Packets[:0], [csig.Signals]LastValue{}
	if f == nil {
		return
	}
	for s := range csig.Signal(csig.Signals) {
		first := len(d.Packets)
		for _, c := range f.packets[s] {
			d.Packets = append(d.Packets, SignalPackets{s, c})
		}
		slices.SortFunc(d.Packets[first:], func(a, b SignalPackets) int {
			if a.Format != b.Format {
				return int(a.Format) - int(b.Format)
			}
			return int(a.Locator) - int(b.Locator)
		})
		d.Last[s].Value, d.Last[s].Known = f.LastValue(s, now)
	}
}

// DownPorts returns the ports (switch:port), sorted, that tags of the last whole window before a time or of the present one report to be
// down.
func (o *Observer) DownPorts(now int64) []string {
	var out []string
	for l, d := range o.down {
		if d.window > 0 && d.window >= o.windowOf(now)-1 {
			out = append(out, o.profile.DownPort(l.format, l.number))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
