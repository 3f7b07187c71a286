package node

import (
	dto "github.com/prometheus/client_model/go"

	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/window"
)

// nicSumCollector publishes the sums over all edges of each NIC.
type nicSumCollector struct{}

func newNICSumCollector(*sources) collector { return nicSumCollector{} }

// addSeries implements collector.
func (nicSumCollector) addSeries(s *scrape) error {
	f := newSumFamilies(s.exposition, sumNames{owd: "fabric_nic_owd_seconds", sent: "fabric_nic_probe_sent_total", lost: "fabric_nic_probe_lost_total",
		ecn: "fabric_nic_probe_ecn_marked_total", between: "a NIC and its peers"})
	sums := sumEdges(s.snapshotNICs(), func(n *probe.NICStats, e *probe.EdgeStats) sumKey {
		return sumKey{nic: n.NIC, leaf: n.Leaf, class: e.Class, plane: e.Plane}
	})
	for _, sum := range sums {
		f.addSum(sum, func(side string) []*dto.LabelPair {
			return s.labelPairs("class", sum.class, "leaf", sum.leaf, "nic", sum.nic, "plane", sum.plane, "side", side)
		})
	}
	return nil
}

// nicFlowCollector publishes how many flows of each NIC are in which condition.
type nicFlowCollector struct{}

func newNICFlowCollector(*sources) collector { return nicFlowCollector{} }

// addSeries implements collector.
func (nicFlowCollector) addSeries(s *scrape) error {
	if s.Windows == nil {
		return nil
	}
	flows := s.gaugeFamily("fabric_nic_flows", "Flows that a NIC probes, by what their newest windows show: healthy, lossy, shifted, silent or unjudged.")
	counts := s.Windows.CountConditions()
	nics := s.snapshotNICs()
	for i := range nics {
		n := &nics[i]
		for _, c := range window.Conditions {
			s.addGauge(flows, float64(counts[n.NIC][c]), s.labelPairs("condition", string(c), "nic", n.NIC, "plane", n.Plane))
		}
	}
	return nil
}
