package enroll

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/graylink/graylink/internal/kubeapi"
)

// DefaultAudience is the audience of tokens that are for the coordinator.
const DefaultAudience = "graylink-coordinator"

// maxReviews is the number of questions to the API server at a time.
const maxReviews = 16

// Keys of a TokenReview's status.user.extra (Kubernetes, "Service account tokens": the node's since 1.30).
const (
	extraPod  = "authentication.kubernetes.io/pod-name"
	extraNode = "authentication.kubernetes.io/node-name"
)

// Reviewer has the API server of Kubernetes confirm tokens of service accounts (authentication.k8s.io/v1, TokenReview).
type Reviewer struct {
	api      *kubeapi.Client
	audience string
	user     string // of the service account
	slots    chan struct{}
}

// NewReviewer returns a reviewer of tokens for an audience, of one service account: NAMESPACE/NAME.
func NewReviewer(api *kubeapi.Client, audience, account string) (*Reviewer, error) {
	namespace, name, ok := strings.Cut(account, "/")
	if !ok || namespace == "" || name == "" || strings.ContainsAny(name, "/:") || strings.Contains(namespace, ":") {
		return nil, fmt.Errorf("service account %q: want NAMESPACE/NAME", account)
	}
	if audience == "" {
		return nil, fmt.Errorf("the audience of tokens is empty")
	}
	return &Reviewer{api, audience, "system:serviceaccount:" + namespace + ":" + name, make(chan struct{}, maxReviews)}, nil
}

// DeniedError is returned for a token that proves no node's name.
type DeniedError struct{ reason string }

// Error implements error.
func (d *DeniedError) Error() string { return "the token proves no node: " + d.reason }

func denied(format string, args ...any) error { return &DeniedError{fmt.Sprintf(format, args...)} }

// tokenReview is a TokenReview of authentication.k8s.io/v1, as far as it is used here.
type tokenReview struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Spec       reviewSpec   `json:"spec"`
	Status     reviewStatus `json:"status,omitzero"`
}

type reviewSpec struct {
	Token     string   `json:"token"`
	Audiences []string `json:"audiences"`
}

type reviewStatus struct {
	Authenticated bool     `json:"authenticated"`
	Audiences     []string `json:"audiences"`
	Error         string   `json:"error"`
	User          struct {
		Username string              `json:"username"`
		Extra    map[string][]string `json:"extra"`
	} `json:"user"`
}

// NodeOf returns the node on which the pod of a token runs. It returns a DeniedError if the token proves none, and another
// error if the API server cannot be asked.
func (r *Reviewer) NodeOf(ctx context.Context, token string) (string, error) {
	select {
	case r.slots <- struct{}{}:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	defer func() { <-r.slots }()
	q := tokenReview{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview", Spec: reviewSpec{token, []string{r.audience}}}
	var answer tokenReview
	if err := r.api.SendRequest(ctx, http.MethodPost, kubeapi.TypeJSON, q, &answer, "apis", "authentication.k8s.io", "v1", "tokenreviews"); err != nil {
		return "", err
	}
	return r.nodeOf(&answer.Status)
}

// nodeOf returns the node that a review confirms.
func (r *Reviewer) nodeOf(s *reviewStatus) (string, error) {
	switch {
	case !s.Authenticated:
		return "", denied("Kubernetes does not accept it: %s", kubeapi.Truncate(s.Error))
	// A server that knows no audiences confirms none, and would accept every token for every audience.
	case !slices.Contains(s.Audiences, r.audience):
		return "", denied("its audiences are %q, want %q", s.Audiences, r.audience)
	case s.User.Username != r.user:
		return "", denied("it is of %q, want %q", s.User.Username, r.user)
	case len(s.User.Extra[extraPod]) != 1:
		return "", denied("it is not bound to a pod")
	case len(s.User.Extra[extraNode]) != 1 || s.User.Extra[extraNode][0] == "":
		return "", denied("Kubernetes does not say on which node its pod runs, as version 1.30 and later do")
	}
	return s.User.Extra[extraNode][0], nil
}
