package gnmi

import (
	"strings"
	"time"

	"github.com/graylink/graylink/internal/gnmi/preset"
)

// maxMembers bounds the number of members of all groups of next hops of one switch: 26 MB.
const maxMembers = 1 << 18

// maxKnownPorts bounds the number of ports that are remembered for having had a member.
const maxKnownPorts = 1 << 14

// vrfKey identifies a group or a next hop in a network instance, by its number.
type vrfKey struct{ vrf, id string }

// nextHopTable holds the groups of next hops of a switch. They are counted by the port of the next hop, because
// there may be too many of them for series of their own.
type nextHopTable struct {
	groups      map[vrfKey]map[string]time.Time // to next hops, with the time of their last update
	ports       map[vrfKey]string               // of next hops
	members     map[vrfKey]int                  // number of each next hop's memberships
	memberCount int
	// knownPorts are the ports that had a member. When they have none left, their count is 0.
	knownPorts map[string]bool
}

func newNextHopTable() *nextHopTable {
	return &nextHopTable{groups: map[vrfKey]map[string]time.Time{}, ports: map[vrfKey]string{}, members: map[vrfKey]int{}, knownPorts: map[string]bool{}}
}

// recordLeaf records a leaf of a next hop. It returns false if there is no room for it.
func (h *nextHopTable) recordLeaf(kind preset.Kind, values []string, text string, now time.Time) bool {
	if kind == preset.HopPort {
		hop := vrfKey{values[0], values[1]}
		if _, known := h.ports[hop]; !known && len(h.ports) >= maxMembers {
			return false
		}
		h.ports[hop] = strings.Clone(strings.ToValidUTF8(text, "\ufffd"))
		h.rememberPort(hop)
		return true
	}
	group := vrfKey{values[0], values[1]}
	of := h.groups[group]
	if _, known := of[values[2]]; !known {
		if h.memberCount >= maxMembers {
			return false
		}
		if of == nil {
			of = map[string]time.Time{}
			h.groups[group] = of
		}
		h.memberCount++
		h.members[vrfKey{group.vrf, values[2]}]++
	}
	of[values[2]] = now
	h.rememberPort(vrfKey{group.vrf, values[2]})
	return true
}

// rememberPort records that a next hop's port has a member.
func (h *nextHopTable) rememberPort(hop vrfKey) {
	if port := h.ports[hop]; port != "" && h.members[hop] > 0 && len(h.knownPorts) < maxKnownPorts {
		h.knownPorts[port] = true
	}
}

// removeMember removes a member from its group.
func (h *nextHopTable) removeMember(group vrfKey, hop string) {
	delete(h.groups[group], hop)
	if len(h.groups[group]) == 0 {
		delete(h.groups, group)
	}
	h.memberCount--
	if at := (vrfKey{group.vrf, hop}); h.members[at] > 1 {
		h.members[at]--
	} else {
		delete(h.members, at)
	}
}

// removeMatching removes what a path matches; an empty value matches any.
func (h *nextHopTable) removeMatching(kind preset.Kind, values []string) {
	is := func(want, have string) bool { return want == "" || want == have }
	if kind == preset.HopPort {
		if values[0] != "" && values[1] != "" {
			delete(h.ports, vrfKey{values[0], values[1]})
			return
		}
		for hop := range h.ports {
			if is(values[0], hop.vrf) && is(values[1], hop.id) {
				delete(h.ports, hop)
			}
		}
		return
	}
	group := func(g vrfKey) {
		for hop := range h.groups[g] {
			if is(values[2], hop) {
				h.removeMember(g, hop)
			}
		}
	}
	if values[0] != "" && values[1] != "" {
		group(vrfKey{values[0], values[1]})
		return
	}
	for g := range h.groups {
		if is(values[0], g.vrf) && is(values[1], g.id) {
			group(g)
		}
	}
}

// expireMembers removes members that were not sent since a moment.
func (h *nextHopTable) expireMembers(since time.Time) {
	for g, of := range h.groups {
		for hop, at := range of {
			if at.Before(since) {
				h.removeMember(g, hop)
			}
		}
	}
}

// byPort counts the members that leave by each port. unplaced counts those whose next hop has no known port.
func (h *nextHopTable) byPort() (out map[string]int, unplaced int) {
	out = map[string]int{}
	for hop, n := range h.members {
		if port := h.ports[hop]; port != "" {
			out[port] += n
		} else {
			unplaced += n
		}
	}
	for port := range h.knownPorts {
		out[port] += 0
	}
	return out, unplaced
}
