package ibmad

import (
	"bytes"
	"encoding/binary"
	"strings"
	"unicode"
)

var be = binary.BigEndian

// NodeType is the type of a node.
type NodeType uint8

// Node types (IBA volume 1, 14.2.5.3).
const (
	NodeHCA    NodeType = 1
	NodeSwitch NodeType = 2
	NodeRouter NodeType = 3
)

func (t NodeType) String() string {
	switch t {
	case NodeHCA:
		return "HCA"
	case NodeSwitch:
		return "switch"
	case NodeRouter:
		return "router"
	}
	return "unknown"
}

// NodeInfo is IBA volume 1, 14.2.5.3.
type NodeInfo struct {
	BaseVersion  uint8
	ClassVersion uint8
	Type         NodeType
	Ports        uint8 // physical ports, a switch's port 0 not counted
	SystemGUID   GUID
	GUID         GUID
	PortGUID     GUID
	Partitions   uint16
	DeviceID     uint16
	Revision     uint32
	LocalPort    uint8  // the port by which the request arrived
	VendorID     uint32 // 24 bits, an OUI
}

// Decode reads the attribute.
func (n *NodeInfo) Decode(d *Data) {
	*n = NodeInfo{
		BaseVersion: d[0], ClassVersion: d[1], Type: NodeType(d[2]), Ports: d[3],
		SystemGUID: GUID(be.Uint64(d[4:])), GUID: GUID(be.Uint64(d[12:])), PortGUID: GUID(be.Uint64(d[20:])),
		Partitions: be.Uint16(d[28:]), DeviceID: be.Uint16(d[30:]), Revision: be.Uint32(d[32:]),
		LocalPort: d[36], VendorID: be.Uint32(d[36:]) & 0xffffff,
	}
}

// Encode writes the attribute.
func (n *NodeInfo) Encode(d *Data) {
	d[0], d[1], d[2], d[3] = n.BaseVersion, n.ClassVersion, uint8(n.Type), n.Ports
	be.PutUint64(d[4:], uint64(n.SystemGUID))
	be.PutUint64(d[12:], uint64(n.GUID))
	be.PutUint64(d[20:], uint64(n.PortGUID))
	be.PutUint16(d[28:], n.Partitions)
	be.PutUint16(d[30:], n.DeviceID)
	be.PutUint32(d[32:], n.Revision)
	be.PutUint32(d[36:], uint32(n.LocalPort)<<24|n.VendorID&0xffffff)
}

// NodeDescription is the name of a node: 64 octets, UTF-8 by custom (IBA volume
// 1, 14.2.5.2).
type NodeDescription string

// Decode reads the name up to its first NUL. The name is not trusted: characters that are not printable, or not
// UTF-8, become question marks.
func (n *NodeDescription) Decode(d *Data) {
	name, _, _ := bytes.Cut(d[:64], []byte{0})
	*n = NodeDescription(strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.TrimSpace(string(name))))
}

// Encode writes the name, cut to 64 octets.
func (n *NodeDescription) Encode(d *Data) {
	clear(d[:64])
	copy(d[:64], *n)
}

// SwitchInfo is IBA volume 1, 14.2.5.4.
type SwitchInfo struct {
	LinearCap          uint16 // capacity of the forwarding table
	RandomCap          uint16
	MulticastCap       uint16
	LinearTop          LID // the highest LID with a forwarding entry
	DefaultPort        uint8
	LifeTime           uint8 // packets live 4.096 us * 2^LifeTime in the switch
	StateChange        bool  // a port changed its state and the subnet manager has not seen it
	OptimizedSLtoVL    uint8
	LIDsPerPort        uint16
	PartitionEnforce   uint16
	EnhancedPort0      bool
	MulticastTop       uint16
	DefaultMcast       uint8
	DefaultMcastNonPri uint8
	FilterFlags        uint8 // inbound and outbound partition enforcement and raw filters
}

// Decode reads the attribute.
func (s *SwitchInfo) Decode(d *Data) {
	*s = SwitchInfo{
		LinearCap: be.Uint16(d[0:]), RandomCap: be.Uint16(d[2:]), MulticastCap: be.Uint16(d[4:]), LinearTop: LID(be.Uint16(d[6:])),
		DefaultPort: d[8], DefaultMcast: d[9], DefaultMcastNonPri: d[10],
		LifeTime: d[11] >> 3, StateChange: d[11]&4 != 0, OptimizedSLtoVL: d[11] & 3,
		LIDsPerPort: be.Uint16(d[12:]), PartitionEnforce: be.Uint16(d[14:]),
		FilterFlags: d[16] >> 4, EnhancedPort0: d[16]&8 != 0, MulticastTop: be.Uint16(d[18:]),
	}
}

// Encode writes the attribute.
func (s *SwitchInfo) Encode(d *Data) {
	be.PutUint16(d[0:], s.LinearCap)
	be.PutUint16(d[2:], s.RandomCap)
	be.PutUint16(d[4:], s.MulticastCap)
	be.PutUint16(d[6:], uint16(s.LinearTop))
	d[8], d[9], d[10] = s.DefaultPort, s.DefaultMcast, s.DefaultMcastNonPri
	d[11] = s.LifeTime<<3 | s.OptimizedSLtoVL&3
	if s.StateChange {
		d[11] |= 4
	}
	be.PutUint16(d[12:], s.LIDsPerPort)
	be.PutUint16(d[14:], s.PartitionEnforce)
	d[16] = s.FilterFlags << 4
	if s.EnhancedPort0 {
		d[16] |= 8
	}
	be.PutUint16(d[18:], s.MulticastTop)
}

// PortState is the logical state of a port (IBA volume 1, 14.2.5.6).
type PortState uint8

// Logical states.
const (
	PortDown   PortState = 1
	PortInit   PortState = 2
	PortArmed  PortState = 3
	PortActive PortState = 4
)

func (s PortState) String() string {
	switch s {
	case PortDown:
		return "down"
	case PortInit:
		return "init"
	case PortArmed:
		return "armed"
	case PortActive:
		return "active"
	}
	return "unknown"
}

// PhysState is the physical state of a port (IBA volume 1, 14.2.5.6).
type PhysState uint8

// Physical states.
const (
	PhysSleep    PhysState = 1
	PhysPolling  PhysState = 2
	PhysDisabled PhysState = 3
	PhysTraining PhysState = 4
	PhysLinkUp   PhysState = 5
	PhysRecovery PhysState = 6
	PhysTest     PhysState = 7
)

func (s PhysState) String() string {
	names := [...]string{1: "sleep", "polling", "disabled", "training", "link_up", "error_recovery", "phy_test"}
	if s == 0 || int(s) >= len(names) {
		return "unknown"
	}
	return names[s]
}

// Capability bits of PortInfo (IBA volume 1, 14.2.5.6).
const (
	CapIsSM               = 1 << 1
	CapExtendedLinkSpeeds = 1 << 14
	CapCapabilityMask2    = 1 << 15

	Cap2PortInfoExtended = 1 << 1 // in Capabilities2
	CapExtendedFECMode   = 1 << 0 // in PortInfoExtended
)

// PortInfo is IBA volume 1, 14.2.5.6, with the fields that a reader needs.
type PortInfo struct {
	MKey             MKey // 0 when the node hides it
	GIDPrefix        uint64
	LID              LID
	MasterSMLID      LID
	Capabilities     uint32
	Capabilities2    uint16
	MKeyLease        uint16 // seconds
	MKeyProtection   uint8
	LocalPort        uint8
	State            PortState
	PhysState        PhysState
	WidthEnabled     uint8
	WidthSupported   uint8
	WidthActive      uint8
	SpeedEnabled     uint8
	SpeedSupported   uint8
	SpeedActive      uint8
	SpeedExtEnabled  uint8
	SpeedExtSupport  uint8
	SpeedExtActive   uint8
	SpeedExt2Active  uint8 // SpeedExt2XDR, if the port runs at a speed above those of SpeedExtActive
	LMC              uint8
	NeighborMTU      uint8 // 1 to 5: 256 to 4096 octets
	MTUCap           uint8
	VLCap            uint8
	OperationalVLs   uint8 // 1 to 5: VL0, to VL1, 3, 7, 14
	MasterSMSL       uint8
	MKeyViolations   uint16
	PKeyViolations   uint16
	QKeyViolations   uint16
	ResponseTime     uint8 // an answer takes at most 4.096 us * 2^ResponseTime
	LocalPhysErrors  uint8
	OverrunErrors    uint8
	SubnetTimeout    uint8
	LinkDownDefault  uint8
	VLStallCount     uint8
	HeadOfQueueLife  uint8
	InitType         uint8
	DiagnosticCode   uint16
	GUIDCap          uint8
	LinkRoundTrip    uint32 // 24 bits, in 4 ns
	VLArbitrationCap [2]uint8
	VLHighLimit      uint8
}

// Decode reads the attribute.
func (p *PortInfo) Decode(d *Data) {
	*p = PortInfo{
		MKey: MKey(be.Uint64(d[0:])), GIDPrefix: be.Uint64(d[8:]), LID: LID(be.Uint16(d[16:])), MasterSMLID: LID(be.Uint16(d[18:])),
		Capabilities: be.Uint32(d[20:]), DiagnosticCode: be.Uint16(d[24:]), MKeyLease: be.Uint16(d[26:]), LocalPort: d[28],
		WidthEnabled: d[29], WidthSupported: d[30], WidthActive: d[31],
		SpeedSupported: d[32] >> 4, State: PortState(d[32] & 15),
		PhysState: PhysState(d[33] >> 4), LinkDownDefault: d[33] & 15,
		MKeyProtection: d[34] >> 6, LMC: d[34] & 7,
		SpeedActive: d[35] >> 4, SpeedEnabled: d[35] & 15,
		NeighborMTU: d[36] >> 4, MasterSMSL: d[36] & 15, VLCap: d[37] >> 4, InitType: d[37] & 15,
		VLHighLimit: d[38], VLArbitrationCap: [2]uint8{d[39], d[40]}, MTUCap: d[41] & 15,
		VLStallCount: d[42] >> 5, HeadOfQueueLife: d[42] & 31, OperationalVLs: d[43] >> 4,
		MKeyViolations: be.Uint16(d[44:]), PKeyViolations: be.Uint16(d[46:]), QKeyViolations: be.Uint16(d[48:]),
		GUIDCap: d[50], SubnetTimeout: d[51] & 31, ResponseTime: d[52] & 31,
		LocalPhysErrors: d[53] >> 4, OverrunErrors: d[53] & 15, LinkRoundTrip: be.Uint32(d[56:]) & 0xffffff,
		Capabilities2: be.Uint16(d[60:]), SpeedExtActive: d[62] >> 4, SpeedExtSupport: d[62] & 15, SpeedExtEnabled: d[63] & 31,
		SpeedExt2Active: d[56] >> 5,
	}
}

// Encode writes the attribute.
func (p *PortInfo) Encode(d *Data) {
	be.PutUint64(d[0:], uint64(p.MKey))
	be.PutUint64(d[8:], p.GIDPrefix)
	be.PutUint16(d[16:], uint16(p.LID))
	be.PutUint16(d[18:], uint16(p.MasterSMLID))
	be.PutUint32(d[20:], p.Capabilities)
	be.PutUint16(d[24:], p.DiagnosticCode)
	be.PutUint16(d[26:], p.MKeyLease)
	d[28], d[29], d[30], d[31] = p.LocalPort, p.WidthEnabled, p.WidthSupported, p.WidthActive
	d[32] = p.SpeedSupported<<4 | uint8(p.State)&15
	d[33] = uint8(p.PhysState)<<4 | p.LinkDownDefault&15
	d[34] = p.MKeyProtection<<6 | p.LMC&7
	d[35] = p.SpeedActive<<4 | p.SpeedEnabled&15
	d[36] = p.NeighborMTU<<4 | p.MasterSMSL&15
	d[37] = p.VLCap<<4 | p.InitType&15
	d[38], d[39], d[40], d[41] = p.VLHighLimit, p.VLArbitrationCap[0], p.VLArbitrationCap[1], p.MTUCap&15
	d[42] = p.VLStallCount<<5 | p.HeadOfQueueLife&31
	d[43] = p.OperationalVLs << 4
	be.PutUint16(d[44:], p.MKeyViolations)
	be.PutUint16(d[46:], p.PKeyViolations)
	be.PutUint16(d[48:], p.QKeyViolations)
	d[50], d[51], d[52] = p.GUIDCap, p.SubnetTimeout&31, p.ResponseTime&31
	d[53] = p.LocalPhysErrors<<4 | p.OverrunErrors&15
	be.PutUint32(d[56:], uint32(p.SpeedExt2Active)<<29|p.LinkRoundTrip&0xffffff)
	be.PutUint16(d[60:], p.Capabilities2)
	d[62] = p.SpeedExtActive<<4 | p.SpeedExtSupport&15
	d[63] = p.SpeedExtEnabled & 31
}

// SpeedExt2XDR is LinkSpeedExtActive2 of a port at XDR: the upper three bits of octet 56, as Linux 6.9 (mlx5_query_mad_ifc_port) and rdma-core's
// libibmad read them. They were reserved before, so that they are 0 where a port knows of no such speed.
const SpeedExt2XDR = 1

// MellanoxFDR10 is the bit of FDR10 in the speeds of MellanoxPortInfo.
const MellanoxFDR10 = 1

// MellanoxPortInfo holds the speeds of a port at FDR10, whose PortInfo says QDR. Its layout is that of infiniband-diags 2.1 (libibmad/src/fields.c) and
// of Linux (drivers/infiniband/hw/mlx5/mad.c), which reads octet 15.
type MellanoxPortInfo struct {
	SpeedSupported, SpeedEnabled, SpeedActive uint8
}

// Decode reads the attribute.
func (p *MellanoxPortInfo) Decode(d *Data) {
	*p = MellanoxPortInfo{SpeedSupported: d[7], SpeedEnabled: d[11], SpeedActive: d[15]}
}

// Encode writes the attribute.
func (p *MellanoxPortInfo) Encode(d *Data) {
	d[7], d[11], d[15] = p.SpeedSupported, p.SpeedEnabled, p.SpeedActive
}

// bullVendor is the OUI of Bull, whose devices with Mellanox's chips have numbers of their own.
const bullVendor = 0x119f

// bullDevices are the devices of Bull that have MellanoxPortInfo.
var bullDevices = map[uint16]bool{
	0x1b02: true, 0x1b50: true, 0x1ba0: true, 0x1bd0: true, 0x1bd1: true, 0x1bd2: true, 0x1bd3: true, 0x1bd4: true, 0x1bd5: true, // switches
	0x1b33: true, 0x1b73: true, 0x1b40: true, 0x1b41: true, 0x1b60: true, 0x1b61: true, 0x1b83: true, 0x1b93: true, 0x1b94: true,
	0x1bb4: true, 0x1bb5: true, 0x1bc4: true,
}

// HasMellanoxPortInfo reports whether a device has MellanoxPortInfo: SwitchX, Switch-IB 1 and 2, and ConnectX-3 to ConnectX-5, as infiniband-diags 2.1
// lists them (is_mlnx_ext_port_info_supported). No other device is sent the request.
func HasMellanoxPortInfo(vendor uint32, device uint16) bool {
	switch {
	case vendor == bullVendor:
		return bullDevices[device]
	case device >= 0xc738 && device <= 0xc73b, device == 0xcb20, device == 0xcf08:
		return true
	}
	return device >= 0x1003 && device <= 0x1017
}

// ActiveLanes returns the active width, or 0 when it is not a single width.
func (p *PortInfo) ActiveLanes() int {
	switch p.WidthActive {
	case 1:
		return 1
	case 2:
		return 4
	case 4:
		return 8
	case 8:
		return 12
	case 16:
		return 2
	}
	return 0
}

// laneRates lists data rates of a lane in bit/s after line coding, by the name of the speed (IBA volume 1,
// 14.2.5.6; volume 2, chapter 5).
var (
	laneRates    = map[uint8]uint64{1: 2e9, 2: 4e9, 4: 8e9}
	laneRatesExt = map[uint8]uint64{1: 13_636_363_636, 2: 25e9, 4: 50e9, 8: 100e9}
)

const laneRateXDR = 200e9

// BitsPerSecond returns the data rate of the active width and speed after line coding: 100e9 for 4x EDR. ok is
// false when the port does not report a speed, or reports an unknown one.
func (p *PortInfo) BitsPerSecond() (rate uint64, ok bool) {
	lane, ok := laneRatesExt[p.SpeedExtActive]
	switch {
	case p.SpeedExt2Active != 0:
		lane, ok = laneRateXDR, p.SpeedExt2Active == SpeedExt2XDR
	case p.SpeedExtActive == 0:
		lane, ok = laneRates[p.SpeedActive]
	}
	lanes := uint64(p.ActiveLanes())
	return lane * lanes, ok && lanes != 0
}

// FECMode is the error correction of a port.
type FECMode uint16

// Error correction modes, FECModeActive of PortInfoExtended.
const (
	FECNone FECMode = iota
	FECFire
	FECReedSolomon
	FECReedSolomonLowLatency
	FECReedSolomon2 // the one of HDR and faster
)

// ReedSolomon reports whether AttrPortExtendedSpeeds has the counters of ReedSolomonCounters.
func (m FECMode) ReedSolomon() bool { return m >= FECReedSolomon && m <= FECReedSolomon2 }

// PortInfoExtended holds the error correction of a port; its other fields are not read.
type PortInfoExtended struct {
	Capabilities uint32
	FECMode      FECMode
}

// Decode reads the attribute.
func (p *PortInfoExtended) Decode(d *Data) {
	*p = PortInfoExtended{Capabilities: be.Uint32(d[0:]), FECMode: FECMode(be.Uint16(d[4:]))}
}

// Encode writes the attribute.
func (p *PortInfoExtended) Encode(d *Data) {
	be.PutUint32(d[0:], p.Capabilities)
	be.PutUint16(d[4:], uint16(p.FECMode))
}

// NoRoute in a forwarding table means that packets to the LID are dropped (IBA
// volume 1, 14.2.5.10).
const NoRoute = 255

// ForwardingBlock is 64 consecutive entries of a linear forwarding table: the
// egress port of LID 64*block+i.
type ForwardingBlock [64]uint8

// Decode reads the attribute.
func (f *ForwardingBlock) Decode(d *Data) { copy(f[:], d[:64]) }

// Encode writes the attribute.
func (f *ForwardingBlock) Encode(d *Data) { copy(d[:64], f[:]) }

// SLtoVL is the virtual lane of each service level; 15 drops the packet (IBA
// volume 1, 14.2.5.8).
type SLtoVL [16]uint8

// Decode reads the attribute.
func (s *SLtoVL) Decode(d *Data) {
	for i := range s {
		s[i] = d[i/2] >> (4 - i%2*4) & 15
	}
}

// Encode writes the attribute.
func (s *SLtoVL) Encode(d *Data) {
	for i := range 8 {
		d[i] = s[2*i]<<4 | s[2*i+1]&15
	}
}
