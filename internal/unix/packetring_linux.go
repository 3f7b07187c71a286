package unix

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	sys "golang.org/x/sys/unix"
)

// RingOptions are the sizes of a PacketRing.
type RingOptions struct {
	Snap        int           // octets of every frame that are kept
	BlockOctets int           // a multiple of the size of a page
	Blocks      int           // at least 2
	Retire      time.Duration // after which a block that is not full is passed on
}

// PacketRing reads the frames of one Ethernet type that an interface receives from memory that the kernel writes to (packet(7),
// TPACKET_V3), without a system call and a copy for each frame. It reads no frames that the interface sends. The kernel takes a VLAN tag
// behind the addresses off a frame before it looks at the Ethernet type, so that frames with one VLAN tag are read without it. It is not
// safe for concurrent use, except for Totals and Close.
type PacketRing struct {
	f    *os.File
	raw  syscall.RawConn
	size int // of a block
	next int // number of the block that is read next

	mu     sync.Mutex // guards memory against Close
	memory []byte
	closed atomic.Bool

	counts         sync.Mutex // guards what follows
	packets, drops uint64
}

// Offsets of the header of a block: struct tpacket_block_desc and tpacket_hdr_v1 in linux/if_packet.h.
const (
	blockStatus      = 8
	blockPackets     = 12
	blockFirstPacket = 16
)

// OpenPacketRing opens a ring for frames of one Ethernet type on one interface.
func OpenPacketRing(etherType uint16, ifindex int, o RingOptions) (*PacketRing, error) {
	fd, err := sys.Socket(sys.AF_PACKET, sys.SOCK_RAW|sys.SOCK_CLOEXEC|sys.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	memory, err := setUpRing(fd, o)
	if err != nil {
		return nil, errors.Join(err, sys.Close(fd))
	}
	// The socket is bound last, because it receives nothing before it has a protocol.
	protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, etherType))
	if err := sys.Bind(fd, &sys.SockaddrLinklayer{Protocol: protocol, Ifindex: ifindex}); err != nil {
		err = fmt.Errorf("bind packet socket to interface %d: %w", ifindex, err)
		return nil, errors.Join(err, sys.Munmap(memory), sys.Close(fd))
	}
	r := &PacketRing{f: os.NewFile(uintptr(fd), "packet ring"), size: o.BlockOctets, memory: memory}
	if r.raw, err = r.f.SyscallConn(); err != nil {
		return nil, errors.Join(err, sys.Munmap(memory), r.f.Close())
	}
	return r, nil
}

// setUpRing gives a packet socket its ring, and returns the ring's memory.
func setUpRing(fd int, o RingOptions) ([]byte, error) {
	if err := sys.SetsockoptInt(fd, sys.SOL_PACKET, sys.PACKET_IGNORE_OUTGOING, 1); err != nil {
		return nil, fmt.Errorf("set PACKET_IGNORE_OUTGOING: %w", err)
	}
	if err := sys.SetsockoptInt(fd, sys.SOL_PACKET, sys.PACKET_VERSION, sys.TPACKET_V3); err != nil {
		return nil, fmt.Errorf("set PACKET_VERSION: %w", err)
	}
	// The filter accepts every frame, and so many octets of it.
	keep := sys.SockFilter{Code: sys.BPF_RET | sys.BPF_K, K: uint32(o.Snap)}
	if err := sys.SetsockoptSockFprog(fd, sys.SOL_SOCKET, sys.SO_ATTACH_FILTER, &sys.SockFprog{Len: 1, Filter: &keep}); err != nil {
		return nil, fmt.Errorf("set SO_ATTACH_FILTER: %w", err)
	}
	const frame = 2048 // divides every block; with this version frames are as long as they need to be
	req := &sys.TpacketReq3{Block_size: uint32(o.BlockOctets), Block_nr: uint32(o.Blocks), Frame_size: frame,
		Frame_nr: uint32(o.BlockOctets / frame * o.Blocks), Retire_blk_tov: uint32(o.Retire.Milliseconds())}
	if err := sys.SetsockoptTpacketReq3(fd, sys.SOL_PACKET, sys.PACKET_RX_RING, req); err != nil {
		return nil, fmt.Errorf("set PACKET_RX_RING to %d blocks of %d octets: %w", o.Blocks, o.BlockOctets, err)
	}
	memory, err := sys.Mmap(fd, 0, o.BlockOctets*o.Blocks, sys.PROT_READ|sys.PROT_WRITE, sys.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the packet ring: %w", err)
	}
	return memory, nil
}

// statusOf returns the status of a block, which the kernel and we take turns to write.
func (r *PacketRing) statusOf(block int) *uint32 {
	return (*uint32)(unsafe.Pointer(&r.memory[block*r.size+blockStatus]))
}

// Recv waits for frames until the deadline, and passes each one to the callback with the kernel's time of its arrival, in nanoseconds since
// 1970. The octets belong to the ring and are valid during the call only, which must not close the ring. errors.Is holds for
// os.ErrDeadlineExceeded and os.ErrClosed.
func (r *PacketRing) Recv(deadline time.Time, take func(frame []byte, at int64)) error {
	err := r.f.SetReadDeadline(deadline)
	if err == nil {
		err = r.raw.Read(func(fd uintptr) bool { return r.takeBlocks(take) })
	}
	if r.closed.Load() {
		return os.ErrClosed // RawConn has an error of its own for it
	}
	return err
}

// takeBlocks passes on the frames of the blocks that are ready, and gives them back. It returns whether there were any, or the ring is
// closed.
func (r *PacketRing) takeBlocks(take func(frame []byte, at int64)) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.memory == nil {
		return true
	}
	taken := false
	for range len(r.memory) / r.size {
		status := r.statusOf(r.next)
		if atomic.LoadUint32(status)&sys.TP_STATUS_USER == 0 {
			break
		}
		eachFrame(r.memory[r.next*r.size:][:r.size], take)
		atomic.StoreUint32(status, sys.TP_STATUS_KERNEL)
		r.next = (r.next + 1) % (len(r.memory) / r.size)
		taken = true
	}
	return taken
}

// eachFrame passes on the frames of a block.
func eachFrame(block []byte, take func(frame []byte, at int64)) {
	left := binary.NativeEndian.Uint32(block[blockPackets:])
	at := uint64(binary.NativeEndian.Uint32(block[blockFirstPacket:]))
	for ; left > 0 && at+sys.SizeofTpacket3Hdr <= uint64(len(block)); left-- {
		h := (*sys.Tpacket3Hdr)(unsafe.Pointer(&block[at]))
		from := at + uint64(h.Mac)
		if to := from + uint64(h.Snaplen); to <= uint64(len(block)) {
			take(block[from:to:to], int64(h.Sec)*int64(time.Second)+int64(h.Nsec))
		}
		if h.Next_offset == 0 {
			return
		}
		at += uint64(h.Next_offset)
	}
}

// Totals returns the number of frames that the kernel had for the ring since it was opened, and how many of them did not fit into it.
func (r *PacketRing) Totals() (packets, drops uint64, err error) {
	r.counts.Lock()
	defer r.counts.Unlock()
	if cerr := r.raw.Control(func(fd uintptr) {
		var s *sys.TpacketStatsV3
		if s, err = sys.GetsockoptTpacketStatsV3(int(fd), sys.SOL_PACKET, sys.PACKET_STATISTICS); err == nil {
			r.packets += uint64(s.Packets) // which has the drops as well, and begins anew with each reading
			r.drops += uint64(s.Drops)
		}
	}); cerr != nil {
		return 0, 0, cerr
	}
	return r.packets, r.drops, err
}

// IsBound reports whether the interface of the ring is still there. A new one with the same name needs a new ring.
func (r *PacketRing) IsBound() bool {
	bound := false
	if err := r.raw.Control(func(fd uintptr) {
		a, err := sys.Getsockname(int(fd))
		link, ok := a.(*sys.SockaddrLinklayer)
		bound = err == nil && ok && link.Ifindex > 0 // -1 after the interface went: packet_notifier() in net/packet/af_packet.c
	}); err != nil {
		return false
	}
	return bound
}

// Close closes the ring and ends a Recv that waits.
func (r *PacketRing) Close() error {
	r.closed.Store(true)
	err := r.f.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.memory == nil {
		return err
	}
	memory := r.memory
	r.memory = nil
	return errors.Join(err, sys.Munmap(memory))
}
