package ibsample

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/graylink/graylink/internal/ibmad"
)

// fabric answers queries as ports would, after a delay.
type fabric struct {
	delay time.Duration
	info  ibmad.ClassPortInfo

	mu     sync.Mutex
	asked  map[Key][]ask // by LID and port
	silent map[ibmad.LID]bool
	absent map[ibmad.Attribute]bool
	mute   ibmad.Attribute  // never answered
	muted  int              // how often that was sent
	value  func(Key) uint64 // the value of every counter
}

type ask struct {
	at        time.Time
	attribute ibmad.Attribute
}

func newFabric() *fabric {
	return &fabric{delay: time.Millisecond, asked: map[Key][]ask{}, silent: map[ibmad.LID]bool{}, absent: map[ibmad.Attribute]bool{},
		value: func(k Key) uint64 { return uint64(time.Since(time.Unix(946684800, 0)) / time.Millisecond) }}
}

// DoAll answers one request after the other until the context ends.
func (f *fabric) DoAll(ctx context.Context, requests []ibmad.Request, visit func(*ibmad.Result) []ibmad.Request) error {
	f.mu.Lock()
	delay := f.delay
	f.mu.Unlock()
	for len(requests) > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(delay):
		}
		var next []ibmad.Request
		for _, r := range requests {
			next = append(next, visit(f.answer(r))...)
		}
		requests = next
	}
	return nil
}

func (f *fabric) answer(r ibmad.Request) *ibmad.Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := Key{uint64(r.To.LID), r.Port}
	result := &ibmad.Result{Request: r, Received: time.Now()}
	switch {
	case r.Attribute == f.mute:
		f.muted++
		result.Err = ibmad.ErrTimeout
		return result
	case f.silent[r.To.LID]:
		result.Err = ibmad.ErrTimeout
		return result
	case f.absent[r.Attribute]:
		result.Err = &ibmad.StatusError{Request: r, Status: 0xc}
	case r.Attribute == ibmad.AttrClassPortInfo:
		f.info.Encode(result.Data())
	default:
		for _, c := range ibmad.CountersOf(r.Attribute) {
			c.EncodeValue(result.Data(), f.value(k))
		}
	}
	f.asked[k] = append(f.asked[k], ask{time.Now(), r.Attribute})
	return result
}

// set changes the behaviour of the ports.
func (f *fabric) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// questions returns the queries sent so far, by port.
func (f *fabric) questions() map[Key][]ask {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[Key][]ask{}
	for k, asked := range f.asked {
		out[k] = slices.Clone(asked)
	}
	return out
}

func (f *fabric) timesMuted() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.muted
}

func (f *fabric) count(k Key, a ibmad.Attribute) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, x := range f.asked[k] {
		if x.attribute == a {
			n++
		}
	}
	return n
}

// crew is a delegator with samplers, in one process and in synthetic time.
type crew struct {
	*Delegator
	fabric *fabric
	stops  map[string]context.CancelFunc
	wg     sync.WaitGroup
	stop   context.CancelFunc
	ctx    context.Context
}

func newCrew(t *testing.T, o Options, targets []Target, samplers ...string) *crew {
	c := &crew{Delegator: NewDelegator(o), fabric: newFabric(), stops: map[string]context.CancelFunc{}}
	c.SetTargets(targets)
	c.ctx, c.stop = context.WithCancel(t.Context())
	c.wg.Go(func() { c.WatchSamplers(c.ctx) })
	for _, name := range samplers {
		c.join(t, name, Local{c.Delegator, time.Now})
	}
	return c
}

func (c *crew) join(t *testing.T, name string, to Authority) {
	s, err := NewSampler(name, to, c.fabric, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(c.ctx)
	c.stops[name] = stop
	c.wg.Go(func() { s.Run(ctx) })
}

func (c *crew) end() {
	c.stop()
	c.wg.Wait()
}

func TestRule1AllSamplersReadOnTheTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, Options{Interval: time.Second, Metrics: Selection{"PortCounters"}}, targetsOf(4, 3), "a", "b", "c")
		defer c.end()
		time.Sleep(5*time.Second + 500*time.Millisecond)
		for k, asked := range c.fabric.questions() {
			if k.Port == 0 {
				continue
			}
			if len(asked) != 5 {
				t.Errorf("%v was asked %d times in 5 ticks", k, len(asked))
			}
			// The first sweep determines traits first.
			for _, a := range asked[1:] {
				if late := a.at.Sub(a.at.Truncate(time.Second)); late != time.Millisecond {
					t.Errorf("%v was asked %v after the tick", k, late)
				}
			}
		}
		if s := c.Store.Snapshot(time.Now()); s.Accepted != 5*12 || s.Duplicates != 0 || s.Starts != 15 || s.SkewMax != 0 {
			t.Errorf("%d readings, %d duplicates, %d starts, up to %v from the tick", s.Accepted, s.Duplicates, s.Starts, s.SkewMax)
		}
	})
}

func TestRule1ASweepEndsBeforeTheNextTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, Options{Interval: time.Second, Metrics: Selection{"PortCounters", "PortCountersExtended"}}, targetsOf(1, 2), "a")
		defer c.end()
		c.fabric.set(func() { c.fabric.delay = 600 * time.Millisecond }) // traits are determined first, so that the counters come too late
		time.Sleep(1990 * time.Millisecond)
		p := c.Store.Snapshot(time.Now()).Ports[0]
		if len(p.Counts) != 0 || p.Errors[cutShort] == 0 {
			t.Errorf("%d counters, errors %v", len(p.Counts), p.Errors)
		}
		c.fabric.set(func() { c.fabric.delay = time.Millisecond })
		time.Sleep(2 * time.Second)
		if p := c.Store.Snapshot(time.Now()).Ports[0]; len(p.Counts) == 0 {
			t.Errorf("no counters from a sweep in time, errors %v", p.Errors)
		}
		if s := c.Status().Samplers[0]; s.Missed != 0 {
			t.Errorf("%d ticks missed", s.Missed)
		}
	})
}

func TestRule2QueriesThatArePassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, Options{Interval: time.Second, Metrics: Selection{"PortCounters", "PortRcvErrorDetails"}}, targetsOf(1, 1), "a")
		defer c.end()
		c.fabric.set(func() { c.fabric.mute = ibmad.AttrPortRcvErrorDetails })
		time.Sleep(8*time.Second + 500*time.Millisecond)
		p := c.Store.Snapshot(time.Now()).Ports[0]
		if len(p.Errors) != 0 || len(p.Counts) != 16 || c.fabric.timesMuted() != 1 {
			t.Errorf("%d counters, errors %v, asked %d times", len(p.Counts), p.Errors, c.fabric.timesMuted())
		}
		// The sampler that takes the port over does not try again.
		c.stops["a"]()
		c.join(t, "b", Local{c.Delegator, time.Now})
		time.Sleep(4 * time.Second)
		if c.fabric.timesMuted() != 1 {
			t.Errorf("asked %d times after a hand-over", c.fabric.timesMuted())
		}
	})
}

func TestRule2SilentAndIgnorantPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, Options{Interval: time.Second, Metrics: Selection{"PortCounters", "PortRcvErrorDetails"}}, targetsOf(3, 1), "a")
		defer c.end()
		c.fabric.set(func() { c.fabric.absent[ibmad.AttrPortRcvErrorDetails], c.fabric.silent[3] = true, true })
		time.Sleep(4*time.Second + 500*time.Millisecond)
		ports := c.Store.Snapshot(time.Now()).Ports
		if len(ports[0].Counts) != 16 || len(ports[0].Errors) != 0 {
			t.Errorf("%d counters of a port without a query, errors %v", len(ports[0].Counts), ports[0].Errors)
		}
		if n := c.fabric.count(Key{1, 1}, ibmad.AttrPortRcvErrorDetails); n != 1 {
			t.Errorf("asked %d times for what it does not know", n)
		}
		if len(ports[2].Counts) != 0 || ports[2].Errors["timeout"] != 4 {
			t.Errorf("%d counters of a silent port, errors %v", len(ports[2].Counts), ports[2].Errors)
		}
	})
}

// TestRule6OthersTakeOver checks that after one of four samplers stops, every port is read again on the second
// tick after, none twice on any tick.
func TestRule6OthersTakeOver(t *testing.T) {
	for _, when := range []time.Duration{100 * time.Millisecond, 490 * time.Millisecond, 510 * time.Millisecond, 990 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			c := newCrew(t, Options{Interval: time.Second, Metrics: Selection{"PortXmitPkts"}}, targetsOf(9, 36), "a", "b", "c", "d")
			defer c.end()
			time.Sleep(5*time.Second + when)
			dead := time.Now()
			c.stops["b"]()
			time.Sleep(4 * time.Second)
			if got := members(c.Delegator); !slices.Equal(got, []string{"a", "c", "d"}) {
				t.Fatalf("samplers %v", got)
			}
			questions := c.fabric.questions()
			for _, p := range c.Store.Snapshot(time.Now()).Ports {
				k := Key{p.Target.Node, p.Target.Port}
				var ticks []int64
				for _, a := range questions[k] {
					ticks = append(ticks, a.at.Unix())
				}
				if d := slices.Compact(slices.Clone(ticks)); len(d) != len(ticks) {
					t.Fatalf("%v was read twice on a tick: %v", k, ticks)
				}
				for _, after := range ticks {
					if after > dead.Unix() {
						if gap := time.Unix(after, 0).Sub(dead); gap > 2*time.Second {
							t.Fatalf("%v was read again after %v", k, gap)
						}
						break
					}
				}
				if len(p.Counts) == 0 || p.Counts[0].Rate != 1000 || p.Resets != 0 {
					t.Fatalf("%v: %+v, %d resets; the counter grows by 1000 a second", k, p.Counts, p.Resets)
				}
			}
		})
	}
}

// flaky is a delegator that is unreachable for a while.
type flaky struct {
	Local
	mu  sync.Mutex
	off bool
}

func (f *flaky) cut(off bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.off = off
}

func (f *flaky) gone() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.off {
		return errors.New("no route to host")
	}
	return nil
}

func (f *flaky) SendReport(ctx context.Context, r *Report) (Clock, error) {
	if err := f.gone(); err != nil {
		return Clock{}, err
	}
	return f.Local.SendReport(ctx, r)
}

func (f *flaky) FetchAssignment(ctx context.Context, sampler, instance string, since uint64) (Assignment, error) {
	if err := f.gone(); err != nil {
		return Assignment{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return f.Local.FetchAssignment(ctx, sampler, instance, since)
}

func TestRule8WhoIsCutOffReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, Options{Interval: time.Second, Metrics: Selection{"PortCounters"}}, targetsOf(1, 1))
		defer c.end()
		way := &flaky{Local: Local{c.Delegator, time.Now}}
		c.join(t, "a", way)
		time.Sleep(3*time.Second + 500*time.Millisecond)
		way.cut(true)
		time.Sleep(10 * time.Second)
		n := c.fabric.count(Key{1, 1}, ibmad.AttrPortCounters)
		if n != 3+2 {
			t.Errorf("read %d times, want 3 and 2 without the delegator", n)
		}
		if len(members(c.Delegator)) != 0 {
			t.Error("it is not taken for dead")
		}
		way.cut(false)
		time.Sleep(3 * time.Second)
		if got := c.fabric.count(Key{1, 1}, ibmad.AttrPortCounters) - n; got < 2 {
			t.Errorf("back again it reads %d times in 3 s", got)
		}
	})
}

func TestRedundancyReadsTwiceAndKeepsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, Options{Interval: time.Second, Redundancy: 2, Metrics: Selection{"PortCounters"}}, targetsOf(2, 3), "a", "b", "c")
		defer c.end()
		time.Sleep(4*time.Second + 500*time.Millisecond)
		s := c.Store.Snapshot(time.Now())
		if s.Accepted != 4*6 || s.Duplicates != 4*6 {
			t.Errorf("%d kept, %d duplicates, want 24 each", s.Accepted, s.Duplicates)
		}
	})
}

// TestPortsOfOneNodeKnownAndNot checks that a sampler that is given a port of a node whose other ports it knows
// sends each query once.
func TestPortsOfOneNodeKnownAndNot(t *testing.T) {
	f := newFabric()
	f.delay = 0
	for first := range 2 {
		targets := targetsOf(1, 3)
		metrics := Selection{"PortCounters", "PortRcvErrorDetails", "PortXmitDiscardDetails"}
		SweepTargets(t.Context(), f, targets, metrics, 0)
		targets[first].Traits = Traits{}
		for i, r := range SweepTargets(t.Context(), f, targets, metrics, 0) {
			if len(r.Answers) != 3 || len(r.Errors) != 0 {
				t.Errorf("port %d: %d answers to 3 queries, errors %v", i+1, len(r.Answers), r.Errors)
			}
		}
	}
}

func TestClockOffset(t *testing.T) {
	var c clock
	if c.delegatorOffset() != 0 {
		t.Error("an offset without an exchange")
	}
	// The delegator's clock is 5 ms ahead, the way there and back takes 2 ms.
	c.addExchange(0, Clock{Received: 6_000_000, Answered: 6_500_000}, 2_500_000)
	if c.delegatorOffset() != 5*time.Millisecond || c.errorBound() != time.Millisecond {
		t.Errorf("offset %v, error %v", c.delegatorOffset(), c.errorBound())
	}
	// A better exchange shows that the clocks agree within its precision.
	c.addExchange(0, Clock{Received: 20_000, Answered: 20_000}, 100_000)
	if c.delegatorOffset() != 0 || c.errorBound() != 50*time.Microsecond {
		t.Errorf("offset %v, error %v", c.delegatorOffset(), c.errorBound())
	}
}
