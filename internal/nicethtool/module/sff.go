package module

import (
	"encoding/binary"
	"math"
)

// compliance8636 are the revisions of SFF-8636 (lower memory, octet 1).
var compliance8636 = map[byte]string{1: "SFF-8436 4.8", 2: "SFF-8436 4.8", 3: "1.3", 4: "1.4", 5: "1.5", 6: "2.0", 7: "2.7", 8: "2.8"}

// decodeSFF8636 decodes SFF-8636 rev 2.10a.
func (d *decoder) decodeSFF8636() {
	m := d.m
	rev, _ := d.readOctet(Lower, 1)
	m.Compliance = compliance8636[rev]
	m.Vendor, m.OUI = d.readText(Page0, 148, 16), d.readOUI(Page0, 165)
	m.Part, m.Revision = d.readText(Page0, 168, 16), d.readText(Page0, 184, 2)
	m.Serial, m.Date = d.readText(Page0, 196, 16), d.readText(Page0, 212, 8)
	d.verifyChecksum(Page0, 128, 190)
	d.verifyChecksum(Page0, 192, 222)

	// Octet 147 bits 7-4: 10 and 11 are copper without electronics, above is active copper.
	technology, known := d.readOctet(Page0, 147)
	technology >>= 4
	if !known || technology == 10 || technology == 11 {
		return
	}
	optical := technology < 10
	// Octet 220: bits 5 and 4 state whether there are monitors of temperature and voltage since rev 2.8. Before,
	// modules other than passive ones had to have both.
	hasTemperature := rev < 8 || d.readBit(Page0, 220, 5)
	hasVoltage := rev < 8 || d.readBit(Page0, 220, 4)
	hasTransmit := optical && d.readBit(Page0, 220, 2)
	ready := !d.readBit(Lower, 2, 0) // Data_Not_Ready
	if hasTemperature {
		if ready {
			m.Temperature = d.readValue(Lower, 22, toCelsius)
			d.raiseFourFlags(Lower, 6, 7, -1, 0, "temperature")
		}
		m.Thresholds.Temperature = d.readLimits(page3, 128, toCelsius)
	}
	if hasVoltage {
		if ready {
			m.Voltage = d.readValue(Lower, 26, toVolts)
			d.raiseFourFlags(Lower, 7, 7, -1, 0, "voltage")
		}
		m.Thresholds.Voltage = d.readLimits(page3, 144, toVolts)
	}
	if optical {
		m.Thresholds.ReceivePower = d.readLimits(page3, 176, toWatts)
		m.Thresholds.Bias = d.readLimits(page3, 184, toAmperes)
	}
	if hasTransmit {
		m.Thresholds.TransmitPower = d.readLimits(page3, 192, toWatts)
	}
	for i := range 4 {
		if d.readBit(Lower, 113, i) {
			continue // 1: this end does not implement the channel
		}
		l := Lane{Number: i + 1}
		// Two channels an octet, the odd ones in the upper half.
		octet, top := i/2, 7-4*(i%2)
		if optical && ready {
			l.ReceivePower, l.Bias = d.readValue(Lower, 34+2*i, toWatts), d.readValue(Lower, 42+2*i, toAmperes)
			d.raiseFourFlags(Lower, 9+octet, top, -1, l.Number, "receive_power")
			d.raiseFourFlags(Lower, 11+octet, top, -1, l.Number, "bias")
		}
		if hasTransmit && ready {
			l.TransmitPower = d.readValue(Lower, 50+2*i, toWatts)
			d.raiseFourFlags(Lower, 13+octet, top, -1, l.Number, "transmit_power")
		}
		// Octets 194 and 195 state which options are implemented.
		for _, f := range []struct {
			has         bool
			offset, bit int
			name        string
		}{{true, 3, i, ReceiveLossOfSignal}, {d.readBit(Page0, 195, 1), 3, i + 4, TransmitLossOfSignal}, {d.readBit(Page0, 195, 3), 4, i, TransmitFault},
			{d.readBit(Page0, 194, 4), 5, i, ReceiveLossOfLock}, {d.readBit(Page0, 194, 5), 5, i + 4, TransmitLossOfLock}} {
			if f.has && d.readBit(Lower, f.offset, f.bit) {
				d.raiseFlag(l.Number, f.name)
			}
		}
		m.Lanes = append(m.Lanes, l)
	}
}

// compliance8472 are the revisions of SFF-8472 (A0h, octet 94).
var compliance8472 = map[byte]string{1: "9.3", 2: "9.5", 3: "10.2", 4: "10.4", 5: "11.0", 6: "11.3", 7: "11.4", 8: "12.3", 9: "12.4"}

// decodeSFF8472 decodes SFF-8472 rev 12.4.
func (d *decoder) decodeSFF8472() {
	m := d.m
	rev, _ := d.readOctet(Lower, 94)
	m.Compliance = compliance8472[rev]
	m.Vendor, m.OUI = d.readText(Lower, 20, 16), d.readOUI(Lower, 37)
	m.Part, m.Revision = d.readText(Lower, 40, 16), d.readText(Lower, 56, 4)
	m.Serial, m.Date = d.readText(Lower, 68, 16), d.readText(Lower, 84, 8)
	d.verifyChecksum(Lower, 0, 62)
	d.verifyChecksum(Lower, 64, 94)
	if !d.readBit(Lower, 92, 6) {
		return // no digital diagnostics
	}
	if x, ok := d.img[diagnostic]; !ok || x == nil {
		return
	}
	temperature, voltage, bias, transmit, receive, ok := d.calibrationScales()
	if !ok {
		return
	}
	m.Thresholds = Thresholds{Temperature: d.readLimits(diagnostic, 0, temperature), Voltage: d.readLimits(diagnostic, 8, voltage), Bias: d.readLimits(diagnostic, 16, bias),
		TransmitPower: d.readLimits(diagnostic, 24, transmit), ReceivePower: d.readLimits(diagnostic, 32, receive)}
	l := Lane{Number: 1}
	if !d.readBit(diagnostic, 110, 0) { // Data_Ready_Bar
		m.Temperature, m.Voltage = d.readValue(diagnostic, 96, temperature), d.readValue(diagnostic, 98, voltage)
		l.Bias, l.TransmitPower, l.ReceivePower = d.readValue(diagnostic, 100, bias), d.readValue(diagnostic, 102, transmit), d.readValue(diagnostic, 104, receive)
		if d.readBit(Lower, 93, 7) { // the flags are implemented
			// Alarms are at 112 and 113, warnings at 116 and 117: a bit each, high before low.
			for at, name := range map[int][2]string{112: {"_high_alarm", "_low_alarm"}, 116: {"_high_warning", "_low_warning"}} {
				for i, monitor := range []string{"temperature", "voltage", "bias", "transmit_power", "receive_power"} {
					lane := min(max(i-1, 0), 1)
					for j := range 2 {
						if d.readBit(diagnostic, at+i/4, 7-2*(i%4)-j) {
							d.raiseFlag(lane, monitor+name[j])
						}
					}
				}
			}
		}
		if d.readBit(Lower, 93, 5) && d.readBit(diagnostic, 110, 2) {
			d.raiseFlag(1, TransmitFault)
		}
		if d.readBit(Lower, 93, 4) && d.readBit(diagnostic, 110, 1) {
			d.raiseFlag(1, ReceiveLossOfSignal)
		}
	}
	m.Lanes = []Lane{l}
}

// calibrationScales returns the scales of the monitors (SFF-8472, A2h 56 to 91). If the module leaves calibration to
// the host, raw values and thresholds are scaled by slopes and offsets first.
func (d *decoder) calibrationScales() (temperature, voltage, bias, transmit, receive scale, ok bool) {
	if !d.readBit(Lower, 92, 4) {
		return toCelsius, toVolts, toAmperes, toWatts, toWatts, true
	}
	// Slopes are unsigned fixed-point numbers with 8 bits of fraction, offsets signed in the unit
	// of the raw value.
	linear := func(offset int) (slope, shift float64) {
		s, ok1 := d.readUint16(diagnostic, offset)
		o, ok2 := d.readUint16(diagnostic, offset+2)
		ok = ok && ok1 && ok2
		return float64(s) / 256, float64(int16(o))
	}
	ok = true
	biasSlope, biasOffset := linear(76)
	transmitSlope, transmitOffset := linear(80)
	temperatureSlope, temperatureOffset := linear(84)
	voltageSlope, voltageOffset := linear(88)
	// The received power is a polynomial of degree four; its coefficients are IEEE 754 singles,
	// that of the fourth power first.
	var c [5]float64
	for i := range c {
		x, there := d.readBytes(diagnostic, 56+4*i, 4)
		if !there {
			return nil, nil, nil, nil, nil, false
		}
		c[i] = float64(math.Float32frombits(binary.BigEndian.Uint32(x)))
		if math.IsNaN(c[i]) || math.IsInf(c[i], 0) {
			d.addError(diagnostic, 56+4*i, "a finite coefficient of the received power is expected")
		}
	}
	temperature = func(raw uint16) float64 {
		return (temperatureSlope*float64(int16(raw)) + temperatureOffset) / 256
	}
	voltage = func(raw uint16) float64 { return (voltageSlope*float64(raw) + voltageOffset) * 100 / 1e6 }
	bias = func(raw uint16) float64 { return max(0, biasSlope*float64(raw)+biasOffset) * 2 / 1e6 }
	transmit = func(raw uint16) float64 {
		return max(0, transmitSlope*float64(raw)+transmitOffset) / 1e7
	}
	receive = func(raw uint16) float64 {
		v := 0.0
		for _, k := range c {
			v = v*float64(raw) + k
		}
		return max(0, v) / 1e7 // below zero is the noise of a dark fibre
	}
	return temperature, voltage, bias, transmit, receive, ok
}
