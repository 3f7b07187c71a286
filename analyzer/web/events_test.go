package web

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/webaccess"
	"github.com/graylink/graylink/internal/webserver"
)

// liveHandler returns a handler of the demo's fabric whose snapshot changes by the returned function, and the number of snapshots that
// were rendered.
func liveHandler(t testing.TB) (h *Handler, change func(), rendered *atomic.Int64) {
	t.Helper()
	g, s := demoFault(t)
	h = handler(g, s)
	h.Changes = &snapshot.Changes{}
	rendered = &atomic.Int64{}
	var cycles atomic.Int64
	h.Snapshot = func() snapshot.Snapshot {
		rendered.Add(1)
		out := s
		out.At = s.At.Add(-time.Duration(cycles.Load()) * time.Millisecond)
		out.Baselines = int(cycles.Load())
		return out
	}
	h.Now = func() time.Time { return noon().Add(time.Duration(cycles.Load()) * time.Second) }
	return h, func() { cycles.Add(1); h.Changes.Announce() }, rendered
}

// stream is the stream of events of a client.
type stream struct {
	body  io.ReadCloser
	lines *bufio.Scanner
}

// openStream opens the stream of a server. Its comment says that it has begun.
func openStream(t *testing.T, c *http.Client, url, last string) *stream {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, url+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || kind != "text/event-stream" {
		t.Fatalf("the stream has status %s and type %q", resp.Status, kind)
	}
	s := &stream{resp.Body, bufio.NewScanner(resp.Body)}
	if last == "" && (!s.lines.Scan() || !strings.HasPrefix(s.lines.Text(), ":")) {
		t.Fatalf("the stream begins with %q: %v", s.lines.Text(), s.lines.Err())
	}
	return s
}

// next returns the data of the next event.
func (s *stream) next() (string, error) {
	for s.lines.Scan() {
		if data, ok := strings.CutPrefix(s.lines.Text(), "data: "); ok {
			return data, nil
		}
	}
	return "", errors.Join(errors.New("the stream has ended"), s.lines.Err())
}

// TestViewersCostAsOne: fifty viewers follow the stream and fetch the page at each event. It is rendered once for all of them at each change,
// a viewer that has it gets 304, and nothing of them is left when they go and when the server shuts down.
func TestViewersCostAsOne(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	h, change, rendered := liveHandler(t)
	srv := webserver.New(h, &webaccess.Policy{}, webserver.DefaultLimits(), slog.New(slog.DiscardHandler))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	url := "http://" + l.Addr().String()
	const viewers, changes = 50, 5
	transport := &http.Transport{}
	client := &http.Client{Transport: transport}
	fetch := func(tag string) (status int, newTag string) {
		r, err := http.NewRequest(http.MethodGet, url+"/?fragment=main", nil)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		if tag != "" {
			r.Header.Set("If-None-Match", tag)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, resp.Header.Get("ETag")
	}
	var all []*stream
	for range viewers {
		all = append(all, openStream(t, client, url, ""))
	}
	for n := range changes {
		before := rendered.Load()
		change()
		var wg sync.WaitGroup
		for _, s := range all {
			wg.Go(func() {
				if data, err := s.next(); err != nil || data != strconv.Itoa(n+1) {
					t.Errorf("event %d has data %q: %v", n+1, data, err)
				}
				status, tag := fetch("")
				if status != http.StatusOK || tag == "" {
					t.Errorf("a viewer gets status %d and the ETag %q", status, tag)
				}
				if again, _ := fetch(tag); again != http.StatusNotModified {
					t.Errorf("a viewer that has the page gets status %d, want 304", again)
				}
			})
		}
		wg.Wait()
		if n := rendered.Load() - before; n != 1 {
			t.Errorf("the page was rendered %d times for %d viewers", n, viewers)
		}
	}
	for _, s := range all[:viewers/2] {
		s.body.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		t.Errorf("the server hangs: %v", err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
	for _, s := range all[viewers/2:] {
		if data, err := s.next(); err == nil {
			t.Errorf("after the end there is an event %q", data)
		}
		s.body.Close()
	}
	transport.CloseIdleConnections()
	if n := h.streams.Load(); n != 0 {
		t.Errorf("%d streams are left", n)
	}
	goleak.VerifyNone(t, leaks)
}

// TestStreamsAreBounded: a client beyond the limit gets 503 with the time after which it may try again, and its place is free once another goes.
func TestStreamsAreBounded(t *testing.T) {
	h, _, _ := liveHandler(t)
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	client := &http.Client{Transport: &http.Transport{}}
	var all []*stream
	for range maxStreams {
		all = append(all, openStream(t, client, srv.URL, ""))
	}
	refused, err := client.Get(srv.URL + "/events")
	if err != nil {
		t.Fatal(err)
	}
	refused.Body.Close()
	if refused.StatusCode != http.StatusServiceUnavailable || refused.Header.Get("Retry-After") != strconv.Itoa(retryStream) {
		t.Errorf("one stream too many: %s, Retry-After %q", refused.Status, refused.Header.Get("Retry-After"))
	}
	all[7].body.Close()
	for end := time.Now().Add(20 * time.Second); h.streams.Load() >= maxStreams; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a stream whose client has gone does not end")
		}
	}
	openStream(t, client, srv.URL, "")
}

// TestStreamsOutliveTheWriteTimeout: a stream has events after the time in which other answers have to be read, in HTTP/1 and in HTTP/2, with
// TLS and a password before it.
func TestStreamsOutliveTheWriteTimeout(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(protocol, func(t *testing.T) {
			h, change, _ := liveHandler(t)
			srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, password, _ := r.BasicAuth(); password != "secret" {
					http.Error(w, "a password is missing", http.StatusUnauthorized)
					return
				}
				h.ServeHTTP(w, r)
			}))
			const timeout = 300 * time.Millisecond
			srv.Config.WriteTimeout = timeout
			srv.EnableHTTP2 = protocol == "HTTP/2.0"
			srv.StartTLS()
			t.Cleanup(srv.Close)
			if !srv.EnableHTTP2 {
				srv.Client().Transport.(*http.Transport).TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
			}
			s := openStream(t, srv.Client(), strings.Replace(srv.URL, "https://", "https://ann:secret@", 1), "")
			time.Sleep(2 * timeout) // the limit of other answers has passed
			for n := range 2 {
				change()
				if data, err := s.next(); err != nil || data != strconv.Itoa(n+1) {
					t.Errorf("event %d: %q, %v", n+1, data, err)
				}
			}
		})
	}
}

// TestStreamsAreResumed: a client that missed a change while it was away gets an event at once, and one that missed none does not.
func TestStreamsAreResumed(t *testing.T) {
	h, change, _ := liveHandler(t)
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	change()
	change()
	missed := openStream(t, srv.Client(), srv.URL, "1")
	if data, err := missed.next(); err != nil || data != "2" {
		t.Errorf("the missed change: %q, %v", data, err)
	}
	upToDate := openStream(t, srv.Client(), srv.URL, "2")
	change()
	if data, err := upToDate.next(); err != nil || data != "3" {
		t.Errorf("the first event of a client that missed none: %q, %v", data, err)
	}
}

// brokenClient is a client that takes some pieces of a stream, and then has gone without notice.
type brokenClient struct {
	http.ResponseWriter
	taken strings.Builder
	left  int
}

// Write implements http.ResponseWriter.
func (b *brokenClient) Write(p []byte) (int, error) {
	if b.left--; b.left < 0 {
		return 0, net.ErrClosed
	}
	return b.taken.Write(p)
}

// Flush implements http.Flusher.
func (b *brokenClient) Flush() {}

// TestDeadClientsAreNoticed: what is sent between events shows that a client has gone.
func TestDeadClientsAreNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, _ := liveHandler(t)
		w := &brokenClient{ResponseWriter: httptest.NewRecorder(), left: 3}
		begun := time.Now()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/events", nil))
		if took := time.Since(begun); took != 3*heartbeat {
			t.Errorf("a client that has gone is noticed after %s", took)
		}
		if got := w.taken.String(); strings.Contains(got, "data") || strings.Count(got, ":\n\n") != 2 {
			t.Errorf("it was sent %q", got)
		}
	})
}

// TestAnswersAreShared: an answer is rendered once for an address and a snapshot, for a while, and once for each kind of viewer.
func TestAnswersAreShared(t *testing.T) {
	h, change, rendered := liveHandler(t)
	now := noon()
	h.Now = func() time.Time { return now }
	expect := func(what string, want int64, address string) {
		t.Helper()
		before := rendered.Load()
		if got := get(t, h, address); got.Code != http.StatusOK && got.Code != http.StatusBadRequest {
			t.Errorf("%s: status %d", what, got.Code)
		}
		if n := rendered.Load() - before; n != want {
			t.Errorf("%s: rendered %d times, want %d", what, n, want)
		}
	}
	expect("the first viewer", 1, "/")
	expect("the second viewer", 0, "/")
	expect("another address", 1, "/?fragment=main")
	expect("a wrong request", 1, "/?src=nowhere&dst=nowhere")
	expect("the same wrong request", 0, "/?src=nowhere&dst=nowhere")
	now = now.Add(sharedFor)
	expect("ages are old", 1, "/")
	expect("a viewer then", 0, "/")
	change()
	expect("another snapshot", 1, "/")
	if n := len(h.shared.kept); n != 1 {
		t.Errorf("%d answers are kept of earlier snapshots", n-1)
	}
	if got := get(t, h, "/?src=nowhere&dst=nowhere"); got.Code != http.StatusBadRequest || got.Header().Get("ETag") != "" {
		t.Errorf("a wrong request: status %d, ETag %q", got.Code, got.Header().Get("ETag"))
	}

	g, s, answers := runningJobs(t)
	running := handler(g, s)
	running.Changes, running.Observer = &snapshot.Changes{}, answers
	running.MayObserve = func(r *http.Request) error {
		if r.RemoteAddr == "192.0.2.1:1234" { // of httptest.NewRequest
			return errors.New("you may not")
		}
		return nil
	}
	one := get(t, running, "/?job=eval").Body.String()
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/?job=eval", nil)
	r.RemoteAddr = "127.0.0.1:1"
	running.ServeHTTP(w, r)
	if !strings.Contains(one, "you may not") || strings.Contains(w.Body.String(), "you may not") {
		t.Error("a viewer who may observe a job sees the page of one who may not, or the other way round")
	}
}

// TestSharedAnswersAreBounded: many addresses, and large answers, do not fill the memory, and those that are read stay.
func TestSharedAnswersAreBounded(t *testing.T) {
	h, _, _ := liveHandler(t)
	var looks atomic.Int64
	h.Now = func() time.Time { return noon().Add(time.Duration(looks.Add(1)) * time.Microsecond) }
	rendered := 0
	small := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { rendered++; fmt.Fprint(w, r.URL) })
	large := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, maxOctets/8)) })
	ask := func(address string, page http.HandlerFunc) {
		h.share(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, address, nil), "", page)
	}
	for i := range 3 * maxAnswers {
		ask(fmt.Sprintf("/?pod=p%d", i), small)
		ask("/", small)
	}
	if n := len(h.shared.kept); n != maxAnswers {
		t.Errorf("%d answers are kept, want %d", n, maxAnswers)
	}
	if rendered != 3*maxAnswers+1 {
		t.Errorf("%d pages were rendered for %d addresses: one that is read often is not kept", rendered, 3*maxAnswers+1)
	}
	for i := range 20 {
		ask(fmt.Sprintf("/large?%d", i), large)
	}
	ask("/?"+strings.Repeat("x", longestAddress), large)
	ask("/huge", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 2*maxOctets)) })
	octets := 0
	for key, a := range h.shared.kept {
		octets += a.answer.body.Len()
		if len(key.address) > longestAddress {
			t.Errorf("an answer is kept by an address of %d octets", len(key.address))
		}
	}
	if octets != h.shared.octets || octets > maxOctets {
		t.Errorf("%d octets are kept, and %d are counted; want %d at most", octets, h.shared.octets, maxOctets)
	}
	panicking := func() {
		defer func() { _ = recover() }() // as net/http does
		ask("/panic", func(http.ResponseWriter, *http.Request) { panic("as a defect would") })
	}
	panicking()
	if got := httptest.NewRecorder(); true {
		h.share(got, httptest.NewRequest(http.MethodGet, "/panic", nil), "", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "well") })
		if got.Code != http.StatusOK || got.Body.String() != "well" {
			t.Errorf("after a page that panicked: %d %q", got.Code, got.Body)
		}
	}
}

// TestAViewerThatGoesSpoilsNothing: the answer that others wait for is rendered to its end although the client that came first has gone.
func TestAViewerThatGoesSpoilsNothing(t *testing.T) {
	h, _, _ := liveHandler(t)
	begun, release := make(chan struct{}), make(chan struct{})
	slow := func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		<-release
		if err := r.Context().Err(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, "whole")
	}
	ctx, gone := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		h.share(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/slow", nil).WithContext(ctx), "", slow)
	})
	<-begun
	second := httptest.NewRecorder()
	wg.Go(func() { h.share(second, httptest.NewRequest(http.MethodGet, "/slow", nil), "", slow) })
	gone()
	impatient, leave := context.WithCancel(t.Context())
	leave()
	h.share(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/slow", nil).WithContext(impatient), "", slow) // does not wait
	close(release)
	wg.Wait()
	if second.Code != http.StatusOK || second.Body.String() != "whole" {
		t.Errorf("the second viewer gets %d %q", second.Code, second.Body)
	}
}
