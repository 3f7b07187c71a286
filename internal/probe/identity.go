package probe

import (
	"github.com/graylink/graylink/internal/stamp"
)

// identity holds the configuration of a NIC, and what its packets state about it.
type identity struct {
	cfg      NICConfig
	node     *Config
	ssid     uint16
	bound    int64 // error bound of its clock, under ClockSync; stamp.UnknownBound: not known
	estimate stamp.ErrorEstimate
	life     *ownLife
}

// flowOf returns the number of the flow whose probes have a source port, which need not exist.
func (i *identity) flowOf(port uint16) int { return int(port) - int(i.node.Stamp.SourcePort) }

// setEstimate sets the error estimate that packets carry for the NIC's clock.
func (i *identity) setEstimate() {
	switch {
	case i.node.ClockSync:
		i.estimate = stamp.NewErrorEstimate(i.bound, false, true)
	case i.node.ErrorBound != nil:
		i.estimate = stamp.NewErrorEstimate(int64(*i.node.ErrorBound), true, true)
	default:
		i.estimate = stamp.NewErrorEstimate(stamp.UnknownBound, false, true)
	}
}

// putRequest writes a probe and returns its length in octets. It authenticates the probe with a, unless a is nil.
// signals is true for a flow whose replies bring in-band signals back.
func (i *identity) putRequest(buf []byte, seq uint32, user int64, ssid uint16, tx uint32, dscp uint8, signals bool, a *stamp.Authenticator) int {
	p := stamp.SenderPacket{Seq: seq, Timestamp: stamp.TimestampPTP(user), ErrorEstimate: i.estimate, SSID: ssid}
	base := stamp.BaseLen
	if a == nil {
		p.Put(buf)
	} else {
		base = stamp.AuthBaseLen
		p.PutAuth(buf, a)
	}
	b := stamp.AppendTimestampInfo(buf[:base])
	b = stamp.AppendClassOfService(b, dscp)
	b = stamp.AppendDirectMeasurement(b, tx)
	b = stamp.AppendFollowUp(b)
	if signals {
		b = stamp.AppendSignal(b)
	}
	if a != nil {
		b = stamp.AppendLives(b, i.life.now.Load(), nameHash(i.cfg.NIC))
		b = stamp.AppendHMAC(b, base, a)
	}
	if pad := i.node.Stamp.Padding; pad > 0 {
		b = stamp.AppendExtraPadding(b, pad)
	}
	return len(b)
}

// padRequest lengthens a probe of size octets to a length by Extra Padding (RFC 8972 4.1), which the HMAC TLV does not cover. It
// returns the length that the probe has then: size if the buffer or the difference is too small.
func padRequest(buf []byte, size, length int) int {
	const header = 4 // of a TLV
	if length < size+header || length > len(buf) {
		return size
	}
	return len(stamp.AppendExtraPadding(buf[:size], length-size-header))
}
