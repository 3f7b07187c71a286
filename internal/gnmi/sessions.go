package gnmi

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/graylink/graylink/internal/gnmi/preset"
)

// The families of sessions, by protocol: whether they are up, and their counter.
var (
	bgpFamilies = [2]*preset.Family{preset.LookupFamily(preset.FamilyBGPUp), preset.LookupFamily(preset.FamilyBGPEstablished)}
	bfdFamilies = [2]*preset.Family{preset.LookupFamily(preset.FamilyBFDUp), preset.LookupFamily(preset.FamilyBFDDowns)}
	familyOper  = preset.LookupFamily("fabric_switch_port_oper_up")
)

// sessionTable relates the sessions of a switch to its ports. It is built of the store's series whenever they are
// collected, so the bound of their number is its bound.
//
// The port of a session is, in this order:
//
//  1. what the switch names: the port of BFD's interface, a neighbor that is an interface, the zone of an address;
//  2. for an address that is not link-local, the one port with an address whose prefix has the neighbor's address;
//  3. for a link-local one, the one port that has the local address.
//
// A local address that the switch names must be the port's. A session for which no port or several remain has no
// series.
type sessionTable struct {
	names    map[string]bool // of interfaces
	subnets  map[netip.Prefix][]portAddress
	lengths  [129]bool // of the prefixes
	owners   map[netip.Addr][]portAddress
	bfdPorts map[string]string // ports by the identifiers of BFD's interfaces
	sessions map[string]*sessionState
}

type portAddress struct {
	port   string
	prefix netip.Prefix
}

// mostAlike bounds the addresses of a subnet that are compared. Where there are more, several ports remain.
const mostAlike = 16

// sessionState holds what is known of a session.
type sessionState struct {
	families   *[2]*preset.Family
	named      string // the interface or neighbor by which the switch knows it
	remote     netip.Addr
	local      netip.Addr
	up, count  *series
	unreadable bool // an address is not one
}

func newSessionTable() *sessionTable {
	return &sessionTable{names: map[string]bool{}, bfdPorts: map[string]string{}, sessions: map[string]*sessionState{}, subnets: map[netip.Prefix][]portAddress{},
		owners: map[netip.Addr][]portAddress{}}
}

// addSeries adds what a series states of sessions, addresses or interfaces.
func (t *sessionTable) addSeries(x *series) {
	switch x.part {
	case preset.NoSessionPart:
		t.names[x.values[0]] = true
		return
	case preset.PortAddress:
		text := x.values[1]
		if !strings.Contains(text, "/") {
			text += "/" + x.text
		}
		if p, err := netip.ParsePrefix(text); err == nil {
			t.addAddress(portAddress{x.values[0], p})
		}
		return
	case preset.BFDPort:
		t.bfdPorts[x.values[0]] = x.text
		return
	}
	s := t.sessionOf(x)
	switch x.part {
	case preset.BGPState, preset.BFDState:
		s.up = x
	case preset.BGPEstablished, preset.BFDDowns:
		s.count = x
	case preset.BGPLocalAddress, preset.BFDLocalAddress:
		s.setAddress(&s.local, x.text)
	case preset.BFDRemoteAddress:
		s.setAddress(&s.remote, x.text)
	}
}

// addAddress adds an address of a port.
func (t *sessionTable) addAddress(a portAddress) {
	t.names[a.port] = true
	t.lengths[a.prefix.Bits()] = true
	if at := a.prefix.Masked(); len(t.subnets[at]) <= mostAlike {
		t.subnets[at] = append(t.subnets[at], a)
	}
	if own := a.prefix.Addr(); len(t.owners[own]) <= mostAlike {
		t.owners[own] = append(t.owners[own], a)
	}
}

// sessionOf returns the session of a series, whose labels identify it.
func (t *sessionTable) sessionOf(x *series) *sessionState {
	isBGP := x.part == preset.BGPState || x.part == preset.BGPEstablished || x.part == preset.BGPLocalAddress
	key := strings.Join(x.values, "\xff")
	families, peer := &bfdFamilies, x.values[len(x.values)-1]
	if isBGP {
		key, families = "bgp\xff"+key, &bgpFamilies
	}
	s := t.sessions[key]
	if s != nil {
		return s
	}
	s = &sessionState{families: families}
	t.sessions[key] = s
	// SONiC names a session of BFD by its address, and OpenConfig by a number.
	if a, err := netip.ParseAddr(peer); err == nil {
		s.remote = a
	} else if isBGP {
		s.named = peer
	}
	if !isBGP {
		s.named = x.values[0]
	}
	return s
}

// setAddress sets an address of a session.
func (s *sessionState) setAddress(a *netip.Addr, text string) {
	if x, err := netip.ParseAddr(text); err == nil {
		*a = x
	} else {
		s.unreadable = true
	}
}

// interfaceOf returns the port of an interface that the switch names: Ethernet1 of Ethernet1.10, and of Arista's Et1.
// It returns "" if the switch has no such port.
func (t *sessionTable) interfaceOf(name string) string {
	for name != "" {
		if t.names[name] {
			return name
		}
		if rest, short := strings.CutPrefix(name, "Et"); short && t.names["Ethernet"+rest] {
			return "Ethernet" + rest
		}
		name = name[:max(0, strings.LastIndexByte(name, '.'))]
	}
	return ""
}

// portOf returns the port of a session, and "" if it is not known.
func (t *sessionTable) portOf(s *sessionState) string {
	if s.unreadable {
		return ""
	}
	named := s.named
	if port, ok := t.bfdPorts[named]; ok && s.families == &bfdFamilies {
		named = port
	}
	for _, name := range []string{named, s.remote.Zone(), s.local.Zone()} {
		if port := t.interfaceOf(name); port != "" {
			return port
		}
	}
	remote, local := s.remote.WithZone("").Unmap(), s.local.WithZone("").Unmap()
	if !remote.IsValid() {
		return ""
	}
	if local.IsValid() {
		return onlyPort(t.owners[local], func(a portAddress) bool { return remote.IsLinkLocalUnicast() || a.reaches(remote) })
	}
	if remote.IsLinkLocalUnicast() {
		return ""
	}
	var near []portAddress
	for bits, used := range t.lengths {
		if p, err := remote.Prefix(bits); used && err == nil {
			near = append(near, t.subnets[p]...)
		}
	}
	return onlyPort(near, func(a portAddress) bool { return a.reaches(remote) })
}

// reaches reports whether another address is in the subnet of the port's.
func (a portAddress) reaches(remote netip.Addr) bool {
	return a.prefix.Addr() != remote && a.prefix.Contains(remote)
}

// onlyPort returns the port of the addresses for which fits returns true, and "" if there is none, or several.
func onlyPort(all []portAddress, fits func(portAddress) bool) (port string) {
	if len(all) > mostAlike {
		return ""
	}
	for _, a := range all {
		switch {
		case !fits(a):
		case port != "" && port != a.port:
			return ""
		default:
			port = a.port
		}
	}
	return port
}

// portSessions sums up the sessions of a protocol at a port.
type portSessions struct {
	up, counted bool
	count       float64
	at          int64
	countedAt   int64
	since       int64
}

// appendPoints appends the series of sessions. Several at a port are up if all are, and their counts are added. It
// returns how many sessions have no known port.
func (t *sessionTable) appendPoints(out []Point, name string) (_ []Point, unplaced int) {
	type place struct {
		families *[2]*preset.Family
		port     string
	}
	sums := map[place]*portSessions{}
	for _, s := range t.sessions {
		if s.up == nil { // it left, or its state is not known
			continue
		}
		port := t.portOf(s)
		if port == "" {
			unplaced++
			continue
		}
		at := place{s.families, port}
		sum := sums[at]
		if sum == nil {
			sum = &portSessions{up: true, counted: true}
			sums[at] = sum
		}
		sum.up = sum.up && s.up.value == 1
		sum.at = max(sum.at, s.up.at)
		if sum.counted = sum.counted && s.count != nil; sum.counted {
			sum.count += s.count.value
			sum.countedAt, sum.since = max(sum.countedAt, s.count.at), max(sum.since, s.count.since)
		}
	}
	for at, sum := range sums {
		up := 0.0
		if sum.up {
			up = 1
		}
		labels := []string{at.port}
		out = append(out, Point{at.families[0], name, labels, up, unixTime(sum.at), unixTime(sum.at)})
		if sum.counted {
			out = append(out, Point{at.families[1], name, slices.Clone(labels), sum.count, unixTime(sum.countedAt), unixTime(sum.since)})
		}
	}
	return out, unplaced
}
