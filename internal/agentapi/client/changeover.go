package client

import (
	"log/slog"
	"time"

	"github.com/graylink/graylink/internal/agentapi"
)

// changeover puts assignments to use, in two steps where other agents would be disturbed otherwise.
type changeover struct {
	agent       Agent
	log         *slog.Logger
	target      *agentapi.Assignment // the newest that was received
	keys        *agentapi.Keys
	working     *agentapi.Assignment // the assignment that the agent applied, possibly a step on the way to target
	workingKeys *agentapi.Keys
	applied     *agentapi.Applied
	failure     string // why the agent could not apply the assignment; empty if it could
	timer       *time.Timer
}

func newChangeover(agent Agent, log *slog.Logger) changeover {
	c := changeover{agent: agent, log: log, applied: &agentapi.Applied{}, timer: time.NewTimer(0)}
	c.timer.Stop()
	return c
}

// apply gives the agent an assignment with its keys, and logs a failure.
func (c *changeover) apply(a *agentapi.Assignment, k *agentapi.Keys) {
	if err := c.agent.Apply(a, k); err != nil {
		if c.failure != err.Error() {
			c.log.Error("cannot apply the assignment; trying again later", "version", a.GetVersion(), "err", err)
		}
		c.failure = err.Error()
		return
	}
	c.failure, c.working, c.workingKeys = "", a, k
	c.applied = &agentapi.Applied{Version: c.target.GetVersion(), Hash: c.target.GetHash(), KeyIds: k.GetIds()}
}

// begin applies the first step from the working assignment to the target, which does not
// disturb other agents.
func (c *changeover) begin() {
	if c.target == nil {
		if c.keys != nil {
			c.applied = &agentapi.Applied{KeyIds: c.keys.GetIds()}
		}
		return
	}
	step := changeoverStep(c.working, c.target)
	if step == nil {
		c.timer.Stop()
		c.apply(c.target, c.keys)
		return
	}
	c.apply(step, joinKeys(c.keys, c.workingKeys))
	c.timer.Reset(time.Duration(c.target.GetChangeoverNs()))
}

// end applies the target assignment.
func (c *changeover) end() {
	if c.target != nil {
		c.apply(c.target, c.keys)
	}
}

// takeKeys stores keys, and puts them to use as far as the working assignment needs them. It does not
// use invalid keys, and returns false for them.
func (c *changeover) takeKeys(k *agentapi.Keys) (taken bool) {
	if err := checkKeys(k); err != nil {
		c.log.Error("cannot use the received keys", "err", err)
		c.failure = err.Error()
		return false
	}
	c.keys = k
	if c.target != nil && c.working != nil {
		// The assignment that needs the new keys comes next. The keys in use stay.
		c.apply(c.working, joinKeys(k, c.workingKeys))
	} else {
		c.begin()
	}
	return true
}

// takeAssignment begins the changeover to an assignment of a node. It does not use an invalid one, and
// returns false for it.
func (c *changeover) takeAssignment(a *agentapi.Assignment, node string) (taken bool) {
	if err := checkAssignment(a, node); err != nil {
		c.log.Error("cannot use the received assignment", "err", err)
		c.failure = err.Error()
		return false
	}
	c.target = a
	c.begin()
	return true
}
