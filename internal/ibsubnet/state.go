package ibsubnet

import (
	"sync"
	"time"

	"github.com/graylink/graylink/internal/ibfabric"
)

// State is what is known of the readings of a subnet. It is safe for concurrent use.
type State struct {
	// Subnet is the name of the subnet.
	Subnet string
	// StaleAfter is the age from which paths are stale. 0 means that it is not known.
	StaleAfter time.Duration

	mu   sync.Mutex
	view View
}

// View is a State at one moment.
type View struct {
	Subnet string `json:"subnet"`
	// Origin says where the last reading is from.
	Origin string `json:"source"`
	// ReadAt is when the last reading ended. It is zero before the first.
	ReadAt time.Time `json:"read_at"`
	// ConfirmedAt is until when paths have been confirmed. It is zero before the first confirmation.
	ConfirmedAt time.Time `json:"confirmed_at,omitzero"`
	// StaleAfter is the age of the last confirmation from which paths are stale. 0 means that it is not known.
	StaleAfter time.Duration `json:"stale_after_ns,omitempty"`
	// Tables is the number of switches whose forwarding tables are known.
	Tables int `json:"tables"`
	// Confirmed is set if the last reading confirms the one before it.
	Confirmed bool `json:"confirmed"`
	// Readings and Failures count attempts.
	Readings uint64 `json:"readings"`
	Failures uint64 `json:"failures"`
	// Err is why the last attempt failed. It is empty if it did not.
	Err string `json:"error,omitempty"`
	// Switches and Nodes are the numbers of switches and of other nodes, Silent that of queries without an answer.
	Switches int `json:"switches"`
	Nodes    int `json:"nodes"`
	Silent   int `json:"silent"`
	// Found lists contradictions of the last discovery.
	Found []string `json:"found,omitempty"`
}

// record records an attempt. It reports whether it is the first one of its kind: the first reading after failures, or the
// first failure after readings.
func (s *State) record(r ibfabric.Reading, err error, origin string) (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := &s.view
	before := v.Readings+v.Failures == 0
	if err != nil {
		first = before || v.Err == ""
		v.Failures++
		v.Err, v.Confirmed = err.Error(), false
		return first
	}
	first = before || v.Err != ""
	v.Readings++
	v.Err, v.Origin, v.ReadAt, v.Confirmed = "", origin, r.Ended, !r.Broken
	if !r.Broken || !r.Since.IsZero() {
		v.Confirmed, v.ConfirmedAt = true, r.Begun
	}
	v.Tables = 0
	for _, table := range r.Fabric.LFTs {
		if table != nil {
			v.Tables++
		}
	}
	v.Switches, v.Nodes, v.Silent, v.Found = r.Fabric.Switches, len(r.Fabric.Nodes)-r.Fabric.Switches, len(r.Fabric.Unanswered), r.Found
	return first
}

// endConfirmation records that a change was reported after the last reading.
func (s *State) endConfirmation() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.view.Confirmed = false
}

// IsStale reports whether nothing has confirmed paths for longer than StaleAfter.
func (v *View) IsStale(now time.Time) bool {
	return v.StaleAfter > 0 && !v.ConfirmedAt.IsZero() && now.Sub(v.ConfirmedAt) > v.StaleAfter
}

// View returns the present state.
func (s *State) View() View {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.view
	out.Subnet, out.StaleAfter = s.Subnet, s.StaleAfter
	return out
}
