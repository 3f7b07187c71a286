package ufm

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
)

// EventLog determines which events are new, over failures and restarts of UFM and of this program.
//
// The rules:
//
//  1. The events of the first list are not new, because they are older than the log. A log that
//     was read from a state file has had its first list.
//  2. UFM's numbers begin again when a standby takes over: an event is identified by its
//     number, type, object, text and second together.
//  3. An event stays remembered when it is no longer listed: a UFM that starts may
//     list none for a while, and then all.
//  4. The memory is bounded: it holds the events of the last list and, before
//     it, as many as Limit says, those first listed last.
type EventLog struct {
	// Limit is the number of events that are remembered beyond those of the last list; 0 means 20,000.
	Limit int

	lastListed map[eventKey]uint64 // the number of the list that had the event last
	listCount  uint64
}

// eventKey is the beginning of a SHA-256 of an event's identity.
type eventKey [16]byte

// defaultRemembered is more than twice the number of events that UFM keeps in its default configuration.
const defaultRemembered = 20_000

// identityKey returns the key of an event. It leaves out the fraction of the second, which 6.12 writes and 6.24
// does not.
func (e *Event) identityKey() eventKey {
	second, _, _ := strings.Cut(e.Written, ".")
	h := sha256.New()
	for _, s := range []string{e.ID, e.Code, e.Object, e.Description, second} {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(s)))
		h.Write(size[:])
		h.Write([]byte(s))
	}
	return eventKey(h.Sum(nil)[:16])
}

// NewEvents returns the events that were in no list before, oldest first, each once. They remain new until
// RememberEvents is called.
func (l *EventLog) NewEvents(all []Event) []Event {
	if l.lastListed == nil {
		return nil
	}
	var out []Event
	twice := map[eventKey]bool{}
	for _, e := range all {
		k := e.identityKey()
		if _, known := l.lastListed[k]; !known && !twice[k] {
			twice[k] = true
			out = append(out, e)
		}
	}
	slices.SortStableFunc(out, func(a, b Event) int { return a.At.Compare(b.At) })
	return out
}

// RememberEvents remembers the events of a list, or a part of them.
func (l *EventLog) RememberEvents(all []Event) {
	if l.lastListed == nil {
		l.lastListed = map[eventKey]uint64{}
	}
	l.listCount++
	for _, e := range all {
		l.lastListed[e.identityKey()] = l.listCount
	}
	limit := l.Limit
	if limit == 0 {
		limit = defaultRemembered
	}
	if len(l.lastListed) > limit+limit/4+len(all) {
		for _, k := range l.keysByAge()[:len(l.lastListed)-limit-len(all)] {
			delete(l.lastListed, k)
		}
	}
}

// ConsumeNew returns the new events, as NewEvents does, and remembers the list.
func (l *EventLog) ConsumeNew(all []Event) []Event {
	out := l.NewEvents(all)
	l.RememberEvents(all)
	return out
}

// keysByAge returns the keys in the order in which they were last listed, oldest first.
func (l *EventLog) keysByAge() []eventKey {
	keys := make([]eventKey, 0, len(l.lastListed))
	for k := range l.lastListed {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b eventKey) int {
		if c := cmp.Compare(l.lastListed[a], l.lastListed[b]); c != 0 {
			return c
		}
		return slices.Compare(a[:], b[:])
	})
	return keys
}

// clone returns an independent copy.
func (l *EventLog) clone() EventLog {
	out := EventLog{Limit: l.Limit, listCount: l.listCount}
	if l.lastListed != nil {
		out.lastListed = make(map[eventKey]uint64, len(l.lastListed))
		for k, n := range l.lastListed {
			out.lastListed[k] = n
		}
	}
	return out
}

// AlarmLog determines which alarms were raised and which are over. An alarm is a condition of an object: one
// that UFM raises again under another number is the same.
type AlarmLog struct {
	open map[alarmKey]Alarm
}

type alarmKey struct{ code, name, object string }

func (a *Alarm) identityKey() alarmKey { return alarmKey{a.Code, a.Name, a.Object} }

// maxAlarms bounds the number of alarms that are remembered.
const maxAlarms = 10_000

// RaisedAndCleared returns the alarms of a list that were not open before, oldest first, and those that were
// open and are not in it. Both remain so until UpdateOpen is called.
func (l *AlarmLog) RaisedAndCleared(all []Alarm) (raised, over []Alarm) {
	now := map[alarmKey]bool{}
	for _, a := range all {
		k := a.identityKey()
		if now[k] {
			continue
		}
		now[k] = true
		if _, open := l.open[k]; !open {
			raised = append(raised, a)
		}
	}
	for k, a := range l.open {
		if !now[k] {
			over = append(over, a)
		}
	}
	order := func(a, b Alarm) int {
		if c := a.At.Compare(b.At); c != 0 {
			return c
		}
		return strings.Compare(a.Code+a.Name+a.Object, b.Code+b.Name+b.Object)
	}
	slices.SortFunc(raised, order)
	slices.SortFunc(over, order)
	if room := max(0, maxAlarms-len(l.open)); len(raised) > room {
		raised = raised[:room]
	}
	return raised, over
}

// UpdateOpen remembers the raised alarms as open, and forgets those that are over.
func (l *AlarmLog) UpdateOpen(raised, over []Alarm) {
	if l.open == nil {
		l.open = map[alarmKey]Alarm{}
	}
	for _, a := range over {
		delete(l.open, a.identityKey())
	}
	for _, a := range raised {
		l.open[a.identityKey()] = a
	}
}
