package ibmad

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// The protocol of ibsim 0.10: datagrams between abstract Unix sockets. Control
// goes to NAME:ctl in 80 octets; data between the client's NAME:inID and the
// simulator's NAME:outCLIENT in 288. The integers of control messages have the
// host's order. Names end with a NUL that belongs to them.
const (
	simControlSize = 80
	simDataSize    = 288
	simDataMAD     = simDataSize - Size

	simMagic      = 0xdeadbeef
	simConnect    = 1
	simDisconnect = 2
	simError      = 0

	simTimedOut = 110 // status of a datagram that was lost or has no way to go
)

// IbsimName is ibsim's name unless IBSIM_SOCKNAME gives it another.
const IbsimName = "sim"

// ErrIbsimRefused means that ibsim has no such node, or ten clients already.
var ErrIbsimRefused = errors.New("ibsim refused: unknown node, or it has ten clients already")

// Ibsim is the transport of a client of the fabric simulator ibsim.
type Ibsim struct {
	control     *net.UnixConn
	data        *net.UnixConn
	raw         syscall.RawConn
	client      uint32
	maxInFlight int
	closed      atomic.Bool
}

// simIDs makes the identities of this process's clients distinct.
var simIDs atomic.Uint32

// DialIbsim attaches to the port of a node, by its name in the simulated net. name is the simulator's,
// IbsimName by default. The simulator keeps one of its ten places until Close.
func DialIbsim(name, node string) (*Ibsim, error) {
	if len(node) > 31 {
		return nil, fmt.Errorf("ibsim node %q: name is longer than 31 octets", node)
	}
	// A process id has at most 22 bits; the identity is printed as a signed number.
	id := uint32(os.Getpid()) | simIDs.Add(1)<<22&0x7fffffff
	queue, err := datagramQueue()
	if err != nil {
		return nil, err
	}
	t := &Ibsim{maxInFlight: queue}
	if err := t.attachNode(name, node, strconv.FormatUint(uint64(id), 10), id); err != nil {
		return nil, errors.Join(fmt.Errorf("ibsim %q, node %q: %w", name, node, err), t.closeSockets())
	}
	return t, nil
}

func (t *Ibsim) closeSockets() (err error) {
	for _, c := range []*net.UnixConn{t.control, t.data} {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
	}
	return err
}

func simAddress(name, socket string) *net.UnixAddr {
	return &net.UnixAddr{Net: "unixgram", Name: "@" + name + ":" + socket + "\x00"}
}

// datagramQueue returns how many datagrams a Unix socket queues (unix(7), max_dgram_qlen). Answers of ibsim
// beyond that are lost.
func datagramQueue() (int, error) {
	b, err := os.ReadFile("/proc/sys/net/unix/max_dgram_qlen")
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || n < 1 {
		return 0, fmt.Errorf("max_dgram_qlen is %q, want a positive number", b)
	}
	return n, nil
}

func (t *Ibsim) attachNode(name, node, suffix string, id uint32) (err error) {
	if t.control, err = net.DialUnix("unixgram", simAddress(name, "ctl"+suffix), simAddress(name, "ctl")); err != nil {
		return err
	}
	// ibsim connects to it after the connect message.
	if t.data, err = net.ListenUnixgram("unixgram", simAddress(name, "in"+suffix)); err != nil {
		return err
	}
	info := make([]byte, 12, 44)
	binary.NativeEndian.PutUint32(info, id)
	answer, err := t.sendControl(simConnect, append(info, node...))
	if err != nil {
		return err
	}
	t.client = binary.NativeEndian.Uint32(answer)
	if t.raw, err = t.data.SyscallConn(); err != nil {
		return err
	}
	out := simAddress(name, "out"+strconv.FormatUint(uint64(t.client), 10))
	var failed error
	if err := t.raw.Control(func(fd uintptr) {
		failed = syscall.Connect(int(fd), &syscall.SockaddrUnix{Name: out.Name})
	}); err != nil {
		return err
	}
	if failed != nil {
		_, _ = t.sendControl(simDisconnect, nil)
	}
	return failed
}

// sendControl sends a control message and returns the payload of its answer.
func (t *Ibsim) sendControl(kind uint32, payload []byte) ([]byte, error) {
	var m [simControlSize]byte
	binary.NativeEndian.PutUint32(m[0:], simMagic)
	binary.NativeEndian.PutUint32(m[4:], t.client)
	binary.NativeEndian.PutUint32(m[8:], kind)
	binary.NativeEndian.PutUint32(m[12:], uint32(len(payload)))
	copy(m[16:], payload)
	if err := t.control.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return nil, err
	}
	if _, err := t.control.Write(m[:]); err != nil {
		return nil, err
	}
	n, err := t.control.Read(m[:])
	if err != nil {
		return nil, err
	}
	if n != simControlSize || binary.NativeEndian.Uint32(m[0:]) != simMagic {
		return nil, fmt.Errorf("control answer of %d octets, want %d with the magic number", n, simControlSize)
	}
	if binary.NativeEndian.Uint32(m[8:]) == simError {
		return nil, ErrIbsimRefused
	}
	return m[16:], nil
}

// Send implements Transport.
func (t *Ibsim) Send(m *MAD, to Address, _ time.Duration) error {
	var buf [simDataSize]byte
	simEncode(&buf, m, to)
	var failed error
	if err := t.raw.Write(func(fd uintptr) bool {
		_, failed = syscall.Write(int(fd), buf[:])
		return true
	}); err != nil {
		return err
	}
	if errors.Is(failed, syscall.EAGAIN) {
		return ErrDropped
	}
	return failed
}

func simEncode(buf *[simDataSize]byte, m *MAD, to Address) {
	lid := uint16(to.LID)
	if lid == 0 {
		lid = permissiveLID
		binary.BigEndian.PutUint16(buf[4:], permissiveLID) // the source; ibsim replaces 0
	}
	binary.BigEndian.PutUint16(buf[0:], lid)
	if m.Attribute().isPerformance() {
		binary.BigEndian.PutUint32(buf[8:], 1) // queue pairs: GSI to GSI
		binary.BigEndian.PutUint32(buf[12:], 1)
	}
	binary.BigEndian.PutUint64(buf[24:], Size)
	copy(buf[simDataMAD:], m[:])
}

// Receive implements Transport.
func (t *Ibsim) Receive(m *MAD) (lost bool, err error) {
	var buf [simDataSize]byte
	for {
		n, err := t.data.Read(buf[:])
		if err != nil {
			return false, err
		}
		if n == simDataSize {
			return simDecode(&buf, m), nil
		}
	}
}

func simDecode(buf *[simDataSize]byte, m *MAD) (lost bool) {
	copy(m[:], buf[simDataMAD:])
	return binary.BigEndian.Uint32(buf[16:]) == simTimedOut
}

// MaxInFlight implements Transport.
func (t *Ibsim) MaxInFlight() int { return t.maxInFlight }

// Close gives the client's place back and ends a waiting Receive.
func (t *Ibsim) Close() error {
	if t.closed.Swap(true) {
		return nil
	}
	_, err := t.sendControl(simDisconnect, nil)
	return errors.Join(err, t.closeSockets())
}
