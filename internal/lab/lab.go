// Package lab builds a real fabric out of network namespaces, one per switch
// and node, from any topology file, and breaks it on request.
//
// A lab lives in the kernel and in a directory (DefaultStateDir), so that
// another process can find it, change it and take it down. The rules:
//
//  1. The state is written before the first namespace is made; whatever dies
//     half-way can be taken down from it.
//  2. Every change happens under the lab's lock, which the kernel releases
//     when its holder dies.
//  3. A lab with an owner ends with it: a lab whose owner is dead is taken down without
//     confirmation.
//  4. A fault is recorded before it is applied and forgotten after it is undone.
//  5. Nothing of a lab is ever in the root namespace.
package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/unix"
)

// DefaultName is the lab's name when none is given.
const DefaultName = "lab"

// Options configure how Up builds a lab.
type Options struct {
	// Name distinguishes the labs of one machine. "" means DefaultName.
	Name string
	// Owner binds the lab to this process: once it is gone, also by SIGKILL,
	// the lab is debris that the next Up or Down of the name removes, and
	// processes started through Command end with it.
	Owner bool
	// Log receives progress. Nil means no log.
	Log *slog.Logger
	// Routing is one of RoutingKinds. "" means RoutingStatic.
	Routing string
	// Family is one of Families, of the addresses that the topology lacks. "" means that of those which it has, and
	// FamilyIPv4 if it has none.
	Family string
	// Forwarding is one of fabric.ForwardingKinds: how the path of a packet is chosen. "" means that of the topology. Switches
	// get locators for fabric.SRv6 where the topology has none.
	Forwarding string
	// Spray is one of SprayKinds, for a lab that sprays. "" means SprayRandom.
	Spray string
	// Executable is the graylink binary that helpers of faults are started
	// from; the running program when empty.
	Executable string
}

// Lab is a fabric that is up.
type Lab struct {
	root  string
	name  string
	owner bool
	log   *slog.Logger
	x     *index

	helpers sync.WaitGroup // waits of this process for helpers it started
	netem   func() bool

	// cached is the fabric as the state of a moment has it.
	cached struct {
		sync.Mutex
		at time.Time
		x  *index
	}
}

// ErrNotExist marks errors about a lab that does not exist: errors.Is holds for it.
var ErrNotExist = fs.ErrNotExist

func needRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("the lab needs root: it makes network namespaces (CAP_SYS_ADMIN, CAP_NET_ADMIN)")
	}
	return nil
}

// needTool finds a program or names the Debian package that has it.
func needTool(program, pkg string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", fmt.Errorf("the lab needs the program %q, which is not in PATH: apt install %s", program, pkg)
	}
	return path, nil
}

// Up builds the lab. When ctx ends or anything fails before it is complete,
// what was built is removed again. topo must have passed fabric's check; it is
// not changed.
func Up(ctx context.Context, topo *fabric.Topology, o Options) (*Lab, error) {
	if o.Name == "" {
		o.Name = DefaultName
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := needRoot(); err != nil {
		return nil, err
	}
	if _, err := needTool("ip", "iproute2"); err != nil {
		return nil, err
	}
	x, err := planLab(topo, o)
	if err != nil {
		return nil, err
	}
	if x.Topology.IsSourceRouted() {
		if err := checkSegments(); err != nil {
			return nil, err
		}
	}
	if o.Executable == "" {
		if o.Executable, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("finding the running program: %w", err)
		}
	}
	root := stateDir()
	unlock, err := lockLab(ctx, root, o.Name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := removeDeadLab(root, o.Name, o.Log); err != nil {
		return nil, err
	}

	if x.Routing == RoutingFRR {
		if err := x.checkDaemonDirs(root, o.Name); err != nil {
			return nil, errors.Join(err, forgetLab(root, o.Name))
		}
	}
	if err := checkFree(x); err != nil {
		return nil, errors.Join(err, forgetLab(root, o.Name))
	}
	me, err := currentProcess()
	if err != nil {
		return nil, fmt.Errorf("identifying the own process: %w", err)
	}
	st := &state{Version: stateVersion, Name: o.Name, Phase: phaseBuilding, Builder: me, Created: time.Now().UTC(),
		Executable: o.Executable, NetnsIDs: map[string]unix.NetnsID{}, Layout: x.Layout, Faults: []ActiveFault{}}
	if o.Owner {
		st.Owner = &me
	}
	if err := st.saveState(root); err != nil {
		return nil, err
	}
	if err := buildLab(ctx, root, st, x); err != nil {
		err = fmt.Errorf("building lab %q: %w", o.Name, err)
		return nil, errors.Join(err, removeLab(root, st))
	}
	st.Phase = phaseUp
	if err := st.saveState(root); err != nil {
		return nil, errors.Join(err, removeLab(root, st))
	}
	o.Log.Info("lab is up", "lab", o.Name, "namespaces", len(x.Namespaces), "links", len(x.Topology.Links), "took", time.Since(st.Created).Round(time.Millisecond))
	return newLab(root, st, x, o.Owner, o.Log), nil
}

// planLab lays the topology out as the options want.
func planLab(topo *fabric.Topology, o Options) (*index, error) {
	topo, err := WithForwarding(topo, o.Forwarding)
	if err == nil {
		topo, _, err = completeAddresses(topo, o.Family)
	}
	if err != nil {
		return nil, fmt.Errorf("planning lab %q: %w", o.Name, err)
	}
	x, err := planLayout(o.Name, topo)
	if err != nil {
		return nil, fmt.Errorf("planning lab %q: %w", o.Name, err)
	}
	if err := CheckRouting(o.Routing); err != nil {
		return nil, err
	}
	if x.setRouting(o.Routing); x.Routing == RoutingFRR && topo.IsSourceRouted() {
		return nil, fmt.Errorf("forwarding %s goes with routing %s: the lab installs the routes of carriers", fabric.SRv6, RoutingStatic)
	}
	return x, x.setSpray(o.Spray)
}

func newLab(root string, st *state, x *index, owner bool, log *slog.Logger) *Lab {
	return &Lab{root: root, name: st.Name, owner: owner, log: log, x: x, netem: sync.OnceValue(haveNetem)}
}

// removeDeadLab removes a dead predecessor, or returns an error if the name is in use.
func removeDeadLab(root, name string, log *slog.Logger) error {
	st, err := loadState(root, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case st.Owner != nil && !st.Owner.isAlive() || st.Phase != phaseUp && !st.Builder.isAlive():
		log.Info("removing the lab of a dead process", "lab", name, "pid", st.Builder.PID)
		return removeLab(root, st)
	case st.Owner != nil:
		return fmt.Errorf("lab %q exists and belongs to process %d, which runs; end that, or choose another --name", name, st.Owner.PID)
	}
	return fmt.Errorf("lab %q exists already; take it down with: graylink lab down --name %s", name, name)
}

// Open finds a lab that is up. errors.Is ErrNotExist holds when there is none.
func Open(name string) (*Lab, error) {
	if name == "" {
		name = DefaultName
	}
	root := stateDir()
	st, err := loadState(root, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNoLab(name)
	}
	if err != nil {
		return nil, err
	}
	if st.Phase != phaseUp {
		return nil, fmt.Errorf("lab %q is %s; if it is not in use, remove it with: graylink lab down --name %s", name, st.Phase, name)
	}
	return newLab(root, st, st.Layout.buildIndex(), false, slog.New(slog.DiscardHandler)), nil
}

func errNoLab(name string) error {
	return fmt.Errorf("lab %q: %w; build it with: graylink lab up --topology FILE --name %s", name, ErrNotExist, name)
}

// Down ends every process in the lab and removes the lab, also one that is
// half-built or half-removed. A lab that is not there is no error.
func Down(ctx context.Context, name string) error {
	if name == "" {
		name = DefaultName
	}
	root := stateDir()
	if err := checkLabName(name); err != nil {
		return err
	}
	if _, err := os.Stat(labDir(root, name)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := needRoot(); err != nil {
		return err
	}
	unlock, err := lockLab(ctx, root, name)
	if err != nil {
		return err
	}
	defer unlock()
	st, err := loadState(root, name)
	if errors.Is(err, fs.ErrNotExist) {
		// Its builder died before the first byte of state: nothing was made.
		return forgetLab(root, name)
	}
	if err != nil {
		return err
	}
	return removeLab(root, st)
}

// Close takes the lab down and waits for the helpers this process started.
func (l *Lab) Close() error {
	err := Down(context.Background(), l.name)
	l.helpers.Wait()
	return err
}

// Name returns the lab's name.
func (l *Lab) Name() string { return l.name }

// Topology returns the topology completed with the addresses the lab uses.
// It is shared: callers do not change it.
func (l *Lab) Topology() *fabric.Topology { return l.x.Topology }

// OwnDirectory makes a directory that is elsewhere a part of the lab: it is removed when the lab is taken down, also after its owner was
// killed.
func (l *Lab) OwnDirectory(ctx context.Context, dir string) error {
	st, unlock, err := l.lockState(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("directory %q of lab %q: an absolute path is expected", dir, l.name)
	}
	st.Directories = append(st.Directories, dir)
	return st.saveState(l.root)
}

// NetnsOf returns the name of the namespace of a switch or node, as "ip netns"
// knows it.
func (l *Lab) NetnsOf(element string) (string, error) {
	ns := l.x.byElement[element]
	if ns == nil {
		return "", fmt.Errorf("lab %q has no switch or node %q", l.name, element)
	}
	return ns.Netns, nil
}

// Command prepares a program to run in the namespace of a node or switch. In
// an owned lab it dies with this process.
func (l *Lab) Command(ctx context.Context, node string, argv ...string) *exec.Cmd {
	netns, err := l.NetnsOf(node)
	cmd := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", netns}, argv...)...)
	if err == nil && len(argv) == 0 {
		err = errors.New("a command to run is expected")
	}
	if err != nil {
		cmd.Err = err
	}
	if l.owner {
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	}
	return cmd
}

// DialContext connects from inside a node's namespace. addr is numeric.
func (l *Lab) DialContext(ctx context.Context, node, network, addr string) (net.Conn, error) {
	// A second attempt in parallel would run on a thread outside the namespace.
	d := net.Dialer{FallbackDelay: -1}
	var c net.Conn
	err := l.runInNetns(node, func() (err error) {
		c, err = d.DialContext(ctx, network, addr)
		return err
	})
	return c, err
}

// Listen opens a listener inside a node's namespace. addr is numeric.
func (l *Lab) Listen(ctx context.Context, node, network, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	var ln net.Listener
	err := l.runInNetns(node, func() (err error) {
		ln, err = lc.Listen(ctx, network, addr)
		return err
	})
	return ln, err
}

// ListenPacket opens an unconnected datagram socket inside a node's namespace.
func (l *Lab) ListenPacket(ctx context.Context, node, network, addr string) (net.PacketConn, error) {
	var lc net.ListenConfig
	var pc net.PacketConn
	err := l.runInNetns(node, func() (err error) {
		pc, err = lc.ListenPacket(ctx, network, addr)
		return err
	})
	return pc, err
}

func (l *Lab) runInNetns(element string, fn func() error) error {
	netns, err := l.NetnsOf(element)
	if err != nil {
		return err
	}
	return unix.InNetns(netns, fn)
}
