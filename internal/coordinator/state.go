package coordinator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/durable"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
)

// Versions of the state. A later version adds keys: it is read without them if its min_reader is not above stateVersion, so
// that a site can go back to the release before.
const (
	stateVersion  = 3 // what this program writes
	leaderReader  = 1 // can do without the keys of version 2 (epoch, fence_key, standby) and of version 3 (maintenance)
	standbyReader = 2 // an earlier version would lead by the state of a standby
)

// state is the content of the state file, which survives a restart. It holds secrets.
type state struct {
	Version int `json:"version"` // at most stateVersion
	// MinReader is the lowest version that can do without the keys that later versions added. 0 means Version.
	MinReader int `json:"min_reader,omitempty"`

	Agents  []agentState `json:"agents"`
	Moves   []moveState  `json:"moves,omitempty"`
	Claims  []claimState `json:"claims,omitempty"`
	Keys    []keyState   `json:"keys,omitempty"`
	KeysAt  time.Time    `json:"keys_rotated_at,omitzero"`
	Lives   uint64       `json:"lives_reserved,omitempty"` // no higher life number was given
	Written time.Time    `json:"written,omitzero"`

	// Epoch is that of the leader that wrote the state, or of the one that a standby follows. 0: there was none.
	Epoch uint64 `json:"epoch,omitempty"`
	// FenceKey is the secret by which the fleet's coordinators recognise an epoch as one of theirs.
	FenceKey []byte `json:"fence_key,omitempty"`
	Standby  bool   `json:"standby,omitempty"` // the coordinator does not lead

	Maintenance []maintenanceWindow `json:"maintenance,omitempty"`
}

type agentState struct {
	Node       string           `json:"node"`
	Present    bool             `json:"present"` // part of the schedule
	LastSeen   time.Time        `json:"last_seen"`
	Web        string           `json:"web,omitempty"`
	Scheme     string           `json:"scheme,omitempty"`
	From       string           `json:"from,omitempty"`
	Software   string           `json:"software,omitempty"`
	Interfaces []interfaceState `json:"interfaces,omitempty"`
	Assigned   uint64           `json:"assigned,omitempty"` // version of its assignment
	Hash       []byte           `json:"hash,omitempty"`     // hash of its assignment
	Life       uint64           `json:"life,omitempty"`     // number of its agent's life; 0 means that it has none
}

type interfaceState struct {
	Name      string       `json:"name"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Hardware  bool         `json:"hardware_stamps,omitempty"`
	RDMA      *rdmaState   `json:"rdma,omitempty"` // nil if it is probed by UDP
	Port      *portState   `json:"ib,omitempty"`   // InfiniBand port; nil if it is none
	// AwaitsRDMA states that the agent opens a queue pair once the interface is assigned. It is not saved.
	AwaitsRDMA bool `json:"-"`
	// Networks are those of the addresses, if they are known. They are not saved.
	Networks []netip.Prefix `json:"-"`
	// Neighbours are those that LLDP names. They are not saved.
	Neighbours []fabric.Neighbour `json:"-"`
}

// portState is what an agent knows of an InfiniBand port. What is 0 or empty is not known. It is never changed.
type portState struct {
	Device       string `json:"device,omitempty"`
	Number       uint32 `json:"port,omitempty"`
	NodeGUID     uint64 `json:"node_guid,omitempty"`
	PortGUID     uint64 `json:"port_guid,omitempty"`
	SubnetPrefix uint64 `json:"subnet_prefix,omitempty"`
	LID          uint32 `json:"lid,omitempty"`
}

func (s *portState) equal(o *portState) bool {
	if s == nil || o == nil {
		return s == o
	}
	return *s == *o
}

// newPortState returns what a registration has of an InfiniBand port, or nil if it has none.
func newPortState(p *agentapi.InfiniBandPort) *portState {
	if p == nil {
		return nil
	}
	return &portState{Device: p.GetDevice(), Number: p.GetPort(), NodeGUID: p.GetNodeGuid(), PortGUID: p.GetPortGuid(), SubnetPrefix: p.GetSubnetPrefix(), LID: p.GetLid()}
}

// guid returns the port's GUID as topologies have it, and nothing if it is not known.
func (s *portState) guid() string {
	if s == nil || s.PortGUID == 0 {
		return ""
	}
	return fmt.Sprintf("0x%016x", s.PortGUID)
}

// portGUID returns the GUID of the interface's InfiniBand port, and nothing if it is not known. Agents of earlier versions
// report queue pairs only; one with a LID is of InfiniBand.
func (f *interfaceState) portGUID() string {
	if r := f.RDMA; f.Port == nil && r != nil && r.LID != 0 && r.GID.Is6() {
		gid := r.GID.As16()
		return fmt.Sprintf("0x%x", gid[8:])
	}
	return f.Port.guid()
}

// deviceOfPort returns the RDMA device of the interface's InfiniBand port, and nothing if it is not known.
func (f *interfaceState) deviceOfPort() string {
	if f.Port == nil && f.RDMA != nil {
		return f.RDMA.Device
	}
	if f.Port == nil {
		return ""
	}
	return f.Port.Device
}

// rdmaState is the queue pair of an interface. It is never changed.
type rdmaState struct {
	Device   string     `json:"device"`
	Port     uint32     `json:"port"`
	GID      netip.Addr `json:"gid"`
	QPN      uint32     `json:"qpn"`
	QKey     uint32     `json:"q_key"`
	LID      uint32     `json:"lid,omitempty"`
	Hardware bool       `json:"hardware_stamps,omitempty"`
}

func (s *rdmaState) equal(o *rdmaState) bool {
	if s == nil || o == nil {
		return s == o
	}
	return *s == *o
}

type moveState struct {
	Src  string `json:"src"`
	Dst  string `json:"dst"`
	From int    `json:"from"`
	To   int    `json:"to"`
}

// claimState is the claim of a NIC. The lower order is the older claim.
type claimState struct {
	NIC          string     `json:"nic"`
	Address      netip.Addr `json:"address,omitzero"`
	AddressOrder uint64     `json:"address_order,omitempty"`
	GID          netip.Addr `json:"gid,omitzero"`
	GIDOrder     uint64     `json:"gid_order,omitempty"`
}

// keyState is one epoch's master secret. The first of the list sends. Pending distinguishes a secret
// that sends next from one that sent before.
type keyState struct {
	ID      uint32 `json:"id"`
	Secret  []byte `json:"secret"`
	Pending bool   `json:"pending,omitempty"`
}

// readState reads and checks the state file. It returns nil without an error when there is no file.
func readState(file string) (*state, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the state: %w", err)
	}
	s, err := parseState(b)
	if err != nil {
		return nil, fmt.Errorf("cannot use the state file %s: %w; it is not changed: repair it, or move it away to start without state", file, err)
	}
	return s, nil
}

func parseState(b []byte) (*state, error) {
	var head struct {
		Version   int `json:"version"`
		MinReader int `json:"min_reader"`
	}
	// An error here is one of the whole, which is reported below.
	later := json.Unmarshal(b, &head) == nil && head.Version > stateVersion
	if later && (head.MinReader < 1 || head.MinReader > stateVersion) {
		return nil, errStateVersion(head.Version)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	if !later {
		dec.DisallowUnknownFields()
	}
	s := &state{}
	if err := dec.Decode(s); err != nil {
		return nil, fmt.Errorf("not the state of a coordinator: at octet %d: %w", dec.InputOffset(), err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("unexpected data after the state at octet %d", dec.InputOffset())
	}
	if later {
		s.Version, s.MinReader = stateVersion, 0 // what is written from now on
	}
	if err := s.validate(); err != nil {
		return nil, err
	}
	s.Version, s.MinReader = stateVersion, 0
	return s, nil
}

func errStateVersion(version int) error {
	return fmt.Errorf("version %d, want 1 to %d, or a later one whose min_reader is at most %d", version, stateVersion, stateVersion)
}

func (s *state) validate() error {
	switch {
	case s.Version < 1 || s.Version > stateVersion:
		return errStateVersion(s.Version)
	case s.MinReader < 0 || s.MinReader > s.Version:
		return fmt.Errorf("min_reader %d, want 0 to %d", s.MinReader, s.Version)
	case s.Epoch > agentapi.MaxEpoch:
		return fmt.Errorf("epoch: %d, want at most %d", s.Epoch, uint64(agentapi.MaxEpoch))
	case len(s.FenceKey) != 0 && len(s.FenceKey) != agentapi.SecretSize:
		return fmt.Errorf("fence_key: %d octets, want %d", len(s.FenceKey), agentapi.SecretSize)
	}
	seen := map[string]bool{}
	for i, a := range s.Agents {
		at := fmt.Sprintf("agents[%d]", i)
		if err := fabric.CheckName(a.Node); err != nil {
			return fmt.Errorf("%s.node: %w", at, err)
		}
		if seen[a.Node] {
			return fmt.Errorf("%s.node: %q is listed twice", at, a.Node)
		}
		seen[a.Node] = true
		if a.Life > agentapi.MaxLife {
			return fmt.Errorf("%s.life: %d, want at most %d", at, a.Life, uint64(agentapi.MaxLife))
		}
		if n := len(a.Hash); n != 0 && n != hashSize {
			return fmt.Errorf("%s.hash: %d octets, want %d", at, n, hashSize)
		}
		for j, f := range a.Interfaces {
			if r := f.RDMA; r != nil {
				at := fmt.Sprintf("%s.interfaces[%d].rdma", at, j)
				if err := (&agentapi.RDMA{Gid: r.GID.AsSlice(), Qpn: r.QPN, QKey: r.QKey, Lid: r.LID}).CheckQueuePair(at); err != nil {
					return err
				}
			}
		}
		if err := checkWeb(&agentapi.WebEndpoint{Address: a.Web, Scheme: a.Scheme}); err != nil {
			return fmt.Errorf("%s.web: %w", at, err)
		}
		if _, err := netip.ParseAddr(a.From); err != nil && a.From != "" && a.From != sourceSocket {
			return fmt.Errorf("%s.from: %q, want an address or %q", at, a.From, sourceSocket)
		}
	}
	if s.Lives > agentapi.MaxLife {
		return fmt.Errorf("lives_reserved: %d, want at most %d", s.Lives, uint64(agentapi.MaxLife))
	}
	for i, m := range s.Moves {
		if !fabric.IsNIC(m.Src) || !fabric.IsNIC(m.Dst) || m.From < 0 || m.To < 0 {
			return fmt.Errorf("moves[%d]: want two NICs as node/device and flow numbers from 0", i)
		}
	}
	claimed := map[string]bool{}
	for i, k := range s.Claims {
		at := fmt.Sprintf("claims[%d]", i)
		switch {
		case !fabric.IsNIC(k.NIC):
			return fmt.Errorf("%s.nic: %q, want node/device", at, k.NIC)
		case claimed[k.NIC]:
			return fmt.Errorf("%s.nic: %q is listed twice", at, k.NIC)
		case k.Address.IsValid() && !isProbeable(k.Address):
			return fmt.Errorf("%s.address: %v, want a unicast address", at, k.Address)
		}
		claimed[k.NIC] = true
	}
	for i := range s.Maintenance {
		if err := s.Maintenance[i].validate(); err != nil {
			return fmt.Errorf("maintenance[%d].%w", i, err)
		}
	}
	if n := len(s.Maintenance); n > mostWindows {
		return fmt.Errorf("maintenance: %d windows, want at most %d", n, mostWindows)
	}
	return s.validateKeys()
}

func (s *state) validateKeys() error {
	ids, pending := map[uint32]bool{}, 0
	for i, k := range s.Keys {
		at := fmt.Sprintf("keys[%d]", i)
		switch {
		case k.ID == 0 || ids[k.ID]:
			return fmt.Errorf("%s.id: %d, want a number of its own, not 0", at, k.ID)
		case len(k.Secret) != agentapi.SecretSize:
			return fmt.Errorf("%s.secret: %d octets, want %d", at, len(k.Secret), agentapi.SecretSize)
		case k.Pending && i == 0:
			return fmt.Errorf("%s.pending: the first key is the one to send with and cannot be pending", at)
		case i >= maxEpochs:
			return fmt.Errorf("%s: want at most %d keys", at, maxEpochs)
		}
		ids[k.ID] = true
		if k.Pending {
			pending++
		}
	}
	if pending > 1 {
		return fmt.Errorf("keys: %d are pending, want at most one", pending)
	}
	return nil
}

func (s *state) scheduleMoves() []schedule.Move {
	out := make([]schedule.Move, len(s.Moves))
	for i, m := range s.Moves {
		out[i] = schedule.Move(m)
	}
	return out
}

func (s *state) claimsByNIC() map[string]claim {
	out := make(map[string]claim, len(s.Claims))
	for _, k := range s.Claims {
		out[k.NIC] = claim{k.Address, k.AddressOrder, k.GID, k.GIDOrder}
	}
	return out
}

// encode returns the content of a state file.
func (s *state) encode() ([]byte, error) {
	out := *s
	if out.Version, out.MinReader = stateVersion, leaderReader; out.Standby {
		out.MinReader = standbyReader
	}
	b, err := json.MarshalIndent(&out, "", " ")
	if err != nil {
		return nil, fmt.Errorf("encode the state: %w", err)
	}
	return append(b, '\n'), nil
}

// writeState replaces the file in one step: after a crash there is either the old state or the new one,
// complete.
func writeState(file string, s *state) error {
	b, err := s.encode()
	if err != nil {
		return err
	}
	if err := durable.WriteFile(file, b); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	return nil
}
