package rdmadev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Files is the Mapper that reads the files of a root of sysfs.
type Files struct{ Root string }

// readText reads a file of one line.
func (f Files) readText(elements ...string) (string, error) {
	b, err := os.ReadFile(filepath.Join(append([]string{f.Root}, elements...)...))
	return strings.TrimSpace(string(b)), err
}

// listNames lists a directory. One that is not there has no entries.
func (f Files) listNames(elements ...string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(append([]string{f.Root}, elements...)...))
	if err != nil && !isAbsent(err) && !errors.Is(err, syscall.ENOTDIR) {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// FunctionDevices implements Mapper.
func (f Files) FunctionDevices(netdev string) ([]string, error) {
	return f.listNames("class/net", netdev, "device/infiniband")
}

// InterfaceDevice implements Mapper.
func (f Files) InterfaceDevice(netdev string) (string, error) {
	if devices, err := f.FunctionDevices(netdev); err == nil && len(devices) == 1 {
		return devices[0], nil
	}
	devices, err := f.listNames("class/infiniband")
	if err != nil {
		return "", err
	}
	for _, device := range devices {
		if f.hasInterface(device, netdev) {
			return device, nil
		}
	}
	return "", nil
}

// hasInterface reports whether a GID of a device is that of an interface. GIDs that cannot be read are of none.
func (f Files) hasInterface(device, netdev string) bool {
	ports, _ := f.listNames("class/infiniband", device, "ports")
	for _, port := range ports {
		dir := filepath.Join("class/infiniband", device, "ports", port, "gid_attrs/ndevs")
		indexes, _ := f.listNames(dir)
		if slices.ContainsFunc(indexes, func(index string) bool {
			name, err := f.readText(dir, index)
			return err == nil && name == netdev
		}) {
			return true
		}
	}
	return false
}

// DeviceInterfaces implements Mapper.
func (f Files) DeviceInterfaces(device string) ([]string, error) {
	netdevs, err := f.listNames("class/net")
	return selectInterfaces(f, netdevs, device), err
}

// findNodes lists the directories of a class that belong to a device, among those with a prefix.
func (f Files) findNodes(class, prefix, device string) ([]string, error) {
	names, err := f.listNames("class", class)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(names, func(name string) bool {
		if !strings.HasPrefix(name, prefix) {
			return true
		}
		owner, err := f.readText("class", class, name, "ibdev")
		return err != nil || owner != device
	}), nil
}

// UverbsNode implements Mapper.
func (f Files) UverbsNode(device string) (string, error) {
	names, err := f.findNodes(verbsClass, "uverbs", device)
	if err != nil {
		return "", err
	}
	if len(names) == 0 {
		return "", errNoNode(verbsClass, device)
	}
	return filepath.Join(nodeDir, names[0]), nil
}

// UmadNode implements Mapper.
func (f Files) UmadNode(device string, port int) (string, error) {
	names, err := f.findNodes(madClass, "umad", device)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if f.isPort(name, port) {
			return filepath.Join(nodeDir, name), nil
		}
	}
	return "", errNoNode(madClass, fmt.Sprintf("%s port %d", device, port))
}

// isPort reports whether a umad device is that of a port of its RDMA device.
func (f Files) isPort(umad string, port int) bool {
	number, err := f.readText("class", madClass, umad, "port")
	return err == nil && number == strconv.Itoa(port)
}
