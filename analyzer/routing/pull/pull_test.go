package pull

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/graylink/graylink/analyzer/switchpoll"
	"github.com/graylink/graylink/internal/routetable"
)

// doer answers as switches' agents do, without a network.
type doer func(*http.Request) (*http.Response, error)

func (d doer) RoundTrip(r *http.Request) (*http.Response, error) { return d(r) }

func respond(status int, body []byte) (*http.Response, error) {
	return &http.Response{StatusCode: status, Status: strconv.Itoa(status), Body: io.NopCloser(bytes.NewReader(body))}, nil
}

var prefix = netip.MustParsePrefix("10.0.1.0/24")

// agent is a switch whose route to prefix has a port.
type agent struct {
	*routetable.Table
	instance string
}

func newAgent(instance string) *agent { return &agent{routetable.NewTable(10), instance} }

func (a *agent) set(port string) {
	a.SetFIB(routetable.Routes{prefix: {port}}, time.Now(), time.Now())
	a.EndRound(time.Now())
}

func (a *agent) answer(t *testing.T, sw string, r *http.Request) (*http.Response, error) {
	since, err := strconv.ParseUint(r.URL.Query().Get("since"), 10, 64)
	if err != nil || r.URL.Path != "/api/v1/routes" {
		t.Errorf("asked for %s", r.URL)
	}
	if r.URL.Query().Get("instance") != a.instance {
		since = 0
	}
	report := a.ReportSince(since)
	report.Switch, report.Instance, report.At = sw, a.instance, time.Now()
	body, err := json.Marshal(report)
	if err != nil {
		t.Error(err)
	}
	return respond(http.StatusOK, body)
}

// TestRead follows a switch that changes, restarts and falls silent, beside one without routes and one that fails.
func TestRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leaf, silent := newAgent("a"), false
		leaf.set("up1")
		asked := map[string]int{}
		r := &Reader{Poller: switchpoll.Poller{Switches: []string{"leaf1", "leaf2", "leaf3"}, URL: func(sw string) string { return "http://" + sw }, Log: slog.New(slog.DiscardHandler), Client: &http.Client{Transport: doer(func(req *http.Request) (*http.Response, error) {
			sw := req.URL.Hostname()
			asked[sw]++
			switch {
			case sw == "leaf2":
				return respond(http.StatusNotFound, []byte("404 page not found"))
			case sw == "leaf3":
				return respond(http.StatusServiceUnavailable, []byte("starting"))
			case silent:
				return nil, io.ErrUnexpectedEOF
			}
			return leaf.answer(t, sw, req)
		})}}}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			r.Run(ctx, time.Second)
			close(done)
		}()
		last := uint64(0)
		sends := func(port string) {
			t.Helper()
			time.Sleep(1500 * time.Millisecond)
			synctest.Wait()
			if v, ok := r.Known(time.Now())["leaf1"]; !ok || !slices.Equal(v.FIB[prefix], []string{port}) {
				t.Errorf("%+v, want port %s", v, port)
			}
			if said := r.Reported(time.Now())["leaf1"]; said == nil || said.At.IsZero() || !slices.Equal(said.FIB[prefix], []string{port}) || said.RIB != nil {
				t.Errorf("%+v in words, want port %s and no RIB", said, port)
			} else if same := r.Reported(time.Now())["leaf1"]; said.TableVersion == last || same.TableVersion != said.TableVersion {
				t.Errorf("port %s: table version %d after %d, and %d when nothing changed", port, said.TableVersion, last, same.TableVersion)
			} else {
				last = said.TableVersion
			}
		}
		sends("up1")
		leaf.set("up2")
		sends("up2")
		leaf = newAgent("b")
		leaf.set("up3")
		sends("up3")
		silent = true
		time.Sleep(8 * time.Second)
		if _, ok := r.Known(time.Now())["leaf1"]; !ok {
			t.Error("unknown after 8 s")
		}
		time.Sleep(4 * time.Second)
		if len(r.Known(time.Now())) != 0 {
			t.Error("a silent switch is known")
		}
		silent = false
		time.Sleep(maxBackoff)
		leaf.set("up4")
		sends("up4")
		if c := r.TotalCounts(); asked["leaf2"] != 1 || asked["leaf3"] > 10 || c.Failures == 0 || c.Failures >= c.Pulls {
			t.Errorf("asked %v, %+v", asked, c)
		}
		stop()
		<-done
	})
}

func TestErrors(t *testing.T) {
	for body, want := range map[string]string{
		`{]`:                                "report:",
		`{"switch":"leaf9","instance":"i"}`: `switch "leaf9"`,
		`{"switch":"leaf1","instance":"i","since":3,"version":4}`:  "since version 3",
		`{"switch":"leaf1","instance":"i","fib":{"10.0.0.0/8":0}}`: "group 0",
		strings.Repeat(" ", 17<<20):                                "more than",
	} {
		r := &Reader{Poller: switchpoll.Poller{URL: func(sw string) string { return "http://" + sw }, Client: &http.Client{Transport: doer(func(*http.Request) (*http.Response, error) { return respond(http.StatusOK, []byte(body)) })}}}
		if err := r.PullOnce(t.Context(), r.table(), "leaf1"); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"leaf1"`) {
			t.Errorf("%.60s: %v, want an error with %s", body, err, want)
		}
		if len(r.Known(time.Now())) != 0 || r.TotalCounts() != (switchpoll.Counts{Pulls: 1, Failures: 1}) {
			t.Errorf("%.60s: something is known", body)
		}
	}
}

func TestIncompleteTablesAreUnknown(t *testing.T) {
	r := &Reader{}
	now := time.Now()
	if err := r.apply("leaf1", &routetable.Report{Switch: "leaf1", Instance: "i", Version: 1, Omitted: 1, Groups: [][]string{{"up1"}}, FIB: map[netip.Prefix]int{prefix: 0}, Sessions: []routetable.Session{}}, now); err != nil {
		t.Fatal(err)
	}
	if v := r.Known(now)["leaf1"]; v.FIB != nil || v.Sessions == nil {
		t.Errorf("%+v", v)
	}
}
