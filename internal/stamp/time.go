package stamp

import (
	"math"
	"math/bits"
)

const nanosPerSecond = 1_000_000_000

// ntpUnixOffset is the number of seconds from the NTP epoch (1900-01-01) to
// the Unix epoch (1970-01-01): RFC 5905 appendix A.4, JAN_1970.
const ntpUnixOffset = 2_208_988_800

// Timestamp is the 64-bit value of a timestamp field as it is on the wire. The Z bit of the Error Estimate beside it
// states its format, which is NTP or truncated PTP. Zero stands for "no timestamp" in both formats.
type Timestamp uint64

// TimestampPTP returns ns, nanoseconds of a clock that counts from 1970-01-01, in the truncated PTPv2 format of RFC
// 8186 2.1: the low 32 bits of the seconds, then 32 bits of nanoseconds. It neither adds nor removes leap seconds: a
// NIC clock that PTP disciplines counts TAI, the system clock counts UTC, and each is written as it counts. The seconds
// wrap on 2106-02-07. A time before 1970 is written modulo 2^32 seconds.
func TimestampPTP(ns int64) Timestamp {
	sec, rem := floorDiv(ns)
	return Timestamp(uint64(uint32(sec))<<32 | uint64(rem))
}

// TimestampNTP returns ns, nanoseconds since 1970-01-01, in the 64-bit NTP format of
// RFC 5905 6: seconds since 1900 modulo 2^32, then a fraction of 2^-32 s,
// rounded to the nearest. A time comes back from NanosNTP to the nanosecond.
func TimestampNTP(ns int64) Timestamp {
	sec, rem := floorDiv(ns)
	frac := (uint64(rem)<<32 + nanosPerSecond/2) / nanosPerSecond
	return Timestamp(uint64(uint32(sec+ntpUnixOffset))<<32 | frac)
}

// NewTimestamp returns ns in the truncated PTP format or in the NTP format.
func NewTimestamp(ns int64, ptp bool) Timestamp {
	if ptp {
		return TimestampPTP(ns)
	}
	return TimestampNTP(ns)
}

// NanosPTP returns t, read as truncated PTP, as nanoseconds since 1970-01-01 of the clock that wrote it. It assumes
// that the seconds are of the first 2^32 (1970 to 2106).
func (t Timestamp) NanosPTP() int64 {
	return int64(t>>32)*nanosPerSecond + int64(uint32(t))
}

// NanosNTP returns t, read as NTP, as nanoseconds since 1970-01-01, rounded to the nearest. The format repeats every
// 2^32 seconds. As in RFC 4330 3, seconds with the top bit set belong to era 0 (1968-01-20 to 2036-02-07) and those
// without it to era 1 (up to 2104-02-26).
func (t Timestamp) NanosNTP() int64 {
	sec := int64(t >> 32)
	if sec < 1<<31 {
		sec += 1 << 32
	}
	frac := (uint64(uint32(t))*nanosPerSecond + 1<<31) >> 32
	return (sec-ntpUnixOffset)*nanosPerSecond + int64(frac)
}

// Nanos returns t as nanoseconds, read in the format that the Error Estimate e beside it names.
func (t Timestamp) Nanos(e ErrorEstimate) int64 {
	if e.IsPTP() {
		return t.NanosPTP()
	}
	return t.NanosNTP()
}

func floorDiv(ns int64) (sec, rem int64) {
	sec, rem = ns/nanosPerSecond, ns%nanosPerSecond
	if rem < 0 {
		sec--
		rem += nanosPerSecond
	}
	return sec, rem
}

// Layout of the Error Estimate: RFC 4656 4.1.2, and RFC 8186 2.3 for Z.
const (
	errorSynced     = 1 << 15
	errorPTP        = 1 << 14
	errorScaleShift = 8
	errorScaleMax   = 1<<6 - 1
	errorMultMax    = 1<<8 - 1
)

// UnknownBound is the error bound, in nanoseconds, of a clock about which nothing is known. On the wire it is the
// largest Error Estimate, 255 * 2^31 s, because RFC 4656 has no other value for this.
const UnknownBound = math.MaxInt64

// maxBoundSeconds is half an era of both timestamp formats. A clock whose error may be larger cannot place a timestamp.
const maxBoundSeconds = 1 << 31

// ErrorEstimate is the two-octet Error Estimate of RFC 8762 4.2.1: the S bit
// (synchronised to UTC by an external source), the Z bit (timestamps are
// truncated PTP), a scale of 6 and a multiplier of 8 bits. The error is
// multiplier * 2^(scale-32) seconds.
type ErrorEstimate uint16

// NewErrorEstimate returns the smallest estimate that is not below boundNS nanoseconds (RFC 4656 4.1.2). A bound of
// zero becomes the smallest possible one, 2^-32 s, because the multiplier must not be zero. A negative bound, and one
// of 2^31 s or more, become that of UnknownBound.
func NewErrorEstimate(boundNS int64, synced, ptp bool) ErrorEstimate {
	var e ErrorEstimate
	if synced {
		e |= errorSynced
	}
	if ptp {
		e |= errorPTP
	}
	if boundNS < 0 || boundNS/nanosPerSecond >= maxBoundSeconds {
		return e | errorScaleMax<<errorScaleShift | errorMultMax
	}
	sec, rem := uint64(boundNS/nanosPerSecond), uint64(boundNS%nanosPerSecond)
	units := max(sec<<32+(rem<<32+nanosPerSecond-1)/nanosPerSecond, 1)
	scale := max(bits.Len64(units)-8, 0)
	mult := (units + 1<<scale - 1) >> scale
	if mult > errorMultMax {
		scale++
		mult = (units + 1<<scale - 1) >> scale
	}
	return e | ErrorEstimate(scale)<<errorScaleShift | ErrorEstimate(mult)
}

// IsSynced reports whether the S bit is set: an external source synchronises the clock to UTC.
func (e ErrorEstimate) IsSynced() bool { return e&errorSynced != 0 }

// IsPTP reports whether the Z bit is set: the timestamps beside e are truncated PTP, not NTP.
func (e ErrorEstimate) IsPTP() bool { return e&errorPTP != 0 }

// Scale returns the power of two that the multiplier is scaled by, 0 to 63.
func (e ErrorEstimate) Scale() int { return int(e>>errorScaleShift) & errorScaleMax }

// Multiplier returns the multiplier; zero marks a corrupt packet.
func (e ErrorEstimate) Multiplier() int { return int(e & errorMultMax) }

// IsValid reports whether the multiplier is not zero (RFC 4656 4.1.2).
func (e ErrorEstimate) IsValid() bool { return e.Multiplier() != 0 }

// BoundNS returns the error in nanoseconds, rounded up. It returns UnknownBound for an estimate of 2^31 s or more, and
// for one that is not valid.
func (e ErrorEstimate) BoundNS() int64 {
	mult, scale := uint64(e.Multiplier()), e.Scale()
	if mult == 0 || bits.Len64(mult)-1+scale >= 63 {
		return UnknownBound
	}
	ns := mult * nanosPerSecond
	if scale >= 32 {
		return int64(ns << (scale - 32))
	}
	return int64((ns + 1<<(32-scale) - 1) >> (32 - scale))
}
