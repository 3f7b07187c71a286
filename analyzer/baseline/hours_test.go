package baseline

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// Delays of the script: what is usual, and what a batch job adds.
const (
	quietDelay = 10_000
	batchDelay = 300_000
)

// unseen is the delay of a minute without a window.
const unseen = -1

// hourFlow and its two paths of the same length.
var (
	hourFlow           = fabric.Flow{Src: "h1/e", Dst: "h2/e"}
	hourPath, otherWay = pathBy("1", "2", "l1", "s1", "l2"), pathBy("1", "2", "l1", "s2", "l2")
)

// hourBook is a Book with one flow, which has a window in every minute. An incident is open while windows are degraded.
type hourBook struct {
	*Book
	cycle, frozenUntil int
	path               fabric.Path
	clockError         *int64
	change             func(*judge.Finding) // what else there is to a window; may be nil
	withoutHours       bool
}

func newHourBook() *hourBook { return &hourBook{Book: NewBook(), path: hourPath} }

// dayStart returns the beginning of a day of the script.
func dayStart(day int) time.Time {
	return time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC).AddDate(0, 0, day)
}

// measure adds the window of a moment, and returns its finding.
func (b *hourBook) measure(at time.Time, p50 int64) judge.Finding {
	b.cycle++
	p50 += int64(b.cycle*7%13) * 50 // noise
	p99 := p50 + 4000
	o := &fabric.Observation{Edge: hourFlow.String(), Sent: 100, Path: b.path, Timestamp: "kernel", ClockErrorNS: b.clockError, OWD: &fabric.Quantiles{P50: &p50, P99: &p99}}
	b.FollowRoute(hourFlow, b.path)
	base, mad := b.BaselineAt(hourFlow, o.OWD, at)
	o.Baseline, o.BaselineMADNS = base, &mad
	found := judge.FindingsOf([]*fabric.Observation{o}, judge.DefaultParameters())
	if found[0].Condition == judge.Degraded {
		b.frozenUntil = b.cycle + 4
	}
	if b.change != nil {
		b.change(&found[0])
	}
	out, _ := b.ConfirmFindings(slices.Clone(found), b.cycle, always)
	if b.withoutHours {
		at = time.Time{}
	}
	b.LearnWindows(found, Learning{Cycle: b.cycle, At: at, Frozen: b.cycle <= b.frozenUntil})
	return out[0]
}

// pass measures in every minute from one moment to another, and returns how many windows were degraded.
func (b *hourBook) pass(from, to time.Time, delay func(minute int) int64) (degraded int) {
	for at := from; at.Before(to); at = at.Add(time.Minute) {
		d := delay(at.Hour()*60 + at.Minute())
		if d != unseen && b.measure(at, d).Condition == judge.Degraded {
			degraded++
		}
	}
	return degraded
}

// passDays measures during days.
func (b *hourBook) passDays(from, to int, delay func(minute int) int64) (degraded int) {
	return b.pass(dayStart(from), dayStart(to), delay)
}

// between returns a day with a delay in some minutes, and the quiet one in the others.
func between(from, to int, delay int64) func(int) int64 {
	return func(minute int) int64 {
		if minute >= from && minute < to {
			return delay
		}
		return quietDelay
	}
}

func quietDay(int) int64 { return quietDelay }

// batchDay has a batch job from 02:00 to 03:00.
var batchDay = between(120, 180, batchDelay)

// isDegraded reports whether a window of a delay would be degraded at a moment. Nothing is learnt from it.
func (b *hourBook) isDegraded(at time.Time, delay int64) bool {
	base, mad := b.BaselineAt(hourFlow, &fabric.Quantiles{P50: &delay}, at)
	p99 := delay + 4000
	o := &fabric.Observation{Edge: hourFlow.String(), Timestamp: "kernel", OWD: &fabric.Quantiles{P50: &delay, P99: &p99}, Baseline: base, BaselineMADNS: &mad}
	return judge.FindingsOf([]*fabric.Observation{o}, judge.DefaultParameters())[0].Condition == judge.Degraded
}

// TestRule8AnHourIsUsualAfterAWeek runs two weeks with a daily batch job.
func TestRule8AnHourIsUsualAfterAWeek(t *testing.T) {
	b := newHourBook()
	for day := range 14 {
		degraded := b.passDays(day, day+1, batchDay)
		if want := day < hourDays; (degraded > 50) != want || !want && degraded > 0 {
			t.Errorf("day %d: %d windows are degraded", day+1, degraded)
		}
	}
	at := func(hour, minute int) time.Time {
		return dayStart(14).Add(time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute)
	}
	b.pass(dayStart(14), at(2, 30), batchDay)
	for second := range 2 * keepWindows {
		b.measure(at(2, 30).Add(time.Duration(second)*time.Second), batchDelay)
	}
	b.wantQuietBaseline(t, "in the slow hour")
	for _, tt := range []struct {
		name  string
		at    time.Time
		delay int64
		want  bool
	}{
		{"as slow as usual", at(2, 30), batchDelay, false},
		{"faster than usual", at(2, 30), quietDelay, false},
		{"between the two", at(2, 30), batchDelay / 2, false},
		{"slower than usual", at(2, 30), batchDelay + 50_000, true},
		{"a little slower than the baseline at another hour", at(4, 30), quietDelay + 20_000, true},
		{"as slow as the job at another hour", at(4, 30), batchDelay, true},
	} {
		if got := b.isDegraded(tt.at, tt.delay); got != tt.want {
			t.Errorf("%s: degraded %v, want %v", tt.name, got, tt.want)
		}
	}
	for delay, want := range map[int64]int64{quietDelay / 2: quietDelay, batchDelay / 2: batchDelay / 2, 2 * batchDelay: batchDelay} {
		base, _ := b.BaselineAt(hourFlow, &fabric.Quantiles{P50: &delay}, at(2, 30))
		if *base.P50 < want || *base.P50 > want+1000 {
			t.Errorf("a window of %d ns has the baseline %d, want %d", delay, *base.P50, want)
		}
	}
	// The job does not run any more.
	b.passDays(15, 15+hourMajority, quietDay)
	if !b.isDegraded(dayStart(15+hourMajority).Add(150*time.Minute), batchDelay) {
		t.Error("the hour is usual although most days were not slow")
	}
	b.passDays(15+hourMajority, 15+hourDays, quietDay)
	if n := len(b.records[hourFlow].hours.slots); n != 0 {
		t.Errorf("%d hours are remembered after a week without a slow one", n)
	}
}

func (b *hourBook) wantQuietBaseline(t *testing.T, when string) {
	t.Helper()
	if base, _ := b.BaselineOf(hourFlow); base == nil || *base.P50 > quietDelay+1000 || *base.P99 > quietDelay+6000 {
		t.Errorf("%s the baseline is %+v, want the quiet one", when, base)
	}
}

// TestRule8DaysThatCount has a letter for every day: s for one with a slow hour, q for a quiet one, u for one on which
// the hour was not seen, f for one with a fault in the same hour.
func TestRule8DaysThatCount(t *testing.T) {
	days := map[rune]func(int) int64{'s': batchDay, 'q': quietDay, 'u': between(120, 180, unseen), 'f': between(120, 180, 5_000_000)}
	for name, tt := range map[string]struct {
		days  string
		usual int64 // 0: the quiet delay
	}{
		"six days":                     {"ssssss", 0},
		"seven days":                   {"sssssss", batchDelay},
		"six and one unseen":           {"sssusss", 0},
		"seven and one unseen":         {"sssussss", batchDelay},
		"the first fourteen days ago":  {"sssssssuuuuuuu", batchDelay},
		"the first fifteen days ago":   {"sssssssuuuuuuuu", 0},
		"four of seven":                {"sqsqsqs", batchDelay},
		"three of seven":               {"sqsqsqq", 0},
		"a fault on two of seven days": {"ffqqqqq", 0},
		"a fault, and slow days":       {"sfsssfs", batchDelay},
		"a fault of three days":        {"fffqqqq", 0},
		"days before the first slow":   {"qqqqqqs", 0},
	} {
		b := newHourBook()
		for i, letter := range tt.days {
			b.passDays(i, i+1, days[letter])
		}
		at := dayStart(len(tt.days)).Add(150 * time.Minute)
		b.pass(dayStart(len(tt.days)), at.Add(-40*time.Minute), quietDay)
		u := b.records[hourFlow].usualAt(at)
		if u.known != (tt.usual > 0) || u.known && (u.p50 < tt.usual || u.p50 > tt.usual+1000 || u.p99 < u.p50+3000) {
			t.Errorf("%s: %+v, want %d", name, u, tt.usual)
		}
		if got := b.isDegraded(at, batchDelay); got != (tt.usual == 0) {
			t.Errorf("%s: degraded %v", name, got)
		}
	}
}

// TestRule8SpreadOfAnHour: an hour that differs from day to day, or from minute to minute, has a spread.
func TestRule8SpreadOfAnHour(t *testing.T) {
	const step = 10_000
	for name, delay := range map[string]func(day, minute int) int64{
		"from day to day":       func(day, _ int) int64 { return int64(day) * step },
		"from minute to minute": func(_, minute int) int64 { return int64(minute/minutesPerSample%5) * step },
	} {
		b := newHourBook()
		for day := range hourDays {
			b.passDays(day, day+1, func(minute int) int64 {
				if d := batchDay(minute); d == quietDelay {
					return d
				}
				return batchDelay + delay(day, minute)
			})
		}
		u := b.records[hourFlow].usualAt(dayStart(hourDays).Add(150 * time.Minute))
		if u.mad < step/2 || u.mad > 3*step {
			t.Errorf("%s: MAD %d", name, u.mad)
		}
	}
}

// TestRule8EdgesOfAnHour: jobs begin a minute early and end late.
func TestRule8EdgesOfAnHour(t *testing.T) {
	for hour, minutes := range map[int]map[int]bool{
		2: {114: false, 115: true, 120: true, 179: true, 184: true, 185: false, 0: false},
		0: {1434: false, 1435: true, 1440: true, 1499: true, 1504: true, 1505: false},
	} {
		b := newHourBook()
		b.passDays(0, 1, quietDay)
		b.passDays(1, 9, between(hour*60, hour*60+60, batchDelay))
		for minute, want := range minutes {
			if got := !b.isDegraded(dayStart(9).Add(time.Duration(minute)*time.Minute), batchDelay); got != want {
				t.Errorf("job at %02d:00, minute %d: usual %v, want %v", hour, minute, got, want)
			}
		}
	}
}

// TestRule8MinutesThatMakeAnHourSlow checks how much of an hour has to be slow.
func TestRule8MinutesThatMakeAnHourSlow(t *testing.T) {
	// every returns a day on which only every nth minute has a window.
	every := func(n int, day func(int) int64) func(int) int64 {
		return func(minute int) int64 {
			if minute%n != 0 {
				return unseen
			}
			return day(minute)
		}
	}
	for name, tt := range map[string]struct {
		day  func(int) int64
		want bool
	}{
		"five minutes":                      {between(130, 135, batchDelay), false},
		"six minutes":                       {between(130, 136, batchDelay), true},
		"three windows an hour, all slow":   {every(20, batchDay), true},
		"two windows an hour":               {every(30, batchDay), false},
		"three of four windows an hour":     {every(15, between(120, 165, batchDelay)), false},
		"nine hours":                        {between(120, 660, batchDelay), true},
		"more than nine hours":              {between(120, 667, batchDelay), false},
		"slow, but for a minute in an hour": {between(120, 1320, batchDelay), false},
	} {
		b := newHourBook()
		b.passDays(0, 10, tt.day)
		b.pass(dayStart(10), dayStart(10).Add(110*time.Minute), tt.day)
		if got := !b.isDegraded(dayStart(10).Add(132*time.Minute), batchDelay); got != tt.want {
			t.Errorf("%s: usual %v, want %v", name, got, tt.want)
		}
	}
}

// TestRule8FaultsDoNotBecomeUsual: a fault that stands, and one that was there before the slow hour.
func TestRule8FaultsDoNotBecomeUsual(t *testing.T) {
	b := newHourBook()
	b.passDays(0, 1, quietDay)
	stands := func(int) int64 { return batchDelay }
	if n := b.pass(dayStart(1).Add(100*time.Minute), dayStart(15), stands); n < 14*1440-110 {
		t.Errorf("%d windows of a fault that stands for a fortnight are degraded", n)
	}
	if n := len(b.records[hourFlow].hours.slots); n != 0 {
		t.Errorf("it taught %d hours", n)
	}
	b.wantQuietBaseline(t, "after the fault")

	for begin, want := range map[int]bool{100: true, 114: true, 115: false, 119: false} {
		b = newHourBook()
		b.passDays(0, 8, batchDay)
		day := dayStart(8)
		b.pass(day, day.Add(140*time.Minute), between(begin, 180, batchDelay))
		if got := b.isDegraded(day.Add(140*time.Minute), batchDelay); got != want {
			t.Errorf("slow from minute %d on: degraded %v in the hour, want %v", begin, got, want)
		}
	}
	// Nothing is known of the time since a minute that was slow.
	b = newHourBook()
	b.passDays(0, 8, batchDay)
	b.pass(dayStart(8), dayStart(8).Add(150*time.Minute), batchDay)
	if n := b.pass(dayStart(9).Add(120*time.Minute), dayStart(9).Add(140*time.Minute), batchDay); n != 0 {
		t.Errorf("%d windows are degraded after a day without evidence", n)
	}
	// Two hours that follow each other are one span.
	b = newHourBook()
	b.passDays(0, 9, between(120, 240, batchDelay))
	if n := b.passDays(9, 10, between(120, 240, batchDelay)); n != 0 {
		t.Errorf("%d windows of a job of two hours are degraded", n)
	}
}

// TestRule8HoursBelongToAPath: they do not apply elsewhere, and are there when the flow comes back.
func TestRule8HoursBelongToAPath(t *testing.T) {
	b := newHourBook()
	b.path = nil // not known yet
	b.passDays(0, 3, batchDay)
	b.path = hourPath
	b.passDays(3, 7, batchDay)
	b.path = otherWay
	if n := b.passDays(7, 8, batchDay); n < 50 {
		t.Errorf("%d windows on another path are degraded", n)
	}
	b.path = hourPath
	if n := b.passDays(8, 9, batchDay); n != 0 {
		t.Errorf("%d windows are degraded after the flow came back", n)
	}
	b.path = otherWay
	for day := 9; day < 17; day++ {
		n := b.passDays(day, day+1, batchDay)
		if want := day < 15; (n > 50) != want || !want && n > 0 { // with the day before
			t.Errorf("day %d on the other path: %d windows are degraded", day-8, n)
		}
	}
}

// TestRule8WindowsThatTeachNoHour checks the conditions that hold for all that is learnt.
func TestRule8WindowsThatTeachNoHour(t *testing.T) {
	vague := int64(maxLearnBound + 1)
	for name, change := range map[string]func(*judge.Finding){
		"starved host":  func(f *judge.Finding) { f.HostSuspect = true },
		"suspect clock": func(f *judge.Finding) { f.ClockSuspect = true },
		"vague clocks":  func(f *judge.Finding) { f.Obs.ClockErrorNS = &vague },
		"losses":        func(f *judge.Finding) { f.Lossy = true },
		"no delay":      func(f *judge.Finding) { f.Obs.OWD = nil },
		"path changes":  func(f *judge.Finding) { f.Obs.Baseline = nil },
	} {
		b := newHourBook()
		b.change = func(f *judge.Finding) {
			if f.Delayed {
				change(f)
			}
		}
		b.passDays(0, 9, batchDay)
		if n := len(b.records[hourFlow].hours.slots); n != 0 {
			t.Errorf("%s: %d hours were learnt", name, n)
		}
	}
}

// seedDay adds the second hour of a past day, with a delay in it and one before.
func (b *hourBook) seedDay(day int, during, before int64) {
	q := func(p50 int64) fabric.Quantiles {
		p99 := p50 + 4000
		return fabric.Quantiles{P50: &p50, P99: &p99}
	}
	b.SeedHour(hourFlow, &PastWindows{Start: dayStart(day).Add(2 * time.Hour), During: []fabric.Quantiles{q(quietDelay), q(during)}, Before: q(before), Timestamp: "kernel"})
}

// TestRule8HoursFromHistory has the past of one hour, and what was usual nine hours before.
func TestRule8HoursFromHistory(t *testing.T) {
	const today, noon = 7, 12 * 60
	for name, tt := range map[string]struct {
		learnt int64 // the delay since the start of the analyzer
		days   []int
		during int64
		before int64
		want   bool
	}{
		"a week":                         {quietDelay, []int{0, 1, 2, 3, 4, 5, 6}, batchDelay, quietDelay, true},
		"a week, the last days first":    {quietDelay, []int{6, 5, 4, 3, 2, 1, 0}, batchDelay, quietDelay, true},
		"six days":                       {quietDelay, []int{0, 1, 2, 3, 4, 5}, batchDelay, quietDelay, false},
		"started in the slow hour":       {batchDelay, []int{0, 1, 2, 3, 4, 5, 6}, batchDelay, quietDelay, true},
		"nothing was slow":               {quietDelay, []int{0, 1, 2, 3, 4, 5, 6}, quietDelay, quietDelay, false},
		"a fault that stood":             {quietDelay, []int{0, 1, 2, 3, 4, 5, 6}, batchDelay, batchDelay, false},
		"a fault that stands, and stood": {batchDelay, []int{0, 1, 2, 3, 4, 5, 6}, batchDelay, batchDelay, false},
	} {
		b := newHourBook()
		b.pass(dayStart(today).Add(-time.Minute), dayStart(today), quietDay)
		b.seedDay(0, batchDelay, quietDelay) // a flow without a baseline learns nothing
		b.pass(dayStart(today), dayStart(today).Add(30*time.Minute), func(int) int64 { return tt.learnt })
		for _, day := range tt.days {
			b.seedDay(day, tt.during, tt.before)
		}
		u := b.records[hourFlow].usualAt(dayStart(today).Add(150 * time.Minute))
		if u.known != tt.want || u.known && u.p50 != batchDelay {
			t.Errorf("%s: %+v, want known %v", name, u, tt.want)
		}
	}
	for slow, want := range map[int]bool{hourMajority: true, hourMajority - 1: false} {
		b := newHourBook()
		b.pass(dayStart(today), dayStart(today).Add(30*time.Minute), quietDay)
		for day := range today {
			b.seedDay(day, map[bool]int64{true: batchDelay, false: quietDelay}[day < slow], quietDelay)
		}
		if u := b.records[hourFlow].usualAt(dayStart(today).Add(150 * time.Minute)); u.known != want {
			t.Errorf("%d slow days of a week: %+v", slow, u)
		}
	}
	b := newHourBook()
	b.pass(dayStart(today), dayStart(today).Add(30*time.Minute), quietDay)
	for _, day := range []int{1, 2, 3, 4, 5} {
		b.seedDay(day, batchDelay, quietDelay)
	}
	b.pass(dayStart(today).Add(30*time.Minute), dayStart(today).Add(noon*time.Minute), batchDay)
	if b.seedDay(6, batchDelay, quietDelay); b.isDegraded(dayStart(today+1).Add(150*time.Minute), batchDelay) {
		t.Error("five days and a late one from history, and today, are not a week")
	}
	b.seedDay(0, batchDelay, quietDelay) // is older than the seven
	if s := &b.records[hourFlow].hours.slots[0]; s.day[0] != dayOf(minuteOf(dayStart(1))/60) || !slices.IsSorted(s.day[:s.days]) {
		t.Errorf("the days are %d", s.day)
	}
	for day := range 3 { // on the path that the flow has
		b.path = otherWay
		b.FollowRoute(hourFlow, b.path)
		b.seedDay(day, batchDelay, quietDelay)
	}
	if n := len(b.records[hourFlow].hours.slots); n != 2 {
		t.Errorf("%d hours, want one on each path", n)
	}
}

// TestFewerThanSevenDaysChangeNothing: for six days of delays at random, every baseline and every condition is that of a
// Book without hours.
func TestFewerThanSevenDaysChangeNothing(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		b, without := newHourBook(), newHourBook()
		without.withoutHours = true
		clockError := random.Int64N(batchDelay) // within which healthy windows are above the baseline
		b.clockError, without.clockError = &clockError, &clockError
		levels := make([]int64, 24)
		slots := 0
		for at := dayStart(0); at.Before(dayStart(hourDays - 1)); at = at.Add(time.Duration(1+random.IntN(3)) * time.Minute) {
			if at.Hour() == 0 && at.Minute() < 3 || random.IntN(2000) == 0 {
				for i := range levels {
					levels[i] = quietDelay
					if random.IntN(3) == 0 {
						levels[i] += random.Int64N(2 * batchDelay)
					}
				}
			}
			if random.IntN(1000) == 0 {
				b.path = [][]fabric.Hop{hourPath, otherWay}[random.IntN(2)]
				without.path = b.path
			}
			delay := levels[at.Hour()] + random.Int64N(3000)
			got, want := b.measure(at, delay), without.measure(at, delay)
			if got.Condition != want.Condition || got.Shift != want.Shift || got.Scale != want.Scale || got.TailScale != want.TailScale {
				t.Fatalf("seed %d at %v: %+v, want %+v", seed, at, got, want)
			}
			slots = max(slots, len(b.records[hourFlow].hours.slots))
		}
		if slots == 0 || slots > MaxSlowHours {
			t.Errorf("seed %d: up to %d hours were remembered", seed, slots)
		}
	}
}

// TestTemporaryFlowsKnowTheHour: what is usual on a path is so at an hour.
func TestTemporaryFlowsKnowTheHour(t *testing.T) {
	b := newHourBook()
	b.passDays(0, 9, batchDay)
	for hour, want := range []int64{quietDelay, quietDelay, batchDelay, quietDelay} {
		b.LearnWindows(nil, Learning{Cycle: b.cycle + recomputeEvery*hour}) // estimates are kept for some cycles
		base, _ := b.EstimateOnRoute(hourPath, dayStart(9).Add(time.Duration(hour*60+30)*time.Minute))
		if base == nil || *base.P50 < want || *base.P50 > want+1000 || *base.P99 < *base.P50+3000 {
			t.Errorf("hour %d: %+v, want %d", hour, base, want)
		}
	}
}

// TestHoursAllocateLittle: a window of a usual hour costs no memory, and one of a slow hour its baseline.
func TestHoursAllocateLittle(t *testing.T) {
	b := newHourBook()
	b.passDays(0, 9, batchDay)
	p := judge.DefaultParameters()
	for _, tt := range []struct {
		hour  int
		delay int64
		want  float64
	}{{4, quietDelay, 0}, {2, quietDelay, 0}, {2, batchDelay, 1}} {
		at := dayStart(9).Add(time.Duration(tt.hour*60+30) * time.Minute)
		p99 := tt.delay + 4000
		o := &fabric.Observation{Sent: 100, Timestamp: "kernel", OWD: &fabric.Quantiles{P50: &tt.delay, P99: &p99}}
		f := &judge.Finding{Flow: hourFlow, Obs: o}
		r := b.records[hourFlow]
		if got := testing.AllocsPerRun(100, func() {
			o.Baseline, _ = b.BaselineAt(hourFlow, o.OWD, at)
			r.learnHour(f, at, &p)
		}); got != tt.want {
			t.Errorf("%+v: %.1f allocations per window", tt, got)
		}
	}
}

// TestHoursAreBounded: 30,000 flows that are slow in as many hours as are remembered, all in a slow hour.
func TestHoursAreBounded(t *testing.T) {
	const flows, limit, allocated = 30_000, 37e6, 960 // the allocator's size for all hours
	var h flowHours
	for hour := int32(24 * 20_000); h.minute < 60*24*20_020; hour++ { // every second hour, and all hours
		h.minute, h.lastQuiet, h.slowMinutes = hour*60, hour-1, uint8(hour/400%2*60+hour%2*60)
		h.samples = new([60 / minutesPerSample]delaySample)
		h.slowMinutes = min(h.slowMinutes, 59)
		h.closeHour()
	}
	if len(h.slots) != MaxSlowHours {
		t.Errorf("%d hours are remembered, want %d", len(h.slots), MaxSlowHours)
	}
	each := int(unsafe.Sizeof(h)) + allocated + int(unsafe.Sizeof(*new([60 / minutesPerSample]delaySample)))
	t.Logf("%d bytes of a flow, %d of an hour, at most %d: %.1f MB", unsafe.Sizeof(h), unsafe.Sizeof(hourSlot{}), each, float64(each)*flows/1e6)
	if unsafe.Sizeof(hourSlot{})*MaxSlowHours > allocated || float64(each)*flows > limit {
		t.Errorf("%d bytes each", each)
	}
}
