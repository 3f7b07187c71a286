package packets

// event is an actor's time to act. Of two at the same time the one that was given
// first comes first.
type event struct {
	at    int64
	order uint64
	actor Actor
}

func (e *event) comesBefore(o *event) bool { return e.at < o.at || e.at == o.at && e.order < o.order }

// queue is a heap of events, four below each.
type queue struct {
	events []event
	given  uint64
}

func (q *queue) len() int         { return len(q.events) }
func (q *queue) firstTime() int64 { return q.events[0].at }

func (q *queue) push(at int64, a Actor) {
	q.given++
	q.events = append(q.events, event{at, q.given, a})
	h := q.events
	e := h[len(h)-1]
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !e.comesBefore(&h[up]) {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = e
}

func (q *queue) pop() (int64, Actor) {
	h := q.events
	top, e := h[0], h[len(h)-1]
	h[len(h)-1] = event{}
	h = h[:len(h)-1]
	q.events = h
	if len(h) == 0 {
		return top.at, top.actor
	}
	i := 0
	for {
		low := 4*i + 1
		if low >= len(h) {
			break
		}
		for c := low + 1; c < min(4*i+5, len(h)); c++ {
			if h[c].comesBefore(&h[low]) {
				low = c
			}
		}
		if !h[low].comesBefore(&e) {
			break
		}
		h[i] = h[low]
		i = low
	}
	h[i] = e
	return top.at, top.actor
}
