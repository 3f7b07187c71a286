package preset

import "slices"

// Series of sessions, by the port that leads to the neighbor. They are those of graylink-switch.
const (
	FamilyBGPUp          = "fabric_switch_bgp_session_up"
	FamilyBGPEstablished = "fabric_switch_bgp_sessions_established_total"
	FamilyBFDUp          = "fabric_switch_bfd_session_up"
	FamilyBFDDowns       = "fabric_switch_bfd_session_downs_total"
)

// SessionPart is what a leaf states about a session, or about an address by which the port of a session is found.
type SessionPart int

// The parts of sessions.
const (
	NoSessionPart  SessionPart = iota
	BGPState                   // whether a session of BGP is established
	BGPEstablished             // how often it was
	BGPLocalAddress
	BFDState // whether a session of BFD is up
	BFDDowns // how often it went down
	BFDLocalAddress
	BFDRemoteAddress
	BFDPort     // the port of an interface of BFD
	PortAddress // the length of the prefix of a port's address; the address may have it itself, as 10.0.0.0/31
)

var (
	bgpLabels = []string{"vrf", "instance", "address"}
	bfdLabels = []string{"interface", "session"}
)

// sessionFamilies are the families of parts of sessions, which are not series.
var sessionFamilies = map[SessionPart]*Family{
	BGPState:         {"bgp_session_state", "State of a BGP session; not a series.", Gauge, bgpLabels},
	BGPEstablished:   {"bgp_sessions_established_total", "Transitions of a BGP session; not a series.", Counter, bgpLabels},
	BGPLocalAddress:  {"bgp_local_address", "Local address of a BGP session; not a series.", SessionText, bgpLabels},
	BFDState:         {"bfd_session_state", "State of a BFD session; not a series.", Gauge, bfdLabels},
	BFDDowns:         {"bfd_session_downs_total", "Failures of a BFD session; not a series.", Counter, bfdLabels},
	BFDLocalAddress:  {"bfd_local_address", "Local address of a BFD session; not a series.", SessionText, bfdLabels},
	BFDRemoteAddress: {"bfd_remote_address", "Remote address of a BFD session; not a series.", SessionText, bfdLabels},
	BFDPort:          {"bfd_port", "Port of an interface of BFD; not a series.", SessionText, bfdLabels[:1]},
	PortAddress:      {"port_address", "Address of a port; not a series.", SessionText, []string{"port", "address"}},
}

// SessionPartOf returns what leaves of a family state about sessions.
func SessionPartOf(f *Family) SessionPart {
	for part, x := range sessionFamilies {
		if x == f {
			return part
		}
	}
	return NoSessionPart
}

// WithSessions lists the presets whose switches can be subscribed to for sessions.
var WithSessions = []string{"arista", "openconfig", "sonic"}

// The sources of the rules of sessions. The leaves are in the models; which releases of which vendors answer is unknown.
const (
	ocBGP        = "openconfig-bgp 9.8.0 in openconfig-network-instance"
	ocBFD        = "openconfig-bfd 0.4.2"
	ocIP         = "openconfig-if-ip"
	sonicBGPMon  = "sonic-buildimage, src/sonic-bgpcfgd/bgpmon; every 15 s, without unified FRR configuration"
	sonicBFDOrch = "sonic-swss, orchagent/bfdorch; sessions of the ASIC alone"
)

// SessionRules returns the rules of sessions for a preset of WithSessions.
func SessionRules(name string) []Rule {
	if name == "sonic" {
		return sonicSessions()
	}
	rule := func(part SessionPart, path, convert, source string) Rule {
		return Rule{Path: path, ownFamily: sessionFamilies[part], Convert: convert, Source: source, OnChange: part != BGPEstablished && part != BFDDowns}
	}
	bgp := "/network-instances/network-instance[name={vrf}]/protocols/protocol[identifier={_protocol}][name={instance}]/bgp" +
		"/neighbors/neighbor[neighbor-address={address}]/"
	bfd := "/bfd/interfaces/interface[id={interface}]/"
	peer := bfd + "peers/peer[local-discriminator={session}]/state/"
	unit := "/interfaces/interface[name={port}]/subinterfaces/subinterface[index={_unit}]/"
	return []Rule{
		rule(BGPState, bgp+"state/session-state", "established", ocBGP),
		rule(BGPEstablished, bgp+"state/established-transitions", "", ocBGP),
		rule(BGPLocalAddress, bgp+"transport/state/local-address", "", ocBGP),
		rule(BFDState, peer+"session-state", "bfd", ocBFD),
		rule(BFDDowns, peer+"failure-transitions", "", ocBFD),
		rule(BFDLocalAddress, peer+"local-address", "", ocBFD),
		rule(BFDRemoteAddress, peer+"remote-address", "", ocBFD),
		rule(BFDPort, bfd+"interface-ref/state/interface", "", ocBFD),
		rule(PortAddress, unit+"ipv4/addresses/address[ip={address}]/state/prefix-length", "", ocIP),
		rule(PortAddress, unit+"ipv6/addresses/address[ip={address}]/state/prefix-length", "", ocIP),
	}
}

// sonicSessions returns the rules of SONiC's databases, which do not count transitions.
func sonicSessions() []Rule {
	return []Rule{
		{Path: "NEIGH_STATE_TABLE/{address}/state", ownFamily: sessionFamilies[BGPState], Convert: "established", Target: "STATE_DB", Source: sonicBGPMon,
			Labels: map[string]string{"vrf": "default", "instance": "bgp"}},
		{Path: "BFD_SESSION_TABLE/{_vrf}|{interface}|{session}/state", ownFamily: sessionFamilies[BFDState], Convert: "bfd", Target: "STATE_DB", Source: sonicBFDOrch},
		{Path: "BFD_SESSION_TABLE/{_vrf}|{interface}|{session}/local_addr", ownFamily: sessionFamilies[BFDLocalAddress], Target: "STATE_DB", Source: sonicBFDOrch},
		{Path: "INTF_TABLE/{port}:{address}/family", ownFamily: sessionFamilies[PortAddress], Target: "APPL_DB", OnChange: true, Source: sonicDB},
	}
}

// SessionSubscriptions returns the containers that are subscribed to for sessions.
func SessionSubscriptions(name string) []Subscription {
	if name != "sonic" {
		return nil
	}
	return []Subscription{
		{Path: "NEIGH_STATE_TABLE", Target: "STATE_DB"},
		{Path: "BFD_SESSION_TABLE", Target: "STATE_DB"},
		{Path: "INTF_TABLE", Target: "APPL_DB", OnChange: true},
	}
}

// SessionSeries returns the name of the series that a rule of sessions serves, and "" if it serves none.
func SessionSeries(r *Rule) string {
	switch SessionPartOf(r.ownFamily) {
	case BGPState:
		return FamilyBGPUp
	case BGPEstablished:
		return FamilyBGPEstablished
	case BFDState:
		return FamilyBFDUp
	case BFDDowns:
		return FamilyBFDDowns
	}
	return ""
}

// mayHoldColons reports whether the value of a name in braces may have colons, as addresses of IPv6 do.
func mayHoldColons(name string) bool { return slices.Contains([]string{"address", "session"}, name) }
