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
	rec         ccl.Record
	at, arrived int64  // ns since 1970
	number      uint64 // in the order of arrival
}

// queue holds records until those of other nodes with earlier times have come.
type queue struct {
	waiting []waitingRecord
	added   uint64 // in all
	most    int
}

// add takes the records of a node, and returns how many there was no room for.
func (q *queue) add(recs []ccl.Record, now time.Time) (dropped int) {
	if room := q.most - len(q.waiting); len(recs) > room {
		dropped = len(recs) - room
		recs = recs[:room]
	}
	for _, r := range recs {
		q.added++
		q.waiting = append(q.waiting, waitingRecord{r, workload.TimeOf(r), now.UnixNano(), q.added})
	}
	return dropped
}

// take returns the records that have waited for long enough, by their times. Those without a time come first.
func (q *queue) take(now time.Time) []waitingRecord {
	until, arrivedBy := now.Add(-reorderHorizon).UnixNano(), now.Add(-longestWait).UnixNano()
	isDue := func(w *waitingRecord) bool { return w.at <= until || w.arrived <= arrivedBy }
	n := 0
	for i := range q.waiting {
		if isDue(&q.waiting[i]) {
			n++
		}
	}
	due, rest := make([]waitingRecord, 0, n), q.waiting[:0]
	for i := range q.waiting {
		if w := q.waiting[i]; isDue(&w) {
			due = append(due, w)
		} else {
			rest = append(rest, w)
		}
	}
	clear(q.waiting[len(rest):]) // so that nothing refers to records that were taken
	q.waiting = rest
	slices.SortFunc(due, func(a, b waitingRecord) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.number, b.number)) })
	return due
}

// ownRecords makes the node that answered the host of its records. It returns how many said that they were of another node. A beat without a host stays without one: it is of a status of the whole job.
func ownRecords(node string, recs []ccl.Record) (foreign int) {
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
	}
	return foreign
}
