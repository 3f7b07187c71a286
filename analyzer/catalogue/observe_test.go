package catalogue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/queuepair"
)

// pairLists are the lists of two nodes that have queue pairs with each other.
type pairLists struct {
	mu   sync.Mutex
	read int
	err  error
}

// QueuePairs implements Lister.
func (p *pairLists) QueuePairs(_ context.Context, node string) (*queuepair.Node, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.read++; p.err != nil {
		return nil, p.err
	}
	l := &queuepair.Node{Node: node, HostNamespace: true}
	for i := range uint32(4) {
		q := queuepair.QueuePair{Device: "eth1", Driver: "mlx5_core", Local: 100 + i, Remote: 900 + 3*i, Type: "rc", State: "rts", PID: 1}
		if node == "h2" {
			q.Local, q.Remote = q.Remote, q.Local
		}
		l.QueuePairs = append(l.QueuePairs, q)
	}
	return l, nil
}

// newObserverRig returns an observer of placements on the rig's fabric.
func newObserverRig(t *testing.T, placements ...jobs.Placement) (*rig, *Observer, *pairLists) {
	t.Helper()
	r, lists := newRig(t), &pairLists{}
	register := jobs.NewRegister(r.graph())
	register.ReplaceSource("f", placements)
	return r, NewObserver(r.Builder, lists, func() snapshot.Snapshot { return snapshot.Snapshot{Placed: register.MapAt(r.clock)} }), lists
}

var both = []string{"h1", "h2"}

// What passes soon, and what a client did not wait for, is not kept as an answer.
func TestUnfinishedAnswersAreNotKept(t *testing.T) {
	r, o, lists := newObserverRig(t, jobs.Placement{Job: "j", Nodes: both})
	q := Question{Job: "j", DSCP: 26}
	r.turn <- struct{}{}
	got, err := o.Observe(t.Context(), q)
	if err != nil || len(got.Reasons) != 1 || !strings.Contains(got.Reasons[0], ErrBusy.Error()) || o.Kept(q) != nil {
		t.Errorf("while a catalogue is built: %+v, %v", got, err)
	}
	<-r.turn
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := o.Observe(gone, q); !errors.Is(err, context.Canceled) || o.Kept(q) != nil {
		t.Errorf("a client that has gone: %v, kept %v", err, o.Kept(q))
	}
	o.turn <- struct{}{}
	if _, err := o.Observe(gone, q); !errors.Is(err, context.Canceled) {
		t.Errorf("a client that has gone while another job is observed: %v", err)
	}
	<-o.turn
	got, err = o.Observe(t.Context(), q)
	if err != nil || got.Observed == nil || got.Observed.BusbwGbps == nil || len(got.Reasons) != 0 || o.Kept(q) != got {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, x := range got.QueuePairs {
		if len(r.tracer.traced) == 0 || x.SPort == 0 || len(x.Links) != 4 {
			t.Errorf("%+v, want the four links of its path", x)
		}
	}
	lists.err = errors.New("no agent")
	r.clock = r.clock.Add(keepFor)
	if got, err = o.Observe(t.Context(), q); err != nil || len(got.Missing) != 2 || got.Observed.BusbwGbps != nil || o.Kept(q) != got {
		t.Errorf("without agents: %+v, %v", got, err)
	}
}

// TestWhyNothingIsFollowed: the answer says why where a job cannot be followed, and no agent is asked for packets.
func TestWhyNothingIsFollowed(t *testing.T) {
	_, o, _ := newObserverRig(t, jobs.Placement{Job: "twice", Nodes: both[:1]}, jobs.Placement{Job: "twice", Nodes: both[1:]},
		jobs.Placement{Job: "lost", Nodes: []string{"h1", "h9"}})
	for job, want := range map[string]string{"twice": "several jobs have the name twice, and no identifiers", "lost": "several jobs have the name twice"} {
		got, err := o.Observe(t.Context(), Question{Job: job})
		if err != nil || got.Observed != nil || !strings.Contains(strings.Join(got.Reasons, " "), want) {
			t.Errorf("%s: %+v, %v, want %s", job, got, err, want)
		}
	}
	_, o, _ = newObserverRig(t, jobs.Placement{Job: "lost", Nodes: []string{"h1", "h2", "h9"}})
	if got, err := o.Observe(t.Context(), Question{Job: "lost"}); err != nil || !strings.Contains(strings.Join(got.Reasons, " "), `the topology has no node "h9"`) {
		t.Errorf("%+v, %v", got, err)
	}
	many := append([]string{}, both...)
	for i := range maxNodes {
		many = append(many, fmt.Sprintf("x%d", i))
	}
	r, o, lists := newObserverRig(t, jobs.Placement{Job: "large", Nodes: many})
	got, err := o.Observe(t.Context(), Question{Job: "large"})
	if err != nil || !strings.Contains(strings.Join(got.Reasons, " "), "run on 258 nodes, and 256 at most are read") || lists.read != 0 || len(r.tracer.traced) != 0 {
		t.Errorf("%+v, %v, %d lists read", got, err, lists.read)
	}
	if _, err := o.Observe(t.Context(), Question{Job: "none"}); !errors.Is(err, ErrNoJob) {
		t.Errorf("%v", err)
	}
}

// A fabric that sprays has no paths, and the answer says what may be stated about it.
func TestObserveASprayingFabric(t *testing.T) {
	r, o, _ := newObserverRig(t, jobs.Placement{Job: "j", Nodes: both})
	r.tracer.marking = "unknown"
	got, err := o.Observe(t.Context(), Question{Job: "j", DSCP: 26})
	if err != nil || got.Observed.BusbwGbps != nil || !strings.Contains(strings.Join(got.Reasons, " "), "With adaptive_routing=off, they are known not to.") {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = o.Observe(t.Context(), Question{Job: "j", DSCP: 26, AdaptiveRouting: "off"})
	if err != nil || got.Observed.BusbwGbps == nil {
		t.Errorf("by the operator's statement: %+v, %v", got, err)
	}
}

// Run observes what is wanted, and nothing that is fresh. The oldest answers are forgotten.
func TestWantedJobsAreObserved(t *testing.T) {
	_, o, lists := newObserverRig(t, jobs.Placement{Job: "j", Nodes: both})
	ctx, cancel := context.WithCancel(t.Context())
	var runs sync.WaitGroup
	runs.Go(func() { o.Run(ctx) })
	q := Question{Job: "j", DSCP: 26}
	o.Want(q)
	o.Want(Question{Job: "none"})
	for end := time.Now().Add(2 * time.Minute); o.Kept(q) == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the job is not observed")
		}
	}
	cancel()
	runs.Wait()
	read := lists.read
	o.Want(q)
	if len(o.wanted) > 1 || lists.read != read {
		t.Error("a fresh answer is wanted again")
	}
	for i := range 2 * maxKept {
		o.keep(Question{Job: fmt.Sprint(i)}, &Running{At: time.Unix(int64(i), 0)})
	}
	if len(o.kept) != maxKept || o.Kept(Question{Job: "0"}) != nil || o.Kept(Question{Job: fmt.Sprint(2*maxKept - 1)}) == nil {
		t.Errorf("%d answers are kept", len(o.kept))
	}
}
