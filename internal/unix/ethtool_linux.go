package unix

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	sys "golang.org/x/sys/unix"
)

// EthtoolIoctl sends a request to an interface by SIOCETHTOOL (netdevice(7)). The kernel reads data, which begins with
// the command, and writes its answer there. The size of the answer depends on the command, so data must have room for
// it. The error is a syscall.Errno.
func EthtoolIoctl(name string, data []byte) error {
	if len(name) >= sys.IFNAMSIZ {
		return fmt.Errorf("interface %q: a name of less than %d octets is expected: %w", name, sys.IFNAMSIZ, syscall.ENODEV)
	}
	if len(data) < 4 {
		return fmt.Errorf("ethtool of %s: a command of 4 octets is expected: %w", name, syscall.EINVAL)
	}
	fd, err := sys.Socket(sys.AF_INET, sys.SOCK_DGRAM|sys.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer sys.Close(fd)
	var request struct { // struct ifreq
		name [sys.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:], name)
	request.data = unsafe.Pointer(&data[0])
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), sys.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	runtime.KeepAlive(&request)
	runtime.KeepAlive(data)
	if errno != 0 {
		return errno
	}
	return nil
}
