package daemon

import (
	"slices"
	"strings"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
)

// Scope is the part of the fabric that an analyzer is responsible for, if several share it.
type Scope struct {
	// Planes are the planes of which it is responsible. No cable may leave them.
	Planes []string `yaml:"planes"`
}

// name returns the value of the label shard, or "" for the whole fabric.
func (s *Scope) name() string { return strings.Join(s.Planes, "+") }

// validate returns an error if a plane is named twice or not at all. It sorts the planes, so that all analyzers of the same
// part have one name.
func (s *Scope) validate() error {
	slices.Sort(s.Planes)
	for i, p := range s.Planes {
		if p == "" || i > 0 && s.Planes[i-1] == p {
			return keyErrorf("scope.planes", "%q: different names are expected", p)
		}
	}
	return nil
}

// applyScope restricts the topology, the switches and the queries to the scope.
func (c *Config) applyScope() error {
	c.whole = c.topology
	if len(c.Scope.Planes) == 0 {
		return nil
	}
	part, err := c.topology.OnlyPlanes(c.Scope.Planes)
	if err != nil {
		return keyErrorf("scope.planes", "%w", err)
	}
	c.topology = part
	g := fabric.NewGraph(part)
	if c.Switches != nil {
		c.Switches.Names = slices.DeleteFunc(slices.Clone(c.Switches.Names), func(name string) bool { return g.Switch(name) == nil })
	}
	c.settings.Scope = evidence.Scope{Planes: c.Scope.Planes, Has: func(nic string) bool { return g.NIC(nic) != nil }}
	c.elements = map[string]bool{}
	for _, id := range g.ElementIDs() {
		c.elements[id] = true
	}
	return nil
}

// owns reports whether an element, or the port of a queue, is in the scope. Nodes are in every scope.
func (c *Config) owns(element string) bool {
	port, _, _ := strings.Cut(element, "@")
	return c.elements == nil || c.elements[port]
}
