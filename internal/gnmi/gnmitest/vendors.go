package gnmitest

import (
	"encoding/json"
	"fmt"
	"math"
	"time"

	gpb "github.com/openconfig/gnmi/proto/gnmi"
	"github.com/openconfig/gnmic/pkg/api/path"
)

// State is what one port of a switch measures, in SI units. A vendor tells what its
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

// Example is a state with a value for everything.
func Example(at time.Time) State {
	return State{At: at, Port: "Ethernet8", PFCReceived: 1201, PFCSent: 77, PauseReceived: 2500 * time.Millisecond, ECNMarked: 9001, Watermark: 81920,
		Dropped: 13, Power: 0.0005, Uncorrectable: 3, PreBER: 2.5e-7, PostBER: 1e-15, Up: true, Octets: 123456789, Remote: "spine1", RemotePort: "Ethernet1/7"}
}

func at(format string, args ...any) *gpb.Path {
	p, err := path.ParsePath(fmt.Sprintf(format, args...))
	if err != nil {
		panic(err) // a path written in this file
	}
	return p
}

func number(p *gpb.Path, v uint64) *gpb.Update {
	return &gpb.Update{Path: p, Val: &gpb.TypedValue{Value: &gpb.TypedValue_UintVal{UintVal: v}}}
}

func text(p *gpb.Path, v string) *gpb.Update {
	return &gpb.Update{Path: p, Val: &gpb.TypedValue{Value: &gpb.TypedValue_StringVal{StringVal: v}}}
}

func double(p *gpb.Path, v float64) *gpb.Update {
	return &gpb.Update{Path: p, Val: &gpb.TypedValue{Value: &gpb.TypedValue_DoubleVal{DoubleVal: v}}}
}

// decimal is a decimal64 with two digits, in the form that old servers send.
func decimal(p *gpb.Path, v float64) *gpb.Update {
	return &gpb.Update{Path: p, Val: &gpb.TypedValue{Value: &gpb.TypedValue_DecimalVal{ //nolint:staticcheck // it is sent
		DecimalVal: &gpb.Decimal64{Digits: int64(math.Round(v * 100)), Precision: 2}}}} //nolint:staticcheck // it is sent
}

func object(p *gpb.Path, v any) *gpb.Update {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of strings
	}
	return &gpb.Update{Path: p, Val: &gpb.TypedValue{Value: &gpb.TypedValue_JsonIetfVal{JsonIetfVal: b}}}
}

func (s State) dbm() float64 { return 10 * math.Log10(s.Power*1000) }

func (s State) upper() string {
	if s.Up {
		return "UP"
	}
	return "DOWN"
}

func (s State) lower() string {
	if s.Up {
		return "up"
	}
	return "down"
}

// Updates are what a switch of a vendor tells of a state, to whom asks for a target.
func Updates(vendor, target string, s State) []*gpb.Update { return s.updates(vendor, target) }

func (s State) updates(vendor, target string) []*gpb.Update {
	switch vendor {
	case "cumulus":
		return s.cumulus()
	case "sonic":
		return s.sonic(target)
	case "arista":
		return append(s.openconfig(),
			number(at("/interfaces/interface[name=%s]/ethernet/pfc/priorities/priority[index=3]/state/in-frames", s.Port), s.PFCReceived),
			number(at("/interfaces/interface[name=%s]/ethernet/pfc/priorities/priority[index=3]/state/out-frames", s.Port), s.PFCSent))
	case "srlinux":
		return s.srlinux()
	case "nvos":
		return s.nvos()
	default:
		return s.openconfig()
	}
}

// interfaces is openconfig-interfaces.
func (s State) interfaces() []*gpb.Update {
	i := fmt.Sprintf("/interfaces/interface[name=%s]/state", s.Port)
	return []*gpb.Update{text(at("%s/oper-status", i), s.upper()), number(at("%s/counters/in-octets", i), s.Octets)}
}

func (s State) lldp() []*gpb.Update {
	n := fmt.Sprintf("/lldp/interfaces/interface[name=%s]/neighbors/neighbor[id=1]/state", s.Port)
	return []*gpb.Update{text(at("%s/system-name", n), s.Remote), text(at("%s/port-id", n), s.RemotePort)}
}

func (s State) openconfig() []*gpb.Update {
	q := fmt.Sprintf("/qos/interfaces/interface[interface-id=%s]/output/queues/queue[name=4]/state", s.Port)
	e := fmt.Sprintf("/interfaces/interface[name=%s]/ethernet/state", s.Port)
	out := append(s.interfaces(), s.lldp()...)
	return append(out,
		number(at("%s/ecn-marked-pkts", q), s.ECNMarked), number(at("%s/max-queue-len", q), s.Watermark), number(at("%s/dropped-pkts", q), s.Dropped),
		double(at("%s/pre-fec-ber/instant", e), s.PreBER), double(at("%s/post-fec-ber/instant", e), s.PostBER),
		text(at("/interfaces/interface[name=%s]/state/transceiver", s.Port), "transceiver-9"),
		double(at("/components/component[name=transceiver-9]/transceiver/physical-channels/channel[index=1]/state/input-power/instant"), s.dbm()))
}

// cumulus tells power in 0.01 dBm and pauses in us.
func (s State) cumulus() []*gpb.Update {
	q := fmt.Sprintf("/qos/interfaces/interface[interface-id=%s]/output/queues/queue[name=4]/state", s.Port)
	p := fmt.Sprintf("/qos/interfaces/interface[interface-id=%s]/switch-priority[priority=3]/state", s.Port)
	phy := fmt.Sprintf("/interfaces/interface[name=%s]/ethernet/phy/state", s.Port)
	out := append(s.interfaces(), s.lldp()...)
	return append(out,
		number(at("%s/counters/in-pause-pkts", p), s.PFCReceived), number(at("%s/counters/out-pause-pkts", p), s.PFCSent),
		number(at("%s/in-pause-duration", p), uint64(s.PauseReceived.Microseconds())),
		number(at("%s/ecn-marked-pkts", q), s.ECNMarked), number(at("%s/max-queue-len", q), s.Watermark), number(at("%s/no-buffer-uc-dropped-pkts", q), s.Dropped),
		number(at("%s/rs-fec-uncorrectable-blocks", phy), s.Uncorrectable), double(at("%s/effective-ber", phy), s.PostBER),
		double(at("%s/lane[lane=1]/raw-ber", phy), s.PreBER),
		text(at("/interfaces/interface[name=%s]/state/transceiver", s.Port), "transceiver-9"),
		double(at("/components/component[name=transceiver-9]/transceiver/physical-channels/channel[index=1]/state/input-power/instant"), s.dbm()*100))
}

// sonic tells texts in one JSON object for each table.
func (s State) sonic(target string) []*gpb.Update {
	str := func(v uint64) string { return fmt.Sprint(v) }
	type table = map[string]map[string]string
	switch target {
	case "COUNTERS_DB":
		return []*gpb.Update{
			object(at("COUNTERS/Ethernet*"), table{s.Port: {"SAI_PORT_STAT_IF_IN_OCTETS": str(s.Octets), "SAI_PORT_STAT_PFC_3_RX_PKTS": str(s.PFCReceived),
				"SAI_PORT_STAT_PFC_3_TX_PKTS": str(s.PFCSent), "SAI_PORT_STAT_IF_IN_FEC_NOT_CORRECTABLE_FRAMES": str(s.Uncorrectable), "SAI_PORT_STAT_IN_DROPPED_PKTS": "1"}}),
			object(at("COUNTERS/Ethernet*/Queues"), table{
				s.Port + ":4":          {"SAI_QUEUE_STAT_WRED_ECN_MARKED_PACKETS": str(s.ECNMarked), "SAI_QUEUE_STAT_SHARED_WATERMARK_BYTES": str(s.Watermark), "SAI_QUEUE_STAT_DROPPED_PACKETS": str(s.Dropped)},
				s.Port + ":4:periodic": {"SAI_QUEUE_STAT_SHARED_WATERMARK_BYTES": str(s.Watermark / 2)}}),
		}
	case "APPL_DB":
		return []*gpb.Update{
			object(at("PORT_TABLE"), table{s.Port: {"oper_status": s.lower()}}),
			object(at("LLDP_ENTRY_TABLE"), table{s.Port: {"lldp_rem_sys_name": s.Remote, "lldp_rem_port_id": s.RemotePort}})}
	case "STATE_DB":
		return []*gpb.Update{object(at("TRANSCEIVER_DOM_SENSOR"), table{s.Port: {"rx1power": fmt.Sprintf("%.9f", s.dbm()), "rx2power": "N/A"}})}
	}
	return nil
}

// srlinux tells states in small letters, and 64-bit numbers as texts in JSON.
func (s State) srlinux() []*gpb.Update {
	i := fmt.Sprintf("/interface[name=%s]", s.Port)
	p := fmt.Sprintf("/qos/interfaces/interface[interface-id=%s]/pfc/statistics/pfc-priority[index=3]", s.Port)
	q := fmt.Sprintf("/qos/interfaces/interface[interface-id=%s]/output/queues/queue[queue-name=4]/queue-depth", s.Port)
	n := fmt.Sprintf("/system/lldp/interface[name=%s]/neighbor[id=aa:bb]", s.Port)
	return []*gpb.Update{
		text(at("%s/oper-state", i), s.lower()), number(at("%s/statistics/in-octets", i), s.Octets),
		number(at("%s/pfc-pause-frames-received", p), s.PFCReceived), number(at("%s/pfc-pause-frames-generated", p), s.PFCSent),
		number(at("%s/high-watermark-1", q), s.Watermark),
		decimal(at("%s/transceiver/channel[index=1]/input-power/latest-value", i), s.dbm()),
		text(at("%s/system-name", n), s.Remote), text(at("%s/port-id", n), s.RemotePort),
	}
}

func (s State) nvos() []*gpb.Update {
	phy := fmt.Sprintf("/interfaces/interface[name=%s]/phy-diag/state", s.Port)
	return append(s.interfaces(),
		text(at("%s/raw-ber", phy), fmt.Sprintf("%g", s.PreBER)), text(at("%s/effective-ber", phy), fmt.Sprintf("%g", s.PostBER)))
}
