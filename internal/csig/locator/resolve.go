package locator

import (
	"slices"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/fabric"
)

// State says what is known of the port that a locator stands for.
type State uint8

// What a locator can stand for.
const (
	Unknown    State = iota // no port that the flow may cross has the locator
	Unset                   // locator 0: no port replaced the source's value
	Exact                   // Port
	Candidates              // one of Ports
	Down                    // Port is reported to be down
)

func (s State) String() string {
	return [...]string{"unknown", "unset", "exact", "candidates", "down"}[s]
}

// Resolution is the port that a locator stands for.
type Resolution struct {
	State State
	Port  string   // switch:port, of Exact and Down
	Ports []string // of Candidates, sorted
}

// Resolver finds the ports of locators. It does not change after NewResolver.
type Resolver struct {
	graph   *fabric.Graph
	profile *csig.Profile
	ports   map[csig.Format]map[uint16][]string
}

// NewResolver returns a resolver of the locators of a profile in a topology.
func NewResolver(g *fabric.Graph, p *csig.Profile) *Resolver {
	r := &Resolver{graph: g, profile: p, ports: map[csig.Format]map[uint16][]string{}}
	for f, locators := range map[csig.Format]map[string]uint16{csig.Compact: p.CompactLocators, csig.Wide: p.WideLocators} {
		r.ports[f] = map[uint16][]string{}
		for port, l := range locators {
			r.ports[f][l] = append(r.ports[f][l], port)
		}
		for _, ports := range r.ports[f] {
			slices.Sort(ports)
		}
	}
	return r
}

// resolveAlone returns what a locator stands for by itself, and whether that is all that can be known.
func (r *Resolver) resolveAlone(f csig.Format, locator uint16) (Resolution, bool) {
	if locator == 0 {
		return Resolution{State: Unset}, true
	}
	if port := r.profile.DownPort(f, locator); port != "" {
		return Resolution{State: Down, Port: port}, true
	}
	switch ports := r.ports[f][locator]; {
	case len(ports) == 0:
		return Resolution{}, true
	case f == csig.Wide:
		return Resolution{State: Exact, Port: ports[0]}, true
	}
	return Resolution{}, false
}

// ResolveOnPath returns the port of a locator in a tag of a packet that took a known path. The port is one of candidates if
// several ports of the path have the locator, which no candidate path of the topology has.
func (r *Resolver) ResolveOnPath(f csig.Format, locator uint16, path fabric.Path) Resolution {
	if alone, done := r.resolveAlone(f, locator); done {
		return alone
	}
	var found []string
	for _, h := range path {
		if port := h.Switch + ":" + h.Out; r.profile.CompactLocators[port] == locator {
			found = append(found, port)
		}
	}
	switch len(found) {
	case 0:
		return Resolution{}
	case 1:
		return Resolution{State: Exact, Port: found[0]}
	}
	return narrow(found)
}

// candidateLimit bounds the candidate paths that are listed for one flow. Beyond it, ports count that may be on none.
const candidateLimit = 256

// ResolveBetween returns the port of a locator in a tag of a packet from one NIC to another whose path is not known. A compact
// locator has candidates even if only one port that the flow may cross has it, since the topology may be out of date.
func (r *Resolver) ResolveBetween(f csig.Format, locator uint16, src, dst string) Resolution {
	if alone, done := r.resolveAlone(f, locator); done {
		return alone
	}
	paths, all := r.graph.CandidatePaths(src, dst, candidateLimit)
	if !all {
		return narrow(r.ports[f][locator])
	}
	return r.ResolveAmong(f, locator, paths)
}

// ResolveAmong does the same for a packet that took one of several paths.
func (r *Resolver) ResolveAmong(f csig.Format, locator uint16, paths []fabric.Path) Resolution {
	if alone, done := r.resolveAlone(f, locator); done {
		return alone
	}
	var found []string
	for _, path := range paths {
		for _, h := range path {
			if port := h.Switch + ":" + h.Out; r.profile.CompactLocators[port] == locator {
				found = append(found, port)
			}
		}
	}
	return narrow(found)
}

// narrow returns candidates, each once.
func narrow(ports []string) Resolution {
	if len(ports) == 0 {
		return Resolution{}
	}
	ports = slices.Clone(ports)
	slices.Sort(ports)
	return Resolution{State: Candidates, Ports: slices.Compact(ports)}
}
