package fabric

import (
	"fmt"
	"net/netip"
	"sort"
	"strings"
)

// checkTopology finds what the syntax of a topology file cannot show: names used
// twice, links into nothing, ports used twice, islands and tier jumps.
func (p *parser) checkTopology(t *Topology) {
	owners := map[string]int{}      // switch or node name -> line
	nics := map[string]int{}        // NIC id -> line
	nicNames := map[string]string{} // node/name of NIC, alias or bond -> what it is
	switches := map[string]*Switch{}

	claim := func(line int, field, name string) {
		if name == "" {
			return
		}
		if first, dup := owners[name]; dup {
			p.errorf(line, field, "%q is the name of another switch or node, on line %d", name, first)
			return
		}
		owners[name] = line
	}
	for i := range t.Switches {
		s := &t.Switches[i]
		claim(s.Line, fmt.Sprintf("switches[%d].name", i), s.Name)
		if s.Tier > 0 && s.Role.DefaultTier() > 0 && s.Tier != s.Role.DefaultTier() {
			p.warnf(s.Line, fmt.Sprintf("switches[%d].tier", i), "tier %d of %q is not the tier of a %s, %d", s.Tier, s.Name, s.Role, s.Role.DefaultTier())
		}
		if _, dup := switches[s.Name]; !dup {
			switches[s.Name] = s
		}
	}
	for i, n := range t.Nodes {
		claim(n.Line, fmt.Sprintf("nodes[%d].name", i), n.Name)
		for j, nic := range n.NICs {
			at := fmt.Sprintf("nodes[%d].nics[%d]", i, j)
			names := append([]string{nic.Device}, nic.Aliases...)
			for k, name := range names {
				key := n.Name + "/" + name
				if was, dup := nicNames[key]; dup {
					p.errorf(nic.Line, at, "%q of node %q is already %s", name, n.Name, was)
					continue
				}
				if k == 0 {
					nicNames[key] = fmt.Sprintf("a NIC, on line %d", nic.Line)
					nics[key] = nic.Line
				} else {
					nicNames[key] = fmt.Sprintf("an alias, on line %d", nic.Line)
				}
			}
		}
		for j, b := range n.Bonds {
			at := fmt.Sprintf("nodes[%d].bonds[%d]", i, j)
			key := n.Name + "/" + b.Name
			if was, dup := nicNames[key]; dup {
				p.errorf(b.Line, at+".name", "%q of node %q is already %s", b.Name, n.Name, was)
			}
			nicNames[key] = fmt.Sprintf("a bond, on line %d", b.Line)
			if len(b.Members) == 0 {
				p.errorf(b.Line, at+".members", "a bond needs at least one member")
			}
			for _, m := range b.Members {
				if _, ok := nics[n.Name+"/"+m]; !ok {
					p.errorf(b.Line, at+".members", "node %q has no NIC %q", n.Name, m)
				}
			}
		}
	}
	if len(t.Switches) == 0 {
		p.errorf(1, "switches", "at least one switch is needed")
	}
	if len(nics) < 2 {
		p.errorf(1, "nodes", "at least two NICs are needed: a probe goes from one to another")
	}
	p.checkLinks(t, owners, nics, switches)
	p.checkGroups(t, switches)
	p.checkAddresses(t)
	p.checkLocators(t)
	if len(p.problems.OnlyErrors()) == 0 {
		p.checkShape(t)
	}
}

func (p *parser) checkLinks(t *Topology, owners map[string]int, nics map[string]int, switches map[string]*Switch) {
	used := map[string]int{}
	for i, l := range t.Links {
		at := fmt.Sprintf("links[%d]", i)
		for _, e := range []struct {
			key, end string
		}{{"a", l.A}, {"b", l.B}} {
			field := at + "." + e.key
			if first, dup := used[e.end]; dup {
				p.errorf(l.Line, field, "%q is already plugged in, on line %d", e.end, first)
			}
			used[e.end] = l.Line
			if IsNIC(e.end) {
				if _, ok := nics[e.end]; !ok {
					p.errorf(l.Line, field, "dangling: no node has a NIC %q", e.end)
				}
				continue
			}
			sw, port, _ := SplitPort(e.end)
			if switches[sw] == nil {
				what := ""
				if _, ok := owners[sw]; ok {
					what = "; a NIC is written node/device"
				}
				p.errorf(l.Line, field, "dangling: no switch %q%s", sw, what)
			}
			if err := CheckDevice(port); err != nil {
				p.errorf(l.Line, field, "%v", err)
			}
		}
		if IsNIC(l.A) && IsNIC(l.B) {
			p.errorf(l.Line, at, "both ends are NICs; a link has a switch on at least one end")
			continue
		}
		if OwnerOf(l.A) == OwnerOf(l.B) {
			p.errorf(l.Line, at, "both ends are on %q", OwnerOf(l.A))
			continue
		}
		a, b := switches[OwnerOf(l.A)], switches[OwnerOf(l.B)]
		if !l.IsAccess() && a != nil && b != nil {
			ta, tb := tierOf(a), tierOf(b)
			if d := ta - tb; d != 1 && d != -1 && a.Group == "" && b.Group == "" {
				p.warnf(l.Line, at, "tier jump: %q is tier %d and %q is tier %d; a link of a Clos joins neighbouring tiers", a.Name, ta, b.Name, tb)
			}
			if a.Plane != b.Plane && a.Plane != "" && b.Plane != "" {
				p.warnf(l.Line, at, "joins plane %q and plane %q", a.Plane, b.Plane)
			}
		}
		if l.IsAccess() {
			sw := a
			if IsNIC(l.A) {
				sw = b
			}
			if sw != nil && tierOf(sw) != 1 && !l.Discovered {
				p.warnf(l.Line, at, "tier jump: a NIC is plugged into %q, tier %d, not into a leaf", sw.Name, tierOf(sw))
			}
		}
	}
	for i, n := range t.Nodes {
		for j, nic := range n.NICs {
			if _, ok := used[nic.ID()]; !ok {
				p.warnf(nic.Line, fmt.Sprintf("nodes[%d].nics[%d]", i, j), "NIC %q has no link", nic.ID())
			}
		}
	}
}

func tierOf(s *Switch) int {
	if s.Tier > 0 {
		return s.Tier
	}
	return s.Role.DefaultTier()
}

func (p *parser) checkAddresses(t *Topology) {
	owner := map[netip.Addr]string{}
	lines := map[netip.Addr]int{}
	claim := func(line int, field, end string, a netip.Addr) {
		if !a.IsValid() {
			return
		}
		if was, dup := owner[a]; dup && was != end {
			p.errorf(line, field, "address %s is already that of %q, on line %d", a, was, lines[a])
			return
		}
		owner[a], lines[a] = end, line
	}
	for i, s := range t.Switches {
		for _, a := range s.Addresses {
			claim(s.Line, fmt.Sprintf("switches[%d].addresses", i), s.Name, a)
		}
	}
	for i, n := range t.Nodes {
		for j, nic := range n.NICs {
			for _, a := range nic.Addresses {
				claim(nic.Line, fmt.Sprintf("nodes[%d].nics[%d].addresses", i, j), nic.ID(), a)
			}
		}
	}
	for i, l := range t.Links {
		at := fmt.Sprintf("links[%d]", i)
		claim(l.Line, at+".a_address", l.A, l.AAddress.Addr())
		claim(l.Line, at+".b_address", l.B, l.BAddress.Addr())
		if l.AAddress.IsValid() && l.BAddress.IsValid() && l.AAddress.Masked() != l.BAddress.Masked() {
			p.errorf(l.Line, at+".b_address", "%s and %s are not in one subnet", l.AAddress, l.BAddress)
		}
		if l.AAddress.IsValid() != l.BAddress.IsValid() {
			p.warnf(l.Line, at, "one end has an address and the other has none")
		}
	}
	p.checkNodeAddresses(t, owner)
}

// checkNodeAddresses finds addresses of nodes that are another's as well.
func (p *parser) checkNodeAddresses(t *Topology, owner map[netip.Addr]string) {
	lines := map[string]int{}
	for i, n := range t.Nodes {
		if n.Address == "" {
			continue
		}
		field := fmt.Sprintf("nodes[%d].address", i)
		if a, err := netip.ParseAddr(n.Address); err == nil {
			if end := owner[a]; end != "" && OwnerOf(end) != n.Name {
				p.errorf(n.Line, field, "address %s is already that of %q", a, end)
			}
		}
		if first, dup := lines[n.Address]; dup {
			p.errorf(n.Line, field, "%q is already the address of another node, on line %d", n.Address, first)
			continue
		}
		lines[n.Address] = n.Line
	}
}

// checkShape warns of islands: parts of one plane that no link joins.
func (p *parser) checkShape(t *Topology) {
	g := NewGraph(t)
	comp := map[string]int{}
	var walk func(owner string, c int)
	walk = func(owner string, c int) {
		if _, seen := comp[owner]; seen {
			return
		}
		comp[owner] = c
		for _, end := range g.EndsOf(owner) {
			// A node joins its planes by being in all of them, not by forwarding.
			if next := OwnerOf(g.PeerOf(end)); g.Switch(next) != nil {
				walk(next, c)
			}
		}
	}
	type key struct{ plane string }
	groups := map[key]map[int][]*Switch{}
	for i := range t.Switches {
		s := &t.Switches[i]
		walk(s.Name, i)
		k := key{s.Plane}
		if groups[k] == nil {
			groups[k] = map[int][]*Switch{}
		}
		groups[k][comp[s.Name]] = append(groups[k][comp[s.Name]], s)
	}
	for k, parts := range groups {
		if len(parts) < 2 {
			continue
		}
		var ids []int
		for c := range parts {
			ids = append(ids, c)
		}
		sort.Slice(ids, func(i, j int) bool {
			if a, b := len(parts[ids[i]]), len(parts[ids[j]]); a != b {
				return a > b
			}
			return ids[i] < ids[j]
		})
		where := "the fabric"
		if k.plane != "" {
			where = fmt.Sprintf("plane %q", k.plane)
		}
		for _, c := range ids[1:] {
			var names []string
			for _, s := range parts[c] {
				names = append(names, s.Name)
			}
			p.warnf(parts[c][0].Line, "", "island: no link joins %s to the rest of %s", strings.Join(names, ", "), where)
		}
	}
}

// checkLocators finds switches whose locators are absent, of no use, of another block or another switch's, and addresses that
// the block of the locators hides.
func (p *parser) checkLocators(t *Topology) {
	owners := map[Locator]int{}
	first := -1
	for i, s := range t.Switches {
		line, given := p.locators[i]
		field := fmt.Sprintf("switches[%d].locator", i)
		switch {
		case given && !t.IsSourceRouted():
			p.errorf(line, field, "a locator has no effect without forwarding: srv6")
		case !given && t.IsSourceRouted() && !s.Discovered:
			p.errorf(s.Line, field, "%q has none, and forwarding: srv6 needs a locator of every switch, such as fcbb:bb00:%x::/48", s.Name, i+1)
		}
		if !t.IsSourceRouted() || s.Locator.IsZero() {
			continue
		}
		if first < 0 {
			first = i
		}
		if block := t.Switches[first].Locator.Block(); s.Locator.Block() != block {
			p.errorf(line, field, "%s is not in the block of the other locators, %s of line %d", s.Locator, block, p.locators[first])
		}
		if was, dup := owners[s.Locator]; dup {
			p.errorf(line, field, "%s is already the locator of %q, on line %d", s.Locator, t.Switches[was].Name, p.locators[was])
			continue
		}
		owners[s.Locator] = i
	}
	if first < 0 {
		return
	}
	block := t.Switches[first].Locator.Block()
	hidden := func(line int, field string, a netip.Addr) {
		if block.Contains(a) {
			p.errorf(line, field, "address %s is in the block of the locators, %s", a, block)
		}
	}
	t.eachAddress(hidden)
}

// eachAddress calls fn with each address of the topology, its line and its field.
func (t *Topology) eachAddress(fn func(line int, field string, a netip.Addr)) {
	for i, s := range t.Switches {
		for _, a := range s.Addresses {
			fn(s.Line, fmt.Sprintf("switches[%d].addresses", i), a)
		}
	}
	for i, n := range t.Nodes {
		for j, nic := range n.NICs {
			for _, a := range nic.Addresses {
				fn(nic.Line, fmt.Sprintf("nodes[%d].nics[%d].addresses", i, j), a)
			}
		}
	}
	for i, l := range t.Links {
		fn(l.Line, fmt.Sprintf("links[%d].a_address", i), l.AAddress.Addr())
		fn(l.Line, fmt.Sprintf("links[%d].b_address", i), l.BAddress.Addr())
	}
}
