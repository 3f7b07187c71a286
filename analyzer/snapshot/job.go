package snapshot

import (
	"cmp"
	"slices"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/scope"
	"github.com/graylink/graylink/internal/fabric"
)

// JobView represents the state of the network for a job, with the evidence.
type JobView struct {
	scope.Scope
	jobs.Placement
	NICs []string `json:"nics"`
	// Verdicts are the open verdicts on elements that the job may cross, and on its hosts and their clocks. The
	// latter do not blame the network.
	Verdicts []incident.Incident `json:"verdicts"`
	// Before are past verdicts that affected the job, newest first, at most maxBefore.
	Before []incident.Incident `json:"before"`
	// Peers are other jobs that share links with it. Clean ones are evidence for the shared links.
	Peers []PeerJob `json:"peers"`
	// Unknown is the number of nodes and NICs in all placements that the topology does not have.
	Unknown int `json:"unknown_nodes,omitempty"`
}

// PeerJob represents a job that shares links with another one.
type PeerJob struct {
	Job   string       `json:"job"`
	State fabric.State `json:"state"`
	// Shared is the number of directed links that both may cross. Accused is set if the peer may cross a blamed
	// element, too.
	Shared  int  `json:"shared_links"`
	Accused bool `json:"crosses_suspect"`
}

// Bounds of the lists in a JobView.
const (
	maxBefore = 20
	maxPeers  = 20
)

// JobNames returns the running jobs, or nil if no placement is known.
func (s *Snapshot) JobNames() []string { return s.Placed.JobNames() }

// FindJob returns the view of a job, which it finds by name or by the identifier of its scheduler. It reports false if
// there is no such job.
func (s *Snapshot) FindJob(name string) (JobView, bool) {
	p, ok := s.Placed.FindJob(name)
	if !ok {
		return JobView{}, false
	}
	v := JobView{Placement: p, NICs: s.Placed.NICsOf(p.Job), Verdicts: []incident.Incident{}, Before: []incident.Incident{}, Peers: []PeerJob{}, Unknown: s.Placed.Unknown}
	states := map[string]scope.Scope{}
	for _, sc := range s.Scopes {
		states[sc.Scope] = sc
	}
	v.Scope = scope.Scope{Scope: scope.JobPrefix + p.Job, State: fabric.InsufficientEvidence, Why: "no link that the job may cross belongs to this analyzer's part of the fabric"}
	if sc, ok := states[v.Scope.Scope]; ok {
		v.Scope = sc
	}
	own := s.Placed.DirectionsOf(p.Job)
	accused := map[string]bool{}
	for i := range s.Incidents {
		in := &s.Incidents[i]
		switch named := slices.Contains(in.Jobs, p.Job); {
		case in.Open && (named || in.Kind == fabric.KindClock && s.Placed.HasNIC(p.Job, in.Element.ID)):
			v.Verdicts = append(v.Verdicts, *in)
			for _, other := range in.Jobs {
				accused[other] = accused[other] || incident.BlamesNetwork(&in.Verdict)
			}
		case !in.Open && named && len(v.Before) < maxBefore:
			v.Before = append(v.Before, *in)
		}
	}
	for _, other := range s.Placed.JobNames() {
		shared := 0
		for d := range s.Placed.DirectionsOf(other) {
			if own[d] {
				shared++
			}
		}
		if other != p.Job && shared > 0 {
			v.Peers = append(v.Peers, PeerJob{Job: other, State: states[scope.JobPrefix+other].State, Shared: shared, Accused: accused[other]})
		}
	}
	slices.SortStableFunc(v.Peers, func(a, b PeerJob) int { return cmp.Compare(b.Shared, a.Shared) })
	v.Peers = v.Peers[:min(len(v.Peers), maxPeers)]
	return v, true
}
