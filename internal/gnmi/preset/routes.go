package preset

import "slices"

// Families of the forwarding tables.
const (
	FamilyRoutes  = "fabric_switch_routes"
	FamilyMembers = "fabric_switch_port_next_hop_group_members"
)

var (
	nextHopMember = &Family{"next_hop_group_member", "Membership of a next hop in a group; not a series.", Member, []string{"vrf", "group", "hop"}}
	nextHopPort   = &Family{"next_hop_port", "Port of a next hop; not a series.", HopPort, []string{"vrf", "hop"}}
)

// WithRoutes lists the presets whose switches can be subscribed to for their forwarding tables.
var WithRoutes = []string{"arista", "openconfig"}

// aftSource states that the leaves are in the model, and that OpenConfig's own tests of devices use them. It is
// unknown which releases of which vendors answer.
const aftSource = "openconfig-aft; used by openconfig/featureprofiles"

// RouteRules returns the rules of forwarding tables: the number of routes, the next hops of groups, and the
// ports of next hops. Prefixes are not requested.
func RouteRules() []Rule {
	tables := "/network-instances/network-instance[name={vrf}]/afts/"
	var out []Rule
	for _, family := range []string{"ipv4", "ipv6"} {
		out = append(out, Rule{Path: tables + "aft-summaries/" + family + "-unicast/protocols/protocol[origin-protocol={protocol}]/state/counters/aft-entries",
			Metric: FamilyRoutes, Labels: map[string]string{"address_family": family}, Source: aftSource})
	}
	return slices.Concat(out, []Rule{
		{Path: tables + "next-hop-groups/next-hop-group[id={group}]/next-hops/next-hop[index={hop}]/state/index", ownFamily: nextHopMember, OnChange: true, Source: aftSource},
		{Path: tables + "next-hops/next-hop[index={hop}]/interface-ref/state/interface", ownFamily: nextHopPort, OnChange: true, Source: aftSource},
	})
}
