// Package gnmi keeps switches subscribed by gNMI and holds their series.
//
//  1. A session first requests Capabilities, and subscribes with an encoding that both
//     sides know.
//  2. A session that ends is restarted after a wait that doubles, half of it
//     random.
//  3. Messages wait in a queue of a fixed size. While it is full the session does not
//     read, which slows the switch down; after QueueWait a message is dropped and
//     counted. Where changes are subscribed to, a new subscription follows.
//  4. A sample that did not arrive for three intervals is absent. What is sent on change
//     is absent while there is no session.
//  5. A target's series depend on its own messages only, in their order.
//
// Switches that connect by themselves have rules of their own (dialout.go).
//
// gnmic's library parses paths, builds the requests, and is the target that connects and
// requests Capabilities. Its subscriptions are not used, because they restart by themselves
// and lose errors (docs/adr/0017-named-packages.md).
package gnmi

import (
	"context"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"sync"
	"time"

	gpb "github.com/openconfig/gnmi/proto/gnmi"

	"github.com/graylink/graylink/internal/gnmi/preset"
	"github.com/graylink/graylink/internal/pki"
)

// message is a notification on its way to its decoder, or the end of a session.
type message struct {
	session *session
	body    *gpb.Notification
	at      time.Time
	stream  uint32 // of a switch that publishes, otherwise 0
}

// Agent runs the sessions of all targets.
type Agent struct {
	config    Config
	preset    *preset.Preset
	tree      *preset.Tree
	requests  []*request
	poll      *gpb.SubscribeRequest // requests everything once more
	encodings []gpb.Encoding
	mode      gpb.SubscriptionList_Mode
	onChange  bool           // changes are subscribed to
	queues    []chan message // one for each decoder; a target always has the same one
	dial      dialer
	dialOut   *dialOut // nil if switches do not connect by themselves
	files     *pki.Watch
	ctx       context.Context
	stop      context.CancelFunc
	readers   sync.WaitGroup
	decoders  sync.WaitGroup

	mu       sync.Mutex
	sessions []*session
}

// dialer dials a switch; nil means by TCP.
type dialer func(ctx context.Context, address string) (net.Conn, error)

// Start starts the subscriptions. It does not wait for any switch.
func Start(config Config, log *slog.Logger) (*Agent, error) { return startWithDialer(config, log, nil) }

func startWithDialer(config Config, log *slog.Logger, dial dialer) (*Agent, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	rules, err := config.allRules()
	if err != nil {
		return nil, err
	}
	a := &Agent{config: config, dial: dial, preset: preset.ByName(config.Preset), mode: gpb.SubscriptionList_STREAM, files: pki.NewWatch(config.certificates()...)}
	if a.tree, err = preset.CompileRules(rules); err != nil {
		return nil, err
	}
	switch config.Mode {
	case "once":
		a.mode = gpb.SubscriptionList_ONCE
	case "poll":
		a.mode = gpb.SubscriptionList_POLL
	default:
		a.onChange = slices.ContainsFunc(rules, func(r preset.Rule) bool { return r.OnChange })
	}
	names := a.preset.Encodings
	if config.Encoding != "" {
		names = []string{config.Encoding}
	}
	for _, n := range names {
		a.encodings = append(a.encodings, gpb.Encoding(gpb.Encoding_value[n]))
	}
	if err := a.buildRequests(rules); err != nil {
		return nil, err
	}
	workers := max(1, min(runtime.GOMAXPROCS(0), config.targetLimit(), config.Queue))
	for range workers {
		a.queues = append(a.queues, make(chan message, config.Queue/workers))
	}
	for _, t := range config.Targets {
		a.addTarget(t.switchName(), t.Address, nil, log)
	}
	if config.DialOut.Listen != "" {
		if err := a.listenDialOut(log); err != nil {
			return nil, err
		}
	}
	a.ctx, a.stop = context.WithCancel(context.Background())
	for _, q := range a.queues {
		a.decoders.Go(func() {
			for m := range q {
				m.session.store.applyNotification(m, m.at)
			}
		})
	}
	for _, s := range a.sessions {
		a.readers.Go(func() { s.run(a.ctx) })
	}
	if a.dialOut != nil {
		a.dialOut.serveConnections()
	}
	return a, nil
}

// addTarget adds a target. It returns nil if another one has its name.
func (a *Agent) addTarget(name, address string, place *offerSlot, log *slog.Logger) *session {
	a.mu.Lock()
	defer a.mu.Unlock()
	if slices.ContainsFunc(a.sessions, func(s *session) bool { return s.name == name }) {
		return nil
	}
	s := &session{agent: a, name: name, address: address, offerSlot: place, store: newStore(a.tree, a.onChange, a.config.MaxSeries), log: log,
		queue: a.queues[len(a.sessions)%len(a.queues)]}
	a.sessions = append(a.sessions, s)
	return s
}

// snapshotSessions returns the current sessions.
func (a *Agent) snapshotSessions() []*session {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.sessions)
}

// Close ends all sessions and waits for them.
func (a *Agent) Close() error {
	a.stop()
	if a.dialOut != nil {
		a.dialOut.close()
	}
	a.readers.Wait()
	for _, q := range a.queues {
		close(q)
	}
	a.decoders.Wait()
	return nil
}

// Expiries implements pki.Source: it lists the certificates of the connections with switches, either way.
func (a *Agent) Expiries() []pki.Expiry { return a.files.Expiries() }

// enqueueMessage passes a message to its decoder, or drops it after QueueWait.
func (a *Agent) enqueueMessage(ctx context.Context, m message) (dropped bool, err error) {
	q := m.session.queue
	select {
	case q <- m:
		return false, nil
	default:
	}
	timer := time.NewTimer(a.config.QueueWait)
	defer timer.Stop()
	select {
	case q <- m:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	case <-timer.C:
		m.session.drops.Add(uint64(len(m.body.GetUpdate())))
		return true, nil
	}
}

// The families about the subscriptions; their only other label is kind.
var (
	familyUp = &preset.Family{Name: "graylink_gnmi_target_up", Help: "Whether the switch is subscribed to and has sent something.", Kind: preset.Gauge}

	familyAge              = &preset.Family{Name: "graylink_gnmi_sample_age_seconds", Help: "Time since the switch's last message.", Kind: preset.Gauge}
	familySync             = &preset.Family{Name: "graylink_gnmi_sync_seconds", Help: "Duration of the initial update of the last subscription.", Kind: preset.Gauge}
	familySeries           = &preset.Family{Name: "graylink_gnmi_series", Help: "Number of known series of the switch.", Kind: preset.Gauge}
	familyUnplaced         = &preset.Family{Name: "graylink_gnmi_unplaced_series", Help: "Number of series of components whose port is unknown.", Kind: preset.Gauge}
	familyUnplacedSessions = &preset.Family{Name: "graylink_gnmi_unplaced_sessions", Help: "Number of BGP and BFD sessions whose port is unknown.", Kind: preset.Gauge}
	familyConnects         = &preset.Family{Name: "graylink_gnmi_connects_total", Help: "Number of sessions started.", Kind: preset.Counter}
	familyErrors           = &preset.Family{Name: "graylink_gnmi_errors_total", Help: "Number of sessions that ended, and of invalid values, by kind of error.", Kind: preset.Counter, Labels: []string{"kind"}}
	familyUpdates          = &preset.Family{Name: "graylink_gnmi_updates_total", Help: "Number of decoded updates.", Kind: preset.Counter}
	familySamples          = &preset.Family{Name: "graylink_gnmi_samples_total", Help: "Number of samples made of updates.", Kind: preset.Counter}
	familyUnknown          = &preset.Family{Name: "graylink_gnmi_unknown_total", Help: "Number of updates, and members of JSON values, without a known path.", Kind: preset.Counter}
	familyAbsent           = &preset.Family{Name: "graylink_gnmi_absent_total", Help: "Number of values by which the switch reports that data is not available.", Kind: preset.Counter}
	familyDropped          = &preset.Family{Name: "graylink_gnmi_dropped_updates_total", Help: "Number of updates dropped because the queue was full.", Kind: preset.Counter}
	familyResets           = &preset.Family{Name: "graylink_gnmi_resets_total", Help: "Number of counter resets.", Kind: preset.Counter}
	familyQueue            = &preset.Family{Name: "graylink_gnmi_queue_messages", Help: "Number of messages that wait for the switch's decoder.", Kind: preset.Gauge}
)

// The families about switches that connect; they have no label switch.
var (
	familyDialOutConnections = &preset.Family{Name: "graylink_gnmi_dial_out_connections", Help: "Number of open connections made by switches.", Kind: preset.Gauge}
	familyDialOutStreams     = &preset.Family{Name: "graylink_gnmi_dial_out_streams", Help: "Number of open streams by which switches publish.", Kind: preset.Gauge}
	familyDialOutRefused     = &preset.Family{Name: "graylink_gnmi_dial_out_refused_total", Help: "Number of refusals to connecting switches, by kind.", Kind: preset.Counter, Labels: []string{"kind"}}
)

// OfSwitch reports whether a family's points have a switch.
func OfSwitch(f *preset.Family) bool {
	return f != familyDialOutConnections && f != familyDialOutStreams && f != familyDialOutRefused
}

// PointFamilies returns all families that points can have: the preset's vocabulary, and those about the
// subscriptions. A user's path may add others.
func PointFamilies() []*preset.Family {
	out := slices.DeleteFunc(slices.Clone(preset.Families), func(f *preset.Family) bool { return f.Kind == preset.Relation })
	return append(out, familyAbsent, familyAge, familyConnects, familyDialOutConnections, familyDialOutRefused, familyDialOutStreams, familyDropped, familyErrors, familyQueue, familyResets, familySamples, familySeries, familySync,
		familyUnknown, familyUnplaced, familyUnplacedSessions, familyUp, familyUpdates)
}

// CollectPoints returns the current points.
func (a *Agent) CollectPoints(now time.Time) []Point {
	var out []Point
	for _, s := range a.snapshotSessions() {
		before := len(out)
		var unplaced int
		out, unplaced = s.store.appendPoints(out, s.name, now, 3*a.config.Interval)
		count := len(out) - before
		say := func(f *preset.Family, v float64, labels ...string) {
			out = append(out, Point{Family: f, Switch: s.name, Values: labels, Value: v, At: now})
		}
		s.store.mu.Lock()
		c, full, resets, sampled := s.store.decoder.Counts, s.store.rejected, s.store.resets, s.store.sampled
		unplacedSessions := s.store.unplacedSessions
		s.store.mu.Unlock()
		up := 0.0
		if s.isUp(sampled, now) {
			up = 1
		}
		say(familyUp, up)
		if at := s.lastMessage.Load(); at > 0 {
			say(familyAge, max(0, now.Sub(time.Unix(0, at)).Seconds()))
		}
		if d := s.syncTook.Load(); d > 0 {
			say(familySync, time.Duration(d).Seconds())
		}
		say(familySeries, float64(count))
		say(familyUnplaced, float64(unplaced))
		if a.config.Sessions {
			say(familyUnplacedSessions, float64(unplacedSessions))
		}
		say(familyConnects, float64(s.connects.Load()))
		say(familyDropped, float64(s.drops.Load()))
		say(familyQueue, float64(len(s.queue)))
		for i, k := range kinds {
			say(familyErrors, float64(s.errs[i].Load()), k)
		}
		for _, e := range []struct {
			kind string
			n    uint64
		}{{"value", c.BadValues}, {"key", c.MissingKeys}, {"json", c.BadJSON}, {"time", c.BadTimes}, {"series_limit", full}} {
			say(familyErrors, float64(e.n), e.kind)
		}
		say(familyUpdates, float64(c.Updates))
		say(familySamples, float64(c.Samples))
		say(familyUnknown, float64(c.Unknown+c.MalformedUpdates))
		say(familyAbsent, float64(c.Absent))
		say(familyResets, float64(resets))
	}
	if d := a.dialOut; d != nil {
		out = append(out, Point{Family: familyDialOutConnections, Value: float64(d.connections.Load()), At: now},
			Point{Family: familyDialOutStreams, Value: float64(d.streams.Load()), At: now})
		for i, kind := range refusals {
			out = append(out, Point{Family: familyDialOutRefused, Values: []string{kind}, Value: float64(d.refused[i].Load()), At: now})
		}
	}
	return out
}
