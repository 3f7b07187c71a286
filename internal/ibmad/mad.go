package ibmad

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
)

// Size of a management datagram in octets (IBA volume 1, 13.4.2).
const Size = 256

// MAD is one management datagram as it is on the wire.
type MAD [Size]byte

// Data is the attribute of a datagram: octets 64 to 255. Subnet management uses the first 64 of them (IBA
// volume 1, 14.2.1), performance management all (16.1.1).
type Data [Size - dataOffset]byte

// Offsets in a datagram (IBA volume 1, 13.4.2, 14.2.1.1, 14.2.1.2).
const (
	dataOffset        = 64
	initialPathOffset = 128

	baseVersion  = 1
	classVersion = 1

	classSubnetLID      = 0x01
	classSubnetDirected = 0x81
	classPerformance    = 0x04

	methodGet         = 0x01
	methodGetResponse = 0x81

	directionBit  = 0x8000 // in the status of a directed answer
	permissiveLID = 0xffff
)

// GUID is a global identifier of a node, a system or a port.
type GUID uint64

func (g GUID) String() string { return fmt.Sprintf("0x%016x", uint64(g)) }

// LID is a local identifier: 1 to 0xbfff for one port, 0 for none.
type LID uint16

// MaxUnicastLID is the highest LID of a single port (IBA volume 1, 4.1.3).
const MaxUnicastLID LID = 0xbfff

// MKey is the management key of the subnet. A node whose protection requires another key drops the request: a
// wrong key looks like silence. It is printed and logged as "set" or "none" only.
type MKey uint64

func (k MKey) String() string {
	if k == 0 {
		return "none"
	}
	return "set"
}

// GoString hides the key from %#v.
func (k MKey) GoString() string { return k.String() }

// Format hides the key from every verb.
func (k MKey) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(k.String())) }

// LogValue hides the key from logs.
func (k MKey) LogValue() slog.Value { return slog.StringValue(k.String()) }

// MaxHops is the longest directed route (IBA volume 1, 14.2.1.2).
const MaxHops = 63

// Path is a directed route: the egress port at each hop, the first one at the node that sends the request. The
// zero Path is that node itself. Paths are comparable.
type Path struct {
	hops uint8
	port [MaxHops]uint8
}

// ErrTooLong means that a directed route has no room for another hop.
var ErrTooLong = fmt.Errorf("a directed route has at most %d hops", MaxHops)

// AppendHop returns the route extended by one more egress port. Its error is ErrTooLong.
func (p Path) AppendHop(port uint8) (Path, error) {
	if p.hops == MaxHops {
		return Path{}, ErrTooLong
	}
	p.port[p.hops] = port
	p.hops++
	return p, nil
}

// HopCount returns the number of links that the route crosses.
func (p Path) HopCount() int { return int(p.hops) }

// EgressPorts returns the egress ports in order.
func (p Path) EgressPorts() []uint8 { return append([]uint8(nil), p.port[:p.hops]...) }

// String writes the route as the diagnostic tools do: "0,1,13".
func (p Path) String() string {
	var b strings.Builder
	b.WriteByte('0')
	for _, port := range p.port[:p.hops] {
		b.WriteByte(',')
		b.WriteString(strconv.Itoa(int(port)))
	}
	return b.String()
}

// Address is the destination of a request: a LID or, when that is 0, the end of a directed route. The zero
// Address is the node of the sending port. Addresses are comparable.
type Address struct {
	LID  LID
	Path Path
}

// ToLID returns the address of a LID.
func ToLID(lid LID) Address { return Address{LID: lid} }

// AlongRoute returns the address at the end of a directed route.
func AlongRoute(p Path) Address { return Address{Path: p} }

func (a Address) String() string {
	if a.LID != 0 {
		return "lid " + strconv.Itoa(int(a.LID))
	}
	return "route " + a.Path.String()
}

// Attribute identifies what is read: the class in the upper half, the attribute id in the lower.
type Attribute uint32

// Attributes of subnet management (IBA volume 1, 14.2.5).
const (
	AttrNodeDescription  Attribute = classSubnetLID<<16 | 0x10
	AttrNodeInfo         Attribute = classSubnetLID<<16 | 0x11
	AttrSwitchInfo       Attribute = classSubnetLID<<16 | 0x12
	AttrPortInfo         Attribute = classSubnetLID<<16 | 0x15
	AttrSLtoVL           Attribute = classSubnetLID<<16 | 0x17
	AttrForwardingTable  Attribute = classSubnetLID<<16 | 0x19
	AttrPortInfoExtended Attribute = classSubnetLID<<16 | 0x33

	// AttrMellanoxPortInfo is of Mellanox and not of IBA: MLNX ExtendedPortInfo of infiniband-diags 2.1, and MLX5_ATTR_EXTENDED_PORT_INFO of Linux.
	AttrMellanoxPortInfo Attribute = classSubnetLID<<16 | 0xff90
)

// Attributes of performance management (IBA volume 1, 16.1.3 and 16.1.4).
const (
	AttrClassPortInfo          Attribute = classPerformance<<16 | 0x01
	AttrPortCounters           Attribute = classPerformance<<16 | 0x12
	AttrPortRcvErrorDetails    Attribute = classPerformance<<16 | 0x15
	AttrPortXmitDiscardDetails Attribute = classPerformance<<16 | 0x16
	AttrPortVLXmitWait         Attribute = classPerformance<<16 | 0x1c
	AttrPortCountersExtended   Attribute = classPerformance<<16 | 0x1d
	AttrPortExtendedSpeeds     Attribute = classPerformance<<16 | 0x1f
	AttrPortRcvConCtrl         Attribute = classPerformance<<16 | 0x31
	AttrPortSLRcvFECN          Attribute = classPerformance<<16 | 0x32
	AttrPortSLRcvBECN          Attribute = classPerformance<<16 | 0x33
	AttrPortXmitDataSL         Attribute = classPerformance<<16 | 0x36
	AttrPortRcvDataSL          Attribute = classPerformance<<16 | 0x37
)

var attributeNames = map[Attribute]string{
	AttrNodeDescription: "NodeDescription", AttrNodeInfo: "NodeInfo", AttrSwitchInfo: "SwitchInfo", AttrPortInfo: "PortInfo",
	AttrSLtoVL: "SLtoVLMappingTable", AttrForwardingTable: "LinearForwardingTable", AttrPortInfoExtended: "PortInfoExtended",
	AttrMellanoxPortInfo: "MellanoxExtendedPortInfo",
	AttrClassPortInfo:    "ClassPortInfo", AttrPortCounters: "PortCounters", AttrPortRcvErrorDetails: "PortRcvErrorDetails",
	AttrPortXmitDiscardDetails: "PortXmitDiscardDetails", AttrPortVLXmitWait: "PortVLXmitWaitCounters",
	AttrPortCountersExtended: "PortCountersExtended", AttrPortExtendedSpeeds: "PortExtendedSpeedsCounters",
	AttrPortRcvConCtrl: "PortRcvConCtrl", AttrPortSLRcvFECN: "PortSLRcvFECN", AttrPortSLRcvBECN: "PortSLRcvBECN",
	AttrPortXmitDataSL: "PortXmitDataSL", AttrPortRcvDataSL: "PortRcvDataSL",
}

func (a Attribute) String() string {
	if name, ok := attributeNames[a]; ok {
		return name
	}
	return fmt.Sprintf("attribute %#04x of class %#02x", uint16(a), uint16(a>>16))
}

// isPerformance reports whether the performance agent (QP1) answers for the attribute.
func (a Attribute) isPerformance() bool { return a>>16 == classPerformance }

// Status is the status of an answer; 0 is success (IBA volume 1, 13.4.7).
type Status uint16

func (s Status) isBusy() bool { return s&1 != 0 }

// invalidCode returns the code of the error in the request.
func (s Status) invalidCode() uint16 { return uint16(s>>2) & 7 }

func (s Status) String() string {
	switch {
	case s == 0:
		return "success"
	case s.isBusy():
		return "busy"
	case s&2 != 0:
		return "redirected"
	}
	switch s.invalidCode() {
	case 1:
		return "class or version not supported"
	case 2:
		return "method not supported"
	case 3:
		return "attribute not supported"
	case 7:
		return "invalid attribute or modifier value"
	}
	return fmt.Sprintf("status %#04x", uint16(s))
}

// Errors that callers find with errors.Is.
var (
	// ErrTimeout means that no attempt was answered.
	ErrTimeout = errors.New("no answer")
	// ErrSilent means that the request was not sent, because the destination had not answered the one before.
	ErrSilent = errors.New("destination is silent")
	// ErrUnsupported holds for a StatusError of an attribute, method or class
	// that the node does not have.
	ErrUnsupported = errors.New("not supported by the node")
	// ErrClosed means that the client was closed.
	ErrClosed = errors.New("client is closed")
)

// StatusError is an answer that refuses the request.
type StatusError struct {
	Request Request
	Status  Status
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%v: %v", e.Request, e.Status)
}

// Is reports that refusals of an attribute, method or class are ErrUnsupported.
func (e *StatusError) Is(target error) bool {
	return target == ErrUnsupported && !e.Status.isBusy() && e.Status.invalidCode() >= 1 && e.Status.invalidCode() <= 3
}

// Data returns the attribute within the datagram.
func (m *MAD) Data() *Data { return (*Data)(m[dataOffset:]) }

// ManagementClass returns the management class octet.
func (m *MAD) ManagementClass() uint8 { return m[1] }

// Attribute returns the attribute that the datagram requests or carries, for both ways of routing.
func (m *MAD) Attribute() Attribute {
	class := Attribute(m[1])
	if class == classSubnetDirected {
		class = classSubnetLID
	}
	return class<<16 | Attribute(binary.BigEndian.Uint16(m[16:]))
}

// AttributeModifier returns the attribute modifier.
func (m *MAD) AttributeModifier() uint32 { return binary.BigEndian.Uint32(m[20:]) }

// TransactionID returns the transaction id as it is on the wire. Transports and kernels use the upper half for
// themselves; only the lower 32 bits come back.
func (m *MAD) TransactionID() uint64 { return binary.BigEndian.Uint64(m[8:]) }

// SetTransactionID sets the transaction id.
func (m *MAD) SetTransactionID(id uint64) { binary.BigEndian.PutUint64(m[8:], id) }

// IsResponse reports whether the datagram is the answer to a Get.
func (m *MAD) IsResponse() bool {
	return m[0] == baseVersion && m[3] == methodGetResponse && (m[1] != classSubnetDirected || m[4]&(directionBit>>8) != 0)
}

// Status returns the answer's status, without the direction bit of directed routes.
func (m *MAD) Status() Status {
	s := binary.BigEndian.Uint16(m[4:])
	if m[1] == classSubnetDirected {
		s &^= directionBit
	}
	return Status(s)
}

// MKey returns the key that the datagram carries (subnet management only).
func (m *MAD) MKey() MKey { return MKey(binary.BigEndian.Uint64(m[24:])) }

// Request is one Get.
type Request struct {
	To        Address
	Attribute Attribute
	Modifier  uint32
	// Port is the PortSelect of a performance attribute; others ignore it.
	Port uint8
	// Tag is set by the caller and returned in the Result.
	Tag int
}

func (r Request) String() string {
	if r.Attribute.isPerformance() {
		return fmt.Sprintf("%v of %v port %d", r.Attribute, r.To, r.Port)
	}
	return fmt.Sprintf("%v/%d of %v", r.Attribute, r.Modifier, r.To)
}

// Encode writes the request into m. It returns an error for a performance attribute with a directed route,
// which does not exist.
func (r *Request) Encode(m *MAD, transaction uint64, key MKey) error {
	*m = MAD{0: baseVersion, 1: uint8(r.Attribute >> 16), 2: classVersion, 3: methodGet}
	m.SetTransactionID(transaction)
	binary.BigEndian.PutUint16(m[16:], uint16(r.Attribute))
	binary.BigEndian.PutUint32(m[20:], r.Modifier)
	if r.Attribute.isPerformance() {
		if r.To.LID == 0 {
			return fmt.Errorf("%v: performance management is reached by LID only", *r)
		}
		m.Data()[1] = r.Port
		return nil
	}
	binary.BigEndian.PutUint64(m[24:], uint64(key))
	if r.To.LID != 0 {
		return nil
	}
	m[1] = classSubnetDirected
	m[7] = r.To.Path.hops // the hop pointer, octet 6, starts at 0
	binary.BigEndian.PutUint16(m[32:], permissiveLID)
	binary.BigEndian.PutUint16(m[34:], permissiveLID)
	copy(m[initialPathOffset+1:], r.To.Path.port[:r.To.Path.hops])
	return nil
}

// DecodeRequest reads what Encode wrote, for the side that answers. lid is the destination of the datagram,
// unless it is directed.
func DecodeRequest(m *MAD, lid LID) (Request, error) {
	if m[0] != baseVersion || m[2] != classVersion || m[3] != methodGet {
		return Request{}, fmt.Errorf("base version %d, class version %d, method %#02x: want 1, 1 and Get", m[0], m[2], m[3])
	}
	r := Request{To: ToLID(lid), Attribute: m.Attribute(), Modifier: m.AttributeModifier()}
	switch m[1] {
	case classPerformance:
		r.Port = m.Data()[1]
	case classSubnetLID:
	case classSubnetDirected:
		if m[7] > MaxHops {
			return Request{}, fmt.Errorf("directed route of %d hops, want at most %d", m[7], MaxHops)
		}
		r.To = Address{Path: Path{hops: m[7]}}
		copy(r.To.Path.port[:m[7]], m[initialPathOffset+1:])
	default:
		return Request{}, fmt.Errorf("class %#02x, want subnet or performance management", m[1])
	}
	return r, nil
}

// MakeResponse turns a request into its answer with this status, and leaves the attribute to the caller. It is
// used by simulators.
func (m *MAD) MakeResponse(s Status) {
	m[3] = methodGetResponse
	if m[1] == classSubnetDirected {
		s |= directionBit
	}
	binary.BigEndian.PutUint16(m[4:], uint16(s))
}
