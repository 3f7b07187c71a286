package probe

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
)

// wiring holds what the NICs of an engine share.
type wiring struct {
	timeline
	deps  Deps
	poll  pollSet
	ssids ssidPool
	lives nodeLives
}

func newWiring(deps Deps, poll Poller) *wiring {
	w := &wiring{timeline: timeline{Clock: deps.Clock, base: deps.Clock.Now()}, deps: deps, poll: pollSet{Poller: poll},
		ssids: ssidPool{taken: map[uint16]bool{}}, lives: nodeLives{peers: map[string]*peerLife{}}}
	w.poll.sockets.Store(&[]polledSocket{})
	return w
}

// polledSocket represents a socket that the poller waits on, and the NIC that reads it.
type polledSocket struct {
	socket *socket // nil means the token is free
	nic    *nic
}

// pollSet is the poller of an engine with the sockets that it waits on.
type pollSet struct {
	Poller
	mu      sync.Mutex
	sockets atomic.Pointer[[]polledSocket] // by token; never changed, only replaced
}

// addSocket adds a socket of a NIC.
func (p *pollSet) addSocket(s *socket, reader *nic) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.Clone(*p.sockets.Load())
	token := slices.Index(all, polledSocket{})
	if token < 0 {
		token = len(all)
		all = append(all, polledSocket{})
	}
	all[token] = polledSocket{s, reader}
	if err := p.Add(s.FD(), int32(token)); err != nil {
		return err
	}
	p.sockets.Store(&all)
	return nil
}

// removeSocket removes a socket, if it was added.
func (p *pollSet) removeSocket(s *socket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.Clone(*p.sockets.Load())
	if i := slices.IndexFunc(all, func(o polledSocket) bool { return o.socket == s }); i >= 0 {
		all[i] = polledSocket{}
		p.sockets.Store(&all)
	}
}

// ssidPool has the session identifiers of a node's NICs.
type ssidPool struct {
	mu    sync.Mutex
	taken map[uint16]bool
}

// drawSSID returns a random identifier that no other NIC of the node has.
func (p *ssidPool) drawSSID() uint16 {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if id := uint16(1 + rand.IntN(ssidMask)); !p.taken[id] {
			p.taken[id] = true
			return id
		}
	}
}
