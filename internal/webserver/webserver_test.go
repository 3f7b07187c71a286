package webserver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/webaccess"
)

// bench is a server on loopback addresses, which count as different clients.
type bench struct {
	t       *testing.T
	address string
	s       *Server
	// computing is the number of scrapes that are being computed, and most is its maximum.
	computing, most atomic.Int64
	gate            chan struct{} // a scrape of /metrics/slow waits for it, and a stream of /events between its events
	streams         atomic.Int64
	unread          atomic.Int64 // scrapes of /metrics/large that were computed
}

// large is more than a socket's buffers hold.
var large = strings.Repeat("x", 16<<20)

func newBench(t *testing.T, l Limits) *bench {
	b := &bench{t: t, gate: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "up 1") })
	mux.HandleFunc("GET /metrics/large", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, large)
		b.unread.Add(1)
	})
	mux.HandleFunc("GET /large", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, large) })
	mux.HandleFunc("GET /metrics/slow", func(w http.ResponseWriter, r *http.Request) {
		b.most.Store(max(b.most.Load(), b.computing.Add(1)))
		defer b.computing.Add(-1)
		<-b.gate
		fmt.Fprintln(w, "up 1")
	})
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		controller := http.NewResponseController(w)
		for b.streams.Add(1); r.Context().Err() == nil; {
			if _, err := io.WriteString(w, "data: 1\n\n"); err != nil || controller.Flush() != nil {
				break
			}
			select {
			case <-b.gate:
			case <-r.Context().Done():
			}
		}
		b.streams.Add(-1)
	})
	mux.HandleFunc("POST /body", func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	b.s = New(mux, &webaccess.Policy{}, l, slog.New(slog.DiscardHandler))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.address = ln.Addr().String()
	served := make(chan error, 1)
	go func() { served <- b.s.Serve(ln) }()
	t.Cleanup(func() {
		if err := b.s.Close(); err != nil {
			t.Error(err)
		}
		<-served
	})
	return b
}

// dial opens a connection from a loopback address and sends text.
func (b *bench) dial(from, text string) net.Conn {
	b.t.Helper()
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", b.address)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, text); err != nil && from == "127.0.0.1" {
		b.t.Fatal(err)
	}
	return c
}

// get sends a request from a loopback address, on a connection of its own.
func (b *bench) get(from, path string) (int, error) {
	c := b.dial(from, "GET "+path+" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

func (b *bench) open() int {
	b.s.tracker.mu.Lock()
	defer b.s.tracker.mu.Unlock()
	return b.s.tracker.open
}

func (b *bench) until(what string, ok func() bool) {
	b.t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("%s: not within 20 s", what)
		}
	}
}

// TestRule1SilentAndSlowClients checks that the number of connections that wait, send slowly or read
// slowly is bounded, and that a scrape from any address is answered.
func TestRule1SilentAndSlowClients(t *testing.T) {
	b := newBench(t, Limits{Connections: 40, ConnectionsPerAddress: 16, Scrapes: 2})
	for _, tc := range []struct{ name, from, text string }{
		{"silent", "127.0.0.2", ""},
		{"slow header", "127.0.0.2", "GET /metrics HTTP/1.1\r\nHost: 127"},
		{"idle after an answer", "127.0.0.2", "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"},
		{"reads no page", "127.0.0.3", "GET /large HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"},
		{"reads no scrape", "127.0.0.3", "GET /metrics/large HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"},
	} {
		for range 60 {
			b.dial(tc.from, tc.text)
		}
		for _, from := range []string{"127.0.0.1", tc.from} {
			time.Sleep(replaceGrace) // the connections of the crowd are open and no longer new
			if code, err := b.get(from, "/metrics"); code != http.StatusOK || err != nil {
				t.Errorf("%s: a scrape from %s: %d, %v", tc.name, from, code, err)
			}
		}
		if n := b.open(); n > 40 {
			t.Errorf("%s: %d connections are open", tc.name, n)
		}
	}
}

// TestRule1AllAreAtWork checks that a connection whose request is computed is not closed for another.
func TestRule1AllAreAtWork(t *testing.T) {
	b := newBench(t, Limits{Connections: 8, ConnectionsPerAddress: 2, Scrapes: 2})
	done := make(chan int, 2)
	for range 2 {
		go func() {
			code, _ := b.get("127.0.0.2", "/metrics/slow")
			done <- code
		}()
	}
	b.until("both are computed", func() bool { return b.computing.Load() == 2 })
	if code, err := b.get("127.0.0.2", "/metrics"); err == nil {
		t.Errorf("a third connection is answered: %d", code)
	}
	close(b.gate)
	for range 2 {
		if code := <-done; code != http.StatusOK {
			t.Errorf("a request that was computed: %d", code)
		}
	}
}

// TestRule2Scrapes checks that no more than the limit are computed at a time, and that the others wait.
func TestRule2Scrapes(t *testing.T) {
	b := newBench(t, Limits{Connections: 100, ConnectionsPerAddress: 100, Scrapes: 2})
	const clients = 20
	b.s.wait = 500 * time.Millisecond
	done := make(chan int, clients)
	for range clients {
		go func() {
			code, _ := b.get("127.0.0.1", "/metrics/slow")
			done <- code
		}()
	}
	b.until("two are computed", func() bool { return b.computing.Load() == 2 })
	b.until("the others have come", func() bool { return b.open() == clients })
	for range clients - 2 { // the gate stays closed: they are answered 503
		if code := <-done; code != http.StatusServiceUnavailable {
			t.Errorf("a scrape beyond the limit: %d", code)
		}
	}
	close(b.gate)
	for range 2 {
		if code := <-done; code != http.StatusOK {
			t.Errorf("a scrape within the limit: %d", code)
		}
	}
	if n := b.most.Load(); n != 2 {
		t.Errorf("%d scrapes were computed at a time", n)
	}
}

// TestRule3UnreadScrapes checks that the amount of computed and unread scrapes is bounded.
func TestRule3UnreadScrapes(t *testing.T) {
	b := newBench(t, Limits{Connections: 100, ConnectionsPerAddress: 100, Scrapes: 2})
	const clients = 12
	for range clients {
		b.dial("127.0.0.2", "GET /metrics/large HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	}
	// Those that have waited longest are closed until 64 MiB are left: 4 of them.
	b.until("the oldest are closed", func() bool { return b.unread.Load() == clients && b.open() <= maxUnread/len(large) })
	if code, err := b.get("127.0.0.2", "/metrics/large"); code != http.StatusOK || err != nil {
		t.Errorf("a client that reads: %d, %v", code, err)
	}
	b.s.tracker.mu.Lock()
	defer b.s.tracker.mu.Unlock()
	if n := b.s.tracker.unread; n < 0 || n > maxUnread {
		t.Errorf("%d octets are unread", n)
	}
}

// TestRule4StreamsGiveWay checks that streams that wait are replaced by other connections, and that one that had an event lately is not.
func TestRule4StreamsGiveWay(t *testing.T) {
	b := newBench(t, Limits{Connections: 8, ConnectionsPerAddress: 4, Scrapes: 2})
	event := func(c net.Conn) error {
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		for line := bufio.NewReader(c); ; {
			if text, err := line.ReadString('\n'); err != nil || text == "data: 1\n" {
				return err
			}
		}
	}
	const request = "GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
	var all []net.Conn
	for range 4 {
		c := b.dial("127.0.0.2", request)
		if err := event(c); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	b.gate <- struct{}{} // one of them has an event
	time.Sleep(replaceGrace)
	if code, err := b.get("127.0.0.2", "/metrics"); code != http.StatusOK || err != nil {
		t.Errorf("a scrape while all connections are streams: %d, %v", code, err)
	}
	b.until("the request of the replaced one has ended", func() bool { return b.streams.Load() == 3 })
	b.s.tracker.mu.Lock()
	if n := b.s.tracker.waiting.Len(); n > b.s.tracker.open {
		t.Errorf("%d connections of %d wait", n, b.s.tracker.open)
	}
	b.s.tracker.mu.Unlock()
	for _, c := range all {
		c.Close()
	}
	b.until("all requests have ended", func() bool { return b.streams.Load() == 0 })
}

// TestRule4StreamsEndWithTheServer checks that Shutdown does not wait for streams, and that one that begins afterwards ends at once.
func TestRule4StreamsEndWithTheServer(t *testing.T) {
	b := newBench(t, Limits{Connections: 100, ConnectionsPerAddress: 100, Scrapes: 2})
	for range 20 {
		b.dial("127.0.0.1", "GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	}
	b.until("all are streams", func() bool { return b.streams.Load() == 20 })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := b.s.Shutdown(ctx); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if n := b.streams.Load(); n != 0 {
		t.Errorf("%d streams have not ended", n)
	}
	<-b.s.ending.Done()
	late := httptest.NewRecorder()
	b.s.ServeHTTP(late, httptest.NewRequest(http.MethodGet, "http://127.0.0.1/events", nil))
	if got := late.Body.String(); got != "data: 1\n\n" {
		t.Errorf("a stream that begins afterwards: %q", got)
	}
}

// TestSlowBody checks that a body that does not arrive ends its request, and that one that arrived does
// not.
func TestSlowBody(t *testing.T) {
	b := newBench(t, Limits{Connections: 8, ConnectionsPerAddress: 8, Scrapes: 1, Body: 200 * time.Millisecond})
	c := b.dial("127.0.0.1", "POST /body HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\n1")
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil {
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("a body that does not come: %s", resp.Status)
		}
	}
	c = b.dial("127.0.0.1", "POST /body HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 1\r\n\r\n1")
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("a body that comes: %v", err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("a body that comes: %s", resp.Status)
	}
}

// TestClients checks that an IPv4 address and a /64 of IPv6 are one client each.
func TestClients(t *testing.T) {
	of := func(ip string) string { return clientOf(&net.TCPAddr{IP: net.ParseIP(ip)}).String() }
	for ip, want := range map[string]string{"10.0.0.1": "10.0.0.1/32", "::ffff:10.0.0.1": "10.0.0.1/32", "2001:db8::1": "2001:db8::/64", "2001:db8::ffff:1": "2001:db8::/64", "::1": "::1/128"} {
		if got := of(ip); got != want {
			t.Errorf("%s: %s", ip, got)
		}
	}
	if p := clientOf(&net.UnixAddr{Name: "/x"}); p.IsValid() {
		t.Errorf("a Unix socket: %s", p)
	}
}
