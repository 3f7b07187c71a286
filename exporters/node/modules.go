package node

import (
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/graylink/graylink/internal/nicethtool"
	"github.com/graylink/graylink/internal/nicethtool/module"
)

// moduleCollector publishes what the modules in the node's NICs measure.
type moduleCollector struct{}

func newModuleCollector(from *sources) collector {
	if !usesEthtool(from) {
		return nil
	}
	return moduleCollector{}
}

// addSeries implements collector.
func (moduleCollector) addSeries(s *scrape) error {
	f := newModuleFamilies(s.exposition)
	eachEthtoolInterface(s.snapshotHealth().Ethtool, func(nic string, i *nicethtool.Interface) {
		if i.Module != nil {
			f.addModule(nic, i.Module)
		}
	})
	return nil
}

// moduleFamilies holds the families of modules.
type moduleFamilies struct {
	*exposition
	info, state, temperature, voltage, receive, transmit, bias, raised, threshold *dto.MetricFamily
}

func newModuleFamilies(x *exposition) *moduleFamilies {
	return &moduleFamilies{exposition: x,
		info:        x.gaugeFamily("fabric_nic_module_info", "Identity of the plugged module."),
		state:       x.gaugeFamily("fabric_nic_module_state", "State of the module (CMIS)."),
		temperature: x.gaugeFamily("fabric_nic_module_temperature_celsius", "Temperature of the module."),
		voltage:     x.gaugeFamily("fabric_nic_module_voltage_volts", "Supply voltage of the module."),
		receive:     x.gaugeFamily("fabric_nic_module_receive_power_watts", "Received optical power in watts; 0 is below the monitor's resolution."),
		transmit:    x.gaugeFamily("fabric_nic_module_transmit_power_watts", "Transmitted optical power in watts; 0 means that the laser is off."),
		bias:        x.gaugeFamily("fabric_nic_module_bias_amperes", "Bias current of the laser."),
		raised:      x.gaugeFamily("fabric_nic_module_flag", "Alarms and warnings of the module since its last read; lane is empty for the whole module."),
		threshold:   x.gaugeFamily("fabric_nic_module_threshold", "Threshold of a monitor of the module, in celsius, volts, watts or amperes.")}
}

// addModule adds the series of the module in a NIC.
func (f *moduleFamilies) addModule(nic string, m *module.Module) {
	f.addGauge(f.info, 1, f.labelPairs("nic", nic, "oui", m.OUI, "part", m.Part, "revision", m.Revision, "serial", m.Serial, "standard", strings.TrimSpace(string(m.Standard)+" "+m.Compliance), "type", m.Type, "vendor", m.Vendor))
	if m.State != "" {
		f.addGauge(f.state, 1, f.labelPairs("cause", m.FaultCause, "nic", nic, "state", m.State))
	}
	f.addReading(f.temperature, m.Temperature, "nic", nic)
	f.addReading(f.voltage, m.Voltage, "nic", nic)
	for _, l := range m.Lanes {
		n := strconv.Itoa(l.Number)
		f.addReading(f.receive, l.ReceivePower, "lane", n, "nic", nic)
		f.addReading(f.transmit, l.TransmitPower, "lane", n, "nic", nic)
		f.addReading(f.bias, l.Bias, "lane", n, "nic", nic)
	}
	f.addThresholds(nic, &m.Thresholds)
	for _, flag := range m.Flags {
		lane := ""
		if flag.Lane != 0 {
			lane = strconv.Itoa(flag.Lane)
		}
		f.addGauge(f.raised, 1, f.labelPairs("flag", flag.Name, "lane", lane, "nic", nic))
	}
}

// addReading adds a gauge, or nothing if the module has no such monitor.
func (f *moduleFamilies) addReading(family *dto.MetricFamily, v *float64, labels ...string) {
	if v != nil {
		f.addGauge(family, *v, f.labelPairs(labels...))
	}
}

// addThresholds adds the thresholds of the monitors that have them.
func (f *moduleFamilies) addThresholds(nic string, t *module.Thresholds) {
	for _, v := range []struct {
		monitor string
		limits  *module.Limits
	}{{"bias", t.Bias}, {"receive_power", t.ReceivePower}, {"temperature", t.Temperature}, {"transmit_power", t.TransmitPower}, {"voltage", t.Voltage}} {
		if v.limits == nil {
			continue
		}
		for _, l := range []struct {
			is    string
			value float64
		}{{"high_alarm", v.limits.HighAlarm}, {"high_warning", v.limits.HighWarning}, {"low_alarm", v.limits.LowAlarm}, {"low_warning", v.limits.LowWarning}} {
			f.addGauge(f.threshold, l.value, f.labelPairs("is", l.is, "monitor", v.monitor, "nic", nic))
		}
	}
}
