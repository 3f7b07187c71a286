package source

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Rule represents what a chip has to sample: probes that arrive by some ports.
type Rule struct {
	Ports      []string
	StampPorts []uint16
	Group      uint32 // psample's sample group
	// Every is the number of probes of which one is sampled, if the chip samples by chance.
	Every uint32
	// Police limits the copies per second, if the switch supports a limit.
	Police uint32
	// From and To are the ends of an ERSPAN tunnel, if copies travel by one.
	From, To netip.Addr
}

// RuleKinds returns the kinds of switches that RulesText supports.
func RuleKinds() []string { return []string{"tc", "sonic", "sonic-sflow", "cumulus"} }

// RulesText returns the text of the rules that make a kind of switch sample probes:
//
//   - tc: commands for a switch whose chip the kernel drives (switchdev). They use flower and the sample action, which
//     the driver offloads. Psample reads the samples.
//   - sonic-sflow: a configuration of SONiC's database for its sampler, which passes samples of all packets on by
//     psample (group 1), so that Every has to be small.
//   - sonic: the same for a mirror session that an access list feeds with probes only, with a policer. The copies
//     travel by ERSPAN to a collector.
//   - cumulus: an access list of cl-acltool that copies to the CPU port, which the switch itself limits.
func RulesText(kind string, r Rule) (string, error) {
	switch {
	case len(r.Ports) == 0:
		return "", fmt.Errorf("rules of kind %s: ports are expected", kind)
	case len(r.StampPorts) == 0:
		return "", fmt.Errorf("rules of kind %s: STAMP ports are expected", kind)
	}
	if r.Every == 0 {
		r.Every = 100
	}
	if r.Police == 0 {
		r.Police = 1000
	}
	switch kind {
	case "tc":
		return tcRules(&r), nil
	case "cumulus":
		return cumulusRules(&r), nil
	case "sonic-sflow":
		sessions := map[string]any{}
		for _, p := range r.Ports {
			sessions[p] = map[string]string{"admin_state": "up", "sample_rate": fmt.Sprint(r.Every)}
		}
		return jsonText(map[string]any{"SFLOW": map[string]any{"global": map[string]string{"admin_state": "up", "polling_interval": "0"}}, "SFLOW_SESSION": sessions})
	case "sonic":
		if !r.From.IsValid() || !r.To.IsValid() {
			return "", fmt.Errorf("rules of kind sonic: the addresses of both ends of the ERSPAN tunnel are expected")
		}
		return sonicRules(&r)
	}
	return "", fmt.Errorf("rules of kind %q: one of %s is expected", kind, strings.Join(RuleKinds(), ", "))
}

func jsonText(v any) (string, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	return string(b) + "\n", err
}

// tcRules returns rules that sample one in Every by chance. A probe every 10 ms is then sampled about once per second.
func tcRules(r *Rule) string {
	var b strings.Builder
	for _, port := range r.Ports {
		fmt.Fprintf(&b, "tc qdisc add dev %s clsact\n", port)
		pref := classifierPriority
		for _, family := range []string{"ip", "ipv6"} {
			for _, match := range []string{"dst_port", "src_port"} {
				for _, stamp := range r.StampPorts {
					fmt.Fprintf(&b, "tc filter add dev %s ingress protocol %s pref %d flower ip_proto udp %s %d action sample rate %d group %d trunc %d\n",
						port, family, pref, match, stamp, r.Every, r.Group, headerOctets)
					pref++
				}
			}
		}
	}
	return b.String()
}

func cumulusRules(r *Rule) string {
	var b strings.Builder
	for i, section := range []string{"[iptables]", "[ip6tables]"} {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintln(&b, section)
		for _, port := range r.Ports {
			for _, match := range []string{"--dport", "--sport"} {
				for _, stamp := range r.StampPorts {
					fmt.Fprintf(&b, "-A FORWARD -i %s -p udp %s %d -j SPAN --dport cpu\n", port, match, stamp)
				}
			}
		}
	}
	return b.String()
}

func sonicRules(r *Rule) (string, error) {
	const name = "GRAYLINK"
	rules := map[string]any{}
	priority := 9000
	for _, v6 := range []bool{false, true} {
		table, match := name, map[string]string{"IP_PROTOCOL": fmt.Sprint(protoUDP)}
		if v6 {
			table, match = name+"V6", map[string]string{"NEXT_HEADER": fmt.Sprint(protoUDP)}
		}
		for _, field := range []string{"L4_DST_PORT", "L4_SRC_PORT"} {
			for _, stamp := range r.StampPorts {
				rule := map[string]string{"PRIORITY": fmt.Sprint(priority), field: fmt.Sprint(stamp), "MIRROR_INGRESS_ACTION": name}
				for k, v := range match {
					rule[k] = v
				}
				rules[fmt.Sprintf("%s|%s_%d", table, field, stamp)] = rule
				priority--
			}
		}
	}
	ports := slices.Clone(r.Ports)
	return jsonText(map[string]any{
		"POLICER": map[string]any{name: map[string]string{"meter_type": "packets", "mode": "sr_tcm", "cir": fmt.Sprint(r.Police), "cbs": fmt.Sprint(r.Police), "red_packet_action": "drop"}},
		"MIRROR_SESSION": map[string]any{name: map[string]string{"type": "ERSPAN", "src_ip": r.From.String(), "dst_ip": r.To.String(), "dscp": "0", "ttl": "64",
			"gre_type": "0x88be", "queue": "0", "policer": name}},
		"ACL_TABLE": map[string]any{
			name:        map[string]any{"type": "MIRROR", "stage": "ingress", "policy_desc": "probes of Graylink", "ports": ports},
			name + "V6": map[string]any{"type": "MIRRORV6", "stage": "ingress", "policy_desc": "probes of Graylink", "ports": ports},
		},
		"ACL_RULE": rules,
	})
}
