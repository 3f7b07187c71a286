package node

import (
	dto "github.com/prometheus/client_model/go"

	"github.com/graylink/graylink/internal/clocksync"
	"github.com/graylink/graylink/internal/window"
)

// summaryCollector publishes a few sums over all NICs of the node. An analyzer reads them in every cycle, and series of
// single NICs only of the nodes where something is not normal.
type summaryCollector struct{}

func newSummaryCollector(*sources) collector { return summaryCollector{} }

// addSeries implements collector.
func (summaryCollector) addSeries(s *scrape) error {
	nics := s.snapshotNICs()
	put := func(f *dto.MetricFamily, v float64) { s.addGauge(f, v, nil) }
	if s.Windows != nil {
		unhealthy, counts := 0, s.Windows.CountConditions()
		for i := range nics {
			for condition, n := range counts[nics[i].NIC] {
				if condition != window.Healthy {
					unhealthy += n
				}
			}
		}
		put(s.gaugeFamily("graylink_node_unhealthy_flows", "Flows that the node probes and does not judge as healthy."), float64(unhealthy))
	}
	late, lost := 0.0, uint64(0)
	for i := range nics {
		n := &nics[i]
		late = max(late, n.Stalled.Seconds())
		for _, packets := range n.Unread {
			lost += packets
		}
		for _, f := range n.Forgers {
			lost += f.Packets
		}
	}
	s.addCounter(s.counterFamily("graylink_node_host_losses_total", "Packets for the node's probe sockets that were dropped unread or unverified, or had a forged HMAC."), float64(lost), nil)
	s.addCounter(s.counterFamily("graylink_node_loop_late_seconds_total", "Time in seconds by which the probe loop that is latest ran late, beyond 20 ms each time."), late, nil)
	if s.Clocks == nil {
		if bound := s.Config().ErrorBound; bound != nil {
			put(s.gaugeFamily("graylink_node_clock_error_bound_seconds", largestBoundHelp), bound.Seconds())
		}
		return nil
	}
	unlocked, changes, bound, known := 0, uint64(0), 0.0, false
	for i := range nics {
		v, ok := s.Clocks.ViewOf(nics[i].NIC)
		if !ok || v.State != clocksync.Locked {
			unlocked++
		}
		if ok && v.Counted {
			changes += uint64(v.Steps) + uint64(v.Drifts)
		}
		if ok && v.Known {
			bound, known = max(bound, float64(v.Bound)/1e9), true
		}
	}
	put(s.gaugeFamily("graylink_node_unlocked_clocks", "Clocks of the node's NICs in another state than locked."), float64(unlocked))
	s.addCounter(s.counterFamily("graylink_node_clock_changes_total", "Steps of the clocks of the node's NICs, and sudden changes of their rates."), float64(changes), nil)
	if known {
		put(s.gaugeFamily("graylink_node_clock_error_bound_seconds", largestBoundHelp), bound)
	}
	return nil
}

const largestBoundHelp = "Largest bound of the error of the node's clocks in seconds, as fabric_clock_error_bound_seconds has it."
