package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"syscall"

	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/fabric"
)

// Packet trimming: a switch that has no room for a packet cuts its payload off and sends the rest on with another DSCP, so
// that the receiver asks for it again at once (Ultra Ethernet Specification 1.0; Cumulus Linux 5.14, where the shortest length
// is 256 octets and the DSCP is 11). The fault trims packets without congestion. It trims UDP of IPv4 alone, by which
// RoCE v2 and probes are sent, and makes lengths and checksums fit, so that the packet passes the kernels on its way and the
// receiver gets a shorter datagram.

// Defaults and bounds of the fault trim.
const (
	// DefaultTrimLength is what is left of a packet, octets from its IP header on: 36 octets of UDP payload, and less than a
	// probe's own header.
	DefaultTrimLength = 64
	minTrimLength     = 28 // headers of IP and UDP
	// TrimmedDSCP is what trimmed packets are marked with: Cumulus Linux's own.
	TrimmedDSCP = 11
)

// trimPriority is that of the filter that trims. Those that set hashes of packets come before it.
const trimPriority = 2

// resolveTrim completes a fault that trims what crosses a link in one direction.
func (x *index) resolveTrim(af *ActiveFault, d fabric.Direction) error {
	if af.Length == 0 {
		af.Length = DefaultTrimLength
	}
	if af.Share == 0 {
		af.Share = 1
	}
	switch {
	case x.family() != ipv4Family:
		return fmt.Errorf("%s trims packets of IPv4, and this lab has %s", af.Kind, x.family().title)
	case af.Length < minTrimLength || af.Length > DefaultMTU:
		return fmt.Errorf("length %d: want %d to %d octets from the IP header on", af.Length, minTrimLength, DefaultMTU)
	case !(af.Share > 0 && af.Share <= 1):
		return fmt.Errorf("share %v: want a ratio above 0 and up to 1", af.Share)
	}
	af.Mechanism, af.TrimAt, af.Exclusive = "bpf", d.From, KindTrim+" "+d.String()
	if fabric.IsNIC(d.From) {
		af.TrimAt = d.To // where the switch receives it
	}
	return nil
}

// setTrimming has a switch's port trim packets as a fault says, or no longer.
func (x *index) setTrimming(f *ActiveFault, on bool) error {
	return x.onInterface(f.TrimAt, func(h *netlink.Handle, link netlink.Link) error {
		parent := uint32(netlink.HANDLE_MIN_EGRESS)
		if d, err := fabric.ParseDirection(f.Direction); err == nil && d.To == f.TrimAt {
			parent = netlink.HANDLE_MIN_INGRESS
		}
		filter := &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: link.Attrs().Index, Parent: parent, Handle: 1, Priority: trimPriority,
			Protocol: syscall.ETH_P_IP}, Name: "graylink_trim", DirectAction: true}
		if !on {
			err := h.FilterDel(filter)
			if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.EINVAL) {
				return nil // it was not added
			}
			return err
		}
		program, err := loadClassifier("trim", trimPackets(f.Length, f.Share))
		if err != nil {
			return err
		}
		defer program.Close() // the filter keeps it
		if err := addClsact(h, link); err != nil {
			return err
		}
		filter.Fd = program.FD()
		if err := h.FilterAdd(filter); err != nil {
			return fmt.Errorf("adding the program that trims packets: %w", err)
		}
		return nil
	})
}

// bigEndian16 returns a number in network byte order, as a load of 16 bits reads it.
func bigEndian16(v uint16) int32 {
	return int32(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v)))
}

// trimPackets returns the instructions that shorten a share of the longer packets of UDP to a length, from the IP header on.
func trimPackets(length int, share float64) asm.Instructions {
	const (
		ethernet         = 14 // octets before the IP header
		versionAndLength = 0x45
		protocolUDP      = 17
		ecnBits          = 3
		fragments        = 0xbfff // of the field for fragments: all but "don't fragment"
		// Octets in the IP header, and in the UDP header behind it.
		atLength, atFragments, atProtocol, atSum, atUDPLength = 2, 6, 9, 10, 24
		// Offsets from the frame pointer.
		atHeader, atNew = -24, -32
		headerLength    = 20
	)
	out := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R7, asm.R6, 0, asm.Word), // the length, in struct __sk_buff
		asm.JLE.Imm(asm.R7, int32(ethernet+length), "out"),
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, ethernet),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, atHeader), asm.Mov.Imm(asm.R4, headerLength),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, "out"),
		asm.LoadMem(asm.R1, asm.RFP, atHeader, asm.Byte), asm.JNE.Imm(asm.R1, versionAndLength, "out"),
		asm.LoadMem(asm.R1, asm.RFP, atHeader+atProtocol, asm.Byte), asm.JNE.Imm(asm.R1, protocolUDP, "out"),
		asm.LoadMem(asm.R1, asm.RFP, atHeader+atFragments, asm.Half), asm.And.Imm(asm.R1, bigEndian16(fragments)), asm.JNE.Imm(asm.R1, 0, "out"),
	}
	if share < 1 {
		out = append(out,
			asm.FnGetPrandomU32.Call(),
			asm.LoadImm(asm.R1, int64(share*math.MaxUint32), asm.DWord),
			asm.JGT.Reg(asm.R0, asm.R1, "out"))
	}
	store := func(at, octets int32) asm.Instructions { // what is at atNew
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, ethernet+at),
			asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, atNew), asm.Mov.Imm(asm.R4, octets), asm.Mov.Imm(asm.R5, 0),
			asm.FnSkbStoreBytes.Call(),
		}
	}
	// replace16 puts 16 bits of R8 into the IP header and into its sum, in the place of what the header has there.
	replace16 := func(at int32) asm.Instructions {
		return append(asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, ethernet+atSum),
			asm.LoadMem(asm.R3, asm.RFP, int16(atHeader+at), asm.Half), asm.Mov.Reg(asm.R4, asm.R8), asm.Mov.Imm(asm.R5, 2),
			asm.FnL3CsumReplace.Call(),
			asm.StoreMem(asm.RFP, atNew, asm.R8, asm.Half),
		}, store(at, 2)...)
	}
	out = append(out,
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, int32(ethernet+length)), asm.Mov.Imm(asm.R3, 0),
		asm.FnSkbChangeTail.Call(),
		asm.JNE.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R8, bigEndian16(uint16(length))))
	out = append(out, replace16(atLength)...)
	// The marks of congestion stay as they are.
	out = append(out,
		asm.LoadMem(asm.R9, asm.RFP, atHeader+1, asm.Byte), asm.And.Imm(asm.R9, ecnBits), asm.Or.Imm(asm.R9, TrimmedDSCP<<2),
		asm.Mov.Imm(asm.R1, versionAndLength), asm.StoreMem(asm.RFP, atNew, asm.R1, asm.Byte),
		asm.StoreMem(asm.RFP, atNew+1, asm.R9, asm.Byte),
		asm.LoadMem(asm.R8, asm.RFP, atNew, asm.Half))
	out = append(out, replace16(0)...)
	out = append(out,
		asm.Mov.Imm(asm.R1, bigEndian16(uint16(length-headerLength))), asm.StoreMem(asm.RFP, atNew, asm.R1, asm.Half),
		asm.Mov.Imm(asm.R1, 0), asm.StoreMem(asm.RFP, atNew+2, asm.R1, asm.Half)) // no checksum: RFC 768
	out = append(out, store(atUDPLength, 4)...)
	return append(out, asm.Mov.Imm(asm.R0, actNext).WithSymbol("out"), asm.Return())
}
