package unix

import (
	"unsafe"

	sys "golang.org/x/sys/unix"
)

// Requests of /dev/infiniband/umadN (include/uapi/rdma/ib_user_mad.h), in the encoding of all architectures except
// MIPS, PowerPC and SPARC.
const (
	umadMagic      = 0x1b << 8
	umadEnablePKey = umadMagic | 3
	umadRegister2  = 3<<30 | 40<<16 | umadMagic | 4
)

// umadAgent is struct ib_user_mad_reg_req2.
type umadAgent struct {
	id           uint32
	qpn          uint32
	class        uint8
	classVersion uint8
	_            uint16
	flags        uint32
	methods      [2]uint64
	oui          uint32
	rmpp         uint8
	_            [3]uint8
}

// EnableUmadPKeys selects the header of 64 octets, which has a P_Key index. It must be called before any other use of
// the file.
func EnableUmadPKeys(fd uintptr) error { return umadIoctl(fd, umadEnablePKey, nil) }

// RegisterUmadAgent registers an agent that sends requests of a management class on queue pair 0 or 1. The agent
// receives only the answers to its requests. It returns the number that goes into the header.
func RegisterUmadAgent(fd uintptr, qpn uint32, class, version uint8) (uint32, error) {
	a := umadAgent{qpn: qpn, class: class, classVersion: version}
	err := umadIoctl(fd, umadRegister2, unsafe.Pointer(&a))
	return a.id, err
}

func umadIoctl(fd, request uintptr, argument unsafe.Pointer) error {
	if _, _, errno := sys.Syscall(sys.SYS_IOCTL, fd, request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}
