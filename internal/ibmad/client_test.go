package ibmad

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// script is a transport whose other end is controlled by the test.
type script struct {
	window int
	in     chan arrival
	once   sync.Once

	mu      sync.Mutex
	sent    []question
	failure error // of Send
}

type arrival struct {
	m    MAD
	lost bool
}

type question struct {
	m  MAD
	to Address
}

func (s *script) Send(m *MAD, to Address, _ time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure == nil {
		s.sent = append(s.sent, question{*m, to})
	}
	return s.failure
}

func (s *script) Receive(m *MAD) (bool, error) {
	a, ok := <-s.in
	if !ok {
		return false, io.EOF
	}
	*m = a.m
	return a.lost, nil
}

func (s *script) MaxInFlight() int { return s.window }

func (s *script) Close() error {
	s.once.Do(func() { close(s.in) })
	return nil
}

// take waits until nothing moves and returns what was sent since the last call.
func (s *script) take() []question {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	sent := s.sent
	s.sent = nil
	return sent
}

func (s *script) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = err
}

func (s *script) answer(q question, status Status) {
	q.m.MakeResponse(status)
	s.in <- arrival{m: q.m}
}

// walk is a DoAll in progress.
type walk struct {
	cancel  context.CancelFunc
	err     chan error
	mu      sync.Mutex
	results []Result
}

func (w *walk) got() []Result {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.results)
}

// rules runs a client on a script in a bubble of synthetic time.
func rules(t *testing.T, c Config, test func(*testing.T, *script, *Client, func(...Request) *walk)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &script{window: 100, in: make(chan arrival)}
		client := NewClient(s, c)
		defer client.Close()
		test(t, s, client, func(requests ...Request) *walk {
			ctx, cancel := context.WithCancel(t.Context())
			w := &walk{cancel: cancel, err: make(chan error, 1)}
			go func() {
				w.err <- client.DoAll(ctx, requests, func(r *Result) []Request {
					w.mu.Lock()
					defer w.mu.Unlock()
					w.results = append(w.results, *r)
					return nil
				})
			}()
			return w
		})
	})
}

// to returns n requests to a LID, with the tags 0 to n-1.
func to(lid LID, n int) []Request {
	list := make([]Request, n)
	for i := range list {
		list[i] = GetPortInfo(ToLID(lid), uint8(i))
		list[i].Tag = i
	}
	return list
}

func count(list []question, lid LID) int {
	n := 0
	for _, q := range list {
		if q.to.LID == lid {
			n++
		}
	}
	return n
}

func TestRule1Windows(t *testing.T) {
	rules(t, Config{MaxInFlight: 6, PerDestination: 3}, func(t *testing.T, s *script, c *Client, start func(...Request) *walk) {
		start(slices.Concat(to(1, 9), to(2, 9), to(3, 9))...)
		first := s.take()
		for _, q := range first {
			s.answer(q, 0)
		}
		now := s.take()
		if len(now) != 6 || count(now, 1) > 3 || count(now, 2) > 3 || count(now, 3) > 3 {
			t.Errorf("on their way: %d, to 1, 2, 3: %d, %d, %d; want 6 in all, 3 to one", len(now), count(now, 1), count(now, 2), count(now, 3))
		}
	})
	for _, test := range []struct{ asked, want int }{{0, 100}, {7, 7}, {1000, 100}} {
		rules(t, Config{MaxInFlight: test.asked}, func(t *testing.T, s *script, c *Client, _ func(...Request) *walk) {
			if got := c.Config().MaxInFlight; got != test.want {
				t.Errorf("window %d of 100 is %d, want %d", test.asked, got, test.want)
			}
		})
	}
}

func TestRule2FirstOneAtATime(t *testing.T) {
	rules(t, Config{PerDestination: 3}, func(t *testing.T, s *script, c *Client, start func(...Request) *walk) {
		w := start(to(1, 5)...)
		first := s.take()
		if len(first) != 1 {
			t.Fatalf("%d requests before the first answer, want 1", len(first))
		}
		s.answer(first[0], 0)
		more := s.take()
		if len(more) != 3 {
			t.Fatalf("%d requests after the first answer, want 3", len(more))
		}
		for len(more) > 0 {
			for _, q := range more {
				s.answer(q, 0)
			}
			more = s.take()
		}
		if got := w.got(); len(got) != 5 {
			t.Errorf("%d results, want 5", len(got))
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.destinations) != 0 || len(c.free) != 100 {
			t.Errorf("%d destinations are remembered and %d slots are free, want 0 and 100", len(c.destinations), len(c.free))
		}
	})
}

func TestRule3Turns(t *testing.T) {
	rules(t, Config{MaxInFlight: 2, PerDestination: 2}, func(t *testing.T, s *script, c *Client, start func(...Request) *walk) {
		start(slices.Concat(to(1, 50), to(2, 2))...)
		for i, q := range s.take() {
			if want := LID(i + 1); q.to.LID != want {
				t.Errorf("request %d goes to %d, want %d", i, q.to.LID, want)
			}
		}
	})
}

func TestRule4Retries(t *testing.T) {
	rules(t, Config{Timeout: time.Second, Retries: 2}, func(t *testing.T, s *script, c *Client, start func(...Request) *walk) {
		w := start(to(1, 1)...)
		first := s.take()
		time.Sleep(time.Second)
		second := s.take()
		if len(first) != 1 || len(second) != 1 || first[0].m.TransactionID() == second[0].m.TransactionID() {
			t.Fatalf("attempts %d, %d; want one each, with transactions of their own", len(first), len(second))
		}
		// lost by the transport: at once, and only the last attempt
		s.in <- arrival{m: first[0].m, lost: true}
		if n := len(s.take()); n != 0 {
			t.Errorf("%d attempts after an old one came back, want 0", n)
		}
		s.in <- arrival{m: second[0].m, lost: true}
		if n := len(s.take()); n != 1 {
			t.Errorf("%d attempts after one came back, want 1", n)
		}
		s.answer(first[0], 0)
		got := w.got()
		if len(got) != 1 || got[0].Err != nil || got[0].Attempts != 3 || got[0].Received.Sub(got[0].Sent) != time.Second {
			t.Errorf("%+v, want one answer to 3 attempts in 1s", got)
		}
		if s := c.Stats(); s.Sent != 3 || s.Lost != 2 || s.Recovered != 1 || s.RecoveredSubnet != 1 || s.Answered != 1 || s.TimedOut != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestRule5Silence(t *testing.T) {
	rules(t, Config{Timeout: time.Second, Retries: 1}, func(t *testing.T, s *script, c *Client, start func(...Request) *walk) {
		w := start(slices.Concat(to(1, 4), to(2, 1))...)
		time.Sleep(2 * time.Second)
		var timeouts, silent int
		for _, r := range w.got() {
			switch {
			case errors.Is(r.Err, ErrTimeout):
				timeouts++
			case errors.Is(r.Err, ErrSilent):
				silent++
				if r.Attempts != 0 || !r.Sent.IsZero() {
					t.Errorf("%+v was sent", r)
				}
			}
		}
		if timeouts != 2 || silent != 3 {
			t.Errorf("%d timed out and %d were skipped, want 2 and 3", timeouts, silent)
		}
		if s := c.Stats(); s.TimedOut != 2 || s.Skipped != 3 || s.Sent != 4 {
			t.Errorf("%+v", s)
		}
		if err := <-w.err; err != nil {
			t.Error(err)
		}
	})
	// it may become silent while it waits for its turn
	rules(t, Config{MaxInFlight: 2, Timeout: time.Second, Retries: -1}, func(t *testing.T, s *script, c *Client, start func(...Request) *walk) {
		w := start(to(1, 9)...)
		s.answer(s.take()[0], 0)
		time.Sleep(time.Second)
		if got := w.got(); len(got) != 9 || c.Stats().TimedOut != 2 || c.Stats().Skipped != 6 {
			t.Errorf("%d results, %+v; want 9, 2 timed out, 6 skipped", len(got), c.Stats())
		}
	})
	// one question that is never answered does not make its destination silent
	rules(t, Config{Timeout: time.Second, Retries: -1, PerDestination: 2}, func(t *testing.T, s *script, c *Client, start func(...Request) *walk) {
		w := start(to(1, 5)...)
		s.answer(s.take()[0], 0)
		both := s.take()
		time.Sleep(time.Second / 2)
		s.answer(both[1], 0)
		third := s.take()
		time.Sleep(time.Second / 2)
		s.answer(third[0], 0)
		s.answer(s.take()[0], 0)
		var failed []int
		for _, r := range w.got() {
			if r.Err != nil {
				failed = append(failed, r.Request.Tag)
			}
		}
		if !slices.Equal(failed, []int{1}) {
			t.Errorf("%v failed, want only 1", failed)
		}
	})
}

func TestRule6LateAndForeign(t *testing.T) {
	rules(t, Config{Timeout: time.Second, Retries: -1}, func(t *testing.T, s *script, c *Client, start func(...Request) *walk) {
		w := start(to(1, 1)...)
		q := s.take()[0]
		for what, change := range map[string]func(*MAD){
			"another attribute": func(m *MAD) { m[17] ^= 1 }, "another modifier": func(m *MAD) { m[23] ^= 1 },
			"another class": func(m *MAD) { m[1] = classPerformance }, "a question": func(m *MAD) { m[3] = methodGet },
		} {
			before := c.Stats().Foreign
			m := q.m
			m.MakeResponse(0)
			change(&m)
			s.in <- arrival{m: m}
			synctest.Wait()
			if got := c.Stats().Foreign - before; got != 1 {
				t.Errorf("%s: %d foreign, want 1", what, got)
			}
		}
		stranger := q
		stranger.m.SetTransactionID(q.m.TransactionID() ^ 1<<slotBits)
		s.answer(stranger, 0)
		stranger.m.SetTransactionID(0xfff)
		s.answer(stranger, 0)
		if got := w.got(); len(got) != 0 || c.Stats().Late != 2 {
			t.Errorf("%d results, %+v; want none, 2 late", len(got), c.Stats())
		}
		// the upper half belongs to the kernel and to ibsim
		q.m.SetTransactionID(q.m.TransactionID() | 0xabcd<<48)
		s.answer(q, 0)
		if got := w.got(); len(got) != 1 || got[0].Err != nil {
			t.Errorf("%+v, want one answer", got)
		}
		s.answer(q, 0)
		synctest.Wait()
		s.in <- arrival{m: q.m, lost: true} // a request that comes back is not an answer either
		synctest.Wait()
		if n := c.Stats().Late; n != 3 {
			t.Errorf("%d late, want 3", n)
		}
	})
}

func TestRule7Busy(t *testing.T) {
	rules(t, Config{Timeout: time.Second, Retries: 1}, func(t *testing.T, s *script, c *Client, start func(...Request) *walk) {
		w := start(to(1, 1)...)
		s.answer(s.take()[0], 1)
		if got := w.got(); len(got) != 0 {
			t.Fatalf("%+v, want nothing yet", got)
		}
		time.Sleep(time.Second)
		s.answer(s.take()[0], 0)
		if got := w.got(); len(got) != 1 || got[0].Err != nil || c.Stats().Busy != 1 {
			t.Errorf("%+v, %+v", got, c.Stats())
		}
	})
}

func TestRule8StatusIsTyped(t *testing.T) {
	for _, test := range []struct {
		status      Status
		unsupported bool
		text        string
	}{{3 << 2, true, "attribute not supported"}, {7 << 2, false, "invalid attribute or modifier value"}, {2, false, "redirected"}} {
		rules(t, Config{}, func(t *testing.T, s *script, c *Client, start func(...Request) *walk) {
			w := start(to(1, 1)...)
			s.answer(s.take()[0], test.status)
			got := w.got()
			var refused *StatusError
			if len(got) != 1 || !errors.As(got[0].Err, &refused) || refused.Status != test.status ||
				errors.Is(got[0].Err, ErrUnsupported) != test.unsupported || !strings.Contains(got[0].Err.Error(), test.text) {
				t.Errorf("%+v, want %q", got, test.text)
			}
			if s := c.Stats(); s.Answered != 1 || s.Refused != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestRule9Close(t *testing.T) {
	rules(t, Config{}, func(t *testing.T, s *script, c *Client, start func(...Request) *walk) {
		w := start(to(1, 5)...)
		s.take()
		c.Close()
		if err := <-w.err; !errors.Is(err, ErrClosed) {
			t.Errorf("%v, want %v", err, ErrClosed)
		}
		if _, err := c.Do(t.Context(), GetNodeInfo(Address{})); !errors.Is(err, ErrClosed) {
			t.Errorf("%v, want %v", err, ErrClosed)
		}
	})
	// Close does not wait for a transport that takes long to close
	rules(t, Config{}, func(t *testing.T, s *script, c *Client, start func(...Request) *walk) {
		w := start(to(1, 5)...)
		s.take()
		s.once.Do(func() {}) // Close does nothing now
		closed := make(chan error)
		go func() { closed <- c.Close() }()
		if err := <-w.err; !errors.Is(err, ErrClosed) {
			t.Errorf("%v, want %v", err, ErrClosed)
		}
		close(s.in)
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
	// a transport that breaks ends it as well
	rules(t, Config{}, func(t *testing.T, s *script, c *Client, start func(...Request) *walk) {
		w := start(to(1, 5)...)
		s.take()
		s.Close()
		if err := <-w.err; !errors.Is(err, ErrClosed) {
			t.Errorf("%v, want %v", err, ErrClosed)
		}
	})
}

func TestCancelGivesSlotsBack(t *testing.T) {
	rules(t, Config{MaxInFlight: 2}, func(t *testing.T, s *script, c *Client, start func(...Request) *walk) {
		w := start(slices.Concat(to(1, 5), to(2, 5))...)
		old := s.take()
		w.cancel()
		if err := <-w.err; !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want %v", err, context.Canceled)
		}
		next := start(to(3, 1)...)
		now := s.take()
		if len(now) != 1 || now[0].to.LID != 3 {
			t.Fatalf("%d sent, want the one to 3", len(now))
		}
		s.answer(old[0], 0)
		s.answer(now[0], 0)
		if got := next.got(); len(got) != 1 || got[0].Request.To.LID != 3 || got[0].Err != nil || c.Stats().Late != 1 {
			t.Errorf("%+v, %+v", got, c.Stats())
		}
	})
}

func TestSendFails(t *testing.T) {
	rules(t, Config{Timeout: time.Second, Retries: -1}, func(t *testing.T, s *script, c *Client, start func(...Request) *walk) {
		broken := errors.New("broken")
		s.fail(broken)
		if _, err := c.Do(t.Context(), GetNodeInfo(ToLID(1))); !errors.Is(err, broken) {
			t.Errorf("%v, want %v", err, broken)
		}
		s.fail(ErrDropped)
		if _, err := c.Do(t.Context(), GetNodeInfo(ToLID(1))); !errors.Is(err, ErrTimeout) || c.Stats().Dropped != 1 {
			t.Errorf("%v, %+v", err, c.Stats())
		}
		s.fail(nil)
		if _, err := c.Do(t.Context(), Request{Attribute: AttrPortCounters}); err == nil || !strings.Contains(err.Error(), "LID only") {
			t.Errorf("performance by directed route: %v", err)
		}
	})
}

// Requests that visit returns are sent too.
func TestWalkGoesOn(t *testing.T) {
	rules(t, Config{}, func(t *testing.T, s *script, c *Client, _ func(...Request) *walk) {
		var order []string
		done := make(chan error, 1)
		go func() {
			done <- c.DoAll(t.Context(), []Request{GetNodeInfo(Address{})}, func(r *Result) []Request {
				order = append(order, fmt.Sprint(r.Request))
				if r.Request.To.Path.HopCount() == 2 {
					return nil
				}
				next, err := r.Request.To.Path.AppendHop(5)
				if err != nil {
					t.Error(err)
				}
				return []Request{GetNodeInfo(AlongRoute(next))}
			})
		}()
		for range 3 {
			s.answer(s.take()[0], 0)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		want := []string{"NodeInfo/0 of route 0", "NodeInfo/0 of route 0,5", "NodeInfo/0 of route 0,5,5"}
		if !slices.Equal(order, want) {
			t.Errorf("%q, want %q", order, want)
		}
	})
}

// Many goroutines at once get their own answers.
func TestManyAskers(t *testing.T) {
	s := &script{window: 8, in: make(chan arrival, 100)}
	c := NewClient(echo{s}, Config{Timeout: time.Minute})
	defer c.Close()
	var all sync.WaitGroup
	for g := range 16 {
		all.Go(func() {
			for i := range 200 {
				r, err := c.Do(t.Context(), GetPortInfo(ToLID(LID(g+1)), uint8(i)))
				if err != nil || r.MAD.AttributeModifier() != uint32(uint8(i)) || r.Data()[0] != uint8(g+1) {
					t.Errorf("asker %d, question %d: %v, answer %d of %d", g, i, err, r.MAD.AttributeModifier(), r.Data()[0])
					return
				}
			}
		})
	}
	all.Wait()
}

// echo answers everything at once, with the LID in the attribute.
type echo struct{ *script }

func (e echo) Send(m *MAD, to Address, _ time.Duration) error {
	answer := *m
	answer.MakeResponse(0)
	answer.Data()[0] = uint8(to.LID)
	e.in <- arrival{m: answer}
	return nil
}

// The answers to one client's requests do not fit another's.
func TestClientsBeginApart(t *testing.T) {
	first := map[uint64]bool{}
	for range 8 {
		rules(t, Config{}, func(t *testing.T, s *script, c *Client, start func(...Request) *walk) {
			start(to(1, 1)...)
			first[s.take()[0].m.TransactionID()] = true
		})
	}
	if len(first) < 7 {
		t.Errorf("8 clients began with %d transaction ids", len(first))
	}
}
