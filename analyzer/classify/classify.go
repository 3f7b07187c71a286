// Package classify turns a suspect element into a verdict: which scenario it
// is, how severe, whom it touches, what to do, in plain words. It is pure.
package classify

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"sort"
	"strings"
	"time"

	"github.com/graylink/graylink/analyzer/clocks"
	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/analyzer/triangulate"
	"github.com/graylink/graylink/internal/fabric"
)

// hardLoss is the loss ratio from which a fault is a failure and not a degradation.
const hardLoss = 0.5

// Verdict describes one suspect. first is when it was first seen.
func Verdict(g *fabric.Graph, s triangulate.Suspect, findings []judge.Finding, first time.Time) fabric.Verdict {
	v := fabric.Verdict{
		Element:    fabric.Element{Element: s.Name, Kind: s.Kind},
		Confidence: math.Round(math.Min(s.Confidence, 0.999)*1000) / 1000,
		Symptom:    fabric.Symptom{AddedDelayNS: s.AddedDelayNS, LossRatio: math.Round(s.LossRatio*1e4) / 1e4},
		Equivalent: []fabric.Element{}, Causes: []string{}, Jobs: []string{}, FirstSeen: first,
	}
	if s.OneWay() {
		v.Direction = s.Direction.String()
	}
	v.Scenario = scenario(g, s)
	v.Severity = fabric.SeverityWarning
	if v.Scenario == fabric.HardFailure || s.Kind == fabric.KindSwitch {
		v.Severity = fabric.SeverityCritical
	}
	v.Tier, v.Plane = place(g, s.Name, s.Kind)
	v.Equivalent = append(v.Equivalent, structural(g, s, findings)...)
	for _, e := range s.Equivalent {
		el := fabric.Element{Element: e.Name, Kind: e.Kind}
		v.Equivalent = append(v.Equivalent, el)
		v.Alike = append(v.Alike, fabric.Place{Element: el, Direction: e.Direction})
	}
	evidence(&v, s, findings)
	v.Action = action(&v)
	v.Summary = summary(&v, s)
	v.ID = ID(v.Kind, v.Element.Element, first)
	return v
}

// Clock describes a clock that moved. first is when it was first seen to have.
func Clock(g *fabric.Graph, s clocks.Suspect, findings []judge.Finding, first time.Time) fabric.Verdict {
	v := fabric.Verdict{
		Element: fabric.Element{Element: s.NIC, Kind: fabric.KindClock}, Scenario: fabric.ClockTrouble, Severity: fabric.SeverityWarning, Tier: 1,
		Equivalent: []fabric.Element{}, Causes: []string{}, Jobs: []string{}, FirstSeen: first,
		Action: "Look at what sets this host's clock (chrony, ptp4l, a hypervisor) and at its oscillator. Until it is steady, delays by it are set aside; the network is not at fault.",
	}
	if n := g.NIC(s.NIC); n != nil {
		v.Plane = n.Plane
	}
	for _, nic := range s.Others {
		v.Equivalent = append(v.Equivalent, fabric.Element{Element: nic, Kind: fabric.KindClock})
	}
	// The chance that all who say so moved themselves, or that a node miscounts.
	wrong := math.Pow(0.5, float64(s.Peers))
	if s.Counted {
		wrong *= 0.05
	}
	v.Confidence = math.Round(math.Min(1-wrong, 0.999)*1000) / 1000
	if len(s.Explained) == 0 {
		v.Severity = fabric.SeverityInfo // no delay is measured wrong by it
	}
	nics := map[string]bool{s.NIC: true}
	for _, i := range s.Explained {
		f := &findings[i]
		nics[f.Edge.Src], nics[f.Edge.Dst] = true, true
		v.Edges = append(v.Edges, f.Edge.String())
	}
	sort.Strings(v.Edges)
	v.Evidence = fabric.EvidenceCount{DegradedEdges: len(s.Explained), ExplainedEdges: len(s.Explained), ContraryEdges: s.Contrary}
	v.BlastRadius = fabric.BlastRadius{NICs: len(nics), Edges: len(s.Explained)}
	v.Summary = "The clock of " + s.NIC + " " + moved(s) + why(s)
	v.ID = ID(v.Kind, v.Element.Element, first)
	return v
}

// moved says what a clock did, in words that go on from its name.
func moved(s clocks.Suspect) string {
	switch {
	case s.Drifts && s.Rate != nil && *s.Rate < 0:
		return "runs about " + ppm(-*s.Rate) + " slower than before"
	case s.Drifts && s.Rate != nil:
		return "runs about " + ppm(*s.Rate) + " faster than before"
	case s.Drifts:
		return "runs at another rate than before"
	}
	verb := "moved"
	if s.Stepped {
		verb = "jumped"
	}
	if s.Offset == nil {
		return verb
	}
	by := *s.Offset
	way := "ahead"
	if by < 0 {
		by, way = -by, "back"
	}
	return verb + " by about " + Delay(rounded(by)) + ", " + way
}

// ppm writes a rate to two significant digits or the whole millionth.
func ppm(rate float64) string {
	if v := rate * 1e6; v < 10 {
		return fmt.Sprintf("%.2g ppm", v)
	}
	return fmt.Sprintf("%.0f ppm", rate*1e6)
}

// rounded is n to two significant digits: more of a clock's move is noise.
func rounded(n int64) int64 {
	unit := int64(1)
	for n/unit >= 100 {
		unit *= 10
	}
	return (n + unit/2) / unit * unit
}

// why says how a clock's move is known.
func why(s clocks.Suspect) string {
	counted := "its node counted it"
	if len(s.Explained) == 0 {
		return ": " + counted + "."
	}
	text := fmt.Sprintf(": %d flows with %d nodes moved by opposite amounts there and back, while their round trips stayed", len(s.Explained), s.Peers)
	if s.Counted {
		text += ", and " + counted
	}
	return text + "."
}

// Swap is two cables that are swapped: the links as the topology has them, and as
// they were found. Flows is how many flows showed it, LLDP whether neighbours did.
type Swap struct {
	Topology, Fabric [2]string
	Flows            int
	LLDP             bool
}

// Miscabled describes two cables that are swapped. The verdict names the first link
// of the topology; the other one is its equivalent, for the fault is theirs in common.
func Miscabled(g *fabric.Graph, s Swap, found time.Time) fabric.Verdict {
	v := fabric.Verdict{
		Element: fabric.Element{Element: s.Topology[0], Kind: fabric.KindLink}, Scenario: fabric.Miscabled, Severity: fabric.SeverityWarning,
		Equivalent: []fabric.Element{{Element: s.Topology[1], Kind: fabric.KindLink}}, Causes: []string{"two cables are swapped"}, Jobs: []string{}, FirstSeen: found,
		Action: "Swap the two cables back, or correct the topology file. Until then paths follow the cables as they are.",
	}
	v.Tier, v.Plane = place(g, s.Topology[0], fabric.KindLink)
	// Each flow that shows it could be one that was traced across a change.
	v.Confidence = math.Round(math.Min(1-math.Pow(0.5, float64(s.Flows)), 0.999)*1000) / 1000
	by := fmt.Sprintf("%d flows came in by ports that they would not", s.Flows)
	switch {
	case s.LLDP && s.Flows > 0:
		by += ", and LLDP says so"
	case s.LLDP:
		by, v.Confidence = "LLDP says so", 0.999
	}
	v.Evidence = fabric.EvidenceCount{ExplainedEdges: s.Flows}
	v.Summary = fmt.Sprintf("Two cables are swapped: the topology has %s and %s, the fabric has %s and %s: %s.", s.Topology[0], s.Topology[1], s.Fabric[0], s.Fabric[1], by)
	v.ID = ID(v.Kind, v.Element.Element, found)
	return v
}

// ID is a verdict's identifier: the same element and start give the same one
// on every replica.
func ID(kind fabric.Kind, element string, first time.Time) string {
	sum := sha256.Sum256([]byte(string(kind) + "\x00" + element + "\x00" + first.UTC().Format(time.RFC3339)))
	return hex.EncodeToString(sum[:6])
}

func scenario(g *fabric.Graph, s triangulate.Suspect) fabric.Scenario {
	if s.LossRatio >= hardLoss {
		return fabric.HardFailure
	}
	switch s.Kind {
	case fabric.KindNIC:
		return fabric.BadNIC
	case fabric.KindSwitch:
		if g.SwitchTier(s.Name) == 1 {
			return fabric.SlowLeaf
		}
		return fabric.HotSpine
	}
	return fabric.Corridor
}

// place is the tier and plane of an element: a link's is that of its upper switch.
func place(g *fabric.Graph, name string, kind fabric.Kind) (tier int, plane string) {
	switch kind {
	case fabric.KindNIC:
		if n := g.NIC(name); n != nil {
			plane = n.Plane
		}
		return 1, plane
	case fabric.KindSwitch:
		if sw := g.Switch(name); sw != nil {
			plane = sw.Plane
		}
		return g.SwitchTier(name), plane
	}
	a, b, _ := fabric.SplitLink(name)
	for _, end := range []string{a, b} {
		if sw := g.Switch(fabric.OwnerOf(end)); sw != nil {
			plane = sw.Plane
			tier = max(tier, g.SwitchTier(sw.Name))
		}
	}
	return tier, plane
}

// structural lists what no probe can ever tell from the element.
func structural(g *fabric.Graph, s triangulate.Suspect, findings []judge.Finding) []fabric.Element {
	switch s.Kind {
	case fabric.KindNIC:
		if l := g.LinkAt(s.Name); l != nil {
			return []fabric.Element{{Element: l.ID(), Kind: fabric.KindAccessLink}}
		}
	case fabric.KindLink:
		a, b, _ := fabric.SplitLink(s.Name)
		return []fabric.Element{{Element: a, Kind: fabric.KindPort}, {Element: b, Kind: fabric.KindPort}}
	case fabric.KindSwitch:
		if g.SwitchTier(s.Name) != 1 {
			return nil
		}
		for _, i := range s.Explained {
			if o := findings[i].Obs; len(o.Path) == 1 {
				return nil // local flows suffer too: it is not the uplinks
			}
		}
		return []fabric.Element{{Element: s.Name, Kind: fabric.KindLeafUplinks}}
	}
	return nil
}

func evidence(v *fabric.Verdict, s triangulate.Suspect, findings []judge.Finding) {
	owners := map[string]bool{}
	switch s.Kind {
	case fabric.KindLink:
		a, b, _ := fabric.SplitLink(s.Name)
		owners[fabric.OwnerOf(a)], owners[fabric.OwnerOf(b)] = true, true
	case fabric.KindNIC:
		// The parent of a NIC is its leaf: the first switch of its flows.
		for _, i := range s.Explained {
			f := &findings[i]
			if p := f.Obs.Path; len(p) > 0 {
				if src, _ := f.Edge.Ends(); src == s.Name {
					owners[p[0].Switch] = true
				} else {
					owners[p[len(p)-1].Switch] = true
				}
			}
		}
	}
	crossing := map[int]bool{}
	for _, l := range [][]int{s.Explained, s.Contrary} {
		for _, i := range l {
			crossing[i] = true
		}
	}
	nics := map[string]bool{}
	classes := map[string]bool{}
	for _, i := range s.Explained {
		f := &findings[i]
		src, dst := f.Edge.Ends()
		nics[src], nics[dst] = true, true
		classes[f.Obs.Class] = true
		v.Edges = append(v.Edges, f.Edge.String())
	}
	sort.Strings(v.Edges)
	if len(classes) == 1 {
		for c := range classes {
			v.Class = c
		}
	}
	healthy := 0
	for i := range findings {
		f := &findings[i]
		if f.Condition != judge.Healthy || crossing[i] {
			continue
		}
		for _, h := range f.Obs.Path {
			if owners[h.Switch] || s.Kind == fabric.KindSwitch {
				healthy++
				break
			}
		}
	}
	v.Evidence = fabric.EvidenceCount{DegradedEdges: len(s.Explained), ExplainedEdges: len(s.Explained), HealthyEdgesThroughParent: healthy, ContraryEdges: len(s.Contrary)}
	v.BlastRadius = fabric.BlastRadius{NICs: len(nics), Edges: len(s.Explained)}
}

func action(v *fabric.Verdict) string {
	switch v.Scenario {
	case fabric.HardFailure:
		switch v.Kind {
		case fabric.KindNIC:
			return "Drain the node from scheduling; check the NIC, its cable and the leaf port, then replace what is dead."
		case fabric.KindSwitch:
			return "Take the switch out of routing now; check its power, supervisor and forwarding table."
		}
		return "Take the link out of routing at both ends; check optics, cable and forwarding state, then replace."
	case fabric.BadNIC:
		return "Keep new jobs off this NIC; compare its optic, error and pause counters with its neighbours on the leaf; reseat or replace."
	case fabric.HotSpine, fabric.SlowLeaf:
		return "Look at the switch's queues, pause frames and control-plane load; shift traffic away from it if its counters confirm."
	}
	return "Look at both ports' queues, error and optic counters; cost the link out of ECMP if jobs are affected."
}

func summary(v *fabric.Verdict, s triangulate.Suspect) string {
	var what []string
	if v.Symptom.AddedDelayNS > 0 {
		what = append(what, "adds "+Delay(v.Symptom.AddedDelayNS)+" to")
	}
	if v.Symptom.LossRatio >= 0.995 {
		what = append(what, "loses all of")
	} else if v.Symptom.LossRatio > 0 {
		what = append(what, fmt.Sprintf("loses %.3g %% of", v.Symptom.LossRatio*100))
	}
	packets := "the packets that cross it in either direction"
	if s.OneWay() {
		packets = fmt.Sprintf("the packets from %s to %s", s.Direction.From, s.Direction.To)
		if v.Kind == fabric.KindNIC {
			packets = "the packets it sends"
			if s.Direction.To == v.Element.Element {
				packets = "the packets it receives"
			}
		}
	} else if v.Kind == fabric.KindSwitch {
		packets = "the packets it forwards"
	}
	noun := map[fabric.Kind]string{fabric.KindLink: "Link", fabric.KindNIC: "NIC", fabric.KindSwitch: "Switch"}[v.Kind]
	return fmt.Sprintf("%s %s %s %s. %d flows suffer and all of them cross it; %d flows close by that do not are clean, %d that do are clean too.",
		noun, v.Element.Element, strings.Join(what, " and "), packets, v.Evidence.DegradedEdges, v.Evidence.HealthyEdgesThroughParent, len(s.Contrary))
}

// Delay writes nanoseconds in the unit a person would choose.
func Delay(ns int64) string {
	switch {
	case ns >= 1e6 || ns <= -1e6:
		return fmt.Sprintf("%.3g ms", float64(ns)/1e6)
	case ns >= 1e3 || ns <= -1e3:
		return fmt.Sprintf("%.3g µs", float64(ns)/1e3)
	}
	return fmt.Sprintf("%d ns", ns)
}
