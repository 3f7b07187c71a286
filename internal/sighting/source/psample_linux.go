package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"

	"github.com/graylink/graylink/internal/sighting"
)

// Names and attributes of the psample channel: Linux, include/uapi/linux/psample.h.
const (
	psampleFamily = "psample"
	psampleGroup  = "packets"

	psampleIngress  = 0 // interface that received a sampled packet, u16
	psampleGroupID  = 3 // u32
	psampleSequence = 4 // of the group, u32
	psampleData     = 6
)

// sampled represents one message of the psample channel.
type sampled struct {
	ingress  uint32
	group    uint32
	sequence uint32
	frame    []byte
}

// parseSampled parses the attributes of a message.
func parseSampled(data []byte) (s sampled, err error) {
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return s, fmt.Errorf("psample message: %w", err)
	}
	for ad.Next() {
		switch ad.Type() {
		case psampleIngress:
			// The attribute has two octets, but some kernels send four.
			if b := ad.Bytes(); len(b) == 4 {
				s.ingress = ad.Uint32()
			} else {
				s.ingress = uint32(ad.Uint16())
			}
		case psampleGroupID:
			s.group = ad.Uint32()
		case psampleSequence:
			s.sequence = ad.Uint32()
		case psampleData:
			s.frame = ad.Bytes()
		}
	}
	if err := ad.Err(); err != nil {
		return s, fmt.Errorf("psample message: %w", err)
	}
	return s, nil
}

// Psample sees the samples of one sample group that a switch chip hands to the kernel by a rule (see Rule).
type Psample struct {
	sightTable
	conn       *genetlink.Conn
	group      uint32
	stampPorts []uint16
	ports      []uint32
	next       uint32 // sequence number
	began      bool
	malformed  uint64
	wg         sync.WaitGroup
	err        error
}

// NewPsample listens to a sample group. errors.Is holds for os.ErrNotExist if the kernel has no psample.
func NewPsample(stampPorts []uint16, flows int, group uint32) (*Psample, error) {
	conn, err := genetlink.Dial(nil)
	if err != nil {
		return nil, fmt.Errorf("generic netlink: %w", err)
	}
	p := &Psample{sightTable: sightTable{limit: flows, flows: map[flowAtPort]*sight{}}, conn: conn, group: group, stampPorts: stampPorts}
	if err := p.joinGroup(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	p.wg.Go(p.receiveLoop)
	return p, nil
}

func (p *Psample) joinGroup() error {
	family, err := p.conn.GetFamily(psampleFamily)
	if err != nil {
		return fmt.Errorf("psample of the kernel: %w", err)
	}
	i := slices.IndexFunc(family.Groups, func(g genetlink.MulticastGroup) bool { return g.Name == psampleGroup })
	if i < 0 {
		return fmt.Errorf("psample of the kernel has no group %q: %w", psampleGroup, os.ErrNotExist)
	}
	return p.conn.JoinGroup(family.Groups[i].ID)
}

func (p *Psample) receiveLoop() {
	for {
		messages, _, err := p.conn.Receive()
		if errors.Is(err, os.ErrClosed) {
			return
		}
		p.mu.Lock()
		if err != nil {
			p.err = err
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		for _, m := range messages {
			p.countMessage(m.Data, time.Now().UnixNano())
		}
	}
}

// countMessage counts the packet of one message.
func (p *Psample) countMessage(data []byte, at int64) {
	s, err := parseSampled(data)
	p.mu.Lock()
	if err != nil {
		p.malformed++
		p.mu.Unlock()
		return
	}
	if s.group != p.group {
		p.mu.Unlock()
		return
	}
	if p.began {
		p.dropped += uint64(s.sequence - p.next)
	}
	p.next, p.began = s.sequence+1, true
	ours := slices.Contains(p.ports, s.ingress)
	p.mu.Unlock()
	var key sighting.Key
	if ours && parseProbe(s.frame, p.stampPorts, &key) {
		p.addSight(flowAtPort{key, s.ingress}, at)
	}
}

// Kind returns hardware-psample.
func (p *Psample) Kind() sighting.Kind { return sighting.KindPsample }

// SetPorts sets the interfaces whose samples count.
func (p *Psample) SetPorts(numbers []uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ports = slices.Clone(numbers)
	return nil
}

// SweepFlows yields what was sampled and not yet forgotten.
func (p *Psample) SweepFlows(_ context.Context, see func(*sighting.Key, sighting.Sample)) error {
	p.sweepSights(see)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// ForgetFlow forgets a flow at a port.
func (p *Psample) ForgetFlow(key *sighting.Key, port uint32) { p.removeSight(key, port) }

// Dropped returns the number of samples that the channel lost, by its sequence numbers, of samples that could not be
// parsed, and of those of flows that did not fit into the table.
func (p *Psample) Dropped() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped + p.malformed
}

// Close leaves the channel.
func (p *Psample) Close() error {
	err := p.conn.Close()
	p.wg.Wait()
	return err
}
