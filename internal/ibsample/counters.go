package ibsample

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"

	"github.com/graylink/graylink/internal/ibmad"
)

// Counter describes a counter of ports and its series.
type Counter struct {
	ibmad.Counter
	// Field is its name in MAD queries, where Number distinguishes counters of one name.
	Field string
	// Name is the series' name without prefix and "_total". Label and Value distinguish its counters where it
	// has several.
	Name, Label, Value string
	// ReedSolomon marks counters that exist if the port's error correction is a Reed-Solomon one.
	ReedSolomon bool
	// wider lists the counters of the same series that replace this one.
	wider []ID
}

// UnitScale returns the size of one count in the series' unit: data is counted in words of 4 octets.
func (c *Counter) UnitScale() uint64 {
	if c.Unit == ibmad.Words {
		return 4
	}
	return 1
}

// ID is the index of a counter in Counters.
type ID = uint16

// seriesNames maps counters to names of families.
var seriesNames = map[string]struct{ name, label, value string }{
	"SymbolErrorCounter":             {"symbol_errors", "", ""},
	"LinkErrorRecoveryCounter":       {"link_recoveries", "", ""},
	"LinkDownedCounter":              {"link_downed", "", ""},
	"PortRcvErrors":                  {"receive_errors", "reason", "damaged"},
	"PortRcvRemotePhysicalErrors":    {"receive_errors", "reason", "remote_physical"},
	"PortRcvSwitchRelayErrors":       {"receive_errors", "reason", "switch_relay"},
	"PortRcvConstraintErrors":        {"receive_errors", "reason", "constraint"},
	"PortXmitConstraintErrors":       {"transmit_errors", "reason", "constraint"},
	"PortXmitDiscards":               {"transmit_discards", "", ""},
	"LocalLinkIntegrityErrors":       {"local_link_integrity_errors", "", ""},
	"ExcessiveBufferOverrunErrors":   {"buffer_overruns", "", ""},
	"VL15Dropped":                    {"vl15_dropped", "", ""},
	"QP1Dropped":                     {"qp1_dropped", "", ""},
	"PortXmitData":                   {"transmit_bytes", "", ""},
	"PortRcvData":                    {"receive_bytes", "", ""},
	"PortXmitPkts":                   {"transmit_packets", "", ""},
	"PortRcvPkts":                    {"receive_packets", "", ""},
	"PortUnicastXmitPkts":            {"transmit_unicast_packets", "", ""},
	"PortUnicastRcvPkts":             {"receive_unicast_packets", "", ""},
	"PortMulticastXmitPkts":          {"transmit_multicast_packets", "", ""},
	"PortMulticastRcvPkts":           {"receive_multicast_packets", "", ""},
	"PortXmitWait":                   {"transmit_wait_ticks", "", ""},
	"PortLocalPhysicalErrors":        {"receive_error_details", "reason", "local_physical"},
	"PortMalformedPktErrors":         {"receive_error_details", "reason", "malformed"},
	"PortBufferOverrunErrors":        {"receive_error_details", "reason", "buffer_overrun"},
	"PortDLIDMappingErrors":          {"receive_error_details", "reason", "dlid_mapping"},
	"PortVLMappingErrors":            {"receive_error_details", "reason", "vl_mapping"},
	"PortLoopingErrors":              {"receive_error_details", "reason", "looping"},
	"PortInactiveDiscards":           {"transmit_discard_details", "reason", "port_inactive"},
	"PortNeighborMTUDiscards":        {"transmit_discard_details", "reason", "neighbor_mtu"},
	"PortSwLifetimeLimitDiscards":    {"transmit_discard_details", "reason", "lifetime"},
	"PortSwHOQLifetimeLimitDiscards": {"transmit_discard_details", "reason", "head_of_queue_lifetime"},
	"PortVLXmitWait":                 {"vl_transmit_wait_ticks", "vl", ""},
	"XmtDataSL":                      {"sl_transmit_bytes", "sl", ""},
	"RcvDataSL":                      {"sl_receive_bytes", "sl", ""},
	"PortPktRcvFECN":                 {"receive_fecn_packets", "", ""},
	"PortPktRcvBECN":                 {"receive_becn_packets", "", ""},
	"PortSLRcvFECN":                  {"sl_receive_fecn_packets", "sl", ""},
	"PortSLRcvBECN":                  {"sl_receive_becn_packets", "sl", ""},
	"SyncHeaderErrorCounter":         {"sync_header_errors", "", ""},
	"UnknownBlockCounter":            {"unknown_blocks", "", ""},
	"ErrorDetectionCounter":          {"lane_errors", "lane", ""},
	"FECCorrectableBlockCtr":         {"lane_fec_corrected_blocks", "lane", ""},
	"FECUncorrectableBlockCtr":       {"lane_fec_uncorrectable_blocks", "lane", ""},
	"FECCorrectableSymbolCtr":        {"lane_fec_corrected_symbols", "lane", ""},
	"PortFECCorrectableBlockCtr":     {"fec_corrected_blocks", "", ""},
	"PortFECUncorrectableBlockCtr":   {"fec_uncorrectable_blocks", "", ""},
	"PortFECCorrectedSymbolCtr":      {"fec_corrected_symbols", "", ""},
}

// Counters lists every counter that is sampled, those of a query together.
var Counters = allCounters()

// Vocabulary identifies this list of counters. Samplers and delegators with different lists cannot work
// together.
var Vocabulary = func() string {
	h := sha256.New()
	for i := range Counters {
		fmt.Fprintln(h, Counters[i].String(), Counters[i].Bits, Counters[i].ReedSolomon)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}()

func allCounters() []Counter {
	var out []Counter
	add := func(list []ibmad.Counter, reedSolomon bool) {
		for _, c := range list {
			s := seriesNames[c.Name]
			n := Counter{Counter: c, Field: c.Name, Name: s.name, Label: s.label, Value: s.value, ReedSolomon: reedSolomon}
			if c.Index != ibmad.Single {
				n.Value = strconv.Itoa(int(c.Number))
			}
			out = append(out, n)
		}
	}
	for _, a := range attributes {
		add(ibmad.CountersOf(a), false)
	}
	add(ibmad.ReedSolomonCounters(), true)
	for i := range out {
		for j := range out {
			if c, d := &out[i], &out[j]; c.Name == d.Name && c.Label == d.Label && c.Value == d.Value && d.Bits > c.Bits {
				c.wider = append(c.wider, ID(j))
			}
		}
	}
	return out
}

// FEC states which counters of error correction a port has.
type FEC uint8

// The layouts of PortExtendedSpeedsCounters.
const (
	FECUnknown FEC = iota
	FECPerLane
	FECReedSolomon
)

// Traits are the capabilities found at a port, which determine its counters.
type Traits struct {
	Known         bool   `json:"known,omitempty"` // the performance agent has answered
	Capabilities  uint16 `json:"can,omitempty"`   // ClassPortInfo's CapabilityMask
	Capabilities2 uint32 `json:"can2,omitempty"`  // and CapabilityMask2
	VLs           uint8  `json:"vls,omitempty"`   // operational data VLs; 0 means unknown
	Lanes         uint8  `json:"lanes,omitempty"` // active lanes; 0 means unknown
	FEC           FEC    `json:"fec,omitempty"`
	// Proven and Absent are sets of optional queries that the port is known to support, or not to support. Each
	// has a bit by its place in ibmad.CounterAttributes.
	Proven uint16 `json:"proven,omitempty"`
	Absent uint16 `json:"absent,omitempty"`
}

func attributeBit(a ibmad.Attribute) uint16 {
	return 1 << slices.Index(attributes, a)
}

var attributes = ibmad.CounterAttributes()

// mandatoryQueries are the query that every port supports, and the one whose support its agent reports (IBA
// volume 1, 16.1.3).
var mandatoryQueries = attributeBit(ibmad.AttrPortCounters) | attributeBit(ibmad.AttrPortCountersExtended)

// provenQueries returns the queries that a port is known to support.
func (t *Traits) provenQueries() uint16 { return mandatoryQueries | t.Proven }

// hasCounter reports whether a port is known to have a counter. An unknown counter counts as missing: otherwise
// 0 would be reported for a counter that does not exist.
func (t *Traits) hasCounter(c *Counter) bool {
	info := ibmad.ClassPortInfo{Capabilities: t.Capabilities, Capabilities2: t.Capabilities2}
	if !t.Known || !c.SupportedBy(&info) || t.Absent&attributeBit(c.Attribute) != 0 {
		return false
	}
	if c.Attribute == ibmad.AttrPortExtendedSpeeds && (t.FEC == FECUnknown || (t.FEC == FECReedSolomon) != c.ReedSolomon) {
		return false
	}
	switch c.Index {
	case ibmad.PerVL:
		return t.VLs == 0 || c.Number < t.VLs
	case ibmad.PerLane:
		return t.Lanes == 0 || c.Number < t.Lanes
	}
	return true
}
