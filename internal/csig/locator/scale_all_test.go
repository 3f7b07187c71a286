//go:build all

package locator

import (
	"testing"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
)

// A fabric of 131,072 NICs has compact locators. Its ports are too many for wide ones.
func TestLocatorsAtFullScale(t *testing.T) {
	g := fabric.NewGraph(clos.NewTopology(clos.FullScale()))
	a := AssignLocators(g)
	if a.CodesNeeded != 5 || a.LongestPath != 5 || a.CheckWide() == nil || len(a.LocatorsOf(csig.Compact)) != len(a.Ports) || len(a.LocatorsOf(csig.Wide)) > 0 {
		t.Errorf("%d codes, longest path %d, %d ports, %v", a.CodesNeeded, a.LongestPath, len(a.Ports), a.CheckWide())
	}
	nics := g.NICIDs()
	checkPaths(t, "131,072 NICs", g, a.LocatorsOf(csig.Compact), [][2]string{{nics[0], nics[8]}, {nics[0], nics[len(nics)-8]}}, 2048)
}
