package preset

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/openconfig/gnmi/proto/gnmi"
	"github.com/openconfig/gnmic/pkg/api/path"
)

// Rule states what a leaf of a switch's tree becomes.
//
// In Path, keys in braces become labels: interface[name={port}]. Elements may contain
// braces as well: SONiC's tables are trees whose element names are the keys,
// {port}:{tc}. A key that begins with an underscore is part of a series' identity but
// not a label. The key {component} is a component of the chassis; its port comes from
// another leaf, whose Metric is component_port.
type Rule struct {
	Path      string
	Metric    string            // name of a Family
	Convert   string            // name of a Conversion
	Labels    map[string]string // labels with fixed values
	TextLabel string            // of an Info: the label whose value is the leaf's text
	Source    string            // the source that documents the path
	Target    string            // target of the request's prefix, if that selects a tree
	// OnChange subscribes to changes, for a leaf that seldom changes.
	OnChange bool

	ownFamily *Family // for a user's path with a new name
}

// metricFamily returns the rule's family, or nil if its name is unknown.
func (r Rule) metricFamily() *Family {
	if r.ownFamily != nil {
		return r.ownFamily
	}
	return LookupFamily(r.Metric)
}

// captureNames returns the names in braces without those with an underscore, in the order of the path.
func (r Rule) captureNames() ([]string, error) {
	var out []string
	_, err := parseRulePath(r.Path, func(name string) { out = append(out, name) })
	if err != nil {
		return nil, err
	}
	var plain []string
	for _, c := range out {
		if slices.Contains(plain, c) {
			return nil, fmt.Errorf("{%s} is there twice", c)
		}
		if !strings.HasPrefix(c, "_") {
			plain = append(plain, c)
		}
	}
	return plain, nil
}

// piece is a literal text or, if capture is set, a name in braces.
type piece struct{ text, capture string }

// element is an element of a rule's path.
type element struct {
	name []piece
	keys []key
}

type key struct {
	name  string
	value piece
}

// literalName returns the element's name if it has no braces.
func (e element) literalName() (string, bool) {
	if len(e.name) == 1 && e.name[0].capture == "" {
		return e.name[0].text, true
	}
	return "", false
}

func parseRulePath(text string, found func(string)) ([]element, error) {
	p, err := path.ParsePath(text)
	if err != nil {
		return nil, fmt.Errorf("no gNMI path: %w", err)
	}
	if len(p.Elem) == 0 {
		return nil, fmt.Errorf("an element is expected")
	}
	var out []element
	for _, e := range p.Elem {
		var x element
		if x.name, err = parsePieces(e.Name, found); err != nil {
			return nil, err
		}
		for _, k := range slices.Sorted(maps.Keys(e.Key)) {
			v, err := parsePieces(e.Key[k], found)
			if err != nil {
				return nil, err
			}
			if len(v) != 1 {
				return nil, fmt.Errorf("key %s: one text or one name in braces is expected, not %q", k, e.Key[k])
			}
			x.keys = append(x.keys, key{k, v[0]})
		}
		out = append(out, x)
	}
	return out, nil
}

func parsePieces(s string, found func(string)) ([]piece, error) {
	var out []piece
	rest := s
	for rest != "" {
		open := strings.IndexByte(rest, '{')
		if open < 0 {
			if strings.IndexByte(rest, '}') >= 0 {
				return nil, fmt.Errorf("%q: } without {", s)
			}
			return append(out, piece{text: rest}), nil
		}
		end := strings.IndexByte(rest, '}')
		if end < open {
			return nil, fmt.Errorf("%q: { without }", s)
		}
		if open > 0 {
			out = append(out, piece{text: rest[:open]})
		} else if len(out) > 0 && out[len(out)-1].capture != "" {
			return nil, fmt.Errorf("%q: two names in braces touch", s)
		}
		name := rest[open+1 : end]
		if !labelName.MatchString(strings.TrimPrefix(name, "_")) {
			return nil, fmt.Errorf("%q: {%s} is not the name of a label", s, name)
		}
		if found != nil {
			found(name)
		}
		out = append(out, piece{capture: name})
		rest = rest[end+1:]
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("an empty name")
	}
	return out, nil
}

// RequestPath returns the path for a subscription, in which every name in braces is a wildcard.
func (r Rule) RequestPath() (*gnmi.Path, error) {
	elements, err := parseRulePath(r.Path, nil)
	if err != nil {
		return nil, err
	}
	p, err := path.ParsePath(r.Path)
	if err != nil {
		return nil, err
	}
	p.Elem = nil
	for _, e := range elements {
		name, ok := e.literalName()
		if !ok {
			name = "*"
		}
		x := &gnmi.PathElem{Name: name}
		for _, k := range e.keys {
			if x.Key == nil {
				x.Key = map[string]string{}
			}
			x.Key[k.name] = "*"
			if k.value.capture == "" {
				x.Key[k.name] = k.value.text
			}
		}
		p.Elem = append(p.Elem, x)
	}
	return p, nil
}

// MaxCaptures bounds the number of different names in braces in the rules of a target.
const MaxCaptures = 20

// Captures holds the values of names in braces, by their numbers in the tree.
type Captures [MaxCaptures]string

// Leaf is a compiled rule.
type Leaf struct {
	Rule   Rule
	Family *Family
	Conv   Conversion
	// Component is set while the label port is still the name of a component.
	Component bool
	// TextLabelIndex is the index of the label whose value is the leaf's text; -1 if the leaf is not of an
	// Info.
	TextLabelIndex int

	labels []labelSource // one for each of the family's labels
	hidden []int         // names with an underscore
	conds  []keyCondition
}

type labelSource struct {
	capture int // -1 means a fixed value
	fixed   string
}

type keyCondition struct {
	capture int
	equals  string
}

// AppendIdentity appends what distinguishes the leaf's series from others of its family: the labels and the
// hidden names, each followed by 0xff. ok is false where a key is missing or does not match the rule.
func (l *Leaf) AppendIdentity(b []byte, c *Captures) (_ []byte, ok bool) {
	for _, x := range l.conds {
		if c[x.capture] != x.equals {
			return b, false
		}
	}
	for i, s := range l.labels {
		switch {
		case i == l.TextLabelIndex:
		case s.capture < 0:
			b = append(b, s.fixed...)
		case c[s.capture] == "":
			return b, false
		default:
			b = append(b, c[s.capture]...)
		}
		b = append(b, 0xff)
	}
	for _, h := range l.hidden {
		b = append(append(b, c[h]...), 0xff)
	}
	return b, true
}

// LabelValues returns the values of the family's labels; that of TextLabelIndex remains empty.
func (l *Leaf) LabelValues(c *Captures) []string {
	out := make([]string, len(l.labels))
	for i, s := range l.labels {
		if i == l.TextLabelIndex {
			continue
		}
		if out[i] = s.fixed; s.capture >= 0 {
			out[i] = strings.ToValidUTF8(strings.Clone(c[s.capture]), "\ufffd")
		}
	}
	return out
}

// MatchesIdentity reports whether a series with that identity matches the captures, of which an empty one
// matches any value.
func (l *Leaf) MatchesIdentity(identity string, c *Captures) bool {
	part := func() (s string) {
		s, identity, _ = strings.Cut(identity, "\xff")
		return s
	}
	for i, s := range l.labels {
		if x := part(); i != l.TextLabelIndex && s.capture >= 0 && c[s.capture] != "" && c[s.capture] != x {
			return false
		}
	}
	for _, h := range l.hidden {
		if x := part(); c[h] != "" && c[h] != x {
			return false
		}
	}
	for _, x := range l.conds {
		if c[x.capture] != "" && c[x.capture] != x.equals {
			return false
		}
	}
	return true
}

// Node is a node in the tree of all rules of a target.
type Node struct {
	// Keys are the keys of the element that ends here: their names and the numbers of their captures.
	Keys   []Key
	Leaves []*Leaf

	children map[string]*Node
	patterns []*pattern
}

// Key represents a key that rules name.
type Key struct {
	Name    string
	Capture int
}

type pattern struct {
	pieces []piece
	ids    []int
	node   *Node
}

// FindChild returns the node of an element, and stores the values of the names in braces. It returns nil if no
// rule has the element. A module's name before a colon is ignored unless the whole name is known.
func (n *Node) FindChild(name string, c *Captures) *Node {
	if x := n.children[name]; x != nil {
		return x
	}
	if i := strings.IndexByte(name, ':'); i >= 0 {
		if x := n.children[name[i+1:]]; x != nil {
			return x
		}
	}
	for _, p := range n.patterns {
		if p.matchName(name, c) {
			return p.node
		}
	}
	return nil
}

// IsTerminal reports whether no rule leads further.
func (n *Node) IsTerminal() bool { return len(n.children) == 0 && len(n.patterns) == 0 }

// WalkLeaves calls f with every leaf of the node and those below it.
func (n *Node) WalkLeaves(f func(*Leaf)) {
	for _, l := range n.Leaves {
		f(l)
	}
	for _, c := range n.children {
		c.WalkLeaves(f)
	}
	for _, p := range n.patterns {
		p.node.WalkLeaves(f)
	}
}

// matchName matches each name in braces with the shortest text, which never contains a colon, because colons
// separate parts of SONiC's keys. Only addresses have them.
func (p *pattern) matchName(name string, c *Captures) bool {
	rest := name
	var found Captures
	for i, x := range p.pieces {
		if x.capture == "" {
			var ok bool
			if rest, ok = strings.CutPrefix(rest, x.text); !ok {
				return false
			}
			continue
		}
		end := len(rest)
		if i+1 < len(p.pieces) {
			if end = strings.Index(rest, p.pieces[i+1].text); end < 0 {
				return false
			}
		}
		if end == 0 || !mayHoldColons(x.capture) && strings.IndexByte(rest[:end], ':') >= 0 {
			return false
		}
		found[p.ids[i]], rest = rest[:end], rest[end:]
	}
	if rest != "" {
		return false
	}
	for i, x := range p.pieces {
		if x.capture != "" {
			c[p.ids[i]] = found[p.ids[i]]
		}
	}
	return true
}

// Tree holds all rules of a target.
type Tree struct {
	Root   *Node
	names  []string // of the captures, by number
	Leaves []*Leaf
}

// CompileRules returns the tree of the rules. Its errors name the path.
func CompileRules(rules []Rule) (*Tree, error) {
	t := &Tree{Root: &Node{}}
	for _, r := range rules {
		if err := t.addRule(r); err != nil {
			return nil, fmt.Errorf("path %q: %w", r.Path, err)
		}
	}
	return t, nil
}

// captureID returns the number of a name in braces.
func (t *Tree) captureID(name string) (int, error) {
	if i := slices.Index(t.names, name); i >= 0 {
		return i, nil
	}
	if len(t.names) == MaxCaptures {
		return 0, fmt.Errorf("{%s}: at most %d different names in braces are expected", name, MaxCaptures)
	}
	t.names = append(t.names, name)
	return len(t.names) - 1, nil
}

func (t *Tree) addRule(r Rule) error {
	l := &Leaf{Rule: r, Family: r.metricFamily(), TextLabelIndex: -1}
	if l.Family == nil {
		return fmt.Errorf("%q is not a metric of the vocabulary", r.Metric)
	}
	conv, ok := Conversions[r.Convert]
	if !ok {
		return fmt.Errorf("conversion %q is not one of %s", r.Convert, conversionNames())
	}
	l.Conv = conv
	elements, err := parseRulePath(r.Path, nil)
	if err != nil {
		return err
	}
	have := map[string]int{}
	node := t.Root
	for i, e := range elements {
		if node, err = t.addChild(node, e, have); err != nil {
			return err
		}
		for _, k := range e.keys {
			name := k.value.capture
			if name == "" {
				name = fmt.Sprintf("_%d_%s", i, k.name)
			}
			id, err := t.captureID(name)
			if err != nil {
				return err
			}
			if k.value.capture == "" {
				l.conds = append(l.conds, keyCondition{id, k.value.text})
			} else {
				have[name] = id
			}
			if x := (Key{k.name, id}); !slices.Contains(node.Keys, x) {
				node.Keys = append(node.Keys, x)
			}
		}
	}
	for i, label := range l.Family.Labels {
		fixed, isFixed := r.Labels[label]
		id, captured := have[label]
		if component, ok := have["component"]; ok && label == "port" && !captured {
			l.Component = l.Family.Kind != Relation
			id, captured = component, true
		}
		switch {
		case r.TextLabel == label:
			l.TextLabelIndex = i
			l.labels = append(l.labels, labelSource{capture: -1})
		case isFixed:
			l.labels = append(l.labels, labelSource{-1, fixed})
		case captured:
			l.labels = append(l.labels, labelSource{capture: id})
		case l.Family.Kind == Info:
			l.labels = append(l.labels, labelSource{capture: -1}) // set by other leaves
		default:
			return fmt.Errorf("the label %s of %s has no value", label, l.Family.Name)
		}
	}
	for name, id := range have {
		switch {
		case strings.HasPrefix(name, "_"):
			l.hidden = append(l.hidden, id)
		case name != "component" && !slices.Contains(l.Family.Labels, name):
			return fmt.Errorf("{%s} is not a label of %s", name, l.Family.Name)
		}
	}
	slices.Sort(l.hidden)
	if (l.Family.Kind == Info) != (l.TextLabelIndex >= 0) {
		return fmt.Errorf("a leaf of an info is expected to set one of its labels, which no other leaf sets")
	}
	for _, other := range node.Leaves {
		if slices.Equal(other.conds, l.conds) {
			return fmt.Errorf("it is there twice, as %s and %s", other.Family.Name, l.Family.Name)
		}
	}
	node.Leaves = append(node.Leaves, l)
	t.Leaves = append(t.Leaves, l)
	return nil
}

func (t *Tree) addChild(n *Node, e element, have map[string]int) (*Node, error) {
	if name, ok := e.literalName(); ok {
		// A rule may be written with a module's name that the switch leaves out.
		if i := strings.IndexByte(name, ':'); i >= 0 {
			name = name[i+1:]
		}
		if n.children == nil {
			n.children = map[string]*Node{}
		}
		if n.children[name] == nil {
			n.children[name] = &Node{}
		}
		return n.children[name], nil
	}
	ids := make([]int, len(e.name))
	for i, x := range e.name {
		if x.capture == "" {
			continue
		}
		id, err := t.captureID(x.capture)
		if err != nil {
			return nil, err
		}
		ids[i], have[x.capture] = id, id
	}
	for _, p := range n.patterns {
		if slices.Equal(p.pieces, e.name) {
			return p.node, nil
		}
	}
	p := &pattern{e.name, ids, &Node{}}
	n.patterns = append(n.patterns, p)
	// The longer pattern is tried first, because {port}:{tc} would also match {port}:{tc}:periodic.
	slices.SortStableFunc(n.patterns, func(a, b *pattern) int { return len(b.pieces) - len(a.pieces) })
	return p.node, nil
}
