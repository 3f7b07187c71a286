package coordinator

import (
	"time"

	"github.com/graylink/graylink/internal/agentapi"
)

// lifeBlock is how many life numbers are reserved at a time. What is reserved is
// in the state file before it is given, so that no number is given twice,
// whenever the coordinator ends.
const lifeBlock = 1 << 20

// lifeNumbers gives out the numbers of agents' lives. Two processes never get the same.
type lifeNumbers struct {
	lastGiven uint64 // given
	reserved  uint64 // up to here, by the state file
}

// newLifeNumbers goes on behind what a state has reserved, and not below the time in
// milliseconds: a coordinator that lost its state does not begin again from 1.
func newLifeNumbers(s *state, wall time.Time) lifeNumbers {
	l := lifeNumbers{lastGiven: uint64(max(wall.UnixMilli(), 1))}
	if s != nil {
		l.lastGiven = max(l.lastGiven, s.Lives)
	}
	l.reserved = l.lastGiven + lifeBlock
	return l
}

// assignLife returns the life number of an agent process that says hello, and whether
// more numbers are to be reserved by saving the state. A process that has one
// from a coordinator keeps it. What an agent says of its own number is about
// itself only: it moves no other's.
func (l *lifeNumbers) assignLife(h *agentapi.Hello) (life uint64, save bool) {
	if h.GetLifeAssigned() && h.GetLife() != 0 {
		return h.GetLife(), false
	}
	l.lastGiven++
	if l.lastGiven+lifeBlock/2 > l.reserved {
		l.reserved += lifeBlock
		save = true
	}
	return max(l.lastGiven, h.GetLife()+1), save
}

// livesOf are the life numbers of a node's peers, as far as they are known.
func (c *Coordinator) livesOf(p *plan, node string) *agentapi.Lives {
	peers := p.peerNodes(node)
	out := &agentapi.Lives{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range peers {
		if a := c.agents[n]; a != nil && a.life != 0 {
			out.Nodes = append(out.Nodes, &agentapi.NodeLife{Node: n, Life: a.life})
		}
	}
	return out
}
