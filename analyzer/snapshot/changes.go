package snapshot

import "sync"

// Changes announces to any number of readers that the state of an analyzer has changed. The zero value is usable, and it is safe for
// concurrent use.
type Changes struct {
	mu      sync.Mutex
	version uint64
	next    chan struct{} // is closed by the next change; nil if nothing waits for it
}

// Announce announces a change. The new state must be readable by then.
func (c *Changes) Announce() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version++
	if c.next != nil {
		close(c.next)
		c.next = nil
	}
}

// Watch returns the number of the last change, and a channel that the next one closes. What is read afterwards is at least as new.
func (c *Changes) Watch() (version uint64, next <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == nil {
		c.next = make(chan struct{})
	}
	return c.version, c.next
}

// Version returns the number of the last change.
func (c *Changes) Version() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version
}
