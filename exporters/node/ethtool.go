package node

import (
	"slices"
	"strconv"

	dto "github.com/prometheus/client_model/go"

	"github.com/graylink/graylink/internal/nicethtool"
	"github.com/graylink/graylink/internal/nichw"
	"github.com/graylink/graylink/internal/nodeagent/health"
)

// usesEthtool reports whether interfaces are read through ethtool.
func usesEthtool(from *sources) bool { return from.health != nil && from.health().Ethtool != nil }

// ethtoolPollCollector publishes how the node's interfaces are read through ethtool.
type ethtoolPollCollector struct{}

func newEthtoolPollCollector(from *sources) collector {
	if !usesEthtool(from) {
		return nil
	}
	return ethtoolPollCollector{}
}

// addSeries implements collector.
func (ethtoolPollCollector) addSeries(s *scrape) error {
	e := s.snapshotHealth().Ethtool
	var (
		failed  = s.counterFamily("graylink_node_nic_ethtool_errors_total", "Parts of interfaces that could not be read through ethtool, by reason.")
		polls   = s.counterFamily("graylink_node_nic_ethtool_polls_total", "Polls of the interfaces through ethtool.")
		took    = s.gaugeFamily("graylink_node_nic_ethtool_poll_seconds", "Duration of the last poll through ethtool in seconds.")
		hanging = s.gaugeFamily("graylink_node_nic_ethtool_hanging", "Requests through ethtool that drivers have not answered.")
		denied  = s.gaugeFamily("graylink_node_nic_ethtool_denied", "Parts of interfaces that cannot be read without CAP_NET_ADMIN.")
	)
	for _, why := range readErrors() {
		s.addCounter(failed, float64(e.Errors[why]), s.labelPairs("why", string(why)))
	}
	for _, p := range e.Parts {
		part := s.labelPairs("part", p.Name)
		s.addCounter(polls, float64(p.Polls), part)
		if p.Last == nil {
			continue
		}
		s.addGauge(took, p.Took.Seconds(), part)
		s.addGauge(hanging, float64(p.Last.Hanging), part)
		for _, name := range p.Last.Denied {
			s.addGauge(denied, 1, s.labelPairs("part", name))
		}
	}
	return nil
}

// eachEthtoolInterface calls f for the interfaces that were read through ethtool, with their names in the fabric. It
// leaves out those that are gone since.
func eachEthtoolInterface(e *health.EthtoolState, f func(nic string, i *nicethtool.Interface)) {
	for _, p := range e.Parts {
		if p.Last == nil {
			continue
		}
		for i := range p.Last.Interfaces {
			if nic, known := e.NICs[p.Last.Interfaces[i].Name]; known {
				f(nic, &p.Last.Interfaces[i])
			}
		}
	}
}

// ethtoolLinkCollector publishes the drivers' statistics, FEC, pause frames and links of the node's interfaces.
type ethtoolLinkCollector struct{}

func newEthtoolLinkCollector(from *sources) collector {
	if !usesEthtool(from) {
		return nil
	}
	return ethtoolLinkCollector{}
}

// addSeries implements collector.
func (ethtoolLinkCollector) addSeries(s *scrape) error {
	e := s.snapshotHealth().Ethtool
	statistics, fec, pause, link := newStatisticFamilies(s.exposition), newFECFamilies(s.exposition), newPauseFamilies(s.exposition), newLinkFamilies(s.exposition)
	eachEthtoolInterface(e, func(nic string, i *nicethtool.Interface) {
		if i.Statistics != nil {
			statistics.addStatistics(nic, i.Statistics)
		}
		if i.FEC != nil {
			fec.addFEC(nic, i.FEC)
		}
		if i.Pause != nil {
			pause.addPause(nic, i.Pause)
		}
		link.addLink(nic, i)
	})
	return nil
}

// statisticFamilies holds the families of the drivers' statistics.
type statisticFamilies struct {
	*exposition
	statistic, unclassified *dto.MetricFamily
}

func newStatisticFamilies(x *exposition) *statisticFamilies {
	return &statisticFamilies{exposition: x,
		statistic:    x.counterFamily("fabric_nic_driver_statistic_total", "Driver statistics (ethtool -S) whose names show that they are counters, under the driver's names."),
		unclassified: x.gaugeFamily("graylink_node_nic_ethtool_statistics_left_out", "Driver statistics, except those of queues, that are left out because they may not be counters.")}
}

func (f *statisticFamilies) addStatistics(nic string, all []nichw.Counter) {
	left := 0
	for _, c := range all {
		if driverCounter(c.Name) {
			f.addCounter(f.statistic, float64(c.Value), f.labelPairs("counter", c.Name, "nic", nic))
		} else {
			left++
		}
	}
	f.addGauge(f.unclassified, float64(left), f.labelPairs("nic", nic))
}

// fecFamilies holds the families of forward error correction.
type fecFamilies struct {
	*exposition
	mode *dto.MetricFamily
	// The families of the whole port, and of its lanes.
	blocks, lost, bits, laneBlocks, laneLost, laneBits *dto.MetricFamily
}

func newFECFamilies(x *exposition) *fecFamilies {
	return &fecFamilies{exposition: x,
		mode:       x.gaugeFamily("fabric_nic_fec_mode", "Whether the FEC mode is active, and whether it is configured."),
		blocks:     x.counterFamily("fabric_nic_port_fec_corrected_blocks_total", "Blocks that FEC corrected."),
		lost:       x.counterFamily("fabric_nic_port_fec_uncorrectable_blocks_total", "Blocks that FEC could not correct."),
		bits:       x.counterFamily("fabric_nic_port_fec_corrected_bit_errors_total", "Bits that FEC corrected."),
		laneBlocks: x.counterFamily("fabric_nic_port_lane_fec_corrected_blocks_total", "Blocks of a lane that FEC corrected; lanes count from 1."),
		laneLost:   x.counterFamily("fabric_nic_port_lane_fec_uncorrectable_blocks_total", "Blocks of a lane that FEC could not correct; lanes count from 1."),
		laneBits:   x.counterFamily("fabric_nic_port_lane_fec_corrected_bit_errors_total", "Bits of a lane that FEC corrected; lanes count from 1.")}
}

func (f *fecFamilies) addFEC(nic string, v *nicethtool.FEC) {
	f.addLanes(f.blocks, f.laneBlocks, v.Corrected, nic)
	f.addLanes(f.lost, f.laneLost, v.Uncorrectable, nic)
	f.addLanes(f.bits, f.laneBits, v.CorrectedBits, nic)
	for _, mode := range nicethtool.FECModes {
		if v.Configured != nil {
			f.addGauge(f.mode, zeroOrOne(slices.Contains(v.Configured, mode)), f.labelPairs("is", "configured", "mode", mode, "nic", nic))
		}
		if v.Active != "" {
			f.addGauge(f.mode, zeroOrOne(v.Active == mode), f.labelPairs("is", "active", "mode", mode, "nic", nic))
		}
	}
	if v.Auto != nil {
		f.addGauge(f.mode, zeroOrOne(*v.Auto), f.labelPairs("is", "configured", "mode", "auto", "nic", nic))
	}
}

// addLanes adds a count of the whole port and of each lane. It adds nothing if the count is not known.
func (f *fecFamilies) addLanes(port, lane *dto.MetricFamily, v *nicethtool.Lanes, nic string) {
	if v == nil {
		return
	}
	f.addCounter(port, float64(v.Total), f.labelPairs("nic", nic))
	for i, n := range v.Lanes {
		f.addCounter(lane, float64(n), f.labelPairs("lane", strconv.Itoa(i+1), "nic", nic))
	}
}

// pauseFamilies holds the families of pause frames.
type pauseFamilies struct {
	*exposition
	frames, enabled *dto.MetricFamily
}

func newPauseFamilies(x *exposition) *pauseFamilies {
	return &pauseFamilies{exposition: x,
		frames:  x.counterFamily("fabric_nic_pause_frames_total", "Pause frames of IEEE 802.3."),
		enabled: x.gaugeFamily("fabric_nic_pause_enabled", "Whether pause frames are obeyed (receive), sent (transmit), and negotiated (autoneg).")}
}

func (f *pauseFamilies) addPause(nic string, v *nicethtool.Pause) {
	for _, c := range []struct {
		direction string
		frames    *uint64
	}{{"receive", v.ReceiveFrames}, {"transmit", v.TransmitFrames}} {
		if c.frames != nil {
			f.addCounter(f.frames, float64(*c.frames), f.labelPairs("direction", c.direction, "nic", nic))
		}
	}
	for _, e := range []struct {
		what    string
		enabled *bool
	}{{"autoneg", v.Autoneg}, {"receive", v.Receive}, {"transmit", v.Transmit}} {
		if e.enabled != nil {
			f.addGauge(f.enabled, zeroOrOne(*e.enabled), f.labelPairs("nic", nic, "what", e.what))
		}
	}
}

// linkFamilies holds the families of links.
type linkFamilies struct {
	*exposition
	duplex, lanes, quality, downs, extended *dto.MetricFamily
}

func newLinkFamilies(x *exposition) *linkFamilies {
	return &linkFamilies{exposition: x,
		duplex:   x.gaugeFamily("fabric_nic_link_full_duplex", "Whether the link is full duplex."),
		lanes:    x.gaugeFamily("fabric_nic_link_lanes", "Lanes of the link."),
		quality:  x.gaugeFamily("fabric_nic_link_signal_quality", "Signal quality index, current and maximum."),
		downs:    x.counterFamily("fabric_nic_link_down_events_total", "Times the link went down, as the device counts them."),
		extended: x.gaugeFamily("fabric_nic_link_extended_state", "Reason why the link is down, as the driver reports it.")}
}

func (f *linkFamilies) addLink(nic string, i *nicethtool.Interface) {
	if v := i.LinkModes; v != nil {
		if v.Duplex != "" {
			f.addGauge(f.duplex, zeroOrOne(v.Duplex == "full"), f.labelPairs("nic", nic))
		}
		if v.Lanes != nil {
			f.addGauge(f.lanes, float64(*v.Lanes), f.labelPairs("nic", nic))
		}
	}
	if v := i.LinkState; v != nil {
		if v.SQI != nil {
			f.addGauge(f.quality, float64(*v.SQI), f.labelPairs("is", "current", "nic", nic))
		}
		if v.SQIMax != nil {
			f.addGauge(f.quality, float64(*v.SQIMax), f.labelPairs("is", "max", "nic", nic))
		}
		if v.Downs != nil {
			f.addCounter(f.downs, float64(*v.Downs), f.labelPairs("nic", nic))
		}
		if v.State != "" {
			f.addGauge(f.extended, 1, f.labelPairs("nic", nic, "state", v.State, "substate", v.Substate))
		}
	}
}
