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
	neighboursEvery = 15 * time.Second
	neighboursWhole = 10 * time.Minute
	changedAtOnce   = 64
)

// neighbours follows the series of neighbours by whatever receiver, and tells the store
// of those that the topology knows.
type neighbours struct {
	db       evidence.Querier
	settings evidence.Settings
	store    *paths.Store
	// asked is the moment of the last answer, whole that of the last one of all.
	asked, whole time.Time
	rows         map[string][]evidence.Neighbour // by switch, as it was told
	told         map[string]bool                 // switches that the store knows something of
	failing      bool
}

func newNeighbours(db evidence.Querier, s evidence.Settings, store *paths.Store) *neighbours {
	return &neighbours{db: evidence.Local(db), settings: s, store: store, rows: map[string][]evidence.Neighbour{}, told: map[string]bool{}}
}

// ask takes what is told now.
func (n *neighbours) ask(ctx context.Context, now time.Time) error {
	at := now.Add(-n.settings.Lag)
	err := n.update(ctx, at)
	if err != nil && !n.asked.IsZero() && at.Sub(n.asked) > neighboursWhole {
		clear(n.rows)
		n.whole = time.Time{}
		n.tell()
	}
	return err
}

func (n *neighbours) update(ctx context.Context, at time.Time) error {
	var changed []string
	all := n.whole.IsZero() || at.Sub(n.whole) >= neighboursWhole
	if !all {
		var err error
		if err = n.observed("changed_neighbours", func() error {
			changed, err = evidence.ChangedNeighbours(ctx, n.db, at, n.asked)
			return err
		}); err != nil {
			return err
		}
		if len(changed) == 0 {
			n.asked = at
			return nil
		}
		all = len(changed) > changedAtOnce
	}
	if all {
		changed = nil
	}
	var rows []evidence.Neighbour
	if err := n.observed("neighbours", func() (err error) {
		rows, err = evidence.Neighbours(ctx, n.db, at, changed)
		return err
	}); err != nil {
		return err
	}
	if n.asked = at; all {
		n.whole = at
		clear(n.rows)
	}
	for _, sw := range changed {
		delete(n.rows, sw)
	}
	for _, r := range rows {
		n.rows[r.Switch] = append(n.rows[r.Switch], r)
	}
	n.tell()
	return nil
}

func (n *neighbours) observed(name string, ask func() error) error {
	began := time.Now()
	err := ask()
	if n.settings.Observe != nil {
		n.settings.Observe(name, time.Since(began), err)
	}
	return err
}

// tell gives the store what is told, in the topology's names. What is in nobody's
// names says nothing: that is no cable elsewhere.
func (n *neighbours) tell() {
	names := namesOf(n.store.Graph(), n.rows)
	before := n.told
	n.told = map[string]bool{}
	all := map[string][]sighting.Neighbour{}
	for sw, rows := range n.rows {
		near := names.owner(sw)
		if near == "" {
			continue
		}
		for _, r := range rows {
			system := r.System
			if system == "" {
				system = names.chassis[r.Chassis]
			}
			if system = names.owner(system); system != "" {
				all[near] = append(all[near], sighting.Neighbour{Port: r.Port, System: system, SystemPort: names.port(system, r.SystemPort)})
			}
		}
		n.told[near] = true
	}
	for sw := range before {
		if !n.told[sw] {
			n.store.Neighbours(sw, nil)
		}
	}
	for sw := range n.told {
		n.store.Neighbours(sw, all[sw])
	}
}

// names find what the topology calls the systems that are told of.
type names struct {
	g *fabric.Graph
	// short are the first labels of domain names, unless two systems have the same: "".
	short map[string]string
	// chassis are the names that a chassis was told with, unless there are two: "".
	chassis map[string]string
}

func namesOf(g *fabric.Graph, rows map[string][]evidence.Neighbour) *names {
	n := &names{g: g, short: map[string]string{}, chassis: map[string]string{}}
	once := func(m map[string]string, k, v string) {
		if have, ok := m[k]; ok && have != v {
			v = ""
		}
		m[k] = v
	}
	seen := func(name string) {
		if first, _, dotted := strings.Cut(name, "."); dotted {
			once(n.short, first, name)
		}
	}
	for sw, list := range rows {
		seen(sw)
		for _, r := range list {
			seen(r.System)
			if r.System != "" && r.Chassis != "" {
				once(n.chassis, r.Chassis, r.System)
			}
		}
	}
	return n
}

// owner is the switch or node of the topology with a name, or with the first label of a
// domain name; "": there is none, or it is not sure.
func (n *names) owner(name string) string {
	known := func(name string) bool { return len(n.g.Ends(name)) > 0 }
	if known(name) {
		return name
	}
	first, _, dotted := strings.Cut(name, ".")
	if dotted && n.short[first] == name && known(first) {
		return first
	}
	return ""
}

// port is the port of a system: as it is told, or, of an address of hardware, in small letters.
func (n *names) port(system, port string) string {
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
		asking, cancel := l.o.Settings.Patiently(ctx)
		err := l.near.ask(asking, time.Now())
		cancel()
		if err != nil && ctx.Err() == nil && !l.near.failing {
			l.o.Log.Warn("neighbours are not told; what was known of them stays for a while", "err", err)
		}
		l.near.failing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
