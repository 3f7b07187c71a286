package coordinator

import (
	"errors"
)

// advanceKeys continues a rotation, or begins one that is due. While the state cannot be written, or a
// standby has not yet written it, it does neither, and waits until that has happened.
func (c *Coordinator) advanceKeys() {
	c.mu.Lock()
	if c.keys == nil || c.file.failing || c.replication.behind() {
		c.mu.Unlock()
		return
	}
	wall, mono := c.opts.Clock.WallTime(), c.opts.Clock.MonoTime()
	var holders []keyHolder
	for _, a := range c.registry.agents {
		if a.ownConfiguration {
			continue
		}
		planned := c.planning.hasNode(a.node) // peers may still send to this node
		if a.session != nil || a.present || planned {
			holders = append(holders, keyHolder{a.session != nil, a.status.applied.GetKeyIds()})
		}
	}
	next := c.keys.advanceRotation(holders, c.opts.Heartbeat, c.opts.KeysGrace, c.opts.RotateEvery, wall, mono)
	if next == nil && c.keys.rotationDue != 0 && mono >= c.keys.rotationDue && len(c.keys.epochs) < maxEpochs && c.allConnected() {
		next, _ = c.keys.withNew(wall, mono)
	}
	c.mu.Unlock()
	if next == nil {
		return
	}
	if err := c.setKeys(next); err != nil {
		c.log.Error("cannot rotate the keys; the old ones stay in use", "err", err)
	}
}

// RotateKeys begins a rotation. It returns an error if there are no keys, or if a rotation is in
// progress.
func (c *Coordinator) RotateKeys() error {
	c.changeMu.Lock()
	defer c.changeMu.Unlock()
	c.mu.Lock()
	k := c.keys
	leads := c.leadership.leads
	c.mu.Unlock()
	if !leads {
		return errStandby
	}
	if k == nil {
		return errors.New("probes are not authenticated: there are no keys to rotate")
	}
	next, err := k.withNew(c.opts.Clock.WallTime(), c.opts.Clock.MonoTime())
	if err != nil {
		return err
	}
	return c.setKeys(next)
}

// setKeys writes the keys to the state before any agent gets them, so that no agent holds a key that a
// crash could make the coordinator forget. It needs changeMu.
func (c *Coordinator) setKeys(next *keyring) error {
	if err := c.saveWith(next); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys = next
	c.log.Info("keys changed", "sending", next.epochs[0].ID, "held", len(next.epochs))
	for _, a := range c.registry.agents {
		if a.session != nil && !a.ownConfiguration {
			a.session.want.keys = true
			a.session.wakeSender()
		}
	}
	return nil
}
