package follow

import (
	"bytes"
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/fabric"
)

// rasResult is the result of a query of the RAS service.
type rasResult string

// The results of a query.
const (
	rasDone   rasResult = "done"
	rasAbsent rasResult = "absent"  // nothing listens at the address: no job runs
	rasTooOld rasResult = "too_old" // the library has no JSON
	rasFailed rasResult = "failed"
)

// rasResults returns all results.
func rasResults() []rasResult { return []rasResult{rasDone, rasAbsent, rasTooOld, rasFailed} }

// rasCounts counts queries and what was read of the answers.
type rasCounts struct {
	ccl.Counts
	queries map[rasResult]uint64
	last    rasResult
}

func newRASCounts() rasCounts { return rasCounts{queries: map[rasResult]uint64{}} }

// PollRAS queries the RAS service once. Run does so every 2 s.
func (f *Follower) PollRAS(ctx context.Context, now time.Time) {
	query, cancel := context.WithTimeout(ctx, rasPatience)
	defer cancel()
	text, err := ccl.QueryRAS(query, f.config.RAS)
	var counts ccl.Counts
	if err == nil {
		counts, err = ccl.ReadRAS(bytes.NewReader(text), ccl.Source{Job: f.config.Job, Host: f.config.Node}, ccl.KnownNanos(now.UnixNano()), time.UTC, func(rec ccl.Record) error {
			f.addRAS(now, rec)
			return nil
		}, func(fabric.LineError) {})
	}
	if ctx.Err() != nil {
		return // the query was ended by the end of the process
	}
	f.noteRAS(rasResultOf(err), err, counts)
}

// rasResultOf returns the result that an error stands for.
func rasResultOf(err error) rasResult {
	switch {
	case err == nil:
		return rasDone
	case errors.Is(err, syscall.ECONNREFUSED):
		return rasAbsent
	case errors.Is(err, ccl.ErrRASTooOld):
		return rasTooOld
	}
	return rasFailed
}

// noteRAS counts a query, and logs if its result is another one than the last.
func (f *Follower) noteRAS(result rasResult, err error, counts ccl.Counts) {
	f.mu.Lock()
	changed := result != f.ras.last
	f.ras.last = result
	f.ras.queries[result]++
	f.ras.Add(counts)
	f.mu.Unlock()
	switch {
	case !changed:
	case result == rasTooOld || result == rasFailed:
		f.log.Warn("cannot query the RAS service", "address", f.config.RAS, "err", err)
	default:
		f.log.Info("queried the RAS service", "address", f.config.RAS, "result", string(result))
	}
}

// addRAS takes a record of the status, which is of the whole job. Of a communicator that files of this node have, signs of
// life of ranks on other nodes are left to the agents there.
func (f *Follower) addRAS(now time.Time, rec ccl.Record) {
	if b, ok := rec.(*ccl.Beat); ok && b.Alive != nil && *b.Alive {
		f.mu.Lock()
		elsewhere := f.ledger.isElsewhere(b.Comm, b.Rank)
		f.mu.Unlock()
		if elsewhere {
			return
		}
	}
	f.Add(now, nil, rec)
}
