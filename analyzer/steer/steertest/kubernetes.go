package steertest

import (
	"encoding/json"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// Kubernetes is an API server that has Nodes. It allows what a role with the verbs get and patch on nodes allows.
type Kubernetes struct {
	Server
	nodes map[string]*Node
}

// Node is a Node of Kubernetes, as far as steering changes it.
type Node struct {
	Version       int
	Annotations   map[string]string
	Unschedulable bool
	Taints        []map[string]any
}

// NewKubernetes returns an API server with Nodes, which ends with the test.
func NewKubernetes(t testing.TB, names ...string) *Kubernetes {
	t.Helper()
	k := &Kubernetes{nodes: map[string]*Node{}}
	for _, name := range names {
		k.nodes[name] = &Node{Version: 1, Annotations: map[string]string{}}
	}
	k.start(t, k.answer)
	return k
}

// Node returns a copy of a Node.
func (k *Kubernetes) Node(name string) Node {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := *k.nodes[name]
	n.Annotations = maps.Clone(n.Annotations)
	return n
}

// Change changes a Node, as somebody else would.
func (k *Kubernetes) Change(name string, change func(n *Node)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(k.nodes[name])
	k.nodes[name].Version++
}

func (k *Kubernetes) answer(w http.ResponseWriter, r *http.Request, body []byte) {
	name, isNode := strings.CutPrefix(r.URL.Path, "/api/v1/nodes/")
	switch {
	case !isNode || strings.Contains(name, "/"):
		k.forbid(w, r, "only nodes may be read and patched")
	case r.Method != http.MethodGet && r.Method != http.MethodPatch:
		k.forbid(w, r, "only get and patch are allowed")
	case k.nodes[name] == nil:
		reply(w, http.StatusNotFound, map[string]any{"kind": "Status", "message": "not found"})
	case r.Method == http.MethodPatch:
		k.patch(w, r, name, body)
	default:
		reply(w, http.StatusOK, k.nodes[name].object(name))
	}
}

// object returns a Node in JSON.
func (n *Node) object(name string) map[string]any {
	spec := map[string]any{"podCIDR": "10.244.0.0/24"}
	if n.Unschedulable {
		spec["unschedulable"] = true
	}
	if len(n.Taints) > 0 {
		spec["taints"] = n.Taints
	}
	return map[string]any{"kind": "Node", "apiVersion": "v1", "spec": spec,
		"metadata": map[string]any{"name": name, "resourceVersion": strconv.Itoa(n.Version), "annotations": n.Annotations}}
}

// patch does what a strategic merge patch does: annotations are merged, and taints replaced, since their list is atomic.
func (k *Kubernetes) patch(w http.ResponseWriter, r *http.Request, name string, body []byte) {
	var p struct {
		Metadata struct {
			ResourceVersion *string           `json:"resourceVersion"`
			Annotations     map[string]string `json:"annotations"`
		} `json:"metadata"`
		Spec struct {
			Unschedulable *bool             `json:"unschedulable"`
			Taints        *[]map[string]any `json:"taints"`
		} `json:"spec"`
	}
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	n := k.nodes[name]
	switch {
	case r.Header.Get("Content-Type") != "application/strategic-merge-patch+json":
		w.WriteHeader(http.StatusUnsupportedMediaType)
		return
	case d.Decode(&p) != nil:
		k.forbid(w, r, "the patch has more than metadata and spec of what steering may change: "+string(body))
		return
	case p.Metadata.ResourceVersion == nil:
		k.forbid(w, r, "the patch has no version as its precondition")
		return
	case *p.Metadata.ResourceVersion != strconv.Itoa(n.Version):
		reply(w, http.StatusConflict, map[string]any{"kind": "Status", "message": "the object has been modified"})
		return
	}
	maps.Copy(n.Annotations, p.Metadata.Annotations)
	if p.Spec.Unschedulable != nil {
		n.Unschedulable = *p.Spec.Unschedulable
	}
	if p.Spec.Taints != nil {
		n.Taints = *p.Spec.Taints
	}
	n.Version++
	reply(w, http.StatusOK, n.object(name))
}
