package fakesys

// counterSet is which counters the devices of a driver have.
type counterSet struct {
	counters bool // those of the port's MAD agent, in ports/N/counters
	hw       []string
	hwEth    []string // further ones of an Ethernet port
	device   []string // in hw_counters of the device itself
}

// driver holds the defaults for devices of a driver.
type driver struct {
	vendor, id string
	hcaType    string
	firmware   string
	boardID    string
	nodeType   string
	speed      string // of the PCI link
	width      int
	set        counterSet
}

// Names of counters are those of Linux 6.x: drivers/infiniband/core/sysfs.c for what every MAD agent
// has, and the counters of the driver for the rest.
var (
	madErrors = []string{
		"symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors",
		"port_rcv_switch_relay_errors", "port_xmit_discards", "port_xmit_constraint_errors", "port_rcv_constraint_errors",
		"local_link_integrity_errors", "excessive_buffer_overrun_errors", "VL15_dropped", "port_xmit_wait",
	}
	madTraffic = []string{
		"port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets",
		"unicast_rcv_packets", "unicast_xmit_packets", "multicast_rcv_packets", "multicast_xmit_packets",
	}
	netErrors = []string{
		"collisions", "multicast", "rx_compressed", "rx_crc_errors", "rx_dropped", "rx_errors", "rx_fifo_errors", "rx_frame_errors",
		"rx_length_errors", "rx_missed_errors", "rx_nohandler", "rx_over_errors", "tx_aborted_errors", "tx_carrier_errors",
		"tx_compressed", "tx_dropped", "tx_errors", "tx_fifo_errors", "tx_heartbeat_errors", "tx_window_errors",
	}
	netTraffic = []string{"rx_bytes", "rx_packets", "tx_bytes", "tx_packets"}
)

// traffic counts what is no error in hw_counters.
var traffic = map[string]bool{
	"rx_write_requests": true, "rx_read_requests": true, "sent_pkts": true, "rcvd_pkts": true, "rdma_sends": true, "rdma_recvs": true,
	"tx_bytes": true, "tx_pkts": true, "rx_bytes": true, "rx_pkts": true, "send_bytes": true, "send_wrs": true, "recv_bytes": true,
	"recv_wrs": true, "ip4InOctets": true, "ip4InPkts": true, "ip4OutOctets": true, "ip4OutPkts": true, "submitted_cmds": true,
	"completed_cmds": true, "keep_alive_rcvd": true,
}

var drivers = map[string]driver{
	"mlx5_core": {
		vendor: "0x15b3", id: "0x1021", hcaType: "MT4129", firmware: "28.39.2048", boardID: "MT_0000000838", nodeType: "1: CA",
		speed: "32.0 GT/s PCIe", width: 16,
		set: counterSet{
			counters: true,
			hw: []string{
				"duplicate_request", "implied_nak_seq_err", "local_ack_timeout_err", "out_of_buffer", "out_of_sequence", "packet_seq_err",
				"req_cqe_error", "req_cqe_flush_error", "req_remote_access_errors", "req_remote_invalid_request",
				"req_rnr_retries_exceeded", "req_transport_retries_exceeded", "resp_cqe_error", "resp_cqe_flush_error",
				"resp_local_length_error", "resp_remote_access_errors", "rnr_nak_retry_err", "rx_atomic_requests", "rx_dct_connect",
				"rx_read_requests", "rx_write_requests",
			},
			hwEth: []string{
				"np_cnp_sent", "np_ecn_marked_roce_packets", "roce_adp_retrans", "roce_adp_retrans_to", "roce_slow_restart",
				"roce_slow_restart_cnps", "roce_slow_restart_trans", "rp_cnp_handled", "rp_cnp_ignored", "rx_icrc_encapsulated",
			},
		},
	},
	"mlx4_core": {
		vendor: "0x15b3", id: "0x1007", hcaType: "MT4103", firmware: "2.42.5000", boardID: "MT_1090111023", nodeType: "1: CA",
		speed: "8.0 GT/s PCIe", width: 8,
		set: counterSet{
			counters: true,
			hw: []string{
				"rq_num_dup", "rq_num_lle", "rq_num_lpe", "rq_num_lqpoe", "rq_num_oos", "rq_num_rae", "rq_num_rire", "rq_num_rnr",
				"rq_num_wrfe", "sq_num_bre", "sq_num_lle", "sq_num_lpe", "sq_num_lqpoe", "sq_num_mwbe", "sq_num_oos", "sq_num_rae",
				"sq_num_rire", "sq_num_rnr", "sq_num_roe", "sq_num_rree", "sq_num_to", "sq_num_tree", "sq_num_wrfe",
			},
		},
	},
	"efa": {
		vendor: "0x1d0f", id: "0xefa2", nodeType: "7: unspecified", speed: "16.0 GT/s PCIe", width: 8,
		set: counterSet{
			hw: []string{
				"tx_bytes", "tx_pkts", "rx_bytes", "rx_pkts", "rx_drops", "send_bytes", "send_wrs", "recv_bytes", "recv_wrs",
				"rdma_read_wrs", "rdma_read_bytes", "rdma_read_wr_err", "rdma_read_resp_bytes",
				"rdma_write_wrs", "rdma_write_bytes", "rdma_write_wr_err", "rdma_write_recv_bytes",
			},
			device: []string{
				"submitted_cmds", "completed_cmds", "cmds_err", "no_completion_cmds", "keep_alive_rcvd", "alloc_pd_err", "create_qp_err",
				"create_cq_err", "reg_mr_err", "alloc_ucontext_err", "create_ah_err", "mmap_err",
			},
		},
	},
	// irdma is an auxiliary driver: the PCI function is ice's.
	"ice": {
		vendor: "0x8086", id: "0x1592", firmware: "1.71", nodeType: "1: CA", speed: "16.0 GT/s PCIe", width: 16,
		set: counterSet{hw: []string{
			"cnpHandled", "cnpIgnored", "cnpSent", "ip4InDiscards", "ip4InMcastPkts", "ip4InOctets", "ip4InPkts", "ip4InReasmRqd",
			"ip4InTruncatedPkts", "ip4OutMcastPkts", "ip4OutNoRoutes", "ip4OutOctets", "ip4OutPkts", "ip4OutSegRqd", "ip6InDiscards",
			"ip6InOctets", "ip6InPkts", "ip6OutNoRoutes", "ip6OutOctets", "ip6OutPkts", "rxVlanErrors", "tcpInOptErrors",
			"tcpInProtoErrors", "tcpRetransSegs",
		}},
	},
	"ixgbe": {vendor: "0x8086", id: "0x1563", speed: "8.0 GT/s PCIe", width: 4},
	"ena":   {vendor: "0x1d0f", id: "0xec20", speed: "8.0 GT/s PCIe", width: 8},
	// Without a PCI function: rxe.
	"": {nodeType: "1: CA", set: counterSet{hw: []string{
		"ack_deferred", "completer_retry_err", "duplicate_request", "link_downed", "out_of_seq_request", "rcvd_pkts", "rcvd_rnr_err",
		"rcvd_seq_err", "rdma_recvs", "rdma_sends", "retry_exceeded_err", "retry_rnr_exceeded_err", "send_err", "send_rnr_err", "sent_pkts",
	}}},
}

// lifespan is for how many ms the kernel keeps what it read of hw_counters: a setting among counters.
const lifespan = "10"

// Lines of the aer_dev_ files, drivers/pci/pcie/aer.c.
var (
	aerCorrectable   = []string{"RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF"}
	aerUncorrectable = []string{
		"Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP", "ECRC", "UnsupReq", "ACSViol",
		"UncorrIntErr", "BlockedTLP", "AtomicOpBlocked", "TLPBlockedErr", "PoisonTLPBlocked",
	}
	aerFiles = map[string]struct {
		names []string
		total string
	}{
		"correctable": {aerCorrectable, "TOTAL_ERR_COR"},
		"nonfatal":    {aerUncorrectable, "TOTAL_ERR_NONFATAL"},
		"fatal":       {aerUncorrectable, "TOTAL_ERR_FATAL"},
	}
)
