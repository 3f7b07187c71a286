package coordinator

import (
	"context"
	"fmt"
	"time"
)

// leaseEvery is the time between two requests for the lease.
const leaseEvery = time.Second

// LeaseState is what a request for the lease found.
type LeaseState struct {
	Held   bool   // by this coordinator
	Holder string // empty if there is none
	Epoch  uint64 // of the leader that holds it, or held it last; 0 if there was none
}

// Lease decides which of several coordinators leads.
type Lease interface {
	// Hold keeps the lease, or takes it if it is free and Take says so. A lease that is taken gets an epoch above its last
	// one and above Epoch. A lease whose epoch is greater than Epoch is not taken: its leader has a newer state. With Force
	// it is taken in any case.
	Hold(ctx context.Context, request LeaseRequest) (LeaseState, error)
	// Release lets another coordinator take the lease at once.
	Release(ctx context.Context) error
}

// LeaseRequest is a request for the lease.
type LeaseRequest struct {
	Epoch       uint64 // of the state that the coordinator has; 0 if it has none
	AtLeast     uint64 // lower limit of the epoch of a lease that is taken
	Take, Force bool
}

// runLease keeps the lease, or tries to take it, until ctx ends, and then releases it.
func (c *Coordinator) runLease(ctx context.Context) {
	tick := time.NewTicker(leaseEvery)
	defer tick.Stop()
	for {
		c.stepLease(ctx)
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), meetWithin)
			defer cancel()
			if c.Leads() {
				if err := c.opts.HA.Lease.Release(last); err != nil {
					c.log.Warn("cannot release the lease: the standby leads when it has ended", "err", err)
				}
			}
			return
		case <-tick.C:
		}
	}
}

// stepLease asks for the lease once, and does what follows. A leader that cannot reach the lease goes on: if another one
// takes it, the greater epoch ends its leadership.
func (c *Coordinator) stepLease(ctx context.Context) {
	c.mu.Lock()
	l := &c.leadership
	leads := l.leads
	// A coordinator without a state leads only if it was named for that. The state of the other one is the better one if it
	// is there.
	take := leads || l.peer.tried && !l.peer.leading(c.opts.Clock.MonoTime()) && l.peer.epoch <= l.epoch && (l.replica != nil || c.opts.HA.isInitial())
	request := LeaseRequest{Epoch: l.epoch, AtLeast: l.nextEpoch(c.opts.Clock.WallTime()), Take: take}
	failing := c.leaseFailing
	c.mu.Unlock()
	found, err := c.opts.HA.Lease.Hold(ctx, request)
	if ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	c.leaseFailing = err != nil
	c.mu.Unlock()
	if err != nil {
		if !failing {
			c.log.Warn("no answer about the lease", "err", err)
		}
		return
	}
	c.useLease(found)
}

// useLease leads, or makes way, as the lease says.
func (c *Coordinator) useLease(found LeaseState) {
	c.changeMu.Lock()
	defer c.changeMu.Unlock()
	own := c.peerState()
	switch {
	case found.Held && (!own.Leads || found.Epoch > own.Epoch):
		if err := c.promoteTo(found.Epoch, "the lease"); err != nil {
			c.log.Error("this coordinator holds the lease", "err", err)
		}
	case !found.Held && own.Leads && (found.Holder != "" || found.Epoch > own.Epoch):
		c.stepDown(found.Epoch, fmt.Sprintf("the lease is that of %q", found.Holder))
	}
}
