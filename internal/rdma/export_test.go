package rdma

import (
	"log/slog"
	"time"
)

// Idle is a port that nothing keeps: the test does.
type Idle struct {
	*Port
	Time time.Duration
}

// NewIdle opens a port whose time is the test's.
func NewIdle(o Options, v Verbs) (*Idle, error) {
	p, err := newPort(o, v, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	i := &Idle{Port: p}
	p.now = func() int64 { return int64(i.Time) }
	i.Step()
	return i, nil
}

// Step looks after the port, and makes the handles that are asked for.
func (i *Idle) Step() {
	i.step()
	for i.makeOne() {
	}
}

// LookEvery is how often a port is looked at.
const LookEvery = lookEvery
