package preflight

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/graylink/graylink/internal/agentapi/client"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/rdma"
	"github.com/graylink/graylink/internal/rdmadev"
	"github.com/graylink/graylink/internal/unix"
)

// Node has what graylink-node is going to run with.
type Node struct {
	// ConfigFile is the configuration of the probes; empty if a coordinator assigns them.
	ConfigFile string
	// StampPort is the UDP port of the reflectors that the coordinator assigns. A configuration file has its own.
	StampPort uint16
	// Coordinators are the addresses of the coordinators, none if there is none. ServerName is the name in their
	// certificates.
	Coordinators []string
	ServerName   string
	Certificates pki.Files
	// Enrolls is set if the agent gets its certificate from the coordinator.
	Enrolls     bool
	StateFile   string
	Sysfs, Kmsg string // empty: those of the machine
	// KernelLog is set if messages of NIC drivers are read from Kmsg.
	KernelLog bool
	RDMA      bool
	// Signals are the in-band signals; nil if there are none.
	Signals *Signals
	// RDMALibrary is the error of rdma.CheckLibrary, nil if the program can use the host's library.
	RDMALibrary error
}

const (
	reachWithin = 3 * time.Second
	// refusalWithin is the time in which a server of TLS 1.3 refuses a client's certificate after the handshake.
	refusalWithin = 300 * time.Millisecond
	// lockedWanted is the memory that probes by RDMA lock for a port, octets.
	lockedWanted = 1_100_000
)

// CheckNode checks what graylink-node needs.
func CheckNode(ctx context.Context, n Node) []Result {
	needs := []need{
		{"network interfaces", "Nothing can be probed.", checkInterfaces},
		n.needOfPort(),
		{"hardware time stamps", "The kernel stamps packets: the smallest delay that one flow shows is 10 us instead of 1 us.", checkHardwareStamps},
		{"receive buffer", "Bursts of more probes than the buffer holds are lost on their way in, and such windows are marked.", checkBuffer},
		{"raw sockets", "The paths of probes by RDMA are not known, and LLDP is not heard: graylink serve finds no switches.", checkRawSockets},
		{"module memory", "Optical power and temperature of modules are not published.", checkModules},
	}
	if n.KernelLog {
		needs = append(needs, need{"kernel log", "Messages of NIC drivers are not found, unless --nic.log journal is set.", n.checkKernelLog})
	}
	if n.ConfigFile != "" {
		needs = append(needs, need{"configuration", "The agent does not start.", n.checkConfig})
	}
	if n.StateFile != "" {
		needs = append(needs, need{"state file", "After a restart the agent has no assignment until the coordinator answers, and peers do not recognise its old packets.", n.checkState})
	}
	if len(n.Coordinators) > 0 {
		needs = append(needs,
			need{"certificates", n.lossOfCertificates(), n.checkCertificates},
			need{"coordinator", "The agent probes by its last assignment, or not at all.", func() (State, string) { return n.checkCoordinators(ctx) }})
	}
	if n.Signals != nil {
		needs = append(needs, n.Signals.needs(n.ConfigFile != "")...)
	}
	if n.probesByRDMA() {
		needs = append(needs, need{"RDMA", "The back-end fabric is not probed by RDMA. --selftest rdma has more.", n.checkRDMA})
	}
	return checkAll(needs)
}

// usableInterfaces returns the interfaces that are up, other than the loopback, with an address beyond the link.
func usableInterfaces() (out []net.Interface, err error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list the interfaces: %w", err)
	}
	for _, i := range all {
		addresses, err := i.Addrs()
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 || err != nil {
			continue
		}
		if slices.ContainsFunc(addresses, func(a net.Addr) bool {
			p, err := netip.ParsePrefix(a.String())
			return err == nil && !p.Addr().IsLinkLocalUnicast()
		}) {
			out = append(out, i)
		}
	}
	return out, nil
}

func checkInterfaces() (State, string) {
	usable, err := usableInterfaces()
	switch {
	case err != nil:
		return Missing, err.Error()
	case len(usable) == 0:
		return Missing, "No interface is up and has an address"
	}
	var names []string
	for _, i := range usable {
		names = append(names, i.Name)
	}
	return OK, strings.Join(names, ", ")
}

// needOfPort returns the need of the port of the reflector.
func (n Node) needOfPort() need {
	port := n.StampPort
	if cfg, err := probe.LoadConfig(n.ConfigFile); n.ConfigFile != "" && err == nil {
		port = cfg.Stamp.Port
	}
	return need{"UDP port " + strconv.Itoa(int(port)), "The agent does not start. Ports below 1024 need CAP_NET_BIND_SERVICE.", func() (State, string) {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{Port: int(port)})
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			return Degraded, "Another program has it, which may be an agent that is running"
		case err != nil:
			return Missing, err.Error()
		}
		return OK, "It can be opened" + closing(c)
	}}
}

// closing closes what a check has opened. It returns the error as an addition to what was found.
func closing(c interface{ Close() error }) string {
	if err := c.Close(); err != nil {
		return ", but not closed: " + err.Error()
	}
	return ""
}

func checkHardwareStamps() (State, string) {
	usable, err := usableInterfaces()
	if err != nil {
		return Degraded, err.Error()
	}
	var d unix.StampDevice
	var on, possible, without []string
	for _, i := range usable {
		caps, err := d.Capabilities(i.Name)
		if err != nil || !caps.TxHardware || caps.RxFilters&(1<<unix.StampAll) == 0 {
			without = append(without, i.Name)
			continue
		}
		if rx, tx, err := d.CurrentFilter(i.Name); err == nil && tx && rx == unix.StampAll {
			on = append(on, i.Name)
			continue
		}
		possible = append(possible, i.Name)
	}
	state, found := OK, []string{}
	add := func(names []string, what string) {
		if len(names) > 0 {
			found = append(found, what+" "+strings.Join(names, ", "))
		}
	}
	add(on, "switched on at")
	if add(possible, "can be switched on at"); len(possible) > 0 && !unix.HasCapability(unix.CapNetAdmin) {
		state, found = Degraded, append(found, "which needs CAP_NET_ADMIN")
	}
	if add(without, "not supported for all packets by"); len(without) > 0 || len(usable) == 0 {
		state = Degraded
	}
	return state, strings.Join(append(found, noneIf(len(usable) == 0)...), "; ")
}

func noneIf(none bool) []string {
	if none {
		return []string{"There is no interface to ask"}
	}
	return nil
}

func checkBuffer() (State, string) {
	if unix.HasCapability(unix.CapNetAdmin) {
		return OK, "CAP_NET_ADMIN"
	}
	const name = "/proc/sys/net/core/rmem_max"
	text, err := os.ReadFile(name)
	if err != nil {
		return Degraded, err.Error()
	}
	if v, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || v < probe.ReceiveBuffer {
		return Degraded, fmt.Sprintf("net.core.rmem_max is %s; want %d, or CAP_NET_ADMIN", strings.TrimSpace(string(text)), probe.ReceiveBuffer)
	}
	return OK, "net.core.rmem_max is " + strings.TrimSpace(string(text))
}

func checkRawSockets() (State, string) {
	if err := unix.TryRawSocket(); err != nil {
		return Degraded, "want CAP_NET_RAW: " + err.Error()
	}
	return OK, "They can be opened"
}

func checkModules() (State, string) {
	if !unix.HasCapability(unix.CapNetAdmin) {
		return Degraded, "want CAP_NET_ADMIN"
	}
	return OK, "CAP_NET_ADMIN"
}

func (n Node) checkKernelLog() (State, string) {
	name := n.Kmsg
	if name == "" {
		name = "/dev/kmsg"
	}
	if err := unix.TryKernelLog(name); err != nil {
		return Degraded, "want a readable " + name + ", and CAP_SYSLOG if kernel.dmesg_restrict is 1: " + err.Error()
	}
	return OK, name + " can be read"
}

func (n Node) checkConfig() (State, string) {
	cfg, err := probe.LoadConfig(n.ConfigFile)
	if err != nil {
		return Missing, err.Error()
	}
	return OK, fmt.Sprintf("%s: node %s with %d edges", n.ConfigFile, cfg.Node, len(cfg.Edges))
}

// checkState checks the directory of the state file, and the file if it exists.
func (n Node) checkState() (State, string) {
	dir := filepath.Dir(n.StateFile)
	if err := unix.CheckWritable(dir); err != nil {
		return Degraded, "want a directory that can be written: " + err.Error()
	}
	if err := unix.CheckWritable(n.StateFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Degraded, err.Error()
	}
	return OK, dir + " can be written"
}

// lossOfCertificates returns what is lost without certificates.
func (n Node) lossOfCertificates() string {
	if n.Enrolls {
		return "The agent starts when the coordinator has signed one."
	}
	return "The agent does not start."
}

func (n Node) checkCertificates() (State, string) {
	keeper, err := pki.Open(n.Certificates, func(error) {})
	if n.Enrolls && errors.Is(err, fs.ErrNotExist) {
		return Degraded, "none yet: the agent gets its first one by a token when it starts"
	}
	if err != nil {
		return Missing, err.Error()
	}
	first := slices.MinFunc(keeper.Expiries(), func(a, b pki.Expiry) int { return a.At.Compare(b.At) })
	switch {
	case !time.Now().Before(first.At) && n.Enrolls:
		return Degraded, fmt.Sprintf("%s ended at %s: the agent needs a token for the next one", first.File, first.At.UTC().Format(time.RFC3339))
	case !time.Now().Before(first.At):
		return Missing, fmt.Sprintf("%s ended at %s", first.File, first.At.UTC().Format(time.RFC3339))
	case first.EndsSoon(time.Now()):
		return Degraded, fmt.Sprintf("%s ends at %s", first.File, first.At.UTC().Format(time.RFC3339))
	}
	return OK, fmt.Sprintf("of %s until %s", keeper.CertificateName(), first.At.UTC().Format(time.RFC3339))
}

// checkCoordinators checks each coordinator, and returns the worst state.
func (n Node) checkCoordinators(ctx context.Context) (worst State, found string) {
	var texts []string
	worst = OK
	for _, address := range n.Coordinators {
		state, text := n.checkCoordinator(ctx, address)
		texts = append(texts, text)
		if state == Missing || worst == OK {
			worst = state
		}
	}
	return worst, strings.Join(texts, "; ")
}

// checkCoordinator opens a connection as the agent would, and waits for the coordinator to refuse the certificate.
func (n Node) checkCoordinator(ctx context.Context, at string) (State, string) {
	keeper, err := pki.Open(n.Certificates, func(error) {})
	if err != nil {
		return Degraded, "There is no certificate to connect with"
	}
	name, err := client.ServerNameFor(at, n.ServerName)
	if err != nil {
		return Missing, err.Error()
	}
	network, address := "tcp", at
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
	}
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: reachWithin}, Config: keeper.ClientConfig(name)}
	ctx, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return Degraded, fmt.Sprintf("connect to %s: %v", at, err)
	}
	defer c.Close()
	if err := c.SetReadDeadline(time.Now().Add(refusalWithin)); err != nil {
		return Degraded, err.Error()
	}
	if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return Degraded, fmt.Sprintf("%s refuses the certificate: %v", at, err)
	}
	return OK, at + " accepts the certificate"
}

// probesByRDMA reports whether the flags or the configuration file have probes by RDMA.
func (n Node) probesByRDMA() bool {
	if n.RDMA || n.ConfigFile == "" {
		return n.RDMA
	}
	cfg, err := probe.LoadConfig(n.ConfigFile)
	return err == nil && slices.ContainsFunc(cfg.NICs, func(c probe.NICConfig) bool { return c.RDMA != nil })
}

// checkRDMA checks the library, the devices' nodes and the memory that can be locked. The agent does not start if it was
// built without RDMA. Everything else can be repaired while it runs.
func (n Node) checkRDMA() (State, string) {
	if errors.Is(n.RDMALibrary, rdma.ErrNotBuilt) {
		return Missing, n.RDMALibrary.Error()
	}
	if n.RDMALibrary != nil {
		return Degraded, n.RDMALibrary.Error()
	}
	root := n.Sysfs
	if root == "" {
		root = "/sys"
	}
	devices, err := filepath.Glob(filepath.Join(root, "class/infiniband/*"))
	if err != nil || len(devices) == 0 {
		return Degraded, "There is no RDMA device"
	}
	m := rdmadev.Open(n.Sysfs)
	var names []string
	for _, d := range devices {
		name := filepath.Base(d)
		node, err := m.UverbsNode(name)
		if err == nil {
			err = unix.CheckWritable(node)
		}
		if err != nil {
			return Degraded, name + ": " + err.Error()
		}
		names = append(names, name)
	}
	if limit, err := unix.LockedMemoryLimit(); err == nil && limit < lockedWanted && !unix.HasCapability(unix.CapIPCLock) {
		return Degraded, fmt.Sprintf("%d octets of memory can be locked; want %d for each port", limit, lockedWanted)
	}
	return OK, strings.Join(names, ", ")
}
