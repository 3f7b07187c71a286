package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
	config_util "github.com/prometheus/common/config"

	"github.com/graylink/graylink/analyzer/audit"
	"github.com/graylink/graylink/analyzer/audit/gather"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/evidence/promserver"
	"github.com/graylink/graylink/analyzer/tracing"
	"github.com/graylink/graylink/deploy"
	"github.com/graylink/graylink/internal/buildversion"
	"github.com/graylink/graylink/internal/durable"
	"github.com/graylink/graylink/internal/fabric"
)

// auditFlags are the flags of graylink audit.
type auditFlags struct {
	topology, coordinator, prometheus, httpConfig string
	scope, analyzer, criteria, compare, output    string
	duration, settle, scrape                      time.Duration
	loadFrom, switches, collectors                string
	bandwidth                                     []string
}

// addAudit adds the command audit, which accepts a fabric or says what is wrong with it.
func addAudit(app *kingpin.Application, commands map[string]command) {
	cmd := app.Command("audit", "Accept a fabric by evidence, or name what is wrong with it: coverage, wiring, loss, delay, symmetry, ECMP, clocks and hosts by the probes of running agents; marks, speeds, optics, configuration and findings by the series of switches and NICs where there are any. Writes audit.json, audit.md, audit.html and junit.xml. Exit code 0: passed, 1: it could not be run, 2: failed, 3: the evidence does not suffice.")
	f := &auditFlags{}
	cmd.Flag("topology", "Topology of the fabric as it is planned (YAML).").Required().StringVar(&f.topology)
	cmd.Flag("coordinator", "Base URL of the coordinator's web listener, which has the addresses of the agents.").Required().StringVar(&f.coordinator)
	cmd.Flag("prometheus", "Base URL of the Prometheus that scrapes the agents. If empty, the audit scrapes them itself.").StringVar(&f.prometheus)
	cmd.Flag("http.config", "File with the TLS and authentication settings for coordinator, Prometheus and agents (Prometheus' HTTP client configuration).").StringVar(&f.httpConfig)
	cmd.Flag("scrape-interval", "Interval at which the series of flows are scraped.").Default("1s").DurationVar(&f.scrape)
	cmd.Flag("scope", "Part that is judged: fabric, plane:NAME, pod:NAME, node:NAME, link:A--B or maintenance:ID, which is what a maintenance window covers.").Default("fabric").StringVar(&f.scope)
	cmd.Flag("analyzer", "Base URL of the analyzer that has the maintenance windows. Only --scope maintenance:ID needs it.").StringVar(&f.analyzer)
	cmd.Flag("duration", "Time for which evidence is collected.").Default("10m").DurationVar(&f.duration)
	cmd.Flag("settle", "Longest time, before that, until the paths of the flows are known.").Default("1m").DurationVar(&f.settle)
	cmd.Flag("criteria", "File of the criteria (YAML). Without it, the defaults hold.").StringVar(&f.criteria)
	cmd.Flag("compare", "audit.json of an earlier audit, from which the report says what changed.").StringVar(&f.compare)
	cmd.Flag("load-from", "What load the fabric has during the audit, such as nccl-tests of a name. Marks and pauses are then not judged.").StringVar(&f.loadFrom)
	cmd.Flag("bandwidth", "Output of nccl-tests or perftest that was run before, as FILE or NODE,NODE=FILE. May be repeated.").StringsVar(&f.bandwidth)
	cmd.Flag("switches", "File of the addresses of graylink-switch, as Prometheus' file_sd_configs has them. Without --prometheus alone.").StringVar(&f.switches)
	cmd.Flag("collectors", "File of the addresses of Collectors with Graylink's receivers, in the same format. Without --prometheus alone.").StringVar(&f.collectors)
	cmd.Flag("output", "Directory that the reports are written to. It is created if it does not exist.").Required().StringVar(&f.output)
	commands[cmd.FullCommand()] = f.run
}

// inputs are what the files that the flags name hold.
type inputs struct {
	graph    *fabric.Graph
	scope    audit.Scope
	criteria audit.Criteria
	before   *audit.Report // nil without --compare
	http     config_util.HTTPClientConfig
	runs     []audit.BandwidthRun
	targets  map[string]string // files of addresses, by job
}

// minScrapes is the least number of scrapes of an audit.
const minScrapes = 4

// readInputs reads the files that the flags name, and the maintenance window of the scope.
func (f *auditFlags) readInputs(ctx context.Context) (in *inputs, err error) {
	in = &inputs{criteria: audit.DefaultCriteria(), http: config_util.DefaultHTTPClientConfig}
	if f.scrape < 100*time.Millisecond || f.duration < minScrapes*f.scrape {
		return nil, fmt.Errorf("--duration %s, --scrape-interval %s: an interval of at least 100ms is expected, and at least %d times that as the duration", f.duration, f.scrape, minScrapes)
	}
	if _, in.graph, err = loadGraph(f.topology); err != nil {
		return nil, err
	}
	if f.httpConfig != "" {
		c, _, err := config_util.LoadHTTPConfigFile(f.httpConfig)
		if err != nil {
			return nil, fmt.Errorf("--http.config: %w", err)
		}
		in.http = *c
	}
	if in.scope, err = f.readScope(ctx, in); err != nil {
		return nil, fmt.Errorf("--scope: %w", err)
	}
	if f.criteria != "" {
		if in.criteria, err = audit.LoadCriteria(f.criteria); err != nil {
			return nil, fmt.Errorf("--criteria: %w", err)
		}
	}
	if f.compare != "" {
		if in.before, err = audit.LoadReport(f.compare); err != nil {
			return nil, fmt.Errorf("--compare: %w", err)
		}
		if in.before.Scope != in.scope.String() {
			return nil, fmt.Errorf("--compare %s: its scope is %s, and %s is audited", f.compare, in.before.Scope, in.scope)
		}
	}
	if err := f.readMoreInputs(in); err != nil {
		return nil, err
	}
	for flag, value := range map[string]string{"--coordinator": f.coordinator, "--prometheus": f.prometheus} {
		if flag == "--prometheus" && value == "" {
			continue
		}
		if _, err := evidence.ServerURL(value); err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
	}
	// The directory is made first, so that ten minutes are not spent in vain.
	return in, os.MkdirAll(f.output, 0o755)
}

// readMoreInputs reads the outputs of tests of bandwidth, and checks the files of addresses.
func (f *auditFlags) readMoreInputs(in *inputs) (err error) {
	for _, value := range f.bandwidth {
		var hosts []string
		file := value
		if names, after, given := strings.Cut(value, "="); given {
			if file = after; names != "" {
				hosts = strings.Split(names, ",")
			}
		}
		runs, err := audit.LoadBandwidth(file, hosts)
		if err != nil {
			return fmt.Errorf("--bandwidth: %w", err)
		}
		in.runs = append(in.runs, runs...)
	}
	if f.prometheus != "" && f.switches+f.collectors != "" {
		return errors.New("--switches and --collectors: the audit scrapes them itself, and cannot with --prometheus")
	}
	in.targets, err = checkTargetFiles(map[string]string{switchJob: f.switches, collectorJob: f.collectors})
	return err
}

func (f *auditFlags) run(ctx context.Context) error {
	in, err := f.readInputs(ctx)
	if err != nil {
		return err
	}
	e, err := f.collect(ctx, in)
	if err != nil {
		return fmt.Errorf("the audit was not run: %w", err)
	}
	e.LoadFrom, e.Runs = f.loadFrom, in.runs
	r := audit.Run(e, in.criteria, in.scope)
	r.Program = "graylink " + buildversion.Version()
	if in.before != nil {
		r.Compared = audit.Compare(in.before, &r)
	}
	if err := writeReports(f.output, &r); err != nil {
		return err
	}
	printAudit(os.Stdout, &r)
	if code := r.ExitCode(); code != 0 {
		return exitError{code: code}
	}
	return nil
}

// targetsEvery is the interval at which the addresses of the agents are read again.
const targetsEvery = 10 * time.Second

// collect collects the evidence.
func (f *auditFlags) collect(ctx context.Context, in *inputs) (e *audit.Evidence, err error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	client, err := config_util.NewClientFromConfig(in.http, "graylink_audit", config_util.WithUserAgent("graylink-audit"))
	if err != nil {
		return nil, fmt.Errorf("--http.config: %w", err)
	}
	client.Timeout = agentTimeout
	db, closeDB, err := f.openPrometheus(in, log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeDB()) }()
	targets := &tracing.Targets{Client: client, Coordinator: f.coordinator, Log: log}
	run, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		targets.Run(run, targetsEvery)
	}()
	defer func() {
		stop()
		<-done
	}()
	began, agents := time.Now(), tracing.HTTPAgents{Client: client, URL: targets.URLOf}
	return gather.Collect(ctx, gather.Options{Graph: in.graph, Scope: in.scope, RoCEMTU: in.criteria.Ports.RoCEMTU, MTUAgents: agents, DB: db, Scrape: f.scrape, Duration: f.duration, Settle: f.settle,
		Agents: agents, Log: log, Progress: func(format string, args ...any) {
			fmt.Fprintf(os.Stderr, "[%4.0fs] %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
		}})
}

// agentTimeout bounds a request to an agent or to the coordinator.
const agentTimeout = 30 * time.Second

// openPrometheus returns the Prometheus of the site, or one in this process that scrapes the agents.
func (f *auditFlags) openPrometheus(in *inputs, log *slog.Logger) (db evidence.Querier, closeDB func() error, err error) {
	if f.prometheus != "" {
		p, err := evidence.NewHTTP(evidence.HTTPOptions{URL: f.prometheus, Client: in.http, Timeout: agentTimeout, Log: log})
		if err != nil {
			return nil, nil, fmt.Errorf("--prometheus: %w", err)
		}
		return p, p.Close, nil
	}
	var text []byte
	if f.httpConfig != "" {
		if text, err = os.ReadFile(f.httpConfig); err != nil {
			return nil, nil, fmt.Errorf("--http.config: %w", err)
		}
	}
	config, err := scrapeConfig(deploy.PrometheusConfig, f.coordinator, f.httpConfig, text, f.scrape, in.targets)
	if err != nil {
		return nil, nil, err
	}
	s, err := promserver.New(promserver.Options{Config: config, Log: log})
	if err != nil {
		return nil, nil, err
	}
	return s, s.Close, nil
}

// writeReports writes the report in all formats.
func writeReports(dir string, r *audit.Report) error {
	for _, x := range []struct {
		name  string
		write func(io.Writer) error
	}{{"audit.json", r.WriteJSON}, {"audit.md", r.WriteMarkdown}, {"audit.html", r.WriteHTML}, {"junit.xml", r.WriteJUnit}} {
		var b bytes.Buffer
		err := x.write(&b)
		if err == nil {
			err = durable.WritePublicFile(filepath.Join(dir, x.name), b.Bytes())
		}
		if err != nil {
			return fmt.Errorf("cannot write the report %s: %w", x.name, err)
		}
	}
	return nil
}

// maxPrintedItems is the number of items of a check that are printed.
const maxPrintedItems = 10

// printAudit prints the outcome of every check, and the elements that did not pass.
func printAudit(w io.Writer, r *audit.Report) {
	if text := r.RefusalText(); text != "" {
		fmt.Fprintln(w, "error    "+text)
	}
	for i := range r.Checks {
		c := &r.Checks[i]
		fmt.Fprintf(w, "%-8s %-3s %s: %s\n", c.Status, c.ID, c.Title, c.Text)
		for j := range c.Items[:min(len(c.Items), maxPrintedItems)] {
			x := &c.Items[j]
			at := x.Element
			if x.Direction != "" {
				at = x.Direction
			}
			fmt.Fprintf(w, "         %-7s %s: %s\n", x.Status, at, x.FullText())
		}
		if more := len(c.Items) + c.Omitted - maxPrintedItems; more > 0 {
			fmt.Fprintf(w, "         and %d more elements\n", more)
		}
	}
	if r.Compared != nil {
		fmt.Fprintln(w, r.Compared.Describe())
	}
	fmt.Fprintln(w, r.Result())
}
