package ufm

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
)

// EventLog tells which events are new, over failures and restarts of UFM and of us.
//
// The rules:
//
//  1. The events of the first list are not new: they were before we were. A log that
//     was read from a state file has had its first list.
//  2. UFM's numbers begin again when a standby takes over: an event is known by its
//     number, type, object, text and second together.
//  3. An event stays remembered when it is not listed any more: a UFM that starts may
//     list none for a while, and then all.
//  4. What is remembered is bounded: the events of the last list, and as many before
//     it as Limit says, those first listed last.
type EventLog struct {
	// Limit is how many events are remembered beyond those of the last list; 0: 20,000.
	Limit int

	lastListed map[eventKey]uint64 // the list in which it was last
	listCount  uint64
}

// eventKey is the beginning of a SHA-256 of what an event is known by.
type eventKey [16]byte

// defaultRemembered is more than twice what UFM keeps of events in its default
// configuration.
const defaultRemembered = 20_000

// identityKey: the part of a second is not in it, which 6.12 writes and 6.24 does not.
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

// NewEvents are the events that were in no list before, the oldest first, each once. They
// stay fresh until Mark.
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

// ConsumeNew is Fresh, and marks the list.
func (l *EventLog) ConsumeNew(all []Event) []Event {
	out := l.NewEvents(all)
	l.RememberEvents(all)
	return out
}

// keysByAge are the keys, those that were listed longest ago first.
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

// clone is a log that knows the same and goes its own way.
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

// AlarmLog tells which alarms were raised and which are over. An alarm is a condition
// of an object: one that UFM raises again under another number is the same.
type AlarmLog struct {
	open map[alarmKey]Alarm
}

type alarmKey struct{ code, name, object string }

func (a *Alarm) identityKey() alarmKey { return alarmKey{a.Code, a.Name, a.Object} }

// maxAlarms bounds the alarms that are remembered.
const maxAlarms = 10_000

// RaisedAndCleared are the alarms of a list that were not open before, the oldest first, and
// those that were open and are not in it. Both stay so until Mark.
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

// UpdateOpen remembers alarms as open, and forgets those that are over.
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
