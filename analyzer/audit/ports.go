package audit

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
)

// PortReading is what the series of a switch's port, or of a NIC's, say. Nil means that a value is absent.
type PortReading struct {
	SpeedGbps *float64 // negotiated
	MTUBytes  *float64
	// PauseFrames and Discards were counted during the audit, in both directions.
	PauseFrames, Discards *float64
}

// NICReading is what the series of a NIC's health say.
type NICReading struct {
	// Watched is set if the NIC's health is read at all.
	Watched bool
	// Findings are the codes of what was found during the audit, with their severity.
	Findings map[string]string
	// CarrierChanges were counted during the audit. Nil means that they are not.
	CarrierChanges *float64
}

// checkIdle makes check A6: whether packets are marked, ports are paused and packets are discarded while the fabric should be
// idle. It warns and does not fail, since the load of somebody's job does the same.
func checkIdle(st *study) Check {
	c := Check{ID: "A6", Title: "Quiet while idle: marks, pauses, discards", Status: Pass, Unit: "share of probes marked", Bound: &st.c.Idle.MaxMarked, Of: "link directions and ports with counters"}
	marked := st.addMarks(&c)
	ports := 0
	for _, at := range slices.Sorted(maps.Keys(st.e.Ports)) {
		r := st.e.Ports[at]
		if !st.hasPort(at) || r.PauseFrames == nil && r.Discards == nil {
			continue
		}
		ports++
		c.Population++
		perSecond := 0.0
		if seconds := st.e.End.Sub(st.e.Start).Seconds(); r.PauseFrames != nil && seconds > 0 {
			perSecond = *r.PauseFrames / seconds
		}
		if perSecond > st.c.Idle.MaxPauses {
			c.addItem(Item{Element: at, Kind: "port", Status: Warn, Population: 1, Text: fmt.Sprintf("%.3g pause frames a second; at most %g are accepted.", perSecond, st.c.Idle.MaxPauses)})
		}
		if r.Discards != nil && math.Round(*r.Discards) > st.c.Idle.MaxDiscards {
			c.addItem(Item{Element: at, Kind: "port", Status: Warn, Population: 1, Text: fmt.Sprintf("%.0f packets were discarded; at most %g are accepted.", *r.Discards, st.c.Idle.MaxDiscards)})
		}
	}
	if c.Population > 0 {
		c.Text = fmt.Sprintf("Marks of probes were counted on %d link directions, pauses or discards at %d ports.", marked, ports)
	}
	return c
}

// addMarks adds the link directions on which many probes were marked, and returns on how many marks are counted. A direction has
// the marks of all flows that cross it.
func (st *study) addMarks(c *Check) (counted int) {
	total, marked := make([]uint64, len(st.directions)), make([]uint64, len(st.directions))
	for i := range st.e.Flows {
		for _, d := range st.crosses[i] {
			total[d] += st.e.Flows[i].MarkedOf
			marked[d] += st.e.Flows[i].Marked
		}
	}
	for d := range int32(len(st.directions)) {
		if total[d] == 0 || !st.inScope(d) {
			continue
		}
		counted++
		c.Population++
		share := float64(marked[d]) / float64(total[d])
		c.noteValue(share)
		if share <= st.c.Idle.MaxMarked {
			continue
		}
		i := st.newItem(d, Warn)
		i.Value, i.Bound, i.Population = &share, &st.c.Idle.MaxMarked, int(total[d])
		i.Text = fmt.Sprintf("%d of %d probes that cross it were marked congestion experienced, here or elsewhere.", marked[d], total[d])
		c.addItem(i)
	}
	return counted
}

// hasPort reports whether a port or NIC is in the scope, or at a link that is.
func (st *study) hasPort(at string) bool {
	peer := st.e.Graph.PeerOf(at)
	return peer != "" && st.scope.hasLink(fabric.LinkID(at, peer))
}

// speedTolerance is the share by which a speed may differ from the planned one.
const speedTolerance = 0.02

// checkPorts makes check A9: whether links have their planned speed, and the same speed and MTU at both ends.
func checkPorts(st *study) Check {
	none := 0.0
	c := Check{ID: "A9", Title: "Speed and MTU of ports", Status: Pass, Unit: "links that differ", Bound: &none, Of: "links with readings"}
	unread, wrong := 0, 0
	for i := range st.e.Graph.Topo.Links {
		l := &st.e.Graph.Topo.Links[i]
		if !st.scope.hasLink(l.ID()) {
			continue
		}
		a, b := st.e.Ports[l.A], st.e.Ports[l.B]
		if a.SpeedGbps == nil && b.SpeedGbps == nil && (a.MTUBytes == nil || b.MTUBytes == nil) {
			unread++
			continue
		}
		c.Population++
		if faults := portFaults(l, a, b); len(faults) > 0 {
			wrong++
			c.addItem(Item{Element: l.ID(), Kind: kindOf(st.e.Graph, l.ID()), Status: Fail, Population: 1, Text: strings.Join(faults, " ")})
		}
	}
	if c.Population == 0 {
		return c
	}
	c.noteValue(float64(wrong))
	c.Text = fmt.Sprintf("%d of %d links with readings differ from the plan or between their ends.", wrong, c.Population)
	if unread > 0 {
		c.addItem(Item{Element: "links without readings", Kind: "links", Status: Unknown, Population: unread, Text: fmt.Sprintf("%d links have no series of their speed or MTU.", unread)})
	}
	return c
}

// portFaults says how the ends of a link differ from the plan, and from each other.
func portFaults(l *fabric.Link, a, b PortReading) (out []string) {
	differ := func(x, y float64) bool { return math.Abs(x-y) > speedTolerance*y }
	for end, r := range map[string]PortReading{l.A: a, l.B: b} {
		if r.SpeedGbps != nil && l.SpeedGbps > 0 && differ(*r.SpeedGbps, l.SpeedGbps) {
			out = append(out, fmt.Sprintf("%s runs at %g Gbit/s, and %g are planned.", end, *r.SpeedGbps, l.SpeedGbps))
		}
	}
	slices.Sort(out)
	if a.SpeedGbps != nil && b.SpeedGbps != nil && differ(*a.SpeedGbps, *b.SpeedGbps) {
		out = append(out, fmt.Sprintf("Its ends have %g and %g Gbit/s.", *a.SpeedGbps, *b.SpeedGbps))
	}
	if a.MTUBytes != nil && b.MTUBytes != nil && *a.MTUBytes != *b.MTUBytes {
		out = append(out, fmt.Sprintf("Its ends have MTUs of %g and %g octets.", *a.MTUBytes, *b.MTUBytes))
	}
	return out
}

// checkNICs makes check A12: whether the agents found anything wrong with NICs, and whether their carriers changed.
func checkNICs(st *study) Check {
	none := 0.0
	c := Check{ID: "A12", Title: "Findings of NICs", Status: Pass, Unit: "NICs with findings", Bound: &none, Of: "NICs whose health is read"}
	unread, wrong := 0, 0
	for _, nic := range st.e.Graph.NICIDs() {
		if leaf, _ := st.e.Graph.LeafOf(nic); leaf == "" || !st.scope.hasNIC(nic) {
			continue
		}
		r := st.e.NICs[nic]
		if !r.Watched {
			unread++
			continue
		}
		c.Population++
		item := Item{Element: nic, Kind: "nic", Status: Pass, Population: 1}
		var found []string
		for _, code := range slices.Sorted(maps.Keys(r.Findings)) {
			found = append(found, code+" ("+r.Findings[code]+")")
			if r.Findings[code] == fatalFinding {
				item.Status = worse(item.Status, Fail)
			}
			item.Status = worse(item.Status, Warn)
		}
		if len(found) > 0 {
			item.Text = "Its agent found " + strings.Join(found, ", ") + "."
		}
		if n := r.CarrierChanges; n != nil && math.Round(*n) > 0 {
			item.Status = Fail
			item.Text = strings.TrimSpace(item.Text + fmt.Sprintf(" Its carrier changed %.0f times.", *n))
		}
		if item.Status != Pass {
			wrong++
			c.addItem(item)
		}
	}
	if c.Population == 0 {
		return c
	}
	c.noteValue(float64(wrong))
	c.Text = fmt.Sprintf("%d of %d NICs whose health is read have findings.", wrong, c.Population)
	if unread > 0 {
		c.addItem(Item{Element: "NICs without health", Kind: "nics", Status: Unknown, Population: unread, Text: fmt.Sprintf("%d NICs have no series of their health.", unread)})
	}
	return c
}

// fatalFinding is the severity of a finding with which a NIC cannot be used.
const fatalFinding = "fatal"
