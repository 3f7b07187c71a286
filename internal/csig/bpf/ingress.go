package bpf

import (
	"fmt"

	"github.com/cilium/ebpf/asm"

	"github.com/graylink/graylink/internal/csig"
)

// assembleIngress returns the XDP program of a switch: it takes the tag off a frame and writes it before the packet (rules 1
// and 3). Frames that cannot be treated pass as they are.
func assembleIngress(e csig.EtherTypes, counts int) asm.Instructions {
	p := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}
	for vlans := range 3 {
		at := int32(typeAt + vlans*vlanLen)
		short := "malformed"
		p = append(p, loadPacket(at+typeLen, short)...)
		p = append(p, asm.LoadMem(asm.R2, asm.R7, int16(at), asm.Half))
		for _, f := range usedFormats(e) {
			p = append(p, asm.JEq.Imm(asm.R2, networkOrder(e.Of(f)), labelOf(f, vlans)))
		}
		if vlans < 2 {
			next := fmt.Sprintf("vlan%d", vlans+1)
			p = append(p, jumpIfVLAN(asm.R2, next)...)
			p = append(p, asm.Ja.Label("out"))
			p = append(p, labelled(next, asm.Mov.Imm(asm.R1, 0))...)
		}
	}
	p = append(p, asm.Ja.Label("out"))
	for _, f := range usedFormats(e) {
		for vlans := range 3 {
			p = append(p, checkTag(e, f, vlans)...)
		}
		p = append(p, takeTag(f)...)
	}
	return join(p,
		labelled("malformed", asm.Mov.Imm(asm.R1, int32(csig.BadTag)), asm.Ja.Label("count")),
		labelled("pass", asm.Mov.Imm(asm.R1, int32(csig.Passed)), asm.Ja.Label("count")),
		labelled("failed", asm.Mov.Imm(asm.R1, failedTag)),
		labelled("count", countOutcome(counts)...),
		labelled("out", asm.Mov.Imm(asm.R0, xdpPass), asm.Return()))
}

// labelOf returns the name of the place where a tag of a format behind so many VLAN tags is treated.
func labelOf(f csig.Format, vlans int) string { return fmt.Sprintf("%v%d", f, vlans) }

// checkTag goes on at "take" of the format if a tag can be taken off, and at "malformed" or "pass" otherwise.
func checkTag(e csig.EtherTypes, f csig.Format, vlans int) asm.Instructions {
	end := int32(typeAt+vlans*vlanLen) + int32(f)
	p := labelled(labelOf(f, vlans), asm.Mov.Imm(asm.R1, 0))
	p = append(p, loadPacket(end+typeLen, "malformed")...)
	p = append(p, asm.LoadMem(asm.R2, asm.R7, int16(end), asm.Half))
	p = append(p, jumpIfTag(e, asm.R2, "malformed")...)
	if vlans > 0 {
		return append(p, asm.Ja.Label("pass"))
	}
	return append(p,
		asm.JEq.Imm(asm.R2, networkOrder(typeIPv4), "take"+f.String()),
		asm.JEq.Imm(asm.R2, networkOrder(typeIPv6), "take"+f.String()),
		asm.Ja.Label("pass"))
}

// takeTag moves a tag behind the addresses to the packet's metadata. R7 points to the frame.
func takeTag(f csig.Format) asm.Instructions {
	const atLocator, atWord = -8, -16
	p := labelled("take"+f.String(), asm.Mov.Imm(asm.R1, 0), asm.StoreMem(asm.RFP, atLocator, asm.R1, asm.DWord))
	if f == csig.Compact {
		p = append(p, asm.LoadMem(asm.R1, asm.R7, typeAt+typeLen, asm.Half), asm.HostTo(asm.BE, asm.R1, asm.Half))
	} else {
		p = append(p,
			asm.LoadMem(asm.R1, asm.R7, typeAt+typeLen, asm.Half), asm.HostTo(asm.BE, asm.R1, asm.Half),
			asm.StoreMem(asm.RFP, atLocator, asm.R1, asm.DWord),
			asm.LoadMem(asm.R1, asm.R7, typeAt+2*typeLen, asm.Word), asm.HostTo(asm.BE, asm.R1, asm.Word))
	}
	p = append(p, asm.StoreMem(asm.RFP, atWord, asm.R1, asm.DWord))
	p = append(p, dropFront(int16(f))...)
	return append(p,
		asm.JNE.Imm(asm.R0, 0, "failed"),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, -metaLen),
		asm.FnXdpAdjustMeta.Call(),
		asm.JNE.Imm(asm.R0, 0, "failed"),
		asm.LoadMem(asm.R7, asm.R6, xdpDataMeta, asm.Word),
		asm.LoadMem(asm.R8, asm.R6, xdpData, asm.Word),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Add.Imm(asm.R2, metaLen),
		asm.JGT.Reg(asm.R2, asm.R8, "failed"),
		asm.Mov.Imm(asm.R1, metaMark|int32(f)),
		asm.StoreMem(asm.R7, 0, asm.R1, asm.Word),
		asm.LoadMem(asm.R1, asm.RFP, atLocator, asm.DWord),
		asm.StoreMem(asm.R7, 4, asm.R1, asm.Word),
		asm.LoadMem(asm.R1, asm.RFP, atWord, asm.DWord),
		asm.StoreMem(asm.R7, 8, asm.R1, asm.Word),
		asm.Ja.Label("out"))
}

// assembleCarry returns the TCX program at the ingress of a switch: it moves a tag from the packet's metadata to fields that
// stay with the packet (rule 2). It clears the metadata, and a queue mapping that says that there is a tag where there is none.
func assembleCarry() asm.Instructions {
	p := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, skbDataMeta, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, skbData, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, metaLen),
		asm.JGT.Reg(asm.R4, asm.R3, "plain"),
		asm.LoadMem(asm.R5, asm.R2, 0, asm.Word),
		asm.JEq.Imm(asm.R5, metaMark|int32(csig.Compact), "tagged"),
		asm.JEq.Imm(asm.R5, metaMark|int32(csig.Wide), "tagged"),
		asm.Ja.Label("plain"),
	}
	return join(p,
		labelled("tagged",
			asm.LoadMem(asm.R4, asm.R2, 4, asm.Word), asm.StoreMem(asm.R6, skbTCIndex, asm.R4, asm.Word),
			asm.LoadMem(asm.R4, asm.R2, 8, asm.Word), asm.StoreMem(asm.R6, skbMark, asm.R4, asm.Word),
			asm.And.Imm(asm.R5, 0xf),
			asm.Or.Imm(asm.R5, queueMark),
			asm.StoreMem(asm.R6, skbQueueMapping, asm.R5, asm.Word),
			asm.Xor.Imm(asm.R5, queueMark|priorityMark), // for a tunnel that ends here; routing sets the priority anew
			asm.StoreMem(asm.R6, skbPriority, asm.R5, asm.Word),
			asm.Mov.Imm(asm.R4, 0),
			asm.StoreMem(asm.R2, 0, asm.R4, asm.Word),
			asm.Ja.Label("out")),
		labelled("plain",
			asm.LoadMem(asm.R2, asm.R6, skbQueueMapping, asm.Word),
			asm.JEq.Imm(asm.R2, queueMark|int32(csig.Compact), "clear"),
			asm.JNE.Imm(asm.R2, queueMark|int32(csig.Wide), "out")),
		labelled("clear", asm.Mov.Imm(asm.R2, 0), asm.StoreMem(asm.R6, skbQueueMapping, asm.R2, asm.Word)),
		labelled("out", asm.Mov.Imm(asm.R0, tcxNext), asm.Return()))
}

// assembleEnter returns the TCX program at the egress of a tunnel's device: the kernel resets the queue mapping there, so that
// the priority says that the packet has a tag, and of which format, until it leaves by a port.
func assembleEnter() asm.Instructions {
	return join(asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, skbQueueMapping, asm.Word),
		asm.JEq.Imm(asm.R2, queueMark|int32(csig.Compact), "tagged"),
		asm.JNE.Imm(asm.R2, queueMark|int32(csig.Wide), "out"),
	},
		labelled("tagged", asm.Xor.Imm(asm.R2, queueMark|priorityMark), asm.StoreMem(asm.R6, skbPriority, asm.R2, asm.Word)),
		labelled("out", asm.Mov.Imm(asm.R0, tcxNext), asm.Return()))
}

// assembleLeave returns the TCX program at the ingress of a tunnel's device, which undoes what assembleEnter does: the packet
// came with the tag of the tunnel's link header, and is routed with it from here on.
func assembleLeave() asm.Instructions {
	return join(asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, skbPriority, asm.Word),
		asm.JEq.Imm(asm.R2, priorityMark|int32(csig.Compact), "tagged"),
		asm.JNE.Imm(asm.R2, priorityMark|int32(csig.Wide), "out"),
	},
		labelled("tagged", asm.Xor.Imm(asm.R2, queueMark|priorityMark), asm.StoreMem(asm.R6, skbQueueMapping, asm.R2, asm.Word)),
		labelled("out", asm.Mov.Imm(asm.R0, tcxNext), asm.Return()))
}
