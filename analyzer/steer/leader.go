package steer

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/kubeapi"
	"github.com/graylink/graylink/internal/lease"
)

// Leader decides which of several analyzers acts, and has what all of them did.
type Leader interface {
	// Lead reports whether this analyzer leads, and returns what all leaders have recorded. shared is false if nothing is
	// recorded anywhere but in this analyzer's audit log.
	Lead(ctx context.Context) (leads bool, recorded []Action, shared bool, err error)
	// Record replaces what is recorded, before and after an action. It fails if this analyzer no longer leads.
	Record(ctx context.Context, all []Action) error
}

// Sole is the Leader of a site with one analyzer that steers.
type Sole struct{}

// Lead implements Leader.
func (Sole) Lead(context.Context) (leads bool, recorded []Action, shared bool, err error) {
	return true, nil, false, nil
}

// Record implements Leader.
func (Sole) Record(context.Context, []Action) error { return nil }

// errNotLeader is the error of Record when another analyzer has taken the lease.
var errNotLeader = errors.New("another analyzer has taken the lease")

// LeaseLeader is a Leader by a Lease of Kubernetes, whose note has the actions. Each change of the note has the version of the
// lease as its precondition, so that of two analyzers that begin the same action only one records it.
type LeaseLeader struct {
	lease *lease.Lease
	epoch uint64 // of the lease, as it was seen last
}

// NewLeaseLeader returns a Leader by a lease. identity is the name of this process, which no other has. mono returns a
// monotonic time.
func NewLeaseLeader(api *kubeapi.Client, namespace, name, identity string, mono func() time.Duration) *LeaseLeader {
	return &LeaseLeader{lease: lease.New(api, namespace, name, identity, mono)}
}

// newIdentity returns a name for this process that no other has.
func newIdentity() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	host, _ := os.Hostname()
	return host + "-" + hex.EncodeToString(b[:])
}

// Lead implements Leader. It takes a lease that is free.
func (l *LeaseLeader) Lead(ctx context.Context) (leads bool, recorded []Action, shared bool, err error) {
	s, note, err := l.lease.HoldWithNote(ctx, lease.Request{Epoch: l.epoch, Take: true}, nil)
	if err != nil {
		return false, nil, true, err
	}
	l.epoch = s.Epoch
	if note != "" {
		if err := json.Unmarshal([]byte(note), &recorded); err != nil {
			return false, nil, true, fmt.Errorf("the lease's note: a list of actions is expected: %w", err)
		}
	}
	return s.Held, recorded, true, nil
}

// maxRecorded bounds the actions in the note, the newest ones. At two an hour it holds a week.
const maxRecorded = 400

// Record implements Leader.
func (l *LeaseLeader) Record(ctx context.Context, all []Action) error {
	b, err := json.Marshal(all[max(0, len(all)-maxRecorded):])
	if err != nil {
		return err
	}
	note := string(b)
	s, _, err := l.lease.HoldWithNote(ctx, lease.Request{Epoch: l.epoch}, &note)
	if err == nil && !s.Held {
		err = errNotLeader
	}
	return err
}

// merge returns the actions of this analyzer and of all leaders. Where a record is shared, an own action that is not done and
// not in the record was never begun, and is dropped.
func merge(own, recorded []Action, shared bool) []Action {
	if !shared {
		return own
	}
	same := func(a *Action) func(Action) bool {
		return func(b Action) bool { return a.ID == b.ID && a.Node == b.Node }
	}
	out := slices.Clone(recorded)
	for i := range own {
		switch at := slices.IndexFunc(out, same(&own[i])); {
		case at >= 0:
			out[at].Done = out[at].Done || own[i].Done
			if own[i].At.After(out[at].At) {
				out[at].At = own[i].At
			}
		case own[i].Done:
			out = append(out, own[i])
		}
	}
	slices.SortStableFunc(out, func(a, b Action) int { return a.At.Compare(b.At) })
	return out
}
