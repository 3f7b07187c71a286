// Package nldev reads the queue pairs of this machine from the kernel's resource tracking (RDMA netlink, what
// `rdma resource show qp` prints). It only reads. Kernel documents: include/uapi/rdma/rdma_netlink.h.
package nldev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/mdlayher/netlink"

	"github.com/graylink/graylink/internal/queuepair"
)

// Values of include/uapi/linux/netlink.h and rdma_netlink.h.
const (
	family          = 20      // NETLINK_RDMA
	client          = 5 << 10 // RDMA_NL_NLDEV
	commandDevices  = client | 1
	commandPairs    = client | 10
	attrDeviceIndex = 1
	attrDeviceName  = 2
	attrPort        = 3
	attrPairs       = 19
	attrPair        = 20
	attrLocal       = 21
	attrRemote      = 22
	attrType        = 26
	attrState       = 27
	attrPID         = 28
	attrModule      = 29
)

// typeNames and stateNames are ib_qp_type and ib_qp_state of include/rdma/ib_verbs.h.
var (
	typeNames  = map[uint8]string{0: "smi", 1: "gsi", 2: "rc", 3: "uc", 4: "ud", 8: "raw_packet", 9: "xrc_ini", 10: "xrc_tgt", 255: "driver"}
	stateNames = map[uint8]string{0: "reset", 1: "init", 2: "rtr", 3: "rts", 4: "sqd", 5: "sqe", 6: "err"}
)

// patience is how long the kernel may take for one answer.
const patience = 5 * time.Second

// Machine is the kernel that we run on.
type Machine struct {
	// Sys and Proc are where sysfs and procfs lie.
	Sys, Proc string
}

// initNamespace is the PID namespace of the machine itself: PROC_PID_INIT_INO, include/linux/proc_ns.h.
const initNamespace = "pid:[4026531836]"

// HostNamespace reports whether this process is in the machine's own PID namespace, so that the kernel lists the queue pairs of
// all processes.
func (m *Machine) HostNamespace() bool {
	ns, err := os.Readlink(filepath.Join(m.Proc, "self/ns/pid"))
	return err == nil && ns == initNamespace
}

// List returns the queue pairs of all RDMA devices, sorted. It returns an error if the kernel has no RDMA netlink, does not
// answer, or has more than queuepair.MaxPairs.
func (m *Machine) List(ctx context.Context) ([]queuepair.QueuePair, error) {
	c, err := netlink.Dial(family, nil)
	if err != nil {
		return nil, fmt.Errorf("RDMA netlink: %w", err)
	}
	defer func() { _ = c.Close() }()
	end := time.Now().Add(patience)
	if d, ok := ctx.Deadline(); ok && d.Before(end) {
		end = d
	}
	if err := c.SetDeadline(end); err != nil {
		return nil, fmt.Errorf("RDMA netlink: %w", err)
	}
	devices, err := dump(c, commandDevices, nil)
	if err != nil {
		return nil, fmt.Errorf("RDMA devices: %w", err)
	}
	var out []queuepair.QueuePair
	for _, d := range devices {
		index, name, err := parseDevice(d.Data)
		if err != nil {
			return nil, err
		}
		e := netlink.NewAttributeEncoder()
		e.Uint32(attrDeviceIndex, index)
		request, err := e.Encode()
		if err != nil {
			return nil, err
		}
		answers, err := dump(c, commandPairs, request)
		if err != nil {
			return nil, fmt.Errorf("queue pairs of %s: %w", name, err)
		}
		driver := m.driver(name)
		for _, a := range answers {
			if out, err = parsePairs(out, a.Data); err != nil {
				return nil, fmt.Errorf("queue pairs of %s: %w", name, err)
			}
		}
		for i := range out {
			if out[i].Device == name {
				out[i].Driver = driver
			}
		}
	}
	for i := range out {
		if q := &out[i]; q.PID != 0 {
			q.Process = m.process(q.PID)
		}
	}
	queuepair.Sort(out)
	return out, nil
}

// dump returns the messages of an answer.
func dump(c *netlink.Conn, command netlink.HeaderType, attributes []byte) ([]netlink.Message, error) {
	return c.Execute(netlink.Message{Header: netlink.Header{Type: command, Flags: netlink.Request | netlink.Dump}, Data: attributes})
}

// driver returns the kernel module of a device, or "".
func (m *Machine) driver(device string) string {
	target, err := os.Readlink(filepath.Join(m.Sys, "class/infiniband", device, "device/driver"))
	if err == nil {
		return filepath.Base(target)
	}
	// A device without a parent is one of software: soft-RoCE names its network interface.
	if _, err := os.Stat(filepath.Join(m.Sys, "class/infiniband", device, "parent")); err == nil {
		return "rdma_rxe"
	}
	return ""
}

// process returns the name of a process, or "".
func (m *Machine) process(pid int) string {
	b, err := os.ReadFile(filepath.Join(m.Proc, strconv.Itoa(pid), "comm"))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(b), "\n")
}

// parseDevice reads a message about a device.
func parseDevice(b []byte) (index uint32, name string, err error) {
	d, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return 0, "", fmt.Errorf("RDMA netlink: %w", err)
	}
	seen := false
	for d.Next() {
		switch d.Type() {
		case attrDeviceIndex:
			index, seen = d.Uint32(), true
		case attrDeviceName:
			name = d.String()
		}
	}
	if err := d.Err(); err != nil {
		return 0, "", fmt.Errorf("RDMA netlink: %w", err)
	}
	if !seen || name == "" {
		return 0, "", errors.New("RDMA netlink: a device without an index or a name")
	}
	return index, name, nil
}

// parsePairs appends the queue pairs of a message.
func parsePairs(out []queuepair.QueuePair, b []byte) ([]queuepair.QueuePair, error) {
	d, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return nil, err
	}
	device, first := "", len(out)
	for d.Next() {
		switch d.Type() {
		case attrDeviceName:
			device = d.String()
		case attrPairs:
			d.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					if list.Type() != attrPair {
						continue
					}
					q := queuepair.QueuePair{}
					list.Nested(func(d *netlink.AttributeDecoder) error { return parsePair(&q, d) })
					if len(out) >= queuepair.MaxPairs {
						return fmt.Errorf("more than %d", queuepair.MaxPairs)
					}
					out = append(out, q)
				}
				return nil
			})
		}
	}
	if err := d.Err(); err != nil {
		return nil, err
	}
	if device == "" && len(out) > first {
		return nil, errors.New("queue pairs without a device")
	}
	for i := first; i < len(out); i++ {
		out[i].Device = device
	}
	return out, nil
}

// parsePair reads the attributes of one queue pair.
func parsePair(q *queuepair.QueuePair, d *netlink.AttributeDecoder) error {
	for d.Next() {
		switch d.Type() {
		case attrPort:
			q.Port = int(d.Uint32())
		case attrLocal:
			q.Local = d.Uint32()
		case attrRemote:
			q.Remote = d.Uint32()
		case attrType:
			q.Type = named(typeNames, d.Uint8())
		case attrState:
			q.State = named(stateNames, d.Uint8())
		case attrPID:
			q.PID = int(d.Uint32())
		case attrModule:
			q.Process = d.String()
		}
	}
	return nil
}

// named returns the name of a value, or its number.
func named(names map[uint8]string, v uint8) string {
	if n, ok := names[v]; ok {
		return n
	}
	return strconv.Itoa(int(v))
}
