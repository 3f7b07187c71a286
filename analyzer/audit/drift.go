package audit

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
)

// Configured is how an element is configured: a NIC, a port of a switch, or a switch.
type Configured struct {
	// Model is by what firmware and drivers are compared beside the role: board, type or vendor. It is empty if it is not known.
	Model string
	// Settings are values by the name of a setting.
	Settings map[string]string
}

// roleOf returns the role of a NIC, of a port of a switch, or of a switch.
func (st *study) roleOf(element string) string {
	g := st.e.Graph
	if sw := g.Switch(element); sw != nil {
		return string(sw.Role)
	}
	if fabric.IsNIC(element) {
		if n := g.NIC(element); n != nil && n.Plane != "" {
			return "NIC of plane " + n.Plane
		}
		return "NIC"
	}
	role := "switch"
	if sw := g.Switch(fabric.OwnerOf(element)); sw != nil {
		role = string(sw.Role)
	}
	peer := g.PeerOf(element)
	switch {
	case fabric.IsNIC(peer):
		return role + " port to a NIC"
	case g.SwitchTier(fabric.OwnerOf(peer)) > g.SwitchTier(fabric.OwnerOf(element)):
		return role + " uplink"
	}
	return role + " port to a lower switch"
}

// isConfigured reports whether an element is in the scope and in the plan.
func (st *study) isConfigured(element string) bool {
	g := st.e.Graph
	switch {
	case g.Switch(element) != nil:
		return st.scope.hasSwitch(element)
	case fabric.IsNIC(element):
		return g.NIC(element) != nil && st.scope.hasNIC(element)
	}
	return st.hasPort(element)
}

// driftGroup is the elements of one role and model that have a setting.
type driftGroup struct {
	role, model, setting string
	members              map[string]string // values by element
}

func (g *driftGroup) name() string {
	if g.model == "" {
		return g.role
	}
	return g.role + ", " + g.model
}

// checkDrift makes check A10: whether every element is configured like the majority of its role and model.
func checkDrift(st *study) Check {
	c := Check{ID: "A10", Title: "Configuration like others of the role", Status: Pass, Unit: "elements that differ",
		Bound: new(float64), Of: "elements with series of their configuration"}
	groups := map[string]*driftGroup{}
	for _, element := range slices.Sorted(maps.Keys(st.e.Configured)) {
		x := st.e.Configured[element]
		if len(x.Settings) == 0 || st.roleOf(element) == "" {
			continue
		}
		judged := st.isConfigured(element)
		if judged {
			c.Population++
		}
		for setting, value := range x.Settings {
			key := st.roleOf(element) + "\x00" + x.Model + "\x00" + setting
			g := groups[key]
			if g == nil {
				g = &driftGroup{role: st.roleOf(element), model: x.Model, setting: setting, members: map[string]string{}}
				groups[key] = g
			}
			g.members[element] = value
		}
	}
	if c.Population == 0 {
		return c
	}
	differ := map[string][]drift{}
	settings := map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		g := groups[key]
		found, reason := st.judgeGroup(g)
		if reason != "" && slices.ContainsFunc(slices.Collect(maps.Keys(g.members)), st.isConfigured) {
			c.addItem(Item{Element: g.name(), Kind: "role", Status: Unknown, Population: len(g.members), Text: reason})
			continue
		}
		settings[g.setting] = true
		for _, d := range found {
			differ[d.element] = append(differ[d.element], d)
		}
	}
	wrong := st.addDrift(&c, differ)
	c.noteValue(float64(wrong))
	c.Text = fmt.Sprintf("%d of %d elements differ from their role in any of %d settings: %s.", wrong, c.Population, len(settings),
		strings.Join(slices.Sorted(maps.Keys(settings)), ", "))
	st.addUnreadNICs(&c)
	return c
}

// addUnreadNICs says how many NICs have no series of their configuration.
func (st *study) addUnreadNICs(c *Check) {
	unread := 0
	for _, nic := range st.e.Graph.NICIDs() {
		if leaf, _ := st.e.Graph.LeafOf(nic); leaf != "" && st.scope.hasNIC(nic) && len(st.e.Configured[nic].Settings) == 0 {
			unread++
		}
	}
	if unread > 0 {
		c.addItem(Item{Element: "NICs without a configuration", Kind: "nics", Status: Unknown, Population: unread,
			Text: fmt.Sprintf("%d NICs have no series of their configuration.", unread)})
	}
}

// drift is a setting by which an element differs from its role.
type drift struct {
	element, setting, value string
	majority                string
	with, of                int // members that have the majority's value, of all
	role                    string
}

func (d *drift) text() string {
	return fmt.Sprintf("Its %s is %s; %d of %d have %s (%s).", d.setting, quoteValue(d.value), d.with, d.of, quoteValue(d.majority), d.role)
}

func quoteValue(v string) string {
	if v == "" {
		return "empty"
	}
	return v
}

// judgeGroup returns the members that differ from the majority, or why there is none.
func (st *study) judgeGroup(g *driftGroup) (out []drift, reason string) {
	if len(g.members) < st.c.Drift.MinMembers {
		return nil, fmt.Sprintf("%s: %d elements have it; at least %d are needed for a majority.", g.setting, len(g.members),
			st.c.Drift.MinMembers)
	}
	counts := map[string]int{}
	for _, v := range g.members {
		counts[v]++
	}
	majority := slices.MaxFunc(slices.Sorted(maps.Keys(counts)), func(a, b string) int { return counts[a] - counts[b] })
	with := counts[majority]
	if float64(with) < st.c.Drift.MinMajority*float64(len(g.members)) {
		return nil, fmt.Sprintf("%s: no value has a clear majority; the most frequent one, %s, has %d of %d.", g.setting,
			quoteValue(majority), with, len(g.members))
	}
	for _, element := range slices.Sorted(maps.Keys(g.members)) {
		if v := g.members[element]; v != majority {
			out = append(out, drift{element: element, setting: g.setting, value: v, majority: majority, with: with, of: len(g.members),
				role: g.name()})
		}
	}
	return out, ""
}

// addDrift adds an item for each element that differs, and returns their number. A switch of whose ports at least minDriftedPorts
// differ in the same way, and no port of the same role is like the majority, is named instead of its ports.
func (st *study) addDrift(c *Check, differ map[string][]drift) (wrong int) {
	texts, population := map[string][]string{}, map[string]int{}
	note := func(element, text string, of int) {
		texts[element] = append(texts[element], text)
		population[element] = max(population[element], of)
	}
	bySwitch := map[string][]drift{} // of ports, by the switch and by how they differ
	for _, element := range slices.Sorted(maps.Keys(differ)) {
		for _, d := range differ[element] {
			if !st.isConfigured(element) {
				continue
			}
			if fabric.IsNIC(element) || st.e.Graph.Switch(element) != nil {
				note(element, d.text(), d.of)
				continue
			}
			key := strings.Join([]string{fabric.OwnerOf(element), d.role, d.setting, d.value}, "\x00")
			bySwitch[key] = append(bySwitch[key], d)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(bySwitch)) {
		ports := bySwitch[key]
		sw := fabric.OwnerOf(ports[0].element)
		if len(ports) >= minDriftedPorts && len(ports) == st.countPorts(sw, ports[0].setting, st.roleOf(ports[0].element)) {
			d := ports[0]
			note(sw, fmt.Sprintf("The %s of its %d ports is %s; %d of %d have %s (%s).", d.setting, len(ports), quoteValue(d.value), d.with,
				d.of, quoteValue(d.majority), d.role), d.of)
			continue
		}
		for i := range ports {
			note(ports[i].element, ports[i].text(), ports[i].of)
		}
	}
	for _, element := range slices.Sorted(maps.Keys(texts)) {
		c.addItem(Item{Element: element, Kind: st.roleOf(element), Status: Fail, Population: population[element],
			Text: strings.Join(texts[element], " ")})
	}
	return len(texts)
}

// minDriftedPorts is the number of ports of a switch from which on the switch is named instead of them.
const minDriftedPorts = 2

// countPorts returns the number of ports of a role at a switch that have a setting.
func (st *study) countPorts(sw, setting, role string) (n int) {
	for _, end := range st.e.Graph.EndsOf(sw) {
		if _, known := st.e.Configured[end].Settings[setting]; known && st.roleOf(end) == role {
			n++
		}
	}
	return n
}
