// Package sighting is what switches tell of the probes that cross them: which
// flow came in by which port, and until when. It is the vocabulary of
// graylink-switch, which makes it, and of the analyzer, which joins it to paths.
//
// A switch does not report packets. It keeps a table of the flows that cross it
// and tells what of the table changed: flows that are new or came in by another
// port, and flows that are no more seen. Of all others it says with every answer,
// by At and Fresh, that they were seen lately.
package sighting

import (
	"net/netip"
	"time"
)

// Flow is a probe's 5-tuple; the protocol is UDP. What edge it belongs to is the
// analyzer's to know.
type Flow struct {
	Src netip.AddrPort `json:"src"`
	Dst netip.AddrPort `json:"dst"`
}

// Port is a port that a flow came in by.
type Port struct {
	Name string `json:"port"`
	// First and Last are when the flow was seen there first and last, by the
	// switch's clock. Last is exact in every answer that tells of the flow, and
	// grows unsaid while the flow has this port only.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	// Count is how many of its packets were looked at; a sampling source sees few.
	Count uint64 `json:"count"`
}

// FlowPorts is a flow with the ports it came in by within the last Fresh: more than
// one are a change of route, or packets that are balanced one by one. Which of the
// two shows in the ports' times, and so such a flow is told anew in every report
// until one port is left.
type FlowPorts struct {
	Flow
	Ports []Port `json:"ports"`
}

// Kind is how a switch sees probes.
type Kind string

// Kinds of sources.
const (
	KindEBPF    Kind = "software-ebpf"      // a tc program on every port of a Linux that forwards
	KindPacket  Kind = "software-af-packet" // a packet socket on every port of a Linux that forwards
	KindPsample Kind = "hardware-psample"   // samples of a switch chip, by the kernel's psample channel
	KindSim     Kind = "simulated"          // of a switch that is made up
)

// Report answers a query for what changed since a version.
type Report struct {
	Switch string `json:"switch"`
	Kind   Kind   `json:"kind"`
	// Instance is drawn anew with every start: versions of different instances
	// have nothing to do with each other.
	Instance string `json:"instance"`
	// Since is the version that the report continues; 0: it is the whole table.
	// Version is what to ask for next.
	Since   uint64 `json:"since"`
	Version uint64 `json:"version"`
	// At is when the switch answered, by its own clock. Through is until when the
	// table is made, a little earlier: what changed until then is told, and every flow
	// of the table was seen within Fresh before it.
	At      time.Time     `json:"at"`
	Through time.Time     `json:"through"`
	Fresh   time.Duration `json:"fresh_ns"`
	Flows   []FlowPorts   `json:"seen,omitempty"`
	Gone    []Flow        `json:"gone,omitempty"`
	// Dropped counts what the source lost since the start: samples that did not
	// fit into a queue, flows that did not fit into the table.
	Dropped uint64 `json:"dropped"`
	// Neighbours are what LLDP told of the far ends of ports, whole in every report.
	Neighbours []Neighbour `json:"neighbours,omitempty"`
}

// Neighbour is the far end of a port's cable.
type Neighbour struct {
	Port       string    `json:"port"`
	System     string    `json:"system"`      // the far end's name for itself
	SystemPort string    `json:"system_port"` // and for its port
	LastSeen   time.Time `json:"seen"`
}
