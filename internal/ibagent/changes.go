package ibagent

import (
	"sync"

	"github.com/graylink/graylink/internal/ibsample"
)

// portChanges reports that ports changed, to the reader of forwarding tables: a link that went down by its counter, and a port
// with another state, rate or neighbour than at the discovery before. It implements ibfabric.ChangeSource.
type portChanges struct {
	mu      sync.Mutex
	store   *ibsample.Store // nil before the delegator has begun
	downs   uint64          // of store, when it was last polled
	changed bool
}

// PollChange implements ibfabric.ChangeSource.
func (c *portChanges) PollChange() (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed := c.changed
	if c.store != nil {
		downs := c.store.LinkDowns()
		changed = changed || downs != c.downs
		c.downs = downs
	}
	c.changed = false
	return changed, nil
}

// setStore sets where the counters of links are kept.
func (c *portChanges) setStore(s *ibsample.Store) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.store = s
}

// compare compares the ports of a discovery with those of the one before.
func (c *portChanges) compare(before, ports map[ibsample.Key]foundPort) {
	changed := false
	for k, p := range ports {
		q, there := before[k]
		changed = changed || !there || p.state != q.state || p.rate != q.rate || p.Remote != q.Remote || p.LID != q.LID
	}
	for k, q := range before {
		_, there := ports[k]
		changed = changed || !there && q.state != 0 // one without a state vanished earlier
	}
	if changed {
		c.mu.Lock()
		c.changed = true
		c.mu.Unlock()
	}
}
