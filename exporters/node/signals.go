package node

import "github.com/graylink/graylink/internal/csig/observe"

// signalCollector publishes what in-band signals of the node's flows say.
type signalCollector struct{ points func() []observe.Point }

func newSignalCollector(from *sources) collector {
	if from.signals == nil {
		return nil
	}
	return signalCollector{from.signals}
}

// addSeries implements collector.
func (c signalCollector) addSeries(s *scrape) error {
	families := pointFamilies{}
	for _, p := range c.points() {
		families.addPoint(s.exposition, p.Name, p.Help, p.Counter, p.Labels, p.Values, p.Value)
	}
	return nil
}
