package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"
)

// MaxDatagram is the longest payload that is sent or received, in octets. RoCE devices with Ethernet's usual MTU have
// an MTU of at least 1024.
const MaxDatagram = 1024

// BatchSize is the largest number of packets that one call moves.
const BatchSize = 32

// Out represents a packet to send, in the layout of struct gl_out. ID comes back with its completion. After Send, Errno
// states why the packet was not posted, and is 0 if it was.
type Out struct {
	AH    uint64 // address handle; 0 means that there is none, which gives EHOSTUNREACH
	QPN   uint32
	QKey  uint32
	Imm   uint32
	Len   uint32
	ID    uint32
	Errno int32
	Data  [MaxDatagram]byte
}

// Flags of In.
const (
	hasGRH = 1 << iota
	hasImm
)

// In represents a received packet, in the layout of struct gl_in.
type In struct {
	Stamp    int64  // time at which its completion was read, Unix nanoseconds
	Hardware uint64 // time at which the device completed it, in units of its own clock; 0: not known
	Imm      uint32
	SrcQPN   uint32
	Len      uint32 // of the payload; octets beyond MaxDatagram are not in Data
	Flags    uint32
	GRH      [grhLen]byte // written by the device before the payload
	Data     [MaxDatagram]byte
}

// Completion represents the completion of a send, with an error or with its time.
type Completion struct {
	Hardware uint64
	ID       uint32
	Status   uint32 // enum ibv_wc_status; 0 means that the packet was sent
}

// QueueOptions holds the options of a new queue pair.
type QueueOptions struct {
	Device    string
	Port      int
	PKey      uint16 // the first entry of the port's table that has it is used, unless PKeyIndex is set
	PKeyIndex *int   // entry of the port's table, which has to have a P_Key
	QKey      uint32
	Depth     int           // of both queues
	Busy      time.Duration // for how long after a packet the receiver polls without sleeping
	Notify    int           // an eventfd that is written to when packets come
}

// QueueInfo is what a queue pair turned out to be.
type QueueInfo struct {
	QPN            uint32
	Depth          int
	MaxInline      int // octets
	InfiniBand     bool
	LID            uint16 // InfiniBand's, of this port
	MTU            int
	Hardware       bool // completions have the device's time stamps
	ClockKilohertz uint64
	Uverbs         int // number of the device's node /dev/infiniband/uverbsN; -1: not known
}

// GIDType is the protocol of an entry of a GID table, enum ibv_gid_type.
type GIDType uint32

// Types of GIDs.
const (
	GIDInfiniBand GIDType = iota
	GIDRoCEv1
	GIDRoCEv2
)

func (t GIDType) String() string {
	switch t {
	case GIDInfiniBand:
		return "InfiniBand"
	case GIDRoCEv1:
		return "RoCE v1"
	case GIDRoCEv2:
		return "RoCE v2"
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// GID is an entry of a port's GID table.
type GID struct {
	Index int
	Type  GIDType
	Addr  netip.Addr // IPv4 in its mapped form
}

// PortState is what a port says of itself.
type PortState struct {
	Active         bool
	State          string // nop, down, init, armed, active, active_defer, unknown
	LID            uint16
	QKeyViolations uint32 // datagrams with a wrong Q_Key: counted up to 65535 by the port
}

// QPStates are the states of a queue pair, as series have them: enum
// ibv_qp_state, and absent where there is none.
var QPStates = []string{"reset", "init", "rtr", "rts", "sqd", "sqe", "error", "unknown", "absent"}

const (
	stateRTS     = 3
	stateUnknown = 7
	stateAbsent  = 8
)

// EventKind is an asynchronous event that is decided on.
type EventKind int

// Kinds of events.
const (
	EventOther EventKind = iota
	EventPortUp
	EventPortDown
	EventQueueFatal
	EventDeviceFatal
	EventTables // GIDs, P_Keys or LIDs changed
)

// Target is where an address handle leads.
type Target struct {
	GID       netip.Addr
	LID       uint16 // InfiniBand's; 0 on RoCE
	GIDIndex  int    // of the own GID
	FlowLabel uint32
	SL        uint8
	TClass    uint8
	HopLimit  uint8
}

// Statuses is the number of completion statuses that are counted apart.
const Statuses = 32

// Errors counts completions that failed, by status.
type Errors [Statuses]uint64

// Queue is the interface of an unreliable datagram queue pair and its resources. Only one call of Send, Recv, PollSent,
// Errors and Reset may run at a time. The other methods may be called at any time before Close.
type Queue interface {
	Info() QueueInfo
	// Send posts packets, and sets Errno of each.
	Send(out []Out) error
	// Recv reads packets that were received, without waiting, and returns their number.
	Recv(in []In) (int, error)
	// PollSent reads completions of sends, without waiting, and returns their number.
	PollSent(sent []Completion) int
	Errors() (recv, send Errors)
	// Reset makes a queue pair in error work again. It keeps its number.
	Reset() error
	// State returns the state as an index of QPStates.
	State() (int, error)
	Port() (PortState, error)
	GIDs() ([]GID, error)
	Events() []EventKind
	// MakeAH makes an address handle. It may wait for a neighbour to answer.
	MakeAH(Target) (uint64, error)
	DropAH(uint64) error
	// Clock reads the device's clock in its own units, and the system's clock before and after that in Unix
	// nanoseconds.
	Clock() (raw uint64, before, after int64, err error)
	Close() error
}

// Verbs is the interface of the library, which is libibverbs or that of package rdmatest.
type Verbs interface {
	// Devices lists the devices of the host.
	Devices() ([]string, error)
	// GIDs reads a port's table without a queue pair.
	GIDs(device string, port int) ([]GID, error)
	// Open makes a queue pair, ready to send and to receive.
	Open(QueueOptions) (Queue, error)
	// Present reports whether the device node that a queue pair was made on still exists. When a device is removed,
	// some drivers wait for its users without any other notice to them.
	Present(QueueInfo) bool
}

// ErrNotBuilt is the error of a program that was built without RDMA.
var ErrNotBuilt = errors.New("this program was built without RDMA: use graylink-node-rdma, or build it with -tags rdma (make build-rdma)")

// LibraryError is the error of a host on which the verbs library cannot be loaded.
type LibraryError struct {
	Reason string // as the dynamic linker states it
}

func (e *LibraryError) Error() string {
	return "RDMA is not available: cannot load the verbs library: " + e.Reason +
		" (install libibverbs1 and ibverbs-providers on Debian and Ubuntu, libibverbs on RHEL and its relatives, or MLNX_OFED or DOCA)"
}

// VerbsError is the error of a call that failed.
type VerbsError struct {
	Device string
	Port   int
	Call   string
	Errno  syscall.Errno
}

func (e *VerbsError) Error() string {
	return fmt.Sprintf("RDMA device %s port %d: %s: %v", e.Device, e.Port, e.Call, e.Errno)
}

// Unwrap returns the errno, so that errors.Is holds for it.
func (e *VerbsError) Unwrap() error { return e.Errno }

// statusNames holds the names of enum ibv_wc_status, as labels.
var statusNames = []string{"success", "local_length", "local_qp_operation", "local_eec_operation", "local_protection", "flushed", "mw_bind", "bad_response",
	"local_access", "remote_invalid_request", "remote_access", "remote_operation", "retry_exceeded", "rnr_retry_exceeded", "local_rdd_violation",
	"remote_invalid_rd_request", "remote_aborted", "invalid_eec", "invalid_eec_state", "fatal", "response_timeout", "general"}

// StatusName returns the name of a completion status.
func StatusName(status int) string {
	if status >= 0 && status < len(statusNames) {
		return statusNames[status]
	}
	return fmt.Sprintf("status%d", status)
}
