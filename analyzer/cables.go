package analyzer

import (
	"time"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/internal/fabric"
)

// cables are the verdicts on cables that are not where the topology has them. From
// now on paths, and everything that is said of them, follow the fabric as it is.
func (l *Loop) cables(now time.Time) []fabric.Verdict {
	standing, changed := l.store.CheckCables(now)
	if changed && l.seen != nil {
		l.seen.Recable(now)
	}
	var out []fabric.Verdict
	for _, m := range standing {
		out = append(out, classify.Miscabled(l.o.Graph, classify.Swap{Topology: m.Topology, Fabric: m.Fabric, Flows: m.Flows, LLDP: m.LLDP, First: m.Found}))
	}
	return out
}
