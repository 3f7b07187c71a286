package ibsample

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func serve(t *testing.T, d *Delegator) *Remote {
	server := httptest.NewServer(d.Handler(time.Now))
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return &Remote{Base: u, Client: server.Client()}
}

func TestWorkAndReportsCrossTheWire(t *testing.T) {
	d := NewDelegator(Options{Interval: time.Hour, Metrics: Selection{"PortXmitData"}})
	d.SetTargets(targetsOf(2, 2))
	r := serve(t, d)
	a, err := r.FetchAssignment(t.Context(), "a", "i", 0)
	if err != nil {
		t.Fatal(err)
	}
	if want, _ := d.AssignmentFor("a", "i", time.Now()); !reflect.DeepEqual(a, want) {
		t.Errorf("%+v, want %+v", a, want)
	}
	report := Report{Sampler: "a", Instance: "i", Vocabulary: Vocabulary, Tick: d.tickOf(time.Now()), Done: true,
		Readings: []Reading{{Key: a.Targets[0].Key, Traits: &Traits{Known: true, Capabilities2: 1 << 26}, Answers: []Answer{{At: time.Now().UnixNano(), IDs: []ID{20}, Raws: []uint64{1<<64 - 1}}}}}}
	before := time.Now().UnixNano()
	c, err := r.SendReport(t.Context(), &report)
	if err != nil || c.Received < before || c.Answered < c.Received {
		t.Errorf("clock %+v, %v", c, err)
	}
	if p := d.Store.Snapshot(time.Now()).Ports[0]; len(p.Counts) != 1 || p.Counts[0].Raw != 1<<64-1 {
		t.Errorf("kept %+v", p)
	}
	report.Vocabulary = "another"
	if _, err := r.SendReport(t.Context(), &report); err == nil || !strings.Contains(err.Error(), "same version") {
		t.Errorf("another vocabulary: %v", err)
	}
	report.Vocabulary, report.Sampler = Vocabulary, ""
	if _, err := r.SendReport(t.Context(), &report); err == nil {
		t.Error("a report without a sampler's name is accepted")
	}
}

// TestWorkIsSentWhenItChanges checks that a second sampler's joining answers the first one's waiting request,
// and that its leaving, which breaks its connection, does so again.
func TestWorkIsSentWhenItChanges(t *testing.T) {
	d := NewDelegator(Options{Interval: 200 * time.Millisecond})
	d.SetTargets(targetsOf(2, 2))
	watch, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { d.WatchSamplers(watch); close(ended) }()
	defer func() { stop(); <-ended }()
	r := serve(t, d)
	crew := map[string]context.CancelFunc{}
	for _, name := range []string{"a", "b"} {
		s, err := NewSampler(name, r, newFabric(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		crew[name] = func() { stop(); <-done }
	}
	ports := func(want map[string]int) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			got := map[string]int{}
			for _, s := range d.Status().Samplers {
				got[s.Name] = s.Ports
			}
			if reflect.DeepEqual(got, want) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("ports %v, want %v", got, want)
			}
		}
	}
	ports(map[string]int{"a": 2, "b": 2})
	crew["b"]()
	ports(map[string]int{"a": 4})
	crew["a"]()
}

// TestADelegatorThatIsStartedAnew checks that samplers join the next delegator, and that counters continue
// where they were, because they are the ports' own.
func TestADelegatorThatIsStartedAnew(t *testing.T) {
	fresh := func() *Delegator {
		d := NewDelegator(Options{Interval: 100 * time.Millisecond, Metrics: Selection{"PortCounters"}})
		d.SetTargets(targetsOf(2, 2))
		return d
	}
	var serving atomic.Pointer[http.ServeMux]
	become := func(d *Delegator) {
		serving.Store(d.Handler(time.Now))
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { serving.Load().ServeHTTP(w, r) }))
	defer server.Close()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	first := fresh()
	become(first)
	s, err := NewSampler("a", &Remote{Base: u, Client: server.Client()}, newFabric(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { s.Run(ctx); close(ended) }()
	defer func() { stop(); <-ended }()
	read := func(d *Delegator) (ports []PortState) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			ports = d.Store.Snapshot(time.Now()).Ports
			if !slices.ContainsFunc(ports, func(p PortState) bool { return len(p.Counts) == 0 }) {
				return ports
			}
			if time.Now().After(end) {
				t.Fatal("ports are not read")
			}
		}
	}
	before := read(first)
	second := fresh()
	become(second)
	server.CloseClientConnections()
	for i, p := range read(second) {
		for k, c := range p.Counts {
			if c.Raw < before[i].Counts[k].Raw {
				t.Errorf("%s went from %d to %d", p.Target.Element, before[i].Counts[k].Raw, c.Raw)
			}
		}
	}
}

func pack(t testing.TB, text []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestReportsThatAreNone(t *testing.T) {
	for what, body := range map[string][]byte{"gzip": []byte("{}"), "report": pack(t, []byte(`{"tick":"x"}`)), "EOF": pack(t, []byte(`{"readings":[`))} {
		var r Report
		if err := readReport(bytes.NewReader(body), &r); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// FuzzReport checks that the delegator survives any report, and publishes only counters.
func FuzzReport(f *testing.F) {
	good, err := json.Marshal(Report{Sampler: "a", Instance: "i", Vocabulary: Vocabulary, Tick: 5, Done: true,
		Readings: []Reading{{Key: Key{1, 1}, Answers: []Answer{{At: 5, IDs: []ID{1, 2}, Raws: []uint64{3, 4}}}, Errors: []ReadError{{"PortCounters", "timeout"}}}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"readings":[{"answers":[{"ids":[65535],"raws":[]}]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		d := NewDelegator(Options{Interval: time.Second})
		d.SetTargets(targetsOf(1, 2))
		var r Report
		if readReport(bytes.NewReader(pack(t, text)), &r) != nil {
			return
		}
		now := time.Unix(5, 0)
		d.AcceptReport(&r, now)
		d.AcceptReport(&r, now.Add(time.Second))
		d.RemoveDead(now.Add(time.Minute))
		for _, p := range d.Store.Snapshot(now).Ports {
			for _, c := range p.Counts {
				_ = c.ScaledValue()
				if !c.IsSaturated() && c.Raw > Counters[c.ID].MaxValue() {
					t.Fatalf("%s holds %d", Counters[c.ID].Field, c.Raw)
				}
			}
		}
	})
}

// TestABodyIsNotReadBeforeItsSamplerIsKnown checks that a request without a sampler's name, or with one that is
// not in the certificate, is refused before its body is read.
func TestABodyIsNotReadBeforeItsSamplerIsKnown(t *testing.T) {
	d := NewDelegator(Options{Interval: time.Hour})
	h := d.Handler(time.Now)
	var body bytes.Buffer
	z := gzip.NewWriter(&body)
	if err := json.NewEncoder(z).Encode(Report{Sampler: "b", Instance: "i", Vocabulary: Vocabulary}); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	known := "?sampler=a&instance=i&vocabulary=" + url.QueryEscape(Vocabulary)
	certificate := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{DNSNames: []string{"b"}}}}
	for _, tc := range []struct {
		name, query string
		tls         *tls.ConnectionState
		read        bool
		want        int
	}{
		{"no name", "", nil, false, http.StatusForbidden},
		{"no certificate", known, &tls.ConnectionState{}, false, http.StatusForbidden},
		{"a certificate of another sampler", known, certificate, false, http.StatusForbidden},
		{"another vocabulary", "?sampler=a&instance=i&vocabulary=x", nil, false, http.StatusForbidden},
		{"a report of another sampler", known, nil, true, http.StatusForbidden},
		{"its own", strings.Replace(known, "=a&", "=b&", 1), certificate, true, http.StatusOK},
	} {
		r := &countedReader{Reader: bytes.NewReader(body.Bytes())}
		req := httptest.NewRequest(http.MethodPost, reportPath+tc.query, r)
		req.TLS = tc.tls
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		if w.Code != tc.want || r.n > 0 != tc.read {
			t.Errorf("%s: %d %s; %d octets were read", tc.name, w.Code, w.Body, r.n)
		}
	}
}

// countedReader counts the octets read.
type countedReader struct {
	io.Reader
	n int
}

// Read implements io.Reader.
func (c *countedReader) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n += n
	return n, err
}
