// Package frr reads what the daemons of FRR know: the routes that zebra selected, the paths that bgpd has, and the sessions
// of bgpd and bfdd.
//
//  1. Each reading asks for the sessions. It asks for routes and paths only if something points to a change of them, or if
//     they are older than Refresh, because a daemon stands still while it writes a large answer.
//  2. After routes and paths it rests restFactor times as long as the answers took before it asks for them again.
//  3. What a daemon does not answer is unknown. A daemon that has no socket does not run, which is no error.
package frr

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/routetable"
)

const (
	// Refresh is the longest time between two readings of routes and paths.
	Refresh = 30 * time.Second
	// restFactor is the ratio of the time that a reader leaves daemons alone to the time of their answers.
	restFactor = 20
	// timeout bounds each question.
	timeout = 5 * time.Second
)

// State is what a reading found. What is nil is not known.
type State struct {
	RIB, Paths routetable.Routes
	Sessions   []routetable.Session
	// RoutesAt is when the reading of RIB and Paths began, which may be an earlier one.
	RoutesAt time.Time
	// Err joins the errors of daemons.
	Err error
}

// Reader reads from the daemons of one switch.
type Reader struct {
	client client

	signs     signs
	failed    bool // the last reading of routes had an error
	rib       devices
	paths     devices
	connected devices
	neighbors map[string]bgpNeighbor
	readAt    time.Time
	restUntil time.Time

	sessions map[sessionKey]routetable.Session
}

// Open returns a reader of the daemons whose sockets are in a directory.
func Open(dir string) *Reader {
	return &Reader{client: client{dir, timeout}, sessions: map[sessionKey]routetable.Session{}}
}

// signs are what points to a change of routes or paths.
type signs struct {
	versions map[string]uint64 // of BGP's tables, by address family
	peers    map[string]peerSigns
}

type peerSigns struct {
	state    string
	prefixes int
	count    uint64
}

func (s *signs) equal(o *signs) bool {
	return maps.Equal(s.versions, o.versions) && maps.Equal(s.peers, o.peers)
}

// Read reads what the daemons know at a time. port returns the port that an interface is, or "" if it is none. changed
// says that the caller knows of a change of routes.
func (r *Reader) Read(ctx context.Context, now time.Time, port func(device string) string, changed bool) State {
	summary, bgpErr := r.readSummary(ctx)
	peers, bfdErr := r.readBFD(ctx)
	saw := signsOf(summary)
	due := changed || r.failed || !saw.equal(&r.signs) || now.Sub(r.readAt) >= Refresh
	out := State{Err: errors.Join(bgpErr, bfdErr)}
	if due && !now.Before(r.restUntil) {
		began := time.Now()
		err := r.readRoutes(ctx, summary)
		r.signs, r.failed, r.readAt = saw, err != nil, now
		r.restUntil = now.Add(restFactor * time.Since(began))
		out.Err = errors.Join(out.Err, err)
	}
	out.RIB, out.RoutesAt = named(r.rib, port), r.readAt
	if bgpErr == nil {
		out.Paths = named(r.paths, port)
	}
	if bgpErr == nil && bfdErr == nil && (summary != nil || peers != nil) {
		out.Sessions = r.listSessions(now, summary, peers, port)
	}
	return out
}

func signsOf(summary map[string]bgpSummary) signs {
	s := signs{versions: map[string]uint64{}, peers: map[string]peerSigns{}}
	for family, x := range summary {
		s.versions[family] = x.TableVersion
		for name, p := range x.Peers {
			v := peerSigns{state: p.State, prefixes: p.Prefixes}
			if p.Established != nil {
				v.count = *p.Established
			}
			s.peers[family+" "+name] = v
		}
	}
	return s
}

// readSummary returns the summary of BGP, or nil if bgpd does not run.
func (r *Reader) readSummary(ctx context.Context) (map[string]bgpSummary, error) {
	b, err := r.client.query(ctx, "bgpd", "show bgp summary json")
	if errors.Is(err, errAbsent) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseSummary(b)
}

// readBFD returns the sessions of BFD, or nil if bfdd does not run. Its commands need the mode that "enable" enters.
func (r *Reader) readBFD(ctx context.Context) ([]bfdPeer, error) {
	peers, err := r.client.query(ctx, "bfdd", "enable", "show bfd peers json")
	if errors.Is(err, errAbsent) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	counters, err := r.client.query(ctx, "bfdd", "enable", "show bfd peers counters json")
	if err != nil {
		return nil, err
	}
	return parseBFD(peers, counters)
}

// families maps the address families of a summary to their names in commands.
var families = map[string]string{"ipv4Unicast": "ipv4 unicast", "ipv6Unicast": "ipv6 unicast"}

// readRoutes reads routes, paths and what is known of the neighbours. What it could not read is unknown.
func (r *Reader) readRoutes(ctx context.Context, summary map[string]bgpSummary) error {
	r.rib, r.paths, r.connected, r.neighbors = nil, nil, devices{}, nil
	rib := devices{}
	for _, command := range []string{"show ip route json", "show ipv6 route json"} {
		b, err := r.client.query(ctx, "zebra", command)
		if err == nil {
			err = parseRoutes(b, rib, r.connected)
		}
		if err != nil {
			return err
		}
	}
	r.rib = rib
	if summary == nil {
		return nil
	}
	b, err := r.client.query(ctx, "bgpd", "show bgp neighbors json")
	if err != nil {
		return err
	}
	if r.neighbors, err = parseNeighbors(b); err != nil {
		return err
	}
	paths := devices{}
	for _, family := range slices.Sorted(maps.Keys(summary)) {
		command := families[family]
		if command == "" {
			continue
		}
		b, err := r.client.query(ctx, "bgpd", "show bgp "+command+" json detail")
		if err == nil {
			err = parsePaths(b, r.connected, paths)
		}
		if err != nil {
			return err
		}
	}
	r.paths = paths
	return nil
}

// named returns routes with the names of ports, without those that leave only by interfaces which are no ports.
func named(d devices, port func(string) string) routetable.Routes {
	if d == nil {
		return nil
	}
	out := make(routetable.Routes, len(d))
	for p, list := range d {
		ports := make([]string, 0, len(list))
		for _, device := range list {
			if s := port(device); s != "" {
				ports = append(ports, s)
			}
		}
		if len(ports) > 0 || len(list) == 0 {
			out[p] = ports
		}
	}
	return out
}

// sessionKey distinguishes sessions.
type sessionKey struct{ protocol, name string }

// listSessions returns the sessions that are with neighbours at ports. The time at which a session changed is what the
// daemon says when it is seen first, and after that only if its state or its counter changes.
func (r *Reader) listSessions(now time.Time, summary map[string]bgpSummary, peers []bfdPeer, port func(string) string) []routetable.Session {
	out := []routetable.Session{}
	seen := map[sessionKey]routetable.Session{}
	add := func(k sessionKey, s routetable.Session, age time.Duration) {
		old, known := r.sessions[k]
		switch {
		case known && old.Up == s.Up && sameCount(old.Established, s.Established) && sameCount(old.Downs, s.Downs):
			s.Changed = old.Changed
		case age >= 0:
			s.Changed = now.Add(-age).UTC()
		case known:
			s.Changed = now.UTC()
		}
		seen[k] = s
		out = append(out, s)
	}
	for name, x := range bgpSessions(summary) {
		n := r.neighbors[name]
		device := name
		if x.IDType != "interface" {
			device = r.deviceOf(name)
		}
		s := routetable.Session{Port: port(device), Peer: n.Address, Protocol: routetable.BGP, Up: x.State == established, Established: x.Established, Detection: n.holdTime()}
		if s.Port == "" {
			continue
		}
		age := time.Duration(-1)
		if x.UptimeMsec > 0 {
			age = milliseconds(x.UptimeMsec)
		}
		add(sessionKey{routetable.BGP, name}, s, age)
	}
	for i := range peers {
		x := &peers[i]
		device := x.Interface
		if device == "" {
			device = r.deviceOf(x.Peer)
		}
		s := routetable.Session{Port: port(device), Peer: x.Peer, Protocol: routetable.BFD, Up: x.Status == "up", Downs: x.Downs, Detection: x.detection()}
		if s.Port != "" {
			add(sessionKey{routetable.BFD, x.key()}, s, x.age())
		}
	}
	r.sessions = seen
	return out
}

// deviceOf returns the interface whose subnet has an address, or "" if none has.
func (r *Reader) deviceOf(address string) string {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return ""
	}
	return r.connected.place(a)
}

// bgpSessions returns the sessions of all address families, each once.
func bgpSessions(summary map[string]bgpSummary) map[string]bgpSession {
	out := map[string]bgpSession{}
	for _, family := range slices.Sorted(maps.Keys(summary)) {
		for name, p := range summary[family].Peers {
			if _, known := out[name]; !known {
				out[name] = p
			}
		}
	}
	return out
}

func sameCount(a, b *uint64) bool { return a == b || a != nil && b != nil && *a == *b }
