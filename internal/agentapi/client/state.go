package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/durable"
)

const stateVersion = 1

// stateFile writes the agent's state. The counts may be read from any goroutine.
type stateFile struct {
	path, node   string // without a path no state is kept
	log          *slog.Logger
	unsaved      bool // the last write failed
	done, failed atomic.Uint64
}

// write writes the state, and logs when the result of writing changes.
func (f *stateFile) write(s keptState) {
	if f.path == "" {
		return
	}
	if err := writeState(f.path, f.node, s); err != nil {
		f.failed.Add(1)
		if !f.unsaved {
			f.log.Error("cannot write the state file: until a later write succeeds, this agent needs the coordinator after a restart", "file", f.path, "err", err)
		}
		f.unsaved = true
		return
	}
	f.done.Add(1)
	if f.unsaved {
		f.log.Info("the state file is written again", "file", f.path)
	}
	f.unsaved = false
}

// keptState is what an agent keeps. Keys and lives are nil if there are none.
type keptState struct {
	assignment *agentapi.Assignment
	keys       *agentapi.Keys
	lives      *agentapi.Lives
	epochs     epochBook
}

// savedState is the content of an agent's state file. It holds secrets.
type savedState struct {
	Version    int             `json:"version"`
	Node       string          `json:"node"`
	Assignment json.RawMessage `json:"assignment"`
	Keys       json.RawMessage `json:"keys,omitempty"`
	Lives      json.RawMessage `json:"lives,omitempty"` // life numbers of peers
	Epoch      uint64          `json:"epoch,omitempty"` // the greatest that was seen of a leader
	EpochProof []byte          `json:"epoch_proof,omitempty"`
}

func readState(file, node string) (keptState, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return keptState{}, err
	}
	k, err := parseState(b, node)
	if err != nil {
		return keptState{}, fmt.Errorf("%s: %w", file, err)
	}
	return k, nil
}

func parseState(b []byte, node string) (out keptState, err error) {
	var s savedState
	dec := json.NewDecoder(bytes.NewReader(b))
	if err := dec.Decode(&s); err != nil {
		return out, fmt.Errorf("not the state of an agent: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return out, fmt.Errorf("unexpected data after the state at octet %d", dec.InputOffset())
	}
	switch {
	case s.Version != stateVersion:
		return out, fmt.Errorf("version %d, want %d", s.Version, stateVersion)
	case s.Node != node:
		return out, fmt.Errorf("the state is of node %q, want %q", s.Node, node)
	}
	out.epochs.take(s.Epoch, s.EpochProof)
	lax := protojson.UnmarshalOptions{DiscardUnknown: true}
	out.assignment = &agentapi.Assignment{}
	if err := lax.Unmarshal(s.Assignment, out.assignment); err != nil {
		return out, fmt.Errorf("assignment: %w", err)
	}
	if err := checkAssignment(out.assignment, node); err != nil {
		return out, err
	}
	if len(s.Lives) > 0 {
		out.lives = &agentapi.Lives{}
		if err := lax.Unmarshal(s.Lives, out.lives); err != nil {
			return out, fmt.Errorf("lives: %w", err)
		}
	}
	if len(s.Keys) == 0 {
		return out, nil
	}
	out.keys = &agentapi.Keys{}
	if err := lax.Unmarshal(s.Keys, out.keys); err != nil {
		return out, errors.New("keys: not those of an agent") // the cause could quote a secret
	}
	return out, checkKeys(out.keys)
}

// writeState replaces the state file in one step.
func writeState(file, node string, kept keptState) (err error) {
	s := savedState{Version: stateVersion, Node: node, Epoch: kept.epochs.greatest, EpochProof: kept.epochs.proof}
	if s.Assignment, err = protojson.Marshal(kept.assignment); err != nil {
		return fmt.Errorf("encode the assignment: %w", err)
	}
	if kept.keys != nil {
		if s.Keys, err = protojson.Marshal(kept.keys); err != nil {
			return fmt.Errorf("encode the keys: %w", err)
		}
	}
	if kept.lives != nil {
		if s.Lives, err = protojson.Marshal(kept.lives); err != nil {
			return fmt.Errorf("encode the lives: %w", err)
		}
	}
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode the state: %w", err)
	}
	return durable.WriteFile(file, b)
}
