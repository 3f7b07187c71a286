package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestSimulatedDemo: without root, without ip and iptables in PATH, three demos of
// one name side by side name what is broken in simulated fabrics, and say that these
// are simulated.
func TestSimulatedDemo(t *testing.T) {
	programs(t)
	t.Parallel()
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, kind := range []string{"delay", "blackhole", "incast"} {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, filepath.Join(bin, "graylink"), "demo", "--web.listen-address", "127.0.0.1:0", "--format", "json", "--fault", kind)
			cmd.Dir, cmd.Env = bin, append(os.Environ(), "PATH=/nonexistent")
			if os.Geteuid() == 0 {
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			}
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			if err := cmd.Run(); err != nil {
				t.Errorf("%s: %v\n%s", kind, err, stderr.String())
				return
			}
			for _, want := range []string{"needs root: the fabric is simulated", "SIMULATED"} {
				if !strings.Contains(stderr.String(), want) {
					t.Errorf("%s: the progress lacks %q:\n%s", kind, want, stderr.String())
				}
			}
			out := outcomes(t, stdout.String())
			if len(out) != 1 || out[0].Fabric != "sim" || !out[0].ElementMatch || !out[0].DirectionMatch || !out[0].ScenarioMatch || out[0].SecondsToClear == nil {
				t.Errorf("%s: %s", kind, stdout.String())
			}
		})
	}
}

// TestSimulatedFaults: in fabrics that are simulated packet by packet, side by side, agents,
// clocks, Prometheus, analyzer and demo name what make test breaks in no fabric of the kernel:
// flaps, links that are down, slow spines and NICs, clocks that move; and a delay in three tiers, and among odd names,
// absent addresses and uneven leaves. What the faults do to packets in the kernel is measured in
// internal/lab; with the tag "all" the same demos run there.
func TestSimulatedFaults(t *testing.T) {
	programs(t)
	t.Parallel()
	for _, tc := range []struct{ topology, faults string }{
		{"../../deploy/lab/demo.yaml", "clock-step,clock-drift"},
		{"../../deploy/lab/demo.yaml", "flap,switch-slow"},
		{"../../deploy/lab/demo.yaml", "link-down,nic-slow"},
		{"../../internal/lab/testdata/clos3.yaml", "delay"},
		{"../../internal/lab/testdata/odd.yaml", "delay"},
	} {
		t.Run(filepath.Base(tc.topology)+"/"+tc.faults, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, _ := graylink(t, "demo", "--fabric", "sim", "--web.listen-address", "127.0.0.1:0", "--format", "json", "--topology", tc.topology, "--fault", tc.faults)
			out := outcomes(t, stdout)
			if len(out) != strings.Count(tc.faults, ",")+1 {
				t.Fatalf("%d outcomes:\n%s", len(out), stderr)
			}
			judge(t, out)
		})
	}
}

// TestSimulatedDemoInterrupted: Ctrl-C ends it at once, and nothing is left.
func TestSimulatedDemoInterrupted(t *testing.T) {
	programs(t)
	tmp := t.TempDir()
	cmd := exec.Command(filepath.Join(bin, "graylink"), "demo", "--fabric", "sim", "--web.listen-address", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	all := ""
	for lines := bufio.NewScanner(said); lines.Scan(); {
		all += lines.Text() + "\n"
		if strings.Contains(lines.Text(), "agents probe") {
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(all, "interrupted") {
		t.Errorf("%v:\n%s", err, all)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
