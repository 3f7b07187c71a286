// Package distributed runs distributed engines of Prometheus series on loopback, every part of them a process: two
// Prometheus that scrape the same targets and write what they scrape, and behind them Thanos (thanos.go), or Mimir with a
// tenant (mimir.go). They run by the files of deploy/prometheus, in which only addresses are replaced.
package distributed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Names of the programs that engines are made of.
const (
	Prometheus = "prometheus"
	Thanos     = "thanos"
	Mimir      = "mimir"
)

// builds are the build tags and the package of each program. Its module is the directory of that name in tools.
var builds = map[string]struct{ tags, pkg string }{
	// Agents are found by HTTP, and switches by files, which this tag leaves in.
	Prometheus: {"remove_all_sd", "github.com/prometheus/prometheus/cmd/prometheus"},
	// Thanos panics without this tag, which its own builds have.
	Thanos: {"slicelabels", "github.com/thanos-io/thanos/cmd/thanos"},
	// Its own builds have this tag.
	Mimir: {"stringlabels", "github.com/grafana/mimir/cmd/mimir"},
}

// BuildPrograms builds programs into a directory, from the modules in tools, which is the path of that directory. The build
// cache keeps what was compiled.
func BuildPrograms(ctx context.Context, tools, dir string, names ...string) error {
	for _, name := range names {
		b := builds[name]
		c := exec.CommandContext(ctx, "go", "build", "-C", filepath.Join(tools, name), "-trimpath", "-tags", b.tags, "-ldflags", "-s -w", "-o", filepath.Join(dir, name), b.pkg)
		c.Env = append(os.Environ(), "GOFLAGS=")
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", c, err, out)
		}
	}
	return nil
}

// Replicas are the names of the two Prometheus of an engine.
var Replicas = []string{"prometheus-1", "prometheus-2"}

// Options say what an engine is made of.
type Options struct {
	// Programs is the directory with the programs.
	Programs string
	// Files is the directory with the files of deploy/prometheus for the engine.
	Files string
	// Dir is the directory in which the processes run. It has a directory graylink with rules and targets.
	Dir string
	// Replace are pairs of texts that are replaced in all files besides the addresses of the engine itself.
	Replace []string
	// FreeAddress returns an address that nothing listens on.
	FreeAddress func() string
}

// Engine is a running engine.
type Engine struct {
	o         Options
	processes map[string]*process
	names     []string          // of the processes, in the order in which they start
	addresses map[string]string // by the address in the files, or by its purpose
	// Copies are the names of the three processes of which each has a copy of every sample. One may be lost.
	Copies []string
	// query and ruler are the addresses of the HTTP APIs, with the path before /api.
	query, ruler string
}

// process is one process of an engine, which may be killed and started again.
type process struct {
	program string
	args    []string
	ready   string // URL that answers 200 when the process is ready
	cmd     *exec.Cmd
	ended   chan struct{}
	log     bytes.Buffer
}

func newEngine(o Options, copies []string) *Engine {
	return &Engine{o: o, processes: map[string]*process{}, addresses: map[string]string{}, Copies: copies}
}

// add adds a process. ready is the URL that answers 200 when it is ready.
func (e *Engine) add(name, program, ready string, args ...string) {
	e.processes[name] = &process{program: filepath.Join(e.o.Programs, program), ready: ready, args: args}
	e.names = append(e.names, name)
}

// addPrometheus adds a Prometheus, by a file of its own.
func (e *Engine) addPrometheus(name string) {
	own := e.ReplicaAddress(name)
	e.add(name, Prometheus, "http://"+own+"/-/ready", "--config.file="+name+".yml", "--storage.tsdb.path="+name, "--web.listen-address="+own, "--log.level=warn")
}

// startGroups starts processes, and waits until those of one group are ready before it starts the next group.
func (e *Engine) startGroups(ctx context.Context, groups ...[]string) error {
	for _, names := range groups {
		for _, name := range names {
			if err := e.StartProcess(name); err != nil {
				return err
			}
		}
		for _, name := range names {
			if err := e.WaitReady(ctx, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// QueryAddress returns the address of the HTTP API for queries, with the path before /api.
func (e *Engine) QueryAddress() string { return e.query }

// RulerAddress returns the address of the ruler's HTTP API, with the path before /api.
func (e *Engine) RulerAddress() string { return e.ruler }

// ReplicaAddress returns the address of a Prometheus.
func (e *Engine) ReplicaAddress(name string) string { return e.addressFor(name) }

// addressFor returns the address that stands for one of the files, or for a purpose.
func (e *Engine) addressFor(written string) string {
	if e.addresses[written] == "" {
		e.addresses[written] = e.o.FreeAddress()
	}
	return e.addresses[written]
}

// portFor returns the port of the address for a purpose.
func (e *Engine) portFor(purpose string) string {
	_, port, err := net.SplitHostPort(e.addressFor(purpose))
	if err != nil {
		panic(err) // FreeAddress returned no address
	}
	return port
}

// install writes a file of the engine into its directory, with texts replaced. Addresses of Thanos are replaced as well.
func (e *Engine) install(from, to string, replace ...string) error {
	b, err := os.ReadFile(filepath.Join(e.o.Files, from))
	if err != nil {
		return err
	}
	text := strings.NewReplacer(append(replace, e.o.Replace...)...).Replace(string(b))
	for decimal := range 10 {
		for _, port := range []string{"1", "2", "8", "9"} {
			if written := fmt.Sprintf("127.0.0.1:109%d%s", decimal, port); strings.Contains(text, written) {
				text = strings.ReplaceAll(text, written, e.addressFor(written))
			}
		}
	}
	return os.WriteFile(filepath.Join(e.o.Dir, to), []byte(text), 0o644)
}

// StartProcess starts a process, for the first time or again.
func (e *Engine) StartProcess(name string) error {
	p := e.processes[name]
	if p == nil {
		return fmt.Errorf("the engine has no process %s", name)
	}
	p.cmd = exec.Command(p.program, p.args...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = e.o.Dir, &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	p.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait() // most end by a signal
		close(ended)
	}(p.cmd, p.ended)
	return nil
}

// WaitReady waits until a process that was started is ready. It fails if it is not within a minute.
func (e *Engine) WaitReady(ctx context.Context, name string) error {
	p := e.processes[name]
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.ended:
			return fmt.Errorf("%s ended: %s", name, p.log.String())
		default:
		}
		resp, err := http.Get(p.ready)
		if err != nil {
			continue
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return nil
		}
	}
	return fmt.Errorf("%s is not ready after a minute", name)
}

// KillProcess ends a process without warning.
func (e *Engine) KillProcess(name string) error { return e.end(name, syscall.SIGKILL) }

// end sends a signal to a process and waits until it is gone.
func (e *Engine) end(name string, signal syscall.Signal) error {
	p := e.processes[name]
	if p == nil || p.cmd == nil {
		return nil
	}
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%s: %w", name, err)
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(20 * time.Second):
		return errors.Join(fmt.Errorf("%s does not end", name), p.cmd.Process.Kill())
	}
}

// Close stops all processes, those first that were started last.
func (e *Engine) Close() error {
	var errs []error
	for _, name := range slices.Backward(e.names) {
		errs = append(errs, e.end(name, syscall.SIGTERM))
	}
	return errors.Join(errs...)
}

// LogOf returns the log of a process that has ended, or was stopped.
func (e *Engine) LogOf(name string) string {
	p := e.processes[name]
	if p == nil || p.ended == nil {
		return ""
	}
	<-p.ended
	return p.log.String()
}

// ProcessNames returns the names of all processes.
func (e *Engine) ProcessNames() []string { return slices.Clone(e.names) }

// CPUSeconds returns the processor time of a process so far, and whether it is known: it is not of one that has ended.
func (e *Engine) CPUSeconds(name string) (seconds float64, known bool) {
	p := e.processes[name]
	if p == nil || p.cmd == nil {
		return 0, false
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	const user, system, ticksPerSecond = 11, 12, 100 // proc(5): utime and stime
	if len(fields) <= system {
		return 0, false
	}
	for _, field := range []int{user, system} {
		ticks, err := strconv.ParseFloat(fields[field], 64)
		if err != nil {
			return 0, false
		}
		seconds += ticks / ticksPerSecond
	}
	return seconds, true
}
