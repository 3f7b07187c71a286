package node

import "github.com/graylink/graylink/internal/csig"

// signalCollector publishes what in-band signals of the node's flows say.
type signalCollector struct{ profile *csig.Profile }

func newSignalCollector(from *sources) collector {
	if from.signalProfile == nil {
		return nil
	}
	return signalCollector{from.signalProfile}
}

// addSeries implements collector.
func (c signalCollector) addSeries(s *scrape) error {
	families := pointFamilies{}
	for _, p := range s.Signals().AppendPoints(nil, c.profile) {
		families.addPoint(s.exposition, &p)
	}
	return nil
}
