package fabric

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// candidateLimit bounds the candidate paths of one flow. Of more than these, none is listed.
const candidateLimit = 256

// RawHop represents the answer at one hop limit. An invalid Address means that the hop was silent.
type RawHop struct {
	TTL     int        `json:"ttl"`
	Address netip.Addr `json:"address,omitzero"`
	RTTNS   *int64     `json:"rtt_ns,omitempty"`
	// Interface is the one the packet came in by, and MPLS the labels it had
	// there, as the answer's extensions say (RFC 5837, RFC 4950).
	Interface *Interface `json:"interface,omitempty"`
	MPLS      []Label    `json:"mpls,omitempty"`
}

// Interface represents a switch's interface as the switch itself reports it. A field that was not reported is zero.
type Interface struct {
	Name    string     `json:"name,omitempty"`
	Address netip.Addr `json:"address,omitzero"`
	Index   uint32     `json:"index,omitempty"` // ifIndex of RFC 2863
	MTU     uint32     `json:"mtu,omitempty"`   // octets
}

// Label is an entry of an MPLS label stack.
type Label struct {
	Label  uint32 `json:"label"`
	TC     uint8  `json:"tc"`
	Bottom bool   `json:"bottom"`
	TTL    uint8  `json:"ttl"`
}

// LabelText names a stack as traceroutes do, top label first.
func LabelText(stack []Label) string {
	s := ""
	for i, l := range stack {
		if i > 0 {
			s += " "
		}
		bottom := 0
		if l.Bottom {
			bottom = 1
		}
		s += fmt.Sprintf("L=%d,TC=%d,S=%d,TTL=%d", l.Label, l.TC, bottom, l.TTL)
	}
	return s
}

// Trace is one hop-limited trace as a node reports it.
type Trace struct {
	Edge     string    `json:"edge"`
	State    PathState `json:"state"`
	TracedAt time.Time `json:"traced_at"`
	Reached  bool      `json:"reached"`
	// Balanced: several ways answered at one hop limit; Hops are one of each.
	Balanced bool     `json:"balanced,omitempty"`
	Hops     []RawHop `json:"hops"`
	Notes    []string `json:"notes,omitempty"`
	// Carrier lists the path that the node chose for the flow (internal/srv6). The trace is valid then, and Hops, if there are some, are
	// those that answered to packets by the carrier.
	Carrier netip.Addr `json:"carrier,omitzero"`
	// Refused is set while a switch refuses the carrier.
	Refused *Refusal `json:"refused,omitempty"`
	// HopProbes counts the hop-limited probes that an analyzer asked for.
	HopProbes []HopCount `json:"hop_probes,omitempty"`
}

// Refusal is the answer of a switch that does not know the next identifier of a carrier.
type Refusal struct {
	From netip.Addr `json:"from"` // the switch's address
	SID  uint16     `json:"sid"`
	At   time.Time  `json:"at"`
}

// HopCount counts the hop-limited probes of a flow at one hop limit.
type HopCount struct {
	TTL  int    `json:"ttl"`
	Sent uint64 `json:"sent"` // without those that are in flight
	// Answered has the answers by their source address.
	Answered map[netip.Addr]uint64 `json:"answered"`
}

// Resolved is a trace in the topology's terms.
type Resolved struct {
	Path       Path
	State      PathState
	Candidates []Path
	Notes      []string
}

// ResolveTrace binds the hops of a trace from NIC src to NIC dst: a hop's address is
// that of its ingress port, unless the switch says which interface the packet
// came in by; its egress port is where the next hop's cable begins. A silent hop is filled only when a single shortest path fits what did
// answer; when several fit they are candidates and the state is unknown. A path
// is never guessed.
func ResolveTrace(g *Graph, src, dst string, t Trace) Resolved {
	unknown := func(note string, cands []Path) Resolved {
		return Resolved{State: PathUnknown, Candidates: cands, Notes: append(append([]string{}, t.Notes...), note)}
	}
	if t.State == PathUnknown && len(t.Hops) == 0 {
		return unknown("no hop answered", nil)
	}
	if t.Balanced {
		all, _ := g.CandidatePaths(src, dst, candidateLimit)
		return unknown("balanced per packet: the flow has no one path", all)
	}
	if len(t.Hops) == 0 && t.State != PathUnknown {
		return resolveNeighbour(g, src, dst, t, unknown)
	}
	hops := t.Hops
	if !t.Reached {
		for len(hops) > 0 && !hops[len(hops)-1].Address.IsValid() {
			hops = hops[:len(hops)-1]
		}
	}
	// The number of hops is known when the destination answered, or when the
	// last hop is the leaf that the destination is plugged into.
	complete := t.Reached
	ends := make([]string, len(hops)) // ingress port or switch, "" when silent
	for i, h := range hops {
		if !h.Address.IsValid() {
			continue
		}
		end, why := IngressPort(g, h)
		if end == "" {
			return unknown(fmt.Sprintf("hop %d answered from %s, %s", h.TTL, h.Address, why), nil)
		}
		ends[i] = end
	}
	leaf, _ := g.LeafOf(dst)
	if len(ends) > 0 && leaf != "" && OwnerOf(ends[len(ends)-1]) == leaf {
		complete = true
	}
	if p, ok := pathFromIngress(g, src, dst, ends); ok && complete {
		return Resolved{Path: p, State: PathValid, Notes: t.Notes}
	}
	fit, all := g.FittingPaths(src, dst, candidateLimit, func(hop int, sw, in string) bool { return answersAt(ends, hop, sw, in) })
	fit = slices.DeleteFunc(fit, func(c Path) bool { return len(c) < len(ends) || complete && len(c) != len(ends) })
	switch {
	case !all:
		return unknown("too many paths fit the hops that answered", nil)
	case len(fit) == 1 && complete:
		return Resolved{Path: fit[0], State: PathValid, Notes: append(append([]string{}, t.Notes...), "silent hops filled: one path fits")}
	case len(fit) == 0:
		return unknown("no path of the topology fits the hops that answered", nil)
	}
	return unknown(fmt.Sprintf("%d paths fit the hops that answered", len(fit)), fit)
}

// resolveNeighbour binds a trace without any hop: no router is between the NICs. If the topology has one path between
// them, of switches without addresses, these forward the packets without decrementing the hop limit, as within a VLAN. A
// switch that joins both NICs may have addresses.
func resolveNeighbour(g *Graph, src, dst string, t Trace, unknown func(string, []Path) Resolved) Resolved {
	paths, _ := g.CandidatePaths(src, dst, 1)
	if len(paths) != 1 || len(paths[0]) > 1 && slices.ContainsFunc(paths[0], func(h Hop) bool { return routes(g, h) }) {
		return unknown("no switch answered, and the topology has no switch that both NICs are plugged into, nor one path without routers", nil)
	}
	note := "no router is on the way: " + paths[0][0].Switch + " joins both NICs"
	if len(paths[0]) > 1 {
		note = "no router is on the way: one path joins both NICs"
	}
	return Resolved{Path: paths[0], State: PathValid, Notes: append(append([]string{}, t.Notes...), note)}
}

// routes reports whether the topology has an address of a switch, or of one of the links that a path takes there.
func routes(g *Graph, h Hop) bool {
	if len(g.Switch(h.Switch).Addresses) > 0 {
		return true
	}
	return slices.ContainsFunc([]string{h.In, h.Out}, func(port string) bool {
		l := g.LinkAt(h.Switch + ":" + port)
		return l.AAddress.IsValid() || l.BAddress.IsValid()
	})
}

// IngressPort returns the port by which a hop's packet came in, or its switch if the port is not known. It returns ""
// and the reason if neither is known.
func IngressPort(g *Graph, h RawHop) (end, why string) {
	end = g.EndOf(h.Address)
	if end == "" {
		end = switchOf(g, h.Address)
	}
	if h.Interface == nil {
		if end == "" {
			return "", "which no port of the topology has"
		}
		return end, ""
	}
	owner := end
	if sw, _, ok := SplitPort(end); ok {
		owner = sw
	}
	if reported := g.EndOf(h.Interface.Address); reported != "" {
		if owner != "" && OwnerOf(reported) != owner {
			return "", fmt.Sprintf("which is %s's, and says that the packet came in at %s", owner, reported)
		}
		return reported, ""
	}
	switch named := owner + ":" + h.Interface.Name; {
	case owner != "" && h.Interface.Name != "" && g.LinkAt(named) != nil:
		return named, ""
	case end == "":
		return "", "which no port of the topology has"
	}
	return end, ""
}

func switchOf(g *Graph, a netip.Addr) string {
	for i := range g.Topo.Switches {
		for _, own := range g.Topo.Switches[i].Addresses {
			if own == a {
				return g.Topo.Switches[i].Name
			}
		}
	}
	return ""
}

// pathFromIngress builds a path from ingress ports that all answered and join up.
func pathFromIngress(g *Graph, src, dst string, ends []string) (Path, bool) {
	if len(ends) == 0 {
		return nil, false
	}
	p := make(Path, 0, len(ends))
	prev := src
	for i, end := range ends {
		sw, port, ok := SplitPort(end)
		if !ok {
			return nil, false
		}
		peer := g.PeerOf(end)
		if i == 0 {
			if peer != src {
				return nil, false
			}
		} else {
			owner, out, ok := SplitPort(peer)
			if !ok || owner != prev {
				return nil, false
			}
			p[i-1].Out = out
		}
		p = append(p, Hop{Switch: sw, In: port})
		prev = sw
	}
	leaf, out := g.LeafOf(dst)
	if prev != leaf {
		return nil, false
	}
	p[len(p)-1].Out = out
	return p, true
}

// answersAt reports whether a hop of a path agrees with the hop that answered there: with its ingress port or, if that is
// not known, with its switch. A silent hop agrees with all.
func answersAt(ends []string, hop int, sw, in string) bool {
	return hop >= len(ends) || ends[hop] == "" || ends[hop] == sw || ends[hop] == sw+":"+in
}
