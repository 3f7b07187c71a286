package node

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/ccl/follow"
	"github.com/graylink/graylink/internal/points"
)

// collectivesCollector publishes what was read of collective libraries.
type collectivesCollector struct {
	points func(now time.Time) []points.Point
	now    func() time.Time
}

func newCollectivesCollector(from *sources) collector {
	if from.collectives == nil {
		return nil
	}
	return collectivesCollector{from.collectives, from.now}
}

// addSeries implements collector.
func (c collectivesCollector) addSeries(s *scrape) error {
	families := pointFamilies{}
	for _, p := range c.points(c.now()) {
		families.addPoint(s.exposition, &p)
	}
	return nil
}

// collectivesAPI hands out records of collective operations.
type collectivesAPI struct {
	follower *follow.Follower
	log      *slog.Logger
}

// recordQuery is what a request asks for: records after a cursor, or all of one operation.
type recordQuery struct {
	after    uint64
	limit    int
	comm, op string
	seq      uint64
}

// parseRecordQuery reads the parameters of a request. The error names the first that is wrong, unknown or missing.
func parseRecordQuery(v url.Values) (q recordQuery, err error) {
	q.limit = ccl.DefaultPage
	number := func(name string, least, most uint64) uint64 {
		n, perr := strconv.ParseUint(v.Get(name), 10, 64)
		if err == nil && (perr != nil || n < least || n > most) {
			err = fmt.Errorf("parameter %q: %q: a number from %d to %d is expected", name, v.Get(name), least, most)
		}
		return n
	}
	const largest = 1<<64 - 1
	one := v.Has("comm") || v.Has("op") || v.Has("seq")
	for name, values := range v {
		switch name {
		case "after", "limit":
			if one {
				return q, fmt.Errorf("parameter %q: it cannot be combined with comm, op and seq", name)
			}
		case "comm", "op", "seq":
		default:
			return q, fmt.Errorf("parameter %q: after, limit, comm, op or seq is expected", name)
		}
		if len(values) > 1 {
			return q, fmt.Errorf("parameter %q: one value is expected, not %d", name, len(values))
		}
	}
	if !one {
		if v.Has("after") {
			q.after = number("after", 0, largest)
		}
		if v.Has("limit") {
			q.limit = int(number("limit", 1, ccl.MaxPage))
		}
		return q, err
	}
	q.comm, q.op = v.Get("comm"), v.Get("op")
	for _, x := range []struct{ name, value string }{{"comm", q.comm}, {"op", q.op}} {
		if x.value == "" || len(x.value) > ccl.MaxString {
			return q, fmt.Errorf("parameter %q: a name of 1 to %d bytes is expected", x.name, ccl.MaxString)
		}
	}
	q.seq = number("seq", 0, largest)
	return q, err
}

// serveRecords answers GET /api/v1/collectives, with ?after= and ?limit= for the records that were handed out since, and
// with ?comm=, ?op= and ?seq= for all that is held of one operation.
func (a collectivesAPI) serveRecords(w http.ResponseWriter, r *http.Request) {
	q, err := parseRecordQuery(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var page ccl.Page
	if q.comm == "" {
		page = a.follower.Page(q.after, q.limit)
	} else {
		page = a.follower.Operation(q.comm, q.op, q.seq)
	}
	w.Header().Set("Content-Type", "application/jsonl")
	if _, err := page.WriteTo(w); err != nil {
		a.log.Debug("cannot write the records of collective operations", "err", err)
	}
}
