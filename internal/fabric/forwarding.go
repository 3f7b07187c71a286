package fabric

// Forwarding is how switches that have several equal next hops for a destination choose one of them.
type Forwarding string

// Kinds of forwarding of the topology file. ECMP is the default.
const (
	ECMP  Forwarding = "ecmp"  // by a hash of the packet's addresses and ports, so that a flow has one path
	Spray Forwarding = "spray" // anew for each packet, so that a flow takes all paths in turn
)

// ForwardingKinds returns the kinds of forwarding, the default first.
func ForwardingKinds() []string { return []string{string(ECMP), string(Spray)} }

// Sprays reports whether the switches of the topology choose a next hop anew for each packet.
func (t *Topology) Sprays() bool { return t.Forwarding == Spray }
