package steer

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// drain drains nodes of Slurm by slurmrestd: jobs that run stay, and no others start.
//
// The fields are those of slurmrestd's OpenAPI document for data_parser v0.0.43, as github.com/SlinkyProject/slurm-client has them
// in api/v0043/slurm.gen.go (commit 393d3c4, read 2026-11-27): nodes[].{name,state[],reason} and errors[] of GET
// /slurm/VERSION/node/NAME, and update_node_msg.{state[],reason} of POST. The node of v0.0.45 has the same fields (commit 0dac744).
// The documents of v0.0.44 and v0.0.46, and the update of v0.0.45, were not read; they are taken to be the same.
type drain struct {
	*server
	version string
}

// Name implements Actuator.
func (*drain) Name() string { return "slurm" }

// slurmNodes is as much as is used of openapi_nodes_resp and openapi_resp.
type slurmNodes struct {
	Nodes []struct {
		Name   string   `json:"name"`
		State  []string `json:"state"`
		Reason string   `json:"reason"`
	} `json:"nodes"`
	Errors []struct {
		Description string `json:"description"`
		Error       string `json:"error"`
		Number      int    `json:"error_number"`
	} `json:"errors"`
}

// err returns the first error of an answer, or nil.
func (n *slurmNodes) err() error {
	if len(n.Errors) == 0 {
		return nil
	}
	e := &n.Errors[0]
	return fmt.Errorf("slurm: slurmrestd answered with error %d: %.200q", e.Number, printable(e.Error+" "+e.Description))
}

// updateNode is update_node_msg.
type updateNode struct {
	State  []string `json:"state"`
	Reason string   `json:"reason"`
}

// stateDrain is the state that a drained node has, and that is set.
const stateDrain = "DRAIN"

// usedStates are the states of nodes that run jobs or can. A node with any other one, such as DRAIN, DOWN, FAIL, MAINTENANCE or
// one that is not known here, is left alone.
var usedStates = []string{"ALLOCATED", "MIXED", "IDLE", "COMPLETING", "RESERVED", "PLANNED", "CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE", "NOT_RESPONDING"}

// Act implements Actuator. slurmrestd has no preconditions: a reason that somebody gives between the two requests is
// overwritten.
func (d *drain) Act(ctx context.Context, o *Order) (outcome string, err error) {
	path, err := nodePath("/slurm/"+d.version+"/node/", o.Target)
	if err != nil {
		return "", fmt.Errorf("slurm: %w", err)
	}
	return d.repeat(ctx, func(ctx context.Context) (string, error) {
		var n slurmNodes
		if err := d.send(ctx, http.MethodGet, path, "", nil, nil, &n); err != nil {
			return "", err
		}
		if err := n.err(); err != nil {
			return "", err
		}
		if len(n.Nodes) != 1 || n.Nodes[0].Name != o.Target {
			return "", fmt.Errorf("slurm: %d nodes in the answer, where node %q alone is expected", len(n.Nodes), o.Target)
		}
		node := &n.Nodes[0]
		switch {
		case strings.HasPrefix(node.Reason, o.reasonPrefix()) && slices.Contains(node.State, stateDrain):
			return OutcomeDone, nil // by an attempt whose answer was lost
		case node.Reason != "" || len(node.State) == 0 || slices.ContainsFunc(node.State, isUnused):
			return OutcomeLeftAlone, nil
		}
		body, err := json.Marshal(updateNode{State: []string{stateDrain}, Reason: o.reason()})
		if err != nil {
			return "", fmt.Errorf("slurm: %w", err)
		}
		var answer slurmNodes
		if err := d.send(ctx, http.MethodPost, path, "application/json", nil, body, &answer); err != nil {
			return "", err
		}
		return OutcomeDone, answer.err()
	})
}

// isUnused reports whether a state of a node is not one of those that run jobs or can.
func isUnused(state string) bool { return !slices.Contains(usedStates, state) }
