package gnmi

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	gpb "github.com/openconfig/gnmi/proto/gnmi"
	"github.com/openconfig/gnmic/pkg/api/path"

	"github.com/graylink/graylink/internal/gnmi/preset"
)

func storeOf(t testing.TB, vendor string, max int) *store {
	t.Helper()
	tree, err := preset.CompileRules(preset.ByName(vendor).Rules)
	if err != nil {
		t.Fatal(err)
	}
	return newStore(tree, true, max)
}

// mustPath parses a path of this package's tests.
func mustPath(s string) *gpb.Path {
	p, err := path.ParsePath(s)
	if err != nil {
		panic(err)
	}
	return p
}

func path1(t testing.TB, s string) *gpb.Path {
	t.Helper()
	p, err := path.ParsePath(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func val(t testing.TB, p string, v any) *gpb.Update {
	t.Helper()
	x := &gpb.TypedValue{Value: &gpb.TypedValue_StringVal{StringVal: fmt.Sprint(v)}}
	return &gpb.Update{Path: path1(t, p), Val: x}
}

// say returns the points of a store, without the beginning of their names.
func say(s *store, now time.Time) (out []string, unplaced int) {
	points, unplaced := s.appendPoints(nil, "sw", now, 3*time.Second)
	for _, p := range points {
		out = append(out, fmt.Sprintf("%s{%s} %g", strings.TrimPrefix(p.Family.Name, "fabric_switch_port_"), strings.Join(p.Values, ","), p.Value))
	}
	slices.Sort(out)
	return out, unplaced
}

// TestStore covers series that arrive, leave, become stale, are reset, or belong to a component.
func TestStore(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	s := storeOf(t, "openconfig", 8)
	notify := func(after time.Duration, deletes []string, updates ...*gpb.Update) {
		n := &gpb.Notification{Timestamp: now.Add(after).UnixNano(), Update: updates}
		for _, d := range deletes {
			n.Delete = append(n.Delete, path1(t, d))
		}
		s.applyNotification(message{body: n}, now.Add(after))
	}
	check := func(what string, after time.Duration, unplaced int, want ...string) {
		t.Helper()
		if got, u := say(s, now.Add(after)); !slices.Equal(got, want) || u != unplaced {
			t.Errorf("%s: %q, %d unplaced; want %q, %d", what, got, u, want, unplaced)
		}
	}
	const c = "/components/component[name=x1]/state/temperature/instant"
	const e1, n1 = "/interfaces/interface[name=e1]/state/", "/lldp/interfaces/interface[name=e1]/neighbors/neighbor[id=1]/state/"
	notify(0, nil, val(t, e1+"counters/in-octets", 100), val(t, e1+"oper-status", "UP"), val(t, c, 41))
	check("a component without a port", 0, 1, "oper_up{e1} 1", "receive_bytes_total{e1} 100")
	notify(time.Second, nil, val(t, e1+"transceiver", "x1"), val(t, "/interfaces/interface[name=e2]/state/transceiver", "x1"))
	check("one of two ports", time.Second, 0, "module_temperature_celsius{e1} 41", "module_temperature_celsius{e2} 41", "oper_up{e1} 1", "receive_bytes_total{e1} 100")
	notify(2*time.Second, []string{"/interfaces/interface[name=e2]"}, val(t, e1+"counters/in-octets", 7))
	check("deleted, and reset", 2*time.Second, 0, "module_temperature_celsius{e1} 41", "oper_up{e1} 1", "receive_bytes_total{e1} 7")
	points, _ := s.appendPoints(nil, "sw", now, time.Hour)
	for _, p := range points {
		if p.Family.Kind == preset.Counter && !p.Since.Equal(now.Add(2*time.Second)) || s.resets != 1 {
			t.Errorf("%s counts since %v, %d resets", p.Family.Name, p.Since, s.resets)
		}
	}
	check("samples that are old", 6*time.Second, 0, "oper_up{e1} 1")
	notify(7*time.Second, nil, val(t, n1+"system-name", "spine1"))
	notify(7*time.Second, nil, val(t, n1+"port-id", "swp7"))
	check("a neighbour", 7*time.Second, 0, "neighbor_info{e1,spine1,swp7,} 1", "oper_up{e1} 1")
	notify(8*time.Second, []string{n1 + "port-id"}, val(t, n1+"system-name", "spine2"))
	check("another neighbour", 8*time.Second, 0, "neighbor_info{e1,spine2,,} 1", "oper_up{e1} 1")
	notify(9*time.Second, []string{"/lldp/interfaces/interface[name=e1]"})
	check("no neighbour", 9*time.Second, 0, "oper_up{e1} 1")
	s.applyNotification(message{}, now)
	check("no session", 9*time.Second, 0)
	for i := range 20 {
		notify(10*time.Second, nil, val(t, fmt.Sprintf("/interfaces/interface[name=p%d]/state/mtu", i), 1))
	}
	if got, _ := say(s, now.Add(10*time.Second)); len(s.all) != 8 || s.rejected != 20-uint64(len(got)) {
		t.Errorf("%d series of 8, %d without a place, %d published", len(s.all), s.rejected, len(got))
	}
}

// TestPolledStates checks that where nothing is sent on change, a state that is no longer sent is absent.
func TestPolledStates(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	s := storeOf(t, "openconfig", 8)
	s.onChange = false
	s.applyNotification(message{body: &gpb.Notification{Timestamp: now.UnixNano(), Update: []*gpb.Update{val(t, "/interfaces/interface[name=e1]/state/oper-status", "UP")}}}, now)
	if got, _ := say(s, now); len(got) != 1 {
		t.Errorf("%q", got)
	}
	if got, _ := say(s, now.Add(4*time.Second)); len(got) != 0 {
		t.Errorf("%q is there still", got)
	}
}

// TestQueue checks that a full queue first delays the session, then drops and counts messages, and that a
// session that lost changes is restarted.
func TestQueue(t *testing.T) {
	a := &Agent{config: Config{QueueWait: time.Millisecond}}
	s := &session{agent: a, queue: make(chan message, 2), log: slog.New(slog.DiscardHandler)}
	m := message{session: s, body: &gpb.Notification{Update: make([]*gpb.Update, 7)}}
	for i, want := range []uint64{0, 0, 7, 14} {
		if dropped, err := a.enqueueMessage(t.Context(), m); err != nil || s.drops.Load() != want || dropped != (want > 0) {
			t.Errorf("message %d: %v, %d updates dropped, dropped %v", i, err, s.drops.Load(), dropped)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	a.config.QueueWait = time.Hour
	if _, err := a.enqueueMessage(ctx, m); err == nil || s.drops.Load() != 14 {
		t.Errorf("%v, %d", err, s.drops.Load())
	}
	<-s.queue
	if _, err := a.enqueueMessage(t.Context(), m); err != nil || s.drops.Load() != 14 {
		t.Errorf("%v, %d", err, s.drops.Load())
	}
}
