package gather

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/audit"
	"github.com/graylink/graylink/analyzer/evidence"
)

// bitsPerGigabit converts octets a second to gigabits a second.
const bitsPerGigabit = 8 / 1e9

// readings has what series beside those of the probes say.
type readings struct {
	ports map[string]audit.PortReading
	nics  map[string]audit.NICReading
	// modules are those in ports and NICs, and configured are settings of NICs, ports and switches.
	modules    map[string]audit.ModuleReading
	configured map[string]audit.Configured
}

func newReadings() *readings {
	return &readings{ports: map[string]audit.PortReading{}, nics: map[string]audit.NICReading{},
		modules: map[string]audit.ModuleReading{}, configured: map[string]audit.Configured{}}
}

// portQuery is a query about switch ports or NICs, and what is done with a result.
type portQuery struct {
	name, query string
	take        func(r *readings, at string, s *evidence.Sample)
}

// changePort changes the reading of a port.
func (r *readings) changePort(at string, change func(*audit.PortReading)) {
	p := r.ports[at]
	change(&p)
	r.ports[at] = p
}

// changeNIC changes the reading of a NIC's health. Only NICs are watched that have a state.
func (r *readings) changeNIC(nic string, change func(*audit.NICReading)) {
	n := r.nics[nic]
	change(&n)
	r.nics[nic] = n
}

// addTo adds a value to a sum that may be absent.
func addTo(sum **float64, v float64) {
	if *sum != nil {
		v += **sum
	}
	*sum = &v
}

// portQueries returns the queries. A counter is compared over a range that is as long as the audit.
func portQueries(length time.Duration) []portQuery {
	speed := func(r *readings, at string, s *evidence.Sample) {
		gbps := s.Value * bitsPerGigabit
		r.changePort(at, func(p *audit.PortReading) { p.SpeedGbps = &gbps })
	}
	counted := func(metric string, sum func(*audit.PortReading) **float64) portQuery {
		return portQuery{metric, fmt.Sprintf("sum by (switch, port) (increase(%s[%dms]))", metric, length.Milliseconds()), func(r *readings, at string, s *evidence.Sample) {
			r.changePort(at, func(p *audit.PortReading) { addTo(sum(p), s.Value) })
		}}
	}
	pauses, discards := func(p *audit.PortReading) **float64 { return &p.PauseFrames }, func(p *audit.PortReading) **float64 { return &p.Discards }
	return []portQuery{
		{"speed of switch ports", "max by (switch, port) (fabric_switch_port_speed_bytes_per_second)", speed},
		{"rate of NICs", "max by (nic) (fabric_nic_port_rate_bytes_per_second)", speed},
		{"speed of NICs", "max by (nic) (fabric_nic_port_speed_bytes_per_second)", speed},
		{"MTU", "max by (switch, port) (fabric_switch_port_mtu_bytes)", func(r *readings, at string, s *evidence.Sample) {
			r.changePort(at, func(p *audit.PortReading) { p.MTUBytes = &s.Value })
		}},
		counted("fabric_switch_port_pfc_receive_frames_total", pauses),
		counted("fabric_switch_port_pfc_transmit_frames_total", pauses),
		counted("fabric_switch_port_receive_discards_total", discards),
		counted("fabric_switch_port_transmit_discards_total", discards),
		{"state of NICs", "count by (nic) (fabric_nic_port_state)", func(r *readings, nic string, _ *evidence.Sample) {
			r.changeNIC(nic, func(n *audit.NICReading) { n.Watched = true })
		}},
		{"findings", fmt.Sprintf("max by (nic, code, severity) (max_over_time(fabric_nic_finding[%dms])) > 0", length.Milliseconds()), func(r *readings, nic string, s *evidence.Sample) {
			r.changeNIC(nic, func(n *audit.NICReading) {
				if n.Findings == nil {
					n.Findings = map[string]string{}
				}
				n.Watched, n.Findings[s.Labels["code"]] = true, s.Labels["severity"]
			})
		}},
		{"carrier changes", fmt.Sprintf("max by (nic) (increase(fabric_nic_port_carrier_changes_total[%dms]))", length.Milliseconds()), func(r *readings, nic string, s *evidence.Sample) {
			r.changeNIC(nic, func(n *audit.NICReading) { n.CarrierChanges = &s.Value })
		}},
	}
}

// readPorts reads the series of ports and NICs at the end of an audit. A query that fails is reported, and left out.
func (c *collector) readPorts(ctx context.Context, length time.Duration) *readings {
	r := newReadings()
	db, now := evidence.NewLocalQuerier(c.o.DB), time.Now()
	for _, q := range slices.Concat(portQueries(length), opticalQueries(), settingQueries()) {
		samples, err := db.QueryInstant(ctx, q.query, now)
		if err != nil {
			c.o.Progress("%s: left out: %v", q.name, err)
			continue
		}
		for i := range samples {
			if at := c.endOf(samples[i].Labels); at != "" {
				q.take(r, at, &samples[i])
			}
		}
	}
	return r
}

// endOf returns the NIC, the switch port, or without a port the switch that labels name, by its name in the topology, or "" if that has
// none.
func (c *collector) endOf(labels map[string]string) string {
	if nic := labels["nic"]; nic != "" {
		if n := c.o.Graph.NIC(nic); n != nil {
			return n.ID()
		}
		return ""
	}
	if sw := labels["switch"]; labels["port"] == "" && c.o.Graph.Switch(sw) != nil {
		return sw
	}
	at := labels["switch"] + ":" + labels["port"]
	if c.o.Graph.LinkAt(at) == nil {
		return ""
	}
	return at
}
