package analyzer

import (
	"context"
	"strings"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sighting"
)

// What series tell of neighbours is asked for
//
//  1. every neighboursEvery, as the switches of which something changed since the last
//     answer: one question, whose answer is empty while no cable moves;
//  2. of those switches, at most changedAtOnce of them; of all, when there are more, and
//     every neighboursWhole.
//
// An answer has a row for each port with a neighbour. What was told is forgotten when
// there has been no answer for neighboursWhole.
const (
	neighboursEvery     = 15 * time.Second
	neighboursFullEvery = 10 * time.Minute
	changedAtOnce       = 64
)

// neighbourPoller follows the series of neighbours by whatever receiver, and tells the store
// of those that the topology knows.
type neighbourPoller struct {
	db       evidence.Querier
	settings evidence.Settings
	store    *paths.Store
	// lastAnswer is the moment of the last answer, whole that of the last one of all.
	lastAnswer, lastFull time.Time
	rows                 map[string][]evidence.Neighbour // by switch, as it was told
	reported             map[string]bool                 // switches that the store knows something of
	failing              bool
}

func newNeighbourPoller(db evidence.Querier, s evidence.Settings, store *paths.Store) *neighbourPoller {
	return &neighbourPoller{db: evidence.NewLocalQuerier(db), settings: s, store: store, rows: map[string][]evidence.Neighbour{}, reported: map[string]bool{}}
}

// pollOnce takes what is told now.
func (n *neighbourPoller) pollOnce(ctx context.Context, now time.Time) error {
	at := now.Add(-n.settings.Lag)
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

// updateStore gives the store what is told, in the topology's names. What is in nobody's
// names says nothing: that is no cable elsewhere.
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

// nameResolver find what the topology calls the systems that are told of.
type nameResolver struct {
	g *fabric.Graph
	// byFirstLabel are the first labels of domain names, unless two systems have the same: "".
	byFirstLabel map[string]string
	// byChassis are the names that a chassis was told with, unless there are two: "".
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

// resolveOwner is the switch or node of the topology with a name, or with the first label of a
// domain name; "": there is none, or it is not sure.
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

// resolvePort is the port of a system: as it is told, or, of an address of hardware, in small letters.
func (n *nameResolver) resolvePort(system, port string) string {
	if lower := strings.ToLower(port); n.g.NIC(system+"/"+port) == nil && n.g.NIC(system+"/"+lower) != nil {
		return lower
	}
	return port
}

// watchNeighbours asks until ctx ends. Failures are told of once.
func (l *Loop) watchNeighbours(ctx context.Context) {
	tick := time.NewTicker(neighboursEvery)
	defer tick.Stop()
	for {
		asking, cancel := l.opts.Settings.WithPatience(ctx)
		err := l.neighbours.pollOnce(asking, time.Now())
		cancel()
		if err != nil && ctx.Err() == nil && !l.neighbours.failing {
			l.opts.Log.Warn("neighbours are not told; what was known of them stays for a while", "err", err)
		}
		l.neighbours.failing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
