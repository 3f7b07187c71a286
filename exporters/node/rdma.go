package node

import (
	"maps"
	"slices"
	"strconv"

	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/rdma"
)

// rdmaState adds the state of the queue pairs that carry probes. What is not known is absent.
func rdmaState(x *exposition, nics []probe.NICStats) {
	if !slices.ContainsFunc(nics, func(n probe.NICStats) bool { return n.Port != nil }) {
		return
	}
	var (
		states  = x.gaugeFamily("fabric_nic_rdma_queue_pair_state", "State of the queue pair that a NIC is probed by: 1 for the current state.")
		info    = x.gaugeFamily("fabric_nic_rdma_info", "RDMA device, GID and queue pair that a NIC is probed by. Absent without a usable one.")
		usable  = x.gaugeFamily("fabric_nic_rdma_usable", "Whether device, active port, GID and queue pair are present, so that RDMA can carry probes.")
		errs    = x.counterFamily("fabric_nic_rdma_completion_errors_total", "Completions with an error, by kind (enum ibv_wc_status) and queue.")
		events  = x.counterFamily("fabric_nic_rdma_events_total", "Events of a port and its queue pair, and the actions that followed.")
		dropped = x.counterFamily("fabric_nic_rdma_dropped_total", "Datagrams that the queue pair received and that were dropped, by reason.")
		handles = x.gaugeFamily("fabric_nic_rdma_address_handles", "Address handles that are open.")
		failed  = x.counterFamily("fabric_nic_rdma_address_handle_errors_total", "Failed attempts to create an address handle; each is repeated.")
		qkeys   = x.gaugeFamily("fabric_nic_rdma_port_qkey_violations", "Datagrams with a wrong Q_Key at all queue pairs of the port. It stops at 65535.")
	)
	for i := range nics {
		n, s := &nics[i], nics[i].Port
		if s == nil {
			continue
		}
		nic := x.labelPairs("nic", n.NIC)
		for _, name := range rdma.QPStates {
			x.addGauge(states, zeroOne(name == s.State), x.labelPairs("nic", n.NIC, "state", name))
		}
		x.addGauge(usable, zeroOne(s.Why == ""), nic)
		if s.Queue && s.GID.IsValid() {
			x.addGauge(info, 1, x.labelPairs("device", s.Device, "gid", s.GID.String(), "gid_index", strconv.Itoa(s.GIDIndex), "gid_type", s.GIDType.String(),
				"nic", n.NIC, "port", strconv.Itoa(s.Port), "qpn", strconv.FormatUint(uint64(s.QPN), 10)))
		}
		for _, q := range []struct {
			queue  string
			counts map[string]uint64
		}{{"receive", s.RecvErrors}, {"send", s.SendErrors}} {
			for _, k := range slices.Sorted(maps.Keys(q.counts)) {
				x.addCounter(errs, float64(q.counts[k]), x.labelPairs("kind", k, "nic", n.NIC, "queue", q.queue))
			}
		}
		for _, k := range sortedKeys(s.Counts) {
			x.addCounter(events, float64(s.Counts[k]), x.labelPairs("event", k, "nic", n.NIC))
		}
		for _, d := range []struct {
			reason string
			count  uint64
		}{{"headless", s.Headless}, {"stranger", s.Strangers}, {"wrong_queue_pair", s.WrongQPN}} {
			x.addCounter(dropped, float64(d.count), x.labelPairs("nic", n.NIC, "reason", d.reason))
		}
		x.addGauge(handles, float64(s.Handles), nic)
		x.addCounter(failed, float64(s.HandleErrors), nic)
		if s.QKeyViolations != nil {
			x.addGauge(qkeys, float64(*s.QKeyViolations), nic)
		}
	}
}

func zeroOne(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
