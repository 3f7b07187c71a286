package unix

import (
	"errors"
	"fmt"

	sys "golang.org/x/sys/unix"
)

// Capability is a capability of a process (capabilities(7)).
type Capability int

// Capabilities that the agents use.
const (
	CapNetAdmin       Capability = sys.CAP_NET_ADMIN
	CapNetRaw         Capability = sys.CAP_NET_RAW
	CapNetBindService Capability = sys.CAP_NET_BIND_SERVICE
	CapSyslog         Capability = sys.CAP_SYSLOG
	CapIPCLock        Capability = sys.CAP_IPC_LOCK
	CapBPF            Capability = sys.CAP_BPF
	CapPerfmon        Capability = sys.CAP_PERFMON
)

// HasCapability reports whether the process has an effective capability.
func HasCapability(c Capability) bool {
	h := sys.CapUserHeader{Version: sys.LINUX_CAPABILITY_VERSION_3}
	var data [2]sys.CapUserData
	return sys.Capget(&h, &data[0]) == nil && data[c/32].Effective&(1<<(c%32)) != 0
}

// LockedMemoryLimit returns how much memory the process may lock, in octets (RLIMIT_MEMLOCK).
func LockedMemoryLimit() (uint64, error) {
	var l sys.Rlimit
	if err := sys.Getrlimit(sys.RLIMIT_MEMLOCK, &l); err != nil {
		return 0, fmt.Errorf("read the limit of locked memory: %w", err)
	}
	return l.Cur, nil
}

// KernelVersion returns the first two numbers of the kernel's release (uname(2)).
func KernelVersion() (major, minor int, err error) {
	var u sys.Utsname
	if err := sys.Uname(&u); err != nil {
		return 0, 0, fmt.Errorf("read the kernel's release: %w", err)
	}
	release := sys.ByteSliceToString(u.Release[:])
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return 0, 0, fmt.Errorf("the kernel's release %q: two numbers are expected: %w", release, err)
	}
	return major, minor, nil
}

// TryPacketSocket returns an error if the process cannot open packet sockets. It needs CAP_NET_RAW.
func TryPacketSocket() error {
	fd, err := sys.Socket(sys.AF_PACKET, sys.SOCK_RAW|sys.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("packet socket: %w", err)
	}
	return sys.Close(fd)
}

// TryRawSocket returns an error if the process cannot open raw sockets. It needs CAP_NET_RAW.
func TryRawSocket() error {
	fd, err := sys.Socket(sys.AF_INET, sys.SOCK_RAW|sys.SOCK_CLOEXEC, sys.IPPROTO_ICMP)
	if err != nil {
		return fmt.Errorf("raw socket: %w", err)
	}
	return sys.Close(fd)
}

// CheckWritable returns an error if the process may not read and write a file, or search and write a directory (access(2)).
func CheckWritable(name string) error {
	var info sys.Stat_t
	if err := sys.Stat(name, &info); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	mode := uint32(sys.R_OK | sys.W_OK)
	if info.Mode&sys.S_IFMT == sys.S_IFDIR {
		mode = sys.W_OK | sys.X_OK
	}
	if err := sys.Access(name, mode); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// TryKernelLog returns an error if the process may not read the kernel log at a path, such as /dev/kmsg.
func TryKernelLog(name string) error {
	fd, err := sys.Open(name, sys.O_RDONLY|sys.O_NONBLOCK|sys.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	// The kernel checks the right at the first read as well. Nothing to read, or a line that was lost, is no error.
	var line [8192]byte
	if _, err = sys.Read(fd, line[:]); errors.Is(err, sys.EAGAIN) || errors.Is(err, sys.EPIPE) {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("read %s: %w", name, err)
	}
	return errors.Join(err, sys.Close(fd))
}
