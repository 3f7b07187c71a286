package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/net/bpf"

	"github.com/graylink/graylink/internal/sighting"
	"github.com/graylink/graylink/internal/unix"
)

// headerOctets is the number of octets that parseProbe needs: Ethernet, two tags, IPv6, ports. An IPv4 header has at
// most 60.
const headerOctets = 128

// sightTable collects samples until they are swept.
type sightTable struct {
	mu      sync.Mutex
	limit   int
	flows   map[flowAtPort]*sight
	dropped uint64
}

func (s *sightTable) addSight(p flowAtPort, at int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.flows[p]
	if f == nil {
		if len(s.flows) >= s.limit {
			s.dropped++
			return
		}
		f = &sight{First: uint64(at)}
		s.flows[p] = f
	}
	f.Count++
	f.Last = uint64(at)
}

func (s *sightTable) sweepSights(see func(*sighting.Key, sighting.Sample)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p, f := range s.flows {
		see(&p.Flow, sighting.Sample{Port: p.Port, First: int64(f.First), Last: int64(f.Last), Count: f.Count})
	}
}

func (s *sightTable) removeSight(key *sighting.Key, port uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.flows, flowAtPort{*key, port})
}

// Packet sees probes through a packet socket, whose filter drops packets beyond a rate by chance.
type Packet struct {
	sightTable
	socket     *unix.Packet
	stampPorts []uint16
	rate       int // packets per second
	ports      map[uint32]bool
	wg         sync.WaitGroup
	err        error

	sampleEvery uint32 // one of so many packets is read
	received    int    // packets since the last check of the rate
	rateSince   time.Time
}

// NewPacket opens the socket for probes from or to some STAMP ports. It reads about rate packets per second, and has
// room for so many flows between two sweeps.
func NewPacket(stampPorts []uint16, flows, rate int) (*Packet, error) {
	socket, err := unix.OpenPacket(0x0003, 0, headerOctets)
	if err != nil {
		return nil, err
	}
	p := &Packet{sightTable: sightTable{limit: flows, flows: map[flowAtPort]*sight{}}, socket: socket, stampPorts: stampPorts, rate: rate,
		ports: map[uint32]bool{}, sampleEvery: 1, rateSince: time.Now()}
	if err := errors.Join(p.attachFilter(), socket.SetReceiveBuffer(4<<20)); err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	p.wg.Go(p.receiveLoop)
	return p, nil
}

// attachFilter attaches a filter that passes one of every so many probes.
func (p *Packet) attachFilter() error {
	program, err := bpf.Assemble(filterProgram(p.stampPorts, p.sampleEvery))
	if err != nil {
		return fmt.Errorf("filter of probes: %w", err)
	}
	raw := make([]unix.RawInstruction, len(program))
	for i, in := range program {
		raw[i] = unix.RawInstruction{Op: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	return p.socket.AttachFilter(raw)
}

// filterProgram returns a classic BPF program that accepts UDP from or to the ports, one of every so many packets by
// chance.
func filterProgram(stampPorts []uint16, every uint32) []bpf.Instruction {
	type jump struct {
		at   int
		to   string
		then bool
	}
	var in []bpf.Instruction
	labels := map[string]int{}
	var jumps []jump
	emit := func(i bpf.Instruction) { in = append(in, i) }
	branch := func(i bpf.JumpIf, to string, then bool) { jumps = append(jumps, jump{len(in), to, then}); emit(i) }
	label := func(s string) { labels[s] = len(in) }
	equal := func(v uint32, to string) { branch(bpf.JumpIf{Cond: bpf.JumpEqual, Val: v}, to, true) }
	unless := func(v uint32, to string) { branch(bpf.JumpIf{Cond: bpf.JumpEqual, Val: v}, to, false) }

	emit(bpf.LoadAbsolute{Off: 12, Size: 2})
	equal(typeIPv6, "six")
	unless(typeIPv4, "drop")
	emit(bpf.LoadAbsolute{Off: ethernet + 9, Size: 1})
	unless(protoUDP, "drop")
	emit(bpf.LoadAbsolute{Off: ethernet + 6, Size: 2})
	branch(bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x1fff}, "drop", true)
	emit(bpf.LoadMemShift{Off: ethernet})
	for _, off := range []uint32{0, 2} {
		emit(bpf.LoadIndirect{Off: ethernet + off, Size: 2})
		for _, port := range stampPorts {
			equal(uint32(port), "take")
		}
	}
	emit(bpf.RetConstant{})
	label("six")
	emit(bpf.LoadAbsolute{Off: ethernet + 6, Size: 1})
	unless(protoUDP, "drop")
	for _, off := range []uint32{0, 2} {
		emit(bpf.LoadAbsolute{Off: ethernet + ipv6Length + off, Size: 2})
		for _, port := range stampPorts {
			equal(uint32(port), "take")
		}
	}
	label("drop")
	emit(bpf.RetConstant{})
	label("take")
	if every > 1 {
		emit(bpf.LoadExtension{Num: bpf.ExtRand})
		emit(bpf.ALUOpConstant{Op: bpf.ALUOpMod, Val: every})
		unless(0, "drop2")
	}
	emit(bpf.RetConstant{Val: headerOctets})
	label("drop2")
	emit(bpf.RetConstant{})
	for _, j := range jumps {
		i := in[j.at].(bpf.JumpIf)
		skip := uint8(labels[j.to] - j.at - 1)
		if j.then {
			i.SkipTrue = skip
		} else {
			i.SkipFalse = skip
		}
		in[j.at] = i
	}
	return in
}

func (p *Packet) receiveLoop() {
	var key sighting.Key
	for {
		err := p.socket.Recv(time.Now().Add(time.Second), func(ifindex int, frame []byte) {
			p.received++
			if parseProbe(frame, p.stampPorts, &key) && p.isPort(uint32(ifindex)) {
				p.addSight(flowAtPort{key, uint32(ifindex)}, time.Now().UnixNano())
			}
		})
		switch {
		case errors.Is(err, os.ErrClosed):
			return
		case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
			p.mu.Lock()
			p.err = err
			p.mu.Unlock()
			return
		}
		p.adjustRate(time.Now())
	}
}

func (p *Packet) isPort(port uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ports[port]
}

// adjustRate makes the filter pass less if more packets arrived than the rate allows, and more if much fewer did.
func (p *Packet) adjustRate(now time.Time) {
	passed := now.Sub(p.rateSince)
	if passed < time.Second {
		return
	}
	seen := float64(p.received) / passed.Seconds() * float64(p.sampleEvery)
	p.received, p.rateSince = 0, now
	every := uint32(max(1, (seen+float64(p.rate)-1)/float64(p.rate)))
	if every > p.sampleEvery || every < p.sampleEvery/2 || every == 1 && p.sampleEvery > 1 {
		p.sampleEvery = every
		if err := p.attachFilter(); err != nil {
			p.mu.Lock()
			p.err = err
			p.mu.Unlock()
		}
	}
}

// Kind returns software-af-packet.
func (p *Packet) Kind() sighting.Kind { return sighting.KindPacket }

// SetPorts sets the interfaces whose packets count.
func (p *Packet) SetPorts(numbers []uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.ports)
	for _, n := range numbers {
		p.ports[n] = true
	}
	return nil
}

// SweepFlows yields what was seen and not yet forgotten.
func (p *Packet) SweepFlows(_ context.Context, see func(*sighting.Key, sighting.Sample)) error {
	drops, err := p.socket.DropsSinceLast()
	p.mu.Lock()
	p.dropped += drops
	err = errors.Join(err, p.err)
	p.mu.Unlock()
	p.sweepSights(see)
	return err
}

// ForgetFlow forgets a flow at a port.
func (p *Packet) ForgetFlow(key *sighting.Key, port uint32) { p.removeSight(key, port) }

// Dropped returns the number of packets that did not fit into the socket's buffer, and of those of flows that did not
// fit into the table.
func (p *Packet) Dropped() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped
}

// Close closes the socket.
func (p *Packet) Close() error {
	err := p.socket.Close()
	p.wg.Wait()
	return err
}
