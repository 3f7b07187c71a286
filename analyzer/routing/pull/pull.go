// Package pull reads the routes and sessions of switches from their agents, and keeps the last table of each.
package pull

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/routing"
	"github.com/graylink/graylink/analyzer/switchpoll"
	"github.com/graylink/graylink/internal/routetable"
)

const (
	// maxBackoff bounds the time between questions to a switch that does not answer. It is shorter than KnownFor, so that a
	// switch which fails once does not become unknown.
	maxBackoff = 8 * time.Second
	// KnownFor is how long the table of a switch that does not answer counts as known.
	KnownFor = 10 * time.Second
)

// Reader reads the routes of switches.
type Reader struct {
	switchpoll.Poller

	mu       sync.Mutex
	tables   map[string]*kept
	versions uint64 // number of tables that were put in the words of package routing
}

// kept is the last table of a switch, and when its last answer arrived. said is the same in the words of package routing, as of a
// version of the view. It is nil before it is asked for.
type kept struct {
	view     routetable.View
	received time.Time
	said     *routing.Switch
	version  uint64
	instance string
}

// Known returns the tables of the switches that answered within KnownFor before now, by name. Tables of a switch that has
// no room for all prefixes are not known, but its sessions are. The caller must not change the maps.
func (r *Reader) Known(now time.Time) map[string]routetable.View {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]routetable.View, len(r.tables))
	for sw, k := range r.tables {
		if now.Sub(k.received) > KnownFor {
			continue
		}
		v := k.view
		if v.Omitted > 0 {
			v.FIB, v.RIB, v.Paths, v.Changed = nil, nil, nil, nil
		}
		out[sw] = v
	}
	return out
}

// Reported returns what the switches said that answered within KnownFor before now, by name. The caller must not change it.
func (r *Reader) Reported(now time.Time) map[string]*routing.Switch {
	known := r.Known(now)
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]*routing.Switch, len(known))
	for sw, v := range known {
		k := r.tables[sw]
		if k == nil {
			continue
		}
		if k.said == nil || k.version != v.Version || k.instance != v.Instance {
			k.said, k.version, k.instance = switchOf(&v), v.Version, v.Instance
			r.versions++
			k.said.TableVersion = r.versions
		}
		said := *k.said
		said.At, said.RIBAt = v.At, v.RIBAt
		out[sw] = &said
	}
	return out
}

// switchOf returns what a view says as package routing has it.
func switchOf(v *routetable.View) *routing.Switch {
	out := &routing.Switch{Name: v.Switch, FIB: v.FIB, RIB: v.RIB, Paths: v.Paths}
	for _, s := range v.Sessions {
		x := routing.Session{Port: s.Port, Protocol: s.Protocol, Up: s.Up, Detection: s.Detection}
		if s.Established != nil {
			x.Established = *s.Established
		}
		if s.Downs != nil {
			x.Downs = *s.Downs
		}
		out.Sessions = append(out.Sessions, x)
	}
	return out
}

// Run reads from every switch each interval until ctx ends. It requests a failing switch less and less often.
func (r *Reader) Run(ctx context.Context, interval time.Duration) { r.Follow(ctx, r.table(), interval) }

// table describes the tables of routes, which agents have with --routes.
func (r *Reader) table() *switchpoll.Table {
	return &switchpoll.Table{Name: "routes", Path: "/api/v1/routes", MaxBackoff: maxBackoff, Optional: true, NextQuery: r.nextQuery,
		Apply: func(sw string, body []byte, _, _ time.Time) error {
			report, err := routetable.ParseReport(body)
			if err != nil {
				return err
			}
			return r.apply(sw, report, time.Now())
		}}
}

// nextQuery returns the instance and version that the next answer of a switch is to continue.
func (r *Reader) nextQuery(sw string) (instance string, since uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := r.tables[sw]; k != nil {
		return k.view.Instance, k.view.Version
	}
	return "", 0
}

// apply applies a report that was received at a time. If it does not continue the table, the table is forgotten, so that
// the next query is for the whole.
func (r *Reader) apply(sw string, report *routetable.Report, received time.Time) error {
	if report.Switch != sw {
		return fmt.Errorf("it reports of switch %q", report.Switch)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.tables[sw]
	if k == nil {
		k = &kept{}
	}
	if err := k.view.Apply(report); err != nil {
		delete(r.tables, sw)
		return err
	}
	k.received = received
	if r.tables == nil {
		r.tables = map[string]*kept{}
	}
	r.tables[sw] = k
	return nil
}
