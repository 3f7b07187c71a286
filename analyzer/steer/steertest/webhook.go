package steertest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/http"
	"strconv"
	"testing"
)

// Secret signs the requests to the webhook.
const Secret = "0123456789abcdef0123456789abcdef"

// maxSkew is how far the time of a request may be off, in seconds.
const maxSkew = 300

// Webhook receives actions as a receiver at a site should: it refuses wrong signatures and old requests, and handles each
// identifier once.
type Webhook struct {
	Server
	now     func() int64
	handled map[string][]byte // bodies by identifier
	repeats map[string]int    // requests with an identifier that was handled before
}

// NewWebhook returns a webhook, which ends with the test. now returns seconds of Unix time.
func NewWebhook(t testing.TB, now func() int64) *Webhook {
	t.Helper()
	w := &Webhook{now: now, handled: map[string][]byte{}, repeats: map[string]int{}}
	w.start(t, w.answer)
	return w
}

// Handled returns the bodies of the actions that were handled, by identifier.
func (h *Webhook) Handled() map[string][]byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.handled)
}

// Repeats returns how often each identifier came again after it was handled.
func (h *Webhook) Repeats() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.repeats)
}

func (h *Webhook) answer(w http.ResponseWriter, r *http.Request, body []byte) {
	at, id := r.Header.Get("X-Graylink-Timestamp"), r.Header.Get("X-Graylink-Delivery")
	m := hmac.New(sha256.New, []byte(Secret))
	m.Write([]byte(at + "." + string(body)))
	seconds, err := strconv.ParseInt(at, 10, 64)
	switch {
	case r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json":
		h.forbid(w, r, "POST of JSON is expected")
	case !hmac.Equal([]byte(r.Header.Get("X-Graylink-Signature")), []byte("sha256="+hex.EncodeToString(m.Sum(nil)))):
		h.forbid(w, r, "the signature is wrong")
	case err != nil || seconds < h.now()-maxSkew || seconds > h.now()+maxSkew:
		h.forbid(w, r, "the time is wrong")
	case id == "":
		h.forbid(w, r, "there is no identifier")
	case h.handled[id] != nil:
		h.repeats[id]++
	default:
		h.handled[id] = body
	}
}
