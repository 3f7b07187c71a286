package unix

import (
	"testing"
	"time"
)

func TestEventFD(t *testing.T) {
	p, err := NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, p)
	e, err := NewEventFD()
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, e)
	if err := p.Add(e.FD(), 5); err != nil {
		t.Fatal(err)
	}
	readable := func() bool {
		t.Helper()
		n, err := p.Wait(time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return false
		}
		token, in, _ := p.EventAt(0)
		return token == 5 && in
	}
	if readable() {
		t.Error("readable before a signal")
	}
	for range 2 {
		if err := e.Signal(); err != nil {
			t.Fatal(err)
		}
	}
	if !readable() {
		t.Error("not readable after signals")
	}
	e.Clear()
	if readable() {
		t.Error("readable after Clear")
	}
	e.Clear() // of nothing
	if n := testing.AllocsPerRun(100, func() {
		if err := e.Signal(); err != nil {
			t.Fatal(err)
		}
		e.Clear()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
