package fabric

// Tuple represents the header fields that switches choose paths by, of packets from one NIC to another. Its JSON form is
// that of the agents' API.
type Tuple struct {
	Src   string `json:"src"`
	Dst   string `json:"dst"`
	Proto string `json:"proto"` // "udp"
	DPort int    `json:"dport"`
	SPort int    `json:"sport"`
	DSCP  int    `json:"dscp"`
	// Variant selects other values for fields that are not part of the tuple: the queue pairs and the payload. The
	// identification of IPv4 differs in every packet. The path of a variant is that of variant 0 if switches hash the tuple only.
	Variant int `json:"variant,omitempty"`
	Packets int `json:"packets,omitempty"` // number of packets with each hop limit that are sent at first; 0 means 1
}

// Marking states whether the packets of a NIC are marked as ones that switches may send on any path (adaptive routing).
type Marking string

// Values of Marking.
const (
	MarkingNone    Marking = "none"    // the NIC has no such mark
	MarkingUnknown Marking = "unknown" // the NIC's setting is not visible to its agent
)

// TupleTrace is the trace of a tuple, as an agent serves it.
type TupleTrace struct {
	Tuple   Tuple   `json:"tuple"`
	Marking Marking `json:"marking"`
	Trace   Trace   `json:"trace"`
}
