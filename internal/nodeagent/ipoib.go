package nodeagent

import (
	"fmt"
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

// formatGUID returns the GUID of a port by its GID, as topologies have it.
func formatGUID(gid netip.Addr) string {
	b := gid.As16()
	return fmt.Sprintf("0x%x", b[8:])
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
	gid, ok := ipoibGID(address)
	if !ok {
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
	ports, err := filepath.Glob(filepath.Join(sys, "class/infiniband/*/ports/*"))
	if err != nil {
		return nil
	}
	for _, port := range ports {
		number, err := strconv.Atoi(filepath.Base(port))
		if layer, failed := readTrimmed(filepath.Join(port, "link_layer")); err != nil || failed != nil || layer != "InfiniBand" {
			continue
		}
		text, err := readTrimmed(filepath.Join(port, "gids/0"))
		if first, failed := netip.ParseAddr(text); err == nil && failed == nil && first == gid {
			return &probe.RDMAConfig{Device: filepath.Base(filepath.Dir(filepath.Dir(port))), Port: number, PKey: pkey, QKey: qkey}
		}
	}
	return nil
}

// readTrimmed returns the content of a file without white space around it.
func readTrimmed(name string) (string, error) {
	b, err := os.ReadFile(name)
	return strings.TrimSpace(string(b)), err
}
