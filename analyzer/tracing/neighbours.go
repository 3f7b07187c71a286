package tracing

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sighting"
)

// Series of neighbours are queried in two steps:
//
//  1. Every neighboursEvery, one query returns the switches whose neighbours changed since the
//     last result. The result is empty while no cable moves.
//  2. A second query returns the neighbours of these switches, at most changedAtOnce of them. It
//     covers all switches if more have changed, and every neighboursFullEvery.
//
// A result has a row for each port with a neighbour. Neighbours are forgotten if no query
// succeeds for neighboursFullEvery.
const (
	neighboursEvery     = 15 * time.Second
	neighboursFullEvery = 10 * time.Minute
	changedAtOnce       = 64
)

// neighbourPoller follows the series of neighbours from any receiver, and passes those that the topology has to the
// store.
type neighbourPoller struct {
	db       evidence.Querier
	settings evidence.Settings
	store    *paths.Store
	// lastAnswer is the moment of the last result, and lastFull that of the last one about all switches.
	lastAnswer, lastFull time.Time
	rows                 map[string][]evidence.Neighbour // by switch, with the names of the series
	reported             map[string]bool                 // switches whose neighbours the store has
}

func newNeighbourPoller(db evidence.Querier, s evidence.Settings, store *paths.Store) *neighbourPoller {
	return &neighbourPoller{db: evidence.NewLocalQuerier(db), settings: s, store: store, rows: map[string][]evidence.Neighbour{}, reported: map[string]bool{}}
}

// pollOnce queries the present neighbours, and updates the store. It returns the error of a query that fails.
func (n *neighbourPoller) pollOnce(ctx context.Context, now time.Time) error {
	at := now.Add(-n.settings.CurrentLag())
	err := n.updateRows(ctx, at)
	if err != nil && !n.lastAnswer.IsZero() && at.Sub(n.lastAnswer) > neighboursFullEvery {
		clear(n.rows)
		n.lastFull = time.Time{}
		n.updateStore()
	}
	return err
}

func (n *neighbourPoller) updateRows(ctx context.Context, at time.Time) error {
	var changed []string
	all := n.lastFull.IsZero() || at.Sub(n.lastFull) >= neighboursFullEvery
	if !all {
		var err error
		if err = n.observeQuery("changed_neighbours", func() error {
			changed, err = evidence.ChangedNeighbours(ctx, n.db, at, n.lastAnswer)
			return err
		}); err != nil {
			return err
		}
		if len(changed) == 0 {
			n.lastAnswer = at
			return nil
		}
		all = len(changed) > changedAtOnce
	}
	if all {
		changed = nil
	}
	var rows []evidence.Neighbour
	if err := n.observeQuery("neighbours", func() (err error) {
		rows, err = evidence.NeighboursAt(ctx, n.db, at, changed)
		return err
	}); err != nil {
		return err
	}
	if n.lastAnswer = at; all {
		n.lastFull = at
		clear(n.rows)
	}
	for _, sw := range changed {
		delete(n.rows, sw)
	}
	for _, r := range rows {
		n.rows[r.Switch] = append(n.rows[r.Switch], r)
	}
	n.updateStore()
	return nil
}

func (n *neighbourPoller) observeQuery(name string, ask func() error) error {
	began := time.Now()
	err := ask()
	if n.settings.Observe != nil {
		n.settings.Observe(name, time.Since(began), err)
	}
	return err
}

// updateStore passes the neighbours to the store, with the topology's names. Neighbours with unknown names are left
// out, since they do not show a cable elsewhere.
func (n *neighbourPoller) updateStore() {
	names := newNameResolver(n.store.Graph(), n.rows)
	before := n.reported
	n.reported = map[string]bool{}
	all := map[string][]sighting.Neighbour{}
	for sw, rows := range n.rows {
		near := names.resolveOwner(sw)
		if near == "" {
			continue
		}
		for _, r := range rows {
			system := r.System
			if system == "" {
				system = names.byChassis[r.Chassis]
			}
			if system = names.resolveOwner(system); system != "" {
				all[near] = append(all[near], sighting.Neighbour{Port: r.Port, System: system, SystemPort: names.resolvePort(system, r.SystemPort)})
			}
		}
		n.reported[near] = true
	}
	for sw := range before {
		if !n.reported[sw] {
			n.store.SetSeriesNeighbours(sw, nil)
		}
	}
	for sw := range n.reported {
		n.store.SetSeriesNeighbours(sw, all[sw])
	}
}

// nameResolver maps the names of systems in series to those of the topology.
type nameResolver struct {
	g *fabric.Graph
	// byFirstLabel has the domain name for a first label, or "" if two systems share the label.
	byFirstLabel map[string]string
	// byChassis has the name for a chassis, or "" if there are two.
	byChassis map[string]string
}

func newNameResolver(g *fabric.Graph, rows map[string][]evidence.Neighbour) *nameResolver {
	n := &nameResolver{g: g, byFirstLabel: map[string]string{}, byChassis: map[string]string{}}
	once := func(m map[string]string, k, v string) {
		if have, ok := m[k]; ok && have != v {
			v = ""
		}
		m[k] = v
	}
	seen := func(name string) {
		if first, _, dotted := strings.Cut(name, "."); dotted {
			once(n.byFirstLabel, first, name)
		}
	}
	for sw, list := range rows {
		seen(sw)
		for _, r := range list {
			seen(r.System)
			if r.System != "" && r.Chassis != "" {
				once(n.byChassis, r.Chassis, r.System)
			}
		}
	}
	return n
}

// resolveOwner returns the switch or node of the topology with a name, or with the first label of a domain name. It
// returns "" if there is none, or if the name is ambiguous.
func (n *nameResolver) resolveOwner(name string) string {
	known := func(name string) bool { return len(n.g.EndsOf(name)) > 0 }
	if known(name) {
		return name
	}
	first, _, dotted := strings.Cut(name, ".")
	if dotted && n.byFirstLabel[first] == name && known(first) {
		return first
	}
	return ""
}

// resolvePort returns the port of a system. It converts a hardware address to lower case if the topology has it so.
func (n *nameResolver) resolvePort(system, port string) string {
	if lower := strings.ToLower(port); n.g.NIC(system+"/"+port) == nil && n.g.NIC(system+"/"+lower) != nil {
		return lower
	}
	return port
}

// watchNeighbours polls the neighbours until ctx ends. It logs only the first of several failures in a row.
func (n *neighbourPoller) watchNeighbours(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(neighboursEvery)
	defer tick.Stop()
	failing := false
	for {
		limited, cancel := n.settings.WithPatience(ctx)
		err := n.pollOnce(limited, time.Now())
		cancel()
		if err != nil && ctx.Err() == nil && !failing {
			log.Warn("cannot query neighbours, known ones are kept for a while", "err", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
