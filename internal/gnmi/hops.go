package gnmi

import (
	"strings"
	"time"

	"github.com/graylink/graylink/internal/gnmi/preset"
)

// maxMembers is how many members the groups of next hops of one switch may have
// together: 26 MB.
const maxMembers = 1 << 18

// maxHad is of how many ports it is kept that they had a member.
const maxHad = 1 << 14

// in is a thing of an instance of the network: a group or a next hop, by its number.
type in struct{ vrf, id string }

// hops are the groups of next hops of a switch. There may be more of them than anybody
// wants series, so that they are counted by the port that they lead out of.
type hops struct {
	groups  map[in]map[string]time.Time // to next hops; when each was told
	ports   map[in]string               // of next hops
	members map[in]int                  // of each next hop
	count   int
	// had are ports that had a member: when they have none any more, that is 0.
	had map[string]bool
}

func newHops() *hops {
	return &hops{groups: map[in]map[string]time.Time{}, ports: map[in]string{}, members: map[in]int{}, had: map[string]bool{}}
}

// tell takes a leaf that is of a next hop; false: there is no place for it.
func (h *hops) tell(kind preset.Kind, values []string, text string, now time.Time) bool {
	if kind == preset.HopPort {
		hop := in{values[0], values[1]}
		if _, known := h.ports[hop]; !known && len(h.ports) >= maxMembers {
			return false
		}
		h.ports[hop] = strings.Clone(strings.ToValidUTF8(text, "\ufffd"))
		h.note(hop)
		return true
	}
	group := in{values[0], values[1]}
	of := h.groups[group]
	if _, known := of[values[2]]; !known {
		if h.count >= maxMembers {
			return false
		}
		if of == nil {
			of = map[string]time.Time{}
			h.groups[group] = of
		}
		h.count++
		h.members[in{group.vrf, values[2]}]++
	}
	of[values[2]] = now
	h.note(in{group.vrf, values[2]})
	return true
}

// note keeps that a next hop's port has a member.
func (h *hops) note(hop in) {
	if port := h.ports[hop]; port != "" && h.members[hop] > 0 && len(h.had) < maxHad {
		h.had[port] = true
	}
}

// leave takes a member out of its group.
func (h *hops) leave(group in, hop string) {
	delete(h.groups[group], hop)
	if len(h.groups[group]) == 0 {
		delete(h.groups, group)
	}
	h.count--
	if at := (in{group.vrf, hop}); h.members[at] > 1 {
		h.members[at]--
	} else {
		delete(h.members, at)
	}
}

// remove takes away what a path is about; an empty value is any.
func (h *hops) remove(kind preset.Kind, values []string) {
	is := func(want, have string) bool { return want == "" || want == have }
	if kind == preset.HopPort {
		if values[0] != "" && values[1] != "" {
			delete(h.ports, in{values[0], values[1]})
			return
		}
		for hop := range h.ports {
			if is(values[0], hop.vrf) && is(values[1], hop.id) {
				delete(h.ports, hop)
			}
		}
		return
	}
	group := func(g in) {
		for hop := range h.groups[g] {
			if is(values[2], hop) {
				h.leave(g, hop)
			}
		}
	}
	if values[0] != "" && values[1] != "" {
		group(in{values[0], values[1]})
		return
	}
	for g := range h.groups {
		if is(values[0], g.vrf) && is(values[1], g.id) {
			group(g)
		}
	}
}

// expire takes away members that were not told since a moment.
func (h *hops) expire(since time.Time) {
	for g, of := range h.groups {
		for hop, at := range of {
			if at.Before(since) {
				h.leave(g, hop)
			}
		}
	}
}

// byPort counts the members that lead out of each port. unplaced are those whose next hop
// has no port, or none that was told.
func (h *hops) byPort() (out map[string]int, unplaced int) {
	out = map[string]int{}
	for hop, n := range h.members {
		if port := h.ports[hop]; port != "" {
			out[port] += n
		} else {
			unplaced += n
		}
	}
	for port := range h.had {
		out[port] += 0
	}
	return out, unplaced
}
