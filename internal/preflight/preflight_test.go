package preflight

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/rdma"
	"github.com/graylink/graylink/internal/testneeds"
	"github.com/graylink/graylink/internal/unix"
)

// reexecVariable makes a process of this test print the results of CheckNode instead of running tests.
const reexecVariable = "GRAYLINK_PREFLIGHT"

// Values of reexecVariable: without in-band signals, with captures of them, and with a source of them.
const (
	modePlain   = "plain"
	modeCapture = "capture"
	modeSource  = "source"
)

func TestMain(m *testing.M) {
	if os.Getenv(reexecVariable) == "" {
		os.Exit(m.Run())
	}
	n := Node{StampPort: 862, KernelLog: true}
	switch os.Getenv(reexecVariable) {
	case modeCapture:
		n.Signals = &Signals{}
	case modeSource:
		n.Signals = &Signals{TrySource: trySource}
	}
	if err := WriteJSON(os.Stdout, CheckNode(context.Background(), n)); err != nil {
		os.Exit(1)
	}
}

// statesWith returns the states of a process of another user that has some capabilities of the kernel.
func statesWith(t *testing.T, program, mode string, capabilities []uintptr) map[string]State {
	t.Helper()
	const otherUser = 65534
	cmd := exec.Command(program)
	cmd.Env, cmd.Dir, cmd.Stderr = []string{reexecVariable + "=" + mode}, "/", os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUser, Gid: otherUser}, AmbientCaps: capabilities}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Needs []Result }
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	states := map[string]State{}
	for _, r := range got.Needs {
		states[r.Need] = r.State
		if (r.State == OK) != (r.Lost == "") || r.Found == "" {
			t.Errorf("%+v: what is lost is stated if the need is not met, and only then", r)
		}
	}
	return states
}

// copyProgram copies this program to where another user can run it. Without root it skips the test.
func copyProgram(t *testing.T) string {
	t.Helper()
	testneeds.Root(t, "the processes of the test have another user and some capabilities")
	program := filepath.Join(t.TempDir(), "preflight.test")
	copyFile(t, program, os.Args[0])
	for dir := filepath.Dir(program); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return program
}

// TestEachCapabilityCostsItsRows takes one capability after the other away from a process that has all that the agent can
// use. The truth is the kernel's.
func TestEachCapabilityCostsItsRows(t *testing.T) {
	program := copyProgram(t)
	all := []uintptr{uintptr(unix.CapNetBindService), uintptr(unix.CapNetRaw), uintptr(unix.CapNetAdmin), uintptr(unix.CapSyslog)}
	before := statesWith(t, program, modePlain, all)
	for _, row := range []string{"UDP port 862", "raw sockets", "module memory", "receive buffer"} {
		if before[row] != OK {
			t.Errorf("%s is %s with all capabilities", row, before[row])
		}
	}
	restricted, err := os.ReadFile("/proc/sys/kernel/dmesg_restrict")
	if err != nil {
		t.Fatal(err)
	}
	// Without its capability the row costs nothing where the host allows it to all.
	optional := []string{"receive buffer", "hardware time stamps"}
	if strings.TrimSpace(string(restricted)) == "0" {
		optional = append(optional, "kernel log")
	}
	documented := documentedRows(t)
	for _, tc := range []struct {
		capability unix.Capability
		rows       map[string]State
	}{
		{unix.CapNetBindService, map[string]State{"UDP port 862": Missing}},
		{unix.CapNetRaw, map[string]State{"raw sockets": Degraded}},
		{unix.CapNetAdmin, map[string]State{"module memory": Degraded, "receive buffer": Degraded, "hardware time stamps": Degraded}},
		{unix.CapSyslog, map[string]State{"kernel log": Degraded}},
	} {
		if want := slices.Sorted(maps.Keys(tc.rows)); !slices.Equal(documented[tc.capability], want) {
			t.Errorf("docs/privileges.md: %v of capability %d, want %v", documented[tc.capability], tc.capability, want)
		}
		without := statesWith(t, program, modePlain, slices.DeleteFunc(slices.Clone(all), func(c uintptr) bool { return c == uintptr(tc.capability) }))
		for row, state := range without {
			want, costs := tc.rows[row]
			if !costs {
				want = before[row]
			}
			if allowed := state == before[row] && slices.Contains(optional, row); state != want && !allowed {
				t.Errorf("without capability %d: %s is %s, want %s", tc.capability, row, state, want)
			}
		}
	}
}

func copyFile(t *testing.T, to, from string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

// stateOf returns the result of one need.
func stateOf(t *testing.T, n Node, name string) Result {
	t.Helper()
	for _, r := range CheckNode(t.Context(), n) {
		if r.Need == name {
			return r
		}
	}
	t.Fatalf("%s was not checked", name)
	return Result{}
}

// documentedRows returns the rows that each capability costs by docs/privileges.md, sorted.
func documentedRows(t *testing.T) map[unix.Capability][]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/privileges.md")
	if err != nil {
		t.Fatal(err)
	}
	numbers := map[string]unix.Capability{"CAP_NET_BIND_SERVICE": unix.CapNetBindService, "CAP_NET_RAW": unix.CapNetRaw, "CAP_NET_ADMIN": unix.CapNetAdmin, "CAP_SYSLOG": unix.CapSyslog}
	out := map[unix.Capability][]string{}
	quoted := regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue
		}
		number, ok := numbers[strings.Trim(cells[1], " `")]
		if !ok {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(cells[2], -1) {
			out[number] = append(out[number], m[1])
		}
		slices.Sort(out[number])
	}
	return out
}

func TestFilesOfTheNode(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tc := range []struct {
		name  string
		node  Node
		need  string
		state State
		found string
	}{
		{"a configuration that is none", Node{ConfigFile: file("bad.yml", "node: [")}, "configuration", Missing, "bad.yml"},
		{"no configuration", Node{ConfigFile: filepath.Join(dir, "absent.yml")}, "configuration", Missing, "absent.yml"},
		{"a directory that is there", Node{StateFile: filepath.Join(dir, "state")}, "state file", OK, dir},
		{"a directory that is not", Node{StateFile: filepath.Join(dir, "absent", "state")}, "state file", Degraded, "absent"},
		{"a kernel log that is not there", Node{KernelLog: true, Kmsg: filepath.Join(dir, "kmsg")}, "kernel log", Degraded, "kmsg"},
		{"a program without RDMA", Node{RDMA: true, RDMALibrary: rdma.ErrNotBuilt}, "RDMA", Missing, "built without RDMA"},
		{"a host without the library", Node{RDMA: true, RDMALibrary: &rdma.LibraryError{Reason: "libibverbs.so.1: absent"}}, "RDMA", Degraded, "libibverbs.so.1: absent (install"},
		{"a configuration with RDMA", Node{ConfigFile: file("rdma.yml", rdmaConfig), RDMALibrary: &rdma.LibraryError{}}, "RDMA", Degraded, "RDMA is not available"},
		{"a host without RDMA", Node{RDMA: true, Sysfs: dir}, "RDMA", Degraded, "no RDMA device"},
		{"no certificates", Node{Coordinators: []string{"127.0.0.1:1"}}, "certificates", Missing, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if r := stateOf(t, tc.node, tc.need); r.State != tc.state || !strings.Contains(r.Found, tc.found) {
				t.Errorf("%+v, want %s and %q", r, tc.state, tc.found)
			}
		})
	}
}

// rdmaConfig is a configuration whose NIC is probed by RDMA only.
const rdmaConfig = `
node: h1
nics: [{nic: h1/mlx5_0, rdma: {device: mlx5_0, qkey: 7}}]
peers: [{nic: h2/mlx5_0, gid: "::ffff:10.0.0.2", qpn: 17, qkey: 7}]
`

func TestAPortThatIsTaken(t *testing.T) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{})
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(c.LocalAddr().(*net.UDPAddr).Port)
	n := Node{StampPort: port}
	name := n.needOfPort().name
	if r := stateOf(t, n, name); r.State != Degraded || !strings.Contains(r.Found, "Another program has it") {
		t.Errorf("%+v", r)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if r := stateOf(t, n, name); r.State != OK {
		t.Errorf("%+v", r)
	}
}

// TestTheCoordinatorIsAsked has a coordinator that accepts the certificate, one of another authority, one that demands
// another certificate, and none.
func TestTheCoordinatorIsAsked(t *testing.T) {
	dir := t.TempDir()
	authority := newAuthority(t)
	stranger := newAuthority(t)
	own := writeFiles(t, dir, "h1", authority, authority, time.Hour)
	serve := func(files pki.Files) string {
		keeper, err := pki.Open(files, func(error) {})
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				// The handshake begins with the first read.
				go func() { _, _ = io.Copy(io.Discard, tls.Server(c, keeper.ServerConfig())) }()
			}
		}()
		return l.Addr().String()
	}
	good := serve(writeFiles(t, dir, "good", authority, authority, time.Hour))
	other := serve(writeFiles(t, dir, "other", stranger, stranger, time.Hour))
	demanding := serve(writeFiles(t, dir, "demanding", stranger, authority, time.Hour))
	for _, tc := range []struct {
		name, address string
		state         State
		found         string
	}{
		{"the right one", good, OK, "accepts the certificate"},
		{"one of another authority", other, Degraded, "unknown authority"},
		{"one that demands another certificate", demanding, Degraded, "refuses the certificate"},
		{"none", "127.0.0.1:1", Degraded, "refused"},
		{"an address without a port", "127.0.0.1", Missing, "127.0.0.1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := Node{Coordinators: []string{tc.address}, ServerName: "coordinator", Certificates: own}
			if tc.state == Missing {
				n.ServerName = ""
			}
			if r := stateOf(t, n, "coordinator"); r.State != tc.state || !strings.Contains(r.Found, tc.found) {
				t.Errorf("%+v, want %s and %q", r, tc.state, tc.found)
			}
		})
	}
	for name, tc := range map[string]struct {
		addresses []string
		state     State
		found     string
	}{
		"both answer":   {[]string{good, good}, OK, good + " accepts the certificate; " + good},
		"one is away":   {[]string{good, "127.0.0.1:1"}, Degraded, "accepts the certificate; connect to 127.0.0.1:1"},
		"one is no one": {[]string{"127.0.0.1", good}, Missing, "want host:port"},
	} {
		n := Node{Coordinators: tc.addresses, Certificates: own, ServerName: "coordinator"}
		if tc.state == Missing {
			n.ServerName = ""
		}
		if r := stateOf(t, n, "coordinator"); r.State != tc.state || !strings.Contains(r.Found, tc.found) {
			t.Errorf("%s: %+v, want %s and %q", name, r, tc.state, tc.found)
		}
	}
	for _, tc := range []struct {
		life  time.Duration
		state State
		// An agent that enrolls starts without a certificate, and with one that has ended, if it has a token.
		enrolls State
	}{{30 * 24 * time.Hour, OK, OK}, {24 * time.Hour, Degraded, Degraded}, {-time.Hour, Missing, Degraded}} {
		files := writeFiles(t, dir, "life", authority, authority, tc.life)
		if r := stateOf(t, Node{Coordinators: []string{good}, Certificates: files}, "certificates"); r.State != tc.state {
			t.Errorf("a certificate for %v: %+v, want %s", tc.life, r, tc.state)
		}
		if r := stateOf(t, Node{Coordinators: []string{good}, Certificates: files, Enrolls: true}, "certificates"); r.State != tc.enrolls {
			t.Errorf("enrolls, with a certificate for %v: %+v, want %s", tc.life, r, tc.enrolls)
		}
	}
	none := Node{Coordinators: []string{good}, Certificates: pki.Files{CA: "/nowhere", Cert: "/nowhere", Key: "/nowhere"}, Enrolls: true}
	if r := stateOf(t, none, "certificates"); r.State != Degraded {
		t.Errorf("enrolls, without a certificate: %+v, want %s", r, Degraded)
	}
}

func TestTextAndJSON(t *testing.T) {
	results := checkAll([]need{
		{"a thing", "All is lost.", func() (State, string) { return OK, "it is there" }},
		{"another", "Half is lost.", func() (State, string) { return Degraded, "it is\thalf there" }},
		{"a third", "All is lost.", func() (State, string) { return Missing, "it is\nnot there" }},
	})
	var text, object bytes.Buffer
	if err := WriteText(&text, results); err != nil {
		t.Fatal(err)
	}
	want := "ok        a thing  it is there\ndegraded  another  it is half there. Half is lost.\nmissing   a third  it is not there. All is lost.\n"
	if text.String() != want {
		t.Errorf("%q, want %q", text.String(), want)
	}
	if err := WriteJSON(&object, results[:2]); err != nil || !strings.Contains(object.String(), `"ready": true`) || strings.Count(object.String(), `"lost"`) != 1 {
		t.Errorf("%v: %s", err, object.String())
	}
	if Ready(results) || !Ready(results[:2]) {
		t.Error("a host is ready if nothing is missing")
	}
}

func newAuthority(t *testing.T) pki.Pair {
	t.Helper()
	ca, err := pki.NewAuthority("test", 365*24*time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// writeFiles writes a certificate that ends after some time, and the authority that its holder trusts.
func writeFiles(t *testing.T, dir, name string, trusted, issuer pki.Pair, left time.Duration) pki.Files {
	t.Helper()
	began := min(0, left-30*24*time.Hour)
	pair, err := pki.Issue(issuer, []string{name, "coordinator"}, left-began, time.Now().Add(began))
	if err != nil {
		t.Fatal(err)
	}
	write := func(suffix string, text []byte) string {
		path := filepath.Join(dir, name+suffix)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return pki.Files{CA: write(".ca", trusted.Cert), Cert: write(".crt", pair.Cert), Key: write(".key", pair.Key)}
}
