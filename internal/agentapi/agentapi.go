// Package agentapi has the protocol between graylink-node and graylink-coordinator: the code generated
// from agent.proto, the one of analyzers about maintenance windows, generated from maintenance.proto, the one between two
// coordinators, generated from peer.proto, and the limits of messages.
package agentapi

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative agent.proto maintenance.proto peer.proto

import (
	"fmt"
	"net/netip"
)

// Limits that both sides keep. A message beyond them ends its session.
const (
	MaxAgentMessage       = 1 << 20  // octets that an agent may send at once
	MaxCoordinatorMessage = 32 << 20 // octets: about 500,000 edges
	MaxInterfaces         = 256
	MaxInterfaceAddresses = 32
	MaxNeighbours         = 2   // LLDP neighbours of one interface
	MaxSilentEdges        = 256 // silent edges named in one heartbeat
	MaxTraces             = 512 // traces in one report
	MaxHops               = 32
	MaxName               = 255       // octets of a name
	MaxKeys               = 8         // keys of one pair of nodes
	MaxClockReport        = 960 << 10 // octets of samples: 16,384 pairs
	MaxClockUpdate        = 8 << 20   // octets of an update: 65,536 clocks
	InstanceSize          = 16
	SecretSize            = 32
	MaxLID                = 0xbfff   // the highest LID of one port (IBTA 4.1.3)
	MaxLife               = 1 << 62  // the highest life number
	MaxEpoch              = 1 << 62  // the highest epoch of a leader
	MaxEpochProof         = 64       // octets
	MaxSigningRequest     = 8 << 10  // octets
	MaxCredential         = 16 << 10 // octets of a join token, or of a service account's token
)

// ClockFormat is the format of clock reports and updates that internal/clocksync encodes. Messages with
// another format are ignored.
const ClockFormat = 1

// CheckQueuePair returns an error if a queue pair is invalid. The error begins with field, the name of
// the message's field.
func (r *RDMA) CheckQueuePair(field string) error {
	switch a, ok := netip.AddrFromSlice(r.GetGid()); {
	case len(r.GetGid()) != 16 || !ok || a.IsUnspecified() || a.IsMulticast():
		return fmt.Errorf("%s.gid: %d octets, want 16 of a unicast GID", field, len(r.GetGid()))
	case r.GetQpn() < 2 || r.GetQpn() >= 1<<24:
		return fmt.Errorf("%s.qpn: %d, want 2 to %d", field, r.GetQpn(), 1<<24-1)
	case r.GetQKey() == 0 || r.GetQKey() >= 1<<31:
		return fmt.Errorf("%s.q_key: %#x, want one that is not 0 and whose highest bit is clear", field, r.GetQKey())
	case r.GetLid() > MaxLID:
		return fmt.Errorf("%s.lid: %#x, want that of one port, at most %#x", field, r.GetLid(), MaxLID)
	}
	return nil
}

// CheckPort returns an error if an InfiniBand port is invalid. The error begins with field, the name of the message's
// field.
func (p *InfiniBandPort) CheckPort(field string) error {
	switch {
	case p.GetPort() > 255:
		return fmt.Errorf("%s.port: %d, want at most 255", field, p.GetPort())
	case p.NodeGuid != nil && p.GetNodeGuid() == 0:
		return fmt.Errorf("%s.node_guid: 0, want a GUID, or none if it is not known", field)
	case p.PortGuid != nil && p.GetPortGuid() == 0:
		return fmt.Errorf("%s.port_guid: 0, want a GUID, or none if it is not known", field)
	case p.Lid != nil && (p.GetLid() == 0 || p.GetLid() > MaxLID):
		return fmt.Errorf("%s.lid: %#x, want that of one port, from 1 to %#x, or none if it is not known", field, p.GetLid(), MaxLID)
	case p.SmLid != nil && (p.GetSmLid() == 0 || p.GetSmLid() > MaxLID):
		return fmt.Errorf("%s.sm_lid: %#x, want that of one port, from 1 to %#x, or none if it is not known", field, p.GetSmLid(), MaxLID)
	}
	return nil
}

// AddrFromBytes returns the address of 4 or 16 octets, or the zero Addr for any other length.
func AddrFromBytes(b []byte) netip.Addr {
	a, ok := netip.AddrFromSlice(b)
	if !ok {
		return netip.Addr{}
	}
	return a.Unmap()
}
