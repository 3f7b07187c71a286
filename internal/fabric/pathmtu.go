package fabric

import "net/netip"

// PathMTUState states what a test with long packets showed of a path.
type PathMTUState string

// States of a PathMTU.
const (
	PathMTUPasses  PathMTUState = "passes"  // the far end answered a packet of the length, by one of the same length
	PathMTUDrops   PathMTUState = "drops"   // it answers short packets alone
	PathMTUUnknown PathMTUState = "unknown" // it answers neither, or the flow cannot be tested
)

// PathMTU is what packets of one length showed of the path of a flow. They may not be fragmented.
type PathMTU struct {
	Edge   string       `json:"edge"`
	Octets int          `json:"octets"` // of a packet, from its IP header on
	State  PathMTUState `json:"state"`
	// Hops are the addresses of the switches on the path, and invalid for those that do not answer.
	Hops []netip.Addr `json:"hops"`
	// Passed is the highest hop limit at which a long packet was answered, and Dropped is the lowest one above it at which
	// short packets alone were. The far end has the number after the last switch. Both are 0 if the state is not "drops".
	// With Passed at 0, the packets may not have left this node.
	Passed  int `json:"passed,omitempty"`
	Dropped int `json:"dropped,omitempty"`
	// NextMTU is the largest packet of the next link, as the switch at hop limit Passed reported it, or 0 if it did not.
	NextMTU int `json:"next_mtu,omitempty"`
	// Sent is the number of packets that were sent, short ones included.
	Sent   int    `json:"sent"`
	Reason string `json:"reason,omitempty"` // why the state is unknown, or what is known besides
}
