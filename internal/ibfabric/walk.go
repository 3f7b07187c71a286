package ibfabric

import (
	"errors"
	"fmt"
	"slices"

	"github.com/graylink/graylink/internal/ibmad"
)

// Hop is one switch of a walk and the ports by which packets come in and go out. In
// is 0 where the walk begins at the switch's own port, Out where it ends there.
type Hop struct {
	Switch  int32
	In, Out uint8
}

// Why a walk ends before its destination.
var (
	ErrLID     = errors.New("no port has the LID, or several have")
	ErrUnread  = errors.New("the forwarding table was not read")
	ErrDeadEnd = errors.New("dead end")
	ErrLoop    = errors.New("loop")
)

// WalkError is why and where a walk ended; errors.Is holds for the errors above.
type WalkError struct {
	Src, Dst LID
	// Hop is the number of the switch where it ended, from 1; 0: before the first.
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

// Walk is the way of packets from a LID to a LID: the switches in order, none when
// both are one port or two CAs are joined by a cable. On an error the hops up to
// there are returned with it.
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

// walker is one walk.
type walker struct {
	f        *Fabric
	src, dst LID
	to       End
}

func (w *walker) walkError(hop int, at string, err error, reason string, args ...any) error {
	return &WalkError{Src: w.src, Dst: w.dst, Hop: hop, At: at, Err: err, Reason: fmt.Sprintf(reason, args...)}
}

// firstEnd is where packets come to first: a switch's port, or the destination.
func (w *walker) firstEnd() (End, error) {
	from, ok := w.f.ByLID(w.src)
	if !ok {
		return End{}, w.walkError(0, fmt.Sprintf("LID %d", w.src), ErrLID, "the source is not known")
	}
	if w.to, ok = w.f.ByLID(w.dst); !ok {
		return End{}, w.walkError(0, fmt.Sprintf("LID %d", w.dst), ErrLID, "the destination is not known")
	}
	if from == w.to || w.f.Nodes[from.Node].Type == ibmad.NodeSwitch {
		return from, nil
	}
	return w.crossLink(from.Node, from.Port, 0)
}

// hasArrived reports whether the packet is at the CA's port that it is for, or begins at
// the switch that it is for.
func (w *walker) hasArrived(at End) bool { return at == w.to }

// egressPort is the port by which a switch sends the packet on.
func (w *walker) egressPort(at End, hop int) (uint8, error) {
	f := w.f
	if int(at.Node) >= len(f.LFTs) || f.LFTs[at.Node] == nil {
		return 0, w.walkError(hop, f.NodeName(at.Node), ErrUnread, "nothing is known of where it sends packets")
	}
	lft := f.LFTs[at.Node]
	if int(w.dst) >= len(lft) || lft[w.dst] == ibmad.NoRoute {
		return 0, w.walkError(hop, f.NodeName(at.Node), ErrDeadEnd, "its table has no port for LID %d", w.dst)
	}
	out := lft[w.dst]
	if out == 0 && w.to.Node != at.Node {
		return 0, w.walkError(hop, f.NodeName(at.Node), ErrDeadEnd, "its table takes LID %d, which is %s, for its own", w.dst, f.EndName(w.to))
	}
	if out != 0 && w.to.Node == at.Node {
		return 0, w.walkError(hop, f.NodeName(at.Node), ErrDeadEnd, "its table sends its own LID %d out of port %d", w.dst, out)
	}
	return out, nil
}

// crossLink is the switch's port, or the destination, that a port leads to.
func (w *walker) crossLink(node int32, out uint8, hop int) (End, error) {
	f := w.f
	near := End{node, out}
	p := f.PortAt(near)
	switch {
	case p == nil:
		return End{}, w.walkError(hop, f.NodeName(node), ErrDeadEnd, "it has no port %d", out)
	case !p.Linked:
		return End{}, w.walkError(hop, f.EndName(near), ErrDeadEnd, "the port leads to nothing that is known")
	case p.State != 0 && p.State != ibmad.PortActive:
		return End{}, w.walkError(hop, f.EndName(near), ErrDeadEnd, "the port is not active")
	case f.Nodes[p.Far.Node].Type != ibmad.NodeSwitch && p.Far != w.to:
		return End{}, w.walkError(hop, f.EndName(near), ErrDeadEnd, "the port leads to %s, which has not LID %d", f.EndName(p.Far), w.dst)
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

// CandidateWalks are the ways of packets of a service level from a LID to a LID, up to
// limit of them, and whether these are all. Where no switch on the way may choose
// there is one, Walk's; an error is Walk's for the first way that does not lead there.
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

// candidatePorts are the ports by which a switch may send packets; out is its table's.
func (f *Fabric) candidatePorts(node int32, dst LID, sl uint8, out uint8) []uint8 {
	if out != 0 && int(node) < len(f.Adaptive) {
		if a := f.Adaptive[node]; a != nil && a.SLs>>sl&1 == 1 && len(a.Ports[dst]) > 0 {
			ports := slices.Clone(a.Ports[dst])
			if !slices.Contains(ports, out) {
				ports = append(ports, out)
			}
			slices.Sort(ports)
			return ports
		}
	}
	return []uint8{out}
}
