package lab

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/graylink/graylink/internal/fabric"
)

// A switch that sprays packets chooses among equal next hops anew for each of them. The kernel goes on forwarding: it takes
// what is left of the hop limit, answers packets that expire, and applies the rules of faults. Only the hash by which it
// chooses is another. Policy 1 of fib_multipath_hash_policy prefers the hash that a packet carries (fib_multipath_hash of
// net/ipv4/route.c and rt6_multipath_hash of net/ipv6/route.c, Linux 6.18), and a program at each port of a switch gives
// every packet that comes in one of its own.

// Ways in which a switch that sprays chooses the next hop of a packet.
const (
	SprayRandom     = "random"      // each next hop is as likely as any other, whatever came before
	SprayRoundRobin = "round-robin" // the packets of a flow take the next hops in turn
)

// SprayKinds returns the values of Options.Spray, the default first.
func SprayKinds() []string { return []string{SprayRandom, SprayRoundRobin} }

// setSpray records how switches spray packets, if they do. The default is SprayRandom.
func (l *Layout) setSpray(spray string) error {
	switch {
	case spray != "" && !slices.Contains(SprayKinds(), spray):
		return fmt.Errorf("spray %q: want one of %s", spray, strings.Join(SprayKinds(), ", "))
	case spray != "" && !l.Topology.Sprays():
		return fmt.Errorf("spray %q goes with forwarding %s, and this lab's is %s", spray, fabric.Spray, cmp.Or(l.Topology.Forwarding, fabric.ECMP))
	case l.Topology.Sprays():
		l.Spray = cmp.Or(spray, SprayRandom)
	}
	return nil
}

// spraysTo reports whether the packets that leave a port of a switch are only some of those to their destinations.
func (x *index) spraysTo(end string) bool {
	return x.Spray != "" && !fabric.IsNIC(x.byEnd[end].Peer)
}

// errSprayed explains why a flow has no path.
var errSprayed = errors.New("the switches of this lab choose the next hop of each packet anew, so that a flow has no one path")

// sprayFlows bounds the flows of a switch whose packets are counted for SprayRoundRobin. Beyond it the flow that was seen
// longest ago begins again. A flow takes about 80 octets.
const sprayFlows = 1 << 13

// sprayKeySize is the size of a flow in the table, octets: a hash of its 5-tuple, and a part of its destination's address.
const sprayKeySize = 8

// newSprayProgram loads the program that gives each packet a hash of its own. The filters that it is added to keep it.
func newSprayProgram(spray string) (*ebpf.Program, error) {
	if spray == SprayRandom {
		return loadClassifier("spray_random", asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.FnGetPrandomU32.Call(),
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Reg(asm.R2, asm.R0),
			asm.FnSetHash.Call(),
			asm.Mov.Imm(asm.R0, actNext),
			asm.Return(),
		})
	}
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Name: "spray_counts", Type: ebpf.LRUHash, KeySize: sprayKeySize, ValueSize: 8, MaxEntries: sprayFlows})
	if err != nil {
		return nil, fmt.Errorf("making the table of sprayed flows: %w", err)
	}
	defer counts.Close() // the program keeps it
	return loadClassifier("spray_in_turn", sprayInTurn(counts.FD()))
}

// sprayInTurn returns the instructions that count the packets of each flow, and give each packet its number with the bits in
// reverse order as its hash. Any 2^k packets that follow each other then have hashes in all of 2^k equal parts of the range
// (van der Corput, 1935), and 2, 4, 8 equal next hops are taken in turn, without knowing how many there are. The counts of
// another number of next hops differ by a few packets.
func sprayInTurn(counts int) asm.Instructions {
	const atKey, atCount = -sprayKeySize, -16     // from the frame pointer
	const endOfIPv4, endOfIPv6 = 14 + 16, 14 + 36 // last four octets of the destination's address
	takeNumber := asm.FetchAdd.Mem(asm.R0, asm.R7, asm.DWord, 0)
	takeNumber.Constant = 1 // BPF_FETCH, which cilium/ebpf 0.22.0 leaves out: asm.Instruction.Marshal
	out := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		// The hash that the packet has already is the last switch's, and differs from packet to packet.
		asm.FnSetHashInvalid.Call(),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.FnGetHashRecalc.Call(),
		asm.Mov.Reg32(asm.R7, asm.R0),
		asm.StoreMem(asm.RFP, atKey, asm.R7, asm.Word),
		// That of packets and of their answers is the same, and both may cross this switch.
		asm.StoreImm(asm.RFP, atKey+4, 0, asm.Word),
		asm.Mov.Imm(asm.R2, endOfIPv4),
		asm.LoadMem(asm.R1, asm.R6, 16, asm.Word), // the protocol, in struct __sk_buff
		asm.JNE.Imm(asm.R1, bigEndian16(syscall.ETH_P_IPV6), "destination"),
		asm.Mov.Imm(asm.R2, endOfIPv6),
		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("destination"),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, atKey+4), asm.Mov.Imm(asm.R4, 4),
		asm.FnSkbLoadBytes.Call(),
		asm.LoadMapPtr(asm.R1, counts),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, atKey),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "first"),
		asm.Mov.Imm(asm.R7, 1),
		takeNumber,
		asm.Ja.Label("choose"),
		// Flows begin at different next hops.
		asm.Mov.Reg(asm.R1, asm.R7).WithSymbol("first"), asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.RFP, atCount, asm.R1, asm.DWord),
		asm.LoadMapPtr(asm.R1, counts),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, atKey),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, atCount),
		asm.Mov.Imm(asm.R4, 0), // BPF_ANY
		asm.FnMapUpdateElem.Call(),
		asm.Mov.Reg32(asm.R2, asm.R7).WithSymbol("choose"),
	}
	// Neighbouring groups of bits are exchanged, of ever larger groups (Warren, Hacker's Delight, 7-1).
	for _, group := range []struct {
		bits int32
		mask uint32
	}{{1, 0x55555555}, {2, 0x33333333}, {4, 0x0f0f0f0f}, {8, 0x00ff00ff}, {16, 0x0000ffff}} {
		out = append(out,
			asm.Mov.Reg32(asm.R3, asm.R2),
			asm.RSh.Imm32(asm.R3, group.bits), asm.And.Imm32(asm.R3, int32(group.mask)),
			asm.And.Imm32(asm.R2, int32(group.mask)), asm.LSh.Imm32(asm.R2, group.bits),
			asm.Or.Reg32(asm.R2, asm.R3))
	}
	return append(out,
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.FnSetHash.Call(),
		asm.Mov.Imm(asm.R0, actNext),
		asm.Return())
}
