package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"sync"
	"time"
)

// Limits of the answers that are kept for other viewers.
const (
	// sharedFor is how long an answer is shown while the snapshot stays the same. Ages in it are older by as much.
	sharedFor = 2 * time.Second
	// maxAnswers and maxOctets bound what is kept, and longestAddress what it is kept by.
	maxAnswers, maxOctets, longestAddress = 256, 32 << 20, 2048
	// renderTimeout bounds the time of one answer, whose client may have gone.
	renderTimeout = 30 * time.Second
)

// sharedAnswers keeps the answers to requests about one snapshot, so that all viewers of a page cost as much as one.
type sharedAnswers struct {
	mu      sync.Mutex
	version uint64 // of the snapshot
	kept    map[answerKey]*sharedAnswer
	octets  int
}

// answerKey is what an answer depends on. The viewer is what of it depends on who looks.
type answerKey struct{ address, viewer string }

// sharedAnswer is an answer that is there once ready is closed.
type sharedAnswer struct {
	answer      *answer
	begun, used time.Time
	ready       chan struct{}
	counted     bool // its octets are those of sharedAnswers
}

// answer is the answer to a request. It implements http.ResponseWriter.
type answer struct {
	head   http.Header
	body   bytes.Buffer
	status int
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.head }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) { a.status = status }

// Write implements http.ResponseWriter.
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }

// setTag gives a good answer an ETag that depends on its content.
func (a *answer) setTag() {
	if a.status == http.StatusOK {
		sum := sha256.Sum256(a.body.Bytes())
		a.head.Set("ETag", `"`+hex.EncodeToString(sum[:16])+`"`)
	}
}

// send sends an answer. A client that has the same one already gets 304.
func (a *answer) send(w http.ResponseWriter, r *http.Request) {
	for name, v := range a.head {
		w.Header()[name] = v
	}
	if a.status == http.StatusOK {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(a.body.Bytes()))
		return
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes()) // this fails only when the client has gone
}

// share answers a request by a page, which is rendered once for all viewers of the same address and snapshot. The page must depend on
// nothing else of the request than the address and what viewer says.
func (h *Handler) share(w http.ResponseWriter, r *http.Request, viewer string, page http.HandlerFunc) {
	key := answerKey{r.URL.Path + "?" + r.URL.RawQuery, viewer}
	if h.Changes == nil || len(key.address)+len(viewer) > longestAddress {
		renderAnswer(r, page).send(w, r)
		return
	}
	a, ours := h.shared.find(key, h.Changes.Version(), h.now())
	if ours {
		h.shared.fill(key, a, func() *answer { return renderAnswer(r, page) })
	}
	select {
	case <-a.ready:
		a.answer.send(w, r)
	case <-r.Context().Done():
	}
}

// renderAnswer has a page answer a request. Since others may wait for the answer, it does not end with the request.
func renderAnswer(r *http.Request, page http.HandlerFunc) *answer {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), renderTimeout)
	defer cancel()
	a := &answer{head: http.Header{}, status: http.StatusOK}
	page(a, r.WithContext(ctx))
	a.setTag()
	return a
}

// find returns the answer to a request about a snapshot. If it is ours, the caller has to fill it.
func (s *sharedAnswers) find(key answerKey, version uint64, now time.Time) (a *sharedAnswer, ours bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if version > s.version || s.kept == nil {
		s.version, s.kept, s.octets = version, map[answerKey]*sharedAnswer{}, 0
	}
	a = s.kept[key]
	if a != nil && (!a.counted || now.Sub(a.begun) < sharedFor) {
		a.used = now
		return a, false
	}
	if a != nil {
		s.drop(key)
	}
	a = &sharedAnswer{answer: &answer{status: http.StatusInternalServerError}, begun: now, used: now, ready: make(chan struct{})}
	s.kept[key] = a
	s.dropOldest(key)
	return a, true
}

// fill fills an answer. If rendering it panics, nothing is kept, and those who wait for it get an error.
func (s *sharedAnswers) fill(key answerKey, a *sharedAnswer, render func() *answer) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case s.kept[key] != a: // it is about an earlier snapshot, or had to go
		case a.answer.status == http.StatusInternalServerError:
			delete(s.kept, key)
		default:
			a.counted = true
			s.octets += a.answer.body.Len()
			s.dropOldest(key)
		}
		close(a.ready)
	}()
	a.answer = render()
}

// dropOldest drops the answers that were not read for the longest time, except one, until the rest is within the limits.
func (s *sharedAnswers) dropOldest(except answerKey) {
	for len(s.kept) > maxAnswers || s.octets > maxOctets {
		var oldest answerKey
		var used time.Time
		found := false
		for key, a := range s.kept {
			if key != except && (!found || a.used.Before(used)) {
				oldest, used, found = key, a.used, true
			}
		}
		if !found {
			oldest = except
		}
		s.drop(oldest)
	}
}

func (s *sharedAnswers) drop(key answerKey) {
	if a := s.kept[key]; a.counted {
		s.octets -= a.answer.body.Len()
	}
	delete(s.kept, key)
}
