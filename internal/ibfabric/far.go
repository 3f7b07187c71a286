package ibfabric

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/graylink/graylink/internal/ibmad"
)

// maxGroups bounds the groups of a switch. NVIDIA's have less than 4,096.
const maxGroups = 1 << 14

// ReadAdaptive reads ibdiagnet2.far, in which ibdiagnet of ibutils2 lists the groups of ports that switches with adaptive
// routing choose from. Of each switch it has groups, their ports, and the group of each LID whose state is not Static:
//
//	Switch 0x0002c90200423a40 ...
//	Groups Definition:
//	Group   Sub Group  WHBF  Ports
//	------------------------------
//	0       0          0     1,2,3,
//	LFT Definition:
//	PLFT_NUM: 0, top: 0x2be
//	LID     Static Port  Lid State  Group
//	-------------------------------------
//	0x0004  21           Free       0
//
// The file does not say for which service levels a switch chooses, so it may for all. A table other than 0 is private: it holds
// for some ports and service levels, which the file does not list, and no path across the switch is known. found lists such
// switches, those that the fabric does not have, and those with another static port than that of the forwarding table, whose
// groups are stale.
func (f *Fabric) ReadAdaptive(file string, r io.Reader) (with *Fabric, found []string, err error) {
	p := &farReader{f: f, l: newLines(file, r), out: make([]*Adaptive, f.Switches), differs: map[int32]bool{}}
	copy(p.out, f.Adaptive)
	for {
		line, ok := p.l.nextLine()
		if !ok {
			break
		}
		if err := p.readLine(line); err != nil {
			return nil, nil, err
		}
	}
	if err := p.l.scanError(); err != nil {
		return nil, nil, err
	}
	if !p.begun {
		return nil, nil, fmt.Errorf("%s:%d: no line begins with Switch: ibdiagnet2.far is expected", file, p.l.n)
	}
	g := *f
	g.Adaptive = p.out
	return &g, p.found, nil
}

// farReader reads ibdiagnet2.far.
type farReader struct {
	f       *Fabric
	l       *lines
	out     []*Adaptive
	found   []string
	begun   bool
	at      int32      // the switch, or -1 for one that the fabric does not have
	section farSection // of the switch
	groups  map[int]int
	differs map[int32]bool
	entries int
}

// farSection is a part of what a file has of a switch.
type farSection int

const (
	farHead farSection = iota
	farGroups
	farTable
	farPrivate
)

// readLine reads a line. Headings, rulers and comments are skipped.
func (p *farReader) readLine(line string) error {
	line = strings.TrimSpace(line)
	word, _, _ := strings.Cut(line, " ")
	switch {
	case word == "Switch":
		return p.readSwitch(strings.TrimSpace(line[len(word):]))
	case !p.begun:
		return nil
	case strings.HasPrefix(line, "Groups Definition:"):
		p.section = farGroups
		return nil
	case strings.HasPrefix(line, "LFT Definition:"), strings.HasPrefix(line, "PLFT_NUM:"):
		p.section = max(p.section, farTable)
		return p.readTableNumber(line)
	case line == "" || line[0] < '0' || line[0] > '9' || p.at < 0:
		return nil
	case p.section == farGroups:
		return p.readGroup(strings.Fields(line))
	case p.section == farTable:
		return p.readState(strings.Fields(line))
	}
	return nil
}

func (p *farReader) readSwitch(text string) error {
	c := &cursor{l: p.l, rest: text}
	guid := GUID(c.readNumber("Switch", 16, 64))
	if c.err != nil {
		return c.err
	}
	p.begun, p.section, p.groups = true, farHead, map[int]int{}
	e, known := p.f.ByGUID(guid)
	if !known || int(e.Node) >= p.f.Switches {
		p.at = -1
		p.found = append(p.found, fmt.Sprintf("line %d: the fabric has no switch %s: its groups are left out", p.l.n, guid))
		return nil
	}
	if p.at = e.Node; p.out[p.at] != nil {
		return p.l.errorAt("Switch", "one whose groups were not read before", text)
	}
	p.out[p.at] = &Adaptive{SLs: 0xffff}
	return nil
}

// readTableNumber reads the number of the table whose entries follow, if the line has it.
func (p *farReader) readTableNumber(line string) error {
	_, text, ok := strings.Cut(line, "PLFT_NUM:")
	if !ok {
		return nil
	}
	c := &cursor{l: p.l, rest: strings.TrimSpace(text)}
	number := c.readNumber("PLFT_NUM", 10, 8)
	if c.err != nil {
		return c.err
	}
	p.section = farTable
	if number == 0 {
		return nil
	}
	p.section = farPrivate
	if p.at >= 0 && !p.out[p.at].Private {
		p.out[p.at].Private = true
		p.found = append(p.found, fmt.Sprintf("line %d: %s has private forwarding tables, which are not supported: no path across it is known", p.l.n, p.f.NodeName(p.at)))
	}
	return nil
}

// readGroup reads the number of a group, of a part of it, a mark, and ports, of which there may be none.
func (p *farReader) readGroup(fields []string) error {
	number, err := strconv.ParseUint(fields[0], 10, 16)
	if err != nil || number >= maxGroups {
		return p.l.errorAt("Group", fmt.Sprintf("a number below %d", maxGroups), fields[0])
	}
	if len(fields) < 3 {
		return p.l.errorAt("Ports", "a group, a sub group, WHBF and ports", strings.Join(fields, " "))
	}
	a := p.out[p.at]
	place, known := p.groups[int(number)]
	if !known {
		place = len(a.groups)
		a.groups = append(a.groups, nil)
		p.groups[int(number)] = place
	}
	ports := a.groups[place]
	for text := range strings.SplitSeq(strings.Join(fields[3:], ""), ",") {
		if text == "" {
			continue
		}
		port, err := strconv.ParseUint(text, 10, 8)
		if err != nil || port == 0 || port == ibmad.NoRoute {
			return p.l.errorAt("Ports", "a port, 1 to 254", text)
		}
		if !slices.Contains(ports, uint8(port)) {
			ports = append(ports, uint8(port))
		}
	}
	slices.Sort(ports)
	a.groups[place] = ports
	return nil
}

// readState reads a LID, its port in the forwarding table, how its packets are forwarded, and its group.
func (p *farReader) readState(fields []string) error {
	if len(fields) != 4 {
		return p.l.errorAt("LID", "a LID, a port, a state and a group", strings.Join(fields, " "))
	}
	lid, err := strconv.ParseUint(fields[0], 0, 16)
	if err != nil || LID(lid) > MaxLID {
		return p.l.errorAt("LID", fmt.Sprintf("0x0 to %#x", uint16(MaxLID)), fields[0])
	}
	port, err := strconv.ParseUint(fields[1], 10, 8)
	if err != nil {
		return p.l.errorAt("Static Port", "0 to 255", fields[1])
	}
	p.compareStatic(LID(lid), uint8(port))
	switch fields[2] {
	case "Static":
		return nil
	case "Free", "Bounded", "HBF":
	default:
		return p.l.errorAt("Lid State", "Static, Free, Bounded or HBF", fields[2])
	}
	number, err := strconv.Atoi(fields[3])
	place, known := p.groups[number]
	if err != nil || !known {
		return p.l.errorAt("Group", "a group that is defined above", fields[3])
	}
	a := p.out[p.at]
	if grow := int(lid) + 1 - len(a.group); grow > 0 {
		if p.entries += grow; p.entries > maxEntries {
			return p.l.errorAt("LID", fmt.Sprintf("no more than %d entries in all", maxEntries), fields[0])
		}
	}
	a.setGroup(LID(lid), place)
	return nil
}

// compareStatic notes once per switch that a port is another than that of the forwarding table: the two were read at different times.
func (p *farReader) compareStatic(lid LID, port uint8) {
	if int(p.at) >= len(p.f.LFTs) || p.f.LFTs[p.at] == nil || p.differs[p.at] {
		return
	}
	table := uint8(ibmad.NoRoute)
	if lft := p.f.LFTs[p.at]; int(lid) < len(lft) {
		table = lft[lid]
	}
	if table != port {
		p.differs[p.at], p.out[p.at].Stale = true, true
		p.found = append(p.found, fmt.Sprintf("line %d: port %d is that of LID %d, and port %d by the forwarding table of %s: no path across it is known", p.l.n, port, lid, table, p.f.NodeName(p.at)))
	}
}
