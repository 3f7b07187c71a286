package ibfabric

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/ibmad"
)

// Reading is one look at a fabric.
//
// Rules:
//
//  1. A reading holds at no moment of its own: its tables were read one after the
//     other. What a reading and the one before it say alike held from the earlier's
//     Ended to the later's Begun.
//  2. That does not hold where something may have changed and changed back between
//     the two: Broken. It is when something tells of a change, for as long as one may
//     take (Watch.Settle), or when the two are further apart than Watch.Gap.
//  3. A way is confirmed by what it needs, the entries and cables on it: what changes
//     elsewhere does not matter to it.
//  4. Cables are read anew when a table is another or is not answered any more, when a
//     switch says that a port changed, when something tells of a change, and every
//     Watch.Cables.
type Reading struct {
	// Fabric is the one of the reading before when nothing differs.
	Fabric       *Fabric
	Begun, Ended time.Time
	Broken       bool
	// Found names what was contradictory in the last discovery.
	Found []string
}

// Watch reads a fabric again and again. It is not safe for concurrent use.
type Watch struct {
	Client *ibmad.Client
	// Now is the clock.
	Now func() time.Time
	// PollChange reports whether something told of a change since it was last asked, nil:
	// nothing does. Then a change that is undone between two readings is not seen.
	PollChange func() (bool, error)
	// SettleTime is how long after unrest tables may still change.
	SettleTime time.Duration
	// MaxGap is the longest time between readings that confirm each other.
	MaxGap time.Duration
	// CableInterval is how often cables are read without need.
	CableInterval time.Duration

	last       Reading
	discovered time.Time
	settledAt  time.Time // when the last unrest is over
}

// Read looks at the fabric once. After an error the next reading is Broken.
func (w *Watch) Read(ctx context.Context) (Reading, error) {
	r, err := w.readOnce(ctx)
	if err != nil {
		w.last.Fabric = nil
		return Reading{}, err
	}
	unrest := false
	if w.PollChange != nil {
		if unrest, err = w.PollChange(); err != nil {
			w.last.Fabric = nil
			return Reading{}, err
		}
	}
	if unrest {
		w.settledAt = r.Ended.Add(w.SettleTime)
	}
	r.Broken = w.last.Fabric == nil || unrest || w.last.Begun.Before(w.settledAt) || r.Begun.Sub(w.last.Ended) > w.MaxGap
	w.last = r
	return r, nil
}

func (w *Watch) readOnce(ctx context.Context) (r Reading, err error) {
	before := w.last.Fabric
	r.Begun, r.Found = w.Now(), w.last.Found
	if before != nil && r.Begun.Sub(w.discovered) < w.CableInterval && !r.Begun.Before(w.settledAt) {
		t, err := ReadTables(ctx, w.Client, before)
		if err != nil {
			return Reading{}, err
		}
		if len(t.Changed) == 0 && sameTables(t.LFTs, before.LFTs) {
			r.Fabric, r.Ended = before, w.Now()
			return r, nil
		}
		r.Begun = w.Now()
	}
	w.discovered = r.Begun
	f, found, err := Discover(ctx, w.Client)
	if err != nil {
		return Reading{}, err
	}
	t, err := ReadTables(ctx, w.Client, f)
	if err != nil {
		return Reading{}, err
	}
	r.Fabric, r.Found, r.Ended = f.WithTables(t.LFTs), found, w.Now()
	if before != nil && before.sameCables(f) && sameTables(t.LFTs, before.LFTs) {
		r.Fabric = before
	}
	return r, nil
}

// sameTables reports whether two readings of the same switches agree, also on which
// switches do not answer.
func sameTables(a, b [][]uint8) bool {
	return slices.EqualFunc(a, b, func(x, y []uint8) bool { return (x == nil) == (y == nil) && bytes.Equal(x, y) })
}

// sameCables reports whether two discoveries found the same, by whatever routes.
func (f *Fabric) sameCables(g *Fabric) bool {
	return f.From == g.From &&
		slices.EqualFunc(f.Unanswered, g.Unanswered, func(a, b Unanswered) bool { return a.Near == b.Near && a.Query == b.Query }) &&
		slices.EqualFunc(f.Nodes, g.Nodes, func(a, b Node) bool {
			return a.GUID == b.GUID && a.Type == b.Type && a.Description == b.Description && slices.Equal(a.Ports, b.Ports)
		})
}
