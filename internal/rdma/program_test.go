package rdma_test

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/testneeds"
)

// buildProgram builds graylink-node as releases have it, with RDMA. It skips the test where the C compiler or the headers
// of libibverbs are missing.
func buildProgram(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: the program is not built; the full run has it")
	}
	file := filepath.Join(t.TempDir(), "graylink-node")
	out, err := exec.CommandContext(t.Context(), "../../tools/rdma/go", runtime.GOARCH, "build", "-o", file, "../../cmd/graylink-node").CombinedOutput()
	if err != nil && bytes.Contains(out, []byte("is missing: apt-get install")) && os.Getenv("GRAYLINK_REQUIRE_ALL") != "1" {
		t.Skipf("%s", out)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return file
}

var glibcVersion = regexp.MustCompile(`^GLIBC_2\.(\d+)(\.\d+)?$`)

// The program needs the C library only, in version 2.28 or later. test/packaging has the same check for arm64.
func TestProgramNeedsOldSymbols(t *testing.T) {
	f, err := elf.Open(buildProgram(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	libraries, err := f.ImportedLibraries()
	slices.Sort(libraries)
	if want := []string{"libc.so.6", "libdl.so.2", "libpthread.so.0"}; err != nil || !slices.Equal(libraries, want) {
		t.Errorf("libraries %q (%v), want %q", libraries, err, want)
	}
	needs, err := f.DynamicVersionNeeds()
	if err != nil || len(needs) != len(libraries) {
		t.Fatalf("versions of %d libraries (%v)", len(needs), err)
	}
	for _, n := range needs {
		for _, version := range n.Needs {
			m := glibcVersion.FindStringSubmatch(version.Dep)
			if m == nil {
				t.Errorf("%s: version %q, want one of glibc", n.Name, version.Dep)
			} else if minor, err := strconv.Atoi(m[1]); err != nil || minor > 28 {
				t.Errorf("%s: version %s, want GLIBC_2.28 at most", n.Name, version.Dep)
			}
		}
	}
}

// makeRoot makes a root directory that has a program, its dynamic linker and the libraries that it is linked with. It
// returns the path of the program in it.
func makeRoot(t *testing.T, root, program string) string {
	t.Helper()
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	interpreter, err := io.ReadAll(f.Section(".interp").Open())
	if err != nil {
		t.Fatal(err)
	}
	linker := string(bytes.TrimRight(interpreter, "\x00"))
	files := map[string]string{linker: linker, "/bin/graylink-node": program}
	libraries, err := f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range libraries {
		file := findLibrary(t, l)
		files[file] = file
	}
	for at, of := range files {
		copyInto(t, root, at, of)
	}
	return "/bin/graylink-node"
}

// findLibrary returns the file of a library of this host.
func findLibrary(t *testing.T, name string) string {
	t.Helper()
	for _, dir := range []string{"/lib/x86_64-linux-gnu/", "/lib/aarch64-linux-gnu/", "/lib64/", "/lib/"} {
		if _, err := os.Stat(dir + name); err == nil {
			return dir + name
		}
	}
	t.Fatalf("this host has no %s", name)
	return ""
}

// copyInto copies a file to a path in a root directory.
func copyInto(t *testing.T, root, at, file string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(root+at), 0o755)
	}
	if err == nil {
		err = os.WriteFile(root+at, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// inRoot returns a command that runs in a root directory.
func inRoot(t *testing.T, root, program string, args ...string) *exec.Cmd {
	c := exec.CommandContext(t.Context(), program, args...)
	c.Dir, c.Env = "/", []string{"LD_BIND_NOW=1"} // each symbol has to be found
	c.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	return c
}

// On a host without libibverbs, the self-test and the check of the host state that, and the agent probes by UDP. When the
// library is installed, the agent uses it.
func TestProgramStartsWithoutTheLibrary(t *testing.T) {
	testneeds.Root(t, "the program runs in a root directory that has no libibverbs")
	root := t.TempDir()
	program := makeRoot(t, root, buildProgram(t))
	const reason, repair = "RDMA is not available: cannot load the verbs library: libibverbs.so.1: ", "install libibverbs1"

	out, err := inRoot(t, root, program, "--selftest=rdma").CombinedOutput()
	if code := err.(*exec.ExitError).ExitCode(); code != 5 || !strings.Contains(string(out), reason) || !strings.Contains(string(out), repair) {
		t.Errorf("--selftest=rdma: exit code %d\n%s", code, out)
	}
	stampPort, addresses := freePorts(t)
	for i, config := range []string{`
node: h1
stamp: {port: %d, source_port: 51152}
cadence: 100ms
nics: [{nic: h1/eth0, address: 127.0.0.1, rdma: {device: mlx5_0, qkey: 7}}]
peers:
  - {nic: h2/eth0, address: 127.0.0.2}
  - {nic: h3/eth0, gid: "::ffff:10.0.0.3", qpn: 17, qkey: 7}
`, `
node: h2
stamp: {port: %d, source_port: 51152}
nics: [{nic: h2/eth0, address: 127.0.0.2}]
peers: [{nic: h1/eth0, address: 127.0.0.1, probe: false}]
`} {
		if err := os.WriteFile(fmt.Sprintf("%s/h%d.yml", root, i+1), fmt.Appendf(nil, config, stampPort), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err = inRoot(t, root, program, "--preflight", "--config.file=/h1.yml").CombinedOutput()
	if !regexp.MustCompile(`(?m)^degraded +RDMA +`+reason).Match(out) || !strings.Contains(string(out), repair) {
		t.Errorf("--preflight: %v\n%s", err, out)
	}

	for i, name := range []string{"h1", "h2"} {
		log, err := os.Create(root + "/" + name + ".log")
		if err != nil {
			t.Fatal(err)
		}
		c := inRoot(t, root, program, "--config.file=/"+name+".yml", "--web.listen-address="+addresses[i])
		c.Stdout, c.Stderr, c.Cancel = log, log, func() error { return c.Process.Signal(syscall.SIGTERM) }
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Wait(); c.ProcessState.ExitCode() != 0 { // the test's context has ended
				t.Errorf("%s: %v", name, err)
			}
			log.Close()
			if b, err := os.ReadFile(log.Name()); t.Failed() {
				t.Logf("%s wrote (%v):\n%s", name, err, b)
			}
		})
	}
	answered := regexp.MustCompile(`(?m)^fabric_probe_acked_total\{.*dst="h2/eth0".*\} ([1-9]\d*)$`)
	unusable := regexp.MustCompile(`(?m)^fabric_nic_rdma_usable\{.*\} 0$`)
	waitUntil(t, "answers by UDP without the library", func() bool {
		return answered.MatchString(scrape(addresses[0]+"/metrics/edges")) && unusable.MatchString(scrape(addresses[0]+"/metrics"))
	})
	logged := func(text string) func() bool {
		return func() bool {
			b, err := os.ReadFile(root + "/h1.log")
			return err == nil && strings.Contains(string(b), text)
		}
	}
	waitUntil(t, "the reason in the log", logged(reason))
	for _, l := range []string{"libnl-3.so.200", "libnl-route-3.so.200", "libibverbs.so.1"} {
		file := findLibrary(t, l)
		copyInto(t, root, file, file)
	}
	waitUntil(t, "the library's own error, about the device", logged("RDMA device mlx5_0 port 1: ibv_open_device: "))
}

// waitUntil waits until a condition holds.
func waitUntil(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// freePorts returns a UDP port of the loopback interface and two addresses at which nothing listens.
func freePorts(t *testing.T) (port int, addresses [2]string) {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i := range addresses {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		addresses[i] = l.Addr().String()
	}
	return c.LocalAddr().(*net.UDPAddr).Port, addresses
}

// scrape returns the series at a URL without its scheme, or nothing while they cannot be read.
func scrape(url string) string {
	r, err := http.Get("http://" + url)
	if err != nil {
		return ""
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return ""
	}
	return string(b)
}
