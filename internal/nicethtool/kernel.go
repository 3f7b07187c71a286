package nicethtool

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"github.com/safchain/ethtool"

	"github.com/graylink/graylink/internal/unix"
)

// Kernel sends requests to the kernel. Its methods may hang, and may be called while others do.
type Kernel interface {
	// SendRequest sends one request of the genetlink family ethtool, and returns the attributes of each
	// reply.
	SendRequest(command uint8, attributes []byte) (replies [][]byte, err error)
	// DriverInfo identifies the driver of an interface.
	DriverInfo(name string) (ethtool.DrvInfo, error)
	// ModuleEEPROM reads the memory of a module as the driver lays it end to end.
	ModuleEEPROM(name string) ([]byte, error)
	// Ioctl is SIOCETHTOOL: the kernel reads data and writes its answer there.
	Ioctl(name string, data []byte) error
}

// Family of the kernel's generic netlink (ethtool_netlink.h).
const (
	familyName    = "ethtool"
	familyVersion = 1
)

// Machine is the kernel that we run on. Its zero value is ready.
type Machine struct {
	// Dial opens generic netlink. Nil means the kernel's.
	Dial func() (*genetlink.Conn, error)

	mu     sync.Mutex
	idle   []*genetlink.Conn
	family uint16 // 0: not known yet
}

// SendRequest implements Kernel. A connection serves one request at a time, since the kernel answers within the
// sending: a request that hangs keeps its connection.
func (m *Machine) SendRequest(command uint8, attributes []byte) ([][]byte, error) {
	c, family, err := m.acquireConn()
	if err != nil {
		return nil, err
	}
	messages, err := c.Execute(genetlink.Message{Header: genetlink.Header{Command: command, Version: familyVersion}, Data: attributes}, family, netlink.Request)
	if err == nil || isKernelAnswer(err) {
		m.releaseConn(c)
	} else {
		_ = c.Close()
	}
	if err != nil {
		return nil, err
	}
	replies := make([][]byte, len(messages))
	for i := range messages {
		replies[i] = messages[i].Data
	}
	return replies, nil
}

// isKernelAnswer reports whether an error is the kernel's answer. The connection is as good as before,
// which it may not be when a system call failed.
func isKernelAnswer(err error) bool {
	var answer syscall.Errno
	var call *os.SyscallError
	return errors.As(err, &answer) && !errors.As(err, &call)
}

func (m *Machine) acquireConn() (*genetlink.Conn, uint16, error) {
	m.mu.Lock()
	if n := len(m.idle); n > 0 {
		defer m.mu.Unlock()
		c := m.idle[n-1]
		m.idle = m.idle[:n-1]
		return c, m.family, nil
	}
	family := m.family
	m.mu.Unlock()
	dial := m.Dial
	if dial == nil {
		dial = func() (*genetlink.Conn, error) { return genetlink.Dial(nil) }
	}
	c, err := dial()
	if err != nil {
		return nil, 0, fmt.Errorf("generic netlink: %w", err)
	}
	if family == 0 {
		f, err := c.GetFamily(familyName)
		if err != nil {
			_ = c.Close()
			if errors.Is(err, os.ErrNotExist) {
				return nil, 0, fmt.Errorf("the kernel has no ethtool over netlink: %w", syscall.EOPNOTSUPP)
			}
			return nil, 0, fmt.Errorf("generic netlink family %s: %w", familyName, err)
		}
		family = f.ID
		m.mu.Lock()
		m.family = family
		m.mu.Unlock()
	}
	return c, family, nil
}

func (m *Machine) releaseConn(c *genetlink.Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.idle = append(m.idle, c)
}

// Close closes the connections that are not in use.
func (m *Machine) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, c := range m.idle {
		errs = append(errs, c.Close())
	}
	m.idle = nil
	return errors.Join(errs...)
}

// Ioctl implements Kernel.
func (m *Machine) Ioctl(name string, data []byte) error { return unix.EthtoolIoctl(name, data) }

// DriverInfo implements Kernel.
func (m *Machine) DriverInfo(name string) (d ethtool.DrvInfo, err error) {
	err = callLibrary(name, func(e *ethtool.Ethtool) (err error) {
		d, err = e.DriverInfo(name)
		return err
	})
	return d, err
}

// ModuleEEPROM implements Kernel. The library has room for 640 octets, which is the most that SFF-8636 and SFF-8472
// have; a module with more is malformed.
func (m *Machine) ModuleEEPROM(name string) (memory []byte, err error) {
	err = callLibrary(name, func(e *ethtool.Ethtool) (err error) {
		memory, err = e.ModuleEeprom(name)
		return err
	})
	return memory, libraryError(err)
}

// libraryError returns an error of the library: that of the kernel as it is, and the library's own, which has no type
// and is about the answer, as malformed.
func libraryError(err error) error {
	if errno := syscall.Errno(0); err == nil || errors.As(err, &errno) {
		return err
	}
	return malformedError("%v", err)
}

// callLibrary calls the library for ioctls with a socket of its own, in the network namespace of the calling thread.
func callLibrary(name string, call func(*ethtool.Ethtool) error) error {
	if len(name) >= ethtool.IFNAMSIZ { // the library would cut it to the name of another interface
		return fmt.Errorf("interface %q: a name of less than %d octets is expected: %w", name, ethtool.IFNAMSIZ, syscall.ENODEV)
	}
	e, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer e.Close()
	return callOnLargeStack(e, call)
}

// stackRoom is what callOnLargeStack reserves on the stack, in octets.
const stackRoom = 32 << 10

// callOnLargeStack calls the library in a way that its stack does not move. Version 0.7.0 keeps the address of an answer
// on the stack as a number while it calls a function of its own. If the stack grows in that call, the kernel writes to
// memory that is no longer the stack's, and the answer is empty (TestLargeStack). The frame of this function makes the
// stack grow before, to at least twice its size, and is more than the quarter below which the garbage collector would
// shrink a stack of up to 128 KiB.
//
//go:noinline
func callOnLargeStack(e *ethtool.Ethtool, call func(*ethtool.Ethtool) error) error {
	var room [stackRoom]byte
	err := call(e)
	runtime.KeepAlive(&room)
	return err
}

// cString returns the string in a field of a fixed size.
func cString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}
