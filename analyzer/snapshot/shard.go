package snapshot

import (
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
)

// Shard is the part of the fabric that an analyzer is responsible for.
type Shard struct {
	Own string `json:"own"`
	// Known reports whether the others could be read.
	Known bool `json:"others_known"`
	// Others are the other parts, as their analyzers publish them.
	Others []evidence.Shard `json:"others"`
}

// JoinedState returns the state of the whole fabric: suspect if a part is, and innocent if all parts that are known are, and
// the others are known.
func (s *Snapshot) JoinedState() fabric.State {
	out := s.Report.State
	if s.Shard == nil {
		return out
	}
	if !s.Shard.Known && out == fabric.Innocent {
		out = fabric.InsufficientEvidence
	}
	for i := range s.Shard.Others {
		switch state := s.Shard.Others[i].State; {
		case state == fabric.Suspect:
			return state
		case state != fabric.Innocent && out == fabric.Innocent:
			out = state
		}
	}
	return out
}
