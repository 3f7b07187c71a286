//go:build all

package e2e

import (
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// relayMode is what a relay does with what it gets.
type relayMode int

const (
	relayPasses relayMode = iota
	relayOneWay           // what the server sends waits
	relaySlow             // everything takes relayDelay
	relayCut              // no connection is accepted, and there is none
)

const relayDelay = 300 * time.Millisecond

// relay passes connections of one unix socket to another one, and is the network between programs that have no other.
type relay struct {
	t        *testing.T
	listener net.Listener
	to       string
	mu       sync.Mutex
	changed  *sync.Cond
	mode     relayMode
	ended    bool
	open     map[net.Conn]bool
	wg       sync.WaitGroup
}

// startRelay starts one that ends with the test.
func startRelay(t *testing.T, at, to string) *relay {
	t.Helper()
	l, err := net.Listen("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(at, 0o777); err != nil {
		t.Fatal(err)
	}
	r := &relay{t: t, listener: l, to: to, open: map[net.Conn]bool{}}
	r.changed = sync.NewCond(&r.mu)
	r.wg.Go(r.accept)
	t.Cleanup(func() {
		l.Close()
		r.mu.Lock()
		r.ended = true
		r.mu.Unlock()
		r.changed.Broadcast()
		r.drop()
		r.wg.Wait()
	})
	return r
}

// set changes the mode. All connections end if there are to be none.
func (r *relay) set(m relayMode) {
	r.mu.Lock()
	r.mode = m
	r.mu.Unlock()
	r.changed.Broadcast()
	if m == relayCut {
		r.drop()
	}
}

// drop ends all connections.
func (r *relay) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.open {
		c.Close()
	}
	clear(r.open)
}

func (r *relay) accept() {
	for {
		near, err := r.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("unix", r.to)
		r.mu.Lock()
		if err != nil || r.mode == relayCut || r.ended {
			r.mu.Unlock()
			near.Close()
			if err == nil {
				far.Close()
			}
			continue
		}
		r.open[near], r.open[far] = true, true
		r.mu.Unlock()
		r.wg.Go(func() { r.pass(far, near, false) })
		r.wg.Go(func() { r.pass(near, far, true) })
	}
}

// pass passes what comes from one connection to another one, until either of them ends.
func (r *relay) pass(to, from net.Conn, ofServer bool) {
	defer func() {
		to.Close()
		from.Close()
		r.mu.Lock()
		delete(r.open, to)
		delete(r.open, from)
		r.mu.Unlock()
	}()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		r.mu.Lock()
		for r.mode == relayOneWay && ofServer && !r.ended {
			r.changed.Wait()
		}
		slow := r.mode == relaySlow
		r.mu.Unlock()
		if slow {
			time.Sleep(relayDelay)
		}
		if n > 0 {
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
