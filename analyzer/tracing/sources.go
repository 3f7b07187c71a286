// Package tracing feeds the store of paths: it has the nodes trace their flows, pulls the sightings of switches, and
// reads forwarding tables and neighbours.
package tracing

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/analyzer/switchpoll"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ibsubnet"
)

// pullEvery is the interval at which sightings are pulled from switches.
const pullEvery = 500 * time.Millisecond

// SwitchAgents configures the access to the agents of switches, and the mapping of their sightings to flows.
type SwitchAgents struct {
	Client   *http.Client
	URL      func(sw string) string // returns the base URL of a switch, without a path
	Switches []string
	Mapper   paths.Mapper
}

// Subnet is an InfiniBand subnet, with where its forwarding tables are read.
type Subnet struct {
	Source ibsubnet.Source
	// StaleAfter is the age from which paths are stale if the source confirms nothing any more. Windows have no path then. 0 means
	// that they keep the last one.
	StaleAfter time.Duration
	// State has the name of the subnet, and takes what becomes of the readings.
	State *ibsubnet.State
}

// Options configure Sources.
type Options struct {
	Store    *paths.Store
	DB       evidence.Querier
	Settings evidence.Settings
	// Agents trace flows. Nil means that paths come from sightings or forwarding tables alone.
	Agents Agents
	// SwitchAgents are the switches that report sightings. Nil means that none does.
	SwitchAgents *SwitchAgents
	// Subnets are the InfiniBand subnets whose forwarding tables are read.
	Subnets []Subnet
	// HopCounts takes the counts of hop-limited probes. It may be nil.
	HopCounts func(fabric.Flow, []fabric.HopCount)
	// Log must not be nil.
	Log *slog.Logger
}

// Sources are all that paths come from.
type Sources struct {
	opts       Options
	tracer     *Tracer
	sightings  *paths.Sightings // nil if no switch reports sightings
	puller     *paths.Puller
	neighbours *neighbourPoller
	tables     []*paths.Tables // bind flows of InfiniBand: one for each of Options.Subnets
}

// NewSources returns Sources that do not run yet.
func NewSources(o Options) *Sources {
	s := &Sources{opts: o, neighbours: newNeighbourPoller(o.DB, o.Settings, o.Store), tracer: NewTracer(TracerOptions{Agents: o.Agents, Store: o.Store, HopCounts: o.HopCounts, Log: o.Log})}
	for _, subnet := range o.Subnets {
		t := paths.NewTables(o.Store, 0)
		t.StaleAfter = subnet.StaleAfter
		s.tables = append(s.tables, t)
	}
	if from := o.SwitchAgents; from != nil {
		s.sightings = paths.NewSightings(o.Store, from.Mapper)
		s.puller = &paths.Puller{Sightings: s.sightings, Poller: switchpoll.Poller{Client: from.Client, URL: from.URL, Switches: from.Switches, Log: o.Log}}
	}
	return s
}

// InheritFrom takes over the counters of other Sources, which have stopped.
func (s *Sources) InheritFrom(old *Sources) {
	s.tracer.InheritFrom(old.tracer)
}

// Tracer returns what has the nodes trace flows.
func (s *Sources) Tracer() *Tracer { return s.tracer }

// Run feeds the store until ctx ends, and waits for the goroutines that it started.
func (s *Sources) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	if s.puller != nil {
		wg.Go(func() { s.puller.Run(ctx, pullEvery) })
	}
	wg.Go(func() { s.neighbours.watchNeighbours(ctx, s.opts.Log) })
	for i, subnet := range s.opts.Subnets {
		wg.Go(func() {
			ibsubnet.Follow(ctx, subnet.Source, subnet.State, s.opts.Log, func(r ibfabric.Reading, err error) { s.applyReading(i, r, err) })
		})
	}
	wg.Go(func() { s.tracer.Run(ctx) })
}

// applyReading takes an attempt to read a subnet. One that failed confirms nothing, and paths are stale until two more
// succeed.
func (s *Sources) applyReading(subnet int, r ibfabric.Reading, err error) {
	if err == nil {
		s.tables[subnet].ApplyReading(r)
	}
}

// SubnetViews returns what is known of the readings of the InfiniBand subnets.
func (s *Sources) SubnetViews() []ibsubnet.View {
	out := make([]ibsubnet.View, len(s.opts.Subnets))
	for i := range out {
		out[i] = s.opts.Subnets[i].State.View()
	}
	return out
}

// SwitchStates returns the states of the switches that report sightings, and the numbers of
// requests to them.
func (s *Sources) SwitchStates() (map[string]paths.TableView, switchpoll.Counts) {
	if s.puller == nil {
		return nil, switchpoll.Counts{}
	}
	return s.sightings.TableViews(), s.puller.TotalCounts()
}

// BindPath sets the path that a flow took during the window of an observation, or the paths that it may have taken.
func (s *Sources) BindPath(o *fabric.Observation) (changed bool) {
	e, err := o.ParseFlow()
	if err != nil {
		return false
	}
	end := o.Start.Add(time.Duration(o.WindowNS))
	for _, t := range s.tables {
		t.FollowFlow(e, end)
	}
	b, _ := s.opts.Store.BindingAt(e, o.Start, end)
	o.Sprayed = b.Sprayed
	changed = b.State == fabric.PathUnknown && len(b.Before) > 0 && !o.Sprayed
	if changed && lostAll(o) && !b.Elsewhere {
		// The flow took the old path, since packets arrived by the new one.
		b.Path, b.State, b.Candidates = b.Before, fabric.PathStale, nil
	}
	if b.Expired {
		b.Path, b.State = nil, fabric.PathUnknown
	}
	o.Chosen = b.Source == paths.ByChoice && b.State == fabric.PathValid
	o.Path, o.PathState, o.Paths, o.PathSince = b.Path, b.State, b.Candidates, b.Confirmed
	return changed
}

// lostAll reports whether (nearly) everything a flow sent in its window was lost.
func lostAll(o *fabric.Observation) bool {
	return o.Sent > 0 && o.Lost*10 >= o.Sent*9
}

// DownElements returns what the readings of the InfiniBand subnets show to be down.
func (s *Sources) DownElements(now time.Time) (out []paths.DownElement) {
	for _, t := range s.tables {
		out = append(out, t.DownElements(now)...)
	}
	return out
}

// CheckCables returns the cables that are not where the topology has them. From then on paths follow the fabric as it
// is.
func (s *Sources) CheckCables(now time.Time) []paths.Miscabling {
	standing, changed := s.opts.Store.CheckCables(now)
	if changed && s.sightings != nil {
		s.sightings.RebindAll(now)
	}
	return standing
}
