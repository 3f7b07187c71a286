package frr

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// The fields of the answers are those of FRR 8.4.4. The test data are its answers; testdata/README.md says how they were made.

// devices maps prefixes to the interfaces by which packets to them leave.
type devices map[netip.Prefix][]string

// mainTable is the kernel's number of the main table.
const mainTable = 254

// kernelProtocols are zebra's names of the routes that it did not select, but read from the kernel.
var kernelProtocols = []string{"kernel", "connected", "local"}

// zebraRoute is one route of "show ip route json".
type zebraRoute struct {
	Protocol string `json:"protocol"`
	Selected bool   `json:"selected"`
	Distance int    `json:"distance"`
	Table    int    `json:"table"`
	NextHops []struct {
		Interface   string `json:"interfaceName"`
		Active      bool   `json:"active"`
		Unreachable bool   `json:"unreachable"`
	} `json:"nexthops"`
}

// parseRoutes adds the routes of "show ip route json" or "show ipv6 route json". selected gets those that zebra selected of
// what daemons offered; a route of the kernel that hides it does not count, because it is not the daemon's. connected gets
// the subnets of interfaces.
func parseRoutes(b []byte, selected, connected devices) error {
	var all map[string][]zebraRoute
	if err := json.Unmarshal(b, &all); err != nil {
		return fmt.Errorf("routes: %w", err)
	}
	for text, list := range all {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("routes: %w", err)
		}
		if p.Addr().IsLinkLocalUnicast() || p.Addr().IsMulticast() {
			continue
		}
		hidden := false
		var best *zebraRoute
		for i := range list {
			r := &list[i]
			switch {
			case r.Table != 0 && r.Table != mainTable:
			case r.Protocol == "connected":
				connected[p] = append(connected[p], r.activePorts()...)
			case slices.Contains(kernelProtocols, r.Protocol):
				hidden = hidden || r.Protocol == "kernel" && r.Selected
			case best == nil || r.Selected && !best.Selected || r.Selected == best.Selected && r.Distance < best.Distance:
				best = r
			}
		}
		if best != nil && (best.Selected || hidden) && best.isActive() {
			selected[p] = best.activePorts()
		}
	}
	return nil
}

// isActive reports whether the route has a next hop that can be used.
func (r *zebraRoute) isActive() bool {
	for _, n := range r.NextHops {
		if n.Active {
			return true
		}
	}
	return false
}

// activePorts returns the interfaces of the next hops that can be used. A route that discards has none.
func (r *zebraRoute) activePorts() []string {
	out := []string{}
	for _, n := range r.NextHops {
		if n.Active && !n.Unreachable && n.Interface != "" {
			out = append(out, n.Interface)
		}
	}
	return out
}

// place returns the interface whose subnet has an address, or "" if there is none or several.
func (d devices) place(a netip.Addr) string {
	found, bits := "", -1
	for p, list := range d {
		if p.Contains(a) && p.Bits() > bits {
			found, bits = "", p.Bits()
			if len(list) == 1 {
				found = list[0]
			}
		}
	}
	return found
}

// bgpPath is one path of "show bgp ipv4 unicast json detail", or what precedes the paths of a prefix, which is not valid.
type bgpPath struct {
	Valid bool `json:"valid"`
	Local bool `json:"sourced"`
	Peer  struct {
		Interface string `json:"interface"`
		ID        string `json:"peerId"`
	} `json:"peer"`
}

// parsePaths adds the interfaces by which BGP has valid paths, of "show bgp ipv4 unicast json detail".
func parsePaths(b []byte, connected, paths devices) error {
	var table struct {
		Routes map[string]json.RawMessage `json:"routes"`
	}
	if err := json.Unmarshal(b, &table); err != nil {
		return fmt.Errorf("paths: %w", err)
	}
	for text, raw := range table.Routes {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("paths: %w", err)
		}
		var list []bgpPath
		if err := json.Unmarshal(raw, &list); err != nil {
			return fmt.Errorf("paths to %s: %w", p, err)
		}
		for _, x := range list {
			if !x.Valid || x.Local {
				continue
			}
			device := x.Peer.Interface
			if a, err := netip.ParseAddr(x.Peer.ID); device == "" && err == nil {
				device = connected.place(a)
			}
			if device != "" {
				paths[p] = append(paths[p], device)
			}
		}
	}
	return nil
}

// bgpSummary is what "show bgp summary json" answers for an address family.
type bgpSummary struct {
	TableVersion uint64                `json:"tableVersion"`
	Peers        map[string]bgpSession `json:"peers"`
}

// bgpSession is a peer of a summary.
type bgpSession struct {
	State       string  `json:"state"`
	Established *uint64 `json:"connectionsEstablished"`
	UptimeMsec  int64   `json:"peerUptimeMsec"` // since the last change of the state; 0 if there was none
	Prefixes    int     `json:"pfxRcd"`
	IDType      string  `json:"idType"`
}

// established is the state of a session that is up (RFC 4271 section 8.2.2).
const established = "Established"

// parseSummary returns the summaries by address family, of which those without peers are left out.
func parseSummary(b []byte) (map[string]bgpSummary, error) {
	out, err := parseObjects[bgpSummary](b, "summary of BGP")
	maps.DeleteFunc(out, func(_ string, s bgpSummary) bool { return len(s.Peers) == 0 })
	return out, err
}

// parseObjects returns the fields of an object that are objects themselves. FRR's later versions have others beside them, such as
// vrfId and vrfName. Errors begin with what it is.
func parseObjects[T any](b []byte, what string) (map[string]T, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(b, &fields); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	out := map[string]T{}
	for name, raw := range fields {
		if len(raw) == 0 || raw[0] != '{' {
			continue
		}
		var x T
		if err := json.Unmarshal(raw, &x); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", what, name, err)
		}
		out[name] = x
	}
	return out, nil
}

// bgpNeighbor is a neighbour of "show bgp neighbors json".
type bgpNeighbor struct {
	Address        string `json:"bgpNeighborAddr"`
	HoldMsec       int64  `json:"bgpTimerHoldTimeMsecs"` // negotiated
	ConfiguredMsec int64  `json:"bgpTimerConfiguredHoldTimeMsecs"`
}

// holdTime returns how long the neighbour may be silent, or 0 if it is not known.
func (n *bgpNeighbor) holdTime() time.Duration {
	ms := n.HoldMsec
	if ms == 0 {
		ms = n.ConfiguredMsec
	}
	return milliseconds(ms)
}

// milliseconds returns a duration, and 0 for what no timer can be.
func milliseconds(ms int64) time.Duration {
	if ms < 0 || ms > int64(maxTimer/time.Millisecond) {
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}

// maxTimer is longer than any timer or uptime of a session.
const maxTimer = 100 * 365 * 24 * time.Hour

// parseNeighbors returns the neighbours by the names that the configuration has for them: interfaces or addresses.
func parseNeighbors(b []byte) (map[string]bgpNeighbor, error) {
	return parseObjects[bgpNeighbor](b, "neighbors of BGP")
}

// bfdPeer is a session of "show bfd peers json" or "show bfd peers counters json", which have the same keys.
type bfdPeer struct {
	Peer      string `json:"peer"`
	Local     string `json:"local"`
	Interface string `json:"interface"`
	VRF       string `json:"vrf"`

	Status   string `json:"status"`
	Uptime   int64  `json:"uptime"`   // seconds
	Downtime int64  `json:"downtime"` // seconds
	// A session ends when nothing arrived for the remote multiplier times the longer of both intervals (RFC 5880 section
	// 6.8.4). They are in milliseconds.
	ReceiveInterval  int64 `json:"receive-interval"`
	RemoteInterval   int64 `json:"remote-transmit-interval"`
	RemoteMultiplier int64 `json:"remote-detect-multiplier"`

	Downs *uint64 `json:"session-down"`
}

// key distinguishes sessions.
func (p *bfdPeer) key() string {
	return strings.Join([]string{p.Peer, p.Local, p.Interface, p.VRF}, " ")
}

// detection returns the detection time, or 0 if it is not known.
func (p *bfdPeer) detection() time.Duration {
	const most = 255 // of the multiplier, which is an octet (RFC 5880 section 4.1)
	if p.RemoteMultiplier < 0 || p.RemoteMultiplier > most {
		return 0
	}
	return milliseconds(p.RemoteMultiplier * max(p.ReceiveInterval, p.RemoteInterval, 0))
}

// age returns how long the session has its state, or -1 if that is not known.
func (p *bfdPeer) age() time.Duration {
	seconds := p.Downtime
	if p.Status == "up" {
		seconds = p.Uptime
	}
	if seconds < 0 || seconds > int64(maxTimer/time.Second) || p.Status != "up" && p.Downtime == 0 {
		return -1
	}
	return time.Duration(seconds) * time.Second
}

// parseBFD returns the sessions of both answers together.
func parseBFD(peers, counters []byte) ([]bfdPeer, error) {
	var out, counted []bfdPeer
	if err := json.Unmarshal(peers, &out); err != nil {
		return nil, fmt.Errorf("sessions of BFD: %w", err)
	}
	if err := json.Unmarshal(counters, &counted); err != nil {
		return nil, fmt.Errorf("counters of BFD: %w", err)
	}
	downs := map[string]*uint64{}
	for i := range counted {
		downs[counted[i].key()] = counted[i].Downs
	}
	for i := range out {
		out[i].Downs = downs[out[i].key()]
	}
	return out, nil
}
