package client

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
)

type reportedTrace struct {
	fingerprint string
	at          time.Time
}

// pathReporter knows what the coordinator has of the agent's interfaces and traces.
type pathReporter struct {
	interfaces []*agentapi.Interface
	reported   map[string]reportedTrace
	version    uint64 // version of the traces that were sent
	resend     bool
}

// beginSession makes the reporter send again what the session before may have lost. Traces changed
// while there was no session.
func (r *pathReporter) beginSession(now time.Time) {
	lost := now.Add(-resendWithin)
	for e, t := range r.reported {
		if t.at.After(lost) {
			delete(r.reported, e)
		}
	}
	r.resend = true
}

// forgetTraces makes the reporter send all traces again.
func (r *pathReporter) forgetTraces() {
	clear(r.reported)
	r.resend = true
}

// sendInterfaces sends the interfaces if they have changed.
func (r *pathReporter) sendInterfaces(stream agentapi.Agents_SessionClient, in []*agentapi.Interface) error {
	if slices.EqualFunc(in, r.interfaces, func(a, b *agentapi.Interface) bool { return proto.Equal(a, b) }) {
		return nil
	}
	r.interfaces = in
	return sendMessage(stream, &agentapi.AgentMessage{Body: &agentapi.AgentMessage_Addresses{Addresses: &agentapi.Addresses{Interfaces: in}}})
}

// sendTraces sends the traces that have changed.
func (r *pathReporter) sendTraces(stream agentapi.Agents_SessionClient, version uint64, traces []fabric.Trace) error {
	if version == r.version && !r.resend {
		return nil
	}
	for len(traces) > 0 {
		part := &agentapi.PathReport{}
		for len(traces) > 0 && len(part.Traces) < tracesPerReport {
			t := traces[0]
			traces = traces[1:]
			f := pathFingerprint(t)
			if r.reported[t.Edge].fingerprint == f {
				continue
			}
			r.reported[t.Edge] = reportedTrace{f, time.Now()}
			part.Traces = append(part.Traces, traceMessage(t))
		}
		if len(part.Traces) == 0 {
			continue
		}
		if err := sendMessage(stream, &agentapi.AgentMessage{Body: &agentapi.AgentMessage_Paths{Paths: part}}); err != nil {
			return err
		}
	}
	r.version, r.resend = version, false
	return nil
}

// clockQueue passes clock reports to a session, or to a clock link. Its fields may be used from any goroutine.
type clockQueue struct {
	reports       chan *agentapi.ClockReport // buffers one report
	connected     atomic.Bool                // there is a session that accepts reports
	sent, dropped atomic.Uint64
}

// add queues a report, which is never changed, and reports whether there is room.
func (q *clockQueue) add(r *agentapi.ClockReport) bool {
	if !q.connected.Load() {
		return false
	}
	select {
	case q.reports <- r:
		return true
	default:
		return false
	}
}

// endSession drops the report that waits: it belongs to a time that is over when the next session
// begins.
func (q *clockQueue) endSession() {
	q.connected.Store(false)
	select {
	case <-q.reports:
		q.dropped.Add(1)
	default:
	}
}

// sendMessage sends a message. Its error does not state why the stream broke: the receiver gets the
// reason, and ends the session with it.
func sendMessage(stream agentapi.Agents_SessionClient, m *agentapi.AgentMessage) error {
	if err := stream.Send(m); err != nil {
		return fmt.Errorf("the stream broke: %w", err)
	}
	return nil
}

// pathFingerprint returns a text that changes when the path of a trace does.
func pathFingerprint(t fabric.Trace) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %t %t %s", t.State, t.Reached, t.Balanced, t.Carrier)
	for _, h := range t.Hops {
		fmt.Fprintf(&b, " %d %s", h.TTL, h.Address)
	}
	return b.String()
}

func traceMessage(t fabric.Trace) *agentapi.Trace {
	out := &agentapi.Trace{Edge: t.Edge, TracedAtUnixNs: t.TracedAt.UnixNano(), Reached: t.Reached, Balanced: t.Balanced}
	if t.Carrier.IsValid() {
		out.Carrier = t.Carrier.AsSlice()
	}
	switch t.State {
	case fabric.PathValid:
		out.State = agentapi.PathState_PATH_STATE_VALID
	case fabric.PathStale:
		out.State = agentapi.PathState_PATH_STATE_STALE
	}
	for i, h := range t.Hops {
		if i == agentapi.MaxHops {
			break
		}
		m := &agentapi.Hop{Ttl: uint32(h.TTL)}
		if h.Address.IsValid() {
			m.Address = h.Address.AsSlice()
		}
		if h.RTTNS != nil && *h.RTTNS > 0 {
			m.RttNs = uint64(*h.RTTNS)
		}
		out.Hops = append(out.Hops, m)
	}
	return out
}
