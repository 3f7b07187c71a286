package module

import (
	"fmt"
	"iter"
)

// lanePage returns page 11h of a bank: states, flags and monitors of eight lanes (CMIS, page 11h).
func lanePage(bank int) Block {
	return Block{Address: A0, Bank: uint8(bank), Page: 0x11, Upper: true}
}

// laneBanks returns the banks of lanes that the module has (CMIS, page 01h, octet 142, bits 1-0).
func laneBanks(img Image) iter.Seq[int] {
	n := 1
	if x := img[page1]; len(x) == Half {
		n = [4]int{1, 2, 4, 1}[x[142-Half]&3] // 11b is reserved
	}
	return func(yield func(int) bool) {
		for b := range n {
			if !yield(b) {
				return
			}
		}
	}
}

// moduleStates are those of CMIS (lower memory, octet 3, bits 3-1).
var moduleStates = [8]string{1: "ModuleLowPwr", 2: "ModulePwrUp", 3: "ModuleReady", 4: "ModulePwrDn", 5: "ModuleFault"}

// faultCauses are those of CMIS (lower memory, octet 41).
var faultCauses = map[byte]string{1: "TEC runaway", 2: "data memory corrupted", 3: "program memory corrupted"}

// decodeCMIS decodes OIF-CMIS-05.2. lanes limits those of form factors with less than eight.
func (d *decoder) decodeCMIS(lanes int) {
	m := d.m
	if rev, ok := d.readOctet(Lower, 1); ok {
		m.Compliance = fmt.Sprintf("%d.%d", rev>>4, rev&15)
	}
	if x, ok := d.readOctet(Lower, 3); ok {
		if m.State = moduleStates[x>>1&7]; m.State == "" && x>>1&7 != 0 {
			d.addError(Lower, 3, fmt.Sprintf("a module state of 1 to 5 is expected, not %d", x>>1&7))
		}
	}
	if x, ok := d.readOctet(Lower, 41); ok && m.State == "ModuleFault" {
		m.FaultCause = faultCauses[x]
	}
	// Page 00h: administrative information.
	m.Vendor, m.OUI = d.readText(Page0, 129, 16), d.readOUI(Page0, 145)
	m.Part, m.Revision = d.readText(Page0, 148, 16), d.readText(Page0, 164, 2)
	m.Serial, m.Date = d.readText(Page0, 166, 16), d.readText(Page0, 182, 8)
	d.verifyChecksum(Page0, 128, 221)
	if d.readBit(Lower, 2, 7) {
		return // flat memory: a passive cable, which monitors nothing
	}
	if d.readBit(Lower, 8, 1) {
		d.raiseFlag(0, ModuleFirmware)
	}
	if d.readBit(Lower, 8, 2) {
		d.raiseFlag(0, DataPathFirmware)
	}
	// Page 01h, octets 157 to 160: which flags and monitors there are.
	has := func(offset, bit int) bool { return d.readBit(page1, offset, bit) }
	if has(159, 0) {
		m.Temperature, m.Thresholds.Temperature = d.readValue(Lower, 14, toCelsius), d.readLimits(page2, 128, toCelsius)
		d.raiseFourFlags(Lower, 9, 0, 1, 0, "temperature")
	}
	if has(159, 1) {
		m.Voltage, m.Thresholds.Voltage = d.readValue(Lower, 16, toVolts), d.readLimits(page2, 136, toVolts)
		d.raiseFourFlags(Lower, 9, 4, 1, 0, "voltage")
	}
	bias := func(raw uint16) float64 { return toAmperes(raw) }
	if x, ok := d.readOctet(page1, 160); ok {
		factor := [4]float64{1, 2, 4, 0}[x>>3&3]
		if factor == 0 && x&1 != 0 {
			d.addError(page1, 160, "a factor of the bias current of 0 to 2 is expected, not 3")
		}
		bias = func(raw uint16) float64 { return toAmperes(raw) * factor }
	}
	hasBias, hasTransmit, hasReceive := has(160, 0) && bias(1) > 0, has(160, 1), has(160, 2)
	if hasTransmit {
		m.Thresholds.TransmitPower = d.readLimits(page2, 176, toWatts)
	}
	if hasBias {
		m.Thresholds.Bias = d.readLimits(page2, 184, bias)
	}
	if hasReceive {
		m.Thresholds.ReceivePower = d.readLimits(page2, 192, toWatts)
	}
	for b := range laneBanks(d.img) {
		p := lanePage(b)
		for i := range 8 {
			n := 8*b + i + 1
			if lanes != 0 && n > lanes || b == 0 && d.readBit(Page0, 210, i) {
				continue // octet 210: 1 is a media lane that is not implemented
			}
			l := Lane{Number: n}
			if hasTransmit {
				l.TransmitPower = d.readValue(p, 154+2*i, toWatts)
				d.raiseLaneFlags(p, 139, i, n, "transmit_power")
			}
			if hasBias {
				l.Bias = d.readValue(p, 170+2*i, bias)
				d.raiseLaneFlags(p, 143, i, n, "bias")
			}
			if hasReceive {
				l.ReceivePower = d.readValue(p, 186+2*i, toWatts)
				d.raiseLaneFlags(p, 149, i, n, "receive_power")
			}
			for _, f := range []struct {
				supported, bit, offset int
				name                   string
			}{{157, 0, 135, TransmitFault}, {157, 1, 136, TransmitLossOfSignal}, {157, 2, 137, TransmitLossOfLock}, {157, 3, 138, TransmitEqualizer},
				{158, 1, 147, ReceiveLossOfSignal}, {158, 2, 148, ReceiveLossOfLock}} {
				if has(f.supported, f.bit) && d.readBit(p, f.offset, i) {
					d.raiseFlag(n, f.name)
				}
			}
			m.Lanes = append(m.Lanes, l)
		}
	}
}

// raiseLaneFlags raises the flags of a monitor of one lane: four octets, with a bit for each lane, page 11h.
func (d *decoder) raiseLaneFlags(p Block, offset, bit, lane int, monitor string) {
	for i, name := range thresholds {
		if d.readBit(p, offset+i, bit) {
			d.raiseFlag(lane, monitor+name)
		}
	}
}
