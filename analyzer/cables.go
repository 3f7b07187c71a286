package analyzer

import (
	"time"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/internal/fabric"
)

// miscablingVerdicts returns the verdicts on cables that are not where the topology has them. From then on
// paths follow the fabric as it is.
func (l *Loop) miscablingVerdicts(now time.Time) []fabric.Verdict {
	standing, changed := l.store.CheckCables(now)
	if changed && l.sightings != nil {
		l.sightings.RebindAll(now)
	}
	var out []fabric.Verdict
	for _, m := range standing {
		out = append(out, classify.SwapVerdict(l.opts.Graph, classify.Swap{Topology: m.Topology, Fabric: m.Fabric, Flows: m.Flows, LLDP: m.LLDP, First: m.Found}))
	}
	return out
}
