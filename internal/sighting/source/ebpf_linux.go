package source

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/sighting"
	"github.com/graylink/graylink/internal/unix"
)

// flowAtPort identifies a flow at a port.
type flowAtPort struct {
	Flow sighting.Key
	Port uint32
}

// sight holds what was seen of a flow at a port. Times are nanoseconds.
type sight struct {
	Count, First, Last uint64
}

// slotSize is the size of an element of the program's array: a place, then count, first and last of a sight. Times are
// of the monotonic clock, with the resolution of its tick. A slot whose count is 0 is not in use.
const slotSize = 64

// EBPF sees every probe by a program at the ingress of every port. The program finds a flow's slot in a hash table and
// counts there. A flow without a slot takes a free one from a queue. Slots lie in memory that is shared with this
// process, so reading them costs no system call. Nothing is copied, no process is woken up, and packets continue
// unchanged.
type EBPF struct {
	program    *ebpf.Program
	table      *ebpf.Map // from place to the number of its slot
	slots      *ebpf.Map
	free       *ebpf.Map // numbers of free slots
	lost       *ebpf.Map
	memory     *ebpf.Memory
	classic    bool // attach as a classifier
	attached   map[uint32]io.Closer
	copied     []byte
	key        sighting.Key // memory for the key that is passed on
	clock      wallOffset
	freedSlots []uint32 // freed with the next SweepFlows, because the program may be writing now
}

// NewEBPF makes the program for probes from or to some STAMP ports, with room for so many flows.
func NewEBPF(stampPorts []uint16, flows int) (*EBPF, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("eBPF memory limit: %w", err)
	}
	e := &EBPF{attached: map[uint32]io.Closer{}, copied: make([]byte, copyOctets)}
	if err := e.loadProgram(stampPorts, uint32(flows)); err != nil {
		return nil, errors.Join(fmt.Errorf("eBPF: %w", err), e.Close())
	}
	return e, nil
}

// copyOctets is the number of octets that are read from the shared memory at a time.
const copyOctets = 4096 * slotSize

func (e *EBPF) loadProgram(stampPorts []uint16, flows uint32) (err error) {
	for _, m := range []struct {
		at   **ebpf.Map
		spec ebpf.MapSpec
	}{
		{&e.table, ebpf.MapSpec{Name: "graylink_flows", Type: ebpf.Hash, KeySize: 40, ValueSize: 4, MaxEntries: flows}},
		{&e.slots, ebpf.MapSpec{Name: "graylink_slots", Type: ebpf.Array, KeySize: 4, ValueSize: slotSize, MaxEntries: flows, Flags: mmapable}},
		{&e.free, ebpf.MapSpec{Name: "graylink_free", Type: ebpf.Queue, ValueSize: 4, MaxEntries: flows}},
		{&e.lost, ebpf.MapSpec{Name: "graylink_lost", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}},
	} {
		if *m.at, err = ebpf.NewMap(&m.spec); err != nil {
			return fmt.Errorf("map %s: %w", m.spec.Name, err)
		}
	}
	for i := range flows {
		if err := e.free.Put(nil, i); err != nil {
			return fmt.Errorf("map graylink_free: %w", err)
		}
	}
	if e.memory, err = e.slots.Memory(); err != nil {
		return fmt.Errorf("memory of the slots: %w", err)
	}
	e.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "graylink_seen", Type: ebpf.SchedCLS, License: "Apache-2.0",
		Instructions: assembleProgram(e.table.FD(), e.slots.FD(), e.free.FD(), e.lost.FD(), stampPorts)})
	return err
}

// mmapable is BPF_F_MMAPABLE: Linux, include/uapi/linux/bpf.h.
const mmapable = 1 << 10

// Offsets in the kernel's struct __sk_buff, and in packets from the Ethernet header on.
const (
	skbProtocol = 16
	skbIfindex  = 40
	ethernet    = 14
	ipv4Length  = 20
	ipv6Length  = 40
)

// Offsets from the frame pointer.
const (
	atKey    = -40
	atHeader = atKey - 40
	atNumber = atHeader - 8
)

// networkOrder returns a number in network byte order as a load reads it.
func networkOrder(v uint16) int32 {
	return int32(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v)))
}

// assembleProgram returns the program, for little-endian and big-endian machines. It converts constants to the
// machine's order here. VLAN tags are removed before tc sees a packet. IPv6 extension headers, which probes do not
// have, are not followed.
func assembleProgram(table, slots, free, lost int, stampPorts []uint16) asm.Instructions {
	return append(readProbeKey(stampPorts), countProbe(table, slots, free, lost)...)
}

// readProbeKey returns the instructions that write the key of a packet from or to one of the ports to the stack, and go on
// at "probe". Other packets go to "out".
func readProbeKey(stampPorts []uint16) asm.Instructions {
	load := func(offset int, to int32, n int32) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Imm(asm.R2, int32(offset)),
			asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, to),
			asm.Mov.Imm(asm.R4, n),
			asm.FnSkbLoadBytes.Call(),
			asm.JNE.Imm(asm.R0, 0, "out"),
		}
	}
	mapped := int32(-65536) // ::ffff:0:0/96
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		mapped = 0xffff
	}
	fragment := networkOrder(0x1fff)
	p := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R7, asm.R6, skbProtocol, asm.Word),
		asm.JEq.Imm(asm.R7, networkOrder(0x86dd), "ipv6"),
		asm.JNE.Imm(asm.R7, networkOrder(0x0800), "out"),
	}
	p = append(p, load(ethernet, atHeader, ipv4Length)...)
	p = append(p,
		asm.LoadMem(asm.R2, asm.RFP, atHeader+9, asm.Byte),
		asm.JNE.Imm(asm.R2, 17, "out"),
		asm.LoadMem(asm.R2, asm.RFP, atHeader+6, asm.Half),
		asm.And.Imm(asm.R2, fragment),
		asm.JNE.Imm(asm.R2, 0, "out"),
		asm.Mov.Imm(asm.R2, 0),
		asm.StoreMem(asm.RFP, atKey, asm.R2, asm.DWord),
		asm.StoreMem(asm.RFP, atKey+16, asm.R2, asm.DWord),
		asm.Mov.Imm(asm.R2, mapped),
		asm.StoreMem(asm.RFP, atKey+8, asm.R2, asm.Word),
		asm.StoreMem(asm.RFP, atKey+24, asm.R2, asm.Word),
		asm.LoadMem(asm.R2, asm.RFP, atHeader+12, asm.Word),
		asm.StoreMem(asm.RFP, atKey+12, asm.R2, asm.Word),
		asm.LoadMem(asm.R2, asm.RFP, atHeader+16, asm.Word),
		asm.StoreMem(asm.RFP, atKey+28, asm.R2, asm.Word),
		asm.LoadMem(asm.R8, asm.RFP, atHeader, asm.Byte),
		asm.And.Imm(asm.R8, 0x0f),
		asm.LSh.Imm(asm.R8, 2),
		asm.Add.Imm(asm.R8, ethernet),
		asm.Ja.Label("ports"),
	)
	six := load(ethernet, atHeader, ipv6Length)
	six[0] = six[0].WithSymbol("ipv6")
	p = append(p, six...)
	p = append(p,
		asm.LoadMem(asm.R2, asm.RFP, atHeader+6, asm.Byte),
		asm.JNE.Imm(asm.R2, 17, "out"))
	for i := int16(0); i < 32; i += 4 { // the header lies at no multiple of eight
		p = append(p, asm.LoadMem(asm.R2, asm.RFP, atHeader+8+i, asm.Word), asm.StoreMem(asm.RFP, atKey+i, asm.R2, asm.Word))
	}
	p = append(p, asm.Mov.Imm(asm.R8, ethernet+ipv6Length))
	ports := load(0, atKey+32, 4)
	ports[0] = ports[0].WithSymbol("ports")
	ports[1] = asm.Mov.Reg(asm.R2, asm.R8)
	p = append(p, ports...)
	p = append(p,
		asm.LoadMem(asm.R2, asm.RFP, atKey+32, asm.Half),
		asm.LoadMem(asm.R3, asm.RFP, atKey+34, asm.Half))
	for _, port := range stampPorts {
		p = append(p, asm.JEq.Imm(asm.R2, networkOrder(port), "probe"), asm.JEq.Imm(asm.R3, networkOrder(port), "probe"))
	}
	return append(p, asm.Ja.Label("out"))
}

// countProbe returns the instructions that add a packet with a key to the slot of its flow, which a new flow is given, and
// leave the packet to who comes next.
func countProbe(table, slots, free, lost int) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R6, skbIfindex, asm.Word).WithSymbol("probe"),
		asm.StoreMem(asm.RFP, atKey+36, asm.R2, asm.Word),
		asm.FnKtimeGetCoarseNs.Call(),
		asm.Mov.Reg(asm.R8, asm.R0),
		asm.LoadMapPtr(asm.R1, table),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, atKey),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "new"),
		asm.Mov.Reg(asm.R2, asm.R0),
		asm.LoadMapPtr(asm.R1, slots),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.StoreMem(asm.R0, 56, asm.R8, asm.DWord),
		asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 40),
		asm.Ja.Label("out"),

		asm.LoadMapPtr(asm.R1, free).WithSymbol("new"),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, atNumber),
		asm.FnMapPopElem.Call(),
		asm.JNE.Imm(asm.R0, 0, "lost"),
		asm.LoadMapPtr(asm.R1, table),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, atKey),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, atNumber),
		asm.Mov.Imm(asm.R4, 1), // BPF_NOEXIST: another processor may have been first
		asm.FnMapUpdateElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "fill"),
		asm.LoadMapPtr(asm.R1, free),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, atNumber),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnMapPushElem.Call(),
		asm.Ja.Label("out"),

		asm.LoadMapPtr(asm.R1, slots).WithSymbol("fill"),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, atNumber),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.LoadMem(asm.R1, asm.RFP, atKey, asm.DWord), asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, atKey+8, asm.DWord), asm.StoreMem(asm.R0, 8, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, atKey+16, asm.DWord), asm.StoreMem(asm.R0, 16, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, atKey+24, asm.DWord), asm.StoreMem(asm.R0, 24, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, atKey+32, asm.DWord), asm.StoreMem(asm.R0, 32, asm.R1, asm.DWord),
		asm.StoreMem(asm.R0, 48, asm.R8, asm.DWord),
		asm.StoreMem(asm.R0, 56, asm.R8, asm.DWord),
		// A slot with a count is in use. This add is ordered after all stores.
		asm.Mov.Imm(asm.R1, 1),
		asm.FetchAdd.Mem(asm.R0, asm.R1, asm.DWord, 40),
		asm.Ja.Label("out"),

		asm.Mov.Imm(asm.R1, 0).WithSymbol("lost"),
		asm.StoreMem(asm.RFP, atNumber, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, lost),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, atNumber),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),

		asm.Mov.Imm(asm.R0, -1).WithSymbol("out"), // TCX_NEXT, TC_ACT_UNSPEC: continue
		asm.Return(),
	}
}

// Kind returns software-ebpf.
func (e *EBPF) Kind() sighting.Kind { return sighting.KindEBPF }

// SetPorts attaches the program to the ingress of interfaces, and only to those.
func (e *EBPF) SetPorts(numbers []uint32) error {
	for n, l := range e.attached {
		if !slices.Contains(numbers, n) {
			_ = l.Close() // the interface may be gone, and its link with it
			delete(e.attached, n)
		}
	}
	var errs []error
	for _, n := range numbers {
		if e.attached[n] != nil {
			continue
		}
		l, err := e.attachIngress(int(n))
		if err != nil {
			errs = append(errs, fmt.Errorf("eBPF program at interface %d: %w", n, err))
			continue
		}
		e.attached[n] = l
	}
	return errors.Join(errs...)
}

// attachIngress attaches the program at an ingress: by a link that ends with the process (Linux 6.6), or as a
// classifier that has to be removed.
func (e *EBPF) attachIngress(ifindex int) (io.Closer, error) {
	if !e.classic {
		l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: e.program, Attach: ebpf.AttachTCXIngress})
		if !errors.Is(err, ebpf.ErrNotSupported) {
			return l, err
		}
		e.classic = true
	}
	qdisc := &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: ifindex, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0)}, QdiscType: "clsact"}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("clsact: %w", err)
	}
	f := &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: ifindex, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: ethAll, Priority: classifierPriority},
		Fd: e.program.FD(), Name: "graylink_seen", DirectAction: true}
	if err := netlink.FilterReplace(f); err != nil {
		return nil, fmt.Errorf("classifier: %w", err)
	}
	return classifier{f}, nil
}

const (
	ethAll = 0x0003
	// classifierPriority comes after the priorities that an administrator would use.
	classifierPriority = 49000
)

type classifier struct{ filter *netlink.BpfFilter }

func (c classifier) Close() error { return netlink.FilterDel(c.filter) }

// SweepFlows yields the content of all slots. A flow that is no longer seen keeps its slot until it is forgotten.
func (e *EBPF) SweepFlows(ctx context.Context, see func(*sighting.Key, sighting.Sample)) error {
	for _, n := range e.freedSlots {
		if err := e.free.Put(nil, n); err != nil {
			return fmt.Errorf("eBPF: free slots: %w", err)
		}
	}
	e.freedSlots = e.freedSlots[:0]
	e.clock.setOffset(unix.MonotonicNanos())
	for at, size := 0, int(e.memory.Size()); at < size; at += len(e.copied) {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := e.memory.ReadAt(e.copied[:min(len(e.copied), size-at)], int64(at))
		if err != nil {
			return fmt.Errorf("eBPF: slots: %w", err)
		}
		for i := 0; i+slotSize <= n; i += slotSize {
			b := e.copied[i : i+slotSize]
			count := binary.NativeEndian.Uint64(b[40:])
			if count == 0 {
				continue
			}
			e.key = sighting.Key(b)
			see(&e.key, sighting.Sample{Port: binary.NativeEndian.Uint32(b[36:]), First: int64(binary.NativeEndian.Uint64(b[48:])) + e.clock.offset,
				Last: int64(binary.NativeEndian.Uint64(b[56:])) + e.clock.offset, Count: count})
		}
	}
	return nil
}

// ForgetFlow frees the slot of a flow at a port.
func (e *EBPF) ForgetFlow(key *sighting.Key, port uint32) {
	var number uint32
	p := flowAtPort{*key, port}
	if e.table.Lookup(&p, &number) != nil {
		return
	}
	// After an error the slot stays in use, and it is forgotten again later.
	if e.table.Delete(&p) == nil && e.slots.Put(number, make([]byte, slotSize)) == nil {
		e.freedSlots = append(e.freedSlots, number)
	}
}

// Dropped returns the number of packets of flows that did not fit into the table.
func (e *EBPF) Dropped() uint64 {
	var n uint64
	if e.lost.Lookup(uint32(0), &n) != nil {
		return 0
	}
	return n
}

// ProgramCost returns the time that the kernel spent on the program since statistics were enabled, and the number of
// packets.
func (e *EBPF) ProgramCost() (time.Duration, uint64, error) {
	s, err := e.program.Stats()
	if err != nil {
		return 0, 0, err
	}
	return s.Runtime, s.RunCount, nil
}

// Close removes the program from all ports.
func (e *EBPF) Close() error {
	var errs []error
	for _, l := range e.attached {
		errs = append(errs, l.Close())
	}
	for _, c := range []interface{ Close() error }{e.program, e.table, e.slots, e.free, e.lost} {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
