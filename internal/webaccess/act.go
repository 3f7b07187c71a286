package webaccess

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// summarizeEvery is the time in which frequent equal acts share one line of the log.
const summarizeEvery = time.Minute

// AdminHandler returns a handler for a request that changes what the program does. Without
// authentication it needs --web.enable-admin-api and a loopback client.
func (p *Policy) AdminHandler(h http.HandlerFunc) http.HandlerFunc {
	return p.actingHandler(h, "--web.enable-admin-api", func() bool { return p.AdminAPI }, 0)
}

// AskHandler returns a handler for a request that makes the program send packets for an analyzer or an audit. It needs the same as
// AdminHandler. If AskClients has names, an authenticated caller also needs one of them. Equal requests share a line of the log
// within a minute.
func (p *Policy) AskHandler(h http.HandlerFunc) http.HandlerFunc {
	return p.allowedHandler(h, summarizeEvery, func(r *http.Request) (Caller, error) {
		c, err := p.mayAct(r, "--web.enable-admin-api", p.AdminAPI)
		if err == nil && c.Authenticated && len(p.AskClients) > 0 && !slices.Contains(p.AskClients, c.Name) {
			err = fmt.Errorf("the request is from %q, and --ask.clients does not have this name", c.Name)
		}
		return c, err
	})
}

// CheckAdmin returns nil if AdminHandler would serve the client of a GET request that has an effect, and logs the act: equal ones share a line of the log
// within a minute. Else it returns the reason. A page of another origin has the browser send GET requests, so these have no effect.
func (p *Policy) CheckAdmin(r *http.Request) error {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "cross-site", "same-site":
		return errors.New("a page of another origin may not make this program act")
	}
	caller, err := p.mayAct(r, "--web.enable-admin-api", p.AdminAPI)
	if err != nil {
		return err
	}
	p.logAct(slog.LevelInfo, "act", r, caller.Name, summarizeEvery, nil)
	return nil
}

// ReloadHandler returns a handler that reloads the configuration. Without authentication it
// needs --web.enable-lifecycle and a loopback client.
func (p *Policy) ReloadHandler(h http.HandlerFunc) http.HandlerFunc {
	return p.actingHandler(h, "--web.enable-lifecycle", func() bool { return p.Lifecycle }, 0)
}

func (p *Policy) actingHandler(h http.HandlerFunc, flag string, enabled func() bool, every time.Duration) http.HandlerFunc {
	return p.allowedHandler(h, every, func(r *http.Request) (Caller, error) { return p.mayAct(r, flag, enabled()) })
}

// allowedHandler returns a handler that serves a request if allowed returns no error for it. It logs every act and every refusal.
func (p *Policy) allowedHandler(h http.HandlerFunc, every time.Duration, allowed func(*http.Request) (Caller, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		caller, err := allowed(r)
		if err != nil {
			p.logRefusal(r, caller.Name, err.Error())
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		a := &act{caller: caller}
		status := &statusWriter{ResponseWriter: w, code: http.StatusOK}
		h(status, r.WithContext(context.WithValue(r.Context(), actKey{}, a)))
		p.logAct(slog.LevelInfo, "act", r, caller.Name, every, append(a.attrs, "status", status.code))
	}
}

type actKey struct{}

// act holds the state of an acting request while it is served.
type act struct {
	caller Caller
	attrs  []any
}

// CallerOf returns the caller of an acting request that is being served.
func CallerOf(r *http.Request) Caller {
	if a, ok := r.Context().Value(actKey{}).(*act); ok {
		return a.caller
	}
	return Caller{}
}

// AddLogAttrs adds attributes to the line that the log gets for an acting request.
func AddLogAttrs(r *http.Request, attrs ...any) {
	if a, ok := r.Context().Value(actKey{}).(*act); ok {
		a.attrs = append(a.attrs, attrs...)
	}
}

// logRefusal logs a request that is refused. who is the caller's name as far as it is known.
func (p *Policy) logRefusal(r *http.Request, who, why string) {
	p.logAct(slog.LevelWarn, "request refused", r, who, summarizeEvery, []any{"reason", why})
}

// logAct logs an acting request, at most one line per interval for equal ones. If every is 0, it logs
// each request.
func (p *Policy) logAct(level slog.Level, what string, r *http.Request, who string, every time.Duration, attrs []any) {
	if p.Log == nil {
		return
	}
	if every > 0 {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			host = r.RemoteAddr
		}
		n, now := p.acts.countAct(actEntry{what, r.Method, r.URL.Path, who, host}, time.Now(), every)
		if !now {
			return
		}
		attrs = append(attrs, "requests", n)
	}
	p.Log.Log(r.Context(), level, what, append([]any{"request", r.Method + " " + r.URL.Path, "by", who, "from", r.RemoteAddr}, attrs...)...)
}

// actEntry has the fields in which two equal acts agree.
type actEntry struct{ what, method, path, who, host string }

// maxActEntries limits the number of entries in the log's memory: further acts are not logged until
// older entries have expired.
const maxActEntries = 1024

// actLog counts equal acts between two lines of the log.
type actLog struct {
	mu      sync.Mutex
	entries map[actEntry]*actCount
}

type actCount struct {
	written time.Time
	since   int // number of acts after that line
}

// countAct counts an act. It returns whether a line is due, and how many acts the line stands for.
func (l *actLog) countAct(e actEntry, now time.Time, every time.Duration) (n int, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.entries == nil {
		l.entries = map[actEntry]*actCount{}
	}
	c := l.entries[e]
	if c == nil {
		if len(l.entries) >= maxActEntries {
			for k, old := range l.entries {
				if now.Sub(old.written) >= every {
					delete(l.entries, k)
				}
			}
		}
		if len(l.entries) >= maxActEntries {
			return 0, false
		}
		l.entries[e] = &actCount{written: now}
		return 1, true
	}
	c.since++
	if now.Sub(c.written) < every {
		return 0, false
	}
	n, c.since, c.written = c.since, 0, now
	return n, true
}

// statusWriter keeps the status of a response.
type statusWriter struct {
	http.ResponseWriter
	code int
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(code int) {
	w.code = code
	w.ResponseWriter.WriteHeader(code)
}

// Unwrap lets http.ResponseController reach the writer of the server.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
