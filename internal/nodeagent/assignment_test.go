package nodeagent

import (
	"testing"
	"time"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
)

// TestOwnLimitOfTemporaryFlows: whatever an assignment has, a NIC probes and answers 16 temporary flows at most, and none
// that is faster than 100 ms. Scheduled flows are not limited.
func TestOwnLimitOfTemporaryFlows(t *testing.T) {
	a := &agentapi.Assignment{Node: "h1", Stamp: &agentapi.Stamp{Port: 862, SourcePort: 49152},
		Nics:  []*agentapi.NIC{{Nic: "h1/eth1", Address: []byte{10, 0, 0, 1}}, {Nic: "h1/eth2", Address: []byte{10, 0, 0, 2}}},
		Peers: []*agentapi.Peer{{Nic: "h2/eth1", Address: []byte{10, 0, 0, 3}}, {Nic: "h3/eth1", Address: []byte{10, 0, 0, 4}}}}
	for nic := range uint32(2) {
		for peer := range uint32(2) {
			for flow := range uint32(fabric.FlowsPerClass) {
				e := &agentapi.Edge{Nic: nic, Peer: peer, Flow: flow, CadenceNs: uint64(100 * time.Millisecond)}
				if !fabric.IsTemporaryFlow(int(flow)) {
					e.CadenceNs = uint64(10 * time.Millisecond)
				} else if flow == 50 {
					e.CadenceNs--
				}
				a.Edges, a.Answers = append(a.Edges, e), append(a.Answers, e)
			}
		}
	}
	c := fleetConfig(a, nil, &FleetOptions{})
	scheduled, temporary := 0, map[string]int{}
	for _, e := range c.Edges {
		if id := e.ID(); !id.IsTemporary() {
			scheduled++
		} else if temporary[e.Src]++; e.Cadence < 100*time.Millisecond {
			t.Errorf("%s at %v", id, e.Cadence)
		}
	}
	answers := map[string]int{}
	for _, e := range c.Answers {
		if id := e.ID(); id.IsTemporary() {
			answers[e.Dst]++
		}
	}
	if scheduled != 4*fabric.ScheduledFlows || temporary["h1/eth1"] != 16 || temporary["h1/eth2"] != 16 || answers["h1/eth1"] != 16 || answers["h1/eth2"] != 16 {
		t.Errorf("%d scheduled flows, temporary %v, answered %v", scheduled, temporary, answers)
	}
}
