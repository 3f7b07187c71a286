package probe

import (
	"errors"
	"slices"

	"github.com/graylink/graylink/internal/stamp"
)

const (
	// peerForgeries is the number of packets per second that may fail verification for one peer before they use the
	// budget of the whole NIC. While one peer's address is flooded, the packets of all others are still verified.
	peerForgeries = 1000
	// forgedBudget is the number of HMACs per second that a NIC computes for packets that turn out to be forged, beyond
	// peerForgeries. One HMAC takes 0.4 to 0.6 us (BenchmarkOperation/ParseForgedPacket in internal/stamp), so a flood
	// costs a tenth of a core. Packets beyond the budget are dropped without verification and counted. They are no loss
	// of the network.
	forgedBudget = 200_000
	// forgedBurst is the part of the budget that can be saved up. Packets that a session does not expect may use only
	// the upper half of it.
	forgedBurst = forgedBudget / 4
	// maxForgers limits the source addresses of forged packets that are counted separately, and forgerFrom is the
	// number of packets from which on an address is.
	maxForgers = 8
	forgerFrom = 100
)

// otherForgers stands for all addresses that are not counted separately.
const otherForgers = "other"

// Forger counts the packets from one source address that were not authentic, or that were not verified because too many
// others had not been authentic.
type Forger struct {
	From    string // an address, or "other"
	Packets uint64
}

// dropReason is the reason why a received packet was not used.
type dropReason uint8

const (
	dropMalformed dropReason = iota
	dropOversized
	dropUnregistered
	dropBadHMAC
	dropReplay
	dropRate
	dropSessions
	dropUnsolicited
	dropForeignSSID
	dropTraceCopy
	dropForeignPort
	dropUnverified
	dropReasons
)

var dropNames = [dropReasons]string{"malformed", "oversized", "unregistered", "bad_hmac", "replay", "rate_limited", "session_limit", "unsolicited", "foreign_ssid", "trace_copy", "foreign_port", "unverified"}

// packetFilter decides which packets of peers are verified, and counts those that are not used.
type packetFilter struct {
	dropped  [dropReasons]uint64
	unproven uint64   // packets without a life number that may have been a peer's own
	budget   bucket   // for HMACs of forged packets
	forgers  []Forger // the first one stands for all others
}

func newPacketFilter(mono int64) packetFilter {
	return packetFilter{budget: newBucket(forgedBudget, forgedBurst, mono), forgers: []Forger{{From: otherForgers}}}
}

// countDropped counts a packet that is not used.
func (f *packetFilter) countDropped(why dropReason) { f.dropped[why]++ }

// verifyPacket returns the key that a packet of a peer verifies with. If there is none, or if too many packets have
// failed for this one to be verified, it counts the packet as dropped and returns nil.
func (f *packetFilter) verifyPacket(pr *peer, expected bool, mono int64, parse func(*stamp.Authenticator) error) *stamp.Authenticator {
	if !pr.forged.maySpend(mono, expected) && !f.budget.maySpend(mono, expected) {
		f.countDropped(dropUnverified)
		f.countForged(pr)
		return nil
	}
	a, err := pr.keys.tryKeys(parse)
	switch {
	case err == nil:
		return a
	case errors.Is(err, stamp.ErrHMAC):
		f.countDropped(dropBadHMAC)
		f.chargeForged(pr, mono)
	default:
		f.countDropped(dropMalformed)
	}
	return nil
}

// chargeForged charges the budgets for the HMACs of a packet that failed verification.
func (f *packetFilter) chargeForged(pr *peer, mono int64) {
	f.countForged(pr)
	if !pr.forged.takeToken(mono) {
		f.budget.spendTokens(mono, float64(len(pr.keys.auth)))
	}
}

// countForged counts a packet by its source address, for as many addresses as are counted separately.
func (f *packetFilter) countForged(pr *peer) {
	if pr.forger == 0 {
		if pr.failures++; pr.failures >= forgerFrom && len(f.forgers) <= maxForgers {
			from := pr.remoteAddr().String()
			if pr.forger = slices.IndexFunc(f.forgers, func(o Forger) bool { return o.From == from }); pr.forger < 0 {
				pr.forger = len(f.forgers)
				f.forgers = append(f.forgers, Forger{From: from})
			}
		}
	}
	f.forgers[pr.forger].Packets++
}

// admitLife reports whether the life of an authentic packet allows its use, and otherwise counts the packet as dropped.
// The life in TLVs that are not authentic is not known.
func (f *packetFilter) admitLife(pr *peer, life uint64, authentic bool, mono int64) bool {
	switch pr.life.admitLife(life, mono) {
	case admitted:
		pr.unbound = life == 0
		return true
	case unproven:
		if !authentic {
			f.countDropped(dropBadHMAC)
			f.chargeForged(pr, mono)
			return false
		}
		if pr.life.isSilent(mono) {
			f.unproven++
		}
	}
	f.countDropped(dropReplay)
	return false
}
