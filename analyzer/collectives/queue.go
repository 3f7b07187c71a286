package collectives

import (
	"cmp"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/fabric"
)

// Times for which records wait for earlier ones of other nodes.
const (
	reorderHorizon = 2 * time.Second    // after the record's time
	longestWait    = 2 * reorderHorizon // after it came, for clocks of nodes that are ahead
)

// maxWaiting bounds the records that wait.
const maxWaiting = 1 << 20

// waitingRecord is a record with its own time and that of its arrival.
type waitingRecord struct {
	rec     ccl.Record
	at      int64
	arrived time.Time
}

// queue holds records until those of other nodes with earlier times have come.
type queue struct {
	waiting []waitingRecord
	most    int
}

// add takes the records of a node, and returns how many there was no room for.
func (q *queue) add(recs []ccl.Record, now time.Time) (dropped int) {
	if room := q.most - len(q.waiting); len(recs) > room {
		dropped = len(recs) - room
		recs = recs[:room]
	}
	for _, r := range recs {
		q.waiting = append(q.waiting, waitingRecord{r, workload.TimeOf(r), now})
	}
	return dropped
}

// take returns the records that have waited for long enough, by their times. Those without a time come first.
func (q *queue) take(now time.Time) []waitingRecord {
	var due, rest []waitingRecord
	until, arrivedBy := now.Add(-reorderHorizon).UnixNano(), now.Add(-longestWait)
	for _, w := range q.waiting {
		if w.at <= until || !w.arrived.After(arrivedBy) {
			due = append(due, w)
		} else {
			rest = append(rest, w)
		}
	}
	q.waiting = rest
	slices.SortStableFunc(due, func(a, b waitingRecord) int { return cmp.Compare(a.at, b.at) })
	return due
}

// ownRecords makes the node that answered the host of its records. It returns those that stay, and how many said that they were
// of another node. A beat without a host stays without one: it is of a status of the whole job.
func ownRecords(node string, recs []ccl.Record) (kept []ccl.Record, foreign int) {
	claim := func(host *string) {
		if *host != "" && *host != node {
			foreign++
		}
		*host = node
	}
	for _, rec := range recs {
		switch r := rec.(type) {
		case *ccl.Op:
			claim(&r.Host)
		case *ccl.Edge:
			claim(&r.Host)
		case *ccl.Beat:
			if r.Via = node; r.Host != "" {
				claim(&r.Host)
			}
		case *ccl.Comm:
			// Only the node of a rank says where the rank is.
			r.Ranks = slices.DeleteFunc(r.Ranks, func(m ccl.Member) bool {
				if m.Host == "" {
					return true
				}
				wrong := m.Host != node || m.NIC != "" && fabric.OwnerOf(m.NIC) != node
				if wrong {
					foreign++
				}
				return wrong
			})
		}
		kept = append(kept, rec)
	}
	return kept, foreign
}
