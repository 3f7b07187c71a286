package nodeagent

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/rdma"
)

// ipoibAddressLength is the length of the hardware address of an IPoIB interface: flags, the queue pair's number and the port's GID (RFC 4391, 9.1.1).
const ipoibAddressLength = 20

// ipoibGID returns the GID in the hardware address of an IPoIB interface. It returns false for other interfaces.
func ipoibGID(address net.HardwareAddr) (netip.Addr, bool) {
	if len(address) != ipoibAddressLength {
		return netip.Addr{}, false
	}
	return netip.AddrFromSlice(address[4:])
}

// ipoibPort returns the InfiniBand port of an IPoIB interface, and nil for other interfaces and for what cannot be read. It is the port whose first GID is
// in the interface's hardware address (Documentation/ABI/stable/sysfs-class-infiniband and sysfs-class-net). Children of an interface, which have
// other partitions, have the same port and the partition of their file pkey (drivers/infiniband/ulp/ipoib/ipoib_main.c).
func ipoibPort(sys, netdev string, qkey uint32) *probe.RDMAConfig {
	dir := filepath.Join(sys, "class/net", netdev)
	if kind, err := readTrimmed(filepath.Join(dir, "type")); err != nil || kind != strconv.Itoa(syscall.ARPHRD_INFINIBAND) {
		return nil
	}
	text, err := readTrimmed(filepath.Join(dir, "address"))
	if err != nil {
		return nil
	}
	address, err := net.ParseMAC(text)
	if err != nil {
		return nil
	}
	pkey := uint16(rdma.DefaultPKey)
	if text, err := readTrimmed(filepath.Join(dir, "pkey")); err == nil {
		v, err := strconv.ParseUint(text, 0, 16)
		if err != nil {
			return nil
		}
		pkey = uint16(v)
	}
	port := portOfInterface(listIBPorts(sys), address)
	if port == nil || port.device == "" {
		return nil
	}
	return port.queuePair(probe.RDMAConfig{PKey: pkey, QKey: qkey})
}

// readTrimmed returns the content of a file without white space around it.
func readTrimmed(name string) (string, error) {
	b, err := os.ReadFile(name)
	return strings.TrimSpace(string(b)), err
}
