// Package lldp receives the announcements of the far ends of a host's or switch's cables (IEEE 802.1AB). It can send
// announcements for a switch's own ports if no other program does.
package lldp

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/graylink/graylink/internal/sighting"
	"github.com/graylink/graylink/internal/unix"
)

const (
	etherType = 0x88cc
	header    = 14
	snap      = 1514
	maxName   = 255 // octets: 802.1AB, 8.5.2 and 8.5.3
)

// nearestBridge is the destination address of frames that no bridge forwards: 802.1AB, 7.1.
var nearestBridge = [6]byte{0x01, 0x80, 0xc2, 0, 0, 0x0e}

// Announcement represents what one frame states about its sender.
type Announcement struct {
	System  string // its name, or its chassis if it has no name
	Port    string
	Chassis string        // identifier of the sender, which its other ports share
	TTL     time.Duration // 0: the sender goes away
	// Capabilities are those that are enabled; 0 if the sender does not state any.
	Capabilities Capabilities

	id string // the identifiers of chassis and port as they were sent: 802.1AB, 8.5.2 and 8.5.3
}

// Capabilities are those of a system, the bits of 802.1AB, table 8-4.
type Capabilities uint16

// Capabilities of systems that forward packets of others.
const (
	Bridge       Capabilities = 1 << 2
	Router       Capabilities = 1 << 4
	CVLANBridge  Capabilities = 1 << 8
	SVLANBridge  Capabilities = 1 << 9
	TwoPortRelay Capabilities = 1 << 10
)

// Forwards reports whether a system with these capabilities forwards packets of others, as switches and routers do.
// It returns false if there are none.
func (c Capabilities) Forwards() bool {
	return c&(Bridge|Router|CVLANBridge|SVLANBridge|TwoPortRelay) != 0
}

// MaxNeighbours limits the neighbours of one interface that a Listener keeps, the last ones. A cable has one, and two
// show that it is not a cable.
const MaxNeighbours = 2

// Types of TLVs, 802.1AB table 8-1, and subtypes of names, tables 8-2 and 8-3.
const (
	tlvEnd      = 0
	tlvChassis  = 1
	tlvPort     = 2
	tlvTTL      = 3
	tlvPortText = 4
	tlvSystem   = 5
	tlvCapable  = 7

	chassisMAC   = 4
	chassisLocal = 7
	portAlias    = 1
	portMAC      = 3
	portName     = 5
	portLocal    = 7
)

// Parse parses a frame. (Packet libraries that support LLDP support hundreds of other protocols, whose tables take a
// sixth of the memory that a switch can spend on this agent.)
func Parse(frame []byte) (Announcement, error) {
	if len(frame) < header {
		return Announcement{}, fmt.Errorf("LLDP frame of %d octets: a header has %d", len(frame), header)
	}
	var h Announcement
	var chassis, port, described string
	var seen [tlvCapable + 1]bool
	for rest, n := frame[header:], 0; ; n++ {
		if len(rest) < 2 {
			return Announcement{}, fmt.Errorf("LLDP frame: ends within TLV %d", n+1)
		}
		kind, size := int(rest[0]>>1), int(binary.BigEndian.Uint16(rest)&0x1ff)
		if len(rest) < 2+size {
			return Announcement{}, fmt.Errorf("LLDP frame: TLV %d of type %d has %d octets, %d are left", n+1, kind, size, len(rest)-2)
		}
		value := rest[2 : 2+size]
		rest = rest[2+size:]
		if kind == tlvEnd {
			break
		}
		if kind > tlvCapable {
			continue
		}
		// The first three TLVs are mandatory and come first: 802.1AB, 8.2.
		if n < tlvTTL && kind != n+1 || seen[kind] || kind <= tlvTTL && len(value) < 2 || kind == tlvCapable && len(value) != 4 {
			return Announcement{}, fmt.Errorf("LLDP frame: TLV %d of type %d and %d octets: out of place or of a wrong size", n+1, kind, size)
		}
		seen[kind] = true
		switch kind {
		case tlvChassis:
			chassis = idText(value[1:], value[0] == chassisMAC)
			h.id = string(value) + "\x00"
		case tlvPort:
			h.id += string(value)
			// The name of the interface is used if the sender states it. Other forms are not how people call a port.
			switch value[0] {
			case portName, portLocal, portAlias:
				h.Port = string(value[1:])
			default:
				port = idText(value[1:], value[0] == portMAC)
			}
		case tlvTTL:
			h.TTL = time.Duration(binary.BigEndian.Uint16(value)) * time.Second
		case tlvPortText:
			described = string(value)
		case tlvSystem:
			h.System = string(value)
		case tlvCapable: // what the system can do, then what is enabled: 802.1AB, 8.5.8
			h.Capabilities = Capabilities(binary.BigEndian.Uint16(value[2:]))
		}
	}
	if !seen[tlvTTL] {
		return Announcement{}, errors.New("LLDP frame: without chassis, port and time to live")
	}
	h.System, h.Port, h.Chassis = cmp.Or(h.System, chassis), cmp.Or(h.Port, described, port), chassis
	for _, s := range []string{h.System, h.Port, h.Chassis} {
		if s == "" || len(s) > maxName || !isText(s) {
			return Announcement{}, fmt.Errorf("LLDP frame: name %q: 1 to %d octets of text are expected", s[:min(len(s), 32)], maxName)
		}
	}
	return h, nil
}

// idText returns an identifier as text: a MAC address in its usual form, and other octets that are not text as digits.
func idText(id []byte, mac bool) string {
	switch {
	case mac && len(id) == 6:
		return net.HardwareAddr(id).String()
	case isText(string(id)):
		return string(id)
	}
	return hex.EncodeToString(id)
}

func isText(s string) bool { return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl) }

// BuildFrame returns a frame that announces the system, a switch, and the name of a port.
func BuildFrame(mac net.HardwareAddr, system, port string, ttl time.Duration) ([]byte, error) {
	if len(mac) != 6 || len(system) == 0 || len(system) > maxName || len(port) == 0 || len(port) > maxName {
		return nil, fmt.Errorf("LLDP frame of %q, port %q at %v: names of 1 to %d octets and a MAC address are expected", system, port, mac, maxName)
	}
	f := append(append(nearestBridge[:len(nearestBridge):len(nearestBridge)], mac...), etherType>>8, etherType&0xff)
	tlv := func(kind int, value ...byte) {
		f = append(binary.BigEndian.AppendUint16(f, uint16(kind<<9|len(value))), value...)
	}
	tlv(tlvChassis, append([]byte{chassisLocal}, system...)...)
	tlv(tlvPort, append([]byte{portName}, port...)...)
	tlv(tlvTTL, binary.BigEndian.AppendUint16(nil, uint16(min(ttl/time.Second, 1<<16-1)))...)
	tlv(tlvSystem, []byte(system)...)
	capable := binary.BigEndian.AppendUint16(nil, uint16(Bridge|Router))
	tlv(tlvCapable, append(capable, capable...)...)
	tlv(tlvEnd)
	return f, nil
}

// Listener receives the announcements of the neighbours of all ports. It keeps the last MaxNeighbours of each port.
type Listener struct {
	socket *unix.Packet
	wg     sync.WaitGroup

	mu            sync.Mutex
	joined        map[int]bool
	announcements map[int][]heardNeighbour // by interface, the last heard at the end
	malformed     uint64
	err           error
}

type heardNeighbour struct {
	Announcement
	at time.Time
}

// Listen starts to receive in the network namespace of the calling thread.
func Listen() (*Listener, error) {
	s, err := unix.OpenPacket(etherType, 0, snap)
	if err != nil {
		return nil, fmt.Errorf("LLDP: %w", err)
	}
	l := &Listener{socket: s, joined: map[int]bool{}, announcements: map[int][]heardNeighbour{}}
	l.wg.Go(l.receiveLoop)
	return l, nil
}

func (l *Listener) receiveLoop() {
	for {
		err := l.socket.Recv(time.Now().Add(time.Minute), func(ifindex int, frame []byte) {
			l.take(ifindex, frame, time.Now())
		})
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			l.mu.Lock()
			l.err = err
			l.mu.Unlock()
			return
		}
	}
}

// take keeps what a frame announces. It replaces what the same port of the same neighbour announced before.
func (l *Listener) take(ifindex int, frame []byte, now time.Time) {
	h, err := Parse(frame)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.malformed++
		return
	}
	if !l.joined[ifindex] {
		return
	}
	kept := slices.DeleteFunc(l.announcements[ifindex], func(k heardNeighbour) bool { return k.id == h.id || now.Sub(k.at) > k.TTL })
	if h.TTL > 0 {
		kept = append(kept, heardNeighbour{h, now})
	}
	l.announcements[ifindex] = kept[max(0, len(kept)-MaxNeighbours):]
}

// SetPorts sets the interfaces to receive on, by number.
func (l *Listener) SetPorts(numbers []uint32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	errs := []error{l.err}
	for _, n := range numbers {
		if !l.joined[int(n)] {
			if err := l.socket.JoinMulticast(int(n), nearestBridge); err != nil {
				errs = append(errs, fmt.Errorf("LLDP at interface %d: %w", n, err))
				continue
			}
			l.joined[int(n)] = true
		}
	}
	for n := range l.joined {
		if !slices.Contains(numbers, uint32(n)) {
			delete(l.joined, n) // its membership ended with it
			delete(l.announcements, n)
		}
	}
	return errors.Join(errs...)
}

// CurrentNeighbours returns the neighbour of each port that was heard last, unless its time to live has passed.
func (l *Listener) CurrentNeighbours(now time.Time, name func(uint32) string) []sighting.Neighbour {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := []sighting.Neighbour{}
	for n, heard := range l.announcements {
		for _, k := range slices.Backward(heard) {
			if port := name(uint32(n)); port != "" && now.Sub(k.at) <= k.TTL {
				out = append(out, sighting.Neighbour{Port: port, System: k.System, SystemPort: k.Port, LastSeen: k.at.UTC()})
				break
			}
		}
	}
	slices.SortFunc(out, func(a, b sighting.Neighbour) int { return strings.Compare(a.Port, b.Port) })
	return out
}

// NeighboursAt returns the neighbours of an interface whose time to live has not passed, sorted by chassis and port.
func (l *Listener) NeighboursAt(now time.Time, ifindex int) (out []Announcement) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.announcements[ifindex] {
		if now.Sub(k.at) <= k.TTL {
			out = append(out, k.Announcement)
		}
	}
	slices.SortFunc(out, func(a, b Announcement) int { return strings.Compare(a.id, b.id) })
	return out
}

// MalformedFrames returns the number of frames that could not be parsed.
func (l *Listener) MalformedFrames() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.malformed
}

// SendFrame sends a frame by an interface.
func (l *Listener) SendFrame(ifindex int, frame []byte) error { return l.socket.Send(ifindex, frame) }

// Close closes the listener.
func (l *Listener) Close() error {
	err := l.socket.Close()
	l.wg.Wait()
	return err
}
