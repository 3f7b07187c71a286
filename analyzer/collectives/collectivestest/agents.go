// Package collectivestest has agents of nodes that answer with records of collective operations, for tests.
package collectivestest

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/graylink/graylink/internal/ccl"
)

// Agents are the agents of several nodes. That of a node is at the path with its name.
type Agents struct {
	*httptest.Server

	mu      sync.Mutex
	records map[string][]ccl.Record
	lost    map[string]int // records at the beginning that are no longer held
	broken  map[string]int // status of all answers
	asked   []string       // operations that were asked for: NODE COMM OP SEQ
}

// NewAgents returns agents of nodes without records. They end with the test.
func NewAgents(t testing.TB, nodes ...string) *Agents {
	t.Helper()
	a := &Agents{records: map[string][]ccl.Record{}, lost: map[string]int{}, broken: map[string]int{}}
	for _, n := range nodes {
		a.records[n] = []ccl.Record{}
	}
	a.Server = httptest.NewServer(http.HandlerFunc(a.answer))
	t.Cleanup(a.Close)
	return a
}

// AddTo adds records to a node as they are.
func (a *Agents) AddTo(node string, recs ...ccl.Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.records[node] = append(a.records[node], recs...)
}

// Add adds a record to the node of its rank. That of a communicator is divided among the nodes of its ranks.
func (a *Agents) Add(rec ccl.Record) {
	switch r := rec.(type) {
	case *ccl.Op:
		a.AddTo(r.Host, rec)
	case *ccl.Edge:
		a.AddTo(r.Host, rec)
	case *ccl.Beat:
		a.AddTo(r.Host, rec)
	case *ccl.Comm:
		for i, m := range r.Ranks {
			if slices.ContainsFunc(r.Ranks[:i], func(o ccl.Member) bool { return o.Host == m.Host }) {
				continue
			}
			part := *r
			part.Ranks = slices.DeleteFunc(slices.Clone(r.Ranks), func(o ccl.Member) bool { return o.Host != m.Host })
			a.AddTo(m.Host, &part)
		}
	}
}

// Lose makes a node forget the records that it has, as a restart does.
func (a *Agents) Lose(node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lost[node] = len(a.records[node])
}

// Break makes a node answer with a status. 0 is a proper answer.
func (a *Agents) Break(node string, status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.broken[node] = status
}

// Asked returns the operations that were asked for, as NODE COMM OP SEQ.
func (a *Agents) Asked() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.asked)
}

func (a *Agents) answer(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	node, ok := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/"), "/api/v1/collectives")
	recs, known := a.records[node]
	switch {
	case !ok || !known:
		http.NotFound(w, r)
		return
	case a.broken[node] != 0:
		http.Error(w, "broken", a.broken[node])
		return
	}
	q := r.URL.Query()
	page := ccl.Page{Node: node, Cursor: uint64(len(recs))}
	if comm := q.Get("comm"); comm != "" {
		a.asked = append(a.asked, strings.Join([]string{node, comm, q.Get("op"), q.Get("seq")}, " "))
		for _, rec := range recs {
			if o, isOp := rec.(*ccl.Op); isOp && o.Comm == comm && o.Op == q.Get("op") && strconv.FormatUint(o.Seq, 10) == q.Get("seq") {
				page.Records = append(page.Records, rec)
			}
		}
	} else {
		after, err := strconv.Atoi(q.Get("after"))
		limit, err2 := strconv.Atoi(q.Get("limit"))
		if err != nil || err2 != nil {
			http.Error(w, "after and limit are expected", http.StatusBadRequest)
			return
		}
		first := max(after, a.lost[node])
		last := min(first+limit, len(recs))
		page.Missed, page.Cursor, page.More = after < first, uint64(last), last < len(recs)
		page.Records = recs[first:last]
	}
	_, _ = page.WriteTo(w) // the client may have gone
}
