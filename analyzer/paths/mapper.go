package paths

import (
	"fmt"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sighting"
)

// Mapper knows the ports that probes use: flow n of a pair of NICs is sent from
// SourcePort+n to StampPort, and its replies the other way.
type Mapper struct{ SourcePort, StampPort uint16 }

// ProbeFlow names the edge that a 5-tuple belongs to, with its probing NIC first also
// for replies. The error says what is not a probe's.
func (m Mapper) ProbeFlow(g *fabric.Graph, f sighting.Flow) (fabric.Flow, error) {
	from, to := g.EndOf(f.Src.Addr().Unmap()), g.EndOf(f.Dst.Addr().Unmap())
	for _, x := range []struct{ end, what, addr string }{{from, "src", f.Src.String()}, {to, "dst", f.Dst.String()}} {
		if !fabric.IsNIC(x.end) {
			return fabric.Flow{}, fmt.Errorf("field %q: %s is no NIC's address", x.what, x.addr)
		}
	}
	probe := f.Dst.Port() == m.StampPort && f.Src.Port() >= m.SourcePort
	reply := f.Src.Port() == m.StampPort && f.Dst.Port() >= m.SourcePort
	switch {
	case probe == reply || from == to:
		return fabric.Flow{}, fmt.Errorf("ports %d and %d: neither a probe nor a reply", f.Src.Port(), f.Dst.Port())
	case probe:
		return fabric.Flow{Src: from, Dst: to, Number: int(f.Src.Port() - m.SourcePort)}, nil
	}
	return fabric.Flow{Src: to, Dst: from, Number: int(f.Dst.Port() - m.SourcePort), Reply: true}, nil
}
