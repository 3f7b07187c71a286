package preset

import "slices"

// Families of what the forwarding tables are asked for.
const (
	FamilyRoutes  = "fabric_switch_routes"
	FamilyMembers = "fabric_switch_port_next_hop_group_members"
)

var (
	nextHopMember = &Family{"next_hop_group_member", "A next hop is in a group; no series.", Member, []string{"vrf", "group", "hop"}}
	nextHopPort   = &Family{"next_hop_port", "Which port a next hop leads out of; no series.", HopPort, []string{"vrf", "hop"}}
)

// WithRoutes are the presets whose switches may be asked for their forwarding tables.
var WithRoutes = []string{"arista", "openconfig"}

// aftSource says that the leaves are in the model, and that OpenConfig's own tests of devices
// ask for them. Which release of whom answers is not told.
const aftSource = "openconfig-aft; openconfig/featureprofiles asks for it"

// RouteRules are the rules of forwarding tables: how many routes there are, which next hops
// groups have, and which ports those lead out of. Prefixes are not asked for.
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
