// Command peers measures what a probe costs: graylink-node beside irtt and
// smokeping_prober at the same rate on the same machine, one after the other,
// with a bare batched loop as the floor. Then it raises graylink-node's rate
// until something breaks.
//
// All run between two hosts under one leaf, in network namespaces. What the
// kernel does for a packet on virtual links, routing in the leaf and delivery at
// the other end included, is charged to the process that sent it, for every
// contender alike; --direct leaves the leaf out of that.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kingpin/v2"
)

// rig is where contenders run.
type rig struct {
	*pair
	dir, bin, node string
	warm, length   time.Duration
	scrapeEvery    time.Duration // 0: only before and after
	log            io.Writer
}

// Symptoms that are not counts of packets; tooFew ends the ladder.
const (
	tooFew  = "probes/s fewer than asked"
	stalled = "seconds stalled"
)

// result is one contender's run.
type result struct {
	Contender     string  `json:"contender"`
	Description   string  `json:"note"`
	RequestedRate int     `json:"asked_per_second"`
	Seconds       float64 `json:"seconds"`    // measured
	Probes        float64 `json:"probes"`     // in them, counted at the link; of a node that falls behind, half of its probes and replies
	OwnCount      float64 `json:"own_count"`  // by the contender; 0 if it reports only at its end
	Rate          float64 `json:"per_second"` // probes
	CPU           float64 `json:"cpu_seconds"`
	Core          float64 `json:"core_ratio"`   // CPU seconds per second
	PerProbe      float64 `json:"us_per_probe"` // CPU, reflection included
	RSS           uint64  `json:"rss_bytes"`
	HWM           uint64  `json:"hwm_bytes"`
	Stamped       float64 `json:"stamped_ratio"` // of packets, by the kernel; -1 if not known
	Final         string  `json:"final,omitempty"`

	Symptoms map[string]float64 `json:"symptoms,omitempty"`
}

// isBroken reports whether a symptom is more than the noise of a shared machine: a thousandth of the probes or, for
// stalls, of the time.
func (v *result) isBroken() bool {
	for k, n := range v.Symptoms {
		limit := v.Probes / 1000
		switch k {
		case tooFew:
			limit = 0
		case stalled:
			limit = v.Seconds / 1000
		}
		if n > limit {
			return true
		}
	}
	return false
}

// moment is what a contender has used and counted up to a moment.
type moment struct {
	at time.Time
	usage
	packets uint64
	counts
}

// readMoment reads what a contender has used and counted. It fails if one of its processes has ended.
func (r *rig) readMoment(c *contender) (m moment, err error) {
	for _, p := range c.processes {
		if err := p.endedError(); err != nil {
			return m, err
		}
	}
	if c.count != nil {
		if m.counts, err = c.count(); err != nil {
			return m, err
		}
	}
	if m.packets, err = r.packetsOut(0); err != nil {
		return m, err
	}
	m.at = time.Now()
	for _, p := range c.measured {
		u, err := usageOf(p.cmd.Process.Pid)
		if err != nil {
			return m, err
		}
		m.cpu += u.cpu
		m.rss += u.rss
		m.hwm += u.hwm
	}
	return m, nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// passTime waits for the length of a run, and scrapes the contender meanwhile if that is wanted.
func (r *rig) passTime(ctx context.Context, c *contender) (err error) {
	if r.scrapeEvery == 0 || len(c.scraped) == 0 {
		return pause(ctx, r.length)
	}
	for end := time.Now().Add(r.length); err == nil && time.Now().Before(end); err = errors.Join(err, pause(ctx, r.scrapeEvery)) {
		for _, url := range c.scraped {
			_, e := r.scrapeHost(0, url)
			err = errors.Join(err, e)
		}
	}
	return err
}

// measureRun lets a contender run and takes the difference between the end of the
// warm-up and the end.
func (r *rig) measureRun(ctx context.Context, c *contender, asked int) (_ *result, err error) {
	stopped := false
	defer func() {
		if !stopped {
			err = errors.Join(err, c.stop())
		}
	}()
	fmt.Fprintf(r.log, "%s at %d/s: %v of warm-up, %v measured\n", c.name, asked, r.warm, r.length)
	if err := pause(ctx, r.warm); err != nil {
		return nil, err
	}
	a, err := r.readMoment(c)
	if err != nil {
		return nil, err
	}
	if err := r.passTime(ctx, c); err != nil {
		return nil, err
	}
	b, err := r.readMoment(c)
	if err != nil {
		return nil, err
	}
	v := resultOf(c, asked, &a, &b)
	stopped = true
	if err := c.stop(); err != nil {
		return nil, err
	}
	if c.final != nil {
		v.Final = c.final()
	}
	return v, nil
}

// resultOf returns what a contender used and counted between two moments.
func resultOf(c *contender, asked int, a, b *moment) *result {
	seconds := b.at.Sub(a.at).Seconds()
	v := &result{Contender: c.name, Description: c.description, RequestedRate: asked, Seconds: seconds, Probes: float64(b.packets-a.packets) / c.perProbe, OwnCount: b.sent - a.sent,
		CPU: b.cpu - a.cpu, RSS: b.rss, HWM: b.hwm, Stamped: -1, Symptoms: map[string]float64{}}
	v.Rate, v.Core, v.PerProbe = v.Probes/seconds, v.CPU/seconds, v.CPU/v.Probes*1e6
	if v.OwnCount > 0 && b.stamped > 0 {
		v.Stamped = (b.stamped - a.stamped) / (4 * v.OwnCount)
	}
	for k, n := range b.symptoms {
		if d := n - a.symptoms[k]; d > 0 {
			v.Symptoms[k] = d
		}
	}
	rate := v.Rate
	if v.OwnCount > 0 {
		rate = v.OwnCount / seconds
	}
	if rate < 0.99*float64(asked) {
		v.Symptoms[tooFew] = float64(asked) - rate
	}
	return v
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	node, only, ticks, ladder, format          *string
	rate                                       *int
	cadence, length, warm, ladderLen, scraping *time.Duration
	direct                                     *bool
}

func parseFlags() *options {
	o := &options{
		node:      kingpin.Flag("node", "The graylink-node to measure.").Default("bin/graylink-node").String(),
		rate:      kingpin.Flag("rate", "Probes per second, and as many reflections.").Default("1000").Int(),
		cadence:   kingpin.Flag("cadence", "Between probes of one edge, or to one target.").Default("10ms").Duration(),
		length:    kingpin.Flag("length", "Measured time of a run.").Default("60s").Duration(),
		warm:      kingpin.Flag("warm", "Time before it, not measured.").Default("5s").Duration(),
		only:      kingpin.Flag("only", "Contenders to run, by comma: floor, graylink, irtt, smokeping.").Default("floor,graylink,irtt,smokeping").String(),
		ticks:     kingpin.Flag("floor.ticks", "Ticks of the bare loop, by comma; each is a run.").Default("10ms,1ms").String(),
		ladder:    kingpin.Flag("ladder", "Rates for graylink-node alone, by comma; empty: none.").Default("1000,10000,20000,50000,100000").String(),
		ladderLen: kingpin.Flag("ladder.length", "Measured time of a rung.").Default("20s").Duration(),
		direct:    kingpin.Flag("direct", "One virtual cable between the hosts, no leaf.").Bool(),
		scraping:  kingpin.Flag("scrape", "Scrape graylink-node's series, per edge as well, that often while measuring; 0: only before and after.").Default("0s").Duration(),
		format:    kingpin.Flag("format", "Output.").Default("text").Enum("text", "json"),
	}
	kingpin.Parse()
	return o
}

func run() (err error) {
	o := parseFlags()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "peers")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r := &rig{dir: dir, bin: dir, warm: *o.warm, length: *o.length, scrapeEvery: *o.scraping, log: os.Stderr}
	if r.node, err = filepath.Abs(*o.node); err != nil {
		return err
	}
	if err := compileFloor(ctx, r.bin); err != nil {
		return err
	}
	if r.pair, err = buildPair(maxAddresses, *o.direct); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.removeNamespaces()) }()
	table, err := r.measureContenders(ctx, o)
	if err != nil {
		return err
	}
	r.length = *o.ladderLen
	rungs, err := r.climbLadder(ctx, o)
	if err != nil {
		return err
	}
	if *o.format == "json" {
		return json.NewEncoder(os.Stdout).Encode(map[string][]*result{"contenders": table, "ladder": rungs})
	}
	return writeReport(os.Stdout, table, rungs)
}

// measureContenders measures the wanted contenders at one rate.
func (r *rig) measureContenders(ctx context.Context, o *options) (table []*result, err error) {
	wanted := strings.Split(*o.only, ",")
	for _, name := range wanted {
		if !slices.Contains([]string{"", "floor", "graylink", "irtt", "smokeping"}, name) {
			return nil, fmt.Errorf("--only: %q, want floor, graylink, irtt or smokeping", name)
		}
	}
	var starts []func() (*contender, error)
	if slices.Contains(wanted, "floor") {
		for _, s := range strings.Split(*o.ticks, ",") {
			tick, err := time.ParseDuration(s)
			if err != nil {
				return nil, fmt.Errorf("--floor.ticks: %w", err)
			}
			starts = append(starts, func() (*contender, error) { return r.startFloor(*o.rate, tick) })
		}
	}
	if slices.Contains(wanted, "graylink") {
		starts = append(starts, func() (*contender, error) { return r.startGraylink(*o.rate, *o.cadence) })
	}
	if slices.Contains(wanted, "irtt") {
		starts = append(starts, func() (*contender, error) { return r.startIRTT(*o.rate, *o.warm+*o.length+5*time.Second) })
	}
	if slices.Contains(wanted, "smokeping") {
		starts = append(starts, func() (*contender, error) { return r.startSmokeping(*o.rate, *o.cadence) })
	}
	for _, start := range starts {
		c, err := start()
		if err != nil {
			return nil, err
		}
		v, err := r.measureRun(ctx, c, *o.rate)
		if err != nil {
			return nil, err
		}
		table = append(table, v)
	}
	return table, nil
}

// climbLadder measures graylink-node at rising rates, until it sends too few probes.
func (r *rig) climbLadder(ctx context.Context, o *options) (rungs []*result, err error) {
	for _, s := range strings.FieldsFunc(*o.ladder, func(c rune) bool { return c == ',' }) {
		asked, err := strconv.Atoi(s)
		if err != nil {
			return nil, fmt.Errorf("--ladder: %w", err)
		}
		c, err := r.startGraylink(asked, *o.cadence)
		if err != nil {
			return nil, err
		}
		v, err := r.measureRun(ctx, c, asked)
		if err != nil {
			return nil, err
		}
		if rungs = append(rungs, v); v.Symptoms[tooFew] > 0 {
			break
		}
	}
	return rungs, nil
}

// compileFloor builds the bare loop.
func compileFloor(ctx context.Context, into string) error {
	c := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(into, "floor"), "./test/peers/floor")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("go build ./test/peers/floor, from the top of the repository: %w: %s", err, out)
	}
	return nil
}

func writeReport(w io.Writer, table, rungs []*result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(table) > 0 {
		var own float64
		for _, v := range table {
			if v.Contender == "graylink-node" {
				own = v.PerProbe
			}
		}
		fmt.Fprintln(t, "contender\tprobes/s\tcore\tCPU us/probe\tagainst graylink-node\tRSS MB\tpeak MB\tstamped\t")
		for _, v := range table {
			ratio := "-"
			if own > 0 {
				ratio = fmt.Sprintf("%.2f x", v.PerProbe/own)
			}
			fmt.Fprintf(t, "%s\t%.0f\t%.1f %%\t%.1f\t%s\t%.1f\t%.1f\t%s\t\n", v.Contender, v.Rate, 100*v.Core, v.PerProbe, ratio, toMegabytes(v.RSS), toMegabytes(v.HWM), stampedText(v))
		}
		if err := t.Flush(); err != nil {
			return err
		}
		for _, v := range table {
			fmt.Fprintf(w, "%s: %s; %s%s\n", v.Contender, v.Description, v.Final, symptomText(v))
		}
	}
	if len(rungs) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	fmt.Fprintln(t, "graylink-node at\tsent/s\treflected/s\tcore\tCPU us/probe\tRSS MB\tpeak MB\tstamped\tsymptoms\t")
	first := ""
	for _, v := range rungs {
		fmt.Fprintf(t, "%d/s\t%.0f\t%.0f\t%.1f %%\t%.1f\t%.1f\t%.1f\t%s\t%s\t\n", v.RequestedRate, v.OwnCount/v.Seconds, 2*v.Rate-v.OwnCount/v.Seconds, 100*v.Core, v.PerProbe, toMegabytes(v.RSS), toMegabytes(v.HWM), stampedText(v), symptomText(v))
		if first == "" && v.isBroken() {
			first = fmt.Sprintf("first to break, at %d/s:%s", v.RequestedRate, symptomText(v))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if first == "" {
		first = "nothing broke"
	}
	fmt.Fprintln(w, first)
	return nil
}

func toMegabytes(bytes uint64) float64 { return float64(bytes) / 1e6 }

func stampedText(v *result) string {
	if v.Stamped < 0 {
		return "-"
	}
	return fmt.Sprintf("%.3f %%", 100*v.Stamped)
}

func symptomText(v *result) string {
	var s []string
	for k, n := range v.Symptoms {
		s = append(s, fmt.Sprintf(" %s: %.4g", k, n))
	}
	slices.Sort(s)
	return strings.Join(s, ",")
}
