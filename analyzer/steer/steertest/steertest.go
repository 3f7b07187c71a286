// Package steertest has servers that steering talks to, for tests: an API server of Kubernetes with Nodes, a slurmrestd and a
// webhook. They answer as their documents say, refuse everything that steering has no right to, and fail on request.
package steertest

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
)

// Fault is what happens to one request instead of a proper answer. The zero value is a proper answer.
type Fault struct {
	Status int  // of the answer; the request changes nothing, and a redirect leads to another path
	Lost   bool // the request is done, and the connection ends before the answer
	Hang   bool // there is no answer until the client gives up; the request changes nothing
}

// Server is what all servers have in common.
type Server struct {
	*httptest.Server

	mu        sync.Mutex
	faults    []Fault
	requests  []string // method and path
	forbidden []string
}

// start starts a server with TLS that ends with the test. answer is called with the lock held.
func (s *Server) start(t testing.TB, answer func(w http.ResponseWriter, r *http.Request, body []byte)) {
	t.Helper()
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.requests = append(s.requests, r.Method+" "+r.URL.Path)
		var f Fault
		if len(s.faults) > 0 {
			f, s.faults = s.faults[0], s.faults[1:]
		}
		switch {
		case f.Hang:
			s.mu.Unlock()
			<-r.Context().Done()
			return
		case f.Status != 0:
			if f.Status/100 == 3 {
				w.Header().Set("Location", "/elsewhere")
			}
			w.WriteHeader(f.Status)
		case f.Lost:
			answer(httptest.NewRecorder(), r, body)
			s.mu.Unlock()
			panic(http.ErrAbortHandler)
		default:
			answer(w, r, body)
		}
		s.mu.Unlock()
	}))
	s.Config.ErrorLog = nil
	t.Cleanup(s.Close)
}

// AddFaults makes the next requests fail, one each.
func (s *Server) AddFaults(faults ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, faults...)
}

// Requests returns the methods and paths of all requests.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Forbidden returns the requests that steering has no right to.
func (s *Server) Forbidden() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.forbidden)
}

// forbid refuses a request.
func (s *Server) forbid(w http.ResponseWriter, r *http.Request, why string) {
	s.forbidden = append(s.forbidden, r.Method+" "+r.URL.Path+": "+why)
	w.WriteHeader(http.StatusForbidden)
}

// reply writes an answer.
func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the client may have gone
}
