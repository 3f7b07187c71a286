package bpf

import (
	"fmt"

	"github.com/cilium/ebpf/asm"

	"github.com/graylink/graylink/internal/csig"
)

// Layout of a flow's key and of what follows it on the stack: source and destination with 16 octets each (IPv4 mapped), then
// both ports, in network order, then the sequence number of a probe in network order.
const (
	keySource = 0
	keyTarget = 16
	keyPorts  = 32
	keyLen    = 36
	keyNumber = 36
	probeLen  = 40 // a key with a sequence number
)

// Layout of an event of the sink.
const (
	eventType      = probeLen
	eventMalformed = eventType + 2
	eventValue     = eventMalformed + 2
	eventLen       = eventValue + 8 // of a value, 6 octets are used
)

// Offsets from the frame pointer of the endpoint's programs.
const (
	atProbe   = -56            // key, sequence number, and the rest of an event
	atReverse = atProbe - 40   // the key of the reply, with the sequence number of the request
	atHeader  = atReverse - 40 // IP header
	atSent    = atHeader - 16  // octets of a tag to write
	ipv4Len   = 20
	ipv6Len   = 40
)

// loader returns the instructions that copy so many octets from an offset of the packet to the stack. They go on at "out" if
// the packet ends before.
type loader func(offset, to, n int32) asm.Instructions

// loadBy returns the loader that calls a helper.
func loadBy(helper asm.BuiltinFunc) loader {
	return func(offset, to, n int32) asm.Instructions {
		p := asm.Instructions{asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, offset)}
		return join(p, stackPointer(asm.R3, to), asm.Instructions{asm.Mov.Imm(asm.R4, n), helper.Call(), asm.JNE.Imm(asm.R0, 0, "out")})
	}
}

// behind returns a loader whose offset is added to R8.
func (l loader) behind() loader {
	return func(offset, to, n int32) asm.Instructions {
		p := l(offset, to, n)
		return join(p[:1], asm.Instructions{asm.Mov.Reg(asm.R2, asm.R8), asm.Add.Imm(asm.R2, offset)}, p[2:])
	}
}

// readKey returns the instructions that write the key of a UDP packet to the stack, whose EtherType in network order is in R7,
// and leave the offset of the UDP header in R8. Other packets and later fragments go to "out". IPv6 extension headers, which
// probes do not have, are not followed.
func readKey(load loader) asm.Instructions {
	p := join(asm.Instructions{
		asm.JEq.Imm(asm.R7, networkOrder(typeIPv6), "ipv6"),
		asm.JNE.Imm(asm.R7, networkOrder(typeIPv4), "out"),
	}, load(ethernetLen, atHeader, ipv4Len), asm.Instructions{
		asm.LoadMem(asm.R2, asm.RFP, atHeader+9, asm.Byte),
		asm.JNE.Imm(asm.R2, protocolUDP, "out"),
		asm.LoadMem(asm.R2, asm.RFP, atHeader+6, asm.Half),
		asm.And.Imm(asm.R2, networkOrder(0x1fff)),
		asm.JNE.Imm(asm.R2, 0, "out"),
		asm.Mov.Imm(asm.R2, 0),
		asm.StoreMem(asm.RFP, atProbe+keySource, asm.R2, asm.DWord),
		asm.StoreMem(asm.RFP, atProbe+keySource+8, asm.R2, asm.Half),
		asm.StoreMem(asm.RFP, atProbe+keyTarget, asm.R2, asm.DWord),
		asm.StoreMem(asm.RFP, atProbe+keyTarget+8, asm.R2, asm.Half),
		asm.Mov.Imm(asm.R2, -1), // ::ffff:0:0/96
		asm.StoreMem(asm.RFP, atProbe+keySource+10, asm.R2, asm.Half),
		asm.StoreMem(asm.RFP, atProbe+keyTarget+10, asm.R2, asm.Half),
		asm.LoadMem(asm.R2, asm.RFP, atHeader+12, asm.Word),
		asm.StoreMem(asm.RFP, atProbe+keySource+12, asm.R2, asm.Word),
		asm.LoadMem(asm.R2, asm.RFP, atHeader+16, asm.Word),
		asm.StoreMem(asm.RFP, atProbe+keyTarget+12, asm.R2, asm.Word),
		asm.LoadMem(asm.R8, asm.RFP, atHeader, asm.Byte),
		asm.And.Imm(asm.R8, 0x0f),
		asm.LSh.Imm(asm.R8, 2),
		asm.Add.Imm(asm.R8, ethernetLen),
		asm.Ja.Label("ports"),
	}, labelled("ipv6", load(ethernetLen, atHeader, ipv6Len)...), asm.Instructions{
		asm.LoadMem(asm.R2, asm.RFP, atHeader+6, asm.Byte),
		asm.JNE.Imm(asm.R2, protocolUDP, "out"),
	})
	for i := int16(0); i < 32; i += 8 {
		p = append(p, asm.LoadMem(asm.R2, asm.RFP, atHeader+8+i, asm.DWord), asm.StoreMem(asm.RFP, atProbe+i, asm.R2, asm.DWord))
	}
	return join(p, asm.Instructions{asm.Mov.Imm(asm.R8, ethernetLen+ipv6Len)},
		labelled("ports", load.behind()(0, atProbe+keyPorts, 4)...))
}

// sinkMaps are the descriptors of the sink's maps.
type sinkMaps struct{ counts, events, noted int }

// Counters of the endpoint's programs.
const (
	countStripped  = 0
	countMalformed = 1 // of those, with a tag that cannot be read
	countLost      = 2 // events without room
	countFailed    = 3 // tags that the kernel refused to take off or to put in
	countTagged    = 4
)

// assembleSink returns the XDP program of an endpoint: it takes tags off, reports those of probes and replies from or to the
// STAMP ports, and notes the tagged requests (rules 7 and 8).
func assembleSink(e csig.EtherTypes, m sinkMaps, stampPorts []uint16) asm.Instructions {
	clear := func() (p asm.Instructions) {
		p = asm.Instructions{asm.Mov.Imm(asm.R1, 0)}
		for i := int16(probeLen); i < eventLen; i += 4 {
			p = append(p, asm.StoreMem(asm.RFP, atProbe+i, asm.R1, asm.Word))
		}
		return p
	}
	p := join(asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}, clear(), findTag(e, 0, "out"))
	for _, f := range usedFormats(e) {
		p = append(p, takeOff(e, f, 0)...)
	}
	p = join(p, labelled("second", asm.Mov.Imm(asm.R1, 1)), findTag(e, 1, "ready"))
	for _, f := range usedFormats(e) {
		p = append(p, takeOff(e, f, 1)...)
	}
	return join(p,
		labelled("ready", asm.Mov.Imm(asm.R1, countStripped)), countOutcome(m.counts),
		asm.Instructions{asm.LoadMem(asm.R1, asm.RFP, atProbe+eventMalformed, asm.Half), asm.JEq.Imm(asm.R1, 0, "report")},
		asm.Instructions{asm.Mov.Imm(asm.R1, countMalformed)}, countOutcome(m.counts),
		labelled("report", loadPacket(typeAt+typeLen, "out")...),
		asm.Instructions{asm.LoadMem(asm.R7, asm.R7, typeAt, asm.Half)},
		reportProbe(m, stampPorts),
		labelled("lost", asm.Mov.Imm(asm.R1, countLost), asm.Ja.Label("count")),
		labelled("failed", asm.Mov.Imm(asm.R1, countFailed)),
		labelled("count", countOutcome(m.counts)...),
		labelled("out", asm.Mov.Imm(asm.R0, xdpPass), asm.Return()))
}

// findTag goes on at the place where a tag of the frame is taken off, or at another label if there is none.
func findTag(e csig.EtherTypes, nth int, none string) asm.Instructions {
	p := loadPacket(typeAt+typeLen, "out")
	p = append(p, asm.LoadMem(asm.R2, asm.R7, typeAt, asm.Half))
	for _, f := range usedFormats(e) {
		p = append(p, asm.JEq.Imm(asm.R2, networkOrder(e.Of(f)), labelOf(f, nth)))
	}
	return append(p, asm.Ja.Label(none))
}

// takeOff takes the first or the second tag off a frame. The first one goes to the event. A tag before a VLAN tag, and one
// behind which the frame ends, stay.
func takeOff(e csig.EtherTypes, f csig.Format, nth int) asm.Instructions {
	end := int16(typeAt + f)
	p := labelled(labelOf(f, nth), asm.Mov.Imm(asm.R1, 0))
	p = append(p, loadPacket(int32(end)+typeLen, "out")...)
	p = append(p, asm.LoadMem(asm.R9, asm.R7, end, asm.Half))
	p = append(p, jumpIfVLAN(asm.R9, "out")...)
	if nth == 0 {
		p = append(p, asm.LoadMem(asm.R1, asm.R7, typeAt, asm.Half), asm.StoreMem(asm.RFP, atProbe+eventType, asm.R1, asm.Half))
		for i := int16(0); i < int16(f)-typeLen; i += 2 {
			p = append(p, asm.LoadMem(asm.R1, asm.R7, typeAt+typeLen+i, asm.Half), asm.StoreMem(asm.RFP, atProbe+eventValue+i, asm.R1, asm.Half))
		}
	}
	p = append(p, dropFront(int16(f))...)
	p = append(p, asm.JNE.Imm(asm.R0, 0, "failed"))
	if nth > 0 {
		return append(p, asm.Ja.Label("ready"))
	}
	for _, second := range usedFormats(e) {
		p = append(p, asm.JEq.Imm(asm.R9, networkOrder(e.Of(second)), fmt.Sprintf("malformed%v", f)))
	}
	return join(p, asm.Instructions{asm.Ja.Label("ready")},
		labelled(fmt.Sprintf("malformed%v", f), storeNumber(atProbe+eventMalformed, 1, asm.Half), asm.Ja.Label("second")))
}

// reportProbe writes an event if the packet is from or to a STAMP port, and notes it for its reply if it is a request.
func reportProbe(m sinkMaps, stampPorts []uint16) asm.Instructions {
	load := loadBy(asm.FnXdpLoadBytes)
	p := join(readKey(load), asm.Instructions{
		asm.LoadMem(asm.R2, asm.RFP, atProbe+keyPorts, asm.Half),
		asm.LoadMem(asm.R9, asm.RFP, atProbe+keyPorts+2, asm.Half),
	})
	for _, port := range stampPorts {
		p = append(p, asm.JEq.Imm(asm.R2, networkOrder(port), "probe"), asm.JEq.Imm(asm.R9, networkOrder(port), "probe"))
	}
	p = join(p, asm.Instructions{asm.Ja.Label("out")},
		labelled("probe", load.behind()(udpLen, atProbe+keyNumber, 4)...),
		asm.Instructions{asm.LoadMapPtr(asm.R1, m.events)}, stackPointer(asm.R2, atProbe),
		asm.Instructions{asm.Mov.Imm(asm.R3, eventLen), asm.Mov.Imm(asm.R4, noWakeup), asm.FnRingbufOutput.Call(), asm.Mov.Reg(asm.R7, asm.R0)})
	for _, port := range stampPorts {
		p = append(p, asm.JEq.Imm(asm.R9, networkOrder(port), "request"))
	}
	p = append(p, asm.Ja.Label("noted"))
	p = append(p, labelled("request", asm.Mov.Imm(asm.R1, 0))...)
	for i := int16(0); i < 16; i += 8 {
		p = append(p,
			asm.LoadMem(asm.R1, asm.RFP, atProbe+keySource+i, asm.DWord), asm.StoreMem(asm.RFP, atReverse+keyTarget+i, asm.R1, asm.DWord),
			asm.LoadMem(asm.R1, asm.RFP, atProbe+keyTarget+i, asm.DWord), asm.StoreMem(asm.RFP, atReverse+keySource+i, asm.R1, asm.DWord))
	}
	return join(p, asm.Instructions{
		asm.LoadMem(asm.R1, asm.RFP, atProbe+keyPorts, asm.Half), asm.StoreMem(asm.RFP, atReverse+keyPorts+2, asm.R1, asm.Half),
		asm.LoadMem(asm.R1, asm.RFP, atProbe+keyPorts+2, asm.Half), asm.StoreMem(asm.RFP, atReverse+keyPorts, asm.R1, asm.Half),
		asm.LoadMem(asm.R1, asm.RFP, atProbe+keyNumber, asm.Word), asm.StoreMem(asm.RFP, atReverse+keyNumber, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, m.noted),
	}, stackPointer(asm.R2, atReverse), stackPointer(asm.R3, atProbe+keyNumber), asm.Instructions{
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
	}, labelled("noted", asm.JNE.Imm(asm.R7, 0, "lost"), asm.Ja.Label("out")))
}
