// Package iblab runs an InfiniBand subnet on this machine: ibsim in the place of the
// hardware, a real OpenSM, and the diagnostics of infiniband-diags on it. It needs no
// privileges.
//
// Rules:
//
//  1. Everything is a child of this process. The kernel sends the children SIGKILL when
//     their parent ends, also when it panics or is killed.
//  2. Subnets run side by side; each has its own socket name.
//  3. Every wait is bounded.
//
// ibsim does not support more than ten clients at a time, time-outs (it answers a lost
// packet with an error at once), or PortExtendedSpeedsCounters. A query that it does not
// know, to the HCA that OpenSM runs on, it hands to OpenSM, which ends: samplers beside an
// OpenSM may read PortCounters and PortCountersExtended alone.
package iblab

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// umad2sim is Debian's path of the library that presents ibsim's socket to programs as a device.
const umad2sim = "/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so"

// patience bounds every wait; nothing takes a tenth of it on an idle machine.
const patience = 60 * time.Second

// Programs that a subnet needs, from the Debian packages opensm and ibsim-utils, and those of its diagnostics, from
// infiniband-diags.
var (
	Programs    = []string{"ibsim", "opensm", umad2sim}
	Diagnostics = []string{"ibtracert", "ibnetdiscover", "dump_lfts"}
)

// MissingPrograms returns those programs that this machine lacks.
func MissingPrograms(programs ...string) (missing []string) {
	for _, p := range programs {
		if _, err := exec.LookPath(p); err == nil {
			continue
		}
		if info, err := os.Stat(p); err != nil || info.IsDir() {
			missing = append(missing, p)
		}
	}
	return missing
}

// Options select what runs on a subnet.
type Options struct {
	// Engine is OpenSM's routing engine; minhop if empty.
	Engine string
	LMC    int
	// SMHost is the HCA that OpenSM runs on; h0 if empty.
	SMHost string
	// NoSM starts no OpenSM: ports have no LIDs, and answer directed routes only.
	NoSM bool
	// Config are lines of OpenSM's configuration file, such as "m_key 0x1234".
	Config string
}

// Subnet is a running ibsim with its OpenSM.
type Subnet struct {
	dir     string
	socket  string
	options Options
	console *os.File
	out     output
	sim     *child
	sm      *child // nil while OpenSM is stopped
	smRuns  int
}

var subnets atomic.Int64

// Start runs a subnet from a net file's text (FatTree returns such) and waits until OpenSM has brought it up. Its files
// are in dir. Close must be called also after an error, if a Subnet is returned.
func Start(ctx context.Context, dir, net string, o Options) (*Subnet, error) {
	if o.Engine == "" {
		o.Engine = "minhop"
	}
	if o.SMHost == "" {
		o.SMHost = "h0"
	}
	s := &Subnet{dir: dir, options: o, socket: fmt.Sprintf("graylink-%d-%d", os.Getpid(), subnets.Add(1))}
	s.out.changed = make(chan struct{}, 1)
	if err := s.startSimulator(net); err != nil {
		return s, err
	}
	if o.NoSM {
		return s, nil
	}
	return s, s.StartSM(ctx)
}

// Attach returns a Subnet for programs on a fabric that somebody else runs, under ibsim's protocol. Only Run works on it.
func Attach(dir, socket string) *Subnet { return &Subnet{dir: dir, socket: socket} }

// startSimulator starts ibsim, and waits until it takes clients.
func (s *Subnet) startSimulator(net string) error {
	file := filepath.Join(s.dir, "net")
	if err := os.WriteFile(file, []byte(net), 0o600); err != nil {
		return err
	}
	nodes := strings.Count(net, "\nHca") + strings.Count(net, "\nSwitch") + 16
	cmd := exec.Command("ibsim", "-s", "-N", fmt.Sprint(nodes), "-S", fmt.Sprint(nodes), "-P", fmt.Sprint(64*nodes), file)
	cmd.Env = append(os.Environ(), "IBSIM_SOCKNAME="+s.socket)
	cmd.Stdout = &s.out
	cmd.Stderr = &s.out
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd.Stdin, s.console = r, w
	if s.sim, err = startChild(cmd); err != nil {
		return err
	}
	if !s.out.waitPrompts(1) {
		return fmt.Errorf("ibsim does not print a prompt: %s", s.out.bufferedText())
	}
	// The first prompt is written before the sockets exist.
	_, err = s.RunConsole("Attached")
	return err
}

// child is a running program.
type child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // of its end
}

// startChild starts a program that ends with this process.
func startChild(cmd *exec.Cmd) (*child, error) {
	// The kernel's signal is for the death of the thread that forked. The thread of a goroutine that is not
	// locked lives as long as the process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, done: make(chan struct{})}
	go func() {
		c.err = cmd.Wait()
		close(c.done)
	}()
	return c, nil
}

// kill ends the program.
func (c *child) kill() {
	if c != nil {
		_ = c.cmd.Process.Kill() // it may have ended by itself
		<-c.done
	}
}

var errExited = errors.New("exit status 0")

// CheckRunning returns an error if OpenSM or ibsim has ended.
func (s *Subnet) CheckRunning() error {
	for name, c := range map[string]*child{"ibsim": s.sim, "OpenSM": s.sm} {
		if c == nil {
			continue
		}
		select {
		case <-c.done:
			return fmt.Errorf("%s has ended: %w", name, cmp.Or(c.err, errExited))
		default:
		}
	}
	return nil
}

// Close ends OpenSM and ibsim.
func (s *Subnet) Close() error {
	s.sm.kill()
	s.sim.kill()
	if s.console == nil {
		return nil
	}
	return s.console.Close()
}

// SocketName returns the value of IBSIM_SOCKNAME by which clients find the subnet.
func (s *Subnet) SocketName() string { return s.socket }

// RunConsole enters one command in ibsim's console and returns what it printed. Examples are Unlink
// "leaf0"[19], ReLink "leaf0"[19], Error "leaf1"[0] 30 29, and PerformanceSet "leaf0"[9]
// PortCounters.SymbolErrorCounter=123. It is not safe for concurrent use.
func (s *Subnet) RunConsole(command string) (string, error) {
	n, from := s.out.countPrompts()
	if _, err := fmt.Fprintln(s.console, command); err != nil {
		return "", fmt.Errorf("ibsim's console: %w", err)
	}
	if !s.out.waitPrompts(n + 1) {
		return "", fmt.Errorf("ibsim does not answer %q: %s", command, s.out.bufferedText()[from:])
	}
	return s.out.bufferedText()[from:], nil
}

// StartSM runs OpenSM, which must not run, and waits until the subnet is up.
func (s *Subnet) StartSM(ctx context.Context) error {
	s.smRuns++
	conf := filepath.Join(s.dir, "opensm.conf")
	if err := os.WriteFile(conf, []byte("force_log_flush TRUE\n"+s.options.Config+"\n"), 0o600); err != nil {
		return err
	}
	cmd := s.command(context.Background(), s.options.SMHost, "opensm", "-F", conf, "-R", s.options.Engine, "-l", fmt.Sprint(s.options.LMC), "-f", s.LogPath(), "-D", "0x3")
	sm, err := startChild(cmd)
	if err != nil {
		return err
	}
	s.sm = sm
	return s.WaitUp(ctx, 1)
}

// StopSM ends OpenSM; the tables remain as they are.
func (s *Subnet) StopSM() error {
	sm := s.sm
	s.sm = nil
	if err := sm.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	<-sm.done
	if sm.err != nil {
		return fmt.Errorf("OpenSM: %w", sm.err)
	}
	return nil
}

// LogPath returns the path of the running OpenSM's log, which is written without delay.
func (s *Subnet) LogPath() string { return filepath.Join(s.dir, fmt.Sprintf("osm%d.log", s.smRuns)) }

// CountSubnetUp returns how often the running OpenSM has logged SUBNET UP.
func (s *Subnet) CountSubnetUp() int {
	text, err := os.ReadFile(s.LogPath())
	if err != nil {
		return 0
	}
	return bytes.Count(text, []byte("SUBNET UP"))
}

// WaitUp waits until the running OpenSM has logged SUBNET UP n times. It logs that after a sweep that finds a
// change, but not after every sweep that changes a table.
func (s *Subnet) WaitUp(ctx context.Context, n int) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for s.CountSubnetUp() < n {
		if err := s.CheckRunning(); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			text, _ := os.ReadFile(s.LogPath())
			return fmt.Errorf("the subnet was up %d times, not %d: %s", s.CountSubnetUp(), n, text)
		}
	}
	return nil
}

// command returns a command for a program that finds a device on an HCA of the subnet.
func (s *Subnet) command(ctx context.Context, host, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "IBSIM_SOCKNAME="+s.socket, "SIM_HOST="+host, "OSM_TMP_DIR="+s.dir, "OSM_CACHE_DIR="+s.dir, "LD_PRELOAD="+umad2sim)
	return cmd
}

// Run runs a diagnostic on an HCA with a text for its standard input, and returns what it wrote to standard output. It
// may be called by several goroutines; ibsim has room for ten clients in all.
func (s *Subnet) Run(host, input, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := s.command(ctx, host, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var out, bad bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &bad
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s on %s: %w: %s", name, strings.Join(args, " "), host, err, bad.String())
	}
	return out.String(), nil
}

// Link represents one link of a route: the port that packets leave by, and the port and the GUID of the node
// that they arrive at (for a CA, of its port).
type Link struct {
	Out, In uint8
	GUID    uint64
}

var tracedLink = regexp.MustCompile(`(?m)^\[(\d+)\] -> .*?\{0x([0-9a-f]+)\}\[(\d+)\]`)

// ErrLost means that ibtracert's own queries were not answered, so that it does not know the route.
var ErrLost = errors.New("ibtracert got no answer")

// TraceRoute returns the route from a LID to a LID by ibtracert on an HCA. errors.Is finds ErrLost.
func (s *Subnet) TraceRoute(host string, src, dst uint16) ([]Link, error) {
	out, err := s.Run(host, "", "ibtracert", "-n", fmt.Sprint(src), fmt.Sprint(dst))
	if err != nil && strings.Contains(err.Error(), "_do_madrpc") {
		err = fmt.Errorf("%w: %w", ErrLost, err)
	}
	if err != nil {
		return nil, err
	}
	var all []Link
	for _, m := range tracedLink.FindAllStringSubmatch(out, -1) {
		port, err1 := strconv.ParseUint(m[1], 10, 8)
		guid, err2 := strconv.ParseUint(m[2], 16, 64)
		in, err3 := strconv.ParseUint(m[3], 10, 8)
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, fmt.Errorf("ibtracert: %w", err)
		}
		all = append(all, Link{Out: uint8(port), In: uint8(in), GUID: guid})
	}
	return all, nil
}

// output collects what ibsim printed.
type output struct {
	mu      sync.Mutex
	buf     []byte
	changed chan struct{}
}

const prompt = "sim> "

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	o.buf = append(o.buf, p...)
	o.mu.Unlock()
	select {
	case o.changed <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (o *output) bufferedText() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.buf)
}

func (o *output) countPrompts() (n, length int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Count(o.buf, []byte(prompt)), len(o.buf)
}

func (o *output) waitPrompts(n int) bool {
	late := time.After(patience)
	for {
		if have, _ := o.countPrompts(); have >= n {
			return true
		}
		select {
		case <-o.changed:
		case <-late:
			return false
		}
	}
}
