package ufm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Node is a switch or a channel adapter of the inventory, with its ports and cables.
type Node struct {
	// GUID is the node's for a switch, and that of its first port for a channel adapter, whose own GUID UFM does not list.
	GUID, System GUID
	Switch       bool
	Description  string
	// Ports are sorted by their numbers.
	Ports []NodePort
}

// NodePort is a port of a Node.
type NodePort struct {
	// GUID is the node's for a port of a switch.
	GUID   GUID
	Number int
	// LID is 0 if the port has none of its own.
	LID uint16
	// State is the logical state in lower case ("active"), Speed is without its prefix ("HDR"). Unknown ones are empty.
	State, Speed string
	// Lanes is 0 if it is unknown.
	Lanes int
	// Peer is the far end of the cable: the index of a node of the list and the number of its port. It is nil if none is known.
	Peer *PortRef
}

// PortRef identifies a port by the index of its node and its number.
type PortRef struct{ Node, Number int }

// ListNodes returns the nodes of the inventory in the order of the ports in UFM's document, and the contradictions of its cables.
// Ports of a channel adapter are one node if they have the system and the description in common.
func (v *Inventory) ListNodes() (nodes []Node, found []string) {
	type nodeKey struct {
		guid        GUID // of a switch
		system      GUID
		description string
	}
	index := map[nodeKey]int{}
	places := map[*inventoryPort]PortRef{}
	for _, e := range v.portOrder {
		system, err := ParseGUID(string(e.info.SystemID))
		if err != nil {
			system = 0 // unknown
		}
		k := nodeKey{guid: e.key.guid}
		if !e.isSwitch && system != 0 {
			k = nodeKey{system: system, description: nodeDescription(e.info)}
		}
		i, known := index[k]
		if !known {
			i = len(nodes)
			index[k] = i
			nodes = append(nodes, Node{GUID: e.key.guid, System: system, Switch: e.isSwitch, Description: nodeDescription(e.info)})
		}
		n := &nodes[i]
		if slices.ContainsFunc(n.Ports, func(p NodePort) bool { return p.Number == e.key.number }) {
			// Two adapters of one system and description: each port is a node.
			i = len(nodes)
			nodes = append(nodes, Node{GUID: e.key.guid, System: system, Description: n.Description})
			n = &nodes[i]
		}
		p := NodePort{GUID: e.key.guid, Number: e.key.number, State: strings.ToLower(string(e.info.State)), Speed: speedName(string(e.info.Speed)), Lanes: laneCount(string(e.info.Width))}
		if lid, err := strconv.ParseUint(string(e.info.LID), 10, 16); err == nil {
			p.LID = uint16(lid)
		}
		n.Ports = append(n.Ports, p)
		places[e] = PortRef{i, e.key.number}
	}
	for a, b := range v.peers {
		at, far := places[a], places[b]
		for i := range nodes[at.Node].Ports {
			if p := &nodes[at.Node].Ports[i]; p.Number == at.Number {
				p.Peer = &far
			}
		}
	}
	for i := range nodes {
		slices.SortFunc(nodes[i].Ports, func(a, b NodePort) int { return a.Number - b.Number })
	}
	return nodes, append(slices.Clone(v.contradictions), v.cableContradictions()...)
}

// cableContradictions returns a text for each cable of the inventory with an end that is unknown, or that has another cable.
func (v *Inventory) cableContradictions() (found []string) {
	for i, l := range v.Links {
		a, err := v.linkEnd(l.SourceGUID, l.SourcePort)
		if err == nil {
			var b *inventoryPort
			if b, err = v.linkEnd(l.DestinationGUID, l.DestinationPort); err == nil && (v.peers[a] != b || a == b) {
				err = fmt.Errorf("%s--%s: an end has another cable already", a.portName().ID(), b.portName().ID())
			}
		}
		if err != nil {
			found = append(found, fmt.Sprintf("link %d: %v: it is left out", i+1, err))
		}
	}
	return found
}

// speedName returns a speed without its prefix, in upper case: "HDR" for "IB-HDR". It returns "" for one that is unknown.
func speedName(speed string) string {
	name := strings.TrimLeft(strings.TrimPrefix(strings.ToUpper(strings.TrimSpace(speed)), "IB"), "-_ ")
	if _, known := laneGbps[name]; !known {
		return ""
	}
	return name
}
