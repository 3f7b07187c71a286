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

// carrierChanges returns how often the carriers of the ports changed whose links seem to flap, or that flows left, as far as that is known.
// Where it is not, it is unknown whether a link flaps or its session does.
func (l *Loop) carrierChanges(ctx context.Context, now time.Time) map[string]int {
	span := fmt.Sprintf("[%ds]", int(routing.CarrierSpan.Seconds()))
	samples := l.queryPorts(ctx, "the changes of carriers", boundPorts(slices.Concat(l.routing.FlappingPorts(), l.routing.LeftPorts())), func(at string) string {
		series := "(fabric_switch_port_carrier_changes_total" + at + span + ")"
		return "max by (switch, port) (max_over_time" + series + " - min_over_time" + series + ")"
	}, now)
	out := make(map[string]int, len(samples))
	for i := range samples {
		out[portOf(&samples[i])] = int(samples[i].Value)
	}
	return out
}

// portsUp returns which ports carry packets of those whose links no flow uses any more, as far as that is known.
func (l *Loop) portsUp(ctx context.Context, now time.Time) map[string]bool {
	samples := l.queryPorts(ctx, "which ports are up", boundPorts(l.routing.LeftPorts()), func(at string) string {
		return "min by (switch, port) (fabric_switch_port_oper_up" + at + ")"
	}, now)
	out := make(map[string]bool, len(samples))
	for i := range samples {
		out[portOf(&samples[i])] = samples[i].Value > 0
	}
	return out
}

// sessionHistory returns what the database has of sessions at the ports of links that seem to flap, or that flows left, where no agent
// reports them: those that the receiver gnmi publishes. It queries only if there are such ports, and the same ones every sessionRefresh.
// Sessions of ports that are absent are unknown.
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
	l.readSessions.sessions = parseSessions(l.queryPorts(ctx, "the sessions of ports", ports, sessionQuery, now), ports)
	return l.readSessions.sessions
}

// reportsSession reports whether the agent of a switch reports a session at a port.
func reportsSession(reports map[string]*routing.Switch, end string) bool {
	sw, port, _ := fabric.SplitPort(end)
	r := reports[sw]
	return r != nil && slices.ContainsFunc(r.Sessions, func(s routing.Session) bool { return s.Port == port })
}

// sessionQuery returns the query for the sessions at the ports that some matchers match. Each sample says in the label session what it counts. A port whose
// sessions are not counted, as SONiC's, has how often its gauge was seen to fall.
func sessionQuery(at string) string {
	span := fmt.Sprintf("[%ds]", int(routing.CarrierSpan.Seconds()))
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

// queryPorts runs a query about some ports, which is made of the matchers of their series. It returns nothing if there are no ports, and
// if the query fails, which it logs with what it is about.
func (l *Loop) queryPorts(ctx context.Context, about string, ports []string, query func(matchers string) string, now time.Time) []evidence.Sample {
	if len(ports) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, seriesPatience)
	defer cancel()
	samples, err := l.opts.DB.QueryInstant(ctx, query(portMatchers(ports)), now)
	if err != nil {
		l.opts.Log.Warn("cannot read "+about, "err", err)
	}
	return samples
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
		switches, ports = append(switches, sw), append(ports, port)
	}
	return fmt.Sprintf("{switch=~%q,port=~%q}", joinPatterns(switches), joinPatterns(ports))
}

// joinPatterns returns a regular expression that matches some names, each once and in order.
func joinPatterns(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = regexp.QuoteMeta(name)
	}
	slices.Sort(quoted)
	return strings.Join(slices.Compact(quoted), "|")
}
