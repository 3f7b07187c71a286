package coordinator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
)

const stateVersion = 1

// state is what survives a restart. It holds secrets.
type state struct {
	Version int          `json:"version"`
	Agents  []agentState `json:"agents"`
	Moves   []moveState  `json:"moves,omitempty"`
	Keys    []keyState   `json:"keys,omitempty"`
	KeysAt  time.Time    `json:"keys_rotated_at,omitzero"`
	Written time.Time    `json:"written,omitzero"`
}

type agentState struct {
	Node       string           `json:"node"`
	Present    bool             `json:"present"` // part of the schedule
	LastSeen   time.Time        `json:"last_seen"`
	Web        string           `json:"web,omitempty"`
	Scheme     string           `json:"scheme,omitempty"`
	Software   string           `json:"software,omitempty"`
	Interfaces []interfaceState `json:"interfaces,omitempty"`
	Assigned   uint64           `json:"assigned,omitempty"` // version of its assignment
	Hash       []byte           `json:"hash,omitempty"`     // of it
}

type interfaceState struct {
	Name      string       `json:"name"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Hardware  bool         `json:"hardware_stamps,omitempty"`
	RDMA      *rdmaState   `json:"rdma,omitempty"` // nil: probed by UDP
}

// rdmaState is the queue pair of an interface; never changed.
type rdmaState struct {
	Device   string     `json:"device"`
	Port     uint32     `json:"port"`
	GID      netip.Addr `json:"gid"`
	QPN      uint32     `json:"qpn"`
	QKey     uint32     `json:"q_key"`
	LID      uint32     `json:"lid,omitempty"`
	Hardware bool       `json:"hardware_stamps,omitempty"`
}

func (s *rdmaState) same(o *rdmaState) bool {
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

// keyState is one epoch's master secret. The first of the list sends; the role
// tells a secret that is to send next from one that did before.
type keyState struct {
	ID      uint32 `json:"id"`
	Secret  []byte `json:"secret"`
	Pending bool   `json:"pending,omitempty"`
}

// readState returns nil without an error when there is no file.
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
		return nil, fmt.Errorf("state file %s: %w; it is left as it is: repair it, or move it away to begin anew", file, err)
	}
	return s, nil
}

func parseState(b []byte) (*state, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	s := &state{}
	if err := dec.Decode(s); err != nil {
		return nil, fmt.Errorf("not the state of a coordinator: at octet %d: %w", dec.InputOffset(), err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("something follows the state at octet %d", dec.InputOffset())
	}
	return s, s.check()
}

func (s *state) check() error {
	if s.Version != stateVersion {
		return fmt.Errorf("version %d, want %d", s.Version, stateVersion)
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
		if n := len(a.Hash); n != 0 && n != hashSize {
			return fmt.Errorf("%s.hash: %d octets, want %d", at, n, hashSize)
		}
		for j, f := range a.Interfaces {
			if r := f.RDMA; r != nil {
				at := fmt.Sprintf("%s.interfaces[%d].rdma", at, j)
				if err := (&agentapi.RDMA{Gid: r.GID.AsSlice(), Qpn: r.QPN, QKey: r.QKey, Lid: r.LID}).Check(at); err != nil {
					return err
				}
			}
		}
		if err := checkWeb(&agentapi.WebEndpoint{Address: a.Web, Scheme: a.Scheme}); err != nil {
			return fmt.Errorf("%s.web: %w", at, err)
		}
	}
	for i, m := range s.Moves {
		if !fabric.IsNIC(m.Src) || !fabric.IsNIC(m.Dst) || m.From < 0 || m.To < 0 {
			return fmt.Errorf("moves[%d]: want two NICs as node/device and flow numbers from 0", i)
		}
	}
	ids, pending := map[uint32]bool{}, 0
	for i, k := range s.Keys {
		at := fmt.Sprintf("keys[%d]", i)
		switch {
		case k.ID == 0 || ids[k.ID]:
			return fmt.Errorf("%s.id: %d, want a number of its own, not 0", at, k.ID)
		case len(k.Secret) != agentapi.SecretSize:
			return fmt.Errorf("%s.secret: %d octets, want %d", at, len(k.Secret), agentapi.SecretSize)
		case k.Pending && i == 0:
			return fmt.Errorf("%s.pending: the first key sends, want another", at)
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

func (s *state) moves() []schedule.Move {
	out := make([]schedule.Move, len(s.Moves))
	for i, m := range s.Moves {
		out[i] = schedule.Move(m)
	}
	return out
}

// writeState replaces the file in one step: after a crash there is the old
// state or the new one, whole.
func writeState(file string, s *state) (err error) {
	b, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return fmt.Errorf("encode the state: %w", err)
	}
	dir := filepath.Dir(file)
	f, err := os.CreateTemp(dir, filepath.Base(file)+".*") // CreateTemp opens with 0600
	if err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if _, err := f.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	if err := os.Rename(f.Name(), file); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	return nil
}
