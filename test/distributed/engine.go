// Package distributed runs a distributed engine of Prometheus series on loopback, every part of it a process: two Prometheus
// that scrape the same targets and write what they scrape, a router for each, three Thanos receivers that keep three copies,
// a querier, a ruler, and optionally the querier over sidecars. They run by the files of deploy/prometheus/thanos, in which
// only addresses are replaced.
package distributed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

// Programs are the paths of the programs of an engine.
type Programs struct{ Prometheus, Thanos string }

// BuildPrograms builds the programs into a directory, from the modules in tools, which is the path of that directory. The
// build cache keeps what was compiled.
func BuildPrograms(ctx context.Context, tools, dir string) (Programs, error) {
	p := Programs{Prometheus: filepath.Join(dir, "prometheus"), Thanos: filepath.Join(dir, "thanos")}
	for _, b := range []struct{ module, tags, out, pkg string }{
		// Agents are found by HTTP, and switches by files, which this tag leaves in.
		{"prometheus", "remove_all_sd", p.Prometheus, "github.com/prometheus/prometheus/cmd/prometheus"},
		// Thanos panics without this tag, which its own builds have.
		{"thanos", "slicelabels", p.Thanos, "github.com/thanos-io/thanos/cmd/thanos"},
	} {
		c := exec.CommandContext(ctx, "go", "build", "-C", filepath.Join(tools, b.module), "-trimpath", "-tags", b.tags, "-ldflags", "-s -w", "-o", b.out, b.pkg)
		c.Env = append(os.Environ(), "GOFLAGS=")
		if out, err := c.CombinedOutput(); err != nil {
			return p, fmt.Errorf("%s: %w\n%s", c, err, out)
		}
	}
	return p, nil
}

// Names of the processes of an engine, in the order in which they start.
var (
	Receivers = []string{"receiver-1", "receiver-2", "receiver-3"}
	Replicas  = []string{"prometheus-1", "prometheus-2"}
	routers   = []string{"router-1", "router-2"}
)

const (
	querier = "querier"
	ruler   = "ruler"
)

// Options say what an engine is made of.
type Options struct {
	Programs Programs
	// Files is the directory with the files of deploy/prometheus/thanos.
	Files string
	// Dir is the directory in which the processes run. It has a directory graylink with rules and targets.
	Dir string
	// Replace are pairs of texts that are replaced in all files besides the addresses of the engine itself.
	Replace []string
	// FreeAddress returns an address that nothing listens on.
	FreeAddress func() string
}

// SidecarQuerier is the name of a querier over the sidecars of both Prometheus.
const SidecarQuerier = "querier-sidecars"

var sidecars = []string{"sidecar-1", "sidecar-2"}

// Engine is a running engine.
type Engine struct {
	o         Options
	processes map[string]*process
	addresses map[string]string // by the address in the files
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

// decimals are the parts of addresses by which the processes of one kind differ: those of the first are in the files.
var decimals = map[string]string{"receiver-1": "0", "receiver-2": "1", "receiver-3": "2", "router-1": "3", "router-2": "6", "sidecar-1": "7", "sidecar-2": "8"}

// Start starts all processes and waits until they are ready. It fails if one is not within a minute. Close stops those
// that were started also then.
func Start(ctx context.Context, o Options) (*Engine, error) {
	e := &Engine{o: o, processes: map[string]*process{}, addresses: map[string]string{}}
	if err := e.writeFiles(); err != nil {
		return e, err
	}
	return e, e.startGroups(ctx, Receivers, routers, []string{querier, ruler}, Replicas)
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

// StartSidecars starts the layout without receivers beside the other one: a sidecar for each Prometheus, and a querier over
// them. It returns the address of that querier's HTTP API, and fails if a process is not ready within a minute.
func (e *Engine) StartSidecars(ctx context.Context) (address string, err error) {
	return e.addressFor("127.0.0.1:10992"), e.startGroups(ctx, sidecars, []string{SidecarQuerier})
}

// QueryAddress returns the address of the querier's HTTP API.
func (e *Engine) QueryAddress() string { return e.addressFor("127.0.0.1:10942") }

// RulerAddress returns the address of the ruler's HTTP API.
func (e *Engine) RulerAddress() string { return e.addressFor("127.0.0.1:10952") }

// ReplicaAddress returns the address of a Prometheus.
func (e *Engine) ReplicaAddress(name string) string { return e.addressFor(name) }

// addressFor returns the address that stands for one of the files.
func (e *Engine) addressFor(written string) string {
	if e.addresses[written] == "" {
		e.addresses[written] = e.o.FreeAddress()
	}
	return e.addresses[written]
}

// install writes a file of deploy/prometheus/thanos into the engine's directory, with texts replaced.
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

// writeFiles writes the files of all processes.
func (e *Engine) writeFiles() error {
	var errs []error
	thanos := func(name, command string) {
		e.processes[name] = &process{program: e.o.Programs.Thanos, args: []string{command, "@" + name + ".flags"}}
	}
	errs = append(errs, e.install("hashrings.json", "hashrings.json"), e.install("endpoints.yml", "endpoints.yml"))
	for _, name := range Receivers {
		errs = append(errs, e.install("receiver.flags", name+".flags", "127.0.0.1:1090", "127.0.0.1:109"+decimals[name], "receiver-1", name))
		thanos(name, "receive")
		e.processes[name].ready = "http://" + e.addressFor("127.0.0.1:109"+decimals[name]+"2") + "/-/ready"
	}
	for _, name := range routers {
		errs = append(errs, e.install("router.flags", name+".flags", "127.0.0.1:1093", "127.0.0.1:109"+decimals[name], "router-1", name, "--tsdb.path=router", "--tsdb.path="+name))
		thanos(name, "receive")
		e.processes[name].ready = "http://" + e.addressFor("127.0.0.1:109"+decimals[name]+"2") + "/-/ready"
	}
	for i, name := range sidecars {
		errs = append(errs, e.install("sidecar.flags", name+".flags", "127.0.0.1:1097", "127.0.0.1:109"+decimals[name], "127.0.0.1:9090", e.addressFor(Replicas[i])))
		thanos(name, "sidecar")
		e.processes[name].ready = "http://" + e.addressFor("127.0.0.1:109"+decimals[name]+"2") + "/-/ready"
	}
	errs = append(errs, e.install("endpoints-sidecars.yml", "endpoints-sidecars.yml"),
		e.install("querier.flags", SidecarQuerier+".flags", "127.0.0.1:1094", "127.0.0.1:1099", "endpoints.yml", "endpoints-sidecars.yml"))
	thanos(SidecarQuerier, "query")
	e.processes[SidecarQuerier].ready = "http://" + e.addressFor("127.0.0.1:10992") + "/-/ready"
	errs = append(errs, e.install("querier.flags", querier+".flags"), e.install("ruler.flags", ruler+".flags"))
	thanos(querier, "query")
	thanos(ruler, "rule")
	e.processes[querier].ready = "http://" + e.QueryAddress() + "/-/ready"
	e.processes[ruler].ready = "http://" + e.RulerAddress() + "/-/ready"
	for i, name := range Replicas {
		own := e.addressFor(name)
		errs = append(errs, e.install("prometheus.yml", name+".yml", "127.0.0.1:9090", own, "prometheus-1", name, "127.0.0.1:1093", "127.0.0.1:109"+decimals[routers[i]]))
		e.processes[name] = &process{program: e.o.Programs.Prometheus, ready: "http://" + own + "/-/ready",
			args: []string{"--config.file=" + name + ".yml", "--storage.tsdb.path=" + name, "--web.listen-address=" + own, "--log.level=warn"}}
	}
	return errors.Join(errs...)
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

// Close stops all processes, those first that write to others.
func (e *Engine) Close() error {
	var errs []error
	for _, name := range slices.Concat([]string{SidecarQuerier}, sidecars, Replicas, []string{ruler, querier}, routers, Receivers) {
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
func (e *Engine) ProcessNames() []string {
	return slices.Concat(Replicas, routers, Receivers, []string{querier, ruler}, sidecars, []string{SidecarQuerier})
}

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
