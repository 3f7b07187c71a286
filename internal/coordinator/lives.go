package coordinator

import (
	"time"

	"github.com/graylink/graylink/internal/agentapi"
)

// lifeBlock is the number of life numbers that are reserved at a time. A reservation is written to the
// state file before its numbers are given, so that no number is given twice, whenever the coordinator
// ends.
const lifeBlock = 1 << 20

// lifeNumbers assigns the numbers of agents' lives. Two processes never get the same number.
type lifeNumbers struct {
	lastGiven uint64 // the last number that was given
	reserved  uint64 // the last number that the state file reserves
}

// newLifeNumbers continues after the reservation of a state, and not below the wall time in
// milliseconds, so that a coordinator that lost its state does not begin again at 1.
func newLifeNumbers(s *state, wall time.Time) lifeNumbers {
	l := lifeNumbers{lastGiven: uint64(max(wall.UnixMilli(), 1))}
	if s != nil {
		l.lastGiven = max(l.lastGiven, s.Lives)
	}
	l.reserved = l.lastGiven + lifeBlock
	return l
}

// assignLife returns the life number of an agent process that sent a hello, and whether the state must
// be saved to reserve more numbers. A process that has a number from a coordinator keeps it, unless a
// process that used the same name has had a higher one, highest, in the meantime: peers take packets of
// a lower number for replays. The number that an agent reports affects only that agent.
func (l *lifeNumbers) assignLife(h *agentapi.Hello, highest uint64) (life uint64, save bool) {
	if h.GetLifeAssigned() && h.GetLife() != 0 && h.GetLife() >= highest {
		return h.GetLife(), false
	}
	l.lastGiven++
	if l.lastGiven+lifeBlock/2 > l.reserved {
		l.reserved += lifeBlock
		save = true
	}
	return max(l.lastGiven, h.GetLife()+1, highest+1), save
}

// noteLife records the life number of a session's process, which peers get, once the process probes: it has its own configuration, or
// applied its assignment. A process that uses the name of a node, and has none of its NICs, ends no life of the node. It needs mu.
func (c *Coordinator) noteLife(s *session) {
	a := s.agent
	if s.life == a.life || a.status.applyError != "" || !a.ownConfiguration && !a.upToDate() {
		return
	}
	a.life, c.file.unsaved = s.life, true
}

// livesOf returns the known life numbers of a node's peers.
func (c *Coordinator) livesOf(p *plan, node string) *agentapi.Lives {
	peers := p.peerNodes(node)
	out := &agentapi.Lives{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range peers {
		if a := c.registry.agents[n]; a != nil && a.life != 0 {
			out.Nodes = append(out.Nodes, &agentapi.NodeLife{Node: n, Life: a.life})
		}
	}
	return out
}
