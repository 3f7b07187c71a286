package analyzer_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/evidence/evidencetest"
	"github.com/graylink/graylink/analyzer/looptest"
	"github.com/graylink/graylink/analyzer/routing"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
)

// sessionSeries answers queries by Prometheus' engine, with series that begin ten minutes before start.
type sessionSeries struct {
	db      evidence.Querier
	start   time.Time
	queries []string
	fails   bool
}

// QueryInstant implements evidence.Querier.
func (s *sessionSeries) QueryInstant(ctx context.Context, query string, at time.Time) ([]evidence.Sample, error) {
	s.queries = append(s.queries, query)
	if s.fails {
		return nil, errors.New("connection refused")
	}
	return s.db.QueryInstant(ctx, query, time.Unix(600, 0).Add(at.Sub(s.start)))
}

// TestSessionSeries has the flows of a link leave and come back twice. What the series of sessions and carriers say decides what is said.
// No switch has an agent, or only the leaf has one.
func TestSessionSeries(t *testing.T) {
	const both = `fabric_switch_bgp_session_up{switch="leaf2",port="up1"} 1x59 0 1 0 1x100
`
	for what, c := range map[string]struct {
		series  string
		carrier bool // it is known, and did not change
		agent   bool
		fails   bool
		want    string // in the verdict's summary
	}{
		"counted, while BFD stays": {series: both + `fabric_switch_bgp_sessions_established_total{switch="leaf2",port="up1"} 4x59 5 5 6 6x100
			fabric_switch_bfd_session_up{switch="leaf2",port="up1"} 1x200
			fabric_switch_bfd_session_downs_total{switch="leaf2",port="up1"} 3x200`, want: "The routing session of link leaf2:up1--spine1:dn2 flaps"},
		"counted, while the carrier stays": {series: `fabric_switch_bgp_session_up{switch="spine1",port="dn2"} 1x200
			fabric_switch_bgp_sessions_established_total{switch="spine1",port="dn2"} 4x59 5 5 6 6x100`, carrier: true, want: "The routing session of link leaf2:up1--spine1:dn2 flaps"},
		"a counter that begins again": {series: `fabric_switch_bgp_sessions_established_total{switch="spine1",port="dn2"} 40x59 1 1 2 2x100
			fabric_switch_bgp_session_up{switch="spine1",port="dn2"} 1x200`, carrier: true, want: "The routing session of link leaf2:up1--spine1:dn2 flaps"},
		"not counted, as SONiC's": {series: both, carrier: true, want: "The routing session of link leaf2:up1--spine1:dn2 flaps"},
		"BFD": {series: both + `fabric_switch_bfd_session_up{switch="leaf2",port="up1"} 1x200
			fabric_switch_bfd_session_downs_total{switch="leaf2",port="up1"} 3x59 4 4 5 5x100`, carrier: true, want: "BFD ends the routing session of link leaf2:up1--spine1:dn2 although data passes"},
		"a calm session":             {series: `fabric_switch_bgp_session_up{switch="leaf2",port="up1"} 1x200`, carrier: true, want: "Either its routing session flaps or the link itself does"},
		"a session of another port":  {series: strings.ReplaceAll(both, "up1", "up2"), carrier: true, want: "Either its routing session flaps or the link itself does"},
		"no series":                  {carrier: true, want: "Either its routing session flaps or the link itself does"},
		"a database that is down":    {series: both, carrier: true, fails: true, want: "Either its routing session flaps or the link itself does"},
		"an agent that saw no reset": {series: both, carrier: true, agent: true, want: "Either its routing session flaps or the link itself does"},
	} {
		t.Run(what, func(t *testing.T) {
			r := looptest.NewRig(t, 5)
			if c.agent {
				own := func(sw, port string) *routing.Switch {
					return &routing.Switch{Name: sw, Sessions: []routing.Session{{Port: port, Protocol: "bgp", Up: true, Established: 1}}}
				}
				r.Configure(func(o *analyzer.LoopOptions) {
					o.SwitchRoutes = func() map[string]*routing.Switch {
						return map[string]*routing.Switch{"leaf2": own("leaf2", "up1"), "spine1": own("spine1", "dn2")}
					}
				})
			}
			r.Learn()
			db := &sessionSeries{db: evidencetest.NewQuerier(t, "load 10s\n"+c.series), start: r.Now, fails: c.fails}
			r.Sessions = db
			if c.carrier {
				r.Carriers = map[string]int{"leaf2:up1": 0, "spine1:dn2": 0}
			}
			link := fabric.Element{ID: "leaf2:up1--spine1:dn2", Kind: fabric.KindLink}
			before := map[fabric.Flow]fabric.Path{}
			for f, p := range r.World.Paths {
				before[f] = p
			}
			for range 3 {
				r.Step()
			}
			if len(db.queries) > 0 {
				t.Errorf("%d queries while nothing happens", len(db.queries))
			}
			cycles := 0
			for range 2 {
				moveFlows(r, link, func(fabric.Flow, fabric.Path) bool { return true })
				for range 10 {
					r.Step()
					cycles++
				}
				r.World.Paths = map[fabric.Flow]fabric.Path{}
				for f, p := range before {
					r.World.Paths[f] = p
				}
				r.TraceAll()
				for range 6 {
					r.Step()
					cycles++
				}
			}
			r.Until(8, "the flap", func(s snapshot.Snapshot) bool {
				v := verdictsOn(s, fabric.RoutingFault)
				return len(v) == 1 && v[0].Element == link && strings.Contains(v[0].Summary, c.want)
			})
			if n := len(db.queries); c.agent && n > 0 || n > cycles/2 {
				t.Errorf("%d queries in %d cycles", n, cycles)
			}
			for _, q := range db.queries {
				if !strings.Contains(q, `{switch=~"leaf2|spine1",port=~"dn2|up1"}`) {
					t.Errorf("query %s", q)
				}
			}
		})
	}
}
