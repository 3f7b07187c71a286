package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/agentapi/client"
	"github.com/graylink/graylink/internal/coordinator"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/unix"
)

// The swarm is a separate process, so that only the coordinator's memory and open files are counted. It
// is this test's program, which recognises its role by an environment variable.
const swarmEnv = "GRAYLINK_TEST_SWARM"

func TestMain(m *testing.M) {
	if os.Getenv(swarmEnv) != "" {
		os.Exit(swarm(os.Getenv(swarmEnv)))
	}
	os.Exit(m.Run())
}

// idle is an agent that only counts its assignments.
type idle struct{ assigned func() }

func (idle) Life() uint64                        { return 0 }
func (idle) TakeLives(uint64, map[string]uint64) {}

func (i idle) Apply(a *agentapi.Assignment, k *agentapi.Keys) error {
	if len(k.GetPeers()) > 0 && len(a.GetPeers()) > 0 {
		i.assigned()
	}
	return nil
}
func (idle) Interfaces() ([]*agentapi.Interface, error)      { return nil, nil }
func (idle) Heartbeat(*agentapi.Heartbeat)                   {}
func (idle) Clock(*agentapi.ClockUpdate, bool)               {}
func (idle) Traces() (version uint64, traces []fabric.Trace) { return 0, nil }

// swarm runs "DIR ADDRESS N" agents until its standard input ends. It connects when a line comes in,
// and writes a line when all have their assignment.
func swarm(args string) int {
	f := strings.Fields(args)
	n, err := strconv.Atoi(f[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if _, err := unix.RaiseOpenFiles(uint64(n + 100)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	debug.SetGCPercent(50)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg, assigned sync.WaitGroup
	clients := make([]*client.Client, n)
	for i := range n {
		at := func(ext string) string { return filepath.Join(f[0], fmt.Sprintf("h%d%s", i, ext)) }
		k, err := pki.Open(pki.Files{CA: filepath.Join(f[0], "ca.crt"), Cert: at(".crt"), Key: at(".key")}, func(error) {})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		assigned.Add(1)
		var once sync.Once
		clients[i], err = client.New(client.Config{Addresses: []string{f[1]}, ServerName: "coordinator", Certificates: k, Node: fmt.Sprintf("h%d", i),
			Web: &agentapi.WebEndpoint{Address: ":9868"}, Log: slog.New(slog.DiscardHandler)}, idle{func() { once.Do(assigned.Done) }})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	fmt.Println("ready")
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return 1
	}
	for _, c := range clients {
		wg.Go(func() { c.Run(ctx) })
	}
	assigned.Wait()
	fmt.Println("assigned")
	_, _ = io.Copy(io.Discard, in)
	cancel()
	wg.Wait()
	return 0
}

// memory returns this process' resident memory in octets, at present and at its peak
// (proc_pid_status(5)).
func memory(t *testing.T) (now, peak int64) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		kib, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "VmRSS:":
			now = kib << 10
		case "VmHWM:":
			peak = kib << 10
		}
	}
	return now, peak
}

var swarmLeaves = flag.Int("swarm.leaves", 128, "leaves of 32 agents each in TestRule9ManyAgentsAtOnce; 313 are 10,016 agents")

func TestRule9ManyAgentsAtOnce(t *testing.T) {
	leaves, hosts := 16, 32
	if !testing.Short() {
		leaves = *swarmLeaves
	}
	n := leaves * hosts
	if limit, err := unix.RaiseOpenFiles(uint64(n + 500)); err != nil {
		if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
			t.Fatal(err)
		}
		leaves = int(limit-500) / hosts
		n = leaves * hosts
		t.Logf("%v: only %d agents", err, n)
	}
	r := newRig(t, topology(leaves, hosts), func(o *coordinator.Options) {
		d := coordinator.DefaultOptions()
		o.Heartbeat, o.AbsentAfter, o.KeysGrace, o.Changeover = d.Heartbeat, d.AbsentAfter, d.KeysGrace, d.Changeover
		// On a slow machine agents connect with pauses between them. The plan is made when the last one
		// is there, not after a pause.
		o.Settle, o.SettleMost, o.RegistrySettle = 10*time.Minute, 10*time.Minute, 10*time.Minute
	})
	for i := range n {
		p, err := pki.Issue(r.ca, []string{fmt.Sprintf("h%d", i)}, time.Hour, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for ext, b := range map[string][]byte{".crt": p.Cert, ".key": p.Key} {
			if err := os.WriteFile(filepath.Join(r.dir, fmt.Sprintf("h%d%s", i, ext)), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d", swarmEnv, r.dir, r.address, n))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the swarm: %v", err)
		}
	}()
	said := bufio.NewReader(out)
	hear := func(want string) {
		t.Helper()
		if line, err := said.ReadString('\n'); err != nil || strings.TrimSpace(line) != want {
			t.Fatalf("the swarm wrote %q (%v), want %q", line, err, want)
		}
	}
	hear("ready")
	runtime.GC()
	debug.FreeOSMemory()
	before, _ := memory(t)
	began := time.Now()
	if _, err := io.WriteString(in, "go\n"); err != nil {
		t.Fatal(err)
	}
	until10 := time.Now().Add(10 * time.Minute)
	for r.c.Stats().Agents[coordinator.StateConnected] < n {
		if time.Now().After(until10) {
			t.Fatalf("%d of %d connected", r.c.Stats().Agents[coordinator.StateConnected], n)
		}
		time.Sleep(50 * time.Millisecond)
	}
	connected := time.Since(began)
	hear("assigned")
	assigned := time.Since(began)
	_, peak := memory(t)
	s := r.c.Stats()
	runtime.GC()
	debug.FreeOSMemory()
	after, _ := memory(t)
	t.Logf("%d agents: connected after %.1f s, all assigned after %.1f s, the schedule took %.2f s for %d edges; memory %d MB before, %d MB after, %d MB at most: %d kB per agent",
		n, connected.Seconds(), assigned.Seconds(), s.RunSeconds, s.Edges["all"], before>>20, after>>20, peak>>20, (after-before)/int64(n)>>10)
	if s.Runs["done"] != 1 || s.Assignments != uint64(n) {
		t.Errorf("%d runs of the schedule and %d assignments for %d agents, want one and one each", s.Runs["done"], s.Assignments, n)
	}
	for k, v := range s.Sessions {
		if strings.HasPrefix(k, "refused") && v != 0 {
			t.Errorf("%s: %d", k, v)
		}
	}
	if limit := int64(2) << 30; peak > limit {
		t.Errorf("%d MB at most, want less than %d MB", peak>>20, limit>>20)
	}
}
