package analyzer

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/routing"
	"github.com/graylink/graylink/internal/fabric"
)

// Bounds of the queries for carriers and sessions of ports.
const (
	mostAskedSwitches = 64
	mostAskedPorts    = 512
	seriesPatience    = time.Second
	// sessionRefresh is the time after which the sessions of the same ports are read again.
	sessionRefresh = 5 * time.Second
)

// readSessions holds what the database had of sessions when it was queried last, and for which ports.
type readSessions struct {
	ports    []string
	at       time.Time
	sessions map[string]routing.PortSessions
}

// carrierChanges queries how often the carriers of the ports changed whose links seem to flap. The result is nil if none seem to, and if the
// query fails: then it is unknown whether a link flaps or its session does.
func (l *Loop) carrierChanges(ctx context.Context, now time.Time) map[string]int {
	ports := boundPorts(l.routing.FlappingPorts())
	if len(ports) == 0 {
		return nil
	}
	series := fmt.Sprintf("(fabric_switch_port_carrier_changes_total%s[%ds])", portMatchers(ports), int(routing.CarrierSpan.Seconds()))
	samples, err := l.queryPorts(ctx, "max by (switch, port) (max_over_time"+series+" - min_over_time"+series+")", now)
	if err != nil {
		l.opts.Log.Warn("cannot read the changes of carriers", "err", err)
		return nil
	}
	out := map[string]int{}
	for _, s := range samples {
		out[portOf(&s)] = int(s.Value)
	}
	return out
}

// portsUp returns which ports carry packets of those whose links no flow uses any more, as far as that is known.
func (l *Loop) portsUp(ctx context.Context, now time.Time) map[string]bool {
	ports := boundPorts(l.routing.LeftPorts())
	if len(ports) == 0 {
		return nil
	}
	samples, err := l.queryPorts(ctx, "min by (switch, port) (fabric_switch_port_oper_up"+portMatchers(ports)+")", now)
	if err != nil {
		l.opts.Log.Warn("cannot read which ports are up", "err", err)
		return nil
	}
	out := map[string]bool{}
	for _, s := range samples {
		out[portOf(&s)] = s.Value > 0
	}
	return out
}

// sessionHistory returns what the database has of sessions at the ports of links that seem to flap, or that flows left, where no agent
// reports them: those that the receiver gnmi publishes. It queries only if there are such ports, and the same ones every sessionRefresh.
// The result is nil if the query fails: then the sessions are unknown.
func (l *Loop) sessionHistory(ctx context.Context, reports map[string]*routing.Switch, now time.Time) map[string]routing.PortSessions {
	ports := slices.Concat(l.routing.FlappingPorts(), l.routing.LeftPorts())
	ports = boundPorts(slices.DeleteFunc(ports, func(port string) bool { return reportsSession(reports, port) }))
	if len(ports) == 0 {
		l.readSessions = readSessions{}
		return nil
	}
	if slices.Equal(ports, l.readSessions.ports) && now.Sub(l.readSessions.at) < sessionRefresh {
		return l.readSessions.sessions
	}
	l.readSessions = readSessions{ports: ports, at: now}
	samples, err := l.queryPorts(ctx, sessionQuery(ports), now)
	if err != nil {
		l.opts.Log.Warn("cannot read the sessions of ports", "err", err)
		return nil
	}
	l.readSessions.sessions = parseSessions(samples, ports)
	return l.readSessions.sessions
}

// reportsSession reports whether the agent of a switch reports a session at a port.
func reportsSession(reports map[string]*routing.Switch, end string) bool {
	sw, port, _ := fabric.SplitPort(end)
	r := reports[sw]
	return r != nil && slices.ContainsFunc(r.Sessions, func(s routing.Session) bool { return s.Port == port })
}

// sessionQuery returns the query for the sessions at some ports. Each sample says in the label session what it counts. A port whose
// sessions are not counted, as SONiC's, has how often its gauge was seen to fall.
func sessionQuery(ports []string) string {
	at, span := portMatchers(ports), fmt.Sprintf("[%ds]", int(routing.CarrierSpan.Seconds()))
	count := func(total, up string) string {
		return fmt.Sprintf("max by (switch, port) (round(increase(%s%s%s)) or resets(%s%s%s))", total, at, span, up, at, span)
	}
	var parts []string
	for _, x := range [][2]string{
		{"resets", count("fabric_switch_bgp_sessions_established_total", "fabric_switch_bgp_session_up")},
		{"lapses", count("fabric_switch_bfd_session_downs_total", "fabric_switch_bfd_session_up")},
		{"bgp_up", "min by (switch, port) (fabric_switch_bgp_session_up" + at + ")"},
		{"bfd_up", "min by (switch, port) (fabric_switch_bfd_session_up" + at + ")"},
	} {
		parts = append(parts, fmt.Sprintf(`label_replace(%s, "session", %q, "", "")`, x[1], x[0]))
	}
	return strings.Join(parts, " or ")
}

// parseSessions returns the sessions of some ports by the samples of their query.
func parseSessions(samples []evidence.Sample, ports []string) map[string]routing.PortSessions {
	out := map[string]routing.PortSessions{}
	for i := range samples {
		s := &samples[i]
		port := portOf(s)
		if _, asked := slices.BinarySearch(ports, port); !asked {
			continue
		}
		x := out[port]
		switch s.Labels["session"] {
		case "resets":
			x.Resets = int(s.Value)
		case "lapses":
			x.Lapses = int(s.Value)
		case "bgp_up":
			x.HasBGP, x.BGPUp = true, s.Value == 1
		case "bfd_up":
			x.HasBFD, x.BFDUp = true, s.Value == 1
		}
		out[port] = x
	}
	return out
}

// queryPorts runs a query about ports.
func (l *Loop) queryPorts(ctx context.Context, query string, now time.Time) ([]evidence.Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, seriesPatience)
	defer cancel()
	return l.opts.DB.QueryInstant(ctx, query, now)
}

// portOf returns the port of a sample of a switch.
func portOf(s *evidence.Sample) string { return s.Labels["switch"] + ":" + s.Labels["port"] }

// boundPorts returns ports in order, of at most mostAskedSwitches switches.
func boundPorts(ports []string) (out []string) {
	ports = slices.Compact(slices.Sorted(slices.Values(ports)))
	last, switches := "", 0
	for _, port := range ports {
		if sw := fabric.OwnerOf(port); sw != last {
			last, switches = sw, switches+1
		}
		if switches > mostAskedSwitches || len(out) == mostAskedPorts {
			break
		}
		out = append(out, port)
	}
	return out
}

// portMatchers returns the matchers of series of some ports.
func portMatchers(ends []string) string {
	var switches, ports []string
	for _, end := range ends {
		sw, port, _ := fabric.SplitPort(end)
		switches, ports = append(switches, regexp.QuoteMeta(sw)), append(ports, regexp.QuoteMeta(port))
	}
	join := func(list []string) string {
		slices.Sort(list)
		return strings.Join(slices.Compact(list), "|")
	}
	return fmt.Sprintf("{switch=~%q,port=~%q}", join(switches), join(ports))
}
