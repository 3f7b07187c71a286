package coordinator

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// sourceSocket stands for the address of a session over a Unix socket.
const sourceSocket = "unix"

// Reasons why an agent is not scraped at its advertised address.
const (
	refusedAddress  = "address"  // neither the address that it connects from, nor its node's address in the topology, nor in the prefixes
	refusedForeign  = "foreign"  // the topology gives the address to another node or switch
	refusedLoopback = "loopback" // a loopback address, and the session came from another host
	refusedPort     = "port"     // outside the range
	refusedScheme   = "scheme"   // the agent serves another scheme than the one of --agents.web-scheme
)

// refusedReasons lists all reasons.
var refusedReasons = []string{refusedAddress, refusedForeign, refusedLoopback, refusedPort, refusedScheme}

// PortRange is the range of ports from First to Last.
type PortRange struct{ First, Last uint16 }

// PortRanges is a list of ranges.
type PortRanges []PortRange

func (r PortRanges) contains(port uint16) bool {
	return slices.ContainsFunc(r, func(p PortRange) bool { return p.First <= port && port <= p.Last })
}

// ParsePortRanges parses ports and ranges such as 9868 and 9868-9899. It returns an error that names
// the first invalid one.
func ParsePortRanges(texts []string) (out PortRanges, err error) {
	for _, t := range texts {
		low, high, isRange := strings.Cut(t, "-")
		if !isRange {
			high = low
		}
		first, errFirst := strconv.ParseUint(low, 10, 16)
		last, errLast := strconv.ParseUint(high, 10, 16)
		if errFirst != nil || errLast != nil || first == 0 || last < first {
			return nil, fmt.Errorf("%q: want a port or a range of ports such as 9868-9899", t)
		}
		out = append(out, PortRange{uint16(first), uint16(last)})
	}
	return out, nil
}

// Target is an agent to scrape.
type Target struct {
	Node, Address, Scheme, Software string
	Connected                       bool
}

// Targets returns every known agent that is scraped. ok is false while the registry is not whole.
func (c *Coordinator) Targets() (out []Target, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.registry.whole {
		return nil, false
	}
	for n, a := range c.registry.agents {
		if a.web.address == "" {
			continue
		}
		address, _ := c.opts.targetOf(c.topology, a)
		out = append(out, Target{Node: n, Address: address, Scheme: c.opts.WebScheme, Software: a.software, Connected: a.session != nil})
	}
	slices.SortFunc(out, func(x, y Target) int { return compareNames(x.Node, y.Node) })
	return out, true
}

// checkTarget checks whether an agent may be scraped at its advertised address, and logs when the
// result changes. It needs mu.
func (c *Coordinator) checkTarget(a *agent) {
	before := a.web.refused
	if a.web.refused = ""; a.web.address == "" {
		return
	}
	address, reason := c.opts.targetOf(c.topology, a)
	if a.web.refused = reason; reason != "" && reason != before {
		c.log.Warn("an agent is not scraped at its advertised address", "node", a.node, "advertised", a.web.address, "advertised_scheme", a.web.scheme, "from", a.web.from, "reason", reason,
			"scraped_at", address, "scheme", c.opts.WebScheme)
	}
}

// targetOf returns the address at which an agent is scraped, and the reason if that is not the
// advertised one. It uses the advertised host if the agent's session came from there, if the topology
// has it as the node's address, or if it lies in the prefixes for targets. Otherwise it uses the node's
// address in the topology, else the host of the session, else the node's name, which is the topology's. It
// needs mu.
func (o *TargetOptions) targetOf(t *topology, a *agent) (address, reason string) {
	host, portText, err := net.SplitHostPort(a.web.address)
	port, errPort := strconv.ParseUint(portText, 10, 16)
	if err != nil || errPort != nil || !o.WebPorts.contains(uint16(port)) {
		port, reason = uint64(o.WebPorts[0].First), refusedPort
	}
	given := ""
	if n := t.graph.Node(a.node); n != nil {
		given = n.Address
	}
	own := given
	if own == "" && a.web.from != sourceSocket {
		own = a.web.from
	}
	if own == "" {
		own = a.node
	}
	if why := o.refuseHost(t, a, host, given, own); why != "" {
		host, reason = own, why
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = own
	}
	if reason == "" && a.web.scheme != "" && a.web.scheme != o.WebScheme {
		reason = refusedScheme
	}
	return net.JoinHostPort(host, strconv.FormatUint(port, 10)), reason
}

// refuseHost returns the reason why an agent may not be scraped at a host, or an empty reason when it
// may. An empty or unspecified host stands for own.
func (o *TargetOptions) refuseHost(t *topology, a *agent, host, given, own string) string {
	if host == "" || host == own || host == given {
		return ""
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return refusedAddress
	}
	ip = ip.Unmap()
	from, err := netip.ParseAddr(a.web.from)
	remote := err == nil && !from.IsLoopback()
	switch {
	case ip.IsUnspecified() || err == nil && ip == from:
		return ""
	case ip.IsLoopback() && remote:
		return refusedLoopback
	case ip.IsLoopback() && err == nil:
		return ""
	}
	if owner := t.owners[ip]; owner != "" && owner != a.node {
		return refusedForeign
	}
	if inPrefixes(o.WebPrefixes, ip) {
		return ""
	}
	return refusedAddress
}
