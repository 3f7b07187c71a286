package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plan"
)

func addPlan(app *kingpin.Application, commands map[string]command) {
	cmd := app.Command("plan", "Choose UDP source ports for the queue pairs of jobs, so that they fill the fabric evenly.")
	addPlanMake(cmd, commands)
	addPlanCatalogue(cmd, commands)
	addPlanCheck(cmd, commands)
	addPlanSimulate(cmd, commands)
	addPlanObserve(cmd, commands)
}

// planInput are the arguments that several commands of the planner have.
type planInput struct {
	topology, catalogue, jobs, verdicts string
	exclude                             []string
	goodput                             float64
	badLines                            int
}

func (in *planInput) addFlags(cmd *kingpin.CmdClause) {
	cmd.Flag("topology", "Topology file (YAML), with the speed of every link.").Required().StringVar(&in.topology)
	cmd.Flag("goodput-ratio", "Share of a link's speed that payload reaches.").Default(fmt.Sprint(plan.DefaultGoodput)).Float64Var(&in.goodput)
	cmd.Flag("exclude", "Switch, node, NIC, port, link or direction (FROM->TO) to avoid; may be repeated.").StringsVar(&in.exclude)
}

// network returns the network of the topology, without what is excluded.
func (in *planInput) network(ctx context.Context) (*plan.Network, error) {
	_, g, err := loadGraph(in.topology)
	if err != nil {
		return nil, err
	}
	n, err := plan.NewNetwork(g, in.goodput)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", in.topology, err)
	}
	for _, e := range in.exclude {
		if err := n.Exclude(e, "--exclude"); err != nil {
			return nil, fmt.Errorf("flag --exclude: %w", err)
		}
	}
	if in.verdicts == "" {
		return n, nil
	}
	verdicts, err := in.readVerdicts(ctx)
	if err != nil {
		return nil, err
	}
	for i := range verdicts {
		n.ExcludeVerdict(&verdicts[i])
	}
	return n, nil
}

// verdictReport is as much as is read of an analyzer's verdicts.
type verdictReport struct {
	Verdicts []struct {
		fabric.Verdict
		// Open is nil in the files of localize, whose verdicts have no end.
		Open *bool `json:"open"`
	} `json:"verdicts"`
}

// open returns the verdicts that are open: an analyzer lists those that are closed as well.
func (r *verdictReport) open() (out []fabric.Verdict) {
	for i := range r.Verdicts {
		if v := &r.Verdicts[i]; v.Open == nil || *v.Open {
			out = append(out, v.Verdict)
		}
	}
	return out
}

// readVerdicts reads the open verdicts from a file, or from an analyzer.
func (in *planInput) readVerdicts(ctx context.Context) ([]fabric.Verdict, error) {
	var report verdictReport
	if u, err := url.Parse(in.verdicts); err == nil && (u.Scheme == "http" || u.Scheme == "https") {
		const path = "/api/v1/verdicts"
		if !strings.HasSuffix(u.Path, path) {
			u = u.JoinPath(path)
		}
		if err := getJSON(ctx, &http.Client{Timeout: 30 * time.Second}, u.String(), &report); err != nil {
			return nil, fmt.Errorf("cannot get the open verdicts: %w", err)
		}
		return report.open(), nil
	}
	f, err := os.Open(in.verdicts)
	if err != nil {
		return nil, fmt.Errorf("verdicts: %w", err)
	}
	defer f.Close()
	if err := json.NewDecoder(io.LimitReader(f, 64<<20)).Decode(&report); err != nil {
		return nil, fmt.Errorf("%s: an answer of /api/v1/verdicts is expected: %w", in.verdicts, err)
	}
	return report.open(), nil
}

// readJobs reads the file of jobs.
func (in *planInput) readJobs() ([]plan.Job, error) {
	f, err := os.Open(in.jobs)
	if err != nil {
		return nil, fmt.Errorf("jobs: %w", err)
	}
	defer f.Close()
	return plan.ParseJobs(in.jobs, f)
}

// readCatalogue reads the catalogue. Bad lines are reported on standard error.
func (in *planInput) readCatalogue(n *plan.Network) (*plan.Catalogue, error) {
	f := os.Stdin
	if in.catalogue != "-" {
		var err error
		if f, err = os.Open(in.catalogue); err != nil {
			return nil, fmt.Errorf("catalogue: %w", err)
		}
		defer f.Close()
	}
	c := plan.NewCatalogue(n)
	errs := &lineErrors{w: os.Stderr, file: in.catalogue}
	err := plan.ReadCatalogue(f, func(_ int, e *plan.Entry) error {
		c.Add(e)
		return nil
	}, func(e fabric.LineError) { errs.addBadLine(e.Line, e.Err) })
	if err != nil {
		return nil, fmt.Errorf("cannot read the catalogue %s: %w", in.catalogue, err)
	}
	in.badLines = errs.n
	for _, m := range []struct {
		n    int
		what string
	}{{c.Unusable, "a path or a NIC that the topology does not have"}, {c.OtherTuples, "ports that are not those of RoCE"}} {
		if m.n > 0 {
			fmt.Fprintf(os.Stderr, "%s: %d entries are left out: they have %s\n", in.catalogue, m.n, m.what)
		}
	}
	return c, nil
}

// readPlan reads a plan.
func readPlan(file string) (*plan.Plan, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	defer f.Close()
	p, err := plan.Read(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return p, nil
}

// parseQPs reads a number of queue pairs; 0 stands for auto.
func parseQPs(s string) (int, error) {
	n := 0
	if s == "auto" {
		return 0, nil
	}
	if _, err := fmt.Sscanf(s, "%d", &n); err != nil || n < 1 || n > 1024 || fmt.Sprint(n) != s {
		return 0, fmt.Errorf("flag --qps: %q: auto or a whole number from 1 to 1024 is expected", s)
	}
	return n, nil
}

// stepsPerSecond turns the flag --budget into a number of steps, so that plans do not depend on the speed of the machine.
const stepsPerSecond = plan.DefaultSteps / 2

func addPlanMake(parent *kingpin.CmdClause, commands map[string]command) {
	cmd := parent.Command("make", "Write a plan. Exit code 0: done, 1: bad input, 2: queue pairs have no port, 3: lines of the catalogue could not be read.").Default()
	in := &planInput{}
	in.addFlags(cmd)
	cmd.Flag("catalogue", "Catalogue of paths (JSON lines); - is standard input.").Required().StringVar(&in.catalogue)
	cmd.Flag("jobs", "File of jobs (YAML).").Required().StringVar(&in.jobs)
	cmd.Flag("verdicts", "Base URL of an analyzer, or a file with its answer of /api/v1/verdicts: what open verdicts name is avoided.").StringVar(&in.verdicts)
	previous := cmd.Flag("previous", "Plan of which as much as possible is kept.").String()
	qps := cmd.Flag("qps", "Queue pairs of each connection of jobs that give no number; auto: the least of 4, 8, 16 and 32 that reaches 98 % of the ideal.").Default("auto").String()
	budget := cmd.Flag("budget", "Effort of the search, as the time that it takes on a usual core. The plan does not depend on the machine.").Default("2s").Duration()
	format := cmd.Flag("format", "Output format.").Default("table").Enum("table", "json", "ports", "nccl", "ucx", "mooncake", "svg")
	seed := cmd.Flag("seed", "Seed of the random ports that --format svg shows beside the plan.").Default("1").Uint64()
	commands[cmd.FullCommand()] = func(ctx context.Context) error {
		if *budget <= 0 || *budget > time.Hour {
			return errors.New("flag --budget: a time above 0, up to 1h, is expected")
		}
		r := &plan.Request{Steps: int(budget.Seconds() * stepsPerSecond)}
		var err error
		if r.QPs, err = parseQPs(*qps); err != nil {
			return err
		}
		if r.Network, err = in.network(ctx); err != nil {
			return err
		}
		if r.Jobs, err = in.readJobs(); err != nil {
			return err
		}
		if *previous != "" {
			if r.Previous, err = readPlan(*previous); err != nil {
				return err
			}
		}
		if r.Catalogue, err = in.readCatalogue(r.Network); err != nil {
			return err
		}
		p, err := plan.Make(r)
		if err != nil {
			return fmt.Errorf("%s: %w", in.jobs, err)
		}
		drawing := &plan.Drawing{Network: r.Network, Catalogue: r.Catalogue, Jobs: r.Jobs, Plan: p, Seed: *seed}
		out := bufio.NewWriterSize(os.Stdout, 1<<16)
		write := map[string]func(io.Writer) error{"table": p.WriteTable, "json": p.Write, "ports": p.WritePorts, "nccl": p.WriteNCCL, "ucx": p.WriteUCX, "mooncake": p.WriteMooncake, "svg": drawing.WriteSVG}[*format]
		if err := errors.Join(write(out), out.Flush()); err != nil {
			return fmt.Errorf("cannot write the plan: %w", err)
		}
		if len(p.Unplaced) > 0 {
			u := p.Unplaced[0]
			return exitError{code: 2, err: fmt.Errorf("%d queue pairs have no port; the first one is of %s, from %s to %s: %s", len(p.Unplaced), u.Job, u.Src, u.Dst, u.Reason)}
		}
		return in.lineError()
	}
}

// lineError returns the error of lines that could not be read.
func (in *planInput) lineError() error {
	if in.badLines > 0 {
		return exitError{code: 3, err: fmt.Errorf("%s: %d lines could not be read", in.catalogue, in.badLines)}
	}
	return nil
}

func addPlanCheck(parent *kingpin.CmdClause, commands map[string]command) {
	cmd := parent.Command("check", "Check a plan: its paths, sides and rates. Exit code 0: it fits, 1: bad input, 2: it does not fit, 3: lines of the catalogue could not be read.")
	in := &planInput{}
	in.addFlags(cmd)
	cmd.Flag("catalogue", "Catalogue of paths (JSON lines), where ports are to be compared with it.").StringVar(&in.catalogue)
	file := cmd.Arg("plan", "Plan (JSON).").Required().String()
	commands[cmd.FullCommand()] = func(ctx context.Context) error {
		p, err := readPlan(*file)
		if err != nil {
			return err
		}
		in.goodput = p.Model.GoodputRatio
		n, err := in.network(ctx)
		if err != nil {
			return err
		}
		var c *plan.Catalogue
		if in.catalogue != "" {
			if c, err = in.readCatalogue(n); err != nil {
				return err
			}
		}
		wrong := plan.Check(n, c, p)
		for _, text := range wrong {
			fmt.Println(text)
		}
		if len(wrong) > 0 {
			return exitError{code: 2, err: fmt.Errorf("%s: %d findings", *file, len(wrong))}
		}
		fmt.Printf("%s: %d queue pairs fit\n", *file, len(p.Assignments))
		return in.lineError()
	}
}
