package probe

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"time"

	"github.com/graylink/graylink/internal/srv6"
	"github.com/graylink/graylink/internal/unix"
)

// traceProbe represents a trace packet whose answer is awaited.
type traceProbe struct {
	key       uint32
	sock      *socket
	dst       netip.AddrPort
	authentic bool
	carried   bool  // sent within a packet to a carrier
	long      bool  // of a test of the path's MTU
	sent      int64 // Unix nanoseconds
	answer    chan traceAnswer
}

type traceAnswer struct {
	key     uint32
	from    netip.Addr
	rtt     time.Duration
	reached bool
	closed  bool // the far end answered that its port is closed
	inside  bool // of a packet that was carried: the switch took the outer header off
	tooBig  bool // the packet is too big for the next link, whose MTU is mtu
	mtu     int
	unsent  bool // the packet is too big for this host's interface
	ext     extension
	extErr  error // the extension could not be read
}

// traceAnswers matches what comes back for a NIC's trace packets, and counts the ICMP errors about other packets.
type traceAnswers struct {
	self  *identity
	clock *timeline

	lastKey     uint32 // even
	awaited     map[uint32]*traceProbe
	shortQuotes bool                // switches quote too little to distinguish a flow's packets
	icmpErrors  map[[2]uint8]uint64 // about probes and replies, by type and code
}

// nextKey returns the number of the next trace packet. As with probes, it is odd if the packet carries an in-band signal.
func (t *traceAnswers) nextKey(tagged bool) uint32 {
	if t.lastKey += 2; tagged {
		return t.lastKey | 1
	}
	return t.lastKey
}

// awaitAnswer waits for the answer to a trace packet.
func (t *traceAnswers) awaitAnswer(p *traceProbe) { t.awaited[p.key] = p }

// deliverAnswer passes an answer to the trace that waits for it. The channel has room for every packet of a hop limit.
func (t *traceAnswers) deliverAnswer(p *traceProbe, a traceAnswer) {
	delete(t.awaited, p.key)
	a.key = p.key
	p.answer <- a
}

// traceReached processes the reflector's answer to a trace packet.
func (t *traceAnswers) traceReached(key uint32, at int64) {
	if p := t.awaited[key]; p != nil {
		t.deliverAnswer(p, traceAnswer{reached: true, rtt: time.Duration(at - p.sent)})
	}
}

// handleICMP processes an ICMP error about a packet that was sent over s.
func (t *traceAnswers) handleICMP(s *socket, r *unix.Report) {
	p := t.quotedProbe(s, r)
	t.takeICMP(p, r, p != nil && p.carried)
}

// handleCarriedICMP processes an ICMP error about a packet that was sent to a carrier, and that still had its outer header. The quote
// begins with the packet inside.
func (t *traceAnswers) handleCarriedICMP(s *socket, r *unix.Report) {
	src, _, ok := srv6.QuotedInner(r.Data)
	if !ok || src.Addr() != t.self.cfg.Address || len(r.Data) <= srv6.InnerHeaders {
		t.icmpErrors[[2]uint8{r.Type, r.Code}]++
		return
	}
	inner := *r
	inner.Data = r.Data[srv6.InnerHeaders:]
	p := t.quotedProbe(s, &inner)
	if p != nil && !p.carried {
		p = nil
	}
	t.takeICMP(p, r, false)
}

// takeICMP gives an ICMP error to the trace whose packet it quotes, or counts it if p is nil. inside reports whether the packet had been sent to
// a carrier, and its outer header was taken off.
func (t *traceAnswers) takeICMP(p *traceProbe, r *unix.Report, inside bool) {
	if p == nil {
		t.icmpErrors[[2]uint8{r.Type, r.Code}]++
		return
	}
	a := traceAnswer{from: r.Offender, inside: inside, rtt: time.Duration(stampOr(r.Stamp, t.clock.nodeNow()) - p.sent)}
	switch {
	case isTimeExceeded(r):
		a.ext, a.extErr = extensionOf(r)
	case isTooBig(r):
		if !p.long {
			return // it counts as silent
		}
		a.tooBig, a.mtu = true, int(r.MTU)
	case isUnreachable(r) && r.Offender == p.dst.Addr():
		a.closed = true
	default:
		return // a switch without a route counts as silent
	}
	t.deliverAnswer(p, a)
}

// sendFailed processes a packet that the kernel did not send.
func (t *traceAnswers) sendFailed(key uint32, errno syscall.Errno) {
	if p := t.awaited[key]; p != nil && p.long && errno == syscall.EMSGSIZE {
		t.deliverAnswer(p, traceAnswer{unsent: true})
	}
}

// quotedSSID is the offset of the SSID in a STAMP packet (RFC 8972 section 3), plain and authenticated. A quote must
// reach beyond it.
const (
	quotedSSID     = 14
	quotedAuthSSID = 26
)

// quotedProbe finds the trace packet that an ICMP error quotes. It identifies the packet by its number. If the quote
// ends before the number (RFC 792 requires the UDP header only), the packet must be the only one of its flow in flight.
func (t *traceAnswers) quotedProbe(s *socket, r *unix.Report) *traceProbe {
	if len(r.Data) >= 4 {
		p := t.awaited[binary.BigEndian.Uint32(r.Data)]
		at := quotedSSID
		if p != nil && p.authentic {
			at = quotedAuthSSID
		}
		// Missing octets of a quote before an extension are filled with zeros (RFC 4884 section 4.5), and no trace
		// packet has a zero as the first octet of its SSID.
		if len(r.Data) >= at+2 && (r.Extension == nil || !allZero(r.Data[at:])) {
			if p == nil || binary.BigEndian.Uint16(r.Data[at:])&^traceReplySSID != t.self.ssid|traceSSID {
				return nil
			}
			return p
		}
	}
	if !isTimeExceeded(r) {
		return nil
	}
	t.shortQuotes = true
	var only *traceProbe
	for _, p := range t.awaited {
		if p.dst == r.Dst && p.sock == s {
			if only != nil {
				return nil
			}
			only = p
		}
	}
	return only
}

func allZero(b []byte) bool {
	for _, v := range b {
		if v != 0 {
			return false
		}
	}
	return true
}

// stampOr returns the kernel's stamp if there is one, and otherwise the program's time.
func stampOr(kernel, user int64) int64 {
	if kernel != 0 {
		return kernel
	}
	return user
}
