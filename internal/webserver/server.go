// Package webserver has the HTTP server of all programs. It sets time limits, and limits how much of a
// process clients can use, since the process has other work to do.
//
// Rules:
//
//  1. A client address may hold a limited number of connections, and all addresses together another
//     limited number. A further connection replaces the one that has waited longest without a request
//     being computed, if that is 100 ms or more. Otherwise the new one is closed.
//  2. A limited number of scrapes is computed at a time. Others wait for a short time, and are then
//     answered 503.
//  3. A scrape is computed before its first octet is sent: a client that reads slowly uses memory,
//     which is bounded, and no turn.
//  4. A stream of events waits between its events: its connection may be replaced as in rule 1. Its request ends when the
//     server shuts down.
package webserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/mdlayher/vsock"
	"github.com/prometheus/exporter-toolkit/web"

	"github.com/graylink/graylink/internal/webaccess"
)

// Time limits of every server.
const (
	headerTimeout = 5 * time.Second
	idleTimeout   = 2 * time.Minute
	// writeTimeout is longer than any handler takes: traces and long polls take 30 s.
	writeTimeout = 2 * time.Minute
	// scrapeWriteTimeout is the time in which a client has to read a computed scrape: the longest usual
	// scrape_timeout.
	scrapeWriteTimeout = 30 * time.Second
	bodyTimeout        = 30 * time.Second
	// scrapeWait is the time for which a scrape waits for its turn before it is answered 503.
	scrapeWait = 5 * time.Second
)

const (
	// maxHeaderBytes leaves room for the cookies of other programs on the same host.
	maxHeaderBytes = 64 << 10
	// maxStreams is the maximum number of concurrent requests of one connection of HTTP/2.
	maxStreams = 16
	// maxUnread is the maximum total size, in octets, of the scrapes that are computed and not read
	// yet.
	maxUnread = 64 << 20
)

// Limits bound how much of a program clients can use.
type Limits struct {
	Connections           int
	ConnectionsPerAddress int
	Scrapes               int // number of scrapes computed at a time
	// Body is the time in which a client has to send a body. 0 means 30 s.
	Body time.Duration
}

// DefaultLimits returns the limits of programs that set no others. A waiting connection costs some KiB.
// A connection that is closed and opened again costs time, which the probe loop may lack: some hundred
// clients of an address are accepted rather than closed again and again.
func DefaultLimits() Limits {
	return Limits{Connections: 1024, ConnectionsPerAddress: 512, Scrapes: 2}
}

// Validate returns an error that names the flag of a limit that is out of range.
func (l *Limits) Validate() error {
	switch {
	case l.Connections < 1:
		return errors.New("--web.max-connections: want 1 or more")
	case l.ConnectionsPerAddress < 1:
		return errors.New("--web.max-connections-per-address: want 1 or more")
	case l.Scrapes < 1:
		return errors.New("--web.max-scrapes: want 1 or more")
	}
	return nil
}

// Server is an HTTP server with limits.
type Server struct {
	http    *http.Server
	limits  Limits
	tracker *tracker
	next    http.Handler
	scrapes chan struct{}
	wait    time.Duration // time for which a scrape waits for its turn
	buffers sync.Pool
	ending  context.Context // ends with the first call of Shutdown
}

// New returns a server of a handler, behind a policy. Without a policy the handler decides
// by itself which requests it answers.
func New(h http.Handler, p *webaccess.Policy, l Limits, log *slog.Logger) *Server {
	if p != nil {
		h = p.Guard(h)
	}
	s := &Server{limits: l, next: h, tracker: newTracker(l, log), scrapes: make(chan struct{}, l.Scrapes), wait: scrapeWait}
	if s.limits.Body == 0 {
		s.limits.Body = bodyTimeout
	}
	s.buffers.New = func() any { return new(bytes.Buffer) }
	ending, end := context.WithCancel(context.Background())
	s.ending = ending
	s.http = &http.Server{Handler: s, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, WriteTimeout: writeTimeout, MaxHeaderBytes: maxHeaderBytes,
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, trackedConn(c))
		}}
	s.http.RegisterOnShutdown(end)
	return s
}

type connKey struct{}

// trackedConn returns the connection that the server's own listener accepted, or nil.
func trackedConn(c net.Conn) *conn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	tracked, _ := c.(*conn)
	return tracked
}

// Serve answers the connections of a listener until Shutdown or Close.
func (s *Server) Serve(l net.Listener) error { return s.http.Serve(s.tracker.wrapListener(l)) }

// ServeTLS answers the connections of a listener with TLS until Shutdown or Close.
func (s *Server) ServeTLS(l net.Listener, config *tls.Config) error {
	s.http.TLSConfig = config
	return s.http.ServeTLS(s.tracker.wrapListener(l), "", "")
}

// ListenAndServe serves the addresses of the exporter toolkit's flags, with the TLS and the passwords
// of their web configuration, until Shutdown or Close.
func (s *Server) ListenAndServe(flags *web.FlagConfig, log *slog.Logger) error {
	listeners, err := openListeners(flags)
	if err != nil {
		return err
	}
	if *flags.WebConfigFile != "" {
		s.http.ErrorLog = stdlog.New(&errorLog{log: log, webConfig: *flags.WebConfigFile}, "", 0)
	}
	for i, l := range listeners {
		defer l.Close()
		listeners[i] = s.tracker.wrapListener(l)
	}
	return web.ServeMultiple(listeners, s.http, flags, log)
}

// openListeners opens the listeners of the exporter toolkit's flags, as its ListenAndServe does
// (exporter-toolkit v0.19.0, web/tls_config.go).
func openListeners(flags *web.FlagConfig) (out []net.Listener, err error) {
	if flags.WebSystemdSocket != nil && *flags.WebSystemdSocket {
		out, err = activation.Listeners()
		if err == nil && len(out) == 0 {
			err = errors.New("--web.systemd-socket: systemd has passed no socket")
		}
		return out, err
	}
	if len(*flags.WebListenAddresses) == 0 {
		return nil, web.ErrNoListeners
	}
	for _, address := range *flags.WebListenAddresses {
		l, err := listenAt(address)
		if err != nil {
			for _, l := range out {
				l.Close()
			}
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

func listenAt(address string) (net.Listener, error) {
	if !strings.HasPrefix(address, "vsock://") {
		return net.Listen("tcp", address)
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(u.Port(), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("--web.listen-address %s: want vsock://:PORT", address)
	}
	return vsock.Listen(uint32(port), nil)
}

// Shutdown ends the server after the present requests, or when ctx ends.
func (s *Server) Shutdown(ctx context.Context) error { return s.http.Shutdown(ctx) }

// Close ends the server and its connections.
func (s *Server) Close() error { return s.http.Close() }

// ServeHTTP implements http.Handler: it applies the limits to a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, _ := r.Context().Value(connKey{}).(*conn)
	c.beginRequest()
	defer c.endRequest()
	if strings.HasPrefix(r.URL.Path, "/metrics") {
		s.serveScrape(w, r, c)
		return
	}
	if r.Body != nil && r.Body != http.NoBody {
		controller := http.NewResponseController(w)
		// SetReadDeadline fails on a connection without deadlines, which needs no protection.
		_ = controller.SetReadDeadline(time.Now().Add(s.limits.Body))
		r.Body = &timedBody{ReadCloser: r.Body, controller: controller}
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	answer := &answerWriter{ResponseWriter: w, conn: c, ending: s.ending, cancel: cancel}
	defer answer.endStream()
	s.next.ServeHTTP(answer, r.WithContext(ctx))
}

// timedBody removes the deadline of a body at its end, since the deadline would end the request.
type timedBody struct {
	io.ReadCloser
	controller *http.ResponseController
}

// Read implements io.Reader.
func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = b.controller.SetReadDeadline(time.Time{})
	}
	return n, err
}

// answerWriter allows that a connection is closed in favour of another one while its client is slow to
// read, and while it waits for the next event of a stream.
type answerWriter struct {
	http.ResponseWriter
	conn   *conn
	ending context.Context
	cancel context.CancelFunc // ends the request
	// stay undoes that the end of the server ends the request. It is nil if the answer is no stream.
	stay func() bool
}

// Write implements http.ResponseWriter.
func (a *answerWriter) Write(b []byte) (int, error) {
	if a.stay != nil {
		return a.ResponseWriter.Write(b) // the stream waits as it is
	}
	a.conn.endRequest()
	defer a.conn.beginRequest()
	return a.ResponseWriter.Write(b)
}

// FlushError sends what was written. A stream of events waits from then on (rule 4), anew after each event.
func (a *answerWriter) FlushError() error {
	if a.stay == nil && strings.HasPrefix(a.Header().Get("Content-Type"), "text/event-stream") {
		a.stay = context.AfterFunc(a.ending, a.cancel)
		a.conn.endRequest()
	}
	err := http.NewResponseController(a.ResponseWriter).Flush()
	if a.stay != nil && err == nil {
		a.conn.beginRequest()
		a.conn.endRequest()
	}
	return err
}

// endStream ends what FlushError has begun.
func (a *answerWriter) endStream() {
	if a.stay != nil {
		a.stay()
		a.conn.beginRequest()
	}
}

// Unwrap gives http.ResponseController access to the writer of the server.
func (a *answerWriter) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// serveScrape computes an answer when its turn comes and then sends it.
func (s *Server) serveScrape(w http.ResponseWriter, r *http.Request, c *conn) {
	patience := time.NewTimer(s.wait)
	defer patience.Stop()
	select {
	case s.scrapes <- struct{}{}:
	case <-r.Context().Done():
		return
	case <-patience.C:
		w.Header().Set("Retry-After", strconv.Itoa(int(scrapeWait.Seconds())))
		http.Error(w, fmt.Sprintf("the limit of %d concurrent scrapes is reached", cap(s.scrapes)), http.StatusServiceUnavailable)
		return
	}
	buffer := s.buffers.Get().(*bytes.Buffer)
	buffer.Reset()
	defer s.buffers.Put(buffer)
	whole := &bufferedAnswer{header: w.Header(), body: buffer, code: http.StatusOK}
	func() {
		defer func() { <-s.scrapes }()
		s.next.ServeHTTP(whole, r)
	}()
	c.beginSend(buffer.Len())
	defer c.endSend(buffer.Len())
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(scrapeWriteTimeout))
	w.WriteHeader(whole.code)
	// Write fails if the client has disconnected.
	_, _ = w.Write(buffer.Bytes())
}

// bufferedAnswer keeps an answer in memory.
type bufferedAnswer struct {
	header http.Header
	body   *bytes.Buffer
	code   int
}

// Header implements http.ResponseWriter.
func (a *bufferedAnswer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *bufferedAnswer) WriteHeader(code int) { a.code = code }

// Write implements http.ResponseWriter.
func (a *bufferedAnswer) Write(b []byte) (int, error) { return a.body.Write(b) }
