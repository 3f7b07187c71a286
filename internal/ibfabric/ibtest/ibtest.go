// Package ibtest runs an InfiniBand fabric for tests: ibsim in the place of the
// hardware, a real OpenSM, and the diagnostics of infiniband-diags on it.
//
// Everything is a child of the test's process and ends with the test, also when the
// test panics or is killed: the kernel sends the children SIGKILL when their parent
// ends. Fabrics run side by side; each has its own socket name.
//
// ibsim does not support more than ten clients at a time, time-outs (it answers a lost
// packet with an error at once), or PortExtendedSpeedsCounters.
package ibtest

import (
	"bytes"
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
	"testing"
	"time"
)

// umad2sim is Debian's path of the library that presents ibsim's socket to programs as a device.
const umad2sim = "/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so"

// patience bounds every wait; nothing takes a tenth of it on an idle machine.
const patience = 60 * time.Second

// programs lists the programs that a fabric needs, from the Debian packages opensm, ibsim-utils and
// infiniband-diags.
var programs = []string{"ibsim", "opensm", "ibtracert", "ibnetdiscover", "dump_lfts", umad2sim}

// RequireTools skips the test with -short, or if a program is missing, and gives the reason. With
// GRAYLINK_REQUIRE_ALL=1 a missing program fails the test.
func RequireTools(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("builds a fabric: left out by -short")
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err == nil {
			continue
		}
		if info, err := os.Stat(p); err == nil && !info.IsDir() {
			continue
		}
		if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
			tb.Fatalf("needs %s", p)
		}
		tb.Skipf("needs %s", p)
	}
}

// Options select what runs on a fabric.
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

// Fabric is a running ibsim.
type Fabric struct {
	tb      testing.TB
	dir     string
	socket  string
	options Options
	console *os.File
	out     output
	sm      *exec.Cmd
	smRuns  int
}

var fabrics atomic.Int64

// Start runs a fabric from a net file's text (FatTree returns such) and waits until OpenSM has brought the
// subnet up. The fabric ends with the test.
func Start(tb testing.TB, net string, o Options) *Fabric {
	tb.Helper()
	RequireTools(tb)
	if o.Engine == "" {
		o.Engine = "minhop"
	}
	if o.SMHost == "" {
		o.SMHost = "h0"
	}
	f := &Fabric{tb: tb, dir: tb.TempDir(), options: o, socket: fmt.Sprintf("graylink-%d-%d", os.Getpid(), fabrics.Add(1))}
	f.out.changed = make(chan struct{}, 1)
	file := filepath.Join(f.dir, "net")
	if err := os.WriteFile(file, []byte(net), 0o600); err != nil {
		tb.Fatal(err)
	}
	nodes := strings.Count(net, "\nHca") + strings.Count(net, "\nSwitch") + 16
	cmd := exec.Command("ibsim", "-s", "-N", fmt.Sprint(nodes), "-S", fmt.Sprint(nodes), "-P", fmt.Sprint(64*nodes), file)
	cmd.Env = append(os.Environ(), "IBSIM_SOCKNAME="+f.socket)
	cmd.Stdout = &f.out
	cmd.Stderr = &f.out
	r, w, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	cmd.Stdin, f.console = r, w
	f.startChild(cmd)
	r.Close()
	if !f.out.waitPrompts(1) {
		tb.Fatalf("ibsim does not print a prompt: %s", f.out.bufferedText())
	}
	// The first prompt is written before the sockets exist.
	f.RunConsole("Attached")
	if !o.NoSM {
		f.StartSM()
	}
	return f
}

// AttachSocket returns a Fabric for programs on a fabric that the test itself runs, under ibsim's protocol.
// Only Run and RunInput work on it.
func AttachSocket(tb testing.TB, socket string) *Fabric {
	tb.Helper()
	return &Fabric{tb: tb, dir: tb.TempDir(), socket: socket}
}

// startChild runs a child until the end of the test.
func (f *Fabric) startChild(cmd *exec.Cmd) {
	f.tb.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// The kernel's signal is for the death of the thread that forked. The thread of a goroutine that is not
	// locked lives as long as the process.
	if err := cmd.Start(); err != nil {
		f.tb.Fatal(err)
	}
	f.tb.Cleanup(func() { stopChild(cmd) })
}

func stopChild(cmd *exec.Cmd) {
	if cmd.ProcessState == nil {
		_ = cmd.Process.Kill() // it may have ended by itself
		_ = cmd.Wait()         // the expected error is "killed"
	}
}

// SocketName returns the value of IBSIM_SOCKNAME by which clients find the fabric.
func (f *Fabric) SocketName() string { return f.socket }

// RunConsole enters one command in ibsim's console and returns what it printed. Examples are Unlink
// "leaf0"[19], ReLink "leaf0"[19], Error "leaf1"[0] 30 29, and PerformanceSet "leaf0"[9]
// PortCounters.SymbolErrorCounter=123.
func (f *Fabric) RunConsole(command string) string {
	f.tb.Helper()
	n, from := f.out.countPrompts()
	if _, err := fmt.Fprintln(f.console, command); err != nil {
		f.tb.Fatalf("ibsim's console: %v", err)
	}
	if !f.out.waitPrompts(n + 1) {
		f.tb.Fatalf("ibsim does not answer %q: %s", command, f.out.bufferedText()[from:])
	}
	return f.out.bufferedText()[from:]
}

// StartSM runs OpenSM, which must not run, and waits until the subnet is up.
func (f *Fabric) StartSM() {
	f.tb.Helper()
	f.smRuns++
	conf := filepath.Join(f.dir, "opensm.conf")
	if err := os.WriteFile(conf, []byte("force_log_flush TRUE\n"+f.options.Config+"\n"), 0o600); err != nil {
		f.tb.Fatal(err)
	}
	f.sm = f.clientCommand(context.Background(), f.options.SMHost, "opensm", "-F", conf, "-R", f.options.Engine, "-l", fmt.Sprint(f.options.LMC), "-f", f.LogPath(), "-D", "0x3")
	f.startChild(f.sm)
	f.WaitUp(1)
}

// StopSM ends OpenSM; the tables remain as they are.
func (f *Fabric) StopSM() {
	f.tb.Helper()
	if err := f.sm.Process.Signal(syscall.SIGTERM); err != nil {
		f.tb.Fatal(err)
	}
	if err := f.sm.Wait(); err != nil {
		f.tb.Fatalf("OpenSM: %v", err)
	}
}

// LogPath returns the path of the running OpenSM's log, which is written without delay.
func (f *Fabric) LogPath() string {
	return filepath.Join(f.dir, fmt.Sprintf("osm%d.log", f.smRuns))
}

// CountSubnetUp returns how often the running OpenSM has logged SUBNET UP.
func (f *Fabric) CountSubnetUp() int {
	text, err := os.ReadFile(f.LogPath())
	if err != nil {
		return 0
	}
	return bytes.Count(text, []byte("SUBNET UP"))
}

// WaitUp waits until the running OpenSM has logged SUBNET UP n times. It logs that after a sweep that finds a
// change, but not after every sweep that changes a table.
func (f *Fabric) WaitUp(n int) {
	f.tb.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for f.CountSubnetUp() < n {
		select {
		case <-tick.C:
		case <-late:
			text, _ := os.ReadFile(f.LogPath())
			f.tb.Fatalf("the subnet was up %d times, not %d: %s", f.CountSubnetUp(), n, text)
		}
	}
}

// ChangeAndWait runs a console command that sends OpenSM a trap, and waits until it has swept the fabric again.
func (f *Fabric) ChangeAndWait(command string) {
	f.tb.Helper()
	n := f.CountSubnetUp()
	f.RunConsole(command)
	f.WaitUp(n + 1)
}

// clientCommand returns a command for a program that finds a device on an HCA of the fabric.
func (f *Fabric) clientCommand(ctx context.Context, host, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = f.dir
	cmd.Env = append(os.Environ(), "IBSIM_SOCKNAME="+f.socket, "SIM_HOST="+host, "OSM_TMP_DIR="+f.dir, "OSM_CACHE_DIR="+f.dir, "LD_PRELOAD="+umad2sim)
	return cmd
}

// Run runs a diagnostic on an HCA and returns what it wrote to standard output. It
// may be called by several goroutines; ibsim has room for ten clients in all.
func (f *Fabric) Run(host, name string, args ...string) (string, error) {
	return f.RunInput(host, "", name, args...)
}

// RunInput does the same with a text for standard input.
func (f *Fabric) RunInput(host, input, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := f.clientCommand(ctx, host, name, args...)
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
func (f *Fabric) TraceRoute(host string, src, dst uint16) ([]Link, error) {
	out, err := f.Run(host, "ibtracert", "-n", fmt.Sprint(src), fmt.Sprint(dst))
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
