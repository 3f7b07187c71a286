// Package e2e runs the real programs on real fabrics of network namespaces.
// It needs root, iproute2 and iptables, and several minutes: go test -short
// leaves it out, make test and CI do not.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/internal/testneeds"
)

var bin string // directory of the programs under test

func TestMain(m *testing.M) {
	flag.Parse()
	if *trafficTo != "" {
		if err := traffic(*trafficTo); err != nil {
			fmt.Fprintln(os.Stderr, "cross traffic:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if testing.Short() {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "graylink-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	// Other users run the programs too, in the test without root.
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := copyPrograms(os.Getenv("GRAYLINK_PROGRAMS"), dir); err != nil {
		fmt.Fprintln(os.Stderr, "the programs under test:", err)
		return 1
	}
	bin = dir
	return m.Run()
}

// copyPrograms puts the programs under test into a directory: those of from, or, if that is empty, new builds.
func copyPrograms(from, to string) error {
	names := []string{"graylink", "graylink-node", "graylink-switch", "graylink-coordinator", "graylink-analyzer"}
	if from == "" {
		args := []string{"build", "-o", to + "/"}
		for _, n := range names {
			args = append(args, "../../cmd/"+n)
		}
		build := exec.Command("go", args...)
		build.Stderr = os.Stderr
		return build.Run()
	}
	for _, n := range names {
		b, err := os.ReadFile(filepath.Join(from, n))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, n), b, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// programs skips a test that runs them where they are not built.
func programs(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: the programs are not built")
	}
}

// need skips where a declared feature of the machine is missing; CI must have them all.
func need(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: it builds fabrics")
	}
	testneeds.Root(t, "network namespaces")
	for tool, pkg := range map[string]string{"ip": "iproute2", "iptables": "iptables"} {
		if _, err := exec.LookPath(tool); err != nil {
			testneeds.Missing(t, tool+" (Debian package "+pkg+")")
		}
	}
}

// loadTopology returns the topology of a file, which must have no problems.
func loadTopology(t *testing.T, file string) *fabric.Topology {
	t.Helper()
	topo, found := fabric.LoadTopology(file)
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return topo
}

// fabricOf builds the lab of a topology file. The caller takes it down.
func fabricOf(t *testing.T, name, file string) *lab.Lab {
	t.Helper()
	need(t)
	topo := loadTopology(t, file)
	l, err := lab.Up(t.Context(), topo, lab.Options{Name: name, Owner: true, Executable: filepath.Join(bin, "graylink")})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// clean asserts that nothing of a lab is left on the machine.
func clean(t *testing.T, name string) {
	t.Helper()
	out, err := exec.Command("ip", "netns", "list").CombinedOutput()
	if err != nil {
		t.Fatalf("ip netns list: %v: %s", err, out)
	}
	if strings.Contains(string(out), "gl-"+name+"-") {
		t.Errorf("namespaces are left:\n%s", out)
	}
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		cmd, err := os.ReadFile(p)
		if err == nil && bytes.HasPrefix(cmd, []byte(bin+"/")) {
			t.Errorf("a process is left: %s", bytes.ReplaceAll(cmd, []byte{0}, []byte{' '}))
		}
	}
}

// graylink runs the program and returns what it printed and its exit code.
func graylink(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "graylink"), args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("graylink %v: %v\n%s", args, err, e.String())
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

// startDemo starts a demo with the built programs, and ends it with the test. Nothing of it must be left then.
func startDemo(t *testing.T, o demo.Options) *demo.Demo {
	t.Helper()
	o.Listen, o.NodeBin, o.SwitchBin, o.Executable = "127.0.0.1:0", filepath.Join(bin, "graylink-node"), filepath.Join(bin, "graylink-switch"), filepath.Join(bin, "graylink")
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	d, err := demo.Start(t.Context(), o)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		clean(t, o.Name)
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func outcomes(t *testing.T, stdout string) []demo.Outcome {
	t.Helper()
	var out []demo.Outcome
	dec := json.NewDecoder(strings.NewReader(stdout))
	for dec.More() {
		var o demo.Outcome
		if err := dec.Decode(&o); err != nil {
			t.Fatalf("outcome: %v in\n%s", err, stdout)
		}
		out = append(out, o)
	}
	return out
}

func percentile(v []float64, p float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := append([]float64(nil), v...)
	sort.Float64s(s)
	return s[min(len(s)-1, int(p*float64(len(s))))]
}

// judge checks that each outcome names the right element and nothing besides, with the right direction and scenario,
// and that the all-clear came. It logs the seconds, which depend on what else the machine does: make table measures
// them. (The demo itself waits 45 s for a verdict.)
func judge(t *testing.T, out []demo.Outcome) {
	t.Helper()
	missed := 0
	var verdict, clear []float64
	for _, o := range out {
		where := fmt.Sprintf("%s seed %d at %s %s", o.Fault.Kind, o.Seed, o.Fault.Element, o.Fault.Direction)
		if !o.ElementMatch {
			missed++
			got := "no verdict"
			if o.Verdict != nil {
				got = o.Verdict.Summary
			}
			t.Errorf("missed: %s: %s", where, got)
			continue
		}
		if !o.DirectionMatch {
			t.Errorf("%s: direction %q", where, o.Verdict.Direction)
		}
		if !o.ScenarioMatch {
			t.Errorf("%s: scenario %s", where, o.Verdict.Scenario)
		}
		for _, v := range o.FalseVerdicts {
			t.Errorf("besides: %s: %s", where, v.Summary)
		}
		if o.SecondsToVerdict != nil {
			verdict = append(verdict, *o.SecondsToVerdict)
		}
		if o.SecondsToClear == nil {
			t.Errorf("%s: no all-clear", where)
		} else {
			clear = append(clear, *o.SecondsToClear)
		}
	}
	t.Logf("%d of %d right; verdict median %.1f s, P90 %.1f s; all-clear median %.1f s, max %.1f s", len(out)-missed, len(out),
		percentile(verdict, 0.5), percentile(verdict, 0.9), percentile(clear, 0.5), percentile(clear, 1))
}

// TestDemoFaults: in one fabric one after the other, a host that is starved of CPU makes no
// verdict against the fabric; packets lost without a queue are no congestion. (TestAlerts has a healthy fabric,
// blackhole and congest. Other kinds are named in simulated fabrics by TestSimulatedFaults, and here with the tag
// "all".)
func TestDemoFaults(t *testing.T) {
	need(t)
	type kindsCheck struct {
		of    string
		check func(t *testing.T, out []demo.Outcome)
	}
	kinds := []kindsCheck{
		{"host-stall", func(t *testing.T, out []demo.Outcome) {
			if !out[0].ElementMatch {
				t.Errorf("%s: not seen", out[0].Fault.Kind)
			}
			nothingElse(t, out)
		}},
		{"loss", func(t *testing.T, out []demo.Outcome) {
			judge(t, out)
			if v := out[0].Verdict; v != nil && slices.Contains(v.Causes, fabric.CauseCongestion) {
				t.Errorf("causes %q, %+v", v.Causes, v.Attribution)
			}
		}},
	}
	if everything {
		kinds = append(kinds, kindsCheck{"incast,flap,link-down,switch-slow,nic-slow", judge})
	}
	var all []string
	for _, k := range kinds {
		all = append(all, k.of)
	}
	faults := strings.Join(all, ",")
	stdout, stderr, _ := graylink(t, "demo", "--name", "e2e", "--web.listen-address", "127.0.0.1:0", "--format", "json", "--duration", "12s", "--fault", faults)
	out := outcomes(t, stdout)
	if len(out) != 1+strings.Count(faults, ",") {
		t.Fatalf("%d outcomes:\n%s", len(out), stderr)
	}
	for _, k := range kinds {
		n := 1 + strings.Count(k.of, ",")
		t.Run(k.of, func(t *testing.T) { k.check(t, out[:n]) })
		out = out[n:]
	}
	clean(t, "e2e")
}

// nothingElse checks that no healthy element was named.
func nothingElse(t *testing.T, out []demo.Outcome) {
	t.Helper()
	for _, o := range out {
		if len(o.FalseVerdicts) != 0 {
			t.Errorf("%s at %s: %d verdicts besides", o.Fault.Kind, o.Fault.Element, len(o.FalseVerdicts))
		}
	}
}

// TestDemoIsInterrupted: Ctrl-C at any time leaves nothing behind.
func TestDemoIsInterrupted(t *testing.T) {
	need(t)
	for _, when := range []string{"building the fabric", "wrong on purpose", "agents probe", "injecting a fault"} {
		cmd := exec.Command(filepath.Join(bin, "graylink"), "demo", "--name", "e2e", "--web.listen-address", "127.0.0.1:0")
		pipe, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var seen bytes.Buffer
		buf := make([]byte, 4096)
		sent := false
		for {
			n, err := pipe.Read(buf)
			seen.Write(buf[:n])
			if !sent && strings.Contains(seen.String(), when) {
				sent = true
				if err := cmd.Process.Signal(os.Interrupt); err != nil {
					t.Fatal(err)
				}
			}
			if err != nil {
				break
			}
		}
		err = cmd.Wait()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(seen.String(), "interrupted") {
			t.Errorf("interrupted at %q: %v\n%s", when, err, seen.String())
		}
		clean(t, "e2e")
	}
}

// TestDemoIsNotReadToTheEnd checks that the reader of the demo's output may exit early.
func TestDemoIsNotReadToTheEnd(t *testing.T) {
	programs(t)
	t.Parallel()
	cmd := exec.Command(filepath.Join(bin, "graylink"), "demo", "--fabric", "sim", "--web.listen-address", "127.0.0.1:0", "--fault", "none", "--duration", "1s")
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := pipe.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	pipe.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestDemoBadInput: one clear message each, exit code 1, nothing left behind.
func TestDemoBadInput(t *testing.T) {
	need(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	tests := map[string]struct {
		args []string
		want []string
	}{
		"port in use":   {[]string{"--web.listen-address", ln.Addr().String()}, []string{"in use", "--web.listen-address"}},
		"bad topology":  {[]string{"--topology", "../../internal/fabric/testdata/references.bad.yaml"}, []string{"references.bad.yaml:20:", "spine7"}},
		"no topology":   {[]string{"--topology", "nowhere.yaml"}, []string{"nowhere.yaml", "no such file"}},
		"unknown fault": {[]string{"--fault", "thunder"}, []string{"thunder", "blackhole"}},
		"seeds":         {[]string{"--seeds", "9..1"}, []string{"9..1"}},
		"no agent":      {[]string{"--node-binary", "/nonexistent/agent"}, []string{"/nonexistent/agent"}},
	}
	for name, tt := range tests {
		args := append([]string{"demo", "--name", "e2e"}, tt.args...)
		if name != "port in use" {
			args = append(args, "--web.listen-address", "127.0.0.1:0")
		}
		_, stderr, code := graylink(t, args...)
		if code != 1 {
			t.Errorf("%s: exit code %d\n%s", name, code, stderr)
		}
		for _, w := range tt.want {
			if !strings.Contains(stderr, w) {
				t.Errorf("%s: the message lacks %q:\n%s", name, w, stderr)
			}
		}
		clean(t, "e2e")
	}
}

func TestDemoWithoutRoot(t *testing.T) {
	need(t)
	cmd := exec.Command(filepath.Join(bin, "graylink"), "demo", "--name", "e2e", "--fabric", "netns")
	cmd.Dir = bin
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "needs root") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestDemoWithoutIptables(t *testing.T) {
	need(t)
	ip, err := exec.LookPath("ip")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(ip, filepath.Join(dir, "ip")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(bin, "graylink"), "demo", "--name", "e2e", "--web.listen-address", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), "PATH="+dir)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "apt-get install iptables") {
		t.Errorf("%v: %s", err, out)
	}
	clean(t, "e2e")
}

// TestDemoBesideALab: a lab of the same name that exists is not touched.
func TestDemoBesideALab(t *testing.T) {
	need(t)
	if _, stderr, code := graylink(t, "lab", "--name", "e2e", "up", "--topology", "../../deploy/lab/demo.yaml"); code != 0 {
		t.Fatalf("lab up: %s", stderr)
	}
	_, stderr, code := graylink(t, "demo", "--name", "e2e", "--web.listen-address", "127.0.0.1:0")
	if code != 1 || !strings.Contains(stderr, "exists already") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if out, _, code := graylink(t, "lab", "--name", "e2e", "status"); code != 0 || !strings.Contains(out, "spine1") {
		t.Errorf("the lab was touched: %s", out)
	}
	if _, stderr, code := graylink(t, "lab", "--name", "e2e", "down"); code != 0 {
		t.Errorf("lab down: %s", stderr)
	}
	clean(t, "e2e")
}

// runInAll runs a subtest in make test-all and leaves it out of make test. docs/testing.md names what covers it there.
func runInAll(t *testing.T, name string, test func(*testing.T)) {
	t.Helper()
	if everything {
		t.Run(name, test)
	}
}
