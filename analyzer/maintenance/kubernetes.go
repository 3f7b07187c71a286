package maintenance

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Kubernetes is a source of windows from cordoned nodes. A node is the topology's node of its name, or
// of its name up to the first dot.
type Kubernetes struct {
	Client *http.Client
	URL    string // base of the API server, without a path
}

// Name implements Source.
func (k *Kubernetes) Name() string { return SourceKubernetes }

// nodesAtOnce is the number of nodes in one request, and maxPages bounds the requests.
const (
	nodesAtOnce = 500
	maxPages    = 1000
)

// ReadWindows implements Source. All pages are read or none.
func (k *Kubernetes) ReadWindows(ctx context.Context, r *Register) ([]Window, error) {
	at, err := url.JoinPath(k.URL, "/api/v1/nodes")
	if err != nil {
		return nil, fmt.Errorf("cordons: %w", err)
	}
	out, next := []Window{}, ""
	for range maxPages {
		q := url.Values{"limit": {strconv.Itoa(nodesAtOnce)}}
		if next != "" {
			q.Set("continue", next)
		}
		b, err := fetchJSON(ctx, k.Client, at+"?"+q.Encode(), "Kubernetes")
		if err != nil {
			return nil, fmt.Errorf("cordons: %w", err)
		}
		ws, more, err := parseNodes(b, r.CheckElement)
		if err != nil {
			return nil, fmt.Errorf("cordons: %w", err)
		}
		if out = append(out, ws...); len(out) > maxWindows {
			return nil, fmt.Errorf("cordons: more than %d nodes are cordoned", maxWindows)
		}
		if next = more; next == "" {
			return out, nil
		}
	}
	return nil, fmt.Errorf("cordons: more than %d pages of nodes", maxPages)
}

// nodeList is as much as is read of Kubernetes' v1.NodeList.
type nodeList struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Continue string `json:"continue"`
	} `json:"metadata"`
	Items []struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Spec struct {
			Unschedulable bool `json:"unschedulable"`
			Taints        []struct {
				Key       string     `json:"key"`
				TimeAdded *time.Time `json:"timeAdded"`
			} `json:"taints"`
		} `json:"spec"`
	} `json:"items"`
}

// cordonTaint is what Kubernetes adds to a node that is cordoned, and since when.
const cordonTaint = "node.kubernetes.io/unschedulable"

// parseNodes reads a page of nodes, and returns the token for the next page. Nodes that the
// topology does not have are left out.
func parseNodes(b []byte, check func(string) error) (out []Window, next string, err error) {
	var list nodeList
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, "", fmt.Errorf("the answer of Kubernetes: %w", err)
	}
	if list.Kind != "NodeList" && list.Kind != "List" {
		return nil, "", fmt.Errorf("the answer of Kubernetes is of kind %.40q, where a NodeList is expected", list.Kind)
	}
	for i := range list.Items {
		n := &list.Items[i]
		name := n.Metadata.Name
		if !n.Spec.Unschedulable || strings.ContainsAny(name, "/:") {
			continue
		}
		if check(name) != nil {
			name, _, _ = strings.Cut(name, ".")
		}
		if check(name) != nil {
			continue
		}
		w := Window{ID: name, Element: name, By: "kubernetes", Reason: "cordoned"}
		for _, t := range n.Spec.Taints {
			if t.Key == cordonTaint && t.TimeAdded != nil {
				w.From = *t.TimeAdded
			}
		}
		out = append(out, w)
	}
	return out, list.Metadata.Continue, nil
}
