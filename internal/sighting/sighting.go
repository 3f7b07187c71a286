// Package sighting represents what switches report of the probes that cross them: which flow arrived by which port, and
// until when. It is the vocabulary that graylink-switch, which makes the reports, shares with the analyzer, which joins
// them to paths.
//
// A switch does not report packets. It keeps a table of the flows that cross it, and reports the changes of the table:
// flows that are new or that arrived by another port, and flows that are no longer seen. The fields At and Fresh of
// every report state that all other flows of the table were seen recently.
package sighting

import (
	"net/netip"
	"time"
)

// Flow represents a probe's 5-tuple, whose protocol is UDP. The analyzer knows the edge that it belongs to.
type Flow struct {
	Src netip.AddrPort `json:"src"`
	Dst netip.AddrPort `json:"dst"`
}

// Port represents a port that a flow arrived by.
type Port struct {
	Name string `json:"port"`
	// First and Last are the times at which the flow was first and last seen there, by the switch's clock. Last is
	// exact in every report that has the flow. It grows without a report as long as the flow has only this port.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	// Count is the number of its packets that were inspected. A sampling source sees few.
	Count uint64 `json:"count"`
}

// FlowPorts represents a flow with the ports that it arrived by within the last Fresh. More than one port is a change
// of route, or packets that are balanced one by one. The ports' times distinguish the two, so such a flow is in every
// report until one port is left.
type FlowPorts struct {
	Flow
	Ports []Port `json:"ports"`
}

// Kind is the kind of source by which a switch sees probes.
type Kind string

// Kinds of sources.
const (
	KindEBPF    Kind = "software-ebpf"      // a tc program on every port of a Linux system that forwards
	KindPacket  Kind = "software-af-packet" // a packet socket on every port of a Linux system that forwards
	KindPsample Kind = "hardware-psample"   // samples of a switch chip, from the kernel's psample channel
	KindSim     Kind = "simulated"          // sightings of a simulated switch
)

// Report answers a query for the changes since a version.
type Report struct {
	Switch string `json:"switch"`
	Kind   Kind   `json:"kind"`
	// Instance is a new random value with every start. Versions of different instances cannot be compared.
	Instance string `json:"instance"`
	// Since is the version that the report continues, or 0 if it has the whole table. Version is the version to query
	// next.
	Since   uint64 `json:"since"`
	Version uint64 `json:"version"`
	// At is the time of the answer by the switch's clock. Through is the time until which the table is complete, a
	// little earlier. The report has all changes until then, and every flow of the table was seen within Fresh before
	// it.
	At      time.Time     `json:"at"`
	Through time.Time     `json:"through"`
	Fresh   time.Duration `json:"fresh_ns"`
	Flows   []FlowPorts   `json:"seen,omitempty"`
	Gone    []Flow        `json:"gone,omitempty"`
	// Dropped counts what the source lost since the start: samples that did not fit into a queue, and flows that did
	// not fit into the table.
	Dropped uint64 `json:"dropped"`
	// Neighbours holds what LLDP reported of the far ends of ports. Every report has all of them.
	Neighbours []Neighbour `json:"neighbours,omitempty"`
}

// Neighbour represents the far end of a port's cable.
type Neighbour struct {
	Port       string    `json:"port"`
	System     string    `json:"system"`      // name that the far end has for itself
	SystemPort string    `json:"system_port"` // name that the far end has for its port
	LastSeen   time.Time `json:"seen"`
}
