package ibfabric

import (
	"errors"
	"fmt"
	"slices"

	"github.com/graylink/graylink/internal/ibmad"
)

// Hop is one switch of a walk with the ports by which packets enter and leave. In is 0 where the walk begins at
// the switch's own port, Out where it ends there.
type Hop struct {
	Switch  int32
	In, Out uint8
}

// Reasons why a walk ends before its destination.
var (
	ErrLID     = errors.New("no port has the LID, or several have")
	ErrUnread  = errors.New("the forwarding table was not read")
	ErrDeadEnd = errors.New("dead end")
	ErrLoop    = errors.New("loop")
	ErrPrivate = errors.New("the switch has private forwarding tables")
	ErrStale   = errors.New("the groups of adaptive routing may be of other forwarding tables")
	ErrRouter  = errors.New("paths of other subnets are unknown")
)

// WalkError states why and where a walk ended; errors.Is finds the errors above.
type WalkError struct {
	Src, Dst LID
	// Hop is the number of the switch where it ended, from 1; 0 means before the first.
	Hop int
	// At names the port or switch.
	At     string
	Reason string
	Err    error
}

func (e *WalkError) Error() string {
	return fmt.Sprintf("LID %d to LID %d, hop %d at %s: %v: %s", e.Src, e.Dst, e.Hop, e.At, e.Err, e.Reason)
}

func (e *WalkError) Unwrap() error { return e.Err }

// Walk returns the path of packets from a LID to a LID: the switches in order, none if both are one port or two
// CAs are joined by a cable. With an error, it returns the hops up to there.
func (f *Fabric) Walk(src, dst LID) ([]Hop, error) { return f.AppendWalk(nil, src, dst) }

// AppendWalk appends a walk to hops.
func (f *Fabric) AppendWalk(hops []Hop, src, dst LID) ([]Hop, error) {
	begin := len(hops)
	w := walker{f: f, src: src, dst: dst}
	at, err := w.firstEnd()
	for err == nil && !w.hasArrived(at) {
		n := len(hops) - begin
		if n >= f.Switches {
			return hops, w.loopError(hops[begin:], at)
		}
		var out uint8
		if out, err = w.egressPort(at, n+1); err != nil {
			break
		}
		hops = append(hops, Hop{Switch: at.Node, In: at.Port, Out: out})
		if out == 0 {
			break
		}
		at, err = w.crossLink(at.Node, out, n+1)
	}
	return hops, err
}

// walker represents one walk.
type walker struct {
	f        *Fabric
	src, dst LID
	to       End
}

func (w *walker) walkError(hop int, at string, err error, reason string, args ...any) error {
	return &WalkError{Src: w.src, Dst: w.dst, Hop: hop, At: at, Err: err, Reason: fmt.Sprintf(reason, args...)}
}

// firstEnd returns the first end that packets reach: a switch's port, or the destination.
func (w *walker) firstEnd() (End, error) {
	from, ok := w.f.ByLID(w.src)
	if !ok {
		return End{}, w.walkError(0, fmt.Sprintf("LID %d", w.src), ErrLID, "the source is unknown")
	}
	if w.to, ok = w.f.ByLID(w.dst); !ok {
		return End{}, w.walkError(0, fmt.Sprintf("LID %d", w.dst), ErrLID, "the destination is unknown")
	}
	if from == w.to || w.f.Nodes[from.Node].Type == ibmad.NodeSwitch {
		return from, nil
	}
	return w.crossLink(from.Node, from.Port, 0)
}

// hasArrived reports whether the packet is at the CA's port of its destination, or begins at the switch of its
// destination.
func (w *walker) hasArrived(at End) bool { return at == w.to }

// egressPort returns the port by which a switch forwards the packet.
func (w *walker) egressPort(at End, hop int) (uint8, error) {
	f := w.f
	if int(at.Node) >= len(f.LFTs) || f.LFTs[at.Node] == nil {
		return 0, w.walkError(hop, f.NodeName(at.Node), ErrUnread, "its routes are unknown")
	}
	if int(at.Node) < len(f.Adaptive) && f.Adaptive[at.Node] != nil {
		switch a := f.Adaptive[at.Node]; {
		case a.Private:
			return 0, w.walkError(hop, f.NodeName(at.Node), ErrPrivate, "they are not supported")
		case a.Stale:
			return 0, w.walkError(hop, f.NodeName(at.Node), ErrStale, "where it sends packets is unknown")
		}
	}
	lft := f.LFTs[at.Node]
	if int(w.dst) >= len(lft) || lft[w.dst] == ibmad.NoRoute {
		return 0, w.walkError(hop, f.NodeName(at.Node), ErrDeadEnd, "its table has no port for LID %d", w.dst)
	}
	out := lft[w.dst]
	if out == 0 && w.to.Node != at.Node {
		return 0, w.walkError(hop, f.NodeName(at.Node), ErrDeadEnd, "its table has its own port for LID %d, which is %s", w.dst, f.EndName(w.to))
	}
	if out != 0 && w.to.Node == at.Node {
		return 0, w.walkError(hop, f.NodeName(at.Node), ErrDeadEnd, "its table sends its own LID %d out of port %d", w.dst, out)
	}
	return out, nil
}

// crossLink returns the far end of a port: a switch's port, or the destination.
func (w *walker) crossLink(node int32, out uint8, hop int) (End, error) {
	f := w.f
	near := End{node, out}
	p := f.PortAt(near)
	switch {
	case p == nil:
		return End{}, w.walkError(hop, f.NodeName(node), ErrDeadEnd, "it has no port %d", out)
	case !p.Linked:
		return End{}, w.walkError(hop, f.EndName(near), ErrDeadEnd, "the port's neighbor is unknown")
	case p.State != 0 && p.State != ibmad.PortActive:
		return End{}, w.walkError(hop, f.EndName(near), ErrDeadEnd, "the port is not active")
	case f.Nodes[p.Far.Node].Type == ibmad.NodeRouter && p.Far != w.to:
		return End{}, w.walkError(hop, f.EndName(near), ErrRouter, "the port leads to the router %s", f.EndName(p.Far))
	case f.Nodes[p.Far.Node].Type != ibmad.NodeSwitch && p.Far != w.to:
		return End{}, w.walkError(hop, f.EndName(near), ErrDeadEnd, "the port leads to %s, which does not have LID %d", f.EndName(p.Far), w.dst)
	}
	return p.Far, nil
}

func (w *walker) loopError(hops []Hop, at End) error {
	seen := map[int32]int{}
	for i, h := range hops {
		if first, ok := seen[h.Switch]; ok {
			return w.walkError(i+1, w.f.NodeName(h.Switch), ErrLoop, "the packet was there at hop %d", first)
		}
		seen[h.Switch] = i + 1
	}
	return w.walkError(len(hops)+1, w.f.NodeName(at.Node), ErrLoop, "the packet was there at hop %d", seen[at.Node])
}

// CandidateWalks returns the paths of packets of a service level from a LID to a LID, up to limit of them, and
// whether these are all. Without a choice on the way there is one, Walk's. An error is Walk's for the first
// path that does not lead there.
func (f *Fabric) CandidateWalks(src, dst LID, sl uint8, limit int) (all [][]Hop, whole bool, err error) {
	w := walker{f: f, src: src, dst: dst}
	at, err := w.firstEnd()
	if err != nil {
		return nil, true, err
	}
	whole = true
	var hops []Hop
	var visit func(at End) error
	visit = func(at End) error {
		if w.hasArrived(at) {
			if len(all) == limit {
				whole = false
				return nil
			}
			all = append(all, slices.Clone(hops))
			return nil
		}
		if slices.ContainsFunc(hops, func(h Hop) bool { return h.Switch == at.Node }) {
			return w.loopError(hops, at)
		}
		out, err := w.egressPort(at, len(hops)+1)
		if err != nil {
			return err
		}
		for _, port := range f.candidatePorts(at.Node, dst, sl, out) {
			if p := f.PortAt(End{at.Node, port}); port != out && p != nil && p.State != 0 && p.State != ibmad.PortActive {
				continue // a switch does not choose a port without a link
			}
			hops = append(hops, Hop{Switch: at.Node, In: at.Port, Out: port})
			next := w.to
			if port != 0 {
				next, err = w.crossLink(at.Node, port, len(hops))
			}
			if err == nil {
				err = visit(next)
			}
			hops = hops[:len(hops)-1]
			if err != nil || !whole {
				return err
			}
		}
		return nil
	}
	err = visit(at)
	return all, whole, err
}

// candidatePorts returns the ports by which a switch may forward packets; out is that of its table.
func (f *Fabric) candidatePorts(node int32, dst LID, sl uint8, out uint8) []uint8 {
	if out != 0 && int(node) < len(f.Adaptive) {
		if a := f.Adaptive[node]; a != nil && a.SLs>>sl&1 == 1 && len(a.PortsTo(dst)) > 0 {
			ports := slices.Clone(a.PortsTo(dst))
			if !slices.Contains(ports, out) {
				ports = append(ports, out)
			}
			slices.Sort(ports)
			return ports
		}
	}
	return []uint8{out}
}
