package unix

import (
	"net"
	"os"

	sys "golang.org/x/sys/unix"
)

// Peer is the process that connected to a Unix socket, as the kernel knows it. It may have ended since.
type Peer struct {
	PID      int // in the namespace of the caller; 0 if it has no number there
	UID, GID uint32
}

// PeerOf returns who connected, as SO_PEERCRED of unix(7) says. The peer cannot choose what it says.
func PeerOf(conn *net.UnixConn) (Peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	var cred *sys.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		cred, failed = sys.GetsockoptUcred(int(fd), sys.SOL_SOCKET, sys.SO_PEERCRED)
	}); err != nil {
		return Peer{}, err
	}
	if failed != nil {
		return Peer{}, os.NewSyscallError("getsockopt SO_PEERCRED", failed)
	}
	return Peer{PID: int(cred.Pid), UID: cred.Uid, GID: cred.Gid}, nil
}
