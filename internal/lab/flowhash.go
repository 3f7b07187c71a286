package lab

import (
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

// forgetFlowHash makes a port take the hash of its flow off each packet that it receives.
func forgetFlowHash(h *netlink.Handle, link netlink.Link) error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "forget_hash", Type: ebpf.SchedCLS, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.FnSetHashInvalid.Call(), asm.Mov.Imm(asm.R0, actNext), asm.Return()}})
	if err != nil {
		return fmt.Errorf("loading the program that forgets hashes of flows: %w", err)
	}
	defer program.Close() // the filter keeps it
	attrs := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
	if err := h.QdiscAdd(&netlink.Clsact{QdiscAttrs: attrs}); err != nil {
		return fmt.Errorf("adding the queueing discipline clsact: %w", err)
	}
	filter := &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 1,
		Protocol: syscall.ETH_P_ALL}, Fd: program.FD(), Name: "forget_hash", DirectAction: true}
	if err := h.FilterAdd(filter); err != nil {
		return fmt.Errorf("adding the program that forgets hashes of flows: %w", err)
	}
	return nil
}
