package daemon

import (
	"errors"
	"slices"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
)

// Scope is the part of the fabric that an analyzer is responsible for, if several share it.
type Scope struct {
	// Planes are the planes of which it is responsible. No cable may leave them. Empty means all planes.
	Planes []string `yaml:"planes"`
	// Pods are the pods of these planes, or the groups of a Dragonfly+, of which it is responsible. Empty means all of them.
	Pods []string `yaml:"pods"`
	// Core means that it is also responsible for what is above all pods. One analyzer of those with pods is expected to be.
	Core bool `yaml:"core"`
}

// name returns the value of the label shard, or "" for the whole fabric: the planes, the pods and the core.
func (s *Scope) name() string {
	parts := []string{strings.Join(s.Planes, "+"), strings.Join(s.Pods, "+")}
	if s.Core {
		parts = append(parts, fabric.CoreName)
	}
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), "/")
}

// validate returns an error if a plane or pod is named twice or not at all, or if there is a core without pods. It sorts the
// names, so that all analyzers of the same part have one name.
func (s *Scope) validate() error {
	for _, list := range []struct {
		key   string
		names []string
	}{{"scope.planes", s.Planes}, {"scope.pods", s.Pods}} {
		slices.Sort(list.names)
		for i, p := range list.names {
			if p == "" || i > 0 && list.names[i-1] == p {
				return keyErrorf(list.key, "%q: different names are expected", p)
			}
		}
	}
	if s.Core && len(s.Pods) == 0 {
		return keyErrorf("scope.core", "pods are expected beside it: an analyzer without pods is responsible for everything, and one of the core alone would have no flows of its own")
	}
	return nil
}

// applyScope restricts the topology, the switches and the queries to the planes of the scope, and what is published to its
// pods.
func (c *Config) applyScope() error {
	c.whole = c.topology
	if len(c.Scope.Planes) > 0 {
		part, err := c.topology.OnlyPlanes(c.Scope.Planes)
		if err != nil {
			return keyErrorf("scope.planes", "%w", err)
		}
		c.topology = part
	}
	g := fabric.NewGraph(c.topology)
	if len(c.Scope.Pods) > 0 {
		if err := c.applyPods(g); err != nil {
			return err
		}
	}
	if len(c.Scope.Planes) == 0 {
		return nil
	}
	if c.Switches != nil {
		c.Switches.Names = slices.DeleteFunc(slices.Clone(c.Switches.Names), func(name string) bool { return g.Switch(name) == nil })
	}
	c.settings.Scope.Planes, c.settings.Scope.Has = c.Scope.Planes, func(nic string) bool { return g.NIC(nic) != nil }
	c.elements = map[string]bool{}
	for _, id := range g.ElementIDs() {
		c.elements[id] = true
	}
	return nil
}

// applyPods sets the part that the pods of the scope are.
func (c *Config) applyPods(g *fabric.Graph) error {
	part, err := fabric.NewPart(g, c.Scope.Pods, c.Scope.Core)
	switch {
	case errors.Is(err, fabric.ErrNoCore):
		return keyErrorf("scope.core", "%w", err)
	case err != nil:
		return keyErrorf("scope.pods", "%w", err)
	}
	c.settings.Scope.Part = part
	return nil
}

// owns reports whether the part publishes verdicts on an element. Nodes are in every plane.
func (c *Config) owns(e fabric.Element) bool {
	id, _, _ := strings.Cut(e.ID, "@")
	return (c.elements == nil || c.elements[id]) && c.settings.Scope.Part.Owns(e)
}
