// Package nvsentinel passes events on to NVSentinel's platform connector, for sites that run NVSentinel: to it, Graylink
// is one more health monitor of the node.
//
// Rules:
//
//  1. Offer never waits. Events wait in a queue of a limited length; if it is full, the oldest is dropped and counted,
//     as the newest have the present state.
//  2. Events are sent in the order in which they were offered.
//  3. What cannot be sent is tried again, for ever and ever more slowly: a connector that restarts misses nothing as long
//     as the queue suffices. An answer that is lost means that the connector gets its events twice.
//  4. Only events that the connector reports as invalid are dropped and counted.
//  5. When the context ends, what is left is tried once more, and what then is left is counted as dropped.
package nvsentinel

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/graylink/graylink/internal/nichealth"
	"github.com/graylink/graylink/internal/nvsentinel/datamodels"
)

// Version is the one of the messages that NVSentinel's monitors send.
const Version = 1

// maxBatch is how many events a request has at most.
const maxBatch = 100

// Config configures the connector. Only Socket has no default.
type Config struct {
	// Socket is the path of the platform connector's socket on this node.
	Socket string `yaml:"socket"`
	// Queue is how many events may wait. Default 1000.
	Queue int `yaml:"queue"`
	// Timeout is for one request. Default 10 s.
	Timeout time.Duration `yaml:"timeout"`
	// BackoffMin and BackoffMax are the first and the longest time between attempts. Default 1 s and 1 min.
	BackoffMin time.Duration `yaml:"backoff_min"`
	BackoffMax time.Duration `yaml:"backoff_max"`
	// StoreOnly requests that NVSentinel keep the events and take no action in the cluster because of them.
	StoreOnly bool `yaml:"store_only"`
}

func (c Config) withDefaults() Config {
	if c.Queue == 0 {
		c.Queue = 1000
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	if c.BackoffMin == 0 {
		c.BackoffMin = time.Second
	}
	if c.BackoffMax == 0 {
		c.BackoffMax = max(time.Minute, c.BackoffMin)
	}
	return c
}

// Validate returns an error that names the wrong field and the reason.
func (c Config) Validate() error {
	switch d := c.withDefaults(); {
	case c.Socket == "":
		return errors.New("socket: must be given")
	case !filepath.IsAbs(c.Socket):
		return fmt.Errorf("socket: %q: must be an absolute path", c.Socket)
	case d.Queue < 0:
		return fmt.Errorf("queue: %d: must not be negative", c.Queue)
	case d.Timeout < 0:
		return fmt.Errorf("timeout: %v: must not be negative", c.Timeout)
	case d.BackoffMin < 0:
		return fmt.Errorf("backoff_min: %v: must not be negative", c.BackoffMin)
	case d.BackoffMax < d.BackoffMin:
		return fmt.Errorf("backoff_max: %v: must not be less than backoff_min, %v", d.BackoffMax, d.BackoffMin)
	}
	return nil
}

// Stats are counts of events, but for Failures.
type Stats struct {
	// Sent were taken by the connector.
	Sent uint64
	// Dropped did not fit the queue, or were left at the end.
	Dropped uint64
	// Rejected were invalid to the connector.
	Rejected uint64
	// Failures are requests that failed, and were or will be tried again.
	Failures uint64
	// Queued wait.
	Queued int
}

// Sink sends events to a platform connector. Use New.
type Sink struct {
	cfg   Config
	conn  *grpc.ClientConn
	pc    datamodels.PlatformConnectorClient
	sleep func(context.Context, time.Duration) error
	wake  chan struct{}

	mu    sync.Mutex
	queue []*datamodels.HealthEvent
	// first is the number of the event at the queue's head, so that Run knows after sending which of its events were
	// dropped meanwhile.
	first uint64
	stats Stats
}

// New makes a sink. It connects when there is something to send.
func New(cfg Config) (*Sink, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	conn, err := grpc.NewClient("unix://"+cfg.Socket,
		// The permissions of the socket's file limit who may connect.
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: cfg.BackoffMin, Multiplier: 2, Jitter: 0.2, MaxDelay: cfg.BackoffMax},
			MinConnectTimeout: cfg.Timeout,
		}))
	if err != nil {
		return nil, fmt.Errorf("platform connector: %w", err)
	}
	return &Sink{cfg: cfg, conn: conn, pc: datamodels.NewPlatformConnectorClient(conn), sleep: sleepContext, wake: make(chan struct{}, 1)}, nil
}

// Offer queues an event. False: the queue was full, and another one has been dropped for it.
func (s *Sink) Offer(e nichealth.Event) bool {
	event := ConvertEvent(e, s.cfg.StoreOnly)
	s.mu.Lock()
	defer s.mu.Unlock()
	full := len(s.queue) >= s.cfg.Queue
	if full {
		s.queue[0] = nil
		s.queue = s.queue[1:]
		s.first++
		s.stats.Dropped++
	}
	s.queue = append(s.queue, event)
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return !full
}

// Stats returns the counts up to now.
func (s *Sink) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	stats.Queued = len(s.queue)
	return stats
}

// Run sends until the context ends, and returns its error. It closes the connection: a sink runs once.
func (s *Sink) Run(ctx context.Context) error {
	defer s.conn.Close()
	defer s.drainQueue()
	wait := s.cfg.BackoffMin
	single := 0 // how many events to send one by one
	for {
		size := maxBatch
		if single > 0 {
			size = 1
		}
		batch, first := s.oldestBatch(size)
		if len(batch) == 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-s.wake:
				continue
			}
		}
		err := s.sendBatch(ctx, batch)
		switch {
		case ctx.Err() != nil:
			if err == nil {
				s.removeHandled(first, len(batch), func(st *Stats, n uint64) { st.Sent += n })
			}
			return ctx.Err()
		case err == nil:
			s.removeHandled(first, len(batch), func(st *Stats, n uint64) { st.Sent += n })
			wait, single = s.cfg.BackoffMin, max(0, single-1)
		case status.Code(err) == codes.InvalidArgument && len(batch) > 1:
			// Some of them are invalid, and the others are not lost for it.
			single = len(batch)
		case status.Code(err) == codes.InvalidArgument:
			s.removeHandled(first, 1, func(st *Stats, n uint64) { st.Rejected += n })
			wait, single = s.cfg.BackoffMin, max(0, single-1)
		default:
			s.mu.Lock()
			s.stats.Failures++
			s.mu.Unlock()
			// Nodes whose connectors were restarted together shall not come back together.
			if err := s.sleep(ctx, wait/2+rand.N(wait/2+1)); err != nil {
				return err
			}
			wait = min(2*wait, s.cfg.BackoffMax)
		}
	}
}

// oldestBatch returns the oldest events, and the number of the first one.
func (s *Sink) oldestBatch(n int) ([]*datamodels.HealthEvent, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A copy, as Offer changes the queue.
	return append([]*datamodels.HealthEvent(nil), s.queue[:min(n, len(s.queue))]...), s.first
}

// removeHandled takes events off the queue that have been dealt with. Some may have been dropped as too old in the meantime:
// they have been counted, and are not counted again.
func (s *Sink) removeHandled(first uint64, n int, count func(*Stats, uint64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := n - int(min(s.first-first, uint64(n)))
	clear(s.queue[:left])
	s.queue = s.queue[left:]
	s.first += uint64(left)
	count(&s.stats, uint64(left))
}

func (s *Sink) sendBatch(ctx context.Context, batch []*datamodels.HealthEvent) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	_, err := s.pc.HealthEventOccurredV1(ctx, &datamodels.HealthEvents{Version: Version, Events: batch})
	return err
}

// drainQueue tries once to send what is left, and counts the rest as dropped: rule 5.
func (s *Sink) drainQueue() {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Timeout)
	defer cancel()
	for {
		batch, first := s.oldestBatch(maxBatch)
		if len(batch) == 0 {
			return
		}
		if err := s.sendBatch(ctx, batch); err != nil {
			break
		}
		s.removeHandled(first, len(batch), func(st *Stats, n uint64) { st.Sent += n })
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Dropped += uint64(len(s.queue))
	s.first += uint64(len(s.queue))
	s.queue = nil
}

func sleepContext(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// ConvertEvent makes NVSentinel's event of one of ours. Strings become valid UTF-8, as the protocol's must be.
func ConvertEvent(e nichealth.Event, storeOnly bool) *datamodels.HealthEvent {
	out := &datamodels.HealthEvent{
		Version:            Version,
		Agent:              validUTF8(e.Agent),
		ComponentClass:     validUTF8(e.ComponentClass),
		CheckName:          validUTF8(e.CheckName),
		IsFatal:            e.IsFatal,
		IsHealthy:          e.IsHealthy,
		Message:            validUTF8(e.Message),
		RecommendedAction:  convertAction(e.RecommendedAction),
		GeneratedTimestamp: timestamppb.New(e.GeneratedTimestamp),
		NodeName:           validUTF8(e.NodeName),
	}
	for _, code := range e.ErrorCode {
		out.ErrorCode = append(out.ErrorCode, validUTF8(code))
	}
	for _, entity := range e.EntitiesImpacted {
		out.EntitiesImpacted = append(out.EntitiesImpacted, &datamodels.Entity{EntityType: validUTF8(string(entity.Type)), EntityValue: validUTF8(entity.Value)})
	}
	if storeOnly {
		out.ProcessingStrategy = datamodels.ProcessingStrategy_STORE_ONLY
	}
	return out
}

func convertAction(a nichealth.Action) datamodels.RecommendedAction {
	switch a {
	case nichealth.ActionNone:
		return datamodels.RecommendedAction_NONE
	case nichealth.ActionContactSupport:
		return datamodels.RecommendedAction_CONTACT_SUPPORT
	case nichealth.ActionRestartVM:
		return datamodels.RecommendedAction_RESTART_VM
	case nichealth.ActionReplaceVM:
		return datamodels.RecommendedAction_REPLACE_VM
	}
	return datamodels.RecommendedAction_UNKNOWN
}

func validUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
