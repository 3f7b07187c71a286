package gnmi

import (
	"strings"
	"time"

	"github.com/graylink/graylink/internal/gnmi/preset"
)

// maxMembers is how many members the groups of next hops of one switch may have
// together: 26 MB.
const maxMembers = 1 << 18

// maxKnownPorts is of how many ports it is kept that they had a member.
const maxKnownPorts = 1 << 14

// vrfKey is a thing of an instance of the network: a group or a next hop, by its number.
type vrfKey struct{ vrf, id string }

// nextHopTable are the groups of next hops of a switch. There may be more of them than anybody
// wants series, so that they are counted by the port that they lead out of.
type nextHopTable struct {
	groups      map[vrfKey]map[string]time.Time // to next hops; when each was told
	ports       map[vrfKey]string               // of next hops
	members     map[vrfKey]int                  // of each next hop
	memberCount int
	// knownPorts are ports that had a member: when they have none any more, that is 0.
	knownPorts map[string]bool
}

func newNextHopTable() *nextHopTable {
	return &nextHopTable{groups: map[vrfKey]map[string]time.Time{}, ports: map[vrfKey]string{}, members: map[vrfKey]int{}, knownPorts: map[string]bool{}}
}

// recordLeaf takes a leaf that is of a next hop; false: there is no place for it.
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

// rememberPort keeps that a next hop's port has a member.
func (h *nextHopTable) rememberPort(hop vrfKey) {
	if port := h.ports[hop]; port != "" && h.members[hop] > 0 && len(h.knownPorts) < maxKnownPorts {
		h.knownPorts[port] = true
	}
}

// removeMember takes a member out of its group.
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

// removeMatching takes away what a path is about; an empty value is any.
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

// expireMembers takes away members that were not told since a moment.
func (h *nextHopTable) expireMembers(since time.Time) {
	for g, of := range h.groups {
		for hop, at := range of {
			if at.Before(since) {
				h.removeMember(g, hop)
			}
		}
	}
}

// byPort counts the members that lead out of each port. unplaced are those whose next hop
// has no port, or none that was told.
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
