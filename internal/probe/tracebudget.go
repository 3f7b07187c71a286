package probe

import (
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// budgets limits the trace packets that this node sends to the switches of a fabric. The switch at which a packet ends
// is known only when the switch answers. The rules are therefore:
//
//  1. A switch is known by the addresses that it answers from. All addresses that answered last before the same
//     destination belong to one switch.
//  2. A packet that is expected to end at a switch is charged to that switch. Any other packet is charged to every
//     switch that answered at its place (hop limit and NIC) before, and to the place itself for those that have not
//     answered yet. It is sent only if each of them has a token.
//  3. The switch that answers keeps its charge, and the others get theirs back. A switch that was not charged is
//     charged then, and its balance may become negative. For a packet that reached the destination all get theirs back,
//     and for one without any answer none.
//  4. The silence of a switch that is known to be on the path shows its limit. Its budget is halved, at most once per
//     traceTimeout and down to minPerSwitch. Every answer restores the inverse of the budget, so that it grows by one
//     packet per second each second. The switch counts as limited for limitedFor.
//  5. A switch that left forgetAsks packets in a row without answer for forgetAfter is forgotten, because it no longer
//     answers.
//  6. A switch that limits its answers is reserved for hop-limited probes while there are some, because an answer to a
//     trace is one that they do not get. Nothing else is sent to it for reservedFor after each.
type budgets struct {
	mu         sync.Mutex
	fullRate   float64 // packets per second and switch
	known      map[netip.Addr]*budget
	positions  map[hopPosition]*responders
	lastBefore map[netip.Addr]*budget // the last switch before a destination
}

const (
	minPerSwitch = 1 // packets per second
	forgetAsks   = 8
	forgetAfter  = 30 * time.Second
	limitedFor   = 10 * time.Second
	reservedFor  = 2 * hopProbeEvery
	// reservesFor is how long a switch whose budget was halved counts as one to reserve.
	reservesFor = time.Minute
	// maxKnown limits the addresses that are kept. A fabric of 16,384 NICs shows fewer to one node.
	maxKnown = 16384
)

// hopPosition identifies the place at which packets of a NIC with a certain hop limit end.
type hopPosition struct {
	nic string
	ttl int
}

// responders represents the switches that may answer at a place.
type responders struct {
	others *budget // of the switches that have not answered yet
	known  []*budget
	// previous maps an address to the switch that answered one hop limit earlier, since an address is one end of a
	// cable. An invalid value means that several did.
	previous map[netip.Addr]netip.Addr
}

// budget represents the budget of one switch.
type budget struct {
	bucket
	halvedAt   int64 // time of the last halving, Unix nanoseconds
	answeredAt int64
	unanswered int // packets since the last answer

	reservedUntil int64 // for hop-limited probes, Unix nanoseconds
}

// charge holds the budgets that one packet is charged to.
type charge struct {
	position hopPosition
	from     []*budget
}

func newBudgets(perSwitch int) *budgets {
	return &budgets{fullRate: float64(perSwitch), known: map[netip.Addr]*budget{}, positions: map[hopPosition]*responders{}, lastBefore: map[netip.Addr]*budget{}}
}

func (b *budgets) setFullRate(perSwitch int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fullRate = float64(perSwitch)
	for _, s := range b.known {
		s.setRate(math.Min(s.rate, b.fullRate))
	}
}

func (b *budgets) newBudget(now int64) *budget {
	return &budget{bucket: newBucket(b.fullRate, burstFor(b.fullRate), now), answeredAt: now}
}

// burstFor returns the number of packets that may be sent at once at a rate. It is a fifth of a second's packets, but
// at least the number that one trace sends to a switch.
func burstFor(rate float64) float64 { return math.Max(rate/5, traceAttempts) }

func (b *budgets) respondersAt(at hopPosition, now int64) *responders {
	c := b.positions[at]
	if c == nil {
		c = &responders{others: b.newBudget(now), previous: map[netip.Addr]netip.Addr{}}
		b.positions[at] = c
	}
	return c
}

// chargePacket charges one packet. If there is no token, wait is the time until there may be one.
func (b *budgets) chargePacket(at hopPosition, expected netip.Addr, now int64) (c charge, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.position = at
	if s := b.known[expected]; s != nil {
		c.from = []*budget{s}
	} else {
		crowd := b.respondersAt(at, now)
		c.from = append(append(c.from, crowd.others), crowd.known...)
	}
	for _, s := range c.from {
		wait = max(wait, time.Duration(s.reservedUntil-now))
		if !s.hasToken(now) {
			wait = max(wait, time.Duration((1-s.tokens)/s.rate*1e9)+time.Microsecond)
		}
	}
	if wait > 0 {
		return charge{}, wait
	}
	for _, s := range c.from {
		s.tokens--
	}
	return c, 0
}

// chargeAlways charges a hop-limited probe. It is sent in any case, so that the balance may become negative.
func (b *budgets) chargeAlways(at hopPosition, expected netip.Addr, now int64) (c charge) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.position = at
	if s := b.known[expected]; s != nil {
		s.hasToken(now) // the tokens that it gained in the meantime count before it is charged
		s.tokens--
		c.from = []*budget{s}
		if s.halvedAt > 0 && now-s.halvedAt < int64(reservesFor) {
			s.reservedUntil = now + int64(reservedFor)
		}
	}
	return c
}

// settleAnswered settles the charge of a packet that a switch answered.
func (b *budgets) settleAnswered(c charge, from netip.Addr, now int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.known[from]
	if s == nil {
		if len(b.known) >= maxKnown {
			return
		}
		s = b.newBudget(now)
		b.known[from] = s
	}
	if crowd := b.respondersAt(c.position, now); !slices.Contains(crowd.known, s) {
		crowd.known = append(crowd.known, s)
	}
	s.hasToken(now) // the tokens that it gained in the meantime count before it is charged
	s.tokens--
	for _, o := range c.from {
		o.tokens++
	}
	s.answeredAt, s.unanswered = now, 0
	s.setRate(math.Min(b.fullRate, s.rate+1/s.rate))
}

func (s *budget) setRate(rate float64) { s.rate, s.burst = rate, burstFor(rate) }

// refundCharge settles the charge of a packet that no switch had to answer.
func (b *budgets) refundCharge(c charge) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, o := range c.from {
		o.tokens++
	}
}

// recordSilence records the silence of a switch that is on the path. It returns false for a switch that no longer
// answers, or never did.
func (b *budgets) recordSilence(from netip.Addr, now int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.known[from]
	if s == nil {
		return false
	}
	if s.unanswered++; s.unanswered >= forgetAsks && now-s.answeredAt >= int64(forgetAfter) {
		b.forgetSwitch(s)
		return false
	}
	if now-s.halvedAt >= int64(traceTimeout) {
		s.halvedAt = now
		s.setRate(math.Max(minPerSwitch, s.rate/2))
	}
	return true
}

func (b *budgets) forgetSwitch(s *budget) {
	for a, o := range b.known {
		if o == s {
			delete(b.known, a)
		}
	}
	for a, o := range b.lastBefore {
		if o == s {
			delete(b.lastBefore, a)
		}
	}
	for _, c := range b.positions {
		c.known = slices.DeleteFunc(c.known, func(o *budget) bool { return o == s })
		for a, p := range c.previous {
			if b.known[p] == nil {
				delete(c.previous, a)
			}
		}
	}
}

// isLimited reports whether a switch that answered at a place before is limited now.
func (b *budgets) isLimited(at hopPosition, now int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.positions[at]
	return c != nil && slices.ContainsFunc(c.known, func(s *budget) bool { return s.halvedAt > 0 && now-s.halvedAt < int64(limitedFor) })
}

// learnPath learns from a path that was found which switches follow each other, and which is the last before the
// destination. An invalid dst means that the next hop after the path is not known.
func (b *budgets) learnPath(nic string, hops []Hop, dst netip.Addr, now int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := 1; i < len(hops); i++ {
		here, earlier := hops[i].Address, hops[i-1].Address
		if !here.IsValid() || !earlier.IsValid() || b.known[earlier] == nil {
			continue
		}
		c := b.respondersAt(hopPosition{nic, hops[i].TTL}, now)
		if had, ok := c.previous[here]; ok && had != earlier {
			earlier = netip.Addr{}
		}
		if len(c.previous) < maxKnown {
			c.previous[here] = earlier
		}
	}
	if len(hops) == 0 || !dst.IsValid() {
		return
	}
	s := b.known[hops[len(hops)-1].Address]
	same := b.lastBefore[dst]
	switch {
	case s == nil || s == same:
	case same == nil:
		b.lastBefore[dst] = s
	default:
		b.mergeBudgets(same, s)
	}
}

// mergeBudgets merges two budgets that belong to the same switch.
func (b *budgets) mergeBudgets(s, other *budget) {
	for a, o := range b.known {
		if o == other {
			b.known[a] = s
		}
	}
	for a, o := range b.lastBefore {
		if o == other {
			b.lastBefore[a] = s
		}
	}
	for _, c := range b.positions {
		if slices.Contains(c.known, other) {
			c.known = slices.DeleteFunc(c.known, func(o *budget) bool { return o == other || o == s })
			c.known = append(c.known, s)
		}
	}
	s.tokens = math.Min(s.tokens, other.tokens)
	s.setRate(math.Min(s.rate, other.rate))
	s.halvedAt, s.answeredAt = max(s.halvedAt, other.halvedAt), max(s.answeredAt, other.answeredAt)
	s.reservedUntil = max(s.reservedUntil, other.reservedUntil)
}

// switchBefore returns the switch that answers at a place if next answers at the place after it, or an invalid address
// if that is not known.
func (b *budgets) switchBefore(at hopPosition, next netip.Addr) netip.Addr {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.positions[hopPosition{at.nic, at.ttl + 1}]; c != nil {
		return c.previous[next]
	}
	return netip.Addr{}
}

// isLast reports whether a switch is known to be the last before a destination.
func (b *budgets) isLast(from, dst netip.Addr) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.known[from]
	return s != nil && b.lastBefore[dst] == s
}
