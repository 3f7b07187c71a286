package ibsubnet

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibfabric"
)

// tree returns the fabric of the files of internal/ibfabric, which is another one for another number of its first table's port.
func tree(t *testing.T, port uint8) *ibfabric.Fabric {
	t.Helper()
	f, _, err := ReadFiles("../ibfabric/testdata/tree.ibnetdiscover", "../ibfabric/testdata/tree.lfts")
	if err != nil {
		t.Fatal(err)
	}
	tables := append([][]uint8{}, f.LFTs...)
	tables[0] = append([]uint8{}, tables[0]...)
	tables[0][1] = port
	return f.WithTables(tables)
}

// TestReportsConfirmWhatReadingsDo has an agent whose readings change while an analyzer does not ask. What the analyzer gets is
// broken exactly if a path may have changed and changed back between its requests.
func TestReportsConfirmWhatReadingsDo(t *testing.T) {
	a, b := tree(t, 1), tree(t, 2)
	at := time.Now().Add(-time.Minute)
	var s *Server
	reading := func(f *ibfabric.Fabric, broken bool) {
		at = at.Add(time.Second)
		s.Apply(ibfabric.Reading{Fabric: f, Begun: at, Ended: at.Add(time.Millisecond), Broken: broken}, "device umad0")
	}
	again := func(f *ibfabric.Fabric) {
		s.Apply(ibfabric.Reading{Fabric: f, Begun: at, Ended: at.Add(time.Millisecond), Broken: true}, "device umad0")
	}
	for _, x := range []struct {
		name    string
		between func()
		fabric  *ibfabric.Fabric
		broken  bool
		since   time.Duration // from the time of the agent's first reading; 0 means that it confirmed nothing of a broken one
	}{
		{"the same twice", func() { reading(a, false) }, a, false, 0},
		{"no reading between", func() {}, a, false, 0},
		{"several that agree", func() { reading(a, false); reading(a, false); reading(a, false) }, a, false, 0},
		{"one change", func() { reading(a, false); reading(b, false) }, b, false, 0},
		{"a change that was undone", func() { reading(b, false); reading(a, false) }, a, true, 0},
		{"a reading that was broken", func() { reading(a, true) }, a, true, 0},
		{"broken and read again", func() { reading(a, true); reading(a, false) }, a, true, time.Second},
		{"broken, another and the same", func() { reading(b, true); reading(a, false); reading(a, false) }, a, true, 2 * time.Second},
		{"a failure between", func() { s.Fail(errors.New("no answer")); reading(a, false) }, a, true, 0},
		{"another start of the agent", func() { s = NewServer(); reading(a, true) }, a, true, 0},
		{"a change reported since", func() { again(a) }, a, true, 0},
		{"a change reported after a reading that agrees", func() { reading(a, false); again(a) }, a, true, 0},
		{"a change reported, and read twice", func() { again(a); reading(a, true); reading(a, false) }, a, true, time.Second},
	} {
		s = NewServer()
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.ServeHTTP(w, r) }))
		client := &Agents{Client: web.Client(), URLs: []string{web.URL}}
		reading(a, true)
		first, err := client.Read(t.Context())
		if err != nil || !first.Broken {
			t.Fatalf("%s: the first reading: %+v, %v; broken is expected", x.name, first, err)
		}
		began := at
		x.between()
		r, err := client.Read(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", x.name, err)
		}
		if r.Broken != x.broken || !r.Fabric.Equal(x.fabric) || (r.Fabric == first.Fabric) != (x.fabric == a) {
			t.Errorf("%s: broken %v, want %v; the same fabric %v", x.name, r.Broken, x.broken, r.Fabric == first.Fabric)
		}
		if r.Since.IsZero() != (x.since == 0) || x.since > 0 && r.Since.Before(began.Add(x.since+time.Millisecond)) {
			t.Errorf("%s: since %v, want %v", x.name, r.Since.Sub(began), x.since)
		}
		web.Close()
	}
}

// TestTimesOfAnAgent has an agent whose clock is ten minutes ahead. What is confirmed may be shorter by the time of the request,
// and is never longer.
func TestTimesOfAnAgent(t *testing.T) {
	ahead := 10 * time.Minute
	sent := time.Unix(1_800_000_000, 0)
	received := sent.Add(40 * time.Millisecond)
	now := sent.Add(25 * time.Millisecond).Add(ahead) // by the agent's clock, on the way
	begun, ended := sent.Add(-300*time.Millisecond), sent.Add(-200*time.Millisecond)
	text, err := ibfabric.EncodeFabric(tree(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	a := &Agents{URLs: []string{"http://h"}}
	r, err := a.apply(Report{Instance: "x", Number: 1, Now: now, HeldSince: ended.Add(ahead), Begun: begun.Add(ahead), Ended: ended.Add(ahead), Fabric: text}, sent, received)
	if err != nil {
		t.Fatal(err)
	}
	if r.Begun.After(begun) || r.Begun.Before(begun.Add(-40*time.Millisecond)) {
		t.Errorf("begun %v after the truth, want at most 0 and at least -40ms", r.Begun.Sub(begun))
	}
	if r.Ended.Before(ended) || r.Ended.After(ended.Add(40*time.Millisecond)) {
		t.Errorf("ended %v after the truth, want 0 to 40ms", r.Ended.Sub(ended))
	}
	for name, p := range map[string]Report{
		"no times":      {Instance: "x", Number: 1, Fabric: text},
		"no fabric":     {Instance: "y", Number: 1, Now: now, Begun: begun, Ended: ended},
		"ends early":    {Instance: "x", Number: 1, Now: now, Begun: ended, Ended: begun},
		"of the future": {Instance: "x", Number: 1, Now: begun, Begun: begun, Ended: ended},
		"a wrong one":   {Instance: "y", Number: 1, Now: now, Begun: begun, Ended: ended, Fabric: []byte(`{"nodes":[]}`)},
	} {
		if _, err := a.apply(p, sent, received); err == nil || !strings.HasPrefix(err.Error(), "report: ") {
			t.Errorf("%s: %v, want an error about the report", name, err)
		}
	}
}

// TestTheNextAgentTakesOver has two agents, of which the first stops to answer.
func TestTheNextAgentTakesOver(t *testing.T) {
	f := tree(t, 1)
	at := time.Now().Add(-time.Minute)
	serve := func() (*Server, *httptest.Server) {
		s := NewServer()
		s.Apply(ibfabric.Reading{Fabric: f, Begun: at, Ended: at}, "device umad0")
		web := httptest.NewServer(s)
		t.Cleanup(web.Close)
		return s, web
	}
	first, one := serve()
	second, two := serve()
	a := &Agents{Client: one.Client(), URLs: []string{one.URL, two.URL}}
	if _, err := a.Read(t.Context()); err != nil || !strings.Contains(a.Origin(), one.URL+": device umad0") {
		t.Fatalf("%v, %s", err, a.Origin())
	}
	first.Fail(errors.New("no answer from the own port"))
	r, err := a.Read(t.Context())
	if err != nil || !strings.Contains(a.Origin(), two.URL) || !r.Broken {
		t.Fatalf("%v, %s, broken %v; the second agent is expected, and that it confirms nothing yet", err, a.Origin(), r.Broken)
	}
	if r, err = a.Read(t.Context()); err != nil || r.Broken {
		t.Errorf("%v, broken %v: the second reading of the second agent confirms", err, r.Broken)
	}
	// An agent that takes requests and does not answer, as one whose host hangs. The other one has read the subnet twice.
	hang := make(chan struct{})
	three := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	defer three.Close()
	defer close(hang)
	second.Apply(ibfabric.Reading{Fabric: f, Begun: at.Add(time.Second), Ended: at.Add(time.Second)}, "device umad0")
	b := &Agents{Client: one.Client(), URLs: []string{three.URL, two.URL}}
	if r, err = b.Read(t.Context()); err != nil || !r.Broken || r.Since.IsZero() || !strings.Contains(b.Origin(), two.URL) {
		t.Errorf("%v, broken %v, since %v, %s: what the second agent has confirmed is expected at once", err, r.Broken, r.Since, b.Origin())
	}
	two.Close()
	if _, err = a.Read(t.Context()); err == nil || !strings.Contains(err.Error(), one.URL) || !strings.Contains(err.Error(), two.URL) || !strings.Contains(err.Error(), "no answer from the own port") {
		t.Errorf("%v: both agents and their reasons are expected", err)
	}
}
