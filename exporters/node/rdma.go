package node

import (
	"slices"
	"strconv"

	dto "github.com/prometheus/client_model/go"

	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/rdma"
)

// rdmaCollector publishes the state of the queue pairs that carry probes. What is not known is absent.
type rdmaCollector struct{}

func newRDMACollector(*sources) collector { return rdmaCollector{} }

// addSeries implements collector.
func (rdmaCollector) addSeries(s *scrape) error {
	nics := s.snapshotNICs()
	if !slices.ContainsFunc(nics, func(n probe.NICStats) bool { return n.Port != nil }) {
		return nil
	}
	f := newRDMAFamilies(s.exposition)
	for i := range nics {
		if nics[i].Port != nil {
			f.addPort(nics[i].NIC, nics[i].Port)
			for _, c := range nics[i].ServiceLevels {
				f.addGauge(f.levels, float64(c.SL), f.labelPairs("class", c.Name, "nic", nics[i].NIC))
			}
		}
	}
	return nil
}

// rdmaFamilies holds the families of the queue pairs.
type rdmaFamilies struct {
	*exposition
	states, info, usable, errors, events, dropped, handles, failed, qkeys, lid, levels *dto.MetricFamily
}

func newRDMAFamilies(x *exposition) *rdmaFamilies {
	return &rdmaFamilies{exposition: x,
		states:  x.gaugeFamily("fabric_nic_rdma_queue_pair_state", "State of the queue pair that a NIC is probed by: 1 for the current state."),
		info:    x.gaugeFamily("fabric_nic_rdma_info", "RDMA device, GID and queue pair that a NIC is probed by. Absent without a usable one."),
		usable:  x.gaugeFamily("fabric_nic_rdma_usable", "Whether device, active port, GID and queue pair are present, so that RDMA can carry probes."),
		errors:  x.counterFamily("fabric_nic_rdma_completion_errors_total", "Completions with an error, by kind (enum ibv_wc_status) and queue."),
		events:  x.counterFamily("fabric_nic_rdma_events_total", "Events of a port and its queue pair, and the actions that followed."),
		dropped: x.counterFamily("fabric_nic_rdma_dropped_total", "Datagrams that the queue pair received and that were dropped, by reason."),
		handles: x.gaugeFamily("fabric_nic_rdma_address_handles", "Address handles that are open."),
		failed:  x.counterFamily("fabric_nic_rdma_address_handle_errors_total", "Failed attempts to create an address handle; each is repeated."),
		qkeys:   x.gaugeFamily("fabric_nic_rdma_port_qkey_violations", "Datagrams with a wrong Q_Key at all queue pairs of the port. It stops at 65535."),
		lid:     x.gaugeFamily("fabric_nic_rdma_lid", "LID of the InfiniBand port that a NIC is probed by. Absent on RoCE, and while there is none."),
		levels:  x.gaugeFamily("fabric_nic_rdma_service_level", "InfiniBand service level of a class's probes, as configured. Absent on RoCE.")}
}

// addPort adds the series of a NIC's queue pair.
func (f *rdmaFamilies) addPort(name string, s *rdma.Status) {
	nic := f.labelPairs("nic", name)
	for _, state := range rdma.QPStates {
		f.addGauge(f.states, zeroOrOne(state == s.State), f.labelPairs("nic", name, "state", state))
	}
	if s.InfiniBand && s.LID != 0 {
		f.addGauge(f.lid, float64(s.LID), nic)
	}
	f.addGauge(f.usable, zeroOrOne(s.Why == ""), nic)
	if s.Queue && s.GID.IsValid() {
		f.addGauge(f.info, 1, f.labelPairs("device", s.Device, "gid", s.GID.String(), "gid_index", strconv.Itoa(s.GIDIndex), "gid_type", s.GIDType.String(),
			"nic", name, "port", strconv.Itoa(s.Port), "qpn", strconv.FormatUint(uint64(s.QPN), 10)))
	}
	for _, q := range []struct {
		queue  string
		counts map[string]uint64
	}{{"receive", s.RecvErrors}, {"send", s.SendErrors}} {
		for _, k := range sortedKeys(q.counts) {
			f.addCounter(f.errors, float64(q.counts[k]), f.labelPairs("kind", k, "nic", name, "queue", q.queue))
		}
	}
	for _, k := range sortedKeys(s.Counts) {
		f.addCounter(f.events, float64(s.Counts[k]), f.labelPairs("event", k, "nic", name))
	}
	for _, d := range []struct {
		reason string
		count  uint64
	}{{"headless", s.Headless}, {"stranger", s.Strangers}, {"wrong_queue_pair", s.WrongQPN}} {
		f.addCounter(f.dropped, float64(d.count), f.labelPairs("nic", name, "reason", d.reason))
	}
	f.addGauge(f.handles, float64(s.Handles), nic)
	f.addCounter(f.failed, float64(s.HandleErrors), nic)
	if s.QKeyViolations != nil {
		f.addGauge(f.qkeys, float64(*s.QKeyViolations), nic)
	}
}
