package matrix

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
)

// Query is what a request wants to see of a matrix.
type Query struct {
	Of        Quantity
	Selection Selection
	At        time.Time // zero means now
}

// ParseQuery reads the parameters of, by, pod, plane, class, direction and at. A moment is a time, or how long ago it is.
func ParseQuery(v url.Values, now time.Time) (q Query, err error) {
	if text := v.Get("at"); text != "" {
		if q.At, err = evidence.ParsePastMoment(text, now); err != nil {
			return q, fmt.Errorf("at: %w", err)
		}
	}
	if q.Of, err = ParseQuantity(v.Get("of")); err != nil {
		return q, err
	}
	q.Selection = Selection{NICs: v.Get("by") == "nic", Pod: v.Get("pod"), Plane: v.Get("plane"), Class: v.Get("class"), Direction: Direction(v.Get("direction"))}
	if !slices.Contains([]Direction{BothDirections, Probes, Replies}, q.Selection.Direction) {
		return q, fmt.Errorf("no direction %q; expected %s or %s", q.Selection.Direction, Probes, Replies)
	}
	return q, nil
}

// Source has the matrices of now and of past moments.
type Source struct {
	Store *Store
	Past  *Past // nil means that past moments are not known
}

// Grid returns the matrix that a query wants, and a warning if it may be incomplete. ErrUnread means that it was not read, and all other errors that
// the query is wrong.
func (s Source) Grid(ctx context.Context, q *Query, now time.Time) (g *Grid, warning string, err error) {
	switch {
	case q.At.IsZero():
		g, err = s.Store.Grid(q.Selection, now)
		return g, "", err
	case s.Past == nil:
		return nil, "", errors.New("past moments are not known here")
	}
	return s.Past.Grid(ctx, q.Selection, q.Of, q.At)
}
