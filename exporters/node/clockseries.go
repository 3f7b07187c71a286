package node

import (
	dto "github.com/prometheus/client_model/go"

	"github.com/graylink/graylink/internal/clocksync"
	"github.com/graylink/graylink/internal/nodeagent"
)

// clockCollector publishes the state of the clocks that stamp at the NICs.
type clockCollector struct{}

func newClockCollector(*sources) collector { return clockCollector{} }

// addSeries implements collector.
func (clockCollector) addSeries(s *scrape) error {
	f := newClockFamilies(s.exposition)
	nics := s.snapshotNICs()
	configured := s.Config().ErrorBound
	known := 0
	for i := range nics {
		nic := nics[i].NIC
		if s.Clocks == nil {
			if configured != nil {
				f.addGauge(f.bound, configured.Seconds(), f.labelPairs("clock", nic))
			}
			continue
		}
		if v, ok := s.Clocks.ViewOf(nic); ok {
			f.addClock(nic, &v)
			known++
		}
	}
	if s.Clocks != nil && known < len(nics) {
		return errNothingRead
	}
	return nil
}

// clockFamilies holds the families of the clocks.
type clockFamilies struct {
	*exposition
	bound, offset, whole, drift, allowance, states, steps, drifts *dto.MetricFamily
}

func newClockFamilies(x *exposition) *clockFamilies {
	return &clockFamilies{exposition: x,
		bound:     x.gaugeFamily("fabric_clock_error_bound_seconds", "Bound of the clock's error against the frame in seconds, without asymmetry, or as configured."),
		offset:    x.gaugeFamily("fabric_clock_offset_seconds", "Offset of the NIC's clock from the frame in seconds, without its whole seconds."),
		whole:     x.gaugeFamily("graylink_node_clock_whole_seconds", "Whole seconds of the offset of the NIC's clock from the frame, when first known."),
		drift:     x.gaugeFamily("fabric_clock_drift_ratio", "Rate by which the NIC's clock gains on the frame."),
		allowance: x.gaugeFamily("fabric_clock_asymmetry_allowance_seconds", "Configured allowance for the clock error from asymmetric paths, in seconds."),
		states:    x.gaugeFamily("fabric_clock_state", "State of the NIC's clock: 1 for the current state and 0 for the others."),
		steps:     x.counterFamily("fabric_clock_steps_total", "Steps of the NIC's clock."),
		drifts:    x.counterFamily("fabric_clock_drift_changes_total", "Sudden changes of the rate of the NIC's clock.")}
}

// addClock adds the series of the clock that stamps at a NIC.
func (f *clockFamilies) addClock(nic string, v *nodeagent.ClockView) {
	clock := f.labelPairs("clock", nic)
	for _, state := range clocksync.StateNames() {
		f.addGauge(f.states, zeroOrOne(state == v.State.String()), f.labelPairs("clock", nic, "state", state))
	}
	if v.Counted {
		f.addCounter(f.steps, float64(v.Steps), clock)
		f.addCounter(f.drifts, float64(v.Drifts), clock)
	}
	if v.Known {
		f.addGauge(f.offset, float64(v.Offset)/1e9-v.WholeSeconds, clock)
		f.addGauge(f.whole, v.WholeSeconds, clock)
		f.addGauge(f.drift, v.Drift, clock)
		f.addGauge(f.bound, float64(v.Bound)/1e9, clock)
		f.addGauge(f.allowance, float64(v.Allowance)/1e9, clock)
	}
}

// chronyCollector publishes the samples for chronyd.
type chronyCollector struct{ counts func() map[string]uint64 }

func newChronyCollector(from *sources) collector {
	if from.chrony == nil {
		return nil
	}
	return chronyCollector{from.chrony}
}

// addSeries implements collector.
func (c chronyCollector) addSeries(s *scrape) error {
	samples := s.counterFamily("graylink_node_chrony_samples_total", "Windows with a locked system clock, by result of the sample for chronyd.")
	counts := c.counts()
	for _, result := range sortedKeys(counts) {
		s.addCounter(samples, float64(counts[result]), s.labelPairs("result", result))
	}
	return nil
}
