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

// Finding is one error or warning about a topology file.
type Finding struct {
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"`
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
	Warning bool   `json:"warning,omitempty"`
}

func (f Finding) String() string {
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

// Findings are all that is wrong with a file, in the order of its lines.
type Findings []Finding

// Errors returns the findings that are not warnings.
func (fs Findings) Errors() Findings {
	var out Findings
	for _, f := range fs {
		if !f.Warning {
			out = append(out, f)
		}
	}
	return out
}

// Err joins the errors among the findings, or returns nil.
func (fs Findings) Err() error {
	var errs []error
	for _, f := range fs.Errors() {
		errs = append(errs, errors.New(f.String()))
	}
	return errors.Join(errs...)
}

// Load reads a topology file. The topology is usable only when the findings
// hold no error.
func Load(path string) (*Topology, Findings) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, Findings{{File: path, Message: fmt.Sprintf("cannot be read: %v", errors.Unwrap(err))}}
	}
	return ParseTopology(path, data)
}

// ParseTopology reads the text of a topology file; name stands in the findings.
func ParseTopology(name string, data []byte) (*Topology, Findings) {
	p := &parser{file: name}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, Findings{yamlFinding(name, err)}
	}
	if len(doc.Content) == 0 {
		return nil, Findings{{File: name, Line: 1, Message: "the file is empty; a topology has version, switches, nodes and links"}}
	}
	t := &Topology{}
	p.topology(doc.Content[0], t)
	p.check(t)
	sort.SliceStable(p.found, func(i, j int) bool { return p.found[i].Line < p.found[j].Line })
	return t, p.found
}

func yamlFinding(name string, err error) Finding {
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	f := Finding{File: name, Message: "not YAML: " + msg}
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
	file  string
	found Findings
}

func (p *parser) errorf(line int, field, format string, args ...any) {
	p.found = append(p.found, Finding{File: p.file, Line: line, Field: field, Message: fmt.Sprintf(format, args...)})
}

func (p *parser) warnf(line int, field, format string, args ...any) {
	p.found = append(p.found, Finding{File: p.file, Line: line, Field: field, Message: fmt.Sprintf(format, args...), Warning: true})
}

type field struct {
	key string
	set func(path string, v *yaml.Node)
}

// mapping walks a mapping's keys in file order and reports unknown and repeated ones.
func (p *parser) mapping(path string, n *yaml.Node, fields []field) bool {
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

func (p *parser) list(path string, n *yaml.Node, each func(path string, n *yaml.Node)) {
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

func (p *parser) str(dst *string) func(string, *yaml.Node) {
	return func(path string, n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			p.errorf(n.Line, path, "a text is expected")
			return
		}
		*dst = n.Value
	}
}

// host takes an IP address in its canonical form, or a host name (RFC 1123, section 2.1).
func (p *parser) host(dst *string) func(string, *yaml.Node) {
	return func(path string, n *yaml.Node) {
		var s string
		if p.str(&s)(path, n); n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
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

func (p *parser) integer(dst *int, lo, hi int) func(string, *yaml.Node) {
	return func(path string, n *yaml.Node) {
		v, err := strconv.Atoi(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil || v < lo || v > hi {
			p.errorf(n.Line, path, "%q: a whole number from %d to %d is expected", n.Value, lo, hi)
			return
		}
		*dst = v
	}
}

func (p *parser) strs(dst *[]string) func(string, *yaml.Node) {
	return func(path string, n *yaml.Node) {
		p.list(path, n, func(path string, c *yaml.Node) {
			var s string
			p.str(&s)(path, c)
			if s != "" {
				*dst = append(*dst, s)
			}
		})
	}
}

func (p *parser) addrs(dst *[]netip.Addr) func(string, *yaml.Node) {
	return func(path string, n *yaml.Node) {
		p.list(path, n, func(path string, c *yaml.Node) {
			a, err := netip.ParseAddr(c.Value)
			if err != nil {
				p.errorf(c.Line, path, "%q: an IP address is expected", c.Value)
				return
			}
			*dst = append(*dst, a)
		})
	}
}

func (p *parser) prefix(dst *netip.Prefix) func(string, *yaml.Node) {
	return func(path string, n *yaml.Node) {
		pfx, err := netip.ParsePrefix(n.Value)
		if err != nil {
			p.errorf(n.Line, path, "%q: an address with prefix length is expected, such as 10.0.1.2/24", n.Value)
			return
		}
		*dst = pfx
	}
}

func (p *parser) topology(n *yaml.Node, t *Topology) {
	versionLine := n.Line
	p.mapping("", n, []field{
		{"version", func(path string, v *yaml.Node) {
			versionLine = v.Line
			t.Version, _ = strconv.Atoi(v.Value)
		}},
		{"switches", func(path string, v *yaml.Node) {
			p.list(path, v, func(path string, c *yaml.Node) { p.sw(path, c, t) })
		}},
		{"nodes", func(path string, v *yaml.Node) {
			p.list(path, v, func(path string, c *yaml.Node) { p.node(path, c, t) })
		}},
		{"links", func(path string, v *yaml.Node) {
			p.list(path, v, func(path string, c *yaml.Node) { p.link(path, c, t) })
		}},
	})
	if t.Version != 1 {
		p.errorf(versionLine, "version", "1 is expected: this is the only version of the format")
	}
}

func (p *parser) sw(path string, n *yaml.Node, t *Topology) {
	s := Switch{Line: n.Line}
	roleLine := n.Line
	ok := p.mapping(path, n, []field{
		{"name", p.str(&s.Name)},
		{"role", func(path string, v *yaml.Node) { roleLine = v.Line; s.Role = Role(v.Value) }},
		{"tier", p.integer(&s.Tier, 1, 9)},
		{"pod", p.str(&s.Pod)},
		{"plane", p.str(&s.Plane)},
		{"addresses", p.addrs(&s.Addresses)},
	})
	if !ok {
		return
	}
	if err := CheckName(s.Name); err != nil {
		p.errorf(n.Line, path+".name", "%v", err)
	}
	if s.Role.Tier() == 0 {
		p.errorf(roleLine, path+".role", "%q: leaf, spine or core is expected", string(s.Role))
	}
	t.Switches = append(t.Switches, s)
}

func (p *parser) node(path string, n *yaml.Node, t *Topology) {
	nd := Node{Line: n.Line}
	ok := p.mapping(path, n, []field{
		{"name", p.str(&nd.Name)},
		{"address", p.host(&nd.Address)},
		{"nics", func(path string, v *yaml.Node) {
			p.list(path, v, func(path string, c *yaml.Node) {
				nic := NIC{Line: c.Line}
				if !p.mapping(path, c, []field{
					{"device", p.str(&nic.Device)},
					{"plane", p.str(&nic.Plane)},
					{"rail", func(path string, v *yaml.Node) {
						rail := -1
						p.integer(&rail, 0, 1<<16)(path, v)
						if rail >= 0 {
							nic.Rail = &rail
						}
					}},
					{"side", p.str(&nic.Side)},
					{"addresses", p.addrs(&nic.Addresses)},
					{"aliases", p.strs(&nic.Aliases)},
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
			p.list(path, v, func(path string, c *yaml.Node) {
				b := Bond{Line: c.Line}
				if p.mapping(path, c, []field{{"name", p.str(&b.Name)}, {"members", p.strs(&b.Members)}}) {
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

func (p *parser) link(path string, n *yaml.Node, t *Topology) {
	l := Link{Line: n.Line}
	ok := p.mapping(path, n, []field{
		{"a", p.str(&l.A)},
		{"b", p.str(&l.B)},
		{"speed_gbps", func(path string, v *yaml.Node) {
			f, err := strconv.ParseFloat(v.Value, 64)
			if err != nil || !(f > 0) || f > 1e6 {
				p.errorf(v.Line, path, "%q: a positive number of gigabits per second is expected", v.Value)
				return
			}
			l.SpeedGbps = f
		}},
		{"lag", p.str(&l.LAG)},
		{"a_address", p.prefix(&l.AAddress)},
		{"b_address", p.prefix(&l.BAddress)},
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
