package audit

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
)

// Overhead of RoCE v2 packets in octets. The kernel leaves room for the largest headers of all when it derives the active MTU of a
// device from that of its interface (Linux 6.12, include/rdma/ib_addr.h, iboe_get_mtu): GRH, UDP, BTH, XRCETH, AtomicETH and ICRC.
// The headers of a packet with a full payload are at most IPv4 (20) or IPv6 (40), UDP (8), BTH (12), RETH (16), immediate data (4)
// and ICRC (4): RDMA WRITE with immediate.
const (
	reservedHeaders = 40 + 8 + 12 + 4 + 28 + 4
	packetHeaders   = 20 + 8 + 12 + 16 + 4 + 4
)

// roceMTUs are the active MTUs that InfiniBand has, in octets of payload: IBTA 3.5.
var roceMTUs = []int{256, 512, 1024, 2048, 4096}

// ActiveMTU returns the active MTU of RoCE on an interface with an MTU, as Linux derives it, or 0 if there is none.
func ActiveMTU(interfaceMTU int) (active int) {
	for _, m := range roceMTUs {
		if interfaceMTU-reservedHeaders >= m {
			active = m
		}
	}
	return active
}

// PacketLength returns the length of an IPv4 packet of RoCE whose payload is as long as the active MTU.
func PacketLength(activeMTU int) int { return activeMTU + packetHeaders }

// CommonMTU returns the active MTU that RoCE has to have: the planned one, or without a plan the one that most NICs have. It returns
// 0 if neither is known.
func CommonMTU(planned int, interfaces map[string]int) (active int) {
	if planned > 0 {
		return planned
	}
	count := map[int]int{}
	for _, mtu := range interfaces {
		if m := ActiveMTU(mtu); m > 0 {
			count[m]++
		}
	}
	for _, m := range roceMTUs {
		if count[m] > 0 && count[m] >= count[active] {
			active = m
		}
	}
	return active
}

// PathMTUEvidence is what packets as long as those of RoCE showed.
type PathMTUEvidence struct {
	// Active is the active MTU of RoCE that paths have to take, and Octets the length of packets with it. Both are 0 if it is not known.
	Active, Octets int
	// Interfaces are the MTUs of the NICs' interfaces that are known.
	Interfaces map[string]int
	Tests      []fabric.PathMTU
}

// flowsPerDirection is the number of flows of each class that test a link direction.
const flowsPerDirection = 2

// MaxTestPackets returns the largest number of packets that the test of a path with a number of switches sends.
func MaxTestPackets(switches int) int { return 9 + 8*switches }

// PlanPathTests returns the flows whose paths are tested, and the number of switches on the longest of them: for every class and link
// direction two flows that cross it, if there are. Flows of NICs whose interfaces do not take the packets are left out.
func PlanPathTests(e *Evidence, s Scope) (flows []fabric.Flow, switches int) {
	type place struct {
		class string
		d     fabric.Direction
	}
	tested, planned := map[place]int{}, map[fabric.Flow]bool{}
	short := func(nic string) bool {
		mtu := e.PathMTU.Interfaces[nic]
		return mtu > 0 && ActiveMTU(mtu) < e.PathMTU.Active
	}
	for i := range e.Flows {
		f := &e.Flows[i]
		if f.Flow.Reply || len(f.Path) == 0 || short(f.Src) || short(f.Dst) || planned[f.Flow] {
			continue
		}
		crosses := f.Path.LinkDirections(f.Src, f.Dst)
		wanted := func(d fabric.Direction) bool {
			return s.hasLink(d.LinkID()) && tested[place{f.Class, d}] < flowsPerDirection
		}
		if !slices.ContainsFunc(crosses, wanted) {
			continue
		}
		for _, d := range crosses {
			tested[place{f.Class, d}]++
		}
		planned[f.Flow], switches = true, max(switches, len(f.Path))
		flows = append(flows, f.Flow)
	}
	return flows, switches
}

// mtuSubject is a path that drops long packets, and the directions of links that may do so.
type mtuSubject struct {
	class    string
	test     *fabric.PathMTU
	suspects []int32
}

// mtuStudy sums up the tests of paths.
type mtuStudy struct {
	*study
	records map[fabric.Flow]int       // places of the flow records with a known path, or severalPaths
	good    map[string]map[int32]bool // directions that long packets crossed, by class
	failed  []mtuSubject
	sent    int
	unknown map[string]int // tests without a result, by the reason
}

// severalPaths stands for the place of a flow that had several known paths during the audit. What its packets cross now is not known.
const severalPaths = -1

// newMTUStudy sorts the tests. A direction that a long packet crossed is good.
func newMTUStudy(st *study) *mtuStudy {
	m := &mtuStudy{study: st, records: map[fabric.Flow]int{}, good: map[string]map[int32]bool{}, unknown: map[string]int{}}
	for i := range st.e.Flows {
		f := &st.e.Flows[i]
		at, known := m.records[f.Flow]
		switch {
		case f.Confirmed == 0 || m.isMiswired(i):
		case !known:
			m.records[f.Flow] = i
		case at != severalPaths && st.e.Flows[at].Path.CanonicalKey() != f.Path.CanonicalKey():
			m.records[f.Flow] = severalPaths
		}
	}
	for i := range st.e.PathMTU.Tests {
		m.addTest(&st.e.PathMTU.Tests[i])
	}
	for i := range m.failed {
		s := &m.failed[i]
		s.suspects = slices.DeleteFunc(s.suspects, func(d int32) bool { return m.good[s.class][d] })
		if len(s.suspects) == 0 {
			m.unknown["other packets crossed every link at which it could have been dropped"]++
		}
	}
	return m
}

// isMiswired reports whether the path of a record has a link that check A2 did not find where it is planned. The flow had this path
// before that was known, and has another one.
func (m *mtuStudy) isMiswired(record int) bool {
	return slices.ContainsFunc(m.crosses[record], func(d int32) bool { return m.miswired[m.directions[d].LinkID()] })
}

func (m *mtuStudy) addTest(t *fabric.PathMTU) {
	m.sent += t.Sent
	flow, err := fabric.ParseFlow(t.Edge)
	at, known := m.records[flow]
	switch {
	case t.State == fabric.PathMTUUnknown:
		m.unknown[t.Reason]++
		return
	case err != nil || !known:
		m.unknown["its path is not known"]++
		return
	case at == severalPaths:
		m.unknown["the path of the flow changed during the audit"]++
		return
	case !m.crossesSwitches(m.e.Flows[at].Path, t.Hops):
		m.unknown["the flow had another path than before"]++
		return
	}
	class, crosses := m.e.Flows[at].Class, m.crosses[at]
	if m.good[class] == nil {
		m.good[class] = map[int32]bool{}
	}
	var back []int32
	flow.Reply = true
	if r, known := m.records[flow]; known && r != severalPaths {
		back = m.crosses[r]
	}
	if t.State == fabric.PathMTUPasses {
		for _, d := range slices.Concat(crosses, back) {
			m.good[class][d] = true
		}
		return
	}
	if len(t.Hops) != len(m.e.Flows[at].Path) || t.Dropped < 1 || t.Dropped > len(crosses) || t.Passed >= t.Dropped {
		m.unknown["the trace and the path of the flow have different lengths"]++
		return
	}
	for _, d := range crosses[:t.Passed] {
		m.good[class][d] = true
	}
	s := mtuSubject{class, t, slices.Clone(crosses[t.Passed:t.Dropped])}
	if t.Dropped == len(crosses) && t.NextMTU == 0 && len(t.Hops) > 0 {
		if len(back) == 0 {
			m.unknown["the answer may have been dropped, and its path is not known"]++
			return
		}
		s.suspects = append(s.suspects, back...)
	}
	m.failed = append(m.failed, s)
}

// crossesSwitches reports whether the switches that answered a test are those of a path, as far as their addresses are planned.
func (m *mtuStudy) crossesSwitches(path fabric.Path, hops []netip.Addr) bool {
	if len(hops) != len(path) {
		return true // which is judged with the result
	}
	for i, a := range hops {
		if end := m.e.Graph.EndOf(a); end != "" && fabric.OwnerOf(end) != path[i].Switch {
			return false
		}
	}
	return true
}

// mtuCulprit is a direction that explains why paths drop long packets.
type mtuCulprit struct {
	flows      int
	nextMTU    int
	classes    []string
	equivalent []int32
}

// explainDrops returns the directions that explain the paths which drop long packets: the one that most of them cross first.
func (m *mtuStudy) explainDrops() map[int32]*mtuCulprit {
	out := map[int32]*mtuCulprit{}
	left := slices.DeleteFunc(slices.Clone(m.failed), func(s mtuSubject) bool { return len(s.suspects) == 0 })
	for len(left) > 0 {
		count := map[int32]int{}
		for _, s := range left {
			for _, d := range s.suspects {
				count[d]++
			}
		}
		all := slices.Sorted(maps.Keys(count))
		best := slices.MaxFunc(all, func(a, b int32) int { return count[a] - count[b] })
		c := &mtuCulprit{flows: count[best]}
		for _, d := range all {
			same := !slices.ContainsFunc(left, func(s mtuSubject) bool { return slices.Contains(s.suspects, d) != slices.Contains(s.suspects, best) })
			if d != best && same {
				c.equivalent = append(c.equivalent, d)
			}
		}
		rest := left[:0:0]
		for _, s := range left {
			if !slices.Contains(s.suspects, best) {
				rest = append(rest, s)
				continue
			}
			if !slices.Contains(c.classes, s.class) {
				c.classes = append(c.classes, s.class)
			}
			if s.test.NextMTU > 0 {
				c.nextMTU = s.test.NextMTU
			}
		}
		slices.Sort(c.classes)
		left, out[best] = rest, c
	}
	return out
}

// checkPathMTU makes the check A9-mtu: whether paths take packets as long as those of RoCE, in every class.
func checkPathMTU(st *study) Check {
	none := 0.0
	c := Check{ID: "A9-mtu", Title: "MTU of paths", Status: Pass, Unit: "links that drop packets", Bound: &none, Of: "link directions"}
	if st.e.PathMTU == nil || st.e.PathMTU.Active == 0 {
		return c
	}
	st.checkInterfaces(&c)
	m := newMTUStudy(st)
	culprits := m.explainDrops()
	untested := 0
	for d := range int32(st.planned) {
		if !st.inScope(d) {
			continue
		}
		x := culprits[d]
		switch {
		case x != nil:
			c.Population++
			i := st.newItem(d, Fail)
			i.Population, i.Equivalent = x.flows, st.linkIDs(x.equivalent)
			i.Text = fmt.Sprintf("Packets of %d octets do not pass, and short ones do.", st.e.PathMTU.Octets)
			if x.nextMTU > 0 {
				i.Text += fmt.Sprintf(" Its switch reports an MTU of %d octets.", x.nextMTU)
			}
			if len(x.classes) < len(m.good) {
				i.Class = strings.Join(x.classes, ", ")
			}
			c.addItem(i)
		case m.isGood(d):
			c.Population++
		default:
			untested++
		}
	}
	if len(st.e.PathMTU.Tests) == 0 && len(c.Items) == 0 {
		return c
	}
	c.noteValue(float64(len(culprits)))
	c.Text = fmt.Sprintf("%d paths were tested by packets of %d octets (RoCE's MTU of %d octets and headers): %d packets, short ones included, and as many answers at most.",
		len(st.e.PathMTU.Tests), st.e.PathMTU.Octets, st.e.PathMTU.Active, m.sent)
	if untested > 0 {
		c.addItem(Item{Element: "link directions without a result", Kind: "links", Status: Unknown, Population: untested, Text: fmt.Sprintf("%d link directions have none.%s", untested, m.reasons())})
	}
	return c
}

// isGood reports whether long packets of every class that was tested crossed a direction.
func (m *mtuStudy) isGood(d int32) bool {
	for class := range m.good {
		if !m.good[class][d] {
			return false
		}
	}
	return len(m.good) > 0
}

// reasons says why tests have no result, the most frequent reason first.
func (m *mtuStudy) reasons() string {
	all := slices.SortedFunc(maps.Keys(m.unknown), func(a, b string) int {
		if n := m.unknown[b] - m.unknown[a]; n != 0 {
			return n
		}
		return strings.Compare(a, b)
	})
	if len(all) == 0 {
		return ""
	}
	sum := 0
	for _, n := range m.unknown {
		sum += n
	}
	return fmt.Sprintf(" %d tests had no result, %d of them since %s.", sum, m.unknown[all[0]], all[0])
}

// checkInterfaces adds the links of NICs whose interfaces give RoCE another MTU than it has to have.
func (st *study) checkInterfaces(c *Check) {
	for _, nic := range slices.Sorted(maps.Keys(st.e.PathMTU.Interfaces)) {
		peer := st.e.Graph.PeerOf(nic)
		if peer == "" || !st.hasPort(nic) {
			continue
		}
		mtu, id := st.e.PathMTU.Interfaces[nic], fabric.LinkID(nic, peer)
		i := Item{Element: id, Kind: kindOf(st.e.Graph, id), Population: 1}
		switch active := ActiveMTU(mtu); {
		case active < st.e.PathMTU.Active:
			i.Status, i.Text = Fail, fmt.Sprintf("The interface of %s has an MTU of %d octets, which leaves %d for RoCE; %d are expected.", nic, mtu, active, st.e.PathMTU.Active)
		case active > st.e.PathMTU.Active && st.c.Ports.RoCEMTU == 0:
			i.Status, i.Text = Warn, fmt.Sprintf("The interface of %s has an MTU of %d octets, with which RoCE uses %d; most have %d.", nic, mtu, active, st.e.PathMTU.Active)
		default:
			continue
		}
		c.addItem(i)
	}
}
