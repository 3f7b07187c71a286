package web

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// Limits of the streams of /events.
const (
	maxStreams = 256
	// retryStream is after how many seconds a client may try again that is one too many.
	retryStream = 60
	// heartbeat is how often something is sent, so that a client that has gone is noticed.
	heartbeat = 15 * time.Second
	// eventTimeout is the time in which a client has to take an event.
	eventTimeout = 10 * time.Second
)

// serveEvents answers /events with a stream that has an event for each change of the snapshot: the number of the change, and nothing
// else. It ends with the request.
func (h *Handler) serveEvents(w http.ResponseWriter, r *http.Request) {
	if h.streams.Add(1) > maxStreams {
		h.streams.Add(-1)
		w.Header().Set("Retry-After", strconv.Itoa(retryStream))
		http.Error(w, fmt.Sprintf("the limit of %d streams is reached", maxStreams), http.StatusServiceUnavailable)
		return
	}
	defer h.streams.Add(-1)
	head := w.Header()
	head.Set("Content-Type", "text/event-stream")
	head.Set("Cache-Control", "no-store")
	head.Set("X-Accel-Buffering", "no") // nginx passes events on at once
	version, changed := h.Changes.Watch()
	text := ": changes of the state follow\n\n"
	if last := r.Header.Get("Last-Event-Id"); last != "" && last != strconv.FormatUint(version, 10) {
		text = event(version)
	}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	controller := http.NewResponseController(w)
	for r.Method == http.MethodGet && sendEvent(w, controller, text) == nil {
		select {
		case <-r.Context().Done():
			return
		case <-beat.C:
			text = ":\n\n"
		case <-changed:
			version, changed = h.Changes.Watch()
			text = event(version)
		}
	}
}

// event returns the event of a change.
func event(version uint64) string { return fmt.Sprintf("id: %d\ndata: %d\n\n", version, version) }

// sendEvent sends a piece of a stream. The time limits of the server hold for whole answers, so that each piece has one of its own.
func sendEvent(w io.Writer, c *http.ResponseController, text string) error {
	// The deadlines fail on a connection without any, which needs no protection.
	_ = c.SetWriteDeadline(time.Now().Add(eventTimeout))
	if _, err := io.WriteString(w, text); err != nil {
		return err
	}
	err := c.Flush()
	_ = c.SetWriteDeadline(time.Time{})
	return err
}
