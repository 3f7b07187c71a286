// Package fabric defines the vocabulary of all other packages: names of elements, the topology and its file, paths,
// observations and verdicts. It has no I/O but reading and writing those formats, and no clock.
package fabric

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Identifiers are plain strings in the project's published forms:
//
//	node        h3
//	NIC         h3/eth1
//	switch      spine1
//	port        spine1:Ethernet1/12
//	link        leaf1:up1--spine1:dn1      (ends in byte order)
//	direction   spine1:dn1->leaf1:up1
//	edge        h1/eth1>h4/eth1#0          (replies: .../r)
//
// The first '/' ends a node name and the first ':' a switch name; an end of a
// link is a port when a ':' comes before any '/'.

// SplitNIC cuts "node/device" at its first slash. ok is false when id is not a NIC.
func SplitNIC(id string) (node, device string, ok bool) {
	i := strings.IndexAny(id, "/:")
	if i <= 0 || id[i] != '/' || i == len(id)-1 {
		return "", "", false
	}
	return id[:i], id[i+1:], true
}

// SplitPort cuts "switch:port" at its first colon. ok is false when id is not a port.
func SplitPort(id string) (sw, port string, ok bool) {
	i := strings.IndexAny(id, "/:")
	if i <= 0 || id[i] != ':' || i == len(id)-1 {
		return "", "", false
	}
	return id[:i], id[i+1:], true
}

// IsNIC reports whether a link end is a NIC rather than a switch port.
func IsNIC(end string) bool { _, _, ok := SplitNIC(end); return ok }

// OwnerOf returns the node or switch that an end of a link belongs to.
func OwnerOf(end string) string {
	if i := strings.IndexAny(end, "/:"); i > 0 {
		return end[:i]
	}
	return end
}

// LinkID joins the two ends of a link in byte order.
func LinkID(a, b string) string {
	if b < a {
		a, b = b, a
	}
	return a + "--" + b
}

// SplitLink cuts a link's identifier into its ends.
func SplitLink(id string) (a, b string, ok bool) {
	a, b, ok = strings.Cut(id, "--")
	return a, b, ok && a != "" && b != ""
}

// Direction is one way through a link, from one end to the other.
type Direction struct{ From, To string }

func (d Direction) String() string { return d.From + "->" + d.To }

// LinkID returns the identifier of the undirected link.
func (d Direction) LinkID() string { return LinkID(d.From, d.To) }

// Reverse returns the other way through the same link.
func (d Direction) Reverse() Direction { return Direction{d.To, d.From} }

// ParseDirection reads "from->to".
func ParseDirection(s string) (Direction, error) {
	from, to, ok := strings.Cut(s, "->")
	if !ok || !isEnd(from) || !isEnd(to) {
		return Direction{}, fmt.Errorf("direction %q: want FROM->TO, each switch:port or node/device", s)
	}
	return Direction{from, to}, nil
}

func isEnd(s string) bool {
	_, _, nic := SplitNIC(s)
	_, _, port := SplitPort(s)
	return nic || port
}

// Flow names a probe flow: the probes that Src sends to Dst from source port
// base+Flow or, with Reply set, the replies to them, which travel Dst to Src.
type Flow struct {
	Src, Dst string
	Number   int
	Reply    bool
}

func (e Flow) String() string {
	s := e.Src + ">" + e.Dst + "#" + strconv.Itoa(e.Number)
	if e.Reply {
		s += "/r"
	}
	return s
}

// ProbeFlow returns the edge of the probes, also for an edge of replies.
func (e Flow) ProbeFlow() Flow { e.Reply = false; return e }

// Endpoints returns the NICs in the order the packets of this edge travel.
func (e Flow) Endpoints() (from, to string) {
	if e.Reply {
		return e.Dst, e.Src
	}
	return e.Src, e.Dst
}

// FlowsPerClass is the number of source ports a class of probes has: class c
// uses flow numbers c*FlowsPerClass up to the next class's first.
const FlowsPerClass = 64

// ScheduledFlows is the number of source ports of a class that schedules and configurations use: its first ones. The
// other TemporaryFlows are for flows that an analyzer asks for.
const (
	ScheduledFlows = FlowsPerClass - TemporaryFlows
	TemporaryFlows = 16
)

// IsTemporary reports whether the number of a flow is one of those for flows that an analyzer asks for. Such flows are
// not expected to stay.
func (e Flow) IsTemporary() bool { return IsTemporaryFlow(e.Number) }

// IsTemporaryFlow reports the same of a flow number.
func IsTemporaryFlow(number int) bool { return number%FlowsPerClass >= ScheduledFlows }

// ParseFlow reads "src>dst#n" or "src>dst#n/r"; a missing "#n" is flow 0.
func ParseFlow(s string) (Flow, error) {
	bad := func() (Flow, error) {
		return Flow{}, fmt.Errorf("edge %q: want SRC>DST#N or SRC>DST#N/r with NICs as node/device", s)
	}
	src, rest, ok := strings.Cut(s, ">")
	if !ok {
		return bad()
	}
	e := Flow{Src: src}
	dst, flow, hasFlow := strings.Cut(rest, "#")
	if hasFlow {
		flow, e.Reply = strings.CutSuffix(flow, "/r")
		n, err := strconv.Atoi(flow)
		if err != nil || n < 0 {
			return bad()
		}
		e.Number = n
	}
	e.Dst = dst
	if !IsNIC(e.Src) || !IsNIC(e.Dst) {
		return bad()
	}
	return e, nil
}

// CheckName returns an error if a node or switch name cannot be used in identifiers.
func CheckName(s string) error {
	if s == "" {
		return fmt.Errorf("name is empty")
	}
	if i := strings.IndexAny(s, "/:>@# \t\r\n"); i >= 0 {
		return fmt.Errorf("name %q holds %q: a node or switch name may not hold / : > @ # or white space", s, s[i])
	}
	return checkJoin("name", s)
}

// CheckDevice returns an error if a device or port name cannot be used in identifiers.
func CheckDevice(s string) error {
	if s == "" {
		return fmt.Errorf("device or port is empty")
	}
	if i := strings.IndexAny(s, " \t\r\n>#@"); i >= 0 {
		return fmt.Errorf("device or port %q holds %q", s, s[i])
	}
	return checkJoin("device or port", s)
}

func checkJoin(what, s string) error {
	for _, j := range []string{"--", "->"} {
		if strings.Contains(s, j) {
			return fmt.Errorf("%s %q holds %q, which joins the ends of a link", what, s, j)
		}
	}
	return nil
}

// EncodeName makes a name that stands in identifiers of any text: what may not be
// in it is percent-encoded, and so is the percent sign. An empty text has no name.
func EncodeName(s string) string { return percentEncode(s, "/:>@#%") }

// EncodeDevice does the same for the name of a device or port.
func EncodeDevice(s string) string { return percentEncode(s, ">#@%") }

func percentEncode(s, special string) string {
	var b strings.Builder
	for i, r := range s {
		size := max(1, utf8.RuneLen(r))
		wrong := r == utf8.RuneError || unicode.IsSpace(r) || unicode.IsControl(r) || strings.ContainsRune(special, r)
		if r == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				size = 1
			}
		}
		// "--" and "->" join the ends of a link, which may stand before either.
		if r == '-' && (i+1 == len(s) || s[i+1] == '-' || s[i+1] == '>') {
			wrong = true
		}
		if !wrong {
			b.WriteString(s[i : i+size])
			continue
		}
		for _, c := range []byte(s[i : i+size]) {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// DecodeName returns the text that a name was made from, for people to read. It returns a name that is not encoded
// unchanged.
func DecodeName(s string) string {
	if text, err := url.PathUnescape(s); err == nil {
		return text
	}
	return s
}
