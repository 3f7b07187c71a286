package lease

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/graylink/graylink/internal/kubeapi"
	"github.com/graylink/graylink/internal/lease/leasetest"
)

type monoClock struct{ now time.Duration }

func lessee(t *testing.T, s *leasetest.Server, name string, clock *monoClock) *Lease {
	t.Helper()
	api, err := kubeapi.New(&rest.Config{Host: s.URL}, "test")
	if err != nil {
		t.Fatal(err)
	}
	return New(api, "graylink", "coordinator", name, func() time.Duration { return clock.now })
}

func hold(t *testing.T, l *Lease, q Request) State {
	t.Helper()
	s, err := l.Hold(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The holder dies. The other one takes the lease when it has seen no renewal for the lease's duration, and within ten
// seconds of the last one.
func TestRule1ADeadHolderIsReplaced(t *testing.T) {
	s, clock := leasetest.NewServer(t), &monoClock{time.Hour}
	a, b := lessee(t, s, "a", clock), lessee(t, s, "b", clock)
	if got := hold(t, a, Request{AtLeast: 100, Take: true}); !got.Held || got.Epoch != 100 {
		t.Fatalf("%+v, want the new lease with epoch 100", got)
	}
	for range 20 {
		clock.now += time.Second
		if got := hold(t, a, Request{Epoch: 100, Take: true}); !got.Held || got.Epoch != 100 {
			t.Fatalf("%+v: the holder lost it", got)
		}
		if got := hold(t, b, Request{Epoch: 100, Take: true}); got.Held || got.Holder != "a" || got.Epoch != 100 {
			t.Fatalf("%+v: it was taken from a holder that renews it", got)
		}
	}
	died, seconds := clock.now, 0
	for !hold(t, b, Request{Epoch: 100, Take: true}).Held {
		clock.now += time.Second
		if seconds++; seconds > 10 {
			t.Fatal("it was not taken within 10 s")
		}
	}
	if took := clock.now - died; took < Duration {
		t.Errorf("it was taken after %v, want not before %v", took, Duration)
	}
	if got := hold(t, a, Request{Epoch: 100, Take: true}); got.Held || got.Holder != "b" || got.Epoch != 101 {
		t.Errorf("the former holder found %+v", got)
	}
	if n := s.Lease()["spec"].(map[string]any)["leaseTransitions"]; n != 1. {
		t.Errorf("leaseTransitions %v, want 1", n)
	}
}

func TestRule1AReleasedLeaseIsFreeAtOnce(t *testing.T) {
	s, clock := leasetest.NewServer(t), &monoClock{time.Hour}
	a, b := lessee(t, s, "a", clock), lessee(t, s, "b", clock)
	hold(t, a, Request{AtLeast: 5, Take: true})
	if err := b.Release(t.Context()); err == nil {
		t.Error("it was released by another one")
	}
	if err := a.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := hold(t, b, Request{Epoch: 5}); got.Held {
		t.Errorf("%+v: taken without a wish to take it", got)
	}
	if got := hold(t, b, Request{Epoch: 5, Take: true}); !got.Held || got.Epoch != 6 {
		t.Errorf("%+v, want it with epoch 6", got)
	}
}

// Of two that are as fast as each other the API server refuses one.
func TestRule2OfTwoThatTakeItOneGetsIt(t *testing.T) {
	for name, there := range map[string]bool{"a new lease": false, "a free one": true} {
		s, clock := leasetest.NewServer(t), &monoClock{time.Hour}
		a, b := lessee(t, s, "a", clock), lessee(t, s, "b", clock)
		if there {
			hold(t, a, Request{AtLeast: 5, Take: true})
			if err := a.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		var first State
		s.Before = func() { first = hold(t, b, Request{Epoch: 9, Take: true}) }
		if got, err := a.Hold(t.Context(), Request{Epoch: 9, Take: true}); err == nil || got.Held || !kubeapi.HasCode(err, http.StatusConflict) {
			t.Errorf("%s: the slower one got %+v, %v", name, got, err)
		}
		if !first.Held || first.Epoch != 10 {
			t.Errorf("%s: the faster one got %+v", name, first)
		}
	}
}

func TestRule3WhoHasAnOlderStateDoesNotTakeIt(t *testing.T) {
	s, clock := leasetest.NewServer(t), &monoClock{time.Hour}
	a, b := lessee(t, s, "a", clock), lessee(t, s, "b", clock)
	hold(t, a, Request{AtLeast: 50, Take: true})
	hold(t, b, Request{})
	clock.now += time.Minute
	for _, q := range []Request{{Epoch: 49, Take: true}, {Take: true, AtLeast: 1000}} {
		if got := hold(t, b, q); got.Held {
			t.Errorf("%+v: got %+v", q, got)
		}
	}
	if got := hold(t, lessee(t, s, "a", clock), Request{Take: true, AtLeast: 1000}); got.Held {
		t.Errorf("the holder lost its state, and holds it again: %+v", got)
	}
	if got := hold(t, lessee(t, s, "a", clock), Request{Epoch: 49, Take: true}); !got.Held || got.Epoch != 50 {
		t.Errorf("the holder ended before it wrote the epoch, and got %+v", got)
	}
	if got := hold(t, b, Request{AtLeast: 1000, Force: true}); !got.Held || got.Epoch != 1000 {
		t.Errorf("by force: %+v", got)
	}
}

func TestALeaseThatCannotBeRead(t *testing.T) {
	s, clock := leasetest.NewServer(t), &monoClock{time.Hour}
	a := lessee(t, s, "a", clock)
	hold(t, a, Request{AtLeast: 5, Take: true})
	s.Lease()["metadata"].(map[string]any)["annotations"].(map[string]any)[epochAnnotation] = "many"
	if _, err := a.Hold(t.Context(), Request{Epoch: 5, Force: true}); err == nil || !strings.Contains(err.Error(), `"many"`) {
		t.Errorf("%v", err)
	}
	s.SetDown(true)
	if _, err := a.Hold(t.Context(), Request{Epoch: 5}); !kubeapi.HasCode(err, http.StatusServiceUnavailable) {
		t.Errorf("%v", err)
	}
}

// A note is kept by renewals and by a new holder, and is replaced by the holder alone.
func TestNote(t *testing.T) {
	s, clock := leasetest.NewServer(t), &monoClock{time.Hour}
	a, b := lessee(t, s, "a", clock), lessee(t, s, "b", clock)
	check := func(l *Lease, q Request, text *string, held bool, want string) {
		t.Helper()
		got, note, err := l.HoldWithNote(t.Context(), q, text)
		if err != nil || got.Held != held || note != want {
			t.Errorf("%+v, note %q (%v); want held %v, note %q", got, note, err, held, want)
		}
	}
	one, two, none := "one", "two", ""
	check(a, Request{Take: true}, &one, true, "one")
	check(a, Request{Epoch: 1}, nil, true, "one")
	check(b, Request{Epoch: 1, Take: true}, &two, false, "one") // it does not hold the lease
	clock.now += Duration
	check(b, Request{Epoch: 1, Take: true}, nil, true, "one")
	check(b, Request{Epoch: 2}, &none, true, "")
	check(a, Request{Epoch: 1}, &two, false, "") // it held the lease before
}
