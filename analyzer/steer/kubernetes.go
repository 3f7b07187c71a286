package steer

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
)

// Names of what is left at a Node.
const (
	actionAnnotation = "graylink.io/steering" // identifier of the action
	reasonAnnotation = "graylink.io/steering-reason"
	taintKey         = "graylink.io/steering"
	taintValue       = "suspect"
	taintEffect      = "NoSchedule" // pods that run stay
)

// mergePatch is the content type of patches of Nodes, as kubectl cordon sends them.
const mergePatch = "application/strategic-merge-patch+json"

// cordon marks Nodes of Kubernetes as unschedulable. It gets and patches Nodes, and does nothing else.
type cordon struct {
	*server
	taint bool
}

// Name implements Actuator.
func (*cordon) Name() string { return "kubernetes" }

// kubeNode is as much as is used of a v1.Node, in answers and in patches.
type kubeNode struct {
	Kind     string       `json:"kind,omitempty"`
	Metadata kubeMetadata `json:"metadata"`
	Spec     kubeSpec     `json:"spec"`
}

type kubeMetadata struct {
	Name            string            `json:"name,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
}

type kubeSpec struct {
	Unschedulable bool `json:"unschedulable,omitempty"`
	// Taints are kept as they are: a patch replaces the list, which is atomic (k8s.io/api v0.37.2, core/v1/types.go: NodeSpec).
	Taints []json.RawMessage `json:"taints,omitempty"`
}

// Act implements Actuator. The patch has the version of the Node that was read, so that the API server refuses it if the Node
// has changed since.
func (c *cordon) Act(ctx context.Context, o *Order) (outcome string, err error) {
	path, err := nodePath("/api/v1/nodes/", o.Target)
	if err != nil {
		return "", fmt.Errorf("kubernetes: %w", err)
	}
	return c.repeat(ctx, func(ctx context.Context) (string, error) {
		var n kubeNode
		if err := c.send(ctx, http.MethodGet, path, "", nil, nil, &n); err != nil {
			return "", err
		}
		switch {
		case n.Kind != "Node" || n.Metadata.Name != o.Target || n.Metadata.ResourceVersion == "":
			return "", fmt.Errorf("kubernetes: the answer is %.40q %.60q, where Node %q with a version is expected", n.Kind, n.Metadata.Name, o.Target)
		case n.Spec.Unschedulable && n.Metadata.Annotations[actionAnnotation] == o.ID:
			return OutcomeDone, nil // by an attempt whose answer was lost
		case n.Spec.Unschedulable || slices.ContainsFunc(n.Spec.Taints, isOwnTaint):
			return OutcomeLeftAlone, nil
		}
		body, err := json.Marshal(c.patch(&n, o))
		if err != nil {
			return "", fmt.Errorf("kubernetes: %w", err)
		}
		return OutcomeDone, c.send(ctx, http.MethodPatch, path, mergePatch, nil, body, nil)
	})
}

// isOwnTaint reports whether a taint has our key.
func isOwnTaint(raw json.RawMessage) bool {
	var t struct {
		Key string `json:"key"`
	}
	return json.Unmarshal(raw, &t) == nil && t.Key == taintKey
}

// patch returns the patch of a Node.
func (c *cordon) patch(n *kubeNode, o *Order) *kubeNode {
	p := &kubeNode{Spec: kubeSpec{Unschedulable: true}, Metadata: kubeMetadata{ResourceVersion: n.Metadata.ResourceVersion,
		Annotations: map[string]string{actionAnnotation: o.ID, reasonAnnotation: o.reason()}}}
	if c.taint {
		own := json.RawMessage(`{"key":"` + taintKey + `","value":"` + taintValue + `","effect":"` + taintEffect + `"}`)
		p.Spec.Taints = append(slices.Clone(n.Spec.Taints), own)
	}
	return p
}
