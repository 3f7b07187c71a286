package baseline

import (
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

const (
	// RecallDays is the number of past days from which an hour can be seeded.
	RecallDays = hourDays
	// MaxSlowHours is the number of consecutive hours that a flow may be slow without this being a fault, and the
	// number of hours that are remembered of a flow.
	MaxSlowHours = 9
)

const (
	// hourDays is the number of days on which an hour has to be seen before it counts, and hourRecent how many days ago
	// the first of them may be (rule 8).
	hourDays, hourRecent = 7, 14
	// hourMajority is the number of these days on which a flow has to be slow, so that the median day is one of them.
	hourMajority = hourDays/2 + 1
	// minSlowMinutes make an hour slow. minMinutes are enough to say what an hour is if all of them are alike: the flows
	// of a large fabric are not queried in every minute.
	minSlowMinutes, minMinutes = 6, 3
	// hourMargin is how many minutes before and after an hour it counts as well. It is less than minSlowMinutes, from
	// which on the neighbouring hour learns by itself.
	hourMargin = 5
	// minutesPerSample is the number of slow minutes that share one sample of an hour.
	minutesPerSample = 3
)

// flowHours represents at which hours of the day (UTC) a flow is slower than its baseline (rule 8). A flow that never was
// has the 96 bytes of this struct. Each hour in which it was slow takes another 104 bytes, and while an hour is slow there
// are 160 bytes of samples: 568 bytes for a flow that is slow in three hours of each day, and 1,216 at most. 30,000 flows
// take between 3 and 37 MB.
type flowHours struct {
	slots []hourSlot
	// samples are of the present hour, and nil unless a window was slow.
	samples *[60 / minutesPerSample]delaySample
	// minute is the present one, lastQuiet the latest hour that was usual, and slowSince the minute since which the
	// flow is slow, all since the epoch. 0 means none.
	minute, lastQuiet, slowSince int32
	slowWindows, usualWindows    uint16 // of the minute
	slowMinutes, usualMinutes    uint8  // of the hour
	route                        uint32 // of the windows of the hour
	cached                       cachedUsual
}

// delaySample has the quantiles of a window, in nanoseconds.
type delaySample struct{ p50, p99 float32 }

// hourSlot represents one hour of the day on one route, on the days on which it was seen, the oldest first. Values are in
// nanoseconds, and those of a day that was not slow have a MAD of -1.
type hourSlot struct {
	p50, p99, mad [hourDays]float32
	day           [hourDays]uint16 // since the epoch
	hour, days    uint8
	route         uint32 // the low half of a route's key
}

// hourUsual is what is usual at a moment, in nanoseconds.
type hourUsual struct {
	p50, p99, mad int64
	known         bool
}

// cachedUsual is what was usual when a minute began.
type cachedUsual struct {
	hourUsual
	minute int32
	route  uint32
}

// minuteOf returns the minute since the epoch, or 0 for the zero time.
func minuteOf(at time.Time) int32 {
	if at.IsZero() {
		return 0
	}
	return int32(at.Unix() / 60) //nolint:gosec // for four thousand years
}

// learnHour adds a window of a moment to its hour, and reports whether the window is slower than the baseline, also if it
// is healthy by what is usual at the hour. Windows of incidents count: a slow hour is one until it is usual (rule 8).
func (r *record) learnHour(f *judge.Finding, at time.Time, p *judge.Parameters) (slow bool) {
	minute := minuteOf(at)
	if minute == 0 || r.baseline == nil || f.Obs.Baseline == nil || f.Lossy || judge.ClockBound(f.Obs) > maxLearnBound {
		return false
	}
	slow = (f.Condition == judge.Degraded || r.isRaised(f.Obs)) && judge.ExceedsBaseline(f.Obs, r.baseline, r.baselineMAD, *p)
	h := &r.hours
	if minute != h.minute || h.route != uint32(r.routeKey) { //nolint:gosec // the low half
		h.beginMinute(minute, uint32(r.routeKey)) //nolint:gosec // the low half
	}
	if !slow {
		h.usualWindows++
		return false
	}
	h.slowWindows++
	if h.samples == nil {
		h.samples = new([60 / minutesPerSample]delaySample)
	}
	h.samples[min(int(h.slowMinutes)/minutesPerSample, len(h.samples)-1)] = sampleOf(f.Obs.OWD)
	return true
}

// PastWindows are what a flow showed at an hour of a past day.
type PastWindows struct {
	Start time.Time
	// During are windows of the hour, and Before is one that was MaxSlowHours earlier.
	During    []fabric.Quantiles
	Before    fabric.Quantiles
	Timestamp string // the kind
}

// SeedHour adds an hour of a past day to the hours of a flow, which is taken to have had its present path then. The hour
// is compared with the lower of two: the window before, and the present baseline, which may have been learnt in a slow hour
// itself. Nothing is added if the flow has no baseline, or was slow before the hour as well.
func (b *Book) SeedHour(f fabric.Flow, past *PastWindows) {
	r := b.records[f]
	if r == nil || r.baseline == nil || f.IsTemporary() || len(past.During) == 0 {
		return
	}
	p := judge.DefaultParameters()
	isAbove := func(q, base *fabric.Quantiles) bool {
		return judge.ExceedsBaseline(&fabric.Observation{OWD: q, Timestamp: past.Timestamp}, base, r.baselineMAD, p)
	}
	if isAbove(&past.Before, r.baseline) {
		return
	}
	usual := r.baseline
	if *past.Before.P50 < *usual.P50 {
		usual = &past.Before
	}
	var slow []delaySample
	for i := range past.During {
		if q := &past.During[i]; isAbove(q, usual) {
			slow = append(slow, sampleOf(q))
		}
	}
	h, hour := &r.hours, minuteOf(past.Start)/60
	if route := uint32(r.routeKey); h.route != route { //nolint:gosec // the low half
		h.beginMinute(h.minute, route)
	}
	if i := h.findSlot(hour); len(slow) > 0 {
		h.addSlowDay(hour, slow)
	} else if i >= 0 {
		h.slots[i].addDay(dayOf(hour), 0, 0, -1)
	}
}

// sampleOf returns the quantiles of a window. Without a 99th percentile it has the median twice.
func sampleOf(q *fabric.Quantiles) delaySample {
	s := delaySample{p50: float32(*q.P50), p99: float32(*q.P50)}
	if q.P99 != nil {
		s.p99 = float32(*q.P99)
	}
	return s
}

// beginMinute closes the minute before, and its hour if that is over. What was seen of an hour on another route is
// discarded.
func (h *flowHours) beginMinute(minute int32, route uint32) {
	if h.route != route {
		h.samples, h.slowSince, h.slowMinutes, h.usualMinutes = nil, 0, 0, 0
		h.slowWindows, h.usualWindows = 0, 0
	}
	switch {
	case h.slowWindows > h.usualWindows:
		h.slowMinutes++
		if h.slowSince == 0 {
			h.slowSince = h.minute
		}
	case h.usualWindows > 0:
		h.usualMinutes++
		h.slowSince = 0
	}
	if minute-h.minute > 60 {
		h.slowSince = 0 // that may have ended in between
	}
	if minute/60 != h.minute/60 {
		h.closeHour()
	}
	h.minute, h.route, h.slowWindows, h.usualWindows = minute, route, 0, 0
}

// closeHour learns from the present hour.
func (h *flowHours) closeHour() {
	hour := h.minute / 60
	today := dayOf(hour)
	h.slots = slices.DeleteFunc(h.slots, func(s hourSlot) bool { return s.day[s.days-1]+hourRecent < today })
	isSlow := h.slowMinutes >= minSlowMinutes || h.slowMinutes >= minMinutes && h.usualMinutes == 0
	switch {
	case isSlow && (h.lastQuiet == 0 || hour-h.lastQuiet > MaxSlowHours):
		h.dropSince(h.lastQuiet)
	case isSlow:
		h.addSlowDay(hour, h.samples[:(int(h.slowMinutes)+minutesPerSample-1)/minutesPerSample])
	case h.usualMinutes >= minMinutes:
		h.lastQuiet = hour
		if i := h.findSlot(hour); i >= 0 {
			h.slots[i].addDay(today, 0, 0, -1)
		}
	}
	h.slots = slices.DeleteFunc(h.slots, func(s hourSlot) bool { return s.slowDays() == 0 })
	h.samples, h.slowMinutes, h.usualMinutes = nil, 0, 0
}

// addSlowDay adds the samples of an hour to its slot on the present route. If there is no room for a new slot, the one that was not seen for
// longest makes room, unless that is of the same day.
func (h *flowHours) addSlowDay(hour int32, samples []delaySample) {
	i := h.findSlot(hour)
	if i < 0 {
		if len(h.slots) >= MaxSlowHours {
			oldest := 0
			for k := range h.slots {
				if h.slots[k].lastDay() < h.slots[oldest].lastDay() {
					oldest = k
				}
			}
			if h.slots[oldest].lastDay() >= dayOf(hour) {
				return
			}
			h.slots = slices.Delete(h.slots, oldest, oldest+1)
		}
		more := make([]hourSlot, len(h.slots), len(h.slots)+1) // without room to spare
		copy(more, h.slots)
		i, h.slots = len(more), append(more, hourSlot{route: h.route, hour: uint8(hour % 24)}) //nolint:gosec // of a day
	}
	var p50, p99 []int64
	for _, s := range samples {
		p50, p99 = append(p50, int64(s.p50)), append(p99, int64(s.p99))
	}
	median, mad := judge.MedianMAD(p50)
	tail, _ := judge.MedianMAD(p99)
	h.slots[i].addDay(dayOf(hour), float32(median), float32(tail), float32(mad))
}

// findSlot returns the index of the slot of an hour since the epoch on the present route, or -1.
func (h *flowHours) findSlot(hour int32) int {
	return slices.IndexFunc(h.slots, func(s hourSlot) bool { return s.route == h.route && int32(s.hour) == hour%24 })
}

// dropSince removes the days after an hour since the epoch, on the present route.
func (h *flowHours) dropSince(hour int32) {
	for i := range h.slots {
		if s := &h.slots[i]; s.route == h.route {
			for s.days > 0 && int32(s.lastDay())*24+int32(s.hour) > hour {
				s.days--
			}
		}
	}
}

// adoptRoute makes the hours that were learnt while the path was unknown those of a path.
func (h *flowHours) adoptRoute(route uint32) {
	for i := range h.slots {
		if h.slots[i].route == 0 {
			h.slots[i].route = route
		}
	}
	if h.route == 0 {
		h.route = route
	}
}

func dayOf(hour int32) uint16 { return uint16(hour / 24) } //nolint:gosec // until 2149

func (s *hourSlot) lastDay() uint16 { return s.day[s.days-1] }

// addDay adds the values of a day, or replaces them. The oldest day leaves when there are too many.
func (s *hourSlot) addDay(day uint16, p50, p99, mad float32) {
	i := slices.Index(s.day[:s.days], day)
	if i < 0 && s.days == hourDays {
		if day < s.day[0] {
			return
		}
		copy(s.p50[:], s.p50[1:])
		copy(s.p99[:], s.p99[1:])
		copy(s.mad[:], s.mad[1:])
		copy(s.day[:], s.day[1:])
		s.days--
	}
	if i < 0 {
		i = int(s.days)
		s.days++
	}
	for ; i > 0 && s.day[i-1] > day; i-- { // history may be late
		s.p50[i], s.p99[i], s.mad[i], s.day[i] = s.p50[i-1], s.p99[i-1], s.mad[i-1], s.day[i-1]
	}
	s.p50[i], s.p99[i], s.mad[i], s.day[i] = p50, p99, mad, day
}

// slowDays returns the number of days on which the hour was slow.
func (s *hourSlot) slowDays() (n int) {
	for _, mad := range s.mad[:s.days] {
		if mad >= 0 {
			n++
		}
	}
	return n
}

// usualOn returns what is usual at the hour, by the median of its days. The spread is that within a day or that between
// days, whichever is larger. Nothing is known if the days are too few or too long ago, or if the flow is usually not slow.
func (s *hourSlot) usualOn(today uint16) (u hourUsual) {
	if s.days < hourDays || slices.Min(s.day[:s.days])+hourRecent < today {
		return u
	}
	var p50, p99, mad, apart [hourDays]int64
	n := 0
	for i := range s.days {
		if s.mad[i] >= 0 {
			p50[n], p99[n], mad[n] = int64(s.p50[i]), int64(s.p99[i]), int64(s.mad[i])
			n++
		}
	}
	if n < hourMajority {
		return u
	}
	slices.Sort(p50[:n])
	slices.Sort(p99[:n])
	slices.Sort(mad[:n])
	for i := range n {
		apart[i] = max(p50[i]-p50[n/2], p50[n/2]-p50[i])
	}
	slices.Sort(apart[:n])
	median := n - hourMajority // days that are not slow come before
	return hourUsual{p50: p50[median], p99: p99[median], mad: max(mad[median], apart[n/2]), known: true}
}

// usualAt returns what is usual on a route in a minute: that of its hour, or of a neighbouring one that is near, whichever
// is larger. A flow that was slow before these hours has a fault, so that nothing is known.
func (h *flowHours) usualAt(minute int32, route uint32) hourUsual {
	if len(h.slots) == 0 || minute == 0 {
		return hourUsual{}
	}
	if h.cached.minute == minute && h.cached.route == route {
		return h.cached.hourUsual
	}
	first, last := (minute-hourMargin)/60, (minute+hourMargin)/60
	var u hourUsual
	begin := int32(0)
	for hour := first; hour <= last; hour++ {
		v := h.usualIn(hour, route)
		switch {
		case !v.known:
		case !u.known:
			u, begin = v, hour
		default:
			u = hourUsual{p50: max(u.p50, v.p50), p99: max(u.p99, v.p99), mad: max(u.mad, v.mad), known: true}
		}
	}
	for u.known && h.usualIn(begin-1, route).known && last-begin < MaxSlowHours {
		begin--
	}
	if h.slowSince != 0 && h.slowSince < begin*60-hourMargin {
		u = hourUsual{}
	}
	h.cached = cachedUsual{hourUsual: u, minute: minute, route: route}
	return u
}

// usualIn returns what is usual on a route in an hour since the epoch.
func (h *flowHours) usualIn(hour int32, route uint32) (u hourUsual) {
	for i := range h.slots {
		if s := &h.slots[i]; s.route == route && int32(s.hour) == hour%24 {
			return s.usualOn(dayOf(hour))
		}
	}
	return u
}

// usualAt returns what is usual for a flow at a moment, where that is slower than its baseline.
func (r *record) usualAt(at time.Time) (u hourUsual) {
	if r.baseline == nil || len(r.hours.slots) == 0 {
		return u
	}
	return r.hours.usualAt(minuteOf(at), uint32(r.routeKey)) //nolint:gosec // the low half
}

// delaysAt returns the median and the 99th percentile of a flow's baseline at a moment, in nanoseconds. Without a 99th
// percentile it returns the median twice.
func (r *record) delaysAt(at time.Time) (p50, p99 int64) {
	p50 = *r.baseline.P50
	p99 = p50
	if r.baseline.P99 != nil {
		p99 = *r.baseline.P99
	}
	if u := r.usualAt(at); u.known {
		p50, p99 = max(p50, u.p50), max(p99, u.p99)
	}
	return p50, p99
}

// isRaised reports whether an observation was judged by more than the baseline of its flow.
func (r *record) isRaised(o *fabric.Observation) bool {
	return len(r.hours.slots) > 0 && o.Baseline != r.baseline
}

// BaselineAt returns the baseline by which a window of a flow is judged, and the median absolute deviation of its medians
// in nanoseconds. It is that of BaselineOf, except at an hour at which the flow is usually slower (rule 8): then each
// quantile that is between the two is itself the baseline, since neither is unusual, and one above both is compared
// with the larger.
func (b *Book) BaselineAt(f fabric.Flow, window *fabric.Quantiles, at time.Time) (base *fabric.Quantiles, madNS int64) {
	r := b.records[f]
	if r == nil {
		return nil, 0
	}
	u := r.usualAt(at)
	if !u.known || window == nil || window.P50 == nil {
		return r.baseline, r.baselineMAD
	}
	p50 := raiseTowards(*r.baseline.P50, u.p50, *window.P50)
	p99 := int64(0)
	if r.baseline.P99 != nil {
		p99 = u.p99
		if window.P99 != nil {
			p99 = *window.P99
		}
		p99 = raiseTowards(*r.baseline.P99, u.p99, p99)
	}
	if p50 == *r.baseline.P50 && (r.baseline.P99 == nil || p99 == *r.baseline.P99) {
		return r.baseline, r.baselineMAD
	}
	raised := &struct {
		fabric.Quantiles
		p50, p99 int64
	}{p50: p50, p99: p99}
	raised.P50 = &raised.p50
	if r.baseline.P99 != nil {
		raised.P99 = &raised.p99
	}
	return &raised.Quantiles, max(r.baselineMAD, u.mad)
}

// raiseTowards returns the value between a baseline and what is usual at an hour that is nearest to a measured one.
func raiseTowards(baseline, usual, measured int64) int64 {
	return max(baseline, min(usual, measured))
}
