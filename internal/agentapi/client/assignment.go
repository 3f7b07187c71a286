package client

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
)

// checkAssignment returns an error that names the field if an assignment for a node is invalid.
func checkAssignment(a *agentapi.Assignment, node string) error {
	if a.GetNode() != node {
		return fmt.Errorf("assignment.node: %q, want %q", a.GetNode(), node)
	}
	if p := a.GetStamp().GetPort(); p == 0 || p > 65535 {
		return fmt.Errorf("assignment.stamp.port: %d, want 1 to 65535", p)
	}
	if p := a.GetStamp().GetSourcePort(); p == 0 || p > 65535 {
		return fmt.Errorf("assignment.stamp.source_port: %d, want 1 to 65535", p)
	}
	for i, c := range a.GetStamp().GetClasses() {
		if c.GetDscp() > 63 {
			return fmt.Errorf("assignment.stamp.classes[%d].dscp: %d, want 0 to 63", i, c.GetDscp())
		}
		if c.GetSl() > 15 {
			return fmt.Errorf("assignment.stamp.classes[%d].sl: %d, want 0 to 15", i, c.GetSl())
		}
	}
	seen := map[string]bool{}
	check := func(at, nic string, address []byte, ssid uint32) error {
		owner, device, ok := fabric.SplitNIC(nic)
		switch {
		case !ok || fabric.CheckName(owner) != nil || fabric.CheckDevice(device) != nil:
			return fmt.Errorf("%s.nic: %q, want node/device", at, nic)
		case seen[nic]:
			return fmt.Errorf("%s.nic: %q is listed twice", at, nic)
		case !agentapi.AddrFromBytes(address).IsValid():
			return fmt.Errorf("%s.address: %d octets, want 4 or 16", at, len(address))
		case ssid > 65535:
			return fmt.Errorf("%s.ssid: %d, want at most 65535", at, ssid)
		}
		seen[nic] = true
		return nil
	}
	for i, n := range a.GetNics() {
		at := fmt.Sprintf("assignment.nics[%d]", i)
		if err := check(at, n.GetNic(), n.GetAddress(), n.GetSsid()); err != nil {
			return err
		}
		if owner, _, _ := fabric.SplitNIC(n.GetNic()); owner != node {
			return fmt.Errorf("%s.nic: %q, want a NIC of %s", at, n.GetNic(), node)
		}
	}
	seen = map[string]bool{}
	for i, p := range a.GetPeers() {
		at := fmt.Sprintf("assignment.peers[%d]", i)
		if err := check(at, p.GetNic(), p.GetAddress(), p.GetSsid()); err != nil {
			return err
		}
		if p.Rdma != nil {
			if err := p.Rdma.CheckQueuePair(at + ".rdma"); err != nil {
				return err
			}
		}
	}
	for what, edges := range map[string][]*agentapi.Edge{"edges": a.GetEdges(), "answers": a.GetAnswers()} {
		for i, e := range edges {
			switch at := fmt.Sprintf("assignment.%s[%d]", what, i); {
			case int(e.GetNic()) >= len(a.GetNics()):
				return fmt.Errorf("%s.nic: %d of %d", at, e.GetNic(), len(a.GetNics()))
			case int(e.GetPeer()) >= len(a.GetPeers()):
				return fmt.Errorf("%s.peer: %d of %d", at, e.GetPeer(), len(a.GetPeers()))
			case int(e.GetFlow())+int(a.GetStamp().GetSourcePort()) > 65535:
				return fmt.Errorf("%s.flow: %d, beyond the last port from %d", at, e.GetFlow(), a.GetStamp().GetSourcePort())
			case e.GetCadenceNs() == 0 || e.GetCadenceNs() > 1<<62:
				return fmt.Errorf("%s.cadence_ns: %d, want a positive duration", at, e.GetCadenceNs())
			case e.GetTier() > 255:
				return fmt.Errorf("%s.tier: %d, want at most 255", at, e.GetTier())
			}
		}
	}
	return nil
}

// checkKeys returns an error that names the field if keys are invalid. The error has no secrets.
func checkKeys(k *agentapi.Keys) error {
	if len(k.GetIds()) > agentapi.MaxKeys {
		return fmt.Errorf("keys.ids: %d, want at most %d", len(k.GetIds()), agentapi.MaxKeys)
	}
	for i, p := range k.GetPeers() {
		at := fmt.Sprintf("keys.peers[%d]", i)
		if err := fabric.CheckName(p.GetNode()); err != nil {
			return fmt.Errorf("%s.node: %w", at, err)
		}
		ids := make([]uint32, len(p.GetKeys()))
		for j, key := range p.GetKeys() {
			if len(key.GetSecret()) < agentapi.SecretSize/2 || len(key.GetSecret()) > 4*agentapi.SecretSize {
				return fmt.Errorf("%s.keys[%d].secret: %d octets, want %d", at, j, len(key.GetSecret()), agentapi.SecretSize)
			}
			ids[j] = key.GetId()
		}
		if !slices.Equal(ids, k.GetIds()) {
			return fmt.Errorf("%s.keys: want those of keys.ids in the same order", at)
		}
	}
	return nil
}

// flowKey identifies an edge or an answer independent of its place in the lists.
type flowKey struct {
	nic, peer string
	flow      uint32
}

func edgesByFlow(a *agentapi.Assignment, edges []*agentapi.Edge) map[flowKey]*agentapi.Edge {
	out := make(map[flowKey]*agentapi.Edge, len(edges))
	for _, e := range edges {
		out[flowKey{a.Nics[e.Nic].Nic, a.Peers[e.Peer].Nic, e.Flow}] = e
	}
	return out
}

// changeoverStep returns the first step from one assignment to another: the edges that both have, and
// the answers that either has, with the NICs and addresses of the new one. It returns nil when the step
// equals the new assignment, so that there is nothing to wait for.
func changeoverStep(old, to *agentapi.Assignment) *agentapi.Assignment {
	if to.GetChangeoverNs() == 0 {
		return nil
	}
	if old == nil {
		old = &agentapi.Assignment{}
	}
	out := proto.Clone(to).(*agentapi.Assignment)
	oldEdges := edgesByFlow(old, old.Edges)
	out.Edges = slices.DeleteFunc(out.Edges, func(e *agentapi.Edge) bool {
		return oldEdges[flowKey{out.Nics[e.Nic].Nic, out.Peers[e.Peer].Nic, e.Flow}] == nil
	})
	nics, peers := map[string]uint32{}, map[string]uint32{}
	addresses := map[string]bool{}
	for i, n := range out.Nics {
		nics[n.Nic] = uint32(i)
		addresses[string(n.Address)] = true
	}
	for i, p := range out.Peers {
		peers[p.Nic] = uint32(i)
		addresses[string(p.Address)] = true
	}
	answers := edgesByFlow(out, out.Answers)
	for _, e := range old.Answers {
		f := flowKey{old.Nics[e.Nic].Nic, old.Peers[e.Peer].Nic, e.Flow}
		nic, own := nics[f.nic]
		if answers[f] != nil || !own {
			continue
		}
		peer, known := peers[f.peer]
		if !known {
			p := old.Peers[e.Peer]
			if addresses[string(p.Address)] {
				continue // another NIC has the address now
			}
			peer = uint32(len(out.Peers))
			peers[f.peer] = peer
			addresses[string(p.Address)] = true
			out.Peers = append(out.Peers, p)
		}
		out.Answers = append(out.Answers, &agentapi.Edge{Nic: nic, Peer: peer, Flow: e.Flow, Tier: e.Tier, CadenceNs: e.CadenceNs})
	}
	if len(out.Edges) == len(to.Edges) && len(out.Answers) == len(to.Answers) {
		return nil
	}
	return out
}

// joinKeys returns the new keys, and the old keys of nodes that have no new ones: these nodes may still
// be answered for a while.
func joinKeys(keys, old *agentapi.Keys) *agentapi.Keys {
	if keys == nil || old == nil {
		return keys
	}
	out := &agentapi.Keys{Ids: keys.Ids, Peers: slices.Clone(keys.Peers)}
	have := map[string]bool{}
	for _, p := range keys.Peers {
		have[p.Node] = true
	}
	for _, p := range old.Peers {
		if !have[p.Node] {
			out.Peers = append(out.Peers, p)
		}
	}
	return out
}
