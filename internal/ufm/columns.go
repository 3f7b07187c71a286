package ufm

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Metric represents a family of series in the project's vocabulary.
type Metric struct {
	// Switch and NIC are the Prometheus names of the family for switch ports and for ports of HCAs.
	Switch, NIC string
	Help        string
	Counter     bool
	// Label is the label beyond those of the port; "" if there is none.
	Label string
}

const (
	switchPort = "fabric_switch_port_"
	nicPort    = "fabric_nic_port_"
)

func portMetric(name, help string, counter bool, label string) *Metric {
	if counter {
		name += "_total"
	}
	return &Metric{switchPort + name, nicPort + name, help, counter, label}
}

// moduleMetric returns a metric of the module in a port. Those of NICs have the names that nodes use
// (docs/nic-health.md).
func moduleMetric(name, help, label string) *Metric {
	return &Metric{switchPort + "module_" + name, "fabric_nic_module_" + name, help, false, label}
}

// Type is the type of a column's values.
type Type int

// Types of columns.
const (
	Number      Type = iota // not negative
	Signed                  // may be negative; -1 is "not available"
	Temperature             // degrees Celsius; 0 is "not available", as UFM's own programs take it
	DBm                     // decibels of a milliwatt, to watts
	State                   // a text, which becomes the label; the value is 1
)

// Column states what a column of telemetry becomes.
type Column struct {
	Metric *Metric
	// Value is the value of Metric.Label.
	Value string
	Type  Type
	// Scale converts a value to the metric's unit by multiplication.
	Scale float64
	index int
}

// octetsPerWord is the size of the words that data counters count (IBTA volume 1, PortCountersExtended).
const octetsPerWord = 4

// builtinColumns returns the built-in table of columns. Names are those of UFM 6.12 to 6.24 and of UFM
// Telemetry 1.8 to 1.23; "#" stands for a number, which becomes the label's value. Only counters of 64 bits are
// listed, because narrower ones stop at their limit.
var builtinColumns = func() map[string]Column {
	t := map[string]Column{}
	add := func(m *Metric, value string, typ Type, scale float64, names ...string) {
		for _, n := range names {
			t[n] = Column{Metric: m, Value: value, Type: typ, Scale: scale}
		}
	}
	wide := func(name string) []string { return []string{name + "Extended", name + "Ext"} }
	counter := func(name, help string, columns ...string) {
		add(portMetric(name, help, true, ""), "", Number, 1, columns...)
	}

	add(portMetric("transmit_bytes", "Octets sent.", true, ""), "", Number, octetsPerWord, wide("PortXmitData")...)
	add(portMetric("receive_bytes", "Octets received.", true, ""), "", Number, octetsPerWord, wide("PortRcvData")...)
	counter("transmit_packets", "Packets sent.", wide("PortXmitPkts")...)
	counter("receive_packets", "Packets received.", wide("PortRcvPkts")...)
	counter("transmit_unicast_packets", "Unicast packets sent.", append(wide("PortUniCastXmitPkts"), wide("PortUnicastXmitPkts")...)...)
	counter("receive_unicast_packets", "Unicast packets received.", append(wide("PortUniCastRcvPkts"), wide("PortUnicastRcvPkts")...)...)
	counter("transmit_multicast_packets", "Multicast packets sent.", append(wide("PortMultiCastXmitPkts"), wide("PortMulticastXmitPkts")...)...)
	counter("receive_multicast_packets", "Multicast packets received.", append(wide("PortMultiCastRcvPkts"), wide("PortMulticastRcvPkts")...)...)
	counter("transmit_wait_ticks", "Ticks of the port's clock during which it had data to send and waited for credits or arbitration.", wide("PortXmitWait")...)
	counter("symbol_errors", "Symbols in error on one or more lanes.", wide("SymbolErrorCounter")...)
	counter("link_recoveries", "Number of times that the link recovered from an error.", wide("LinkErrorRecoveryCounter")...)
	counter("link_downed", "Number of times that the link failed to recover from an error and went down.", wide("LinkDownedCounter")...)
	counter("local_link_integrity_errors", "Number of times that errors on the link exceeded the allowed rate.", wide("LocalLinkIntegrityErrors")...)
	counter("buffer_overruns", "Number of buffer overruns that flow control did not prevent.", wide("ExcessiveBufferOverrunErrors")...)
	counter("vl15_dropped", "Management packets dropped for lack of a buffer; readings are suspect when it grows.", wide("VL15Dropped")...)
	counter("qp1_dropped", "Packets to the general services interface that were dropped.", wide("QP1Dropped")...)
	counter("transmit_discards", "Whole packets thrown away instead of sent.", wide("PortXmitDiscards")...)
	counter("sync_header_errors", "Sync headers with errors.", wide("SyncHeaderErrorCounter")...)
	counter("unknown_blocks", "Blocks of an unknown type.", wide("UnknownBlockCounter")...)
	counter("fec_corrected_blocks", "FEC blocks with errors that were corrected.", "PortFECCorrectableBlockCounterExtended", "PortFECCorrectableBlockCounter")
	counter("fec_uncorrectable_blocks", "FEC blocks with errors that could not be corrected.", "PortFECUncorrectableBlockCounterExtended", "PortFECUncorrectableBlockCounter")
	counter("fec_corrected_symbols", "FEC symbols with errors that were corrected.", "PortFECCorrectedSymbolCounterExtended", "PortFECCorrectedSymbolCounter")
	counter("receive_fecn_packets", "Packets received with a forward congestion notification.", "PortPktRcvFECN")
	counter("receive_becn_packets", "Packets received with a backward congestion notification.", "PortPktRcvBECN")

	received := portMetric("receive_errors", "Packets received that were of no use, by reason.", true, "reason")
	add(received, "damaged", Number, 1, wide("PortRcvErrors")...)
	add(received, "remote_physical", Number, 1, wide("PortRcvRemotePhysicalErrors")...)
	add(received, "switch_relay", Number, 1, wide("PortRcvSwitchRelayErrors")...)
	add(received, "constraint", Number, 1, wide("PortRcvConstraintErrors")...)
	add(portMetric("transmit_errors", "Packets that could not be sent, by reason.", true, "reason"), "constraint", Number, 1, wide("PortXmitConstraintErrors")...)
	// Counters of details exist in one width only.
	one := func(name string) []string { return append(wide(name), name) }
	details := portMetric("receive_error_details", "Packets received with an error, by kind of error; a part of all errors.", true, "reason")
	add(details, "local_physical", Number, 1, one("PortLocalPhysicalErrors")...)
	add(details, "malformed", Number, 1, append(one("PortMalformedPacketErrors"), one("PortMalformedPktErrors")...)...)
	add(details, "buffer_overrun", Number, 1, one("PortBufferOverrunErrors")...)
	add(details, "dlid_mapping", Number, 1, one("PortDLIDMappingErrors")...)
	add(details, "vl_mapping", Number, 1, one("PortVLMappingErrors")...)
	add(details, "looping", Number, 1, one("PortLoopingErrors")...)
	discards := portMetric("transmit_discard_details", "Packets discarded instead of sent, by reason; a part of all discards.", true, "reason")
	add(discards, "port_inactive", Number, 1, one("PortInactiveDiscards")...)
	add(discards, "neighbor_mtu", Number, 1, one("PortNeighborMTUDiscards")...)
	add(discards, "lifetime", Number, 1, one("PortSwLifetimeLimitDiscards")...)
	add(discards, "head_of_queue_lifetime", Number, 1, one("PortSwHOQLifetimeLimitDiscards")...)
	add(portMetric("vl_transmit_wait_ticks", "Ticks during which a virtual lane had data to send and had to wait.", true, "vl"), "#", Number, 1, "PortVLXmitWait#")

	// The physical layer, from the secondary telemetry. A rate of errors is the ratio of errors to bits. UFM
	// writes 1.5e-254 where there was no error; that value is passed on.
	add(portMetric("pre_fec_ber_ratio", "Ratio of bit errors to bits before error correction.", false, ""), "", Number, 1, "Raw_BER", "Total_Raw_BER")
	add(portMetric("post_fec_ber_ratio", "Ratio of bit errors to bits after error correction.", false, ""), "", Number, 1, "Effective_BER")
	add(portMetric("symbol_ber_ratio", "Ratio of bit errors in symbols that remain after error correction and retransmission.", false, ""), "", Number, 1, "Symbol_BER")
	add(portMetric("lane_raw_errors", "Bit errors on a lane before error correction.", true, "lane"), "#", Number, 1, "Raw_Errors_Lane_#", "Raw_Errors_lane#")
	counter("effective_errors", "Bit errors that error correction did not correct.", "Effective_Errors")
	counter("phy_symbol_errors", "Errors that no mechanism of the physical layer corrected.", "Symbol_Errors")
	add(portMetric("fec_mode", "Active mode of error correction; always 1.", false, "mode"), "", State, 1, "fec_mode_active", "Active_FEC")

	// Modules. UFM Telemetry reports degrees Celsius and, since 1.14.5, millivolts; for services with other
	// units, columns declares them. No document gives the units of the lanes' power and bias: Optics sets them,
	// and without it these columns are left out.
	const milli = 1e-3
	add(moduleMetric("temperature_celsius", "Temperature of the module.", ""), "", Temperature, 1, "Module_Temperature")
	add(moduleMetric("voltage_volts", "Supply voltage of the module.", ""), "", Number, milli, "Module_Voltage")
	add(moduleMetric("receive_power_watts", "Received optical power; 0 means no light, or less than the monitor's resolution.", "lane"), "#+1", Number, milli, "rx_power_lane_#")
	add(moduleMetric("transmit_power_watts", "Transmitted optical power; 0 means that the laser is off.", "lane"), "#+1", Number, milli, "tx_power_lane_#")
	add(moduleMetric("bias_amperes", "Bias current of the laser.", "lane"), "#+1", Number, milli, "tx_bias_lane_#")
	return t
}()

// metadataColumns are the columns that identify or describe a row's port. They are not samples, and do not
// count as unknown.
var metadataColumns = func() map[string]bool {
	out := map[string]bool{}
	for _, n := range strings.Fields(`timestamp source_id source tag node_guid port_guid port_num port_number port node_description device_name
		device_type node_type sys_image_guid aport port_type lid device_id port_label m_label status_message node_name port_name peer_guid peer_name
		hostname level peer_level fabric link_partner_description link_partner_node_guid link_partner_port_num link_partner_lid device_fw_version
		num_planes
		cable_pn cable_sn cable_technology cable_type cable_vendor cable_length cable_identifier vendor_name vendor_rev vendor_oui module_fw_version`) {
		out[n] = true
	}
	return out
}()

// DeclaredColumn represents a column that the user's configuration declares.
type DeclaredColumn struct {
	// Metric is the family's name after fabric.switch.port. and fabric.nic.port.
	Metric string `mapstructure:"metric"`
	// Type is counter or gauge.
	Type string `mapstructure:"type"`
	// Unit is a unit of UCUM: By, By/s, s, Cel, W, V, A or 1. It is empty for counts and states.
	Unit string `mapstructure:"unit"`
	// Scale converts a value to the unit by multiplication; 0 means 1.
	Scale float64 `mapstructure:"scale"`
	// DBm means that values are in decibels of a milliwatt; the unit is W.
	DBm bool `mapstructure:"dbm"`
	// Negative means that values may be below 0.
	Negative bool `mapstructure:"negative"`
}

var (
	metricName   = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	unitSuffixes = map[string]string{"": "", "1": "ratio", "By": "bytes", "By/s": "bytes_per_second", "s": "seconds", "Cel": "celsius", "W": "watts", "V": "volts", "A": "amperes"}
)

// toColumn returns the column of the declaration, with the families of its metric.
func (d DeclaredColumn) toColumn(key string) (Column, error) {
	word, known := unitSuffixes[d.Unit]
	counter := d.Type == "counter"
	switch {
	case !metricName.MatchString(d.Metric) || strings.HasSuffix(d.Metric, "_total"):
		return Column{}, fmt.Errorf("%s: metric: %q: words of a-z and 0-9 with underscores between are expected, without _total", key, d.Metric)
	case d.Type != "counter" && d.Type != "gauge":
		return Column{}, fmt.Errorf("%s: type: %q: counter or gauge is expected", key, d.Type)
	case !known:
		return Column{}, fmt.Errorf("%s: unit: %q: one of By, By/s, s, Cel, W, V, A, 1 is expected, or none", key, d.Unit)
	case d.Scale < 0 || math.IsNaN(d.Scale) || math.IsInf(d.Scale, 0):
		return Column{}, fmt.Errorf("%s: scale: %v: more than 0 is expected", key, d.Scale)
	case d.DBm && (d.Unit != "W" || counter):
		return Column{}, fmt.Errorf("%s: dbm: a gauge with the unit W is expected", key)
	case d.Negative && counter:
		return Column{}, fmt.Errorf("%s: negative: a counter does not go below 0", key)
	}
	name := d.Metric
	if word != "" && !strings.HasSuffix(name, "_"+word) {
		name += "_" + word
	}
	c := Column{Metric: portMetric(name, "Declared by the configuration.", counter, ""), Scale: d.Scale}
	if c.Scale == 0 {
		c.Scale = 1
	}
	switch {
	case d.DBm:
		c.Type = DBm
	case d.Negative:
		c.Type = Signed
	}
	return c, nil
}

// Table maps columns to what they become. It is not safe for concurrent use.
type Table struct {
	base    map[string]Column
	columns []*Column
	byName  map[string]*Column // nil means that the name is known to be no column
	series  map[[2]string]*Column
	unknown map[string]bool
}

// maxNames bounds the number of column names that are remembered.
const maxNames = 8192

// OpticsUnits states the units in which a service reports the power and bias of the lanes of modules. No
// document of UFM gives them; one of NVIDIA's programs takes the received power of NMX-T, a service with the
// same names of columns, as milliwatts (infra-controller-core, nmxt.rs).
type OpticsUnits struct {
	// Power is mW or dBm; if it is empty, power is left out.
	Power string `mapstructure:"power"`
	// Bias is mA or uA; if it is empty, bias is left out.
	Bias string `mapstructure:"bias"`
}

// adjustColumn sets the unit of a column of optics. It returns false for a column that is left out.
func (o OpticsUnits) adjustColumn(name string, c Column) (Column, bool, error) {
	switch {
	case strings.HasPrefix(name, "rx_power_lane_"), strings.HasPrefix(name, "tx_power_lane_"):
		switch o.Power {
		case "mW", "":
		case "dBm":
			c.Type, c.Scale = DBm, 1
		default:
			return c, false, fmt.Errorf("optics: power: %q: mW or dBm is expected, or none", o.Power)
		}
		return c, o.Power != "", nil
	case strings.HasPrefix(name, "tx_bias_lane_"):
		switch o.Bias {
		case "mA", "":
		case "uA":
			c.Scale = 1e-6
		default:
			return c, false, fmt.Errorf("optics: bias: %q: mA or uA is expected, or none", o.Bias)
		}
		return c, o.Bias != "", nil
	}
	return c, true, nil
}

// NewTable returns the built-in table with the user's declarations before it.
func NewTable(declared map[string]DeclaredColumn, optics OpticsUnits) (*Table, error) {
	t := &Table{base: map[string]Column{}, byName: map[string]*Column{}, series: map[[2]string]*Column{}, unknown: map[string]bool{}}
	for name, c := range builtinColumns {
		c, in, err := optics.adjustColumn(name, c)
		if err != nil {
			return nil, err
		}
		if in {
			t.base[name] = c
		}
	}
	metrics := map[string]*Metric{}
	for _, c := range builtinColumns {
		metrics[c.Metric.Switch] = c.Metric
	}
	keys := make([]string, 0, len(declared))
	for k := range declared {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, key := range keys {
		c, err := declared[key].toColumn("columns: " + key)
		if err != nil {
			return nil, err
		}
		if metadataColumns[strings.ToLower(key)] || key == "" {
			return nil, fmt.Errorf("columns: %s: a column that holds a value is expected", key)
		}
		if m := metrics[c.Metric.Switch]; m != nil {
			if m.Label != "" || m.Counter != c.Metric.Counter {
				return nil, fmt.Errorf("columns: %s: metric: %s is there already, with another type or with labels", key, declared[key].Metric)
			}
			c.Metric = m
		}
		metrics[c.Metric.Switch] = c.Metric
		t.base[key] = c
	}
	return t, nil
}

// Metrics returns the families that the table can produce, sorted by name.
func (t *Table) Metrics() []*Metric {
	var out []*Metric
	for _, c := range t.base {
		if !slices.Contains(out, c.Metric) {
			out = append(out, c.Metric)
		}
	}
	slices.SortFunc(out, func(a, b *Metric) int { return strings.Compare(a.Switch, b.Switch) })
	return out
}

// UnknownColumns returns the sorted names of the columns that were left out.
func (t *Table) UnknownColumns() []string {
	out := make([]string, 0, len(t.unknown))
	for n := range t.unknown {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// columnByName returns the column of a name, or nil if it is left out.
func (t *Table) columnByName(name []byte) *Column {
	if c, ok := t.byName[string(name)]; ok {
		return c
	}
	c := t.resolveColumn(string(name))
	if len(t.byName) < maxNames {
		t.byName[string(name)] = c
	}
	return c
}

func (t *Table) resolveColumn(name string) *Column {
	if metadataColumns[strings.ToLower(name)] || name == "" {
		return nil
	}
	c, ok := t.base[name]
	if !ok {
		c, ok = t.numberedColumn(name)
	}
	if !ok {
		if len(t.unknown) < maxNames && len(name) <= 256 {
			t.unknown[name] = true
		}
		return nil
	}
	key := [2]string{c.Metric.Switch, c.Value}
	if old := t.series[key]; old != nil && old.Type == c.Type && old.Scale == c.Scale {
		return old // another name of the same column
	}
	c.index = len(t.columns)
	t.columns = append(t.columns, &c)
	t.series[key] = &c
	return &c
}

// numberedColumn returns the column of a name that ends in a number of at most two digits.
func (t *Table) numberedColumn(name string) (Column, bool) {
	i := len(name)
	for i > 0 && name[i-1] >= '0' && name[i-1] <= '9' {
		i--
	}
	n, err := strconv.ParseUint(name[i:], 10, 8)
	c, ok := t.base[name[:i]+"#"]
	if err != nil || !ok || len(name)-i > 2 {
		return Column{}, false
	}
	switch c.Value {
	case "#":
		c.Value = strconv.FormatUint(n, 10)
	case "#+1":
		c.Value = strconv.FormatUint(n+1, 10)
	}
	return c, true
}

// errValue is the error for a value that its column cannot have.
var errValue = errors.New("not a value of its column")

// markers are the texts that mean "not available" in UFM's documents.
var markers = []string{"N/A", "NA", "nan", "null", "none", "unknown", "-", "not supported"}

func isAbsent(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	if c := b[0]; c >= '0' && c <= '9' {
		return false
	}
	for _, m := range markers {
		if len(m) == len(b) && strings.EqualFold(m, string(b)) {
			return true
		}
	}
	return false
}

// maxState bounds the length of a state's text.
const maxState = 64

// parseValue parses the text of a value. there is false for a marker that means "not available".
func (c *Column) parseValue(b []byte) (v float64, state string, there bool, err error) {
	b = bytes.TrimSpace(b)
	if isAbsent(b) {
		return 0, "", false, nil
	}
	if c.Type == State {
		if len(b) > maxState {
			return 0, "", false, errValue
		}
		for _, ch := range b {
			if ch < ' ' || ch > '~' {
				return 0, "", false, errValue
			}
		}
		if string(b) == "-1" {
			return 0, "", false, nil
		}
		return 1, string(b), true, nil
	}
	v, ok := parseNumber(b)
	if !ok {
		return 0, "", false, errValue
	}
	switch {
	case math.IsNaN(v):
		return 0, "", false, nil
	case math.IsInf(v, 0):
		return 0, "", false, errValue
	case c.Type == DBm:
		return math.Pow(10, v/10) * 1e-3, "", true, nil // IEC 60027-3: 0 dBm is 1 mW
	case v == -1, v == math.MaxUint64: // -1 of 64 bits is written without its sign by some
		return 0, "", false, nil
	case c.Type == Temperature && v == 0:
		return 0, "", false, nil
	case v < 0 && c.Type == Number:
		return 0, "", false, errValue
	}
	if v *= c.Scale; math.IsInf(v, 0) {
		return 0, "", false, errValue
	}
	return v, "", true, nil
}

// parseNumber parses a number, which may be followed by one of UFM's units.
func parseNumber(b []byte) (float64, bool) {
	var n uint64
	for i, ch := range b {
		if ch < '0' || ch > '9' {
			break
		}
		if i == 19 {
			break
		}
		n = n*10 + uint64(ch-'0')
		if i == len(b)-1 {
			return float64(n), true
		}
	}
	for _, unit := range [...]string{"C", " mW", "mW", " mV", "mV", " mA", "mA", " dBm", "dBm"} {
		if rest, ok := bytes.CutSuffix(b, []byte(unit)); ok && len(rest) > 0 {
			b = bytes.TrimSpace(rest)
			break
		}
	}
	if len(b) == 0 || len(b) > 64 || bytes.ContainsAny(b, "xX_pP") {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(b), 64)
	return v, err == nil
}
