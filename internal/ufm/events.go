package ufm

import "time"

// EventLog tells which events are new, over failures and restarts of UFM. The events
// of the first list are not: they were before we were.
type EventLog struct {
	seen map[eventKey]int // the list in which it was last
	list int
}

type eventKey struct {
	id, code, object string
	at               time.Time
}

// keepEvents is for how many lists an event is remembered that is not listed any
// more: a UFM that starts may list none for a while, and then all.
const keepEvents = 1000

// New are the events that were in no list before.
func (l *EventLog) New(all []Event) []Event {
	first := l.seen == nil
	if first {
		l.seen = map[eventKey]int{}
	}
	l.list++
	var out []Event
	for _, e := range all {
		k := eventKey{e.ID, e.Code, e.Object, e.At}
		if l.seen[k] == 0 && !first {
			out = append(out, e)
		}
		l.seen[k] = l.list
	}
	for k, n := range l.seen {
		if n+keepEvents < l.list {
			delete(l.seen, k)
		}
	}
	return out
}
