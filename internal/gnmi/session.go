package gnmi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	gpb "github.com/openconfig/gnmi/proto/gnmi"
	"github.com/openconfig/gnmic/pkg/api/target"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Kinds of errors, as they are counted.
const (
	kindConnect  = "connect"  // no connection, or no TLS
	kindAuth     = "auth"     // credentials that cannot be read, or were refused
	kindEncoding = "encoding" // the switch offers no known encoding
	kindRequest  = "request"  // the switch refused a path or a mode
	kindStream   = "stream"   // the stream broke
	kindStalled  = "stalled"  // no message for three intervals
	kindDropped  = "dropped"  // messages were dropped, and changes among them may be lost
)

var kinds = []string{kindAuth, kindConnect, kindDropped, kindEncoding, kindRequest, kindStalled, kindStream}

// failure is an error with its kind.
type failure struct {
	kind string
	err  error
}

func (f *failure) Error() string { return f.kind + ": " + f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// kindOf returns the kind of an error of a session.
func kindOf(err error) string {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.kind
	}
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied:
		return kindAuth
	case codes.InvalidArgument, codes.NotFound, codes.Unimplemented, codes.OutOfRange:
		return kindRequest
	}
	return kindStream
}

// maxMessage is the largest accepted message: a SONiC of 512 ports sends all counters as one value.
const maxMessage = 64 << 20

// session keeps one target subscribed.
type session struct {
	agent     *Agent
	name      string
	address   string     // its id if the target connects by itself
	offerSlot *offerSlot // the tunnel of such a target
	store     *store
	log       *slog.Logger
	queue     chan message

	subscribed  atomic.Bool
	lastMessage atomic.Int64 // when the last message arrived, ns since 1970; 0 means never
	syncTook    atomic.Int64 // ns from subscribing to the last sync
	connects    atomic.Uint64
	drops       atomic.Uint64 // updates
	errs        [8]atomic.Uint64

	streams    atomic.Uint32 // number of Publish streams so far
	publishing atomic.Int64  // Publish streams that have sent something
}

// isUp reports whether the switch sends what it should. One that publishes by itself is up while its samples
// arrive, because it has no subscription.
func (s *session) isUp(sampled, now time.Time) bool {
	c := &s.agent.config
	return s.subscribed.Load() || s.publishing.Load() > 0 && (sampled.IsZero() || now.Sub(sampled) <= max(3*c.Interval, c.Timeout))
}

// run runs sessions one after the other until ctx ends.
func (s *session) run(ctx context.Context) {
	wait := s.agent.config.BackoffMin
	for ctx.Err() == nil {
		var tunnel *offer
		if s.offerSlot != nil {
			var err error
			if tunnel, err = s.offerSlot.waitOffer(ctx); err != nil {
				return
			}
		}
		began := time.Now()
		err := s.runSession(ctx, tunnel)
		s.subscribed.Store(false)
		if ctx.Err() != nil {
			return
		}
		kind := kindOf(err)
		s.errs[slices.Index(kinds, kind)].Add(1)
		if time.Since(began) > s.agent.config.BackoffMax {
			wait = s.agent.config.BackoffMin
		}
		// Half of the wait is random, so that switches that restart together are not all subscribed to at once.
		pause := wait/2 + rand.N(wait/2+1)
		wait = min(2*wait, s.agent.config.BackoffMax)
		s.log.Warn("session with switch ended", "switch", s.name, "kind", kind, "err", err, "again_in", pause)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// runSession uses one connection, from Capabilities to the first error. tunnel is nil if the switch is dialled.
func (s *session) runSession(ctx context.Context, tunnel *offer) error {
	c := &s.agent.config
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	dial := s.agent.dial
	if tunnel != nil {
		dial = func(ctx context.Context, _ string) (net.Conn, error) { return tunnel.openSession(ctx) }
		var ended sync.WaitGroup
		defer ended.Wait()
		defer cancel(nil)
		ended.Go(func() {
			select {
			case <-tunnel.withdrawn:
				cancel(&failure{kindStream, errWithdrawn})
			case <-ctx.Done():
			}
		})
	}
	t, err := s.openTarget(ctx, dial)
	if err != nil {
		return err
	}
	defer t.Close()
	s.connects.Add(1)
	encoding, err := s.negotiateEncoding(ctx, t)
	if err != nil {
		return causeOr(ctx, err)
	}
	var wg sync.WaitGroup
	for _, request := range s.agent.requests {
		wg.Go(func() {
			if err := s.runSubscription(ctx, t.Client, request, encoding); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if c.Mode == "stream" {
		// Values sent on change are unknown, and absent until the next session. The end goes through the queue,
		// because messages of this session may still wait there.
		s.queue <- message{session: s}
	}
	return context.Cause(ctx)
}

// negotiateEncoding requests the switch's capabilities and chooses an encoding.
func (s *session) negotiateEncoding(ctx context.Context, t *target.Target) (gpb.Encoding, error) {
	ctx, cancel := context.WithTimeout(ctx, s.agent.config.Timeout)
	defer cancel()
	want := s.agent.encodings
	reply, err := t.Capabilities(ctx)
	switch status.Code(err) {
	case codes.OK:
	case codes.Unimplemented:
		return want[0], nil
	case codes.Unauthenticated, codes.PermissionDenied:
		return 0, &failure{kindAuth, err}
	default:
		return 0, &failure{kindConnect, err}
	}
	for _, e := range want {
		if slices.Contains(reply.GetSupportedEncodings(), e) {
			return e, nil
		}
	}
	return 0, &failure{kindEncoding, fmt.Errorf("the switch offers %v; one of %v is expected", reply.GetSupportedEncodings(), want)}
}

// runSubscription runs one subscription to its end.
func (s *session) runSubscription(ctx context.Context, client gpb.GNMIClient, r *request, encoding gpb.Encoding) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	interval := s.agent.config.Interval
	// A switch that stays connected and sends nothing is not up.
	stall := max(3*interval, s.agent.config.Timeout)
	watch := time.AfterFunc(stall, func() {
		cancel(&failure{kindStalled, fmt.Errorf("no message for %v", stall)})
	})
	defer watch.Stop()
	for {
		began := time.Now()
		stream, err := client.Subscribe(ctx)
		if err != nil {
			return causeOr(ctx, err)
		}
		if err := stream.Send(r.messages[encoding]); err != nil && !errors.Is(err, io.EOF) {
			return causeOr(ctx, err)
		}
		var polls sync.WaitGroup
		if s.agent.mode == gpb.SubscriptionList_POLL {
			polls.Go(func() { sendPolls(stream, s.agent.poll, interval) })
		} else if err := stream.CloseSend(); err != nil {
			return causeOr(ctx, err)
		}
		if err := s.receiveUpdates(ctx, stream, r, began, watch, stall); err != nil {
			err = causeOr(ctx, err)
			cancel(err)
			polls.Wait()
			return err
		}
		// ONCE is complete: the next one begins an interval after this one.
		if err := sleepContext(ctx, interval-time.Since(began)); err != nil {
			return causeOr(ctx, err)
		}
	}
}

// sendPolls requests everything at once, and then at every interval, until the stream ends.
func sendPolls(stream gpb.GNMI_SubscribeClient, poll *gpb.SubscribeRequest, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if stream.Send(poll) != nil {
			return // receiveUpdates gets the error
		}
		select {
		case <-stream.Context().Done():
			return
		case <-tick.C:
		}
	}
}

// causeOr returns the cause of ctx's end if that explains more than err.
func causeOr(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

func sleepContext(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// receiveUpdates reads a stream to its end. It returns nil when a ONCE subscription is complete.
func (s *session) receiveUpdates(ctx context.Context, stream gpb.GNMI_SubscribeClient, r *request, began time.Time, watch *time.Timer, stall time.Duration) error {
	for {
		reply, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && s.agent.mode == gpb.SubscriptionList_ONCE:
			return nil
		case errors.Is(err, io.EOF):
			return &failure{kindStream, errors.New("the switch ended the subscription")}
		case err != nil:
			return err
		}
		s.subscribed.Store(true)
		if r.samples {
			watch.Reset(stall)
		} else {
			watch.Stop()
		}
		if err := s.handleResponse(ctx, reply, 0, began); err != nil {
			return err
		}
	}
}

// handleResponse passes a message to its decoder. stream is its number where the switch has streams of its own.
func (s *session) handleResponse(ctx context.Context, reply *gpb.SubscribeResponse, stream uint32, began time.Time) error {
	now := time.Now()
	s.lastMessage.Store(now.UnixNano())
	switch x := reply.GetResponse().(type) {
	case *gpb.SubscribeResponse_Update:
		dropped, err := s.agent.enqueueMessage(ctx, message{s, x.Update, now, stream})
		if err != nil {
			return err
		}
		// A dropped change is not sent again.
		if dropped && s.agent.onChange {
			return &failure{kindDropped, errors.New("messages were dropped; subscribing again")}
		}
	case *gpb.SubscribeResponse_SyncResponse:
		s.syncTook.Store(int64(now.Sub(began)))
	case *gpb.SubscribeResponse_Error: //nolint:staticcheck // deprecated, and sent
		return &failure{kindRequest, errors.New(x.Error.GetMessage())} //nolint:staticcheck // as above
	}
	return nil
}
