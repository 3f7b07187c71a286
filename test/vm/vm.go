// Package vm starts virtual machines that have RDMA: a Debian kernel in QEMU, without KVM,
// with soft-RoCE (rdma_rxe) over the network that joins them. Tests run the real programs in
// them, as on a host. Rules:
//
//  1. Nothing is installed: the kernel and the tools are unpacked from Debian's packages into
//     a cache, by version.
//  2. Nothing leaves this machine: the machines' networks are switches in this process, and
//     the host speaks to them by virtio-serial over a unix socket. There is no other network.
//  3. A machine is up when it answers, and not after a time.
//  4. A machine ends with Close, with its context, or with the process that started it.
//
// There is no GPU in it, and no NIC of any vendor; the code is translated, so that nothing
// measured in it is a performance. docs/testbed.md says more.
package vm

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/graylink/graylink/test/vm/guest"
)

// Modules that each machine loads: its own devices, and soft-RoCE. rdma_rxe asks for the
// checksum by name, so that it is not among the dependencies that it states.
var (
	baseModules = []string{"virtio_pci", "virtio_console", "virtio_net"}
	// SoftRoCE are the modules of rxe, for Options.Modules.
	SoftRoCE = []string{"crc32_generic", "ib_uverbs", "rdma_ucm", "rdma_rxe"}
)

// Options are what a machine has.
type Options struct {
	// Name is its host name: letters, digits and hyphens.
	Name string
	// CPUs is how many it has; 0: one. Memory is in MiB; 0: 512.
	CPUs, Memory int
	// Networks are those of eth0, eth1 and so on.
	Networks []*Network
	// Modules are loaded at the start, each after those that it needs; a line may have
	// parameters: "dummy numdummies=0". Usually SoftRoCE, and what else a test wants.
	Modules []string
	// Programs are files of the host, with their libraries, by where the machine has them:
	// "/usr/local/bin/graylink-node". busybox, ip, rdma and the tools of ibverbs are there.
	Programs map[string]string
	// Files are what else the machine has.
	Files map[string][]byte
	// Root is a file, a cpio archive (newc) of a whole system with systemd, which runs in place of busybox and of the tools
	// above; Programs have to find their libraries in it. The machine's service is a unit of it (guestUnit).
	Root string
	// Parts are what it is made of; nil means FindParts.
	Parts *Parts
}

// Validate names the field that is wrong.
func (o *Options) Validate() error {
	isName := func(r rune) bool {
		return r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	}
	switch {
	case o.Name == "" || len(o.Name) > 63 || strings.ContainsFunc(o.Name, func(r rune) bool { return !isName(r) }):
		return fmt.Errorf("name: 1 to 63 letters, digits and hyphens are expected, not %q", o.Name)
	case o.CPUs < 0 || o.CPUs > 64:
		return fmt.Errorf("cpus: 0 to 64 are expected, not %d", o.CPUs)
	case o.Memory < 0 || o.Memory > 0 && o.Memory < 256:
		return fmt.Errorf("memory: 0, or 256 MiB and more are expected, not %d", o.Memory)
	case slices.Contains(o.Networks, nil):
		return errors.New("networks: one of them is nil")
	}
	for _, m := range o.Modules {
		if strings.TrimSpace(m) != m || m == "" || strings.ContainsAny(m, "\n/") {
			return fmt.Errorf("modules: a name and parameters are expected, not %q", m)
		}
	}
	return nil
}

// Machine is one that runs. Its methods may be called by several goroutines.
type Machine struct {
	// Name is its host name, Kernel its release. Booted is how long it took to answer.
	Name, Kernel string
	Booted       time.Duration

	dir     string
	client  *rpc.Client // nil until QEMU has connected
	stop    context.CancelFunc
	running bool          // QEMU was started
	pid     int           // of QEMU, once it was started
	ended   chan struct{} // closed when QEMU has
	why     error         // how it ended; after ended
}

// bootPatience is how long a machine may take to answer. It takes 10 s where two cores are free, and 8 s of CPU.
const bootPatience = 10 * time.Minute

// Start starts a machine and waits until it answers. It ends with ctx. Errors of what is not
// to be had here are ErrMissing; a machine that does not start is reported with its console.
func Start(ctx context.Context, o Options) (m *Machine, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Parts == nil {
		if o.Parts, err = FindParts(ctx, ""); err != nil {
			return nil, err
		}
	}
	dir, err := os.MkdirTemp("", "graylink-vm")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	m = &Machine{Name: o.Name, dir: dir, stop: cancel, ended: make(chan struct{})}
	defer func() {
		if err == nil {
			return
		}
		err = fmt.Errorf("machine %s: %w", o.Name, err)
		if m.running {
			err = fmt.Errorf("%w\n%s", err, m.ConsoleOutput())
		}
		err = errors.Join(err, m.Close())
		m = nil
	}()
	initramfs := filepath.Join(dir, "initramfs")
	if err := o.writeInitramfs(ctx, initramfs); err != nil {
		return m, err
	}
	control, err := net.Listen("unix", filepath.Join(dir, "control"))
	if err != nil {
		return m, err
	}
	defer control.Close()
	began := time.Now()
	if err := m.launchQEMU(ctx, o.qemuArgs(initramfs, filepath.Join(dir, "console"), control.Addr().String())); err != nil {
		return m, err
	}
	// QEMU connects when it starts; where it ends before, nothing will.
	accepted := make(chan struct{})
	defer close(accepted)
	go func() {
		select {
		case <-m.ended:
			control.Close()
		case <-accepted:
		}
	}()
	conn, err := control.Accept()
	if err != nil {
		<-m.ended
		return m, fmt.Errorf("QEMU ended: %w", m.why)
	}
	m.client = rpc.NewClient(conn)
	boot, cancelBoot := context.WithTimeout(ctx, bootPatience)
	defer cancelBoot()
	var hello guest.Hello
	if err := m.callGuest(boot, "Hello", struct{}{}, &hello); err != nil {
		return m, err
	}
	m.Kernel, m.Booted = hello.Kernel, time.Since(began)
	if len(hello.Problems) > 0 {
		return m, fmt.Errorf("at the start: %s", strings.Join(hello.Problems, "; "))
	}
	return m, nil
}

// qemuArgs returns QEMU's.
func (o *Options) qemuArgs(initramfs, console, control string) []string {
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "pc", "-accel", "tcg,thread=multi", "-cpu", "max",
		"-smp", strconv.Itoa(cmp.Or(o.CPUs, 1)), "-m", strconv.Itoa(cmp.Or(o.Memory, 512)) + "M", "-name", o.Name,
		"-kernel", o.Parts.kernel.image, "-initrd", initramfs,
		// The kernel looks whether its timer works by waiting for four of its interrupts, and panics where they are late: those of
		// a machine that waits for a processor are.
		"-append", "console=ttyS0 loglevel=5 panic=-1 rdinit=/init tsc=reliable no_timer_check",
		"-chardev", "file,id=console,path=" + escapeOption(console), "-serial", "chardev:console",
		"-device", "virtio-serial-pci", "-chardev", "socket,id=control,path=" + escapeOption(control), "-device", "virtserialport,chardev=control,name=" + guest.Port,
	}
	for i, n := range o.Networks {
		id := "net" + strconv.Itoa(i)
		// Soft-RoCE says at every look that it does not know the speed of an interface that has none.
		args = append(args, "-netdev", "stream,id="+id+",server=off,addr.type=unix,addr.path="+escapeOption(n.socketPath()), "-device", "virtio-net-pci,netdev="+id+",mac="+macAddress(o.Name, i)+",romfile=,speed=10000,duplex=full")
	}
	return args
}

// escapeOption escapes a value of QEMU's lists of options.
func escapeOption(s string) string { return strings.ReplaceAll(s, ",", ",,") }

// macAddress returns a locally administered one of an interface: of QEMU's prefix, and the same for
// the same name.
func macAddress(name string, i int) string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s/%d", name, i)
	s := h.Sum32()
	return fmt.Sprintf("52:54:00:%02x:%02x:%02x", byte(s>>16), byte(s>>8), byte(s))
}

// launchQEMU starts QEMU on a thread of its own: QEMU is made to die with the thread that started
// it, so that it never outlives this process.
func (m *Machine) launchQEMU(ctx context.Context, args []string) error {
	cmd := exec.CommandContext(ctx, qemu, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := os.Create(filepath.Join(m.dir, "qemu"))
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = log, log
	started := make(chan error)
	go func() { // ends with QEMU, which Close waits for
		defer log.Close()
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			m.pid = cmd.Process.Pid
		}
		started <- err
		if err != nil {
			return
		}
		m.why = cmd.Wait()
		if m.why == nil {
			m.why = errors.New("the machine was switched off")
		}
		close(m.ended)
	}()
	err = <-started
	m.running = err == nil
	return err
}

// writeInitramfs writes what the machine's root holds.
func (o *Options) writeInitramfs(ctx context.Context, file string) error {
	p := o.Parts
	modules, err := p.kernel.loadOrder(append(slices.Clone(baseModules), o.Modules...))
	if err != nil {
		return err
	}
	first, err := p.first(ctx)
	if err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	if o.Root == "" {
		err = o.fillArchive(newArchive(w), first, modules)
	} else {
		err = o.fillSystem(w, first, modules)
	}
	if err == nil {
		err = w.Flush()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("initramfs: %w", err)
	}
	return nil
}

func (o *Options) fillArchive(a *archive, first []byte, modules []module) error {
	p := o.Parts
	// The kernel opens the console before anything could make its device.
	if err := a.addCharDevice("/dev/console", 0o600, 5, 1); err != nil {
		return err
	}
	if err := a.addFile("/init", 0o755, first); err != nil {
		return err
	}
	programs := map[string]string{}
	busybox := filepath.Join(p.dirs["busybox-static"], "bin/busybox")
	programs["/bin/busybox"] = busybox
	// busybox' own shell would take its own applets for ip and tc.
	for at, of := range map[string]string{"/bin/sh": "dash", "/usr/sbin/ip": "iproute2", "/usr/sbin/rdma": "iproute2", "/usr/sbin/tc": "iproute2", "/usr/sbin/bridge": "iproute2"} {
		file, err := findTool(filepath.Base(at), of)
		if err != nil {
			return err
		}
		programs[at] = file
	}
	verbs, err := filepath.Glob(filepath.Join(p.dirs["ibverbs-utils"], "usr/bin/ibv_*"))
	if err != nil || len(verbs) == 0 {
		return fmt.Errorf("%s: programs usr/bin/ibv_* are expected", p.dirs["ibverbs-utils"])
	}
	for _, f := range verbs {
		programs["/usr/bin/"+filepath.Base(f)] = f
	}
	// The verbs library loads the driver of a device by the name that its description has.
	drivers, err := filepath.Glob(filepath.Join(p.dirs["ibverbs-providers"], "usr/lib/x86_64-linux-gnu/libibverbs/librxe-*"))
	if err != nil || len(drivers) == 0 {
		return fmt.Errorf("%s: a driver librxe-* is expected", p.dirs["ibverbs-providers"])
	}
	for _, f := range drivers {
		programs["/usr/lib/x86_64-linux-gnu/libibverbs/"+filepath.Base(f)] = f
	}
	maps.Copy(programs, o.Programs)
	s := search{roots: []string{p.dirs["libibverbs1"], p.dirs["ibverbs-providers"], p.dirs["libnl-3-200"], p.dirs["libnl-route-3-200"], "/"}}
	for _, at := range slices.Sorted(maps.Keys(programs)) {
		if err := s.addProgram(a, at, programs[at]); err != nil {
			return err
		}
	}
	list, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return fmt.Errorf("busybox --list: %w", err)
	}
	for _, applet := range strings.Fields(string(list)) {
		if err := a.addLink("/bin/"+applet, "busybox"); err != nil {
			return err
		}
	}
	list, err = addModules(a, "/lib/modules", modules)
	if err != nil {
		return err
	}
	return o.addFiles(a, map[string][]byte{
		"/etc/modules": list, "/etc/hosts": []byte("127.0.0.1 localhost " + o.Name + "\n"),
		"/etc/passwd": []byte("root:x:0:0:root:/tmp:/bin/sh\n"), "/etc/libibverbs.d/rxe.driver": []byte("driver rxe\n"),
	})
}

// guestDir is where a system of its own (Options.Root) has what belongs to the machine, and guestUnit runs its service
// there. The directory is no link in Debian, as /lib is: a directory of an archive replaces a link of an earlier one.
const (
	guestDir  = "/usr/local/lib/vm"
	guestUnit = `[Unit]
Description=Service of the virtual machine
DefaultDependencies=no
After=systemd-tmpfiles-setup-dev.service
Before=network-pre.target
[Service]
ExecStart=` + guestDir + `/init ` + guestDir + `/modules
Environment=HOME=/root
WorkingDirectory=/root
[Install]
WantedBy=sysinit.target
`
)

// fillSystem writes the archive of a system, and behind it one with what the machine adds to it: the kernel unpacks
// several one after the other (Documentation/driver-api/early-userspace/buffer-format.rst).
func (o *Options) fillSystem(w io.Writer, first []byte, modules []module) error {
	root, err := os.Open(o.Root)
	if err != nil {
		return err
	}
	defer root.Close()
	if _, err := io.Copy(w, root); err != nil {
		return err
	}
	a := newArchive(w)
	if err := a.addLink("/init", "/lib/systemd/systemd"); err != nil {
		return err
	}
	if err := a.addFile(guestDir+"/init", 0o755, first); err != nil {
		return err
	}
	for at, file := range o.Programs {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := a.addFile(at, 0o755, data); err != nil {
			return err
		}
	}
	list, err := addModules(a, guestDir, modules)
	if err != nil {
		return err
	}
	// Without udev the unit of the console waits for its device until it times out.
	if err := a.addLink("/etc/systemd/system/serial-getty@ttyS0.service", "/dev/null"); err != nil {
		return err
	}
	if err := a.addLink("/etc/systemd/system/sysinit.target.wants/vm.service", "/etc/systemd/system/vm.service"); err != nil {
		return err
	}
	return o.addFiles(a, map[string][]byte{guestDir + "/modules": list, "/etc/systemd/system/vm.service": []byte(guestUnit)})
}

// addModules adds the files of modules to a directory, and returns the list of them that the first program reads.
func addModules(a *archive, dir string, modules []module) ([]byte, error) {
	var lines bytes.Buffer
	for _, m := range modules {
		at := dir + "/" + m.name + ".ko"
		data, err := os.ReadFile(m.file)
		if err != nil {
			return nil, err
		}
		if err := a.addFile(at, 0o644, data); err != nil {
			return nil, err
		}
		fmt.Fprintln(&lines, strings.TrimSpace(at+" "+m.parameters))
	}
	return lines.Bytes(), nil
}

// addFiles adds the host name, files, and those of the options, and ends the archive.
func (o *Options) addFiles(a *archive, files map[string][]byte) error {
	files["/etc/hostname"] = []byte(o.Name + "\n")
	maps.Copy(files, o.Files)
	for _, at := range slices.Sorted(maps.Keys(files)) {
		if err := a.addFile(at, 0o644, files[at]); err != nil {
			return err
		}
	}
	return a.close()
}

// findTool finds a program of a package, which may not be on the path of who is not root.
func findTool(name, of string) (string, error) {
	for _, f := range []string{"/usr/sbin/", "/sbin/", "/usr/bin/", "/bin/"} {
		if info, err := os.Stat(f + name); err == nil && info.Mode().IsRegular() {
			return f + name, nil
		}
	}
	return "", fmt.Errorf("%w: %s is not installed: apt-get install %s", ErrMissing, name, of)
}

// BuildPrograms builds Go programs that need no library of the system, and returns their files.
func BuildPrograms(ctx context.Context, dir string, packages ...string) ([]string, error) {
	var out []string
	for _, p := range packages {
		file := filepath.Join(dir, filepath.Base(p))
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", file, p)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
		if text, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go build %s: %w\n%s", p, err, text)
		}
		out = append(out, file)
	}
	return out, nil
}

// BuildRDMA builds Go programs with RDMA as releases have them. The error is ErrMissing where there is no C compiler, or
// where the headers of libibverbs are missing.
func BuildRDMA(ctx context.Context, dir string, packages ...string) ([]string, error) {
	if _, err := exec.LookPath("gcc"); err != nil {
		return nil, fmt.Errorf("%w: gcc is not installed: apt-get install gcc libc6-dev", ErrMissing)
	}
	if _, err := os.Stat("/usr/include/infiniband/verbs.h"); err != nil {
		return nil, fmt.Errorf("%w: headers of libibverbs are not installed: apt-get install libibverbs-dev", ErrMissing)
	}
	var out []string
	for _, p := range packages {
		file := filepath.Join(dir, filepath.Base(p))
		if err := runRDMAGo(ctx, "", "-s -w", "build", "-o", file, p); err != nil {
			return nil, err
		}
		out = append(out, file)
	}
	return out, nil
}

// BuildRDMATest builds the tests of a package with RDMA, as BuildRDMA does.
func BuildRDMATest(ctx context.Context, dir, tags, pkg string) (string, error) {
	file := filepath.Join(dir, filepath.Base(pkg)+".test")
	return file, runRDMAGo(ctx, tags, "", "test", "-c", "-o", file, pkg)
}

// runRDMAGo runs tools/rdma/go.
func runRDMAGo(ctx context.Context, tags, ldflags string, args ...string) error {
	module, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return fmt.Errorf("go env GOMOD: %w", err)
	}
	script := filepath.Join(filepath.Dir(strings.TrimSpace(string(module))), "tools/rdma/go")
	cmd := exec.CommandContext(ctx, script, append([]string{"amd64"}, args...)...)
	cmd.Env = append(os.Environ(), "TAGS="+tags, "LDFLAGS="+ldflags)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("tools/rdma/go %s: %w\n%s", strings.Join(args, " "), err, text)
	}
	return nil
}

// ConsoleOutput returns what the kernel and the first program wrote, and QEMU itself.
func (m *Machine) ConsoleOutput() string {
	var out strings.Builder
	for _, name := range []string{"qemu", "console"} {
		b, err := os.ReadFile(filepath.Join(m.dir, name))
		if err != nil {
			fmt.Fprintf(&out, "%s of %s: %v\n", name, m.Name, err)
		} else if len(b) > 0 {
			fmt.Fprintf(&out, "%s of %s:\n%s\n", name, m.Name, b)
		}
	}
	return out.String()
}

// Close switches the machine off, as if power failed, and forgets what it had.
func (m *Machine) Close() error {
	m.stop()
	if m.running {
		<-m.ended
	}
	if m.client != nil {
		_ = m.client.Close() // an error says that it is closed already: the machine hung up
	}
	return os.RemoveAll(m.dir)
}

// callGuest asks the machine's service.
func (m *Machine) callGuest(ctx context.Context, method string, args, reply any) error {
	c := m.client.Go(guest.Machine+"."+method, args, reply, make(chan *rpc.Call, 1))
	select {
	case <-c.Done:
	case <-ctx.Done():
		return fmt.Errorf("%s: no answer: %w", method, ctx.Err())
	case <-m.ended:
		return fmt.Errorf("%s: QEMU ended: %w", method, m.why)
	}
	if c.Error != nil {
		return fmt.Errorf("%s: %w", method, c.Error)
	}
	return nil
}

// Run runs a program to its end. What it says with its exit code is no error here: Must is
// for those that have to succeed.
func (m *Machine) Run(ctx context.Context, args ...string) (*guest.Result, error) {
	c := guest.Command{Args: args}
	if d, ok := ctx.Deadline(); ok {
		c.Limit = time.Until(d)
	}
	out := &guest.Result{}
	if err := m.callGuest(ctx, "Run", c, out); err != nil {
		return nil, fmt.Errorf("machine %s: %s: %w", m.Name, strings.Join(args, " "), err)
	}
	return out, nil
}

// MustRun runs a program that has to succeed.
func (m *Machine) MustRun(ctx context.Context, args ...string) (*guest.Result, error) {
	out, err := m.Run(ctx, args...)
	if err == nil && out.Code != 0 {
		err = fmt.Errorf("machine %s: %s: exit code %d; stdout %q, stderr %q", m.Name, strings.Join(args, " "), out.Code, out.Stdout, out.Stderr)
	}
	return out, err
}

// ReadFile reads a file of the machine, of procfs and sysfs, too.
func (m *Machine) ReadFile(ctx context.Context, path string) (b []byte, err error) {
	err = m.callGuest(ctx, "ReadFile", path, &b)
	return b, err
}

// WriteFile writes a file of the machine, and makes its directory.
func (m *Machine) WriteFile(ctx context.Context, path string, data []byte, mode os.FileMode) error {
	return m.callGuest(ctx, "WriteFile", guest.File{Path: path, Data: data, Mode: mode}, &struct{}{})
}

// HTTPGet asks an HTTP server in the machine: http://127.0.0.1:9868/metrics. Another answer than
// 200 is an error.
func (m *Machine) HTTPGet(ctx context.Context, url string) ([]byte, error) {
	r := guest.Request{URL: url, Limit: time.Minute}
	if d, ok := ctx.Deadline(); ok {
		r.Limit = time.Until(d)
	}
	var out guest.Page
	if err := m.callGuest(ctx, "Get", r, &out); err != nil {
		return nil, err
	}
	if out.Status != 200 {
		return out.Body, fmt.Errorf("%s of machine %s: status %d", url, m.Name, out.Status)
	}
	return out.Body, nil
}

// DoRequest passes a request on to an HTTP server in the machine, whatever it answers.
func (m *Machine) DoRequest(ctx context.Context, r guest.Request) (out guest.Page, err error) {
	if r.Limit == 0 {
		r.Limit = time.Minute
	}
	err = m.callGuest(ctx, "Get", r, &out)
	return out, err
}

// Process is a program that was started in a machine. It is for one goroutine at a time.
type Process struct {
	m    *Machine
	id   int
	name string
	// Lines are what was read of its output so far.
	Lines []string
}

// Start starts a program that goes on.
func (m *Machine) Start(ctx context.Context, args ...string) (*Process, error) {
	p := &Process{m: m, name: strings.Join(args, " ")}
	if err := m.callGuest(ctx, "Start", guest.Command{Args: args}, &p.id); err != nil {
		return nil, fmt.Errorf("machine %s: %s: %w", m.Name, p.name, err)
	}
	return p, nil
}

// pollFor is how long one question for more lines waits, in the machine.
const pollFor = 30 * time.Second

// WaitForLine reads output until a line after the first from is as wanted, and returns which it is.
// That the program ended before is an error.
func (p *Process) WaitForLine(ctx context.Context, from int, wanted func(line string) bool) (int, error) {
	for {
		for ; from < len(p.Lines); from++ {
			if wanted(p.Lines[from]) {
				return from, nil
			}
		}
		var out guest.Output
		if err := p.m.callGuest(ctx, "Output", guest.Read{ID: p.id, From: len(p.Lines), Wait: pollFor}, &out); err != nil {
			return 0, fmt.Errorf("machine %s: %s: %w; it wrote\n%s", p.m.Name, p.name, err, strings.Join(p.Lines, "\n"))
		}
		p.Lines = append(p.Lines, out.Lines...)
		if out.Ended && len(out.Lines) == 0 {
			return 0, fmt.Errorf("machine %s: %s ended with exit code %d; it wrote\n%s", p.m.Name, p.name, out.Code, strings.Join(p.Lines, "\n"))
		}
	}
}

// WaitForExit waits until the program has ended, and returns its exit code.
func (p *Process) WaitForExit(ctx context.Context) (int, error) {
	for {
		var out guest.Output
		if err := p.m.callGuest(ctx, "Output", guest.Read{ID: p.id, From: len(p.Lines), Wait: pollFor}, &out); err != nil {
			return 0, fmt.Errorf("machine %s: %s: %w", p.m.Name, p.name, err)
		}
		p.Lines = append(p.Lines, out.Lines...)
		if out.Ended && len(out.Lines) == 0 {
			return out.Code, nil
		}
	}
}

// SendSignal sends it a signal.
func (p *Process) SendSignal(ctx context.Context, s syscall.Signal) error {
	return p.m.callGuest(ctx, "Signal", guest.Signal{ID: p.id, Number: int(s)}, &struct{}{})
}
