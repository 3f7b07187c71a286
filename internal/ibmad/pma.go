package ibmad

import "fmt"

// ClassPortInfo holds the capabilities of the performance agent of a node (IBA volume 1, 13.4.8.1 and
// 16.1.3.1).
type ClassPortInfo struct {
	BaseVersion   uint8
	ClassVersion  uint8
	Capabilities  uint16
	Capabilities2 uint32 // 27 bits
	ResponseTime  uint8  // an answer takes at most 4.096 us * 2^ResponseTime
	RedirectLID   LID
}

// Capabilities of a performance agent (IBA volume 1, 16.1.3.1).
const (
	PMAllPortSelect         = 1 << 8
	PMExtendedWidth         = 1 << 9  // PortCountersExtended, all of it
	PMExtendedWidthNoIETF   = 1 << 10 // PortCountersExtended without unicast and multicast
	PMPortCountersXmitWait  = 1 << 12
	PMReedSolomonCounters   = 1 << 14
	PMQP1Dropped            = 1 << 15
	PM2AdditionalExtendedEr = 1 << 1 // PortCountersExtended has the error counters as well
)

// Decode reads the attribute.
func (c *ClassPortInfo) Decode(d *Data) {
	*c = ClassPortInfo{
		BaseVersion: d[0], ClassVersion: d[1], Capabilities: be.Uint16(d[2:]),
		Capabilities2: be.Uint32(d[4:]) >> 5, ResponseTime: d[7] & 31, RedirectLID: LID(be.Uint16(d[28:])),
	}
}

// Encode writes the attribute.
func (c *ClassPortInfo) Encode(d *Data) {
	d[0], d[1] = c.BaseVersion, c.ClassVersion
	be.PutUint16(d[2:], c.Capabilities)
	be.PutUint32(d[4:], c.Capabilities2<<5|uint32(c.ResponseTime&31))
	be.PutUint16(d[28:], uint16(c.RedirectLID))
}

// HasExtendedCounters reports whether the node has PortCountersExtended.
func (c *ClassPortInfo) HasExtendedCounters() bool {
	return c.Capabilities&(PMExtendedWidth|PMExtendedWidthNoIETF) != 0
}

// Unit is the unit of a counter.
type Unit uint8

// Units of counters.
const (
	Events Unit = iota
	Words       // of 4 octets (IBA volume 1, 16.1.3.5: PortXmitData)
	Packets
	Ticks   // of the port's own sampling clock (IBA volume 1, 16.1.3.2: Tick)
	Blocks  // of the error correction
	Symbols // of the error correction
)

// Index is the kind of index that distinguishes counters of one name.
type Index uint8

// Indices of counters.
const (
	Single  Index = iota
	PerLane       // a physical lane of the port
	PerVL         // a virtual lane
	PerSL         // a service level
)

// Counter describes one counter of an attribute. It saturates: the value Max means "at least", and nothing is
// counted until a reset (IBA volume 1, 16.1.3.5).
type Counter struct {
	Attribute Attribute
	Name      string // as in MAD queries; counters of one family share it
	Unit      Unit
	Index     Index
	Number    uint8  // lane, virtual lane or service level
	Bits      uint8  // width: 4, 8, 16, 32 or 64
	offset    uint16 // in bits, from the start of the attribute
	// RequiredCaps and RequiredCaps2 are capabilities without which a node lacks the counter although it has
	// the attribute.
	RequiredCaps  uint16
	RequiredCaps2 uint32
}

// MaxValue returns the value at which the counter stands still.
func (c *Counter) MaxValue() uint64 { return 1<<(c.Bits-1)<<1 - 1 }

// DecodeValue reads the counter from its attribute.
func (c *Counter) DecodeValue(d *Data) uint64 {
	at := c.offset / 8
	switch c.Bits {
	case 64:
		return be.Uint64(d[at:])
	case 32:
		return uint64(be.Uint32(d[at:]))
	case 16:
		return uint64(be.Uint16(d[at:]))
	case 8:
		return uint64(d[at])
	}
	return uint64(d[at] >> (4 - c.offset%8) & 15)
}

// EncodeValue writes the counter into its attribute, saturated at MaxValue.
func (c *Counter) EncodeValue(d *Data, v uint64) {
	v = min(v, c.MaxValue())
	at := c.offset / 8
	switch c.Bits {
	case 64:
		be.PutUint64(d[at:], v)
	case 32:
		be.PutUint32(d[at:], uint32(v))
	case 16:
		be.PutUint16(d[at:], uint16(v))
	case 8:
		d[at] = uint8(v)
	default:
		shift := 4 - c.offset%8
		d[at] = d[at]&^(15<<shift) | uint8(v)<<shift
	}
}

// SupportedBy reports whether a node with this ClassPortInfo has the counter.
func (c *Counter) SupportedBy(info *ClassPortInfo) bool {
	if c.Attribute == AttrPortCountersExtended && !info.HasExtendedCounters() {
		return false
	}
	return info.Capabilities&c.RequiredCaps == c.RequiredCaps && info.Capabilities2&c.RequiredCaps2 == c.RequiredCaps2
}

func (c *Counter) String() string {
	switch c.Index {
	case PerLane:
		return fmt.Sprintf("%v.%sLane%d", c.Attribute, c.Name, c.Number)
	case PerVL, PerSL:
		return fmt.Sprintf("%v.%s%d", c.Attribute, c.Name, c.Number)
	}
	return fmt.Sprintf("%v.%s", c.Attribute, c.Name)
}

// CountersOf returns the counters of an attribute in the order of the wire, or nil if it has none. With
// Reed-Solomon error correction active (FECMode), AttrPortExtendedSpeeds has another layout:
// ReedSolomonCounters.
func CountersOf(a Attribute) []Counter { return counters[a] }

// ReedSolomonCounters returns the counters of AttrPortExtendedSpeeds for a port whose active error correction
// is a Reed-Solomon one.
func ReedSolomonCounters() []Counter { return reedSolomon }

// CounterAttributes returns the attributes that have counters.
func CounterAttributes() []Attribute {
	return []Attribute{
		AttrPortCounters, AttrPortCountersExtended, AttrPortXmitDiscardDetails, AttrPortRcvErrorDetails, AttrPortVLXmitWait,
		AttrPortExtendedSpeeds, AttrPortXmitDataSL, AttrPortRcvDataSL, AttrPortRcvConCtrl, AttrPortSLRcvFECN, AttrPortSLRcvBECN,
	}
}

// counterFamily returns n consecutive counters.
func counterFamily(name string, unit Unit, index Index, n int, offset, bits uint16) []Counter {
	list := make([]Counter, n)
	for i := range list {
		list[i] = Counter{Name: name, Unit: unit, Index: index, Number: uint8(i), Bits: uint8(bits), offset: offset + uint16(i)*bits}
	}
	return list
}

// withAttribute returns the counters of the lists as those of one attribute.
func withAttribute(a Attribute, lists ...[]Counter) []Counter {
	var all []Counter
	for _, list := range lists {
		for _, c := range list {
			c.Attribute = a
			all = append(all, c)
		}
	}
	return all
}

// Sizes of families in the attributes: physical lanes, and virtual lanes or service levels.
const (
	lanesMax  = 12
	levelsMax = 16
)

var counters = map[Attribute][]Counter{
	// IBA volume 1, 16.1.3.5
	AttrPortCounters: withAttribute(AttrPortCounters, []Counter{
		{Name: "SymbolErrorCounter", offset: 32, Bits: 16},
		{Name: "LinkErrorRecoveryCounter", offset: 48, Bits: 8},
		{Name: "LinkDownedCounter", offset: 56, Bits: 8},
		{Name: "PortRcvErrors", offset: 64, Bits: 16},
		{Name: "PortRcvRemotePhysicalErrors", offset: 80, Bits: 16},
		{Name: "PortRcvSwitchRelayErrors", offset: 96, Bits: 16},
		{Name: "PortXmitDiscards", offset: 112, Bits: 16},
		{Name: "PortXmitConstraintErrors", offset: 128, Bits: 8},
		{Name: "PortRcvConstraintErrors", offset: 136, Bits: 8},
		{Name: "LocalLinkIntegrityErrors", offset: 152, Bits: 4},
		{Name: "ExcessiveBufferOverrunErrors", offset: 156, Bits: 4},
		{Name: "QP1Dropped", offset: 160, Bits: 16, RequiredCaps: PMQP1Dropped},
		{Name: "VL15Dropped", offset: 176, Bits: 16},
		{Name: "PortXmitData", Unit: Words, offset: 192, Bits: 32},
		{Name: "PortRcvData", Unit: Words, offset: 224, Bits: 32},
		{Name: "PortXmitPkts", Unit: Packets, offset: 256, Bits: 32},
		{Name: "PortRcvPkts", Unit: Packets, offset: 288, Bits: 32},
		{Name: "PortXmitWait", Unit: Ticks, offset: 320, Bits: 32, RequiredCaps: PMPortCountersXmitWait},
	}),
	// The optional attributes: IBA volume 1, 16.1.4; offsets as in libibmad.
	AttrPortCountersExtended: withAttribute(AttrPortCountersExtended, []Counter{
		{Name: "PortXmitData", Unit: Words, offset: 64, Bits: 64},
		{Name: "PortRcvData", Unit: Words, offset: 128, Bits: 64},
		{Name: "PortXmitPkts", Unit: Packets, offset: 192, Bits: 64},
		{Name: "PortRcvPkts", Unit: Packets, offset: 256, Bits: 64},
		{Name: "PortUnicastXmitPkts", Unit: Packets, offset: 320, Bits: 64, RequiredCaps: PMExtendedWidth},
		{Name: "PortUnicastRcvPkts", Unit: Packets, offset: 384, Bits: 64, RequiredCaps: PMExtendedWidth},
		{Name: "PortMulticastXmitPkts", Unit: Packets, offset: 448, Bits: 64, RequiredCaps: PMExtendedWidth},
		{Name: "PortMulticastRcvPkts", Unit: Packets, offset: 512, Bits: 64, RequiredCaps: PMExtendedWidth},
		{Name: "SymbolErrorCounter", offset: 576, Bits: 64, RequiredCaps2: PM2AdditionalExtendedEr},
		{Name: "LinkErrorRecoveryCounter", offset: 640, Bits: 64, RequiredCaps2: PM2AdditionalExtendedEr},
		{Name: "LinkDownedCounter", offset: 704, Bits: 64, RequiredCaps2: PM2AdditionalExtendedEr},
		{Name: "PortRcvErrors", offset: 768, Bits: 64, RequiredCaps2: PM2AdditionalExtendedEr},
		{Name: "PortRcvRemotePhysicalErrors", offset: 832, Bits: 64, RequiredCaps2: PM2AdditionalExtendedEr},
		{Name: "PortRcvSwitchRelayErrors", offset: 896, Bits: 64, RequiredCaps2: PM2AdditionalExtendedEr},
		{Name: "PortXmitDiscards", offset: 960, Bits: 64, RequiredCaps2: PM2AdditionalExtendedEr},
		{Name: "PortXmitConstraintErrors", offset: 1024, Bits: 64, RequiredCaps2: PM2AdditionalExtendedEr},
		{Name: "PortRcvConstraintErrors", offset: 1088, Bits: 64, RequiredCaps2: PM2AdditionalExtendedEr},
		{Name: "LocalLinkIntegrityErrors", offset: 1152, Bits: 64, RequiredCaps2: PM2AdditionalExtendedEr},
		{Name: "ExcessiveBufferOverrunErrors", offset: 1216, Bits: 64, RequiredCaps2: PM2AdditionalExtendedEr},
		{Name: "VL15Dropped", offset: 1280, Bits: 64, RequiredCaps2: PM2AdditionalExtendedEr},
		{Name: "PortXmitWait", Unit: Ticks, offset: 1344, Bits: 64, RequiredCaps2: PM2AdditionalExtendedEr},
		{Name: "QP1Dropped", offset: 1408, Bits: 64, RequiredCaps2: PM2AdditionalExtendedEr},
	}),
	AttrPortRcvErrorDetails: withAttribute(AttrPortRcvErrorDetails, []Counter{
		{Name: "PortLocalPhysicalErrors", offset: 32, Bits: 16},
		{Name: "PortMalformedPktErrors", offset: 48, Bits: 16},
		{Name: "PortBufferOverrunErrors", offset: 64, Bits: 16},
		{Name: "PortDLIDMappingErrors", offset: 80, Bits: 16},
		{Name: "PortVLMappingErrors", offset: 96, Bits: 16},
		{Name: "PortLoopingErrors", offset: 112, Bits: 16},
	}),
	AttrPortXmitDiscardDetails: withAttribute(AttrPortXmitDiscardDetails, []Counter{
		{Name: "PortInactiveDiscards", offset: 32, Bits: 16},
		{Name: "PortNeighborMTUDiscards", offset: 48, Bits: 16},
		{Name: "PortSwLifetimeLimitDiscards", offset: 64, Bits: 16},
		{Name: "PortSwHOQLifetimeLimitDiscards", offset: 80, Bits: 16},
	}),
	AttrPortVLXmitWait: withAttribute(AttrPortVLXmitWait, counterFamily("PortVLXmitWait", Ticks, PerVL, levelsMax, 32, 16)),
	AttrPortExtendedSpeeds: withAttribute(AttrPortExtendedSpeeds, blockErrors(),
		counterFamily("ErrorDetectionCounter", Events, PerLane, lanesMax, 160, 16),
		counterFamily("FECCorrectableBlockCtr", Blocks, PerLane, lanesMax, 352, 32),
		counterFamily("FECUncorrectableBlockCtr", Blocks, PerLane, lanesMax, 736, 32)),
	AttrPortXmitDataSL: withAttribute(AttrPortXmitDataSL, counterFamily("XmtDataSL", Words, PerSL, levelsMax, 32, 32)),
	AttrPortRcvDataSL:  withAttribute(AttrPortRcvDataSL, counterFamily("RcvDataSL", Words, PerSL, levelsMax, 32, 32)),
	// Congestion control: IBA volume 1, annex A10
	AttrPortRcvConCtrl: withAttribute(AttrPortRcvConCtrl, []Counter{
		{Name: "PortPktRcvFECN", Unit: Packets, offset: 32, Bits: 32},
		{Name: "PortPktRcvBECN", Unit: Packets, offset: 64, Bits: 32},
	}),
	AttrPortSLRcvFECN: withAttribute(AttrPortSLRcvFECN, counterFamily("PortSLRcvFECN", Packets, PerSL, levelsMax, 32, 32)),
	AttrPortSLRcvBECN: withAttribute(AttrPortSLRcvBECN, counterFamily("PortSLRcvBECN", Packets, PerSL, levelsMax, 32, 32)),
}

var reedSolomon = withAttribute(AttrPortExtendedSpeeds, blockErrors(),
	counterFamily("FECCorrectableSymbolCtr", Symbols, PerLane, lanesMax, 352, 32),
	[]Counter{
		{Name: "PortFECCorrectableBlockCtr", Unit: Blocks, offset: 1120, Bits: 32},
		{Name: "PortFECUncorrectableBlockCtr", Unit: Blocks, offset: 1152, Bits: 32},
		{Name: "PortFECCorrectedSymbolCtr", Unit: Symbols, offset: 1184, Bits: 32},
	})

func blockErrors() []Counter {
	return []Counter{
		{Name: "SyncHeaderErrorCounter", offset: 128, Bits: 16},
		{Name: "UnknownBlockCounter", Unit: Blocks, offset: 144, Bits: 16},
	}
}
