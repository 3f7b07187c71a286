package coordinator

import (
	"log/slog"
	"maps"
	"slices"
	"time"
)

// Minimum times between writes.
const (
	saveEvery         = 2 * time.Second // of changes
	saveLastSeenEvery = time.Minute     // of last-seen times alone
)

// stateFile knows whether the state is written. It needs the coordinator's mu.
type stateFile struct {
	path    string
	unsaved bool
	failing bool // the last write failed
	savedAt time.Duration
}

// due reports whether a write is due.
func (f *stateFile) due(mono time.Duration) bool {
	return f.unsaved && mono-f.savedAt >= saveEvery || mono-f.savedAt >= saveLastSeenEvery
}

// recordWrite records the result of a write, and logs when it changes.
func (f *stateFile) recordWrite(err error, log *slog.Logger) {
	if err != nil && !f.failing {
		log.Error("cannot write the state: until a later write succeeds, a restart forgets what changes, and no key rotates", "file", f.path, "err", err)
	}
	if err == nil && f.failing {
		log.Info("the state is written again", "file", f.path)
	}
	f.failing = err != nil
	f.unsaved = f.unsaved || f.failing
}

// saveState writes the state: of a leader its own, of a standby that of the leader. It needs changeMu, or exclusive access.
func (c *Coordinator) saveState() error {
	c.mu.Lock()
	leads, replica := c.leadership.leads, c.leadership.replica
	if !leads {
		c.file.unsaved, c.file.savedAt = false, c.opts.Clock.MonoTime()
	}
	c.mu.Unlock()
	switch {
	case leads:
		return c.saveWith(c.keys)
	case replica == nil:
		return nil
	}
	return c.writeState(replica)
}

// saveWith writes the state of a leader with a keyring, and hands it to the standbys. It needs changeMu, or exclusive access.
func (c *Coordinator) saveWith(keys *keyring) error {
	s := c.currentState(keys)
	err := c.writeState(s)
	if err == nil || keys == c.keys {
		c.replication.publish(s)
	}
	return err
}

// writeState writes a state. It needs changeMu, or exclusive access.
func (c *Coordinator) writeState(s *state) error {
	err := writeState(c.file.path, s)
	c.counters.addSave(err == nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.file.recordWrite(err, c.log)
	return err
}

// currentState returns the state with a keyring. Changes from now on count as unsaved.
func (c *Coordinator) currentState(keys *keyring) *state {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &state{Version: stateVersion, Written: c.opts.Clock.WallTime(), Lives: c.registry.lives.reserved,
		Epoch: c.leadership.epoch, FenceKey: c.leadership.fenceKey, Maintenance: c.maintenance.stored}
	if keys != nil {
		s.Keys, s.KeysAt = keys.epochs, keys.rotated
	}
	for _, m := range c.moves.list {
		s.Moves = append(s.Moves, moveState(m))
	}
	for _, n := range slices.Sorted(maps.Keys(c.planning.claims)) {
		k := c.planning.claims[n]
		s.Claims = append(s.Claims, claimState{NIC: n, Address: k.address, AddressOrder: k.addressOrder, GID: k.gid, GIDOrder: k.gidOrder})
	}
	for _, n := range slices.Sorted(maps.Keys(c.registry.agents)) {
		a := c.registry.agents[n]
		as := agentState{Node: n, Present: a.present, LastSeen: a.lastSeen, Web: a.web.address, Scheme: a.web.scheme, From: a.web.from, Software: a.software, Interfaces: a.interfaces.interfaces,
			Assigned: a.assigned.version, Life: a.life}
		if a.assigned.version != 0 {
			as.Hash = slices.Clone(a.assigned.hash[:])
		}
		s.Agents = append(s.Agents, as)
	}
	c.file.unsaved, c.file.savedAt = false, c.opts.Clock.MonoTime()
	return s
}
