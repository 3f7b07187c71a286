package audit

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// ModuleReading is what the series of the module in a port or NIC say. Nil means that a value is absent.
type ModuleReading struct {
	// Type is by what modules are compared: vendor and part. It is empty if it is not known.
	Type string
	// TemperatureCelsius and VoltageVolts are those of the module.
	TemperatureCelsius, VoltageVolts *float64
	// PreFECBER is the ratio of bit errors of the whole port before error correction.
	PreFECBER *float64
	Lanes     map[string]LaneReading
	// Limits are the module's own thresholds by the name of a monitor, as the series have it: temperature, voltage, bias,
	// receive_power and transmit_power.
	Limits map[string]ModuleLimits
}

// LaneReading is what the series of a lane say.
type LaneReading struct {
	ReceiveWatts, TransmitWatts, BiasAmperes *float64
	PreFECBER                                *float64
}

// ModuleLimits are the thresholds of a monitor, in its unit.
type ModuleLimits struct{ LowAlarm, LowWarning, HighWarning, HighAlarm *float64 }

// opticalMeasure is a quantity of a module or of each of its lanes.
type opticalMeasure struct {
	name, unit string
	monitor    string // of the thresholds, or empty
	// scale converts a value to what is compared, and factor converts the value to the unit of texts.
	scale  func(float64) float64
	factor float64
	// oneSided is set if only larger values are worse.
	oneSided bool
	ofLane   func(LaneReading) *float64
	ofModule func(*ModuleReading) *float64
	// among modules and among the lanes of one module, a healthy value is not farther from the median.
	amongModules, amongLanes func(*OpticsCriteria) float64
}

func decibels(ratio float64) float64 { return 10 * math.Log10(ratio) }

func identity(v float64) float64 { return v }

// opticalMeasures are the quantities that are judged.
var opticalMeasures = []opticalMeasure{
	{name: "received power", monitor: "receive_power", scale: decibels, ofLane: func(l LaneReading) *float64 { return l.ReceiveWatts },
		amongModules: func(c *OpticsCriteria) float64 { return c.MaxPowerDifference },
		amongLanes:   func(c *OpticsCriteria) float64 { return c.MaxPowerDifference }},
	{name: "transmitted power", monitor: "transmit_power", scale: decibels, ofLane: func(l LaneReading) *float64 { return l.TransmitWatts },
		amongModules: func(c *OpticsCriteria) float64 { return c.MaxPowerDifference },
		amongLanes:   func(c *OpticsCriteria) float64 { return c.MaxPowerDifference }},
	{name: "bias current", unit: "mA", monitor: "bias", factor: 1000, scale: decibels,
		ofLane:       func(l LaneReading) *float64 { return l.BiasAmperes },
		amongModules: func(c *OpticsCriteria) float64 { return decibels(c.MaxBiasRatio) },
		amongLanes:   func(c *OpticsCriteria) float64 { return decibels(c.MaxBiasRatio) }},
	{name: "bit error ratio before FEC of the lane", scale: berDecades, oneSided: true,
		ofLane:       func(l LaneReading) *float64 { return l.PreFECBER },
		amongModules: func(*OpticsCriteria) float64 { return berOutlierDecades },
		amongLanes:   func(*OpticsCriteria) float64 { return berOutlierDecades }},
	{name: "bit error ratio before FEC", scale: berDecades, oneSided: true, ofModule: func(m *ModuleReading) *float64 { return m.PreFECBER },
		amongModules: func(*OpticsCriteria) float64 { return berOutlierDecades }},
	{name: "temperature", unit: "°C", monitor: "temperature", factor: 1, oneSided: true, scale: identity,
		ofModule:     func(m *ModuleReading) *float64 { return m.TemperatureCelsius },
		amongModules: func(c *OpticsCriteria) float64 { return c.MaxTemperatureDifference }},
	{name: "supply voltage", unit: "V", monitor: "voltage", factor: 1, scale: identity,
		ofModule:     func(m *ModuleReading) *float64 { return m.VoltageVolts },
		amongModules: func(c *OpticsCriteria) float64 { return math.Inf(1) }},
}

// Limits of bit error ratios. Ratios below negligibleBER are all the same: healthy links have any of them.
const (
	negligibleBER     = 1e-8
	berOutlierDecades = 2
)

func berDecades(v float64) float64 { return math.Log10(max(v, negligibleBER)) }

// format writes a value with its unit. Power is written in dBm, as data sheets have it.
func (m *opticalMeasure) format(v float64) string {
	switch {
	case m.factor > 0:
		return fmt.Sprintf("%.3g %s", v*m.factor, m.unit)
	case m.monitor != "" && v <= 0:
		return "no power"
	case m.monitor != "":
		return fmt.Sprintf("%.1f dBm", decibels(v*1000))
	}
	return fmt.Sprintf("%.2g", v)
}

// opticalValue is a value of a lane, or of a module if lane is empty.
type opticalValue struct {
	at, lane string
	value    float64
}

// opticsStudy is what check A8 found so far.
type opticsStudy struct {
	st    *study
	ports []string // in the scope, with any reading
	// found are the texts about each port.
	found map[string][]string
	// status is the worst finding of each port.
	status map[string]Status
	// dark are the lanes that were named already, by port.
	dark map[string]bool
	// judged are the ports of which a value was compared with thresholds, lanes or modules.
	judged map[string]bool
}

// checkOptics makes check A8: whether modules get and give light, within their own thresholds, and like the others of their kind. Values
// beyond alarms, dark lanes and too many bit errors fail; warnings and outliers warn.
func checkOptics(st *study) Check {
	c := Check{ID: "A8", Title: "Optics", Status: Pass, Unit: "ports with findings", Bound: new(float64),
		Of: "ports and NICs with series of their modules"}
	o := &opticsStudy{st: st, found: map[string][]string{}, status: map[string]Status{}, dark: map[string]bool{}, judged: map[string]bool{}}
	unread := 0
	for i := range st.e.Graph.Topo.Links {
		l := &st.e.Graph.Topo.Links[i]
		if !st.scope.hasLink(l.ID()) {
			continue
		}
		for _, end := range []string{l.A, l.B} {
			if m := st.e.Modules[end]; m.isMeasured() {
				o.ports = append(o.ports, end)
			} else {
				unread++
			}
		}
	}
	slices.Sort(o.ports)
	if c.Population = len(o.ports); c.Population == 0 {
		return c
	}
	o.findDark()
	for i := range opticalMeasures {
		o.compareWithThresholds(&opticalMeasures[i])
		o.compareLanes(&opticalMeasures[i])
		o.compareModules(&opticalMeasures[i])
	}
	o.findBitErrors()
	wrong := 0
	for _, at := range o.ports {
		item := Item{Element: at, Kind: "module " + o.kindOf(at), Status: o.status[at], Population: 1, Text: strings.Join(o.found[at], " ")}
		switch {
		case len(o.found[at]) > 0:
			wrong++
		case !o.judged[at]:
			item.Status, item.Text = Unknown, fmt.Sprintf("Its module has no thresholds, and fewer than %d modules of its kind have readings.", st.c.Optics.MinMembers)
		default:
			continue
		}
		c.addItem(item)
	}
	c.noteValue(float64(wrong))
	c.Text = fmt.Sprintf("%d of %d modules with readings have findings. Number of kinds: %d.", wrong, c.Population, o.countKinds())
	if unread > 0 {
		c.addItem(Item{Element: "ports without readings", Kind: "ports", Status: Unknown, Population: unread,
			Text: fmt.Sprintf("%d ports and NICs have no series of their modules; copper cables have none.", unread)})
	}
	return c
}

// isMeasured reports whether a module has any reading.
func (m ModuleReading) isMeasured() bool {
	return m.TemperatureCelsius != nil || m.VoltageVolts != nil || m.PreFECBER != nil || len(m.Lanes) > 0
}

// kindOf returns by what the module at a port is compared. Modules of an unknown type are compared with those of other links of
// the same kind, at the same kind of end.
func (o *opticsStudy) kindOf(at string) string {
	if t := o.st.e.Modules[at].Type; t != "" {
		return t
	}
	l := o.st.e.Graph.LinkAt(at)
	return "of an unknown type at a " + o.st.roleOf(at) + ", " + kindOf(o.st.e.Graph, l.ID())
}

func (o *opticsStudy) countKinds() int {
	kinds := map[string]bool{}
	for _, at := range o.ports {
		kinds[o.kindOf(at)] = true
	}
	return len(kinds)
}

// add adds what was found about a port.
func (o *opticsStudy) add(at string, s Status, format string, args ...any) {
	if o.status[at] == "" {
		o.status[at] = Pass
	}
	o.status[at] = worse(o.status[at], s)
	o.found[at] = append(o.found[at], fmt.Sprintf(format, args...))
}

// values returns the values of a measure at a port. Values without a logarithm are left out where logarithms are compared.
func (o *opticsStudy) values(m *opticalMeasure, at string) (out []opticalValue) {
	r := o.st.e.Modules[at]
	add := func(lane string, v *float64) {
		if v != nil && !math.IsNaN(*v) && !o.dark[at+" "+lane] {
			out = append(out, opticalValue{at: at, lane: lane, value: *v})
		}
	}
	if m.ofModule != nil {
		add("", m.ofModule(&r))
		return out
	}
	for _, lane := range slices.SortedFunc(maps.Keys(r.Lanes), compareLaneNames) {
		add(lane, m.ofLane(r.Lanes[lane]))
	}
	return out
}

// compareLaneNames orders the names of lanes, which are numbers as a rule.
func compareLaneNames(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

// findDark names the lanes that get or give no light.
func (o *opticsStudy) findDark() {
	limit := math.Pow(10, o.st.c.Optics.DarkDBM/10) / 1000
	for _, at := range o.ports {
		lanes := o.st.e.Modules[at].Lanes
		for _, lane := range slices.SortedFunc(maps.Keys(lanes), compareLaneNames) {
			l := lanes[lane]
			dark := false
			if v := l.TransmitWatts; v != nil && *v < limit {
				dark = true
				o.add(at, Fail, "Lane %s is dark: its laser sends %s.", lane, opticalMeasures[1].format(*v))
			}
			if v := l.ReceiveWatts; v != nil && *v < limit {
				dark = true
				o.add(at, Fail, "Lane %s is dark: it receives %s.", lane, opticalMeasures[0].format(*v))
			}
			if dark {
				o.dark[at+" "+lane], o.judged[at] = true, true
			}
		}
	}
}

// findBitErrors names the ports with more bit errors than error correction surely corrects.
func (o *opticsStudy) findBitErrors() {
	limit := o.st.c.Optics.MaxPreFECBER
	for i := range opticalMeasures {
		m := &opticalMeasures[i]
		if m.monitor != "" {
			continue
		}
		for _, at := range o.ports {
			for _, v := range o.values(m, at) {
				o.judged[at] = true
				if v.value > limit {
					o.add(at, Fail, "Its %s is %s%s; at most %g is accepted.", m.name, m.format(v.value), ofLane(v.lane), limit)
				}
			}
		}
	}
}

// ofLane names a lane, or nothing if a value is that of the module.
func ofLane(lane string) string {
	if lane == "" {
		return ""
	}
	return " on lane " + lane
}

// compareWithThresholds compares values with the thresholds of their own modules.
func (o *opticsStudy) compareWithThresholds(m *opticalMeasure) {
	for _, at := range o.ports {
		limits, known := o.st.e.Modules[at].Limits[m.monitor]
		if !known || m.monitor == "" {
			continue
		}
		for _, v := range o.values(m, at) {
			o.judged[at] = true
			if s, limit, side := limits.compare(v.value); s != Pass {
				kind := map[Status]string{Fail: "alarm", Warn: "warning"}[s]
				o.add(at, s, "Its %s is %s%s, %s the module's threshold of %s for its %s.", m.name, m.format(v.value), ofLane(v.lane), side,
					m.format(limit), kind)
			}
		}
	}
}

// compare returns whether a value is beyond a threshold, and beyond which. A pair of thresholds that includes nothing is one that the
// module does not have.
func (l ModuleLimits) compare(v float64) (s Status, limit float64, side string) {
	for _, x := range []struct {
		status    Status
		low, high *float64
	}{{Fail, l.LowAlarm, l.HighAlarm}, {Warn, l.LowWarning, l.HighWarning}} {
		if x.low != nil && x.high != nil && *x.high <= *x.low {
			continue
		}
		if x.high != nil && v > *x.high {
			return x.status, *x.high, "above"
		}
		if x.low != nil && v < *x.low {
			return x.status, *x.low, "below"
		}
	}
	return Pass, 0, ""
}

// minLanes is the number of lanes of a module that are compared with each other.
const minLanes = 4

// compareLanes compares the lanes of each module.
func (o *opticsStudy) compareLanes(m *opticalMeasure) {
	if m.ofLane == nil {
		return
	}
	for _, at := range o.ports {
		values := o.values(m, at)
		if len(values) < minLanes {
			continue
		}
		o.judged[at] = true
		o.nameOutliers(m, values, m.amongLanes(&o.st.c.Optics), "its lanes")
	}
}

// compareModules compares the modules of each kind by the median of their lanes.
func (o *opticsStudy) compareModules(m *opticalMeasure) {
	kinds := map[string][]opticalValue{}
	for _, at := range o.ports {
		values := o.values(m, at)
		if len(values) == 0 {
			continue
		}
		middle := make([]float64, len(values))
		for i := range values {
			middle[i] = values[i].value
		}
		kinds[o.kindOf(at)] = append(kinds[o.kindOf(at)], opticalValue{at: at, value: median(middle)})
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		members := kinds[kind]
		if len(members) < o.st.c.Optics.MinMembers {
			continue
		}
		for _, v := range members {
			o.judged[v.at] = true
		}
		o.nameOutliers(m, members, m.amongModules(&o.st.c.Optics), fmt.Sprintf("the %d modules of its kind", len(members)))
	}
}

// nameOutliers warns of the values that are farther from the median than a limit, and than the spread of the others explains.
func (o *opticsStudy) nameOutliers(m *opticalMeasure, values []opticalValue, limit float64, of string) {
	scaled := make([]float64, len(values))
	for i, v := range values {
		scaled[i] = m.scale(v.value)
	}
	middle, spread := medianAndMAD(scaled)
	if math.IsInf(middle, 0) || math.IsNaN(middle) || math.IsNaN(spread) {
		return
	}
	raw := make([]float64, len(values))
	for i, v := range values {
		raw[i] = v.value
	}
	for i, v := range values {
		far := scaled[i] - middle
		if !m.oneSided {
			far = math.Abs(far)
		}
		if far > limit && far > o.st.c.Optics.OutlierMADs*spread {
			o.add(v.at, Warn, "Its %s is %s%s, and the median of %s is %s.", m.name, m.format(v.value), ofLane(v.lane), of, m.format(median(raw)))
		}
	}
}
