package audit

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
)

// Scope is the part of a fabric that is audited. The zero value is the whole. Evidence from outside is used, but only elements of the scope are judged.
type Scope struct {
	g          *fabric.Graph
	kind, name string
	element    string // of a maintenance window
}

// maintenanceKind is the kind of a scope that a maintenance window has.
const maintenanceKind = "maintenance"

// MaintenanceWindow returns the identifier of the maintenance window that the text of a scope names.
func MaintenanceWindow(text string) (id string, named bool) {
	return strings.CutPrefix(text, maintenanceKind+":")
}

// MaintenanceScope returns the scope of a maintenance window, by its identifier and its element: the element and what belongs to it, as
// a window covers it. It fails if the fabric does not have the element.
func MaintenanceScope(g *fabric.Graph, id, element string) (Scope, error) {
	known := g.Node(element) != nil || g.Switch(element) != nil || g.NIC(element) != nil || g.LinkAt(element) != nil
	if a, b, isLink := fabric.SplitLink(element); isLink {
		known = g.PeerOf(a) == b && g.LinkAt(a) != nil
	}
	if !known {
		return Scope{}, fmt.Errorf("scope %s:%s: the topology has no element %q, which the window is about", maintenanceKind, id, element)
	}
	return Scope{g: g, kind: maintenanceKind, name: id, element: element}, nil
}

// ParseScope reads "fabric", "plane:NAME", "pod:NAME", "node:NAME" or "link:A--B". It fails if the fabric has no such part. The scope
// of a maintenance window is made by MaintenanceScope.
func ParseScope(g *fabric.Graph, text string) (Scope, error) {
	kind, name, _ := strings.Cut(text, ":")
	s := Scope{g: g, kind: kind, name: name}
	switch kind {
	case "fabric":
		if text != kind {
			return s, fmt.Errorf("scope %q: fabric has no name", text)
		}
		return s, nil
	case "link":
		if !g.HasElement(fabric.Element{ID: name, Kind: fabric.KindLink}) && !g.HasElement(fabric.Element{ID: name, Kind: fabric.KindAccessLink}) {
			return s, fmt.Errorf("scope %q: the topology has no such link", text)
		}
		return s, nil
	case "node":
		if g.Node(name) == nil {
			return s, fmt.Errorf("scope %q: the topology has no such node", text)
		}
		return s, nil
	case "plane", "pod":
		for _, nic := range g.NICIDs() {
			if s.hasNIC(nic) {
				return s, nil
			}
		}
		return s, fmt.Errorf("scope %q: the topology has no NIC in such a %s", text, kind)
	}
	return s, fmt.Errorf("scope %q: fabric, plane:NAME, pod:NAME, node:NAME, link:A--B or maintenance:ID is expected", text)
}

// String returns the scope as it was written.
func (s Scope) String() string {
	if s.kind == "" || s.kind == "fabric" {
		return "fabric"
	}
	return s.kind + ":" + s.name
}

// isWhole reports whether the scope is the whole fabric.
func (s Scope) isWhole() bool { return s.kind == "" || s.kind == "fabric" }

// hasNIC reports whether a NIC is in the scope.
func (s Scope) hasNIC(nic string) bool {
	switch s.kind {
	case "plane":
		return s.g.PlaneOf(nic) == s.name
	case "pod":
		return s.g.PodOf(nic) == s.name
	case "node":
		return fabric.OwnerOf(nic) == s.name
	case "link":
		a, b, _ := fabric.SplitLink(s.name)
		return nic == a || nic == b
	case maintenanceKind:
		a, b, _ := fabric.SplitLink(s.element)
		return nic == s.element || fabric.OwnerOf(nic) == s.element || nic == a || nic == b
	}
	return true
}

// hasNode reports whether any NIC of a node is in the scope.
func (s Scope) hasNode(node string) bool {
	if s.kind == "" || s.kind == "fabric" {
		return true
	}
	n := s.g.Node(node)
	for i := range n.NICs {
		if s.hasNIC(n.NICs[i].ID()) {
			return true
		}
	}
	return false
}

// hasSwitch reports whether a switch is in the scope. Links have their switches in theirs, and nodes have none.
func (s Scope) hasSwitch(sw string) bool {
	switch s.kind {
	case "plane":
		x := s.g.Switch(sw)
		return x != nil && x.Plane == s.name
	case "pod":
		x := s.g.Switch(sw)
		return x != nil && x.PodName() == s.name
	case "node", "link":
		return false
	case maintenanceKind:
		return sw == s.element
	}
	return true
}

// hasLink reports whether a link is in the scope: one of its ends is.
func (s Scope) hasLink(id string) bool {
	if s.kind == "link" {
		return id == s.name
	}
	a, b, ok := fabric.SplitLink(id)
	if !ok {
		return false
	}
	if s.kind == maintenanceKind && (id == s.element || a == s.element || b == s.element) {
		return true
	}
	for _, end := range []string{a, b} {
		if fabric.IsNIC(end) && s.hasNIC(end) || !fabric.IsNIC(end) && s.hasSwitch(fabric.OwnerOf(end)) {
			return true
		}
	}
	return false
}

// kindOf returns the kind of a link, by which links are compared: its tier and its speed.
func kindOf(g *fabric.Graph, id string) string {
	a, _, _ := fabric.SplitLink(id)
	l := g.LinkAt(a)
	if l == nil || l.ID() != id {
		return "a link that is not planned"
	}
	kind := "fabric link of tier " + strconv.Itoa(g.LinkTier(l))
	if l.IsAccess() {
		kind = "access link"
	}
	if l.SpeedGbps > 0 {
		kind += fmt.Sprintf(", %g Gbit/s", l.SpeedGbps)
	}
	return kind
}
