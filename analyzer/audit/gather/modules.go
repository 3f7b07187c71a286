package gather

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/graylink/graylink/analyzer/audit"
	"github.com/graylink/graylink/analyzer/evidence"
)

// changeModule changes the reading of the module in a port or NIC.
func (r *readings) changeModule(at string, change func(*audit.ModuleReading)) {
	m := r.modules[at]
	change(&m)
	r.modules[at] = m
}

// setLane sets a value of a lane.
func setLane(set func(l *audit.LaneReading, v *float64)) func(*readings, string, *evidence.Sample) {
	return func(r *readings, at string, s *evidence.Sample) {
		r.changeModule(at, func(m *audit.ModuleReading) {
			if m.Lanes == nil {
				m.Lanes = map[string]audit.LaneReading{}
			}
			l := m.Lanes[s.Labels["lane"]]
			set(&l, &s.Value)
			m.Lanes[s.Labels["lane"]] = l
		})
	}
}

// setModule sets a value of a module.
func setModule(set func(m *audit.ModuleReading, v *float64)) func(*readings, string, *evidence.Sample) {
	return func(r *readings, at string, s *evidence.Sample) {
		r.changeModule(at, func(m *audit.ModuleReading) { set(m, &s.Value) })
	}
}

// addSetting adds a setting of an element.
func (r *readings) addSetting(at, setting, value string) {
	c := r.configured[at]
	if c.Settings == nil {
		c.Settings = map[string]string{}
	}
	c.Settings[setting] = value
	r.configured[at] = c
}

// setPort sets a value of a port.
func setPort(set func(p *audit.PortReading, v *float64)) func(*readings, string, *evidence.Sample) {
	return func(r *readings, at string, s *evidence.Sample) {
		r.changePort(at, func(p *audit.PortReading) { set(p, &s.Value) })
	}
}

// setFEC sets the active mode of error correction by a label.
func setFEC(r *readings, at string, s *evidence.Sample) {
	r.changePort(at, func(p *audit.PortReading) { p.FEC = s.Labels["mode"] })
}

// opticalQueries returns the queries about modules, lanes and error correction.
func opticalQueries() []portQuery {
	var out []portQuery
	// A family of switch ports and one of NICs have the same meaning.
	both := func(name, port, nic, more string, take func(*readings, string, *evidence.Sample)) {
		out = append(out, portQuery{name + " of switch ports", "max by (switch, port" + more + ") (" + port + ")", take},
			portQuery{name + " of NICs", "max by (nic" + more + ") (" + nic + ")", take})
	}
	module := func(name, family, more string, take func(*readings, string, *evidence.Sample)) {
		both(name, "fabric_switch_port_module_"+family, "fabric_nic_module_"+family, more, take)
	}
	module("received power", "receive_power_watts", ", lane", setLane(func(l *audit.LaneReading, v *float64) { l.ReceiveWatts = v }))
	module("transmitted power", "transmit_power_watts", ", lane", setLane(func(l *audit.LaneReading, v *float64) { l.TransmitWatts = v }))
	module("bias", "bias_amperes", ", lane", setLane(func(l *audit.LaneReading, v *float64) { l.BiasAmperes = v }))
	module("temperature", "temperature_celsius", "", setModule(func(m *audit.ModuleReading, v *float64) { m.TemperatureCelsius = v }))
	module("voltage", "voltage_volts", "", setModule(func(m *audit.ModuleReading, v *float64) { m.VoltageVolts = v }))
	both("bit errors", "fabric_switch_port_pre_fec_ber_ratio", "fabric_nic_port_pre_fec_ber_ratio", "",
		setModule(func(m *audit.ModuleReading, v *float64) { m.PreFECBER = v }))
	both("lanes", "fabric_switch_port_lanes", "fabric_nic_link_lanes or fabric_nic_port_lanes", "",
		setPort(func(p *audit.PortReading, v *float64) { p.Lanes = v }))
	both("expected lanes", "fabric_switch_port_expected_lanes", "fabric_nic_port_expected_lanes", "",
		setPort(func(p *audit.PortReading, v *float64) { p.ExpectedLanes = v }))
	both("FEC", "fabric_switch_port_fec_mode", `fabric_nic_fec_mode{is="active"} == 1 or fabric_nic_port_fec_mode`, ", mode", setFEC)
	return append(out,
		portQuery{"bit errors of lanes", "max by (switch, port, lane) (fabric_switch_port_lane_pre_fec_ber_ratio)",
			setLane(func(l *audit.LaneReading, v *float64) { l.PreFECBER = v })},
		portQuery{"types of modules", "max by (nic, vendor, part) (fabric_nic_module_info)", func(r *readings, at string, s *evidence.Sample) {
			r.changeModule(at, func(m *audit.ModuleReading) { m.Type = strings.TrimSpace(s.Labels["vendor"] + " " + s.Labels["part"]) })
		}},
		portQuery{"thresholds of modules", "max by (nic, monitor, is) (fabric_nic_module_threshold)",
			func(r *readings, at string, s *evidence.Sample) {
				r.changeModule(at, func(m *audit.ModuleReading) {
					if m.Limits == nil {
						m.Limits = map[string]audit.ModuleLimits{}
					}
					l := m.Limits[s.Labels["monitor"]]
					switch s.Labels["is"] {
					case "low_alarm":
						l.LowAlarm = &s.Value
					case "low_warning":
						l.LowWarning = &s.Value
					case "high_warning":
						l.HighWarning = &s.Value
					case "high_alarm":
						l.HighAlarm = &s.Value
					}
					m.Limits[s.Labels["monitor"]] = l
				})
			}})
}

// Labels of series that say how a port, a queue or a switch is configured, and what the settings are called.
var (
	portSettings  = map[string]string{"dscp_map": "DSCP map", "queue_map": "map of traffic classes to queues", "pfc": "PFC priorities"}
	ecnLabels     = []string{"ecn", "min_threshold", "max_threshold", "probability"}
	pauseSettings = map[string]string{"receive": "pause frames obeyed", "transmit": "pause frames sent", "autoneg": "pause frames negotiated"}
)

// settingQueries returns the queries about what elements of a role should have in common.
func settingQueries() []portQuery {
	onOff := func(v float64) string {
		if v == 0 {
			return "no"
		}
		return "yes"
	}
	return []portQuery{
		{"identity of NICs", "max by (nic, board, type, driver, firmware) (fabric_nic_port_info)",
			func(r *readings, at string, s *evidence.Sample) {
				c := r.configured[at]
				c.Model = strings.TrimSpace(s.Labels["type"] + " " + s.Labels["board"])
				r.configured[at] = c
				for _, name := range []string{"driver", "firmware"} {
					if v := s.Labels[name]; v != "" {
						r.addSetting(at, name, v)
					}
				}
			}},
		{"lanes of PCIe", `max by (nic) (fabric_nic_pci_link_lanes{is="current"})`, func(r *readings, at string, s *evidence.Sample) {
			r.addSetting(at, "PCIe width", "x"+formatNumber(s.Value))
		}},
		{"speed of PCIe", `max by (nic) (fabric_nic_pci_link_transfers_per_second{is="current"})`,
			func(r *readings, at string, s *evidence.Sample) {
				r.addSetting(at, "PCIe speed", formatNumber(s.Value/1e9)+" GT/s")
			}},
		{"pause frames", "max by (nic, what) (fabric_nic_pause_enabled)", func(r *readings, at string, s *evidence.Sample) {
			if name := pauseSettings[s.Labels["what"]]; name != "" {
				r.addSetting(at, name, onOff(s.Value))
			}
		}},
		{"configured FEC", `max by (nic, mode) (fabric_nic_fec_mode{is="configured"})`, func(r *readings, at string, s *evidence.Sample) {
			r.addSetting(at, "FEC "+s.Labels["mode"]+" enabled", onOff(s.Value))
		}},
		{"settings of switch ports", "max by (switch, port, dscp_map, queue_map, pfc) (fabric_switch_port_qos_info)",
			func(r *readings, at string, s *evidence.Sample) {
				for label, name := range portSettings {
					if v := s.Labels[label]; v != "" {
						r.addSetting(at, name, v)
					}
				}
			}},
		{"ECN of queues", "max by (switch, port, tc, ecn_profile) (fabric_switch_port_queue_qos_info)",
			func(r *readings, at string, s *evidence.Sample) {
				r.addSetting(at, "ECN profile of queue "+s.Labels["tc"], s.Labels["ecn_profile"])
			}},
		{"ECN profiles", "max by (switch, profile, ecn, min_threshold, max_threshold, probability) (fabric_switch_ecn_profile_info)",
			func(r *readings, at string, s *evidence.Sample) {
				var parts []string
				for _, label := range ecnLabels {
					parts = append(parts, fmt.Sprintf("%s %s", label, s.Labels[label]))
				}
				r.addSetting(at, "ECN profile "+s.Labels["profile"], strings.Join(parts, ", "))
			}},
	}
}

// formatNumber writes a number without an exponent.
func formatNumber(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
