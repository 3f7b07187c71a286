package snapshot

import (
	"sync"
	"testing"
)

// TestChangesReachAllReaders: each reader that waits learns of a change, and one that asks again waits for the next.
func TestChangesReachAllReaders(t *testing.T) {
	var c Changes
	const readers, changes = 20, 50
	var ready, seen sync.WaitGroup
	ready.Add(readers)
	for range readers {
		seen.Go(func() {
			version, next := c.Watch()
			ready.Done()
			for version < changes {
				<-next
				last := version
				if version, next = c.Watch(); version <= last {
					t.Errorf("the change after %d has the number %d", last, version)
					return
				}
			}
		})
	}
	ready.Wait()
	for range changes {
		c.Announce()
	}
	seen.Wait()
	if v := c.Version(); v != changes {
		t.Errorf("the last change has the number %d, want %d", v, changes)
	}
	_, next := c.Watch()
	select {
	case <-next:
		t.Error("a change is announced that did not happen")
	default:
	}
}
