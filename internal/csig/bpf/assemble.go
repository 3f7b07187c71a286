package bpf

import (
	"encoding/binary"

	"github.com/cilium/ebpf/asm"

	"github.com/graylink/graylink/internal/csig"
)

// Offsets in the kernel's struct __sk_buff and struct xdp_md: Linux, include/uapi/linux/bpf.h.
const (
	skbLen          = 0
	skbMark         = 8
	skbQueueMapping = 12
	skbProtocol     = 16
	skbPriority     = 32
	skbTCIndex      = 44
	skbCB           = 48
	skbData         = 76
	skbDataMeta     = 140
	skbGSOSize      = 176
	xdpData         = 0
	xdpDataEnd      = 4
	xdpDataMeta     = 8
)

// Results and flags of programs and helper functions: Linux, include/uapi/linux/bpf.h.
const (
	xdpPass     = 2
	tcxNext     = -1
	roomAtMAC   = 1      // BPF_ADJ_ROOM_MAC
	fixedGSO    = 1      // BPF_F_ADJ_ROOM_FIXED_GSO
	noWakeup    = 1      // BPF_RB_NO_WAKEUP
	xdpHasFrags = 1 << 5 // BPF_F_XDP_HAS_FRAGS
)

// Frames: IEEE 802.3 clause 3.2, IEEE 802.1Q clause 9.
const (
	typeAt          = 12 // offset of the EtherType
	typeLen         = 2
	ethernetLen     = 14
	vlanLen         = 4
	typeIPv4        = 0x0800
	typeIPv6        = 0x86dd
	typeVLAN        = 0x8100
	typeServiceVLAN = 0x88a8
	protocolUDP     = 17
	udpLen          = 8
)

// What the ingress of a switch writes before a packet: a word that says that there is a tag, and of which format, then the
// locator of a wide tag, then what stands behind the EtherType of a compact tag, or behind the locator of a wide one.
const (
	metaLen  = 12
	metaMark = 0x43534700 // the format is added
)

// queueMark is the queue mapping of a packet with a tag; the format is added.
const queueMark = 0x4350

// priorityMark is the priority of a packet with a tag where the kernel resets the queue mapping; the format is added.
const priorityMark = 0x43530000

// license is that of the programs.
const license = "Apache-2.0"

// networkOrder returns a number in network byte order as a load reads it.
func networkOrder(v uint16) int32 {
	return int32(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v)))
}

// wordOf returns four octets as a load reads them.
func wordOf(b []byte) int64 { return int64(int32(binary.NativeEndian.Uint32(b))) }

// labelled gives the first of some instructions a name to jump to.
func labelled(name string, p ...asm.Instruction) asm.Instructions {
	p[0] = p[0].WithSymbol(name)
	return p
}

// join returns all instructions in order.
func join(parts ...asm.Instructions) (out asm.Instructions) {
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// stackPointer sets a register to the address of an offset from the frame pointer.
func stackPointer(to asm.Register, offset int32) asm.Instructions {
	return asm.Instructions{asm.Mov.Reg(to, asm.RFP), asm.Add.Imm(to, offset)}
}

// storeNumber writes a constant to the stack.
func storeNumber(offset int16, v int64, size asm.Size) asm.Instruction {
	return asm.StoreImm(asm.RFP, offset, v, size)
}

// countOutcome adds one to the counter whose number is in R1. It changes R1 to R3.
func countOutcome(counts int) asm.Instructions {
	return asm.Instructions{
		asm.LSh.Imm(asm.R1, 3),
		asm.And.Imm(asm.R1, 8*(maxCounters-1)),
		asm.LoadMapValue(asm.R2, counts, 0),
		asm.Add.Reg(asm.R2, asm.R1),
		asm.Mov.Imm(asm.R3, 1),
		asm.AddAtomic.Mem(asm.R2, asm.R3, asm.DWord, 0),
	}
}

// maxCounters is the number of counters of a program: a power of two.
const maxCounters = 16

// loadPacket loads the bounds of a frame from the context in R6 to R7 and R8, and goes on at short if there are less than so
// many octets.
func loadPacket(octets int32, short string) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R7, asm.R6, xdpData, asm.Word),
		asm.LoadMem(asm.R8, asm.R6, xdpDataEnd, asm.Word),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Add.Imm(asm.R2, octets),
		asm.JGT.Reg(asm.R2, asm.R8, short),
	}
}

// dropFront takes so many octets out of a frame from behind its addresses, which R7 points to. It changes R1 to R5. The result
// of the helper is in R0.
func dropFront(octets int16) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R1, asm.R7, 0, asm.Word),
		asm.LoadMem(asm.R2, asm.R7, 4, asm.Word),
		asm.LoadMem(asm.R3, asm.R7, 8, asm.Word),
		asm.StoreMem(asm.R7, octets, asm.R1, asm.Word),
		asm.StoreMem(asm.R7, octets+4, asm.R2, asm.Word),
		asm.StoreMem(asm.R7, octets+8, asm.R3, asm.Word),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, int32(octets)),
		asm.FnXdpAdjustHead.Call(),
	}
}

// putTag makes room for a tag in the packet of the context in R6, and writes the octets from the EtherType on that are on the
// stack, with the EtherType of the packet behind them. The format is in R9. It goes on at failed if the kernel refuses. A
// packet that stands for several frames is refused, since the kernel does not divide what has an unknown EtherType.
func putTag(buffer int32, failed string) asm.Instructions {
	return join(asm.Instructions{
		asm.LoadMem(asm.R2, asm.R6, skbGSOSize, asm.Word),
		asm.JNE.Imm(asm.R2, 0, failed),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.R9),
		asm.Mov.Imm(asm.R3, roomAtMAC),
		asm.Mov.Imm(asm.R4, fixedGSO),
		asm.FnSkbAdjustRoom.Call(),
		asm.JNE.Imm(asm.R0, 0, failed),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, typeAt),
	}, stackPointer(asm.R3, buffer), asm.Instructions{
		asm.Mov.Reg(asm.R4, asm.R9),
		asm.Add.Imm(asm.R4, typeLen),
		asm.Mov.Imm(asm.R5, 0),
		asm.FnSkbStoreBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, failed),
	})
}

// usedFormats returns the formats that have an EtherType.
func usedFormats(e csig.EtherTypes) (out []csig.Format) {
	for _, f := range csig.Formats {
		if e.Of(f) != 0 {
			out = append(out, f)
		}
	}
	return out
}

// jumpIfTag goes on at a label if a register holds the EtherType of a VLAN tag or of a tag of the domain.
func jumpIfTag(e csig.EtherTypes, r asm.Register, label string) asm.Instructions {
	p := jumpIfVLAN(r, label)
	for _, f := range usedFormats(e) {
		p = append(p, asm.JEq.Imm(r, networkOrder(e.Of(f)), label))
	}
	return p
}

// jumpIfVLAN goes on at a label if a register holds the EtherType of a VLAN tag.
func jumpIfVLAN(r asm.Register, label string) asm.Instructions {
	return asm.Instructions{asm.JEq.Imm(r, networkOrder(typeVLAN), label), asm.JEq.Imm(r, networkOrder(typeServiceVLAN), label)}
}
