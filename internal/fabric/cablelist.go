package fabric

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A cable list is a table of cables, as spreadsheets and inventories export it (RFC 4180): one cable a row, and a header
// that names the columns. The columns are those of docs/topology.md; upper case, blanks and underscores do not matter.

// MaxCableList is the largest number of cables of a list.
const MaxCableList = 1 << 20

// cableColumns are the columns of a cable list, by their names without blanks and underscores. The names of NetBox's
// export of cables are among them.
var cableColumns = map[string]string{
	"adevice": "a_device", "devicea": "a_device", "terminationadevice": "a_device", "aport": "a_port", "porta": "a_port", "terminationa": "a_port",
	"bdevice": "b_device", "deviceb": "b_device", "terminationbdevice": "b_device", "bport": "b_port", "portb": "b_port", "terminationb": "b_port",
	"arole": "a_role", "brole": "b_role", "aplane": "a_plane", "bplane": "b_plane", "plane": "plane", "apod": "a_pod", "bpod": "b_pod", "pod": "pod",
	"agroup": "a_group", "bgroup": "b_group", "group": "group",
	"arail": "a_rail", "brail": "b_rail", "rail": "rail", "speedgbps": "speed_gbps", "lag": "lag", "aaddress": "a_address", "baddress": "b_address",
}

// cableList is a list that is being read.
type cableList struct {
	name     string
	patterns []string // of switches
	columns  map[string]int
	problems Problems
	switches map[string]*Switch
	nodes    map[string]*Node
	order    []string // of nodes
	plugged  map[string]int
	links    []Link
}

// ReadCableList makes a topology from a list of cables. A device is a switch if its role is leaf, spine or core, or, where
// the list has no roles, if its name matches one of the shell patterns; their roles then follow from the distance to the
// NICs. What cannot be used is a problem with its line, and the rest is used. The error is that of a list that cannot be
// read at all.
func ReadCableList(name string, r io.Reader, patterns []string) (*Topology, Problems, error) {
	for _, p := range patterns {
		if _, err := path.Match(p, ""); err != nil {
			return nil, nil, fmt.Errorf("pattern %q: %w", p, err)
		}
	}
	rows := csv.NewReader(r)
	rows.Comment, rows.TrimLeadingSpace, rows.ReuseRecord = '#', true, true
	l := &cableList{name: name, patterns: patterns, columns: map[string]int{}, switches: map[string]*Switch{}, nodes: map[string]*Node{}, plugged: map[string]int{}}
	header, err := rows.Read()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: no header with the names of columns: %w", name, err)
	}
	if err := l.readHeader(header); err != nil {
		return nil, nil, fmt.Errorf("%s:1: %w", name, err)
	}
	for {
		row, err := rows.Read()
		line := 0
		if len(row) > 0 {
			line, _ = rows.FieldPos(0)
		}
		switch {
		case errors.Is(err, io.EOF):
			return l.topology(), l.problems, nil
		case errors.Is(err, csv.ErrFieldCount):
			l.add(line, "", false, "%d fields, and the header has %d", len(row), len(header))
			continue
		case err != nil:
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		case len(l.links) == MaxCableList:
			return nil, nil, fmt.Errorf("%s:%d: more than %d cables", name, line, MaxCableList)
		}
		l.readRow(line, row)
	}
}

func (l *cableList) add(line int, field string, warning bool, format string, args ...any) {
	l.problems = append(l.problems, Problem{File: l.name, Line: line, Field: field, Message: fmt.Sprintf(format, args...), Warning: warning})
}

// readHeader finds the columns. Unknown ones are left alone.
func (l *cableList) readHeader(header []string) error {
	for i, text := range header {
		key := strings.NewReplacer(" ", "", "_", "", "\ufeff", "").Replace(strings.ToLower(text))
		column, known := cableColumns[key]
		if !known {
			continue
		}
		if _, twice := l.columns[column]; twice {
			return fmt.Errorf("two columns are %s", column)
		}
		l.columns[column] = i
	}
	for _, column := range []string{"a_device", "a_port", "b_device", "b_port"} {
		if _, ok := l.columns[column]; !ok {
			return fmt.Errorf("no column %s; the header has %q", column, header)
		}
	}
	_, a := l.columns["a_role"]
	if _, b := l.columns["b_role"]; (!a || !b) && len(l.patterns) == 0 {
		return errors.New("no columns a_role and b_role, and no pattern of switches: what is a switch is not known")
	}
	return nil
}

// valueOf returns the field of a row, or "" if there is no such column.
func (l *cableList) valueOf(row []string, column string) string {
	if i, ok := l.columns[column]; ok {
		return strings.TrimSpace(row[i])
	}
	return ""
}

// readRow takes over a cable.
func (l *cableList) readRow(line int, row []string) {
	if i := slices.IndexFunc(row, func(v string) bool { return !utf8.ValidString(v) }); i >= 0 {
		l.add(line, "", false, "field %d is not UTF-8", i+1)
		return
	}
	var devices [2]cableEnd
	var ends [2]string
	for i, side := range []string{"a", "b"} {
		e, ok := l.readEnd(line, row, side)
		if !ok {
			return
		}
		devices[i], ends[i] = e, e.name()
	}
	link := Link{A: ends[0], B: ends[1], LAG: l.valueOf(row, "lag")}
	for _, end := range ends {
		if first, twice := l.plugged[end]; twice {
			// The same cable, listed from its other end as well, is no contradiction.
			same := l.plugged[ends[0]] == first && l.plugged[ends[1]] == first && ends[0] != ends[1]
			l.add(line, "", same, "%s has a cable in line %d already", end, first)
			return
		}
	}
	switch {
	case devices[0].device == devices[1].device:
		l.add(line, "", false, "both ends are on %s", devices[0].device)
		return
	case IsNIC(ends[0]) && IsNIC(ends[1]):
		l.add(line, "", false, "no end is at a switch: %s and %s", ends[0], ends[1])
		return
	}
	if text := l.valueOf(row, "speed_gbps"); text != "" {
		speed, err := strconv.ParseFloat(text, 64)
		if err != nil || !(speed > 0) {
			l.add(line, "speed_gbps", false, "%q: a number above 0 is expected", text)
			return
		}
		link.SpeedGbps = speed
	}
	for _, a := range []struct {
		column string
		to     *netip.Prefix
	}{{"a_address", &link.AAddress}, {"b_address", &link.BAddress}} {
		if text := l.valueOf(row, a.column); text != "" {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				l.add(line, a.column, false, "%q: an address with the length of its prefix is expected", text)
				return
			}
			*a.to = p
		}
	}
	if IsNIC(link.B) { // NICs come first, as in files that are discovered
		link.A, link.B, link.AAddress, link.BAddress = link.B, link.A, link.BAddress, link.AAddress
	}
	for i := range devices {
		l.addDevice(line, &devices[i])
	}
	l.plugged[ends[0]], l.plugged[ends[1]] = line, line
	l.links = append(l.links, link)
}

// cableEnd is one end of a cable: a port of a switch, or a NIC.
type cableEnd struct {
	device, port string
	isSwitch     bool
	role         Role // empty if the list does not have it
	plane, pod   string
	group        string
	rail         *int
}

func (e *cableEnd) name() string {
	if e.isSwitch {
		return e.device + ":" + e.port
	}
	return e.device + "/" + e.port
}

// readEnd returns one end of a cable. It reports false if it cannot be used.
func (l *cableList) readEnd(line int, row []string, side string) (e cableEnd, ok bool) {
	value := func(column string) string {
		if own := l.valueOf(row, side+"_"+column); own != "" {
			return own
		}
		return l.valueOf(row, column)
	}
	e = cableEnd{device: l.valueOf(row, side+"_device"), port: l.valueOf(row, side+"_port"), plane: value("plane"), pod: value("pod"), group: value("group")}
	if err := CheckName(e.device); err != nil {
		l.add(line, side+"_device", false, "%v", err)
		return e, false
	}
	if err := CheckDevice(e.port); err != nil {
		l.add(line, side+"_port", false, "%v", err)
		return e, false
	}
	role := strings.ToLower(l.valueOf(row, side+"_role"))
	if e.isSwitch = Role(role).DefaultTier() > 0; e.isSwitch {
		e.role = Role(role)
	} else if role == "" {
		e.isSwitch = slices.ContainsFunc(l.patterns, func(p string) bool { yes, _ := path.Match(p, e.device); return yes })
	}
	if _, is := l.nodes[e.device]; is && e.isSwitch {
		l.add(line, "", false, "%s is a host in earlier lines", e.device)
		return e, false
	}
	s, is := l.switches[e.device]
	switch {
	case is && !e.isSwitch:
		l.add(line, "", false, "%s is a switch in earlier lines", e.device)
		return e, false
	case is && e.role != "" && s.Role != "" && s.Role != e.role:
		l.add(line, side+"_role", false, "%s is a %s in earlier lines, and a %s here", e.device, s.Role, e.role)
		return e, false
	}
	if text := value("rail"); text != "" && !e.isSwitch {
		rail, err := strconv.Atoi(text)
		if err != nil || rail < 0 {
			l.add(line, side+"_rail", false, "%q: a number from 0 on is expected", text)
			return e, false
		}
		e.rail = &rail
	}
	return e, true
}

// addDevice adds the device at an end, or completes what is known of it.
func (l *cableList) addDevice(line int, e *cableEnd) {
	if !e.isSwitch {
		n := l.nodes[e.device]
		if n == nil {
			n = &Node{Name: e.device, Line: line}
			l.nodes[e.device] = n
			l.order = append(l.order, e.device)
		}
		n.NICs = append(n.NICs, NIC{Node: e.device, Device: e.port, Plane: e.plane, Rail: e.rail})
		return
	}
	s := l.switches[e.device]
	if s == nil {
		s = &Switch{Name: e.device, Line: line, Plane: e.plane, Pod: e.pod, Group: e.group}
		l.switches[e.device] = s
	}
	if e.role != "" {
		s.Role = e.role
	}
	// A core switch belongs to no pod, and a spine may join planes: what differs from row to row is the cable's.
	for _, x := range []struct {
		what string
		have *string
		now  string
	}{{"plane", &s.Plane, e.plane}, {"pod", &s.Pod, e.pod}, {"group", &s.Group, e.group}} {
		if x.now != *x.have && x.now != "" && *x.have != severalValues {
			if *x.have != "" {
				l.add(line, x.what, true, "%s has several: none is used", e.device)
				x.now = severalValues
			}
			*x.have = x.now
		}
	}
}

// severalValues stands for the plane, pod or group of a switch whose rows have several. No name has a blank.
const severalValues = " "

// topology returns what was read.
func (l *cableList) topology() *Topology {
	t := &Topology{Version: 1, Links: l.links}
	tiers := tiersByDistance(l.links)
	for _, name := range slices.Sorted(maps.Keys(l.switches)) {
		s := *l.switches[name]
		s.Plane, s.Pod, s.Group = strings.TrimSpace(s.Plane), strings.TrimSpace(s.Pod), strings.TrimSpace(s.Group)
		if s.Role == "" {
			if tiers[name] == 0 {
				l.add(s.Line, "", true, "no cable leads from %s to a NIC: it is left out", name)
				t.Links = slices.DeleteFunc(t.Links, func(x Link) bool { return OwnerOf(x.A) == name || OwnerOf(x.B) == name })
				continue
			}
			s.Role = []Role{Leaf, Spine, Core}[tiers[name]-1]
		}
		t.Switches = append(t.Switches, s)
	}
	for _, name := range l.order {
		t.Nodes = append(t.Nodes, *l.nodes[name])
	}
	return t
}
