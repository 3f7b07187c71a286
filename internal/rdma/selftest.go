package rdma

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/graylink/graylink/internal/rdmadev"
)

// SelfTestResult is the result of a self-test.
type SelfTestResult int

// Results of SelfTest.
const (
	SelfTestOK        SelfTestResult = iota // every port can carry probes
	SelfTestNotBuilt                        // the program has no RDMA
	SelfTestNoDevices                       // the host has no device
	SelfTestFailed                          // a port cannot carry probes
)

const (
	loopPackets = 10
	loopWait    = 5 * time.Second // for a datagram of a port to itself
	maxPorts    = 2
)

// RandomQKey returns a random Q_Key from 1 to MaxQKey, which cannot be guessed.
func RandomQKey() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // it never fails (crypto/rand)
	return max(1, binary.BigEndian.Uint32(b[:])&MaxQKey)
}

// SelfTest checks on every port of the host's devices what probes need, and writes its findings to w.
// m finds the devices' interfaces and nodes.
func SelfTest(ctx context.Context, v Verbs, m rdmadev.Mapper, w io.Writer) SelfTestResult {
	if v == nil {
		fmt.Fprintln(w, ErrNotBuilt)
		return SelfTestNotBuilt
	}
	devices, err := v.Devices()
	if err != nil {
		fmt.Fprintf(w, "devices: %v\n", err)
		return SelfTestFailed
	}
	if len(devices) == 0 {
		fmt.Fprintln(w, "devices: none; want one in /sys/class/infiniband, and its driver's library of rdma-core")
		return SelfTestNoDevices
	}
	fmt.Fprintf(w, "devices: %s\n", strings.Join(devices, ", "))
	result := SelfTestOK
	for _, d := range devices {
		if err := checkNode(m, d, w); err != nil {
			fmt.Fprintf(w, "%s: FAILED: %v\n", d, err)
			result = SelfTestFailed
		}
		for port := 1; port <= maxPorts; port++ {
			table, err := v.GIDs(d, port)
			if port > 1 && err == nil && len(table) == 0 {
				continue // most devices have one port
			}
			if err == nil {
				fmt.Fprintf(w, "%s port %d: %d GIDs\n", d, port, len(table))
				for _, g := range table {
					fmt.Fprintf(w, "  index %d: %v (%v)\n", g.Index, g.Addr, g.Type)
				}
				if node, failed := m.UmadNode(d, port); failed == nil {
					fmt.Fprintf(w, "%s port %d: management datagrams by %s\n", d, port, node)
				}
				err = tryPort(ctx, v, d, port, w)
			}
			if err != nil {
				fmt.Fprintf(w, "%s port %d: FAILED: %v\n", d, port, err)
				result = SelfTestFailed
			}
		}
	}
	return result
}

// checkNode prints the interfaces and the verbs node of a device. It returns an error if the node cannot be opened or is
// missing.
func checkNode(m rdmadev.Mapper, device string, w io.Writer) error {
	netdevs, err := m.DeviceInterfaces(device)
	if err != nil {
		return fmt.Errorf("interfaces: %w", err)
	}
	node, err := m.UverbsNode(device)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("is ib_uverbs loaded? %w", err)
	}
	if err != nil {
		return fmt.Errorf("verbs node: %w", err)
	}
	fmt.Fprintf(w, "%s: interfaces [%s], verbs by %s\n", device, strings.Join(netdevs, " "), node)
	f, err := os.OpenFile(node, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("want access for reading and writing: %w", err)
	}
	return f.Close()
}

// tryPort sends datagrams from one queue pair of a port to another. It returns the reason if they do not arrive.
func tryPort(ctx context.Context, v Verbs, device string, number int, w io.Writer) (err error) {
	log := slog.New(slog.DiscardHandler)
	o := Options{Device: device, Port: number, PKey: DefaultPKey, QKey: RandomQKey()}
	var ports [2]*Port
	for i := range ports {
		p, openErr := Open(o, v, log)
		if openErr != nil {
			return openErr
		}
		defer func() { err = errors.Join(err, p.Close()) }()
		ports[i] = p
	}
	a, b := ports[0].Status(), ports[1].Status()
	for _, s := range []Status{a, b} {
		if s.Why != "" {
			return errors.New(s.Why)
		}
	}
	stamps := "none, the program's times are used"
	if a.Hardware {
		stamps = "the device's"
	}
	fmt.Fprintf(w, "%s port %d: queue pairs %d and %d, GID %v at index %d (%v), port %s, completion time stamps: %s\n", device, number, a.QPN, b.QPN, a.GID, a.GIDIndex, a.GIDType, a.PortState, stamps)
	ports[0].SetPeers([]Peer{{GID: b.GID, QPN: b.QPN, QKey: o.QKey, LID: b.LID}})
	ports[1].SetPeers([]Peer{{GID: a.GID, QPN: a.QPN, QKey: o.QKey, LID: a.LID}})
	ctx, cancel := context.WithTimeout(ctx, loopWait)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	const src, dst = 49152, 862
	sent, came := 0, 0
	why := syscall.Errno(0)
	for came < loopPackets {
		if sent < loopPackets {
			buf := ports[0].OutBuffer()
			n := copy(buf, "graylink")
			ports[0].Commit(n, b.GID, src, dst, 0, uint32(sent))
			sent++
			if _, err := ports[0].Send(func(_ int, e syscall.Errno) { why = e; sent-- }); err != nil {
				return err
			}
		}
		for i := range ports[1].Recv() {
			if x := ports[1].ArrivalAt(i); string(x.Data) == "graylink" && x.SrcPort == src && x.DstPort == dst {
				came++
			}
		}
		select {
		case <-ctx.Done():
			if sent < loopPackets && why != 0 {
				return fmt.Errorf("a datagram to itself: %w", why)
			}
			return fmt.Errorf("%d of %d datagrams to itself came within %v", came, sent, loopWait)
		case <-tick.C:
		}
	}
	fmt.Fprintf(w, "%s port %d: ok, %d datagrams from one queue pair to the other\n", device, number, came)
	return nil
}
