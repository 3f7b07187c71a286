package ibagent

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibmad"
	"github.com/graylink/graylink/internal/ibsample"
)

// Family describes a family of series.
type Family struct {
	Name    string // Prometheus name
	Help    string
	Counter bool // a gauge otherwise
	Labels  []string
}

// Point is a sample of a family.
type Point struct {
	*Family
	Values []string // of Labels
	Value  float64
	At     time.Time // when it was read; zero means now
	Since  time.Time // of a counter: when it began to count; zero means since the process started
}

// Families lists all possible families, by name.
var Families = allFamilies()

// Series of switch ports have the labels switch and port, those of HCA ports the label nic. Their names
// continue with the same words after either prefix.
const (
	switchPrefix = "fabric_switch_port_"
	nicPrefix    = "fabric_nic_port_"
)

// portFamily holds the two families of a series of ports: of switches and of HCAs.
type portFamily struct{ sw, nic Family }

func newPortFamily(name, help string, counter bool, labels ...string) *portFamily {
	if counter {
		name += "_total"
	}
	return &portFamily{
		Family{switchPrefix + name, help, counter, append([]string{"switch", "port"}, labels...)},
		Family{nicPrefix + name, help, counter, append([]string{"nic"}, labels...)},
	}
}

// counterFamilies holds the families of ibsample.Counters, by their names.
var counterFamilies = func() map[string]*portFamily {
	out := map[string]*portFamily{}
	for i := range ibsample.Counters {
		c := &ibsample.Counters[i]
		if out[c.Name] != nil {
			continue
		}
		var labels []string
		if c.Label != "" {
			labels = []string{c.Label}
		}
		out[c.Name] = newPortFamily(c.Name, helpTexts[c.Name], true, labels...)
	}
	return out
}()

// helpTexts holds the help texts of counters, by name.
var helpTexts = map[string]string{
	"symbol_errors":                 "Symbols in error on one or more lanes.",
	"link_recoveries":               "Number of times that the link recovered from an error.",
	"link_downed":                   "Number of times that the link failed to recover from an error and went down.",
	"receive_errors":                "Packets received that were of no use, by reason.",
	"transmit_errors":               "Packets that could not be sent, by reason.",
	"transmit_discards":             "Whole packets thrown away instead of sent.",
	"local_link_integrity_errors":   "Number of times that errors on the link exceeded the allowed rate.",
	"buffer_overruns":               "Number of buffer overruns that flow control did not prevent.",
	"vl15_dropped":                  "Management packets dropped for lack of a buffer; readings are suspect when it grows.",
	"qp1_dropped":                   "Packets to the general services interface that were dropped.",
	"transmit_bytes":                "Octets sent.",
	"receive_bytes":                 "Octets received.",
	"transmit_packets":              "Packets sent.",
	"receive_packets":               "Packets received.",
	"transmit_unicast_packets":      "Unicast packets sent.",
	"receive_unicast_packets":       "Unicast packets received.",
	"transmit_multicast_packets":    "Multicast packets sent.",
	"receive_multicast_packets":     "Multicast packets received.",
	"transmit_wait_ticks":           "Ticks of the port's clock during which it had data to send and waited for credits or arbitration.",
	"receive_error_details":         "Packets received with an error, by kind of error; a part of all errors.",
	"transmit_discard_details":      "Packets discarded instead of sent, by reason; a part of all discards.",
	"vl_transmit_wait_ticks":        "Ticks during which a virtual lane had data to send and had to wait.",
	"sl_transmit_bytes":             "Octets sent with a service level.",
	"sl_receive_bytes":              "Octets received with a service level.",
	"receive_fecn_packets":          "Packets received with a forward congestion notification.",
	"receive_becn_packets":          "Packets received with a backward congestion notification.",
	"sl_receive_fecn_packets":       "Packets of a service level received with a forward congestion notification.",
	"sl_receive_becn_packets":       "Packets of a service level received with a backward congestion notification.",
	"sync_header_errors":            "Sync headers with errors.",
	"unknown_blocks":                "Blocks of an unknown type.",
	"lane_errors":                   "Errors detected on a lane.",
	"lane_fec_corrected_blocks":     "FEC blocks of a lane with errors that were corrected.",
	"lane_fec_uncorrectable_blocks": "FEC blocks of a lane with errors that could not be corrected.",
	"lane_fec_corrected_symbols":    "FEC symbols of a lane with errors that were corrected.",
	"fec_corrected_blocks":          "FEC blocks with errors that were corrected.",
	"fec_uncorrectable_blocks":      "FEC blocks with errors that could not be corrected.",
	"fec_corrected_symbols":         "FEC symbols with errors that were corrected.",
}

// rateFamilies holds the families of rates between the last two readings, by counters' names.
var rateFamilies = map[string]*portFamily{
	"transmit_bytes":      newPortFamily("transmit_rate_bytes_per_second", "Rate of octets sent per second between the last two readings.", false),
	"receive_bytes":       newPortFamily("receive_rate_bytes_per_second", "Rate of octets received per second between the last two readings.", false),
	"transmit_packets":    newPortFamily("transmit_packet_rate", "Rate of packets sent per second between the last two readings.", false),
	"receive_packets":     newPortFamily("receive_packet_rate", "Rate of packets received per second between the last two readings.", false),
	"transmit_wait_ticks": newPortFamily("transmit_wait_rate", "Rate of ticks of waiting per second between the last two readings.", false),
}

var (
	portInfo = newPortFamily("connection_info", "Identity of the port, and of the port at the other end of its cable; always 1.", false,
		"guid", "lid", "description", "remote", "remote_lid", "remote_port", "remote_description", "vendor")
	portUp        = newPortFamily("oper_up", "Whether the port carries packets.", false)
	portSpeed     = newPortFamily("speed_bytes_per_second", "Negotiated rate.", false)
	portTick      = newPortFamily("transmit_wait_tick_seconds", "Length of a tick of the counters of waiting, on devices that document it.", false)
	sampleUp      = newPortFamily("sample_up", "Whether the port was read within two intervals.", false)
	sampleAge     = newPortFamily("sample_age_seconds", "Age of the port's last reading.", false)
	sampleSuspect = newPortFamily("sample_suspect", "Whether the port dropped management packets while it was read.", false)
	sampleErrors  = newPortFamily("sample_errors", "Number of queries that failed, by kind of error.", true, "kind")
	portTraps     = newPortFamily("traps", "Number of traps that OpenSM logged about the port; port 0 has those that name none.", true, "trap")
	resets        = newPortFamily("resets", "Number of readings that found a counter reset.", true)
	saturated     = newPortFamily("saturated", "Counter that is at its limit and no longer counts: a lower bound of the true count; always 1.", false, "counter")
)

func newGauge(name, help string, labels ...string) *Family {
	return &Family{"graylink_ib_" + name, help, false, labels}
}

func newCounter(name, help string, labels ...string) *Family {
	return &Family{"graylink_ib_" + name, help, true, labels}
}

var (
	samplerUp       = newGauge("sampler_up", "Whether the sampler has joined; always 1.", "sampler")
	samplerPorts    = newGauge("sampler_ports", "Number of ports assigned to a sampler.", "sampler")
	samplerSkew     = newGauge("sampler_start_skew_seconds", "Delay of the start of a sampler's last sweep after the tick, by the delegator's clock.", "sampler")
	samplerClock    = newGauge("sampler_clock_error_bound_seconds", "Bound of the error of the start skew in seconds.", "sampler")
	samplerSweep    = newGauge("sampler_sweep_seconds", "Duration of a sampler's last sweep.", "sampler")
	samplerMissed   = newCounter("sampler_missed_ticks_total", "Number of ticks missed because the sampler was still busy with the one before.", "sampler")
	skewP99         = newGauge("start_skew_p99_seconds", "99th percentile of the distance of recent sweeps from their ticks, over all samplers.")
	samplerDeaths   = newCounter("sampler_deaths_total", "Number of samplers that were considered dead.")
	portMoves       = newCounter("port_moves_total", "Number of assignments of a port to a sampler.")
	readings        = newCounter("readings_total", "Number of readings of ports that were kept.")
	duplicates      = newCounter("duplicate_readings_total", "Number of repeated readings of a port and tick.")
	lateReadings    = newCounter("late_readings_total", "Number of readings of an earlier tick than the last of their port.")
	offClockReports = newCounter("astray_reports_total", "Number of reports of ticks far from the delegator's clock.")
	unassigned      = newGauge("unassigned_ports", "Number of ports without a sampler.")
	discoveries     = newCounter("discoveries_total", "Number of discoveries of the fabric, by result.", "result")
	discoveryTook   = newGauge("discovery_seconds", "Duration of the last discovery.")
	discoveryLast   = newGauge("discovery_last_success_timestamp_seconds", "Unix time of the last successful discovery of the fabric in seconds.")
	discoveryNodes  = newGauge("discovery_nodes", "Number of nodes of the fabric.")
	discoverySilent = newGauge("discovery_silent_nodes", "Number of ports with a neighbor that does not answer.")
	strangeTraps    = newCounter("unattributed_traps_total", "Number of traps in OpenSM's log from LIDs that no known port has.")
	madRate         = newGauge("mads_per_second", "Number of management datagrams that this process sends a second, over the last ten.")
	switchRate      = newGauge("busiest_switch_mads_per_second", "Number of datagrams a second to the switch that is sent the most, over the last ten.")
	switchMost      = newGauge("busiest_switch_mads_max", "Largest number of datagrams that a switch was sent in one second, since the start.")
	switchBudget    = newGauge("switch_budget_mads_per_second", "Number of datagrams a second that a switch may be sent by this process.")
	mads            = newCounter("mads_total", "Number of management datagrams of this process, by result.", "result")
)

func allFamilies() (out []*Family) {
	ports := []*portFamily{portInfo, portUp, portSpeed, portTick, sampleUp, sampleAge, sampleSuspect, sampleErrors, portTraps, resets, saturated}
	for _, f := range counterFamilies {
		ports = append(ports, f)
	}
	for _, f := range rateFamilies {
		ports = append(ports, f)
	}
	for _, f := range ports {
		out = append(out, &f.sw, &f.nic)
	}
	out = append(out, samplerUp, samplerPorts, samplerSkew, samplerClock, samplerSweep, samplerMissed, skewP99, samplerDeaths, portMoves, readings, duplicates,
		lateReadings, offClockReports, unassigned, discoveries, discoveryTook, discoveryLast, discoveryNodes, discoverySilent, strangeTraps, mads, madRate, switchRate, switchMost, switchBudget)
	slices.SortFunc(out, func(a, b *Family) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// CollectPoints returns all current samples: those of the fabric if the process is a delegator, and those of
// the process.
func (a *Agent) CollectPoints(now time.Time) []Point {
	out := a.processPoints(now)
	if a.delegator == nil {
		return out
	}
	snapshot, status := a.delegator.Store.Snapshot(now), a.delegator.Status()
	out = append(out, a.samplingPoints(&snapshot, &status)...)
	out = append(out, a.trapPoints()...)
	a.mu.Lock()
	ports := a.ports
	a.mu.Unlock()
	for i := range snapshot.Ports {
		p := &snapshot.Ports[i]
		out = a.portPoints(out, p, ports[p.Target.Key], now)
	}
	return out
}

func newPoint(f *Family, value float64, values ...string) Point {
	return Point{Family: f, Value: value, Values: values}
}

// processPoints returns the samples of this process.
func (a *Agent) processPoints(now time.Time) (out []Point) {
	s := a.client.Stats()
	for _, n := range []struct {
		result string
		count  uint64
	}{{"sent", s.Sent}, {"answered", s.Answered}, {"refused", s.Refused}, {"lost", s.Lost}, {"timed_out", s.TimedOut}, {"recovered", s.Recovered},
		{"skipped", s.Skipped}, {"late", s.Late}, {"foreign", s.Foreign}, {"busy", s.Busy}, {"dropped", s.Dropped}} {
		out = append(out, newPoint(mads, float64(n.count), n.result))
	}
	if a.delegator == nil {
		return out // a sampler knows no fabric, by which addresses are switches
	}
	v := a.load.View(now)
	out = append(out, newPoint(madRate, v.PerSecond), newPoint(switchRate, v.SwitchPerSecond), newPoint(switchMost, float64(v.SwitchMost)))
	if a.config.SwitchBudget > 0 {
		out = append(out, newPoint(switchBudget, float64(a.config.SwitchBudget)))
	}
	return out
}

// samplingPoints returns the samples about the sampling.
func (a *Agent) samplingPoints(s *ibsample.Snapshot, st *ibsample.Status) (out []Point) {
	for _, m := range st.Samplers {
		out = append(out, newPoint(samplerUp, 1, m.Name), newPoint(samplerPorts, float64(m.Ports), m.Name), newPoint(samplerSkew, m.Skew.Seconds(), m.Name),
			newPoint(samplerClock, m.ClockError.Seconds(), m.Name), newPoint(samplerSweep, m.Took.Seconds(), m.Name), newPoint(samplerMissed, float64(m.Missed), m.Name))
	}
	if s.Starts > 0 {
		out = append(out, newPoint(skewP99, s.SkewP99.Seconds()))
	}
	nobodys := 0
	for _, t := range st.Targets {
		if len(st.Plan[t.Key]) == 0 {
			nobodys++
		}
	}
	a.mu.Lock()
	d := a.discovery
	a.mu.Unlock()
	out = append(out, newPoint(samplerDeaths, float64(st.Deaths)), newPoint(portMoves, float64(st.Moves)), newPoint(readings, float64(s.Accepted)),
		newPoint(duplicates, float64(s.Duplicates)), newPoint(lateReadings, float64(s.Late)), newPoint(offClockReports, float64(st.OffClockReports)), newPoint(unassigned, float64(nobodys)),
		newPoint(discoveries, float64(d.Done), "done"), newPoint(discoveries, float64(d.Failed), "failed"))
	if d.Done > 0 {
		out = append(out, newPoint(discoveryTook, d.Took.Seconds()), newPoint(discoveryLast, float64(d.Last.UnixNano())/1e9),
			newPoint(discoveryNodes, float64(d.Nodes)), newPoint(discoverySilent, float64(d.Silent)))
	}
	return out
}

// portPoints appends the samples of one port.
func (a *Agent) portPoints(out []Point, p *ibsample.PortState, f foundPort, now time.Time) []Point {
	t := &p.Target
	labels := []string{t.Element}
	if t.Switch {
		sw, number, _ := fabric.SplitPort(t.Element)
		labels = []string{sw, number}
	}
	add := func(f *portFamily, value float64, more ...string) *Point {
		family := &f.nic
		if t.Switch {
			family = &f.sw
		}
		out = append(out, newPoint(family, value, append(slices.Clip(labels), more...)...))
		return &out[len(out)-1]
	}
	number := func(n int) string {
		if n == 0 {
			return ""
		}
		return strconv.Itoa(n)
	}
	add(portInfo, 1, fmt.Sprintf("0x%016x", t.Node), number(int(t.LID)), f.description, t.Remote, number(int(t.RemoteLID)), number(int(t.RemotePort)), f.remoteDescription, fmt.Sprintf("0x%06x", t.Vendor))
	if f.state != 0 {
		add(portUp, boolValue(f.state == ibmad.PortActive))
	}
	if f.rate > 0 {
		add(portSpeed, f.rate)
	}
	if f.tick > 0 {
		add(portTick, f.tick)
	}
	fresh := p.At != 0 && now.UnixNano()-p.At <= int64(2*a.config.Interval)
	add(sampleUp, boolValue(fresh))
	if p.At != 0 {
		add(sampleAge, now.Sub(time.Unix(0, p.At)).Seconds())
	}
	for _, kind := range sortedKeys(p.Errors) {
		add(sampleErrors, float64(p.Errors[kind]), kind)
	}
	if len(p.Counts) == 0 {
		return out
	}
	add(sampleSuspect, boolValue(p.Suspect))
	add(resets, float64(p.Resets))
	for i := range p.Counts {
		n := &p.Counts[i]
		c := &ibsample.Counters[n.ID]
		var more []string
		if c.Label != "" {
			more = []string{c.Value}
		}
		q := add(counterFamilies[c.Name], n.ScaledValue(), more...)
		q.At, q.Since = time.Unix(0, n.At), time.Unix(0, n.Since)
		if n.IsSaturated() {
			add(saturated, 1, c.String())
		}
		if r := rateFamilies[c.Name]; r != nil && n.Rated {
			add(r, n.Rate).At = time.Unix(0, n.At)
		}
	}
	return out
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
