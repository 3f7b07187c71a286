//go:build slurm

// Package slurm tests the analyzer's source of jobs with a real Slurm: a controller, one node, and munge.
package slurm

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/internal/fabric"
)

const topology = `version: 1
switches: [{name: leaf1, role: leaf}]
nodes: [{name: h1, nics: [{device: eth1}]}, {name: h2, nics: [{device: eth1}]}]
links: [{a: h1/eth1, b: "leaf1:dn1"}, {a: h2/eth1, b: "leaf1:dn2"}]
`

// configuration is that of a Slurm whose only node h1 is this host.
const configuration = `ClusterName=test
SlurmctldHost=%[1]s(127.0.0.1)
SlurmctldPort=%[2]d
SlurmdPort=%[3]d
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=%[4]s/munge.sock
CredType=cred/munge
StateSaveLocation=%[4]s/state
SlurmdSpoolDir=%[4]s/spool
SlurmctldPidFile=%[4]s/slurmctld.pid
SlurmdPidFile=%[4]s/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
ReturnToService=2
MpiDefault=none
NodeName=h1 NodeHostname=%[1]s NodeAddr=127.0.0.1 CPUs=1 State=UNKNOWN
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
`

// logs keeps what is logged.
type logs struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// start starts a daemon in the foreground, and returns what stops it.
func start(t *testing.T, name string, args ...string) (stop func()) {
	t.Helper()
	out := &logs{}
	ctx, cancel := context.WithCancel(context.Background())
	c := exec.CommandContext(ctx, name, args...)
	c.Stdout, c.Stderr, c.WaitDelay = out, out, 5*time.Second
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		cancel()
		_ = c.Wait() // it ends by the signal
		if t.Failed() {
			t.Logf("%s: %s", name, out)
		}
	})
	t.Cleanup(stop)
	return stop
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after a minute: not %s", what)
		}
	}
}

func freePort(t *testing.T, from int) int {
	t.Helper()
	for port := from; port < from+1000; port++ {
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("there is no free port")
	return 0
}

func TestSlurm(t *testing.T) {
	// munge wants all directories above its socket to be writable by their owners only.
	dir, err := os.MkdirTemp("/run", "graylink-slurm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for path, mode := range map[string]os.FileMode{dir: 0o755, filepath.Join(dir, "state"): 0o755, filepath.Join(dir, "spool"): 0o755} {
		if err := os.MkdirAll(path, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	host, _, _ := strings.Cut(strings.TrimSpace(run(t, "hostname")), ".")
	key := make([]byte, 1024)
	rand.Read(key)
	file := filepath.Join(dir, "slurm.conf")
	for name, text := range map[string][]byte{filepath.Join(dir, "munge.key"): key, file: fmt.Appendf(nil, configuration, host, freePort(t, 22000), freePort(t, 23000), dir)} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("SLURM_CONF", file)
	t.Setenv("SQUEUE_STATES", "PENDING") // a setting of the user
	start(t, "munged", "--foreground", "--force", "--key-file="+dir+"/munge.key", "--socket="+dir+"/munge.sock", "--pid-file="+dir+"/munge.pid", "--log-file="+dir+"/munge.log", "--seed-file="+dir+"/seed")
	eventually(t, "munge listens", func() bool { _, err := os.Stat(dir + "/munge.sock"); return err == nil })
	stopController := start(t, "slurmctld", "-D")
	start(t, "slurmd", "-D", "-N", "h1")
	eventually(t, "the node is idle", func() bool {
		out, err := exec.Command("sinfo", "--noheader", "--format=%T").Output()
		return err == nil && strings.TrimSpace(string(out)) == "idle"
	})

	parsed, found := fabric.ParseTopology("topology.yaml", []byte(topology))
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	r := jobs.NewRegister(fabric.NewGraph(parsed))
	source := &jobs.Slurm{Command: "squeue", Every: 200 * time.Millisecond, Zone: time.Local}
	log := &logs{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { source.Follow(ctx, r, slog.New(slog.NewTextHandler(log, nil))); close(done) }()
	defer func() { cancel(); <-done }()
	are := func(want ...string) {
		t.Helper()
		eventually(t, fmt.Sprintf("%q\n%s", want, log), func() bool {
			m := r.MapAt(time.Now())
			return m != nil && slices.Equal(m.JobNames(), want)
		})
	}
	are()
	submitted := time.Now()
	run(t, "sbatch", "--job-name=train|7 b", "--output=/dev/null", "--wrap=sleep 300")
	run(t, "sbatch", "--job-name=waits", "--output=/dev/null", "--wrap=sleep 300")
	are("train|7 b")
	m := r.MapAt(time.Now())
	if nics := m.NICsOf("train|7 b"); !slices.Equal(nics, []string{"h1/eth1"}) {
		t.Errorf("NICs %q", nics)
	}
	if p, ok := m.FindJob("train|7 b"); !ok || p.ID != "1" || p.Start.Before(submitted.Add(-2*time.Second)) || p.Start.After(time.Now()) {
		t.Errorf("%+v, submitted at %v", p, submitted)
	}
	run(t, "scancel", "1")
	are("waits")
	stopController()
	eventually(t, "the failure is logged", func() bool { return strings.Contains(log.String(), "cannot read placements") })
	if m := r.MapAt(time.Now()); !slices.Equal(m.JobNames(), []string{"waits"}) {
		t.Errorf("while the controller is away: %q, want what was known", m.JobNames())
	}
}
