package fabricswitch

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/internal/routetable"
	"github.com/graylink/graylink/internal/switchagent"
)

// routeTopic publishes the state of the routes, and the sessions with neighbours at ports.
type routeTopic struct {
	bgpUp, bgpEstablished, bfdUp, bfdDowns, changes, mismatches, prefixes, errors *prometheus.Desc
}

func newRouteTopic() *routeTopic {
	return &routeTopic{
		bgpUp:          newDesc("fabric_switch_bgp_session_up", "Whether the BGP session with the neighbor at the port is established.", "switch", "port"),
		bgpEstablished: newDesc("fabric_switch_bgp_sessions_established_total", "Number of times that the port's BGP session was established.", "switch", "port"),
		bfdUp:          newDesc("fabric_switch_bfd_session_up", "Whether the BFD session with the neighbor at the port is up.", "switch", "port"),
		bfdDowns:       newDesc("fabric_switch_bfd_session_downs_total", "Number of times that the port's BFD session went down.", "switch", "port"),
		changes:        newDesc("fabric_switch_route_changes_total", "Changes of entries of the kernel's forwarding table.", "switch"),
		mismatches:     newDesc("fabric_switch_route_mismatches", "Prefixes that the kernel forwards otherwise than the routing daemon selected.", "switch"),
		prefixes:       newDesc("graylink_switch_prefixes", "Prefixes in the table of routes.", "switch"),
		errors:         newDesc("graylink_switch_route_errors_total", "Failed readings of routes, by source.", "switch", "source"),
	}
}

func (t *routeTopic) descs() []*prometheus.Desc {
	return []*prometheus.Desc{t.bgpUp, t.bgpEstablished, t.bfdUp, t.bfdDowns, t.changes, t.mismatches, t.prefixes, t.errors}
}

func (t *routeTopic) collect(s sink, status *switchagent.Status, _ *switchagent.Telemetry) {
	r := status.Routes
	if r == nil {
		return
	}
	s.sendGauge(t.prefixes, float64(r.Prefixes))
	for source, n := range r.Errors {
		s.sendCounter(t.errors, n, source)
	}
	if r.FIBChanges != nil {
		s.sendCounter(t.changes, *r.FIBChanges)
	}
	if r.Mismatches != nil {
		s.sendGauge(t.mismatches, float64(*r.Mismatches))
	}
	t.collectSessions(s, routetable.BGP, r.Sessions, t.bgpUp, t.bgpEstablished)
	t.collectSessions(s, routetable.BFD, r.Sessions, t.bfdUp, t.bfdDowns)
}

// collectSessions sends the sessions of a protocol. Several at a port are up if all are, and their counts are added.
func (t *routeTopic) collectSessions(s sink, protocol string, list []routetable.Session, up, count *prometheus.Desc) {
	type sum struct {
		up, known bool
		count     uint64
	}
	ports := map[string]sum{}
	for i := range list {
		x := &list[i]
		if x.Protocol != protocol {
			continue
		}
		old, seen := ports[x.Port]
		now := sum{up: x.Up && (old.up || !seen), known: old.known || !seen, count: old.count}
		n := x.Established
		if protocol == routetable.BFD {
			n = x.Downs
		}
		if n == nil {
			now.known = false
		} else {
			now.count += *n
		}
		ports[x.Port] = now
	}
	for port, x := range ports {
		s.sendGauge(up, zeroOrOne(x.up), port)
		if x.known {
			s.sendCounter(count, x.count, port)
		}
	}
}
