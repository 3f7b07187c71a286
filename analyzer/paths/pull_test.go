package paths

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/graylink/graylink/analyzer/switchpoll"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sighting"
)

// agent answers for a switch as graylink-switch would: the whole table to whoever
// does not name its instance and version.
func agent(sw, instance string, version uint64, seen string) *sighting.Report {
	now := time.Now()
	r := &sighting.Report{Switch: sw, Kind: sighting.KindPacket, Instance: instance, Version: version, At: now, Through: now, Fresh: 3 * time.Second, Flows: seenBy(0, seen)}
	for i := range r.Flows {
		for j := range r.Flows[i].Ports {
			r.Flows[i].Ports[j].First, r.Flows[i].Ports[j].Last = now.Add(-time.Minute), now
		}
	}
	return r
}

func TestPull(t *testing.T) {
	tables := map[string]string{"leaf1": "0:dn1", "spine1": "0:dn1", "leaf2": "0:up1"}
	asked := map[string]string{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sw, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		if path != "api/v1/sightings" {
			t.Errorf("asked for %s", r.URL)
		}
		asked[sw] = r.URL.RawQuery
		rep := agent(sw, "i", 7, tables[sw])
		if r.URL.Query().Get("instance") == "i" && r.URL.Query().Get("since") == "7" {
			rep.Since, rep.Flows = 7, nil
		}
		if err := json.NewEncoder(w).Encode(rep); err != nil {
			t.Error(err)
		}
	}))
	defer srv.Close()
	s := NewSightings(NewStore(graph(t)), ports)
	p := &Puller{Sightings: s, Poller: switchpoll.Poller{Client: srv.Client(), URL: func(sw string) string { return srv.URL + "/" + sw }, Log: slog.New(slog.DiscardHandler)}}
	for range 2 {
		for sw := range tables {
			if err := p.PullOnce(t.Context(), p.table(), sw); err != nil {
				t.Fatal(err)
			}
		}
	}
	if b, _ := s.store.CurrentBinding(flow(0)); b.State != fabric.PathValid || b.Path.CanonicalKey() != by(1).CanonicalKey() {
		t.Errorf("%s %q %q", b.State, b.Path.CanonicalKey(), b.Notes)
	}
	if asked["leaf1"] != "instance=i&since=7" || p.TotalCounts() != (switchpoll.Counts{Pulls: 6}) {
		t.Errorf("asked %v, %+v", asked, p.TotalCounts())
	}
}

// TestPullErrors checks that errors are counted and name the switch.
func TestPullErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"status": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no table yet", http.StatusServiceUnavailable)
		}, "no table yet"},
		"garbage": {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{]") }, "report:"},
		"type":    {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"version":"x"}`) }, "version"},
		"field":   {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"switch":"leaf1"}`) }, `"instance"`},
		"endless": {func(w http.ResponseWriter, _ *http.Request) {
			spaces := bytes.Repeat([]byte(" "), 1<<20)
			for range 17 { // MiB
				if _, err := w.Write(spaces); err != nil {
					return
				}
			}
		}, "more than"},
	} {
		// In virtual time, because the endless answer may take a busy machine longer than a pull may.
		synctest.Test(t, func(t *testing.T) {
			s := NewSightings(NewStore(graph(t)), ports)
			p := &Puller{Sightings: s, Poller: switchpoll.Poller{URL: func(sw string) string { return "http://" + sw }, Client: &http.Client{Transport: doer(func(r *http.Request) (*http.Response, error) {
				w := httptest.NewRecorder()
				tt.answer(w, r)
				return w.Result(), nil
			})}}}
			err := p.PullOnce(t.Context(), p.table(), "leaf1")
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), `"leaf1"`) {
				t.Errorf("%s: %v", name, err)
			}
			if p.TotalCounts() != (switchpoll.Counts{Pulls: 1, Failures: 1}) || len(s.tables) != 0 {
				t.Errorf("%s: %+v", name, p.TotalCounts())
			}
		})
	}
}

// doer is a switch's agent without a network.
type doer func(*http.Request) (*http.Response, error)

func (d doer) RoundTrip(r *http.Request) (*http.Response, error) { return d(r) }

// TestPullerBacksOff: a switch that fails is asked less and less often, another one
// every second, and a silent one's flows are stitched without it.
func TestPullerBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var asked []time.Duration
		good := 0
		s := NewSightings(NewStore(graph(t)), ports)
		p := &Puller{Sightings: s, Poller: switchpoll.Poller{Switches: []string{"leaf1", "leaf2", "spine1"}, URL: func(sw string) string { return "http://" + sw }, Log: slog.New(slog.DiscardHandler),
			Client: &http.Client{Transport: doer(func(r *http.Request) (*http.Response, error) {
				var rep *sighting.Report
				switch sw := r.URL.Hostname(); sw {
				case "spine1":
					asked = append(asked, time.Since(begin).Truncate(time.Second))
					<-r.Context().Done() // it never answers
					return nil, r.Context().Err()
				case "leaf1":
					rep = agent(sw, "i", 1, "0:dn1")
				default:
					// It fails now and then, and is asked again a second later every time.
					if good++; good%10 == 0 {
						return nil, io.ErrUnexpectedEOF
					}
					rep = agent(sw, "i", 1, "0:up1")
				}
				body, err := json.Marshal(rep)
				return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(body))}, err
			})}}}
		ctx, stop := context.WithTimeout(t.Context(), 60*time.Second)
		defer stop()
		p.Run(ctx, time.Second)
		want := "[0s 6s 13s 22s 35s 56s]" // 5 s of waiting, then 1, 2, 4, 8, 16
		if got := fmt.Sprint(asked); got != want {
			t.Errorf("asked at %s, want %s", got, want)
		}
		if good < 59 || good > 60 {
			t.Errorf("the other one was asked %d times", good)
		}
		if b, _ := s.store.CurrentBinding(flow(0)); b.State != fabric.PathValid || len(b.Notes) != 1 {
			t.Errorf("%s %q", b.State, b.Notes)
		}
	})
}

// FuzzReport: whatever an agent answers is used or refused, and what it makes are
// paths of cables that exist.
func FuzzReport(f *testing.F) {
	for _, sw := range four {
		body, err := json.Marshal(agent(sw, "i", 3, "0:dn1 1:up1 2:up2<up1 3:nowhere"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	f.Add([]byte(`{"switch":"leaf1","instance":"i","at":"9999-12-31T23:59:59Z","fresh_ns":1,"seen":[{"src":"10.0.1.2:49152","dst":"10.0.2.2:862","ports":[{"port":"dn1"}]}],"gone":[{}]}`))
	g := graph(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		var r sighting.Report
		if err := json.Unmarshal(body, &r); err != nil {
			return
		}
		s := NewSightings(NewStore(g), ports)
		for _, sw := range four {
			_ = s.ApplyReport(sw, &r, sec(10), sec(10.1))
		}
		s.Tick(sec(15))
		s.Tick(sec(25))
		for _, e := range s.store.FlowsBetween("", "") {
			b, _ := s.store.CurrentBinding(e)
			from, to := e.Endpoints()
			for _, d := range b.Path.LinkDirections(from, to) {
				if g.PeerOf(d.From) != d.To {
					t.Fatalf("%s crosses %s, which is no cable", e, d)
				}
			}
		}
	})
}
