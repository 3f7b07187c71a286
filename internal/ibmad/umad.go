package ibmad

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/graylink/graylink/internal/rdmadev"
	"github.com/graylink/graylink/internal/unix"
)

// The header before each datagram of /dev/infiniband/umadN: struct
// ib_user_mad_hdr of include/uapi/rdma/ib_user_mad.h.
const (
	umadHeader = 64
	umadABI    = 5

	umadAgentAt   = 0
	umadStatusAt  = 4
	umadTimeoutAt = 8  // ms; the retries at offset 12 are left to the client
	umadQPNAt     = 20 // from here on big endian
	umadQKeyAt    = 24
	umadLIDAt     = 28 // the P_Key index, in 56, is 0: the default partition

	// gsiKey is the Q_Key of every QP1: IB_QP1_QKEY of include/rdma/ib_mad.h.
	gsiKey = 0x80010000
	// umadWindow is well below the kernel's queue of a QP1, 512.
	umadWindow = 64
)

// Umad is the transport of a port of this host's channel adapter, by the kernel's
// user-space management interface. It needs read and write permission on the
// device. The kernel matches answers to questions, and reports those that were
// not answered in time.
type Umad struct {
	file   io.ReadWriteCloser
	agents umadAgents
	buf    [umadHeader + Size]byte
	in     [umadHeader + Size]byte
}

// umadAgents are the kernel's numbers of the registered agents, one for each class.
type umadAgents struct{ lid, directed, performance uint32 }

// findUmad finds the umad device of a port, such as "/dev/infiniband/umad0" of mlx5_0 port 1, and checks its ABI
// (Documentation/ABI/stable/sysfs-class-infiniband). sys is the root of sysfs. The error is fs.ErrNotExist if there is
// none.
func findUmad(sys, device string, port int) (string, error) {
	file := filepath.Join(sys, "class/infiniband_mad/abi_version")
	abi, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("is ib_umad loaded? %w", err)
	}
	if got := strings.TrimSpace(string(abi)); got != strconv.Itoa(umadABI) {
		return "", fmt.Errorf("%s is %q, want %d", file, got, umadABI)
	}
	return rdmadev.Open(sys).UmadNode(device, port)
}

// OpenUmad opens a device by its path, as "/dev/infiniband/umad0".
func OpenUmad(name string) (*Umad, error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	var agents umadAgents
	var failed error
	if err := raw.Control(func(fd uintptr) { agents, failed = umadRegister(fd) }); err != nil {
		failed = err
	}
	if failed != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", name, failed)
	}
	return &Umad{file: f, agents: agents}, nil
}

func umadRegister(fd uintptr) (a umadAgents, err error) {
	if err := unix.EnableUmadPKeys(fd); err != nil {
		return a, fmt.Errorf("enable P_Key indices: %w", err)
	}
	for _, agent := range []struct {
		id    *uint32
		qpn   uint32
		class uint8
	}{{&a.lid, 0, classSubnetLID}, {&a.directed, 0, classSubnetDirected}, {&a.performance, 1, classPerformance}} {
		if *agent.id, err = unix.RegisterUmadAgent(fd, agent.qpn, agent.class, classVersion); err != nil {
			return a, fmt.Errorf("register for class %#02x: %w", agent.class, err)
		}
	}
	return a, nil
}

// Send implements Transport.
func (u *Umad) Send(m *MAD, to Address, wait time.Duration) error {
	u.encodeDatagram(m, to, wait)
	_, err := u.file.Write(u.buf[:])
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOMEM) {
		return ErrDropped
	}
	return err
}

func (u *Umad) encodeDatagram(m *MAD, to Address, wait time.Duration) {
	h := u.buf[:umadHeader]
	clear(h)
	agent, lid := u.agents.lid, uint16(to.LID)
	switch m.ManagementClass() {
	case classPerformance:
		agent = u.agents.performance
		binary.BigEndian.PutUint32(h[umadQPNAt:], 1)
		binary.BigEndian.PutUint32(h[umadQKeyAt:], gsiKey)
	case classSubnetDirected:
		agent, lid = u.agents.directed, permissiveLID
	}
	binary.NativeEndian.PutUint32(h[umadAgentAt:], agent)
	// Without a time-out the kernel would expect no answer, and drop it.
	binary.NativeEndian.PutUint32(h[umadTimeoutAt:], uint32(max(1, (wait+time.Millisecond-1)/time.Millisecond)))
	binary.BigEndian.PutUint16(h[umadLIDAt:], lid)
	copy(u.buf[umadHeader:], m[:])
}

// Receive implements Transport.
func (u *Umad) Receive(m *MAD) (lost bool, err error) {
	for {
		n, err := u.file.Read(u.in[:])
		if err != nil {
			return false, err
		}
		if lost, ok := umadDecode(u.in[:n], m); ok {
			return lost, nil
		}
	}
}

// umadDecode reads a datagram, or the first 24 octets of a request that was not answered. ok is false for
// anything else.
func umadDecode(b []byte, m *MAD) (lost, ok bool) {
	const header = 24
	if len(b) < umadHeader+header {
		return false, false
	}
	lost = binary.NativeEndian.Uint32(b[umadStatusAt:]) != 0
	*m = MAD{}
	copy(m[:], b[umadHeader:])
	return lost, lost || len(b) == umadHeader+Size
}

// MaxInFlight implements Transport.
func (u *Umad) MaxInFlight() int { return umadWindow }

// Close ends a waiting Receive. The kernel unregisters the agents.
func (u *Umad) Close() error { return u.file.Close() }
