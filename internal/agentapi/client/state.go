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
func (f *stateFile) write(a *agentapi.Assignment, k *agentapi.Keys, l *agentapi.Lives) {
	if f.path == "" {
		return
	}
	if err := writeState(f.path, f.node, a, k, l); err != nil {
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

// savedState is the content of an agent's state file. It holds secrets.
type savedState struct {
	Version    int             `json:"version"`
	Node       string          `json:"node"`
	Assignment json.RawMessage `json:"assignment"`
	Keys       json.RawMessage `json:"keys,omitempty"`
	Lives      json.RawMessage `json:"lives,omitempty"` // life numbers of peers
}

func readState(file, node string) (*agentapi.Assignment, *agentapi.Keys, *agentapi.Lives, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, nil, err
	}
	a, k, l, err := parseState(b, node)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("%s: %w", file, err)
	}
	return a, k, l, nil
}

func parseState(b []byte, node string) (*agentapi.Assignment, *agentapi.Keys, *agentapi.Lives, error) {
	var s savedState
	dec := json.NewDecoder(bytes.NewReader(b))
	if err := dec.Decode(&s); err != nil {
		return nil, nil, nil, fmt.Errorf("not the state of an agent: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, nil, nil, fmt.Errorf("unexpected data after the state at octet %d", dec.InputOffset())
	}
	switch {
	case s.Version != stateVersion:
		return nil, nil, nil, fmt.Errorf("version %d, want %d", s.Version, stateVersion)
	case s.Node != node:
		return nil, nil, nil, fmt.Errorf("the state is of node %q, want %q", s.Node, node)
	}
	lax := protojson.UnmarshalOptions{DiscardUnknown: true}
	a := &agentapi.Assignment{}
	if err := lax.Unmarshal(s.Assignment, a); err != nil {
		return nil, nil, nil, fmt.Errorf("assignment: %w", err)
	}
	if err := checkAssignment(a, node); err != nil {
		return nil, nil, nil, err
	}
	var l *agentapi.Lives
	if len(s.Lives) > 0 {
		l = &agentapi.Lives{}
		if err := lax.Unmarshal(s.Lives, l); err != nil {
			return nil, nil, nil, fmt.Errorf("lives: %w", err)
		}
	}
	if len(s.Keys) == 0 {
		return a, nil, l, nil
	}
	k := &agentapi.Keys{}
	if err := lax.Unmarshal(s.Keys, k); err != nil {
		return nil, nil, nil, errors.New("keys: not those of an agent") // the cause could quote a secret
	}
	return a, k, l, checkKeys(k)
}

// writeState replaces the state file in one step.
func writeState(file, node string, a *agentapi.Assignment, k *agentapi.Keys, l *agentapi.Lives) (err error) {
	s := savedState{Version: stateVersion, Node: node}
	if s.Assignment, err = protojson.Marshal(a); err != nil {
		return fmt.Errorf("encode the assignment: %w", err)
	}
	if k != nil {
		if s.Keys, err = protojson.Marshal(k); err != nil {
			return fmt.Errorf("encode the keys: %w", err)
		}
	}
	if l != nil {
		if s.Lives, err = protojson.Marshal(l); err != nil {
			return fmt.Errorf("encode the lives: %w", err)
		}
	}
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode the state: %w", err)
	}
	return durable.WriteFile(file, b)
}
