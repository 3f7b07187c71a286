package webaccess

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// summarizeEvery is the time in which equal acts that come often share a line of the log.
const summarizeEvery = time.Minute

// Admin returns a handler for a request that changes what the program does. Without
// authentication it needs --web.enable-admin-api and a loopback client.
func (p *Policy) Admin(h http.HandlerFunc) http.HandlerFunc {
	return p.acting(h, "--web.enable-admin-api", func() bool { return p.AdminAPI }, 0)
}

// AdminOften is Admin for requests that programs repeat: equal ones share a line of the
// log within a minute.
func (p *Policy) AdminOften(h http.HandlerFunc) http.HandlerFunc {
	return p.acting(h, "--web.enable-admin-api", func() bool { return p.AdminAPI }, summarizeEvery)
}

// Reload returns a handler that reloads the configuration. Without authentication it
// needs --web.enable-lifecycle and a loopback client.
func (p *Policy) Reload(h http.HandlerFunc) http.HandlerFunc {
	return p.acting(h, "--web.enable-lifecycle", func() bool { return p.Lifecycle }, 0)
}

func (p *Policy) acting(h http.HandlerFunc, flag string, enabled func() bool, every time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		caller, err := p.mayAct(r, flag, enabled())
		if err != nil {
			p.refused(r, err.Error())
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		a := &act{caller: caller}
		status := &statusWriter{ResponseWriter: w, code: http.StatusOK}
		h(status, r.WithContext(context.WithValue(r.Context(), actKey{}, a)))
		p.log(slog.LevelInfo, "act", r, caller.Name, every, append(a.attrs, "status", status.code))
	}
}

type actKey struct{}

// act is what is known of an acting request while it is served.
type act struct {
	caller Caller
	attrs  []any
}

// CallerOf returns who sent an acting request that is being served.
func CallerOf(r *http.Request) Caller {
	if a, ok := r.Context().Value(actKey{}).(*act); ok {
		return a.caller
	}
	return Caller{}
}

// Note adds attributes to the line that the log gets for an acting request.
func Note(r *http.Request, attrs ...any) {
	if a, ok := r.Context().Value(actKey{}).(*act); ok {
		a.attrs = append(a.attrs, attrs...)
	}
}

func (p *Policy) refused(r *http.Request, why string) {
	p.log(slog.LevelWarn, "act refused", r, "", summarizeEvery, []any{"reason", why})
}

// log writes a line about an acting request, at most one per interval for equal ones.
func (p *Policy) log(level slog.Level, what string, r *http.Request, who string, every time.Duration, attrs []any) {
	if p.Log == nil {
		return
	}
	if every > 0 {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			host = r.RemoteAddr
		}
		n, now := p.acts.count(actEntry{what, r.Method, r.URL.Path, who, host}, time.Now(), every)
		if !now {
			return
		}
		attrs = append(attrs, "requests", n)
	}
	p.Log.Log(r.Context(), level, what, append([]any{"request", r.Method + " " + r.URL.Path, "by", who, "from", r.RemoteAddr}, attrs...)...)
}

// actEntry is what makes two acts equal for the log.
type actEntry struct{ what, method, path, who, host string }

// maxActEntries bounds what the log remembers: further acts are left out of it until older
// entries have expired.
const maxActEntries = 1024

// actLog counts equal acts between two lines of the log.
type actLog struct {
	mu   sync.Mutex
	seen map[actEntry]*actCount
}

type actCount struct {
	written time.Time
	since   int // acts after that line
}

// count takes an act. It returns whether a line is due, and how many acts it stands for.
func (l *actLog) count(e actEntry, now time.Time, every time.Duration) (n int, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == nil {
		l.seen = map[actEntry]*actCount{}
	}
	c := l.seen[e]
	if c == nil {
		if len(l.seen) >= maxActEntries {
			for k, old := range l.seen {
				if now.Sub(old.written) >= every {
					delete(l.seen, k)
				}
			}
		}
		if len(l.seen) >= maxActEntries {
			return 0, false
		}
		l.seen[e] = &actCount{written: now}
		return 1, true
	}
	c.since++
	if now.Sub(c.written) < every {
		return 0, false
	}
	n, c.since, c.written = c.since, 0, now
	return n, true
}

// statusWriter keeps the status of an answer.
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
