package lab

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
)

// A switch of IPv6 chooses among equal routes by policy 1 of fib_multipath_hash_policy, because Linux answers a query for a
// route by the same function of addresses, protocol and ports. With policy 3 it would not: rt6_multipath_custom_hash_fl6 of
// net/ipv6/route.c (Linux 6.18) lacks the last step of rt6_multipath_custom_hash_skb, and Lab.KernelPath would be wrong.
//
// But policy 1 prefers the hash that a packet carries already, of the sender's kernel or of the last switch. All switches
// would choose the same index, and TCP changes its hash when it sends something again. So every port of a switch takes
// it off what it receives, as a wire does.

// actNext is TCX_NEXT, and TC_ACT_UNSPEC of pkt_cls.h: the packet goes on.
const actNext = -1

// newHashProgram loads the program that the ports of a switch have for what they receive. It returns nil if they need none.
// The caller closes it; the filters that it was added to keep it.
func (l *Layout) newHashProgram() (*ebpf.Program, error) {
	switch {
	case l.Spray != "":
		return newSprayProgram(l.Spray)
	case l.Topology.IsSourceRouted():
		return loadClassifier("segments", segmentProgram())
	case l.family() == ipv6Family:
		return loadClassifier("forget_hash", asm.Instructions{asm.FnSetHashInvalid.Call(), asm.Mov.Imm(asm.R0, actNext), asm.Return()})
	}
	return nil, nil
}

// segmentProgram returns the instructions of the program that the ports of a switch have for what they receive. It takes the hash off packets, and
// a mark of congestion on an outer header goes on to the header inside, if that is capable of it: the kernel does not do that
// when it takes the outer header off (RFC 6040 section 4.2).
func segmentProgram() asm.Instructions {
	const (
		ethernet    = 14
		class       = ethernet + 1      // the octet of IPv6 that has the ECN field
		nextHeader  = ethernet + 6      // RFC 8200 section 3
		innerClass  = ethernet + 40 + 1 // of the header inside
		ecn         = 0x30              // in these octets
		loaded      = -8                // from the frame pointer
		etherTypeAt = 16                // struct __sk_buff
	)
	load := func(at int32) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, at),
			asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, loaded), asm.Mov.Imm(asm.R4, 1),
			asm.FnSkbLoadBytes.Call(),
			asm.JNE.Imm(asm.R0, 0, "done"),
			asm.LoadMem(asm.R0, asm.RFP, loaded, asm.Byte),
		}
	}
	out := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.FnSetHashInvalid.Call(),
		asm.LoadMem(asm.R1, asm.R6, etherTypeAt, asm.Word),
		asm.JNE.Imm(asm.R1, bigEndian16(syscall.ETH_P_IPV6), "done"),
	}
	out = append(append(out, load(nextHeader)...), asm.JNE.Imm(asm.R0, syscall.IPPROTO_IPV6, "done"))
	out = append(append(out, load(class)...), asm.And.Imm(asm.R0, ecn), asm.JNE.Imm(asm.R0, ecn, "done"))
	out = append(append(out, load(innerClass)...), asm.Mov.Reg(asm.R1, asm.R0), asm.And.Imm(asm.R1, ecn), asm.JEq.Imm(asm.R1, 0, "done"))
	return append(out,
		asm.Or.Imm(asm.R0, ecn),
		asm.StoreMem(asm.RFP, loaded, asm.R0, asm.Byte),
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, innerClass),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, loaded), asm.Mov.Imm(asm.R4, 1), asm.Mov.Imm(asm.R5, 0),
		asm.FnSkbStoreBytes.Call(),
		asm.Mov.Imm(asm.R0, actNext).WithSymbol("done"),
		asm.Return())
}

// loadClassifier loads a program that sees packets at a port.
func loadClassifier(name string, instructions asm.Instructions) (*ebpf.Program, error) {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: instructions})
	if err != nil {
		return nil, fmt.Errorf("loading the program %s: %w", name, err)
	}
	return program, nil
}

// addClsact gives a port the queueing discipline that programs are added to, if it has none.
func addClsact(h *netlink.Handle, link netlink.Link) error {
	attrs := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
	if err := h.QdiscAdd(&netlink.Clsact{QdiscAttrs: attrs}); err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("adding the queueing discipline clsact: %w", err)
	}
	return nil
}

// classify has a port pass what it receives to a program.
func classify(h *netlink.Handle, link netlink.Link, program *ebpf.Program) error {
	if err := addClsact(h, link); err != nil {
		return err
	}
	filter := &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 1,
		Protocol: syscall.ETH_P_ALL}, Fd: program.FD(), Name: "graylink_hash", DirectAction: true}
	if err := h.FilterAdd(filter); err != nil {
		return fmt.Errorf("adding the program that sets hashes of packets: %w", err)
	}
	return nil
}
