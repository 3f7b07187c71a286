package ibfabric

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/graylink/graylink/internal/ibmad"
)

// Bounds of what hostile files and fabrics may make a reader allocate: ports by number, of all nodes, and
// entries of all tables. The largest subnets have a third of either.
const (
	maxPorts   = 1 << 18
	maxEntries = 1 << 28
	maxLine    = 64 << 10 // octets
)

// TextError is an error in a file that a diagnostic wrote.
type TextError struct {
	File  string
	Line  int
	Field string
	Want  string // what was expected
	Got   string
}

func (e *TextError) Error() string {
	return fmt.Sprintf("%s:%d: %s: %s is expected, not %q", e.File, e.Line, e.Field, e.Want, e.Got)
}

// lines reads a text line by line.
type lines struct {
	file string
	n    int
	scan *bufio.Scanner
}

func newLines(file string, r io.Reader) *lines {
	scan := bufio.NewScanner(r)
	scan.Buffer(nil, maxLine)
	return &lines{file: file, scan: scan}
}

func (l *lines) nextLine() (string, bool) {
	if !l.scan.Scan() {
		return "", false
	}
	l.n++
	return strings.TrimRight(l.scan.Text(), " \t\r"), true
}

func (l *lines) errorAt(field, want, got string) error {
	return &TextError{File: l.file, Line: l.n, Field: field, Want: want, Got: got[:min(len(got), 80)]}
}

func (l *lines) scanError() error {
	if err := l.scan.Err(); err != nil {
		return fmt.Errorf("%s:%d: reading: %w", l.file, l.n+1, err)
	}
	return nil
}

// cursor reads a line from left to right. The first unexpected part ends it.
type cursor struct {
	l    *lines
	rest string
	err  error
}

func (c *cursor) failField(field, want string) {
	if c.err == nil {
		c.err = c.l.errorAt(field, want, c.rest)
	}
}

// expectText skips a required text.
func (c *cursor) expectText(text, field string) {
	rest, ok := strings.CutPrefix(c.rest, text)
	if !ok {
		c.failField(field, strconv.Quote(text))
		return
	}
	c.rest = rest
}

func (c *cursor) skipSpace() { c.rest = strings.TrimLeft(c.rest, " \t") }

// readNumber reads a number up to the first character that is not a digit.
func (c *cursor) readNumber(field string, base, bits int) uint64 {
	if base == 16 {
		c.rest = strings.TrimPrefix(c.rest, "0x")
	}
	n := 0
	for n < len(c.rest) && isDigit(c.rest[n], base) {
		n++
	}
	v, err := strconv.ParseUint(c.rest[:n], base, bits)
	if err != nil {
		c.failField(field, fmt.Sprintf("a number of %d bits, base %d", bits, base))
		return 0
	}
	c.rest = c.rest[n:]
	return v
}

func isDigit(b byte, base int) bool {
	return '0' <= b && b <= '9' || base == 16 && ('a' <= b && b <= 'f' || 'A' <= b && b <= 'F')
}

// readQuoted reads a description, which may contain quotes: it ends at the last quote that is followed by the
// given text.
func (c *cursor) readQuoted(field, follow string) string {
	c.expectText(`"`, field)
	i := strings.LastIndex(c.rest, `"`+follow)
	if i < 0 {
		c.failField(field, strconv.Quote(`"`+follow)+" after a name")
		return ""
	}
	text := c.rest[:i]
	c.rest = c.rest[i+1:]
	return text
}

// textNode represents a node and its cables as in the text.
type textNode struct {
	Node
	line  int
	links []textLink
}

type textLink struct {
	line    int
	port    uint8
	far     GUID
	farPort uint8
}

// ReadNetDiscover reads the output of ibnetdiscover (infiniband-diags). Errors name file. A cable counts if
// both ends list it alike; found lists those that differ, and other contradictions.
func ReadNetDiscover(file string, r io.Reader) (f *Fabric, found []string, err error) {
	l := newLines(file, r)
	var nodes []*textNode
	byGUID := map[GUID]*textNode{}
	head := map[string]uint64{}
	var at *textNode
	ports := 0
	for {
		line, ok := l.nextLine()
		if !ok {
			break
		}
		c := &cursor{l: l, rest: line}
		key, value, pair := strings.Cut(line, "=")
		switch {
		case line == "" || line[0] == '#' || strings.HasPrefix(line, "Chassis") || strings.HasPrefix(line, "Non-Chassis"):
		case line[0] == '[':
			if at == nil {
				return nil, nil, l.errorAt("port", "a line Switch, Ca or Rt before it", line)
			}
			had := len(at.Ports)
			c.readPort(at)
			ports += len(at.Ports) - had
			if ports > maxPorts {
				return nil, nil, l.errorAt("port", fmt.Sprintf("a fabric of no more than %d ports", maxPorts), line)
			}
		case pair && !strings.ContainsAny(key, " \t\""):
			c.rest = value
			head[key] = c.readNumber(key, 16, 64)
		default:
			at = c.readNode(head)
			if c.err != nil {
				break
			}
			if other := byGUID[at.GUID]; other != nil {
				return nil, nil, l.errorAt("GUID", fmt.Sprintf("one that line %d has not", other.line), at.GUID.String())
			}
			byGUID[at.GUID] = at
			nodes = append(nodes, at)
			clear(head)
		}
		if c.err != nil {
			return nil, nil, c.err
		}
	}
	if err := l.scanError(); err != nil {
		return nil, nil, err
	}
	if len(nodes) == 0 {
		return nil, nil, fmt.Errorf("%s:%d: no line begins with Switch, Ca or Rt: the output of ibnetdiscover is expected", file, l.n)
	}
	f, found = joinNodes(nodes)
	return f, found, nil
}

// nodeTypes maps the types of ibnetdiscover's lines to the letters in its node names.
var nodeTypes = map[string]struct {
	letter string
	t      ibmad.NodeType
}{"Switch": {"S-", ibmad.NodeSwitch}, "Ca": {"H-", ibmad.NodeHCA}, "Rt": {"R-", ibmad.NodeRouter}}

// readNode reads: Switch 36 "S-0002c90200423a40"  # "name" enhanced port 0 lid 5 lmc 0
func (c *cursor) readNode(head map[string]uint64) *textNode {
	word, rest, _ := strings.Cut(strings.ReplaceAll(c.rest, "\t", " "), " ")
	kind, ok := nodeTypes[word]
	if !ok {
		c.failField("line", "Switch, Ca, Rt, [port] or name=value")
		return nil
	}
	n := &textNode{line: c.l.n}
	n.Type = kind.t
	c.rest = strings.TrimLeft(rest, " ")
	c.readNumber("ports", 10, 8) // ports without a cable are not listed
	c.skipSpace()
	c.expectText(`"`, "GUID")
	c.expectText(kind.letter, "GUID")
	n.GUID = GUID(c.readNumber("GUID", 16, 64))
	c.expectText(`"`, "GUID")
	c.skipSpace()
	c.expectText("#", "description")
	c.skipSpace()
	n.System, n.Vendor, n.Device = GUID(head["sysimgguid"]), uint32(head["vendid"]), uint16(head["devid"])
	if n.Type != ibmad.NodeSwitch {
		c.expectText(`"`, "description")
		n.Description = strings.TrimSuffix(c.rest, `"`)
		return n
	}
	c.rest = strings.Replace(c.rest, `" enhanced port 0`, `" base port 0`, 1)
	n.Enhanced = strings.Contains(rest, `" enhanced port 0`)
	n.Description = c.readQuoted("description", " base port 0 lid ")
	c.expectText(" base port 0 lid ", "lid")
	n.Ports = []Port{{GUID: n.GUID}}
	n.Ports[0].LID = c.readLID()
	c.expectText(" lmc ", "lmc")
	n.Ports[0].LMC = c.readLMC()
	return n
}

func (c *cursor) readLID() LID {
	l := LID(c.readNumber("lid", 10, 16))
	if l > MaxLID {
		c.failField("lid", fmt.Sprintf("0 to %d", MaxLID))
	}
	return l
}

func (c *cursor) readLMC() uint8 {
	n := uint8(c.readNumber("lmc", 10, 8))
	if n > 7 {
		c.failField("lmc", "0 to 7")
	}
	return n
}

// readPort reads the line of a CA's port, or of a switch's:
//
//	[1](2c903000e0b73) "S-0002c90200423a40"[17]  # lid 4 lmc 0 "name" lid 5 4xQDR
//	[17] "H-..."[1](2c903000e0b73)  # "name" lid 4 4xQDR
func (c *cursor) readPort(n *textNode) {
	l := textLink{line: c.l.n}
	c.expectText("[", "port")
	l.port = uint8(c.readNumber("port", 10, 8))
	c.expectText("]", "port")
	if l.port == 0 || l.port == 255 {
		c.failField("port", "1 to 254")
	}
	c.skipExternal()
	var p Port
	p.GUID = c.readGUID()
	c.skipSpace()
	c.expectText(`"`, "far node")
	if len(c.rest) < 2 || c.rest[1] != '-' {
		c.failField("far node", "S-, H- or R- and a GUID")
		return
	}
	c.rest = c.rest[2:]
	l.far = GUID(c.readNumber("far node", 16, 64))
	c.expectText(`"`, "far node")
	c.expectText("[", "far port")
	l.farPort = uint8(c.readNumber("far port", 10, 8))
	c.expectText("]", "far port")
	c.skipExternal()
	c.readGUID()
	c.skipSpace()
	c.expectText("#", "far description")
	c.skipSpace()
	if n.Type != ibmad.NodeSwitch {
		c.expectText("lid ", "lid")
		p.LID = c.readLID()
		c.expectText(" lmc ", "lmc")
		p.LMC = c.readLMC()
		c.skipSpace()
	}
	c.readQuoted("far description", " lid ")
	c.expectText(" lid ", "far lid")
	c.readLID()
	c.skipSpace()
	p.Width, p.Speed = c.readRate()
	if c.err != nil {
		return
	}
	for len(n.Ports) <= int(l.port) {
		n.Ports = append(n.Ports, Port{})
	}
	if n.Ports[l.port].State != 0 {
		c.failField("port", fmt.Sprintf("a port other than %d, which has a line before", l.port))
		return
	}
	p.State = ibmad.PortActive // ibnetdiscover does not print it: a cable with a peer that answers
	n.Ports[l.port] = p
	n.links = append(n.links, l)
}

// skipExternal skips the port number that is printed on a chassis.
func (c *cursor) skipExternal() {
	if strings.HasPrefix(c.rest, "[ext") {
		if i := strings.IndexByte(c.rest, ']'); i >= 0 {
			c.rest = c.rest[i+1:]
		}
	}
}

func (c *cursor) readGUID() GUID {
	if !strings.HasPrefix(c.rest, "(") {
		return 0
	}
	c.expectText("(", "port GUID")
	g := GUID(c.readNumber("port GUID", 16, 64))
	c.expectText(")", "port GUID")
	return g
}

// readRate reads width and speed, which are 0 if unknown.
func (c *cursor) readRate() (width uint8, speed Speed) {
	text, _, _ := strings.Cut(c.rest, " ")
	w, s, ok := strings.Cut(text, "x")
	n, err := strconv.ParseUint(w, 10, 8)
	if !ok || err != nil {
		return 0, 0
	}
	for i := range speeds {
		if i > 0 && speeds[i].name == s {
			return uint8(n), Speed(i)
		}
	}
	return uint8(n), 0
}

// joinNodes returns the fabric of nodes with lists of their cables.
func joinNodes(nodes []*textNode) (f *Fabric, found []string) {
	f = &Fabric{}
	index := map[GUID]int32{}
	for i, n := range nodes {
		index[n.GUID] = int32(i)
		f.Nodes = append(f.Nodes, n.Node)
	}
	said := map[[2]End]bool{}
	far := func(i int, l textLink) (End, bool) {
		j, ok := index[l.far]
		return End{j, l.farPort}, ok
	}
	for i, n := range nodes {
		for _, l := range n.links {
			if e, ok := far(i, l); ok {
				said[[2]End{{int32(i), l.port}, e}] = true
			}
		}
	}
	for i, n := range nodes {
		for _, l := range n.links {
			near := End{int32(i), l.port}
			e, ok := far(i, l)
			if !ok || !said[[2]End{e, near}] {
				found = append(found, fmt.Sprintf("line %d: port %d of %s: the far end, port %d of %s, does not list this cable: it is left out", l.line, l.port, n.GUID, l.farPort, l.far))
				continue
			}
			p := &f.Nodes[i].Ports[l.port]
			p.Far, p.Linked = e, true
		}
	}
	return f, append(found, f.buildIndex()...)
}

// ReadLFTs reads the output of dump_lfts or ibroute, or OpenSM's own dump, for the switches of the fabric.
// Switches that the text does not have keep their tables. found lists tables of switches that the fabric does
// not have.
func (f *Fabric) ReadLFTs(file string, r io.Reader) (with *Fabric, found []string, err error) {
	l := newLines(file, r)
	lfts := make([][]uint8, f.Switches)
	copy(lfts, f.LFTs)
	read := map[int32]bool{}
	at, entries, tables := int32(-1), 0, 0
	for {
		line, ok := l.nextLine()
		if !ok {
			break
		}
		c := &cursor{l: l, rest: line}
		switch {
		case strings.HasPrefix(line, "Unicast lids "):
			g := c.readTable()
			e, known := f.ByGUID(g)
			tables++
			switch {
			case c.err != nil:
			case !known || int(e.Node) >= f.Switches:
				found = append(found, fmt.Sprintf("line %d: the fabric has no switch %s: its table is left out", l.n, g))
				at = -1
			case read[e.Node]:
				return nil, nil, l.errorAt("switch", "one whose table was not read before", line)
			default:
				at = e.Node
				read[at] = true
				lfts[at] = []uint8{}
			}
		case strings.HasPrefix(line, "0x"):
			if tables == 0 {
				return nil, nil, l.errorAt("entry", "a line of Unicast lids before it", line)
			}
			lid, port, to := c.readEntry()
			if c.err != nil || at < 0 || !to {
				break
			}
			t := lfts[at]
			if int(lid) < len(t) && t[lid] != ibmad.NoRoute {
				return nil, nil, l.errorAt("lid", "a LID without a line before", line)
			}
			if grow := int(lid) + 1 - len(t); grow > 0 {
				if entries += grow; entries > maxEntries {
					return nil, nil, l.errorAt("lid", fmt.Sprintf("no more than %d entries in all", maxEntries), line)
				}
				t = append(t, slices.Repeat([]uint8{ibmad.NoRoute}, grow)...)
			}
			t[lid] = port
			lfts[at] = t
		}
		if c.err != nil {
			return nil, nil, c.err
		}
	}
	if err := l.scanError(); err != nil {
		return nil, nil, err
	}
	if tables == 0 {
		return nil, nil, fmt.Errorf("%s:%d: no line begins with Unicast lids: the output of dump_lfts is expected", file, l.n)
	}
	return f.WithTables(lfts), found, nil
}

// readTable reads: Unicast lids [0x0-0x2be] of switch Lid 2 guid 0x0002c90200423a40 (name):
func (c *cursor) readTable() GUID {
	i := strings.Index(c.rest, " guid ")
	if i < 0 {
		c.failField("switch", "its GUID, guid 0x...")
		return 0
	}
	c.rest = c.rest[i+len(" guid "):]
	return GUID(c.readNumber("GUID", 16, 64))
}

// readEntry reads: 0x0004 021 : (Channel Adapter portguid 0x...: 'h128')
// It returns false for a LID that the switch does not forward.
func (c *cursor) readEntry() (l LID, port uint8, to bool) {
	l = LID(c.readNumber("lid", 16, 16))
	if l > MaxLID {
		c.failField("lid", fmt.Sprintf("0x1 to %#x", uint16(MaxLID)))
	}
	c.skipSpace()
	if strings.HasPrefix(c.rest, "UNREACHABLE") {
		return l, 0, false
	}
	port = uint8(c.readNumber("port", 10, 8))
	return l, port, l != 0 && port != ibmad.NoRoute
}
