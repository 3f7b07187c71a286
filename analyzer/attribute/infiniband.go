package attribute

import (
	"fmt"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
)

// Limits of the ratio of bit errors to bits that a healthy link stays below.
const (
	// plainBitErrorLimit is the InfiniBand specification's limit for links. NVIDIA's design guide for DGX SuperPOD
	// cabling quotes it ("less than one bit error per 10^12 bits"), and ibdiagnet --ber_test has it as its default
	// threshold (user manuals 2.13 to 2.26; read 2026-11-28).
	plainBitErrorLimit = 1e-12
	// correctedBitErrorLimit is the limit for what error correction leaves over. NVIDIA tests each cable to it (the
	// same guide: "less than one bit error per 10^15").
	correctedBitErrorLimit = 1e-15
	// alwaysCorrected is the rate, octets per second, from which every link has error correction: four lanes of HDR,
	// whose PAM4 signals need it. Slower links of EDR have it depending on the cable.
	alwaysCorrected = 25e9
)

// Thresholds of waiting for credits. A tick may be 1 to 256 symbol times (IBA volume 1, 16.1.3.2), so that ticks of
// unknown length are compared with those of the same port only.
const (
	waitTick      = "transmit_wait_tick_seconds"
	waitShare     = 0.05
	waitTicksRate = 1000
	waitTimes     = 3
)

// waitsLonger is met by a port that waited for credits or arbitration during a considerable share of the time. Where
// the length of its ticks is not known, their rate counts.
var waitsLonger = condition{
	fmt.Sprintf("%.0f %% of the time or more, or %d ticks per second or more where `%s` is not known, and at least %d times as fast as before", waitShare*100, waitTicksRate, waitTick, waitTimes),
	func(r *readings, k reading) (string, float64) {
		v, tick := r.at[k], r.at[reading{k.end, waitTick, ""}]
		n, ok := v.growthDuring()
		if !ok {
			return "", 0
		}
		rate := n / v.seconds
		if tick == nil || tick.now == nil || *tick.now <= 0 {
			if rate < waitTicksRate {
				return "", 0
			}
			return v.compareRate(k, rate, waitTimes, fmt.Sprintf("%s grew by %s per second", counterName(k), formatNumber(rate)))
		}
		if rate**tick.now < waitShare {
			return "", 0
		}
		text := "it had data to send and waited during " + formatShare(rate**tick.now) + " of the time"
		was, known := v.rateBefore()
		switch {
		case !known:
			return text + ", share before unknown", unknownBefore
		case rate < waitTimes*was:
			return "", 0
		}
		return fmt.Sprintf("%s, compared with %s before", text, formatShare(was**tick.now)), 1
	}}

// exceedsBitErrorLimit is met by a counter of bit errors or symbol errors that grew faster than the limit of the link
// allows. Where the rate of the link is not known, the growth alone counts.
var exceedsBitErrorLimit = condition{
	fmt.Sprintf("grew by 3 or more during the incident, at least 3 times as fast as before, and faster than %g of the link's bits (%g with error correction)", plainBitErrorLimit, correctedBitErrorLimit),
	func(r *readings, k reading) (string, float64) {
		v := r.at[k]
		n, ok := v.growthDuring()
		if !ok || n < 3 {
			return "", 0
		}
		text := fmt.Sprintf("%s grew by %s", counterName(k), formatNumber(n))
		if bits := 8 * r.currentSpeed(k.end); bits > 0 {
			limit := r.bitErrorLimit(k.end)
			if n/v.seconds < limit*bits {
				return "", 0
			}
			text += fmt.Sprintf(", %.1e of the bits and more than the limit of %g", n/v.seconds/bits, limit)
		}
		return v.compareRate(k, n/v.seconds, 3, text)
	}}

// trapsCounted returns a condition that is met if the subnet manager received least traps or more about the port during
// the incident. The series of a trap exists since the first one.
func trapsCounted(least float64) condition {
	return condition{fmt.Sprintf("%.0f or more during the incident, and at least 3 times as often as before", least),
		func(r *readings, k reading) (string, float64) {
			v := r.at[k]
			n, ok := v.growthDuring()
			if !ok && v.now != nil && r.reportedBefore(k.end) {
				n, ok = *v.now, true
			}
			if !ok || n < least {
				return "", 0
			}
			text := fmt.Sprintf("the subnet manager received %s traps", formatNumber(n))
			if n == 1 {
				text = "the subnet manager received 1 trap"
			}
			if was, known := v.rateBefore(); known && n/v.seconds < 3*was {
				return "", 0
			}
			return text, 1
		}}
}

// ownPorts returns the port 0 of the switch that a verdict is about. Traps that name no port are counted there.
func ownPorts(v *fabric.Verdict) []endRole {
	if v.Kind != fabric.KindSwitch {
		return nil
	}
	return []endRole{{v.Element.ID + ":0", true, true}}
}

// trapTexts describes the traps that point to a cause (IBA volume 1, 14.2.5.1).
var trapTexts = map[string]string{
	"128": "state of a link of the switch changed",
	"129": "local link integrity threshold reached",
	"130": "excessive buffer overrun threshold reached",
	"131": "flow control update watchdog timer expired",
}

// currentSpeed returns the rate of an end in octets per second, or 0 if it is unknown.
func (r *readings) currentSpeed(end string) float64 {
	for _, series := range []string{"speed_bytes_per_second", "rate_bytes_per_second"} {
		if v := r.at[reading{end, series, ""}]; v != nil && v.now != nil && *v.now > 0 {
			return *v.now
		}
	}
	return 0
}

// bitErrorLimit returns the ratio of errors to bits that the link of an end may have. A link on which errors were
// corrected has error correction.
func (r *readings) bitErrorLimit(end string) float64 {
	if r.currentSpeed(end) >= alwaysCorrected {
		return correctedBitErrorLimit
	}
	for _, series := range []string{"fec_corrected_blocks_total", "fec_uncorrectable_blocks_total", "lane_fec_uncorrectable_blocks_total"} {
		if v := r.at[reading{end, series, ""}]; v != nil && v.now != nil && *v.now > 0 {
			return correctedBitErrorLimit
		}
	}
	return plainBitErrorLimit
}

// formatShare writes a share of time as a percentage. Waiting that is counted in several virtual lanes at once may
// exceed the time.
func formatShare(v float64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", 100*min(v, 1)), ".0") + " %"
}
