package ufmreceiver

import (
	"time"

	"github.com/graylink/graylink/internal/ufm"
	"github.com/graylink/graylink/receivers/internal/metricfamily"
)

// scopeName is the scope of the points and records.
const scopeName = "github.com/graylink/graylink/receivers/ufmreceiver"

// family is a family of series, by its Prometheus name.
type family struct {
	name, help string
	counter    bool
	labels     []string
}

// Families beside those of telemetry's columns.
var (
	up          = &family{"graylink_ufm_up", "Whether the last reading of the target was complete.", false, []string{"target"}}
	sampleAge   = &family{"graylink_ufm_sample_age_seconds", "Age of the oldest sample of the last reading at its end.", false, []string{"target"}}
	readSeconds = &family{"graylink_ufm_read_seconds", "Duration of the last reading.", false, []string{"target"}}
	failures    = &family{"graylink_ufm_errors_total", "Number of errors, and of values left out, by kind of error.", true, []string{"target", "kind"}}
	samples     = &family{"graylink_ufm_samples_total", "Number of samples passed on.", true, []string{"target"}}
	unknown     = &family{"graylink_ufm_unknown_columns", "Number of unknown columns of telemetry, which are left out.", false, []string{"target"}}
	unnamed     = &family{"graylink_ufm_unnamed_ports", "Ports of the last reading left out because their name is unknown.", false, []string{"target"}}
	shared      = &family{"graylink_ufm_shared_names", "Ports of the last reading left out because several ports have their name.", false, []string{"target"}}
	records     = &family{"graylink_ufm_log_records_total", "Number of log records passed on.", true, []string{"target"}}

	info          = &family{"fabric_ufm_info", "Version of UFM; always 1.", false, []string{"target", "version"}}
	events        = &family{"fabric_ufm_events_total", "Number of events since the receiver started.", true, []string{"target", "event", "severity"}}
	alarms        = &family{"fabric_ufm_alarms", "Number of open alarms.", false, []string{"target", "alarm", "severity", "object"}}
	jobs          = &family{"fabric_ufm_jobs", "Number of jobs that UFM lists, by status.", false, []string{"target", "state"}}
	subnetChanges = &family{"fabric_subnet_changes_total", "Number of events after which paths may have changed, by reason.", true, []string{"subnet", "reason"}}
	neighbor      = &family{"fabric_switch_port_neighbor_info", "Neighbor at the other end of the cable, by LLDP or the subnet manager; always 1.", false, []string{"switch", "port", "remote", "remote_port", "remote_chassis"}}
	swUnhealthy   = &family{"fabric_switch_port_unhealthy_info", "Whether the subnet manager considers the port unhealthy; always 1.", false, []string{"switch", "port", "condition"}}
	nicUnhealthy  = &family{"fabric_nic_port_unhealthy_info", "Whether the subnet manager considers the port unhealthy; always 1.", false, []string{"nic", "condition"}}
	nicVPorts     = &family{"fabric_nic_port_virtual_ports", "Number of virtual ports of the port, by state.", false, []string{"nic", "state"}}
	swUp          = &family{"fabric_switch_port_oper_up", "Whether the port carries packets.", false, []string{"switch", "port"}}
	nicUp         = &family{"fabric_nic_port_oper_up", "Whether the port carries packets.", false, []string{"nic"}}
	swSpeed       = &family{"fabric_switch_port_speed_bytes_per_second", "Negotiated rate.", false, []string{"switch", "port"}}
	nicSpeed      = &family{"fabric_nic_port_speed_bytes_per_second", "Negotiated rate.", false, []string{"nic"}}
	swBestSpeed   = &family{"fabric_switch_port_expected_speed_bytes_per_second", "Highest rate that both ends of the cable are enabled for.", false, []string{"switch", "port"}}
	nicBestSpeed  = &family{"fabric_nic_port_expected_speed_bytes_per_second", "Highest rate that both ends of the cable are enabled for.", false, []string{"nic"}}
	swLanes       = &family{"fabric_switch_port_lanes", "Negotiated number of lanes.", false, []string{"switch", "port"}}
	nicLanes      = &family{"fabric_nic_port_lanes", "Negotiated number of lanes.", false, []string{"nic"}}
	swBestLanes   = &family{"fabric_switch_port_expected_lanes", "Largest number of lanes that both ends of the cable are enabled for.", false, []string{"switch", "port"}}
	nicBestLanes  = &family{"fabric_nic_port_expected_lanes", "Largest number of lanes that both ends of the cable are enabled for.", false, []string{"nic"}}
	swResets      = &family{"fabric_switch_port_resets_total", "Number of readings that found a counter reset.", true, []string{"switch", "port"}}
	nicResets     = &family{"fabric_nic_port_resets_total", "Number of readings that found a counter reset.", true, []string{"nic"}}
	ownFamilies   = []*family{up, sampleAge, readSeconds, failures, samples, unknown, unnamed, shared, records, info, events, alarms, jobs, subnetChanges, neighbor, swUnhealthy, nicUnhealthy, nicVPorts,
		swUp, nicUp, swSpeed, nicSpeed, swBestSpeed, nicBestSpeed, swLanes, nicLanes, swBestLanes, nicBestLanes, swResets, nicResets}
	portLabels = map[bool][]string{false: {"switch", "port"}, true: {"nic"}}
)

// columnFamily returns the family of a column's metric, for switches or NICs.
func columnFamily(m *ufm.Metric, nic bool) *family {
	f := &family{m.Switch, m.Help, m.Counter, append([]string(nil), portLabels[nic]...)}
	if nic {
		f.name = m.NIC
	}
	if m.Label != "" {
		f.labels = append(f.labels, m.Label)
	}
	return f
}

// batch collects points until they are passed on.
type batch struct {
	*metricfamily.Batch[*family]
	n int
}

func newBatch() *batch {
	return &batch{Batch: metricfamily.NewBatch(scopeName, func(f *family) metricfamily.Family {
		return metricfamily.Family{Name: f.name, Help: f.help, Counter: f.counter}
	})}
}

// addPoint adds a point; values belong to the family's labels. A counter runs since then, or since its reading
// if that was earlier.
func (b *batch) addPoint(f *family, v float64, at, since time.Time, values ...string) {
	if since.After(at) {
		since = at
	}
	labels := b.AddPoint(f, v, at, since)
	labels.EnsureCapacity(len(values))
	for i, l := range f.labels {
		labels.PutStr(l, values[i])
	}
	b.n++
}

// addPortPoint adds a point of a port; more are the values of the labels that follow the port's own.
func (b *batch) addPortPoint(sw, nic *family, n ufm.Name, v float64, at, since time.Time, more ...string) {
	if n.NIC != "" {
		b.addPoint(nic, v, at, since, append([]string{n.NIC}, more...)...)
		return
	}
	b.addPoint(sw, v, at, since, append([]string{n.Switch, n.Port}, more...)...)
}
