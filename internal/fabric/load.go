package fabric

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sort"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// Problem is one error or warning about a topology file.
type Problem struct {
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"`
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
	Warning bool   `json:"warning,omitempty"`
}

func (f Problem) String() string {
	s := f.File
	if f.Line > 0 {
		s += ":" + strconv.Itoa(f.Line)
	}
	kind := "error"
	if f.Warning {
		kind = "warning"
	}
	s += ": " + kind + ": "
	if f.Field != "" {
		s += f.Field + ": "
	}
	return s + f.Message
}

// Problems are all that is wrong with a file, in the order of its lines.
type Problems []Problem

// OnlyErrors returns the findings that are not warnings.
func (fs Problems) OnlyErrors() Problems {
	var out Problems
	for _, f := range fs {
		if !f.Warning {
			out = append(out, f)
		}
	}
	return out
}

// Err joins the errors among the findings, or returns nil.
func (fs Problems) Err() error {
	var errs []error
	for _, f := range fs.OnlyErrors() {
		errs = append(errs, errors.New(f.String()))
	}
	return errors.Join(errs...)
}

// LoadTopology reads a topology file. The topology is usable only when the findings
// hold no error.
func LoadTopology(path string) (*Topology, Problems) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, Problems{{File: path, Message: fmt.Sprintf("cannot be read: %v", errors.Unwrap(err))}}
	}
	return ParseTopology(path, data)
}

// ParseTopology reads the text of a topology file; name stands in the findings.
func ParseTopology(name string, data []byte) (*Topology, Problems) {
	p := &parser{file: name, locators: map[int]int{}}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, Problems{yamlProblem(name, err)}
	}
	if len(doc.Content) == 0 {
		return nil, Problems{{File: name, Line: 1, Message: "the file is empty; a topology has version, switches, nodes and links"}}
	}
	t := &Topology{}
	p.parseTopology(doc.Content[0], t)
	p.checkTopology(t)
	sort.SliceStable(p.problems, func(i, j int) bool { return p.problems[i].Line < p.problems[j].Line })
	return t, p.problems
}

func yamlProblem(name string, err error) Problem {
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	f := Problem{File: name, Message: "not YAML: " + msg}
	if rest, ok := strings.CutPrefix(msg, "line "); ok {
		if n, text, ok := strings.Cut(rest, ": "); ok {
			if line, err := strconv.Atoi(n); err == nil {
				f.Line, f.Message = line, "not YAML: "+text
			}
		}
	}
	return f
}

type parser struct {
	file        string
	routingLine int
	locators    map[int]int // lines of locators, also of bad ones, by index of the switch
	problems    Problems
}

func (p *parser) errorf(line int, field, format string, args ...any) {
	p.problems = append(p.problems, Problem{File: p.file, Line: line, Field: field, Message: fmt.Sprintf(format, args...)})
}

func (p *parser) warnf(line int, field, format string, args ...any) {
	p.problems = append(p.problems, Problem{File: p.file, Line: line, Field: field, Message: fmt.Sprintf(format, args...), Warning: true})
}

type field struct {
	key string
	set func(path string, v *yaml.Node)
}

// parseMapping walks a mapping's keys in file order and reports unknown and repeated ones.
func (p *parser) parseMapping(path string, n *yaml.Node, fields []field) bool {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode {
		p.errorf(n.Line, path, "a mapping is expected")
		return false
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		at := k.Value
		if path != "" {
			at = path + "." + k.Value
		}
		var f *field
		var known []string
		for j := range fields {
			known = append(known, fields[j].key)
			if fields[j].key == k.Value {
				f = &fields[j]
			}
		}
		switch {
		case f == nil:
			p.errorf(k.Line, at, "unknown key; known here: %s", strings.Join(known, ", "))
		case seen[k.Value]:
			p.errorf(k.Line, at, "given twice")
		default:
			if v.Kind == yaml.AliasNode {
				v = v.Alias
			}
			f.set(at, v)
		}
		seen[k.Value] = true
	}
	return true
}

func (p *parser) parseList(path string, n *yaml.Node, each func(path string, n *yaml.Node)) {
	if n.Tag == "!!null" {
		return
	}
	if n.Kind != yaml.SequenceNode {
		p.errorf(n.Line, path, "a list is expected")
		return
	}
	for i, c := range n.Content {
		if c.Kind == yaml.AliasNode {
			c = c.Alias
		}
		each(path+"["+strconv.Itoa(i)+"]", c)
	}
}

func (p *parser) stringInto(dst *string) func(string, *yaml.Node) {
	return func(path string, n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			p.errorf(n.Line, path, "a text is expected")
			return
		}
		*dst = n.Value
	}
}

// hostInto takes an IP address in its canonical form, or a host name (RFC 1123, section 2.1).
func (p *parser) hostInto(dst *string) func(string, *yaml.Node) {
	return func(path string, n *yaml.Node) {
		var s string
		if p.stringInto(&s)(path, n); n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			return
		}
		if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
			*dst = a.Unmap().String()
			return
		}
		if !isHostName(s) {
			p.errorf(n.Line, path, "%q: an IP address or a host name is expected, without a port", s)
			return
		}
		*dst = s
	}
}

func isHostName(s string) bool {
	if len(s) > 253 || s == "" || strings.Trim(s, "0123456789.") == "" {
		return false
	}
	for _, label := range strings.Split(s, ".") {
		if label == "" || len(label) > 63 || strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") {
			return false
		}
		for _, r := range label {
			if r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') {
				return false
			}
		}
	}
	return true
}

func (p *parser) routingInto(dst *Routing) func(string, *yaml.Node) {
	return func(path string, n *yaml.Node) {
		p.routingLine = n.Line
		r := Routing(n.Value)
		if n.Kind != yaml.ScalarNode || r != Minimal && r != Adaptive {
			p.errorf(n.Line, path, "%q: minimal or adaptive is expected", n.Value)
			return
		}
		*dst = r
	}
}

func (p *parser) forwardingInto(dst *Forwarding) func(string, *yaml.Node) {
	return func(path string, n *yaml.Node) {
		f := Forwarding(n.Value)
		if n.Kind != yaml.ScalarNode || f != ECMP && f != Spray && f != SRv6 {
			p.errorf(n.Line, path, "%q: ecmp, spray or srv6 is expected", n.Value)
			return
		}
		*dst = f
	}
}

func (p *parser) locatorInto(dst *Locator, index int) func(string, *yaml.Node) {
	return func(path string, n *yaml.Node) {
		p.locators[index] = n.Line
		l, err := ParseLocator(n.Value)
		if err != nil {
			p.errorf(n.Line, path, "%v", err)
			return
		}
		*dst = l
	}
}

func (p *parser) boolInto(dst *bool) func(string, *yaml.Node) {
	return func(path string, n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || n.Value != "true" && n.Value != "false" {
			p.errorf(n.Line, path, "%q: true or false is expected", n.Value)
			return
		}
		*dst = n.Value == "true"
	}
}

func (p *parser) integerInto(dst *int, lo, hi int) func(string, *yaml.Node) {
	return func(path string, n *yaml.Node) {
		v, err := strconv.Atoi(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil || v < lo || v > hi {
			p.errorf(n.Line, path, "%q: a whole number from %d to %d is expected", n.Value, lo, hi)
			return
		}
		*dst = v
	}
}

func (p *parser) stringsInto(dst *[]string) func(string, *yaml.Node) {
	return func(path string, n *yaml.Node) {
		p.parseList(path, n, func(path string, c *yaml.Node) {
			var s string
			p.stringInto(&s)(path, c)
			if s != "" {
				*dst = append(*dst, s)
			}
		})
	}
}

func (p *parser) addressesInto(dst *[]netip.Addr) func(string, *yaml.Node) {
	return func(path string, n *yaml.Node) {
		p.parseList(path, n, func(path string, c *yaml.Node) {
			a, err := netip.ParseAddr(c.Value)
			if err != nil {
				p.errorf(c.Line, path, "%q: an IP address is expected", c.Value)
				return
			}
			*dst = append(*dst, a)
		})
	}
}

func (p *parser) prefixInto(dst *netip.Prefix) func(string, *yaml.Node) {
	return func(path string, n *yaml.Node) {
		pfx, err := netip.ParsePrefix(n.Value)
		if err != nil {
			p.errorf(n.Line, path, "%q: an address with prefix length is expected, such as 10.0.1.2/24", n.Value)
			return
		}
		*dst = pfx
	}
}

func (p *parser) parseTopology(n *yaml.Node, t *Topology) {
	versionLine := n.Line
	p.parseMapping("", n, []field{
		{"version", func(path string, v *yaml.Node) {
			versionLine = v.Line
			t.Version, _ = strconv.Atoi(v.Value)
		}},
		{"routing", p.routingInto(&t.Routing)},
		{"forwarding", p.forwardingInto(&t.Forwarding)},
		{"switches", func(path string, v *yaml.Node) {
			p.parseList(path, v, func(path string, c *yaml.Node) { p.parseSwitch(path, c, t) })
		}},
		{"nodes", func(path string, v *yaml.Node) {
			p.parseList(path, v, func(path string, c *yaml.Node) { p.parseNode(path, c, t) })
		}},
		{"links", func(path string, v *yaml.Node) {
			p.parseList(path, v, func(path string, c *yaml.Node) { p.parseLink(path, c, t) })
		}},
	})
	if t.Version != 1 {
		p.errorf(versionLine, "version", "1 is expected: this is the only version of the format")
	}
}

func (p *parser) parseSwitch(path string, n *yaml.Node, t *Topology) {
	s := Switch{Line: n.Line}
	roleLine := n.Line
	ok := p.parseMapping(path, n, []field{
		{"name", p.stringInto(&s.Name)},
		{"role", func(path string, v *yaml.Node) { roleLine = v.Line; s.Role = Role(v.Value) }},
		{"tier", p.integerInto(&s.Tier, 1, 9)},
		{"pod", p.stringInto(&s.Pod)},
		{"group", p.stringInto(&s.Group)},
		{"plane", p.stringInto(&s.Plane)},
		{"addresses", p.addressesInto(&s.Addresses)},
		{"locator", p.locatorInto(&s.Locator, len(t.Switches))},
		{"discovered", p.boolInto(&s.Discovered)},
	})
	if !ok {
		return
	}
	if err := CheckName(s.Name); err != nil {
		p.errorf(n.Line, path+".name", "%v", err)
	}
	if s.Role.DefaultTier() == 0 {
		p.errorf(roleLine, path+".role", "%q: leaf, spine or core is expected", string(s.Role))
	}
	t.Switches = append(t.Switches, s)
}

func (p *parser) parseNode(path string, n *yaml.Node, t *Topology) {
	nd := Node{Line: n.Line}
	ok := p.parseMapping(path, n, []field{
		{"name", p.stringInto(&nd.Name)},
		{"address", p.hostInto(&nd.Address)},
		{"discovered", p.boolInto(&nd.Discovered)},
		{"nics", func(path string, v *yaml.Node) {
			p.parseList(path, v, func(path string, c *yaml.Node) {
				nic := NIC{Line: c.Line}
				if !p.parseMapping(path, c, []field{
					{"device", p.stringInto(&nic.Device)},
					{"plane", p.stringInto(&nic.Plane)},
					{"rail", func(path string, v *yaml.Node) {
						rail := -1
						p.integerInto(&rail, 0, 1<<16)(path, v)
						if rail >= 0 {
							nic.Rail = &rail
						}
					}},
					{"side", p.stringInto(&nic.Side)},
					{"addresses", p.addressesInto(&nic.Addresses)},
					{"aliases", p.stringsInto(&nic.Aliases)},
				}) {
					return
				}
				if err := CheckDevice(nic.Device); err != nil {
					p.errorf(c.Line, path+".device", "%v", err)
				}
				nd.NICs = append(nd.NICs, nic)
			})
		}},
		{"bonds", func(path string, v *yaml.Node) {
			p.parseList(path, v, func(path string, c *yaml.Node) {
				b := Bond{Line: c.Line}
				if p.parseMapping(path, c, []field{{"name", p.stringInto(&b.Name)}, {"members", p.stringsInto(&b.Members)}}) {
					if err := CheckDevice(b.Name); err != nil {
						p.errorf(c.Line, path+".name", "%v", err)
					}
					nd.Bonds = append(nd.Bonds, b)
				}
			})
		}},
	})
	if !ok {
		return
	}
	if err := CheckName(nd.Name); err != nil {
		p.errorf(n.Line, path+".name", "%v", err)
	}
	for i := range nd.NICs {
		nd.NICs[i].Node = nd.Name
	}
	t.Nodes = append(t.Nodes, nd)
}

func (p *parser) parseLink(path string, n *yaml.Node, t *Topology) {
	l := Link{Line: n.Line}
	ok := p.parseMapping(path, n, []field{
		{"a", p.stringInto(&l.A)},
		{"b", p.stringInto(&l.B)},
		{"speed_gbps", func(path string, v *yaml.Node) {
			f, err := strconv.ParseFloat(v.Value, 64)
			if err != nil || !(f > 0) || f > 1e6 {
				p.errorf(v.Line, path, "%q: a positive number of gigabits per second is expected", v.Value)
				return
			}
			l.SpeedGbps = f
		}},
		{"lag", p.stringInto(&l.LAG)},
		{"discovered", p.boolInto(&l.Discovered)},
		{"a_address", p.prefixInto(&l.AAddress)},
		{"b_address", p.prefixInto(&l.BAddress)},
	})
	if !ok {
		return
	}
	for _, e := range []struct{ key, end string }{{"a", l.A}, {"b", l.B}} {
		if !isEnd(e.end) {
			p.errorf(n.Line, path+"."+e.key, "%q: an end of a link is expected, switch:port or node/device", e.end)
			return
		}
	}
	t.Links = append(t.Links, l)
}
