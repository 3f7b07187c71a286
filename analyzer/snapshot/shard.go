package snapshot

import (
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
)

// Shard is the part of the fabric that an analyzer is responsible for.
type Shard struct {
	Own string `json:"own"`
	// Parts are the pods that it is responsible for, as fabric.Part names them, or none if it has whole planes. Unowned are
	// those of its planes for which no analyzer is responsible, and Shared those for which analyzers of several shards are.
	Parts   []string `json:"parts,omitempty"`
	Unowned []string `json:"unowned_parts,omitempty"`
	Shared  []string `json:"shared_parts,omitempty"`
	// Known reports whether the others could be read.
	Known bool `json:"others_known"`
	// Others are the other parts, as their analyzers publish them.
	Others []evidence.Shard `json:"others"`
}

// NewShard returns the part of the fabric that an analyzer is responsible for by a name, with the others as they were read last.
// Nil means that they are unknown. part is nil if it has whole planes.
func NewShard(own string, part *fabric.Part, others *[]evidence.Shard) *Shard {
	parts, all := part.Names()
	s := &Shard{Own: own, Parts: parts}
	if others == nil {
		return s
	}
	s.Known, s.Others = true, *others
	owners := map[string]int{}
	for _, name := range parts {
		owners[name]++
	}
	for i := range s.Others {
		for _, name := range s.Others[i].Parts {
			owners[name]++
		}
	}
	for _, name := range all {
		switch n := owners[name]; {
		case n == 0:
			s.Unowned = append(s.Unowned, name)
		case n > 1:
			s.Shared = append(s.Shared, name)
		}
	}
	return s
}

// JoinedState returns the state of the whole fabric: suspect if a part is, and innocent if all parts that are known are, the
// others are known, and every part has an owner.
func (s *Snapshot) JoinedState() fabric.State {
	out := s.Report.State
	if s.Shard == nil {
		return out
	}
	if (!s.Shard.Known || len(s.Shard.Unowned) > 0) && out == fabric.Innocent {
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
