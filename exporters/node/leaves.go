package node

import (
	"strconv"

	dto "github.com/prometheus/client_model/go"

	"github.com/graylink/graylink/internal/probe"
)

// leafCollector publishes the sums over the edges from one leaf to another, by tier.
type leafCollector struct{}

func newLeafCollector(*sources) collector { return leafCollector{} }

// addSeries implements collector.
func (leafCollector) addSeries(s *scrape) error {
	f := newSumFamilies(s.exposition, sumNames{owd: "fabric_leaf_pair_owd_seconds", sent: "fabric_leaf_pair_probe_sent_total", lost: "fabric_leaf_pair_probe_lost_total",
		ecn: "fabric_leaf_pair_probe_ecn_marked_total", between: "a NIC's leaf and a peer leaf"})
	sums := sumEdges(s.snapshotNICs(), func(n *probe.NICStats, e *probe.EdgeStats) sumKey {
		return sumKey{leaf: n.Leaf, peerLeaf: e.PeerLeaf, class: e.Class, plane: e.Plane, tier: e.Tier}
	})
	for _, sum := range sums {
		f.addSum(sum, func(side string) []*dto.LabelPair {
			return s.labelPairs("class", sum.class, "leaf", sum.leaf, "peer_leaf", sum.peerLeaf, "plane", sum.plane, "side", side, "tier", strconv.Itoa(sum.tier))
		})
	}
	return nil
}

// sumKey has what the edges of a sum have in common.
type sumKey struct {
	nic, leaf, peerLeaf, class, plane string
	tier                              int
}

// edgeSum represents the sum over the edges of one key, by direction.
type edgeSum struct {
	sumKey
	sent, lost, ecn [2]uint64
	owd             [2]probe.Delays
}

// sumEdges returns the sums over edges, in the order in which their keys first appear.
func sumEdges(nics []probe.NICStats, keyOf func(*probe.NICStats, *probe.EdgeStats) sumKey) (sums []*edgeSum) {
	at := map[sumKey]*edgeSum{}
	for i := range nics {
		for j := range nics[i].Edges {
			e := &nics[i].Edges[j]
			k := keyOf(&nics[i], e)
			s := at[k]
			if s == nil {
				s = &edgeSum{sumKey: k}
				at[k], sums = s, append(sums, s)
			}
			for d, sent := range [2]uint64{e.Sent, e.RepliesSent} {
				s.sent[d] += sent
				s.lost[d] += e.Lost[d]
				s.ecn[d] += e.ECN[d]
				s.owd[d].Hardware.Add(&e.OWD[d].Hardware)
				s.owd[d].Kernel.Add(&e.OWD[d].Kernel)
				s.owd[d].User.Add(&e.OWD[d].User)
			}
		}
	}
	return sums
}

// sumFamilies holds the families of sums.
type sumFamilies struct {
	*exposition
	owd, sent, lost, ecn *dto.MetricFamily
}

// sumNames holds the names of the families of sums, and what the sums are between.
type sumNames struct{ owd, sent, lost, ecn, between string }

func newSumFamilies(x *exposition, of sumNames) sumFamilies {
	return sumFamilies{exposition: x,
		owd:  x.histogramFamily(of.owd, "One-way delay between "+of.between+" in seconds; side is this node's end of the path."),
		sent: x.counterFamily(of.sent, "Probes that were sent (source), or replies that were sent back (destination), between "+of.between+"."),
		lost: x.counterFamily(of.lost, "Probes or replies lost between "+of.between+"."),
		ecn:  x.counterFamily(of.ecn, "Probes or replies marked as congestion experienced between "+of.between+".")}
}

// addSum adds the series of a sum for both sides.
func (f sumFamilies) addSum(s *edgeSum, labelsOf func(side string) []*dto.LabelPair) {
	for d, side := range sideNames {
		labels := labelsOf(side)
		f.addCounter(f.sent, float64(s.sent[d]), labels)
		f.addCounter(f.lost, float64(s.lost[d]), labels)
		f.addCounter(f.ecn, float64(s.ecn[d]), labels)
		for _, k := range stampedDelays(&s.owd[d]) {
			f.addHistogram(f.owd, k.h, withLabel(labels, f.labelPair("timestamp", k.kind)))
		}
	}
}
