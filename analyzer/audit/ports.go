package audit

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
)

// PortReading is what the series of a switch's port, or of a NIC's, say. Nil means that a value is absent.
type PortReading struct {
	SpeedGbps *float64 // negotiated
	MTUBytes  *float64
	Lanes     *float64 // negotiated
	// ExpectedLanes are those that both ends of the cable are enabled for.
	ExpectedLanes *float64
	// FEC is the active mode of error correction, or empty if it is not known.
	FEC string
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
// idle. It warns and does not fail, since the load of somebody's job does the same. If a load is named, marks and pauses are counted
// and not judged, and the check never passes: the fabric was not seen idle.
func checkIdle(st *study) Check {
	c := Check{ID: "A6", Title: "Quiet while idle: marks, pauses, discards", Status: Pass, Unit: "share of probes marked", Bound: &st.c.Idle.MaxMarked, Of: "link directions and ports with counters"}
	marked, many := st.addMarks(&c)
	ports, paused := 0, 0
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
		switch {
		case perSecond <= st.c.Idle.MaxPauses:
		case st.e.LoadFrom != "":
			paused++
		default:
			c.addItem(Item{Element: at, Kind: "port", Status: Warn, Population: 1, Text: fmt.Sprintf("%.3g pause frames a second; at most %g are accepted.", perSecond, st.c.Idle.MaxPauses)})
		}
		if r.Discards != nil && math.Round(*r.Discards) > st.c.Idle.MaxDiscards {
			c.addItem(Item{Element: at, Kind: "port", Status: Warn, Population: 1, Text: fmt.Sprintf("%.0f packets were discarded; at most %g are accepted.", *r.Discards, st.c.Idle.MaxDiscards)})
		}
	}
	if c.Population > 0 {
		c.Text = fmt.Sprintf("Marks of probes were counted on %d link directions, pauses or discards at %d ports.", marked, ports)
	}
	if st.e.LoadFrom != "" && c.Population > 0 {
		if c.Status == Pass {
			c.Status = Unknown
		}
		c.Text += fmt.Sprintf(" Not judged, since the fabric was under load (%s): many marks on %d directions, and pauses at %d ports.",
			st.e.LoadFrom, many, paused)
	}
	return c
}

// addMarks adds the link directions on which many probes were marked, and returns on how many marks are counted, and on how many there
// are many. A direction has the marks of all flows that cross it. Under a load, no direction is added.
func (st *study) addMarks(c *Check) (counted, many int) {
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
		if many++; st.e.LoadFrom != "" {
			continue
		}
		i := st.newItem(d, Warn)
		i.Value, i.Bound, i.Population = &share, &st.c.Idle.MaxMarked, int(total[d])
		i.Text = fmt.Sprintf("%d of %d probes that cross it were marked congestion experienced, here or elsewhere.", marked[d], total[d])
		c.addItem(i)
	}
	return counted, many
}

// hasPort reports whether a port or NIC is in the scope, or at a link that is.
func (st *study) hasPort(at string) bool {
	peer := st.e.Graph.PeerOf(at)
	return peer != "" && st.scope.hasLink(fabric.LinkID(at, peer))
}

// speedTolerance is the share by which a speed may differ from the planned one.
const speedTolerance = 0.02

// checkPorts makes check A9: whether links have their planned speed, and the same speed, lanes, FEC and MTU at both ends.
func checkPorts(st *study) Check {
	none := 0.0
	c := Check{ID: "A9", Title: "Speed, lanes, FEC and MTU of ports", Status: Pass, Unit: "links that differ", Bound: &none,
		Of: "links with readings"}
	unread, wrong := 0, 0
	for i := range st.e.Graph.Topo.Links {
		l := &st.e.Graph.Topo.Links[i]
		if !st.scope.hasLink(l.ID()) {
			continue
		}
		a, b := st.e.Ports[l.A], st.e.Ports[l.B]
		if !a.comparesWith(b) {
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
		c.addItem(Item{Element: "links without readings", Kind: "links", Status: Unknown, Population: unread,
			Text: fmt.Sprintf("%d links have no series of their speed, nor of MTU, lanes or FEC at both ends.", unread)})
	}
	return c
}

// comparesWith reports whether the readings of both ends of a link can be compared with each other, or one with the plan.
func (r PortReading) comparesWith(b PortReading) bool {
	both := func(x, y *float64) bool { return x != nil && y != nil }
	return r.SpeedGbps != nil || b.SpeedGbps != nil || both(r.MTUBytes, b.MTUBytes) || both(r.Lanes, b.Lanes) || r.FEC != "" && b.FEC != ""
}

// fecNames are the modes of error correction as Linux, OpenConfig, SONiC and UFM name them. Names that differ in the code of the same
// family are one mode here, since not all of them name the code.
var fecNames = map[string]string{"rs": "RS", "baser": "FC", "fc": "FC", "off": "off", "none": "off", "llrs": "LLRS"}

// sameFEC reports whether two modes of error correction are one, or cannot be compared since one of the names is not known.
func sameFEC(a, b string) bool {
	if strings.EqualFold(a, b) {
		return true
	}
	if p, q := fecCode.FindString(a), fecCode.FindString(b); p != "" && q != "" && p != q {
		return false
	}
	x, y := nameFEC(a), nameFEC(b)
	return x != "" && y != "" && x == y || (x == "") != (y == "")
}

// fecCode matches the length of the words of a Reed-Solomon code in symbols.
var fecCode = regexp.MustCompile(`272|528|544`)

// nameFEC returns the name of a mode of error correction in one vocabulary, or "" if it has none.
func nameFEC(mode string) string {
	lower := strings.ToLower(mode)
	if name := fecNames[lower]; name != "" {
		return name
	}
	switch {
	case strings.Contains(lower, "no fec") || strings.Contains(lower, "no-fec") || strings.Contains(lower, "disabled"):
		return "off"
	case strings.Contains(lower, "ll") && strings.Contains(lower, "rs"):
		return "LLRS"
	case strings.Contains(lower, "rs-fec") || strings.Contains(lower, "fec_rs"):
		return "RS"
	case strings.Contains(lower, "firecode") || strings.Contains(lower, "fec_fc"):
		return "FC"
	}
	return ""
}

// portFaults says how the ends of a link differ from the plan, and from each other.
func portFaults(l *fabric.Link, a, b PortReading) (out []string) {
	differ := func(x, y float64) bool { return math.Abs(x-y) > speedTolerance*y }
	for end, r := range map[string]PortReading{l.A: a, l.B: b} {
		if r.SpeedGbps != nil && l.SpeedGbps > 0 && differ(*r.SpeedGbps, l.SpeedGbps) {
			out = append(out, fmt.Sprintf("%s runs at %g Gbit/s, and %g are planned.", end, *r.SpeedGbps, l.SpeedGbps))
		}
	}
	for end, r := range map[string]PortReading{l.A: a, l.B: b} {
		if r.Lanes != nil && r.ExpectedLanes != nil && *r.Lanes < *r.ExpectedLanes {
			out = append(out, fmt.Sprintf("%s runs on %g lanes, and its cable has %g.", end, *r.Lanes, *r.ExpectedLanes))
		}
	}
	slices.Sort(out)
	if a.SpeedGbps != nil && b.SpeedGbps != nil && differ(*a.SpeedGbps, *b.SpeedGbps) {
		out = append(out, fmt.Sprintf("Its ends have %g and %g Gbit/s.", *a.SpeedGbps, *b.SpeedGbps))
	}
	if a.Lanes != nil && b.Lanes != nil && *a.Lanes != *b.Lanes {
		out = append(out, fmt.Sprintf("Its ends run on %g and %g lanes.", *a.Lanes, *b.Lanes))
	}
	if a.FEC != "" && b.FEC != "" && !sameFEC(a.FEC, b.FEC) {
		out = append(out, fmt.Sprintf("Its ends have the FEC modes %s and %s.", a.FEC, b.FEC))
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
