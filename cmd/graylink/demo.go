package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/deploy"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/internal/webserver"
)

func addDemo(app *kingpin.Application, commands map[string]command) {
	cmd := app.Command("demo", "Build a real fabric on this machine, or simulate one, break a link in it and show the verdict. Exit code 0: the right element was named (or rightly none), 1: the demo could not run, 2: the verdict was wrong, or there was another one besides.")
	var o demoFlags
	cmd.Flag("fault", "What to break: "+fmt.Sprint(demo.FaultKinds(demo.Namespaces, lab.RoutingStatic, fabric.ECMP))+", several separated by commas; with --routing frr also "+fmt.Sprint(lab.RoutingFaultKinds())+"; with --forwarding srv6 also "+lab.KindSIDUnknown+"; with --fabric ib "+fmt.Sprint(demo.FaultKinds(demo.InfiniBand, lab.RoutingStatic, fabric.ECMP))+".").Default("delay").StringVar(&o.faults)
	cmd.Flag("seed", "Seed that chooses the place of the fault.").Default("1").Uint64Var(&o.seed)
	cmd.Flag("seeds", "A..B: every fault with each of these seeds, in one lab.").StringVar(&o.seeds)
	cmd.Flag("delay", "Added delay of the faults delay, nic-slow and switch-slow.").Default("2ms").DurationVar(&o.params.Delay)
	cmd.Flag("loss", "Loss ratio of the fault loss.").Default("0.1").Float64Var(&o.params.Loss)
	cmd.Flag("step", "Step of the fault clock-step.").Default(lab.DefaultStep.String()).DurationVar(&o.params.Step)
	cmd.Flag("drift-ppm", "Drift of the fault clock-drift, in parts per million.").Default(fmt.Sprint(lab.DefaultDriftPPM)).Float64Var(&o.params.DriftPPM)
	cmd.Flag("bend-clocks", "Make every host's clock wrong, by up to 5 s and 30 ppm: one-way delays come from clock sync alone.").Default("true").BoolVar(&o.bend)
	cmd.Flag("duration", "Duration of the faults none and host-stall.").Default("30s").DurationVar(&o.duration)
	cmd.Flag("job", "Run a job on the fabric as well: the link that it crosses is delayed, then a rank comes late. Needs root, one fault delay, one seed.").BoolVar(&o.job)
	cmd.Flag("csig", "Add flows whose probes carry in-band signals, which every port updates: they name the bottleneck of each path. Not with --fabric ib.").BoolVar(&o.signals)
	cmd.Flag("topology", "Topology file. Default: the demo's own.").StringVar(&o.topology)
	cmd.Flag("format", "json prints one object per fault on standard output.").Default("text").EnumVar(&o.format, "text", "json")
	cmd.Flag("fabric", "netns: network namespaces, a real fabric, needs root; sim: a simulated one; ib: an InfiniBand subnet that OpenSM routes on ibsim, with simulated packets; auto: netns as root, else sim.").Default("auto").EnumVar(&o.fabric, "auto", demo.Namespaces, demo.Simulated, demo.InfiniBand)
	cmd.Flag("routing", "Who routes between switches of network namespaces. static: the lab; frr: FRR of every switch, which needs Debian's package frr and which the faults of routing need.").Default(lab.RoutingStatic).EnumVar(&o.routing, lab.RoutingKinds()...)
	cmd.Flag("forwarding", forwardingHelp).EnumVar(&o.forwarding, fabric.ForwardingKinds()...)
	cmd.Flag("adaptive-routing", "With --fabric ib: switches choose for each packet between all shortest ways.").BoolVar(&o.adaptive)
	cmd.Flag("flows", "Flows (source ports) per pair of NICs; 0 chooses for coverage.").Default("0").IntVar(&o.flows)
	cmd.Flag("keep", "Keep the fabric running after the verdict, until Ctrl-C.").BoolVar(&o.keep)
	cmd.Flag("name", "Name of the lab. A second demo needs another name.").Default("demo").StringVar(&o.name)
	cmd.Flag("web.listen-address", "Address on which the page is served.").Default("127.0.0.1:8990").StringVar(&o.listen)
	webserver.AddAllowedHosts(cmd, &o.hosts)
	cmd.Flag("node-binary", "Path of graylink-node. Default: beside this program, or in PATH.").StringVar(&o.node)
	cmd.Flag("switch-binary", "Path of graylink-switch. Default: beside this program, or in PATH.").StringVar(&o.sw)
	cmd.Flag("trace-only", "Use traces alone for paths: run no graylink-switch.").BoolVar(&o.traceOnly)
	cmd.Flag("sightings-only", "Use the sightings of switches alone for paths: do not trace.").BoolVar(&o.sightingsOnly)
	cmd.Flag("without-agent", "Switch that runs no graylink-switch. May be repeated.").StringsVar(&o.agentless)
	cmd.Flag("log.level", "Log of the analyzer and the agents on standard error.").Default("none").EnumVar(&o.level, "none", "debug", "info", "warn", "error")
	commands[cmd.FullCommand()] = o.runDemo
}

type demoFlags struct {
	faults, seeds, topology, format, fabric, name, listen, node, level string
	routing, forwarding                                                string
	seed                                                               uint64
	params                                                             demo.Params
	duration                                                           time.Duration
	flows                                                              int
	keep, bend, job, adaptive, signals                                 bool
	sw                                                                 string
	traceOnly, sightingsOnly                                           bool
	agentless, hosts                                                   []string
}

// chooseFabric checks the flags that depend on the kind of the fabric, and resolves auto.
func (o *demoFlags) chooseFabric() error {
	switch {
	case o.fabric == demo.Namespaces && os.Geteuid() != 0:
		return errors.New("--fabric netns builds the fabric from network namespaces and needs root: run it as root, for instance: sudo make demo")
	case o.fabric == "auto" && os.Geteuid() != 0:
		fmt.Fprintln(os.Stderr, "a fabric of network namespaces needs root: the fabric is simulated (--fabric sim); for a real one, run: sudo make demo")
		o.fabric = demo.Simulated
	case o.fabric == "auto":
		o.fabric = demo.Namespaces
	}
	if o.job && o.fabric != demo.Namespaces {
		fmt.Fprintln(os.Stderr, "the job of --job needs root and a fabric of network namespaces: the demo goes on without it")
		o.job = false
	}
	if o.routing == lab.RoutingFRR && o.fabric != demo.Namespaces {
		return errors.New("--routing frr needs root and a fabric of network namespaces: FRR cannot route in a simulated fabric or an InfiniBand subnet")
	}
	if err := lab.CheckRouting(o.routing); err != nil {
		return err
	}
	if o.forwarding != "" && o.fabric == demo.InfiniBand {
		return errors.New("--forwarding does not go with --fabric ib: switches of a subnet forward by its tables; see --adaptive-routing")
	}
	if o.adaptive && o.fabric != demo.InfiniBand {
		return errors.New("--adaptive-routing goes with --fabric ib")
	}
	if o.fabric == demo.InfiniBand {
		for flag, given := range map[string]bool{"--csig": o.signals, "--topology": o.topology != "", "--flows": o.flows != 0, "--trace-only": o.traceOnly, "--sightings-only": o.sightingsOnly, "--without-agent": len(o.agentless) > 0} {
			if given {
				return fmt.Errorf("%s does not go with --fabric ib: the topology is read from the subnet, paths are its forwarding tables, and its links have no Ethernet header", flag)
			}
		}
	}
	if o.fabric != demo.Namespaces {
		return nil
	}
	// It is better to fail now than when the first fault is due.
	for program, pkg := range map[string]string{"ip": "iproute2", "iptables": "iptables"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("the demo needs the program %q, which is not in PATH: apt-get install %s; or try --fabric sim", program, pkg)
		}
	}
	return nil
}

func (o *demoFlags) runDemo(ctx context.Context) error {
	if err := webserver.CheckAllowedHosts(o.hosts); err != nil {
		return err
	}
	if o.flows < 0 || o.flows > 64 {
		return fmt.Errorf("--flows %d: want 0 to 64", o.flows)
	}
	if o.job && (o.faults != lab.KindDelay || o.seeds != "") {
		return errors.New("--job goes with --fault delay and without --seeds")
	}
	if err := o.chooseFabric(); err != nil {
		return err
	}
	topo, err := o.loadTopology()
	if err != nil {
		return err
	}
	kinds, err := demo.ParseKinds(o.fabric, o.routing, topo.Forwarding, o.faults)
	if err != nil {
		return fmt.Errorf("--fault: %w", err)
	}
	from, to := o.seed, o.seed
	if o.seeds != "" {
		if from, to, err = demo.ParseSeeds(o.seeds); err != nil {
			return err
		}
	}
	if topo.Sprays() && slices.Contains(kinds, lab.KindCongest) {
		return errors.New("--fault congest does not go with a fabric that sprays packets: hosts cannot fill a port that takes only a share of every flow; try incast")
	}
	switch {
	case o.traceOnly && o.sightingsOnly:
		return errors.New("--trace-only and --sightings-only exclude each other")
	case o.traceOnly && len(o.agentless) > 0:
		return errors.New("--trace-only runs no graylink-switch and excludes --without-agent")
	}
	for _, sw := range o.agentless {
		if !slices.ContainsFunc(topo.Switches, func(s fabric.Switch) bool { return s.Name == sw }) {
			return fmt.Errorf("--without-agent %s: the topology has no such switch", sw)
		}
	}
	if o.node == "" && o.fabric == demo.Namespaces {
		if o.node, err = findProgram("graylink-node", "--node-binary"); err != nil {
			return err
		}
	}
	if o.sw == "" && !o.traceOnly && o.fabric == demo.Namespaces {
		if o.sw, err = findProgram("graylink-switch", "--switch-binary"); err != nil {
			return err
		}
	}
	opts := demo.Options{Name: o.name, Topology: topo, Fabric: o.fabric, Routing: o.routing, Adaptive: o.adaptive, Listen: o.listen, AllowedHosts: o.hosts, Flows: o.flows, NodeBin: o.node, TraceOnly: o.traceOnly, SwitchBin: o.sw, Agentless: o.agentless, NoTraces: o.sightingsOnly,
		BendClocks: o.bend, Seed: from, Job: o.job, Signals: o.signals, Progress: os.Stderr}
	if o.level != "none" {
		var level slog.Level
		if err := level.UnmarshalText([]byte(o.level)); err != nil {
			return err
		}
		w := &lockedWriter{w: os.Stderr}
		opts.Log, opts.AgentLogs = slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})), w
	}
	// The reader of the output may exit early (a pager, head). The fabric is taken down all the same.
	signal.Ignore(syscall.SIGPIPE)
	d, err := demo.Start(ctx, opts)
	if err == nil {
		err = o.runFaults(ctx, d, kinds, from, to)
	}
	fmt.Fprintln(os.Stderr, "taking the fabric down")
	if cerr := d.Close(); cerr != nil {
		err = errors.Join(err, cerr)
	}
	if errors.Is(err, context.Canceled) {
		return exitError{code: 1, err: errors.New("interrupted; everything the demo started is gone")}
	}
	return err
}

func (o *demoFlags) loadTopology() (*fabric.Topology, error) {
	own := deploy.DemoTopology
	if o.forwarding == string(fabric.SRv6) {
		own = deploy.SRv6Topology
	}
	t, found := fabric.ParseTopology("the demo's topology", own)
	err := found.Err()
	if o.topology != "" {
		t, _, err = loadGraph(o.topology)
	}
	if err != nil {
		return nil, err
	}
	if t, err = lab.WithForwarding(t, o.forwarding); err != nil {
		return nil, fmt.Errorf("--forwarding: %w", err)
	}
	if t.IsSourceRouted() && o.fabric != demo.Namespaces {
		return nil, errors.New("forwarding srv6 needs root and a fabric of network namespaces: simulated hosts cannot choose the path of a packet")
	}
	return t, nil
}

func (o *demoFlags) runFaults(ctx context.Context, d *demo.Demo, kinds []string, from, to uint64) error {
	wrong := 0
	first := true
	for _, kind := range kinds {
		for seed := from; seed <= to; seed++ {
			p, err := demo.PlanFault(d.Graph(), kind, seed, o.params)
			if err != nil {
				return err
			}
			if !first {
				if err := d.AwaitSteadyState(ctx); err != nil {
					return err
				}
			}
			first = false
			if d.Job() {
				if err := d.MoveToJob(ctx, &p, seed); err != nil {
					return err
				}
			}
			out, err := d.RunFault(ctx, p, seed, o.duration)
			if err != nil {
				return err
			}
			if !out.IsCorrect() {
				wrong++
			}
			if o.format == "json" {
				err = out.WriteJSON(os.Stdout)
			} else {
				_, err = io.WriteString(os.Stdout, outcomeText(out))
			}
			if err != nil {
				return fmt.Errorf("cannot write the outcome: %w", err)
			}
		}
	}
	if o.keep {
		more := ""
		if d.Lab() != nil {
			more = "; break more with: graylink lab --name " + o.name + " fault add ..."
		}
		fmt.Fprintf(os.Stderr, "the fabric stays up: %s (Ctrl-C ends it%s)\n", d.URL(), more)
		<-ctx.Done()
		return nil
	}
	if wrong > 0 {
		return exitError{code: 2, err: fmt.Errorf("%d outcomes were wrong", wrong)}
	}
	return nil
}

func outcomeText(o demo.Outcome) string {
	s := "\n"
	switch {
	case o.Verdict != nil:
		s += verdictText(*o.Verdict)
	case o.ElementMatch:
		s += "No verdict: nothing is wrong with the network.\n"
	default:
		s += "No verdict.\n"
	}
	if o.Fault.Element != "" {
		right := "the verdict is right"
		if !o.ElementMatch {
			right = "the verdict is NOT right"
		}
		s += fmt.Sprintf("  injected   %s at %s %s: %s\n", o.Fault.Kind, o.Fault.Element, o.Fault.Direction, right)
	}
	if o.SecondsToVerdict != nil {
		s += fmt.Sprintf("  verdict    after %.1f s\n", *o.SecondsToVerdict)
	}
	if o.SecondsToClear != nil {
		s += fmt.Sprintf("  all clear  %.1f s after healing\n", *o.SecondsToClear)
	}
	for _, v := range o.FalseVerdicts {
		s += fmt.Sprintf("  besides    a verdict that is NOT right: %s (%s, %s)\n", v.Element.ID, v.Kind, v.Scenario)
	}
	if o.Job != nil {
		s += o.Job.JobLines()
	}
	return s + "\n"
}

// findProgram finds an agent's program beside this one, else in PATH.
func findProgram(program, flag string) (string, error) {
	if exe, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(exe), program)
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	p, err := exec.LookPath(program)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside this program nor in PATH: build it with make build, or name it with %s", program, flag)
	}
	return p, nil
}

type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}
