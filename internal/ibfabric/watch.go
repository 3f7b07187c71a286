package ibfabric

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/ibmad"
)

// Reading is one look at a fabric.
//
// Rules:
//
//  1. A reading does not hold at one moment: its tables were read one after the
//     other. What a reading and the one before it agree on held from the earlier's
//     Ended to the later's Begun.
//  2. That is not so where something may have changed and changed back between
//     the two: Broken. It is set when a change is reported, until that is over
//     (Watch.Settled) or for as long as one may take (Watch.SettleTime), when the subnet
//     manager has another LID, or when the two are further apart than Watch.MaxGap.
//  3. A path is confirmed by the entries and cables on it: changes
//     elsewhere do not matter to it.
//  4. Cables are read again when a table changed or can no longer be read, when a
//     switch reports that a port changed, when a change is reported, and every
//     Watch.CableInterval.
type Reading struct {
	// Fabric is that of the reading before if nothing differs.
	Fabric       *Fabric
	Begun, Ended time.Time
	Broken       bool
	// Since is set in a broken reading that another reader, as an agent, has confirmed: its fabric held from Since to Begun.
	Since time.Time
	// Found lists the contradictions of the last discovery.
	Found []string
}

// Watch reads a fabric again and again. It is not safe for concurrent use.
type Watch struct {
	Client *ibmad.Client
	// Now returns the current time.
	Now func() time.Time
	// PollChange reports whether there was a change since the last call. If it is nil, a change that is undone
	// between two readings is not seen.
	PollChange func() (bool, error)
	// Settled reports, after PollChange reported a change, whether that is over. Nil means that it is not known.
	Settled func() bool
	// SettleTime is how long tables may still change after a reported change.
	SettleTime time.Duration
	// MaxGap is the longest time between readings that confirm each other.
	MaxGap time.Duration
	// CableInterval is how often cables are read when nothing has changed.
	CableInterval time.Duration

	last       Reading
	discovered time.Time
	settledAt  time.Time // when the tables have settled after the last reported change
	smLID      LID       // of the subnet manager; 0 means unknown
}

// Read reads the fabric once. After an error the next reading is Broken.
func (w *Watch) Read(ctx context.Context) (Reading, error) {
	r, err := w.readOnce(ctx)
	if err != nil {
		w.last.Fabric = nil
		return Reading{}, err
	}
	if _, err := w.Poll(); err != nil {
		return Reading{}, err
	}
	r.Broken = w.last.Fabric == nil || w.last.Begun.Before(w.settledAt) || r.Begun.Sub(w.last.Ended) > w.MaxGap
	w.last = r
	return r, nil
}

// Poll reports whether a change has been reported since the last call, or since the last Read, which polls as well. What the last
// reading confirms ends with it. After an error the next reading is Broken.
func (w *Watch) Poll() (bool, error) {
	if w.PollChange == nil {
		return false, nil
	}
	changed, err := w.PollChange()
	if err != nil {
		w.last.Fabric = nil
		return false, err
	}
	if changed {
		w.settledAt = w.Now()
		if w.Settled == nil || !w.Settled() {
			w.settledAt = w.settledAt.Add(w.SettleTime)
		}
	}
	return changed, nil
}

// SettledAt returns the time from which on readings are of after the last change that was reported.
func (w *Watch) SettledAt() time.Time { return w.settledAt }

// DiscoveredAt returns when the last discovery of cables was begun.
func (w *Watch) DiscoveredAt() time.Time { return w.discovered }

// checkManager reads the LID of the subnet manager that the own port knows. Another one may compute other tables.
func (w *Watch) checkManager(ctx context.Context) error {
	r, err := w.Client.Do(ctx, ibmad.GetPortInfo(ibmad.Address{}, 0))
	if err != nil {
		return fmt.Errorf("the own port: %w", err)
	}
	var info ibmad.PortInfo
	info.Decode(r.Data())
	if w.smLID != 0 && info.MasterSMLID != w.smLID {
		w.settledAt = w.Now().Add(w.SettleTime)
	}
	w.smLID = info.MasterSMLID
	return nil
}

func (w *Watch) readOnce(ctx context.Context) (r Reading, err error) {
	if err := w.checkManager(ctx); err != nil {
		return Reading{}, err
	}
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
	if before != nil && r.Fabric.Equal(before) {
		r.Fabric = before
	}
	return r, nil
}

// Equal reports whether two readings have the same nodes, cables, tables and choices, found by any routes.
func (f *Fabric) Equal(g *Fabric) bool {
	return f.sameCables(g) && sameTables(f.LFTs, g.LFTs) && slices.EqualFunc(f.Adaptive, g.Adaptive, (*Adaptive).equal)
}

// sameTables reports whether two readings of the same switches agree, also on which switches do not answer.
func sameTables(a, b [][]uint8) bool {
	return slices.EqualFunc(a, b, func(x, y []uint8) bool { return (x == nil) == (y == nil) && bytes.Equal(x, y) })
}

// sameCables reports whether two discoveries found the same cables, by any routes.
func (f *Fabric) sameCables(g *Fabric) bool {
	return f.From == g.From &&
		slices.EqualFunc(f.Unanswered, g.Unanswered, func(a, b Unanswered) bool { return a.Near == b.Near && a.Query == b.Query }) &&
		slices.EqualFunc(f.Nodes, g.Nodes, func(a, b Node) bool {
			return a.GUID == b.GUID && a.Type == b.Type && a.Description == b.Description && slices.Equal(a.Ports, b.Ports)
		})
}
