package rdmadev

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/Mellanox/rdmamap"
)

// Library is the Mapper that reads the machine's /sys by rdmamap. The library's version 1.1.0 (August 2022) has these
// limits, and none of them leaves this type:
//
//   - It panics on an empty node_guid, and on an IPoIB interface with a short address.
//   - It compares an IPoIB address with node_guid, which is not the GUID of every port, and one node_guid that cannot
//     be read fails the search of all devices. The function's devices are therefore looked up first.
//   - Its list of character devices has one umad device of each RDMA device, whatever the number of ports, and an empty
//     name for a class that could not be listed.
//   - A counter that it cannot read is 0. Its counters are not used.
type Library struct{}

// guardCall runs a call of the library and returns its panic as an error.
func guardCall(call func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("rdmamap failed: %v", r)
		}
	}()
	call()
	return nil
}

// FunctionDevices implements Mapper.
func (Library) FunctionDevices(netdev string) (devices []string, err error) {
	target, err := os.Readlink(filepath.Join(liveRoot, "class/net", netdev, "device"))
	if isAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	function := filepath.Base(target)
	err = guardCall(func() {
		if devices = rdmamap.GetRdmaDevicesForPcidev(function); len(devices) == 0 {
			devices = rdmamap.GetRdmaDevicesForAuxdev(function)
		}
	})
	slices.Sort(devices)
	return devices, err
}

// InterfaceDevice implements Mapper.
func (l Library) InterfaceDevice(netdev string) (device string, err error) {
	if devices, err := l.FunctionDevices(netdev); err == nil && len(devices) == 1 {
		return devices[0], nil
	}
	err = guardCall(func() {
		// Its errors have no type: an interface without a device fails as one that cannot be read.
		device, _ = rdmamap.GetRdmaDeviceForNetdevice(netdev)
	})
	return device, err
}

// DeviceInterfaces implements Mapper.
func (l Library) DeviceInterfaces(device string) ([]string, error) {
	netdevs, err := Files{Root: liveRoot}.listNames("class/net")
	return selectInterfaces(l, netdevs, device), err
}

// findNode returns the node of a device whose name begins with a prefix, and "" if there is none.
func (Library) findNode(prefix, device string) (string, error) {
	var nodes []string
	err := guardCall(func() { nodes = rdmamap.GetRdmaCharDevices(device) })
	for _, node := range nodes {
		if strings.HasPrefix(filepath.Base(node), prefix) {
			return node, nil
		}
	}
	return "", err
}

// UverbsNode implements Mapper.
func (l Library) UverbsNode(device string) (string, error) {
	node, err := l.findNode("uverbs", device)
	if err == nil && node == "" {
		err = errNoNode(verbsClass, device)
	}
	return node, err
}

// UmadNode implements Mapper. The library has no ports: the node of a second port is found by Files.
func (l Library) UmadNode(device string, port int) (string, error) {
	node, err := l.findNode("umad", device)
	files := Files{Root: liveRoot}
	switch {
	case err != nil:
		return "", err
	case node == "":
		return "", errNoNode(madClass, fmt.Sprintf("%s port %d", device, port))
	case files.isPort(filepath.Base(node), port):
		return node, nil
	}
	return files.UmadNode(device, port)
}
