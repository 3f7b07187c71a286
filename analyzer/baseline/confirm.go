package baseline

import (
	"sort"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// confirmation represents what the last windows of one flow showed.
type confirmation struct {
	recentConditions []judge.Condition
	// lastSent and lastLost are the counts of the last window if it was lossy, otherwise 0.
	lastSent, lastLost uint64
	// hard is the worst window of a confirmed hard loss, remembered until the
	// cycle hardUntil.
	hard      *judge.Finding
	hardUntil int
}

// ConfirmFindings returns findings that several windows confirm, and the number of flows that wait
// for confirmation (rules 1 to 3). wasQueried reports whether the cycle before queried a flow.
func (b *Book) ConfirmFindings(raw []judge.Finding, cycle int, wasQueried func(fabric.Flow) bool) (out []judge.Finding, pending int) {
	out = make([]judge.Finding, 0, len(raw))
	reported := make(map[fabric.Flow]bool, len(raw))
	for i := range raw {
		f := raw[i]
		reported[f.Flow] = true
		r := b.recordFor(f.Flow)
		r.lastCycle = cycle
		if !wasQueried(f.Flow) {
			r.recentConditions, r.lastSent, r.lastLost = nil, 0, 0
		}
		waits := r.confirmFinding(&f, cycle)
		if r.hard != nil {
			b.hard[f.Flow] = true
		}
		if f.Flow.IsTemporary() && (len(r.recentConditions) < ConfirmedBy || len(f.Obs.Path) == 0) {
			f.Condition, waits = judge.Undecided, false
		}
		if waits {
			pending++
		}
		out = append(out, f)
	}
	for e := range b.hard {
		switch r := b.records[e]; {
		case r == nil || r.hard == nil:
			delete(b.hard, e)
		case cycle <= r.hardUntil && !reported[e]:
			out = append(out, *r.hard)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Obs.Edge < out[j].Obs.Edge })
	return out, pending
}

// confirmFinding adds the finding of a window, and replaces it by what the last windows confirm. It reports whether
// the flow waits for confirmation.
func (c *confirmation) confirmFinding(f *judge.Finding, cycle int) (waits bool) {
	c.recentConditions = append(c.recentConditions, f.Condition)
	if len(c.recentConditions) > ConfirmWindows {
		c.recentConditions = c.recentConditions[1:]
	}
	hard := c.addHardLoss(f)
	bad := 0
	for _, condition := range c.recentConditions {
		if condition == judge.Degraded {
			bad++
		}
	}
	if cycle > c.hardUntil || f.HostSuspect {
		c.hard = nil // over, or the fault of the host
	}
	if hard {
		c.hardUntil = cycle + hardMemory
		// The windows before routing changed have the most reliable path.
		lostMore := c.hard == nil || f.Obs.Lost*c.hard.Obs.Sent >= c.hard.Obs.Lost*f.Obs.Sent
		if lostMore && (c.hard == nil || len(f.Obs.Path) > 0 || len(c.hard.Obs.Path) == 0) {
			keep := *f
			c.hard = &keep
		}
	}
	switch f.Condition {
	case judge.Degraded:
		soon := f.Lasting && f.Obs.Chosen && bad == ConfirmedBy-1
		if bad < ConfirmedBy && !hard && !soon {
			f.Condition = judge.Undecided
			waits = true
		}
	case judge.Healthy:
		if bad >= ConfirmWindows-ConfirmedBy+1 || endedIn(f) {
			f.Condition = judge.Undecided
		}
	}
	if c.hard != nil && (f.Condition != judge.Degraded || len(f.Obs.Path) == 0) {
		*f = *c.hard
	}
	return waits
}

// addHardLoss adds a window, and reports whether it and the window before were both lossy, with hard loss over
// the two. The counters of the two nodes are not read at the same instant, so the first window of a total
// loss can look like half of one. A second in which the replies end counts as the first window, since
// lost packets cannot be counted until a reply comes back.
func (c *confirmation) addHardLoss(f *judge.Finding) bool {
	switch {
	case f.Condition == judge.Undecided:
		return false
	case endedIn(f):
		c.lastSent, c.lastLost = f.Obs.LastSecond.Sent, f.Obs.LastSecond.Lost
		return false
	case !f.Lossy:
		c.lastSent, c.lastLost = 0, 0
		return false
	}
	sent, lost := c.lastSent, c.lastLost
	c.lastSent, c.lastLost = f.Obs.Sent, f.Obs.Lost
	return sent > 0 && float64(lost+c.lastLost) >= judge.DefaultParameters().HardLoss*float64(sent+c.lastSent)
}

// endedIn reports whether replies to a flow that looks healthy were missing in the last second. A total loss
// may have begun in that second.
func endedIn(f *judge.Finding) bool {
	const least = 0.05 // of the probes
	l, p := f.Obs.LastSecond, judge.DefaultParameters()
	return f.Condition == judge.Healthy && l != nil && l.Lost >= p.MinLost && float64(l.Lost) >= least*float64(l.Sent)
}

// DropHardLosses forgets the remembered hard losses for which drop returns true.
func (b *Book) DropHardLosses(drop func(*judge.Finding) bool) {
	for e := range b.hard {
		if r := b.records[e]; r != nil && r.hard != nil && drop(r.hard) {
			r.hard = nil
		}
	}
}

// ResetConfirmation forgets everything that counts only over consecutive windows (rule 3).
func (b *Book) ResetConfirmation() {
	for _, r := range b.records {
		r.recentConditions, r.lastSent, r.lastLost, r.hard = nil, 0, 0, nil
	}
}
