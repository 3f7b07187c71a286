package gnmitest

import (
	"encoding/json"
	"fmt"
	"math"
	"time"

	gpb "github.com/openconfig/gnmi/proto/gnmi"
	"github.com/openconfig/gnmic/pkg/api/path"
)

// State holds what one port of a switch measures, in SI units. Each vendor's switch sends the part that its
// tree has, in its own units, names and types.
type State struct {
	At                   time.Time
	Port                 string
	PFCReceived, PFCSent uint64 // frames of priority 3
	PauseReceived        time.Duration
	ECNMarked            uint64  // packets of queue 4
	Watermark            uint64  // octets of queue 4
	Dropped              uint64  // packets of queue 4, for want of room
	Power                float64 // W received on lane 1
	Uncorrectable        uint64  // blocks
	PreBER, PostBER      float64
	Up                   bool
	Octets               uint64 // received
	Remote, RemotePort   string
}

// ExampleState returns a state with a value for everything.
func ExampleState(at time.Time) State {
	return State{At: at, Port: "Ethernet8", PFCReceived: 1201, PFCSent: 77, PauseReceived: 2500 * time.Millisecond, ECNMarked: 9001, Watermark: 81920,
		Dropped: 13, Power: 0.0005, Uncorrectable: 3, PreBER: 2.5e-7, PostBER: 1e-15, Up: true, Octets: 123456789, Remote: "spine1", RemotePort: "Ethernet1/7"}
}

func mustParsePath(format string, args ...any) *gpb.Path {
	p, err := path.ParsePath(fmt.Sprintf(format, args...))
	if err != nil {
		panic(err) // a path written in this file
	}
	return p
}

func uintUpdate(p *gpb.Path, v uint64) *gpb.Update {
	return &gpb.Update{Path: p, Val: &gpb.TypedValue{Value: &gpb.TypedValue_UintVal{UintVal: v}}}
}

func stringUpdate(p *gpb.Path, v string) *gpb.Update {
	return &gpb.Update{Path: p, Val: &gpb.TypedValue{Value: &gpb.TypedValue_StringVal{StringVal: v}}}
}

func doubleUpdate(p *gpb.Path, v float64) *gpb.Update {
	return &gpb.Update{Path: p, Val: &gpb.TypedValue{Value: &gpb.TypedValue_DoubleVal{DoubleVal: v}}}
}

// decimalUpdate returns a decimal64 with two digits, in the form that old servers send.
func decimalUpdate(p *gpb.Path, v float64) *gpb.Update {
	return &gpb.Update{Path: p, Val: &gpb.TypedValue{Value: &gpb.TypedValue_DecimalVal{ //nolint:staticcheck // it is sent
		DecimalVal: &gpb.Decimal64{Digits: int64(math.Round(v * 100)), Precision: 2}}}} //nolint:staticcheck // it is sent
}

func jsonUpdate(p *gpb.Path, v any) *gpb.Update {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of strings
	}
	return &gpb.Update{Path: p, Val: &gpb.TypedValue{Value: &gpb.TypedValue_JsonIetfVal{JsonIetfVal: b}}}
}

func (s State) powerDBm() float64 { return 10 * math.Log10(s.Power*1000) }

func (s State) upperOperState() string {
	if s.Up {
		return "UP"
	}
	return "DOWN"
}

func (s State) lowerOperState() string {
	if s.Up {
		return "up"
	}
	return "down"
}

// VendorUpdates returns what a switch of a vendor sends for a state to a subscription with a target.
func VendorUpdates(vendor, target string, s State) []*gpb.Update {
	return s.vendorUpdates(vendor, target)
}

func (s State) vendorUpdates(vendor, target string) []*gpb.Update {
	switch vendor {
	case "cumulus":
		return s.cumulusUpdates()
	case "sonic":
		return s.sonicUpdates(target)
	case "arista":
		return append(s.openconfigUpdates(),
			uintUpdate(mustParsePath("/interfaces/interface[name=%s]/ethernet/pfc/priorities/priority[index=3]/state/in-frames", s.Port), s.PFCReceived),
			uintUpdate(mustParsePath("/interfaces/interface[name=%s]/ethernet/pfc/priorities/priority[index=3]/state/out-frames", s.Port), s.PFCSent))
	case "srlinux":
		return s.srlinuxUpdates()
	case "nvos":
		return s.nvosUpdates()
	default:
		return s.openconfigUpdates()
	}
}

// interfaceUpdates returns the leaves of openconfig-interfaces.
func (s State) interfaceUpdates() []*gpb.Update {
	i := fmt.Sprintf("/interfaces/interface[name=%s]/state", s.Port)
	return []*gpb.Update{stringUpdate(mustParsePath("%s/oper-status", i), s.upperOperState()), uintUpdate(mustParsePath("%s/counters/in-octets", i), s.Octets)}
}

func (s State) lldpUpdates() []*gpb.Update {
	n := fmt.Sprintf("/lldp/interfaces/interface[name=%s]/neighbors/neighbor[id=1]/state", s.Port)
	return []*gpb.Update{stringUpdate(mustParsePath("%s/system-name", n), s.Remote), stringUpdate(mustParsePath("%s/port-id", n), s.RemotePort)}
}

func (s State) openconfigUpdates() []*gpb.Update {
	q := fmt.Sprintf("/qos/interfaces/interface[interface-id=%s]/output/queues/queue[name=4]/state", s.Port)
	e := fmt.Sprintf("/interfaces/interface[name=%s]/ethernet/state", s.Port)
	out := append(s.interfaceUpdates(), s.lldpUpdates()...)
	return append(out,
		uintUpdate(mustParsePath("%s/ecn-marked-pkts", q), s.ECNMarked), uintUpdate(mustParsePath("%s/max-queue-len", q), s.Watermark), uintUpdate(mustParsePath("%s/dropped-pkts", q), s.Dropped),
		doubleUpdate(mustParsePath("%s/pre-fec-ber/instant", e), s.PreBER), doubleUpdate(mustParsePath("%s/post-fec-ber/instant", e), s.PostBER),
		stringUpdate(mustParsePath("/interfaces/interface[name=%s]/state/transceiver", s.Port), "transceiver-9"),
		doubleUpdate(mustParsePath("/components/component[name=transceiver-9]/transceiver/physical-channels/channel[index=1]/state/input-power/instant"), s.powerDBm()))
}

// cumulusUpdates returns power in 0.01 dBm and pauses in us.
func (s State) cumulusUpdates() []*gpb.Update {
	q := fmt.Sprintf("/qos/interfaces/interface[interface-id=%s]/output/queues/queue[name=4]/state", s.Port)
	p := fmt.Sprintf("/qos/interfaces/interface[interface-id=%s]/switch-priority[priority=3]/state", s.Port)
	phy := fmt.Sprintf("/interfaces/interface[name=%s]/ethernet/phy/state", s.Port)
	out := append(s.interfaceUpdates(), s.lldpUpdates()...)
	return append(out,
		uintUpdate(mustParsePath("%s/counters/in-pause-pkts", p), s.PFCReceived), uintUpdate(mustParsePath("%s/counters/out-pause-pkts", p), s.PFCSent),
		uintUpdate(mustParsePath("%s/in-pause-duration", p), uint64(s.PauseReceived.Microseconds())),
		uintUpdate(mustParsePath("%s/ecn-marked-pkts", q), s.ECNMarked), uintUpdate(mustParsePath("%s/max-queue-len", q), s.Watermark), uintUpdate(mustParsePath("%s/no-buffer-uc-dropped-pkts", q), s.Dropped),
		uintUpdate(mustParsePath("%s/rs-fec-uncorrectable-blocks", phy), s.Uncorrectable), doubleUpdate(mustParsePath("%s/effective-ber", phy), s.PostBER),
		doubleUpdate(mustParsePath("%s/lane[lane=1]/raw-ber", phy), s.PreBER),
		stringUpdate(mustParsePath("/interfaces/interface[name=%s]/state/transceiver", s.Port), "transceiver-9"),
		doubleUpdate(mustParsePath("/components/component[name=transceiver-9]/transceiver/physical-channels/channel[index=1]/state/input-power/instant"), s.powerDBm()*100))
}

// sonicUpdates returns texts in one JSON object for each table.
func (s State) sonicUpdates(target string) []*gpb.Update {
	str := func(v uint64) string { return fmt.Sprint(v) }
	type table = map[string]map[string]string
	switch target {
	case "COUNTERS_DB":
		return []*gpb.Update{
			jsonUpdate(mustParsePath("COUNTERS/Ethernet*"), table{s.Port: {"SAI_PORT_STAT_IF_IN_OCTETS": str(s.Octets), "SAI_PORT_STAT_PFC_3_RX_PKTS": str(s.PFCReceived),
				"SAI_PORT_STAT_PFC_3_TX_PKTS": str(s.PFCSent), "SAI_PORT_STAT_IF_IN_FEC_NOT_CORRECTABLE_FRAMES": str(s.Uncorrectable), "SAI_PORT_STAT_IN_DROPPED_PKTS": "1"}}),
			jsonUpdate(mustParsePath("COUNTERS/Ethernet*/Queues"), table{
				s.Port + ":4":          {"SAI_QUEUE_STAT_WRED_ECN_MARKED_PACKETS": str(s.ECNMarked), "SAI_QUEUE_STAT_SHARED_WATERMARK_BYTES": str(s.Watermark), "SAI_QUEUE_STAT_DROPPED_PACKETS": str(s.Dropped)},
				s.Port + ":4:periodic": {"SAI_QUEUE_STAT_SHARED_WATERMARK_BYTES": str(s.Watermark / 2)}}),
		}
	case "APPL_DB":
		return []*gpb.Update{
			jsonUpdate(mustParsePath("PORT_TABLE"), table{s.Port: {"oper_status": s.lowerOperState()}}),
			jsonUpdate(mustParsePath("LLDP_ENTRY_TABLE"), table{s.Port: {"lldp_rem_sys_name": s.Remote, "lldp_rem_port_id": s.RemotePort}})}
	case "STATE_DB":
		return []*gpb.Update{jsonUpdate(mustParsePath("TRANSCEIVER_DOM_SENSOR"), table{s.Port: {"rx1power": fmt.Sprintf("%.9f", s.powerDBm()), "rx2power": "N/A"}})}
	}
	return nil
}

// srlinuxUpdates returns states in small letters, and 64-bit numbers as texts in JSON.
func (s State) srlinuxUpdates() []*gpb.Update {
	i := fmt.Sprintf("/interface[name=%s]", s.Port)
	p := fmt.Sprintf("/qos/interfaces/interface[interface-id=%s]/pfc/statistics/pfc-priority[index=3]", s.Port)
	q := fmt.Sprintf("/qos/interfaces/interface[interface-id=%s]/output/queues/queue[queue-name=4]/queue-depth", s.Port)
	n := fmt.Sprintf("/system/lldp/interface[name=%s]/neighbor[id=aa:bb]", s.Port)
	return []*gpb.Update{
		stringUpdate(mustParsePath("%s/oper-state", i), s.lowerOperState()), uintUpdate(mustParsePath("%s/statistics/in-octets", i), s.Octets),
		uintUpdate(mustParsePath("%s/pfc-pause-frames-received", p), s.PFCReceived), uintUpdate(mustParsePath("%s/pfc-pause-frames-generated", p), s.PFCSent),
		uintUpdate(mustParsePath("%s/high-watermark-1", q), s.Watermark),
		decimalUpdate(mustParsePath("%s/transceiver/channel[index=1]/input-power/latest-value", i), s.powerDBm()),
		stringUpdate(mustParsePath("%s/system-name", n), s.Remote), stringUpdate(mustParsePath("%s/port-id", n), s.RemotePort),
	}
}

func (s State) nvosUpdates() []*gpb.Update {
	phy := fmt.Sprintf("/interfaces/interface[name=%s]/phy-diag/state", s.Port)
	return append(s.interfaceUpdates(),
		stringUpdate(mustParsePath("%s/raw-ber", phy), fmt.Sprintf("%g", s.PreBER)), stringUpdate(mustParsePath("%s/effective-ber", phy), fmt.Sprintf("%g", s.PostBER)))
}
