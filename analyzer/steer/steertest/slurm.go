package steertest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// Token is what requests to the slurmrestd need in the header X-SLURM-USER-TOKEN.
const Token = "a token of Slurm"

// Slurm is a slurmrestd with one version of its API. Fields and states are those of its OpenAPI document (data_parser v0.0.43).
type Slurm struct {
	Server
	version string
	nodes   map[string]*SlurmNode
	errors  []string
	posts   int
}

// SlurmNode is a node of Slurm.
type SlurmNode struct {
	State  []string
	Reason string
}

// NewSlurm returns a slurmrestd whose nodes run jobs, which ends with the test.
func NewSlurm(t testing.TB, version string, names ...string) *Slurm {
	t.Helper()
	s := &Slurm{version: version, nodes: map[string]*SlurmNode{}}
	for _, name := range names {
		s.nodes[name] = &SlurmNode{State: []string{"ALLOCATED"}}
	}
	s.start(t, s.answer)
	return s
}

// Node returns a copy of a node.
func (s *Slurm) Node(name string) SlurmNode {
	s.mu.Lock()
	defer s.mu.Unlock()
	return SlurmNode{slices.Clone(s.nodes[name].State), s.nodes[name].Reason}
}

// Change changes a node, as somebody else would.
func (s *Slurm) Change(name string, state []string, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*s.nodes[name] = SlurmNode{state, reason}
}

// Updates returns how many updates were made.
func (s *Slurm) Updates() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.posts
}

// AddErrors makes the next updates fail as slurmrestd says it: with an answer that has errors.
func (s *Slurm) AddErrors(texts ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errors = append(s.errors, texts...)
}

// States are the values of v0.0.43_node.state and v0.0.43_update_node_msg.state.
var States = []string{"ALLOCATED", "CLOUD", "COMPLETING", "DOWN", "DRAIN", "DYNAMIC_FUTURE", "DYNAMIC_NORM", "ERROR", "FAIL", "FUTURE", "IDLE", "INVALID",
	"INVALID_REG", "MAINTENANCE", "MIXED", "NOT_RESPONDING", "PLANNED", "POWER_DOWN", "POWER_DRAIN", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP",
	"POWER_UP", "REBOOT_CANCELED", "REBOOT_ISSUED", "REBOOT_REQUESTED", "RESERVED", "RESUME", "UNDRAIN", "UNKNOWN"}

// updateNode is v0.0.43_update_node_msg.
type updateNode struct {
	Address     any       `json:"address"`
	Comment     *string   `json:"comment"`
	CPUBind     *int32    `json:"cpu_bind"`
	Extra       *string   `json:"extra"`
	Features    any       `json:"features"`
	FeaturesAct any       `json:"features_act"`
	Gres        *string   `json:"gres"`
	Hostname    any       `json:"hostname"`
	Name        any       `json:"name"`
	Reason      *string   `json:"reason"`
	ReasonUID   *string   `json:"reason_uid"`
	ResumeAfter any       `json:"resume_after"`
	State       *[]string `json:"state"`
	TopologyStr *string   `json:"topology_str"`
	Weight      any       `json:"weight"`
}

func (s *Slurm) answer(w http.ResponseWriter, r *http.Request, body []byte) {
	name, isNode := strings.CutPrefix(r.URL.Path, "/slurm/"+s.version+"/node/")
	n := s.nodes[name]
	switch {
	case r.Header.Get("X-SLURM-USER-TOKEN") != Token:
		w.WriteHeader(http.StatusUnauthorized)
	case !isNode:
		s.forbid(w, r, "only nodes of "+s.version+" may be read and changed")
	case r.Method != http.MethodGet && r.Method != http.MethodPost:
		s.forbid(w, r, "only GET and POST are allowed")
	case n == nil:
		// slurmctld answers a request for an unknown node with an error, and slurmrestd with a status of 500.
		reply(w, http.StatusInternalServerError, response("Invalid node name specified", nil))
	case r.Method == http.MethodPost:
		s.update(w, n, body)
	default:
		reply(w, http.StatusOK, response("", []map[string]any{{"name": name, "state": n.State, "reason": n.Reason, "partitions": []string{"gpu"}, "weight": 1}}))
	}
}

// response returns an openapi_nodes_resp, or an openapi_resp without nodes.
func response(failure string, nodes []map[string]any) map[string]any {
	out := map[string]any{"meta": map[string]any{"slurm": map[string]any{"release": "25.05.0"}}, "errors": []any{}, "warnings": []any{}}
	if failure != "" {
		out["errors"] = []map[string]any{{"error": failure, "error_number": 2009, "source": "slurm_update_node()", "description": failure}}
	}
	if nodes != nil {
		out["nodes"] = nodes
		out["last_update"] = map[string]any{"set": true, "infinite": false, "number": 1}
	}
	return out
}

// update does what slurmctld does with a message of an administrator: reasons are overwritten.
func (s *Slurm) update(w http.ResponseWriter, n *SlurmNode, body []byte) {
	if len(s.errors) > 0 {
		failure := s.errors[0]
		s.errors = s.errors[1:]
		reply(w, http.StatusOK, response(failure, nil))
		return
	}
	var u updateNode
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&u); err != nil {
		reply(w, http.StatusBadRequest, response(fmt.Sprintf("Unable to parse: %v", err), nil))
		return
	}
	s.posts++
	if u.State != nil {
		for _, state := range *u.State {
			if !slices.Contains(States, state) {
				reply(w, http.StatusBadRequest, response("Invalid state "+state, nil))
				return
			}
			if !slices.Contains(n.State, state) {
				n.State = append(n.State, state)
			}
		}
	}
	if u.Reason != nil {
		n.Reason = *u.Reason
	}
	reply(w, http.StatusOK, response("", nil))
}
