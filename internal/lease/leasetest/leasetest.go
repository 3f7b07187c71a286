// Package leasetest is an API server of Kubernetes that has at most one Lease, for tests. The test of the chart asks a real
// one.
package leasetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// Server answers requests for the Lease "coordinator" of the namespace "graylink".
type Server struct {
	*httptest.Server
	Before func() // is called before the next change

	mu      sync.Mutex
	lease   map[string]any // nil if there is none
	version int
	down    bool
}

// NewServer returns a server that ends with the test.
func NewServer(t *testing.T) *Server {
	t.Helper()
	s := &Server{}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if hook := s.Before; hook != nil && r.Method != http.MethodGet {
		s.Before = nil
		hook()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fail := func(code int, text string) {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","message":%q}`, text)
	}
	base := "/apis/coordination.k8s.io/v1/namespaces/graylink/leases"
	var in map[string]any
	if r.Method != http.MethodGet {
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			fail(http.StatusBadRequest, err.Error())
			return
		}
	}
	switch {
	case s.down:
		fail(http.StatusServiceUnavailable, "down")
		return
	case r.Method == http.MethodPost && r.URL.Path == base && s.lease == nil:
		s.lease = in
	case r.Method == http.MethodPost && r.URL.Path == base:
		fail(http.StatusConflict, "already exists")
		return
	case r.URL.Path != base+"/coordinator":
		fail(http.StatusBadRequest, "path "+r.URL.Path)
		return
	case s.lease == nil:
		fail(http.StatusNotFound, "not found")
		return
	case r.Method == http.MethodPatch && r.Header.Get("Content-Type") == "application/strategic-merge-patch+json":
		if v := in["metadata"].(map[string]any)["resourceVersion"]; v != fmt.Sprint(s.version) {
			fail(http.StatusConflict, "the object has been modified")
			return
		}
		merge(s.lease, in)
	case r.Method != http.MethodGet:
		fail(http.StatusMethodNotAllowed, r.Method)
		return
	}
	if r.Method != http.MethodGet {
		s.version++
		s.lease["metadata"].(map[string]any)["resourceVersion"] = fmt.Sprint(s.version)
	}
	_ = json.NewEncoder(w).Encode(s.lease)
}

// merge does what a merge patch does to objects.
func merge(to, patch map[string]any) {
	for k, v := range patch {
		if inner, ok := v.(map[string]any); ok {
			if have, ok := to[k].(map[string]any); ok {
				merge(have, inner)
				continue
			}
		}
		to[k] = v
	}
}

// Lease returns the lease as it is, or nil.
func (s *Server) Lease() map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease
}

// SetDown makes every request fail, or no more.
func (s *Server) SetDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}
