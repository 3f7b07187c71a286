package node

import (
	"strconv"

	dto "github.com/prometheus/client_model/go"

	"github.com/graylink/graylink/internal/probe"
)

// leafCollector publishes the sums over each NIC's edges toward one peer leaf.
type leafCollector struct{}

func newLeafCollector(*sources) collector { return leafCollector{} }

// addSeries implements collector.
func (leafCollector) addSeries(s *scrape) error {
	f := newLeafFamilies(s.exposition)
	nics := s.snapshotNICs()
	for i := range nics {
		f.addNIC(&nics[i])
	}
	return nil
}

// leafFamilies holds the families of the sums.
type leafFamilies struct {
	*exposition
	owd, sent, lost, ecn *dto.MetricFamily
}

func newLeafFamilies(x *exposition) leafFamilies {
	return leafFamilies{exposition: x,
		owd:  x.histogramFamily("fabric_nic_owd_seconds", "One-way delay between a NIC and a peer leaf in seconds; side is the NIC's end of the path."),
		sent: x.counterFamily("fabric_nic_probe_sent_total", "Probes that a NIC sent, or replies that were sent to it, by peer leaf."),
		lost: x.counterFamily("fabric_nic_probe_lost_total", "Probes or replies lost, by peer leaf."),
		ecn:  x.counterFamily("fabric_nic_probe_ecn_marked_total", "Probes or replies marked as congestion experienced, by peer leaf.")}
}

type leafKey struct {
	peerLeaf, class, plane string
	tier                   int
}

// leafSum represents the sum over the edges of one key, by direction.
type leafSum struct {
	leafKey
	sent, lost, ecn [2]uint64
	owd             [2]probe.Delays
}

// sumByLeaf returns the sums over a NIC's edges, in the order in which their keys first appear.
func sumByLeaf(n *probe.NICStats) (sums []*leafSum) {
	at := map[leafKey]*leafSum{}
	for i := range n.Edges {
		e := &n.Edges[i]
		k := leafKey{e.PeerLeaf, e.Class, e.Plane, e.Tier}
		s := at[k]
		if s == nil {
			s = &leafSum{leafKey: k}
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
	return sums
}

func (f leafFamilies) addNIC(n *probe.NICStats) {
	for _, s := range sumByLeaf(n) {
		for d, side := range sideNames {
			labels := f.labelPairs("class", s.class, "leaf", n.Leaf, "nic", n.NIC, "peer_leaf", s.peerLeaf, "plane", s.plane, "side", side, "tier", strconv.Itoa(s.tier))
			f.addCounter(f.sent, float64(s.sent[d]), labels)
			f.addCounter(f.lost, float64(s.lost[d]), labels)
			f.addCounter(f.ecn, float64(s.ecn[d]), labels)
			for _, k := range stampedDelays(&s.owd[d]) {
				f.addHistogram(f.owd, k.h, withLabel(labels, f.labelPair("timestamp", k.kind)))
			}
		}
	}
}
