// Package sourceroute chooses the paths of probes in a fabric whose hosts can choose them (forwarding: srv6), and translates
// between paths and the carriers that packets list them in (internal/srv6). It is pure.
//
// The rules of a plan, each with the name of its test:
//
//  1. Every flow of probes and the replies to it have a path each, by the reverse switches and links (TestRepliesReturn).
//  2. Every directed link between switches that some path can cross is crossed by at least MinFlows flows, of several pairs of
//     NICs if there are several that can (TestEveryDirectedLinkHasFlows). What is not is listed, with the reason.
//  3. Flows are spread evenly: no link has more than a quarter more than an even spread would give it, rounded up, unless that
//     is needed for rule 2 (TestLoadsAreEven).
//  4. The same flows have the same paths, in whatever order they are given (TestOrderDoesNotMatter), and when a node leaves
//     few of the others change (TestFewPathsChange).
package sourceroute

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/srv6"
)

// Table knows the identifiers of a fabric's switches and links. It does not change after NewTable.
type Table struct {
	g     *fabric.Graph
	block srv6.Block
	sids  map[string]srv6.SID
	names map[srv6.SID]string
}

// NewTable returns the table of a fabric by the locators in its topology. It fails if the topology is not one of source routing,
// or if locators are of several blocks or switches. A switch without one is on no path that can be chosen.
func NewTable(g *fabric.Graph) (*Table, error) {
	if !g.Topo.IsSourceRouted() {
		return nil, ErrNotSourceRouted
	}
	t := &Table{g: g, sids: map[string]srv6.SID{}, names: map[srv6.SID]string{}}
	for i := range g.Topo.Switches {
		s := &g.Topo.Switches[i]
		if s.Locator.IsZero() {
			continue
		}
		l := srv6.LocatorOf(s.Locator)
		switch {
		case len(t.sids) > 0 && l.Block != t.block:
			return nil, fmt.Errorf("switch %q: locator %v is not in the block %v of the others", s.Name, l, t.block)
		case t.names[l.Node] != "":
			return nil, fmt.Errorf("switch %q: locator %v is that of %q", s.Name, l, t.names[l.Node])
		}
		t.block, t.sids[s.Name], t.names[l.Node] = l.Block, l.Node, s.Name
	}
	return t, nil
}

// ErrNotSourceRouted is the error of NewTable for a topology whose hosts do not choose paths.
var ErrNotSourceRouted = errors.New("the topology does not have forwarding: srv6")

// Block returns the block of the locators.
func (t *Table) Block() srv6.Block { return t.block }

// SwitchOf returns the switch that an identifier names, or "".
func (t *Table) SwitchOf(s srv6.SID) string { return t.names[s] }

// Adjacency returns the identifier of the link at a switch's port, by fabric.Graph.PortNumber. ok is false if
// the port leads to no other switch, or if there are too many.
func (t *Table) Adjacency(port string) (s srv6.SID, ok bool) {
	if peer := t.g.PeerOf(port); peer == "" || fabric.IsNIC(peer) {
		return 0, false
	}
	s, err := srv6.Adjacency(t.g.PortNumber(port))
	return s, err == nil
}

// PortOf returns the port of a switch's adjacency, or "".
func (t *Table) PortOf(sw string, s srv6.SID) string {
	first, _ := srv6.Adjacency(0)
	ends := t.g.EndsOf(sw)
	if i := int(s) - int(first); s.IsAdjacency() && i < len(ends) && !fabric.IsNIC(t.g.PeerOf(ends[i])) {
		return ends[i]
	}
	return ""
}

// isParallel reports whether several links lead from one switch to another.
func (t *Table) isParallel(from, to string) bool { return len(t.g.LinksBetween(from, to)) > 1 }

// Carrier returns the destination by which packets take a path. Links are named where several join two switches. It fails if a
// switch of the path has no locator, or if the path is too long, which errors.Is shows as srv6.ErrTooLong.
func (t *Table) Carrier(p fabric.Path) (netip.Addr, error) {
	sids := make([]srv6.SID, 0, 2*len(p)+1)
	byLink := false // the packet has come over a link that was named, whatever its destination
	for i, h := range p {
		own, ok := t.sids[h.Switch]
		if !ok {
			return netip.Addr{}, fmt.Errorf("switch %q has no locator", h.Switch)
		}
		last := i == len(p)-1
		named := !last && t.isParallel(h.Switch, p[i+1].Switch)
		if last || i > 0 && !byLink || i == 0 && !named {
			sids = append(sids, own)
		}
		if named {
			link, ok := t.Adjacency(h.Switch + ":" + h.Out)
			if !ok {
				return netip.Addr{}, fmt.Errorf("port %s:%s has no identifier", h.Switch, h.Out)
			}
			sids = append(sids, link)
		}
		byLink = named
	}
	return srv6.EncodeCarrier(t.block, append(sids, srv6.Decapsulate)...)
}

// maxSteps bounds the switches that a carrier is followed over: two for each identifier.
const maxSteps = 2 * srv6.MaxSIDs

// Path returns the path that packets from one NIC to another take by a carrier. It fails if the carrier is none of this fabric,
// or leads elsewhere.
func (t *Table) Path(src, dst string, carrier netip.Addr) (fabric.Path, error) {
	block, sids, err := srv6.DecodeCarrier(carrier)
	switch {
	case err != nil:
		return nil, err
	case block != t.block:
		return nil, fmt.Errorf("%v is not in the block %v of the fabric", carrier, t.block)
	}
	var p fabric.Path
	sw, in := t.g.LeafOf(src)
	for range maxSteps {
		if len(sids) == 0 || sw == "" {
			break
		}
		next, isNext := t.names[sids[0]]
		switch out := t.PortOf(sw, sids[0]); {
		case isNext && next == sw:
			if sids = sids[1:]; len(sids) == 1 && sids[0] == srv6.Decapsulate {
				leaf, port := t.g.LeafOf(dst)
				if leaf != sw {
					return nil, fmt.Errorf("%v ends at %s, and %s is at %s", carrier, sw, dst, leaf)
				}
				return append(p, fabric.Hop{Switch: sw, In: in, Out: port}), nil
			}
		case isNext:
			links := t.g.LinksBetween(sw, next)
			if len(links) != 1 {
				return nil, fmt.Errorf("%v: %d links lead from %s to %s, want one", carrier, len(links), sw, next)
			}
			p, sw, in = t.cross(p, links[0], in)
		case out != "":
			sids = sids[1:]
			p, sw, in = t.cross(p, fabric.Direction{From: out, To: t.g.PeerOf(out)}, in)
		default:
			return nil, fmt.Errorf("%v: %s is no identifier at %s", carrier, sids[0], sw)
		}
	}
	return nil, fmt.Errorf("%v leads to no host", carrier)
}

// NthWay returns the carriers of the n-th of the shortest paths between two NICs, and of the way back. Numbers beyond the last path begin
// again. It fails if no shortest path has carriers.
func (t *Table) NthWay(src, dst string, n int) (probe, reply netip.Addr, err error) {
	type way struct{ there, back netip.Addr }
	var ways []way
	for _, p := range t.g.ShortestPaths(src, dst, maxPaths) {
		var w way
		if w.there, err = t.Carrier(p); err != nil {
			continue
		}
		if w.back, err = t.Carrier(p.Reverse()); err == nil {
			ways = append(ways, w)
		}
	}
	switch {
	case len(ways) > 0:
		w := ways[n%len(ways)]
		return w.there, w.back, nil
	case err == nil:
		err = fmt.Errorf("no path leads from %s to %s", src, dst)
	}
	return netip.Addr{}, netip.Addr{}, err
}

// cross continues a path over a link. It returns the switch and the port at its end.
func (t *Table) cross(p fabric.Path, d fabric.Direction, in string) (_ fabric.Path, sw, at string) {
	from, out, _ := fabric.SplitPort(d.From)
	sw, at, _ = fabric.SplitPort(d.To)
	return append(p, fabric.Hop{Switch: from, In: in, Out: out}), sw, at
}

// Resolve binds a trace of a flow whose path was chosen: the path is that of its carrier.
func (t *Table) Resolve(src, dst string, trace fabric.Trace) fabric.Resolved {
	p, err := t.Path(src, dst, trace.Carrier)
	if err != nil {
		return fabric.Resolved{State: fabric.PathUnknown, Notes: append(slices.Clone(trace.Notes), "chosen: "+err.Error())}
	}
	return fabric.Resolved{Path: p, State: fabric.PathValid, Notes: append(slices.Clone(trace.Notes), "chosen by the sender")}
}
