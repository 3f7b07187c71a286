// Package rdmadev maps network interfaces and their functions to RDMA devices, and RDMA devices to their device nodes.
// There are two implementations of Mapper: Library reads the machine's /sys by github.com/Mellanox/rdmamap, and Files
// reads any root of sysfs. Rules:
//
//  1. What cannot be read is absent. A device whose files cannot be read hides no other device.
//  2. A fault of the library is an error of one call. It does not end the program.
//  3. Nothing is kept between two calls, because devices come and go.
//
// Kernel documents: Documentation/ABI/stable/sysfs-class-infiniband, networking/devlink/devlink-port.rst (scalable
// functions), driver-api/auxiliary_bus.rst.
package rdmadev

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
)

// Mapper finds RDMA devices and their nodes. Its methods may be called by several goroutines, and hang if the kernel
// does.
type Mapper interface {
	// FunctionDevices lists the RDMA devices of the function of a network interface in the order of their names. A
	// function is a physical or virtual function on the PCI bus, or a scalable function on the auxiliary bus. An
	// interface without hardware has none.
	FunctionDevices(netdev string) ([]string, error)
	// InterfaceDevice returns the RDMA device of a network interface: that of its function, and otherwise that whose
	// GIDs are of the interface. It returns "" if there is none.
	InterfaceDevice(netdev string) (string, error)
	// DeviceInterfaces lists the interfaces whose InterfaceDevice is a device, in the order of their names.
	DeviceInterfaces(device string) ([]string, error)
	// UverbsNode returns the node of a device for verbs, as "/dev/infiniband/uverbs0". errors.Is(err, fs.ErrNotExist)
	// holds if there is none.
	UverbsNode(device string) (string, error)
	// UmadNode returns the node of a port for management datagrams, as "/dev/infiniband/umad0". errors.Is(err,
	// fs.ErrNotExist) holds if there is none.
	UmadNode(device string, port int) (string, error)
}

// liveRoot is the only root that the library reads.
const liveRoot = "/sys"

// Open returns the Mapper for a root of sysfs: Library for that of the machine, which is also "", and Files for another.
func Open(sys string) Mapper {
	if sys == "" || filepath.Clean(sys) == liveRoot {
		return Library{}
	}
	return Files{Root: sys}
}

// nodeDir is the directory of the nodes. Their names are those of their directories in sysfs (rdma-core, kernel-boot/).
const nodeDir = "/dev/infiniband"

// errNoNode returns the error for a device without a node of a class.
func errNoNode(class, device string) error {
	return fmt.Errorf("class/%s: no device of %s: %w", class, device, fs.ErrNotExist)
}

// Classes of device nodes.
const (
	verbsClass = "infiniband_verbs"
	madClass   = "infiniband_mad"
)

// selectInterfaces returns those of the interfaces whose RDMA device is the given one. An interface that cannot be
// mapped is not among them.
func selectInterfaces(m Mapper, netdevs []string, device string) []string {
	return slices.DeleteFunc(netdevs, func(netdev string) bool {
		owner, err := m.InterfaceDevice(netdev)
		return err != nil || owner != device
	})
}

// isAbsent reports whether an error means that a file is not there.
func isAbsent(err error) bool { return errors.Is(err, fs.ErrNotExist) }
