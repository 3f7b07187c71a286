package clocksim

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/graylink/graylink/internal/clocksync"
	"github.com/graylink/graylink/internal/plainjson"
	schedulereport "github.com/graylink/graylink/internal/schedule/report"
	"github.com/graylink/graylink/internal/sim"
)

// instant names the time at which errors are evaluated.
const instant = "end of each window of 1 s, once it is solved"

// report holds the printed figures of one run.
type report struct {
	Noise       sim.Noise             `json:"noise"`
	Load        float64               `json:"load"`
	Clocks      int                   `json:"clocks"`
	Tiers       int                   `json:"tiers"`
	Edges       int                   `json:"edges"`
	Peers       schedulereport.Spread `json:"peers"`
	Seed        uint64                `json:"seed"`
	Scenario    string                `json:"scenario"`
	DurationNS  int64                 `json:"duration_ns"`
	WarmUpNS    int64                 `json:"warm_up_ns"`
	CadenceNS   int64                 `json:"cadence_ns"`
	PairEvery   int                   `json:"pair_every"`
	PairGapNS   int64                 `json:"pair_gap_ns"`
	GuardNS     int64                 `json:"guard_ns"`
	Instant     string                `json:"instant"`
	AllowanceNS int64                 `json:"allowance_ns"`
	*sim.Result
	// Both are absent when the oracle saw nothing.
	Ratio   *float64 `json:"p99_to_oracle"`
	ToBound *float64 `json:"p99_to_cramer_rao"`
}

func (f *simFleet) newReport(o sim.Options, allowance time.Duration, r *sim.Result) report {
	kind := clocksync.Kernel
	if o.Noise == sim.Hardware {
		kind = clocksync.Hardware
	}
	return report{o.Noise, o.Load, o.Clocks, f.tiers, len(f.edges), f.peers, o.Seed, o.Scenario, int64(o.Duration), int64(o.WarmUp), int64(o.Cadence),
		o.PairEvery, int64(o.PairGap), kind.GapGuard(), instant, int64(allowance), r, roundedRatio(r.Error.P99, r.Oracle.P99), roundedRatio(r.Error.P99, r.CramerRao.P99)}
}

// roundedRatio returns x/to rounded to hundredths, and nil if a figure is missing.
func roundedRatio(x, to float64) *float64 {
	if to == 0 {
		return nil
	}
	q := math.Round(x/to*100) / 100
	return &q
}

// printRuns writes the last of a cell's runs or, in a table, all once they are complete.
func (s *Settings) printRuns(out io.Writer, runs []report, complete bool) error {
	last := runs[len(runs)-1]
	var text string
	switch {
	case s.JSON:
		enc := plainjson.NewEncoder(out)
		return enc.Encode(last)
	case !s.Table:
		text = last.formatText()
		if !complete {
			text += "\n"
		}
	case complete:
		text = tableRow(runs)
	}
	_, err := io.WriteString(out, text)
	return err
}

const tableHead = "| noise | load | error p50 / p99 / max, ns | oracle p50 / p99, ns | p99 to oracle | Cramer-Rao p50 / p99, ns | p99 to it | bound p50 / p99, ns | in use p99, ns | coverage | in use | lock, s |\n" +

	"| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"

// tableRow sums the runs of one cell up: means of percentiles and ratios of the
// means, the worst maximum, the worst coverage, the slowest lock.
func tableRow(runs []report) string {
	n := float64(len(runs))
	mean := func(of func(*sim.Result) float64) float64 {
		sum := 0.0
		for i := range runs {
			sum += of(runs[i].Result)
		}
		return sum / n
	}
	worst := func(of func(*sim.Result) float64) float64 {
		x := math.Inf(1)
		for i := range runs {
			x = min(x, of(runs[i].Result))
		}
		return x
	}
	lock := "-"
	if slow := -worst(func(r *sim.Result) float64 { return -secondsOr(r.SecondsToLock, math.Inf(1)) }); !math.IsInf(slow, 1) {
		lock = fmt.Sprintf("%.0f", slow)
	}
	p99, oracle := mean(func(r *sim.Result) float64 { return r.Error.P99 }), mean(func(r *sim.Result) float64 { return r.Oracle.P99 })
	least := mean(func(r *sim.Result) float64 { return r.CramerRao.P99 })
	return fmt.Sprintf("| %s | %g | %.1f / %.1f / %.1f | %.1f / %.1f | %.2f | %.1f / %.1f | %.2f | %.1f / %.1f | %.1f | %.5f | %.5f | %s |\n", runs[0].Noise, runs[0].Load,
		mean(func(r *sim.Result) float64 { return r.Error.P50 }), p99, -worst(func(r *sim.Result) float64 { return -r.Error.Max }),
		mean(func(r *sim.Result) float64 { return r.Oracle.P50 }), oracle, p99/oracle,
		mean(func(r *sim.Result) float64 { return r.CramerRao.P50 }), least, p99/least,
		mean(func(r *sim.Result) float64 { return r.Bound.P50 }), mean(func(r *sim.Result) float64 { return r.Bound.P99 }),
		mean(func(r *sim.Result) float64 { return r.InUse.Error.P99 }),
		worst(func(r *sim.Result) float64 { return r.Coverage }), worst(func(r *sim.Result) float64 { return r.InUse.Coverage }), lock)
}

func secondsOr(s *float64, otherwise float64) float64 {
	if s == nil {
		return otherwise
	}
	return *s
}

func (r report) formatText() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s stamps, queues busy %g of the time, scenario %s, seed %d\n", r.Noise, r.Load, r.Scenario, r.Seed)
	fmt.Fprintf(&b, "fleet       %d clocks in %d tiers, %d edges, %d to %d peers a clock, %.1f on average\n", r.Clocks, r.Tiers, r.Edges, r.Peers.Min, r.Peers.Max, r.Peers.Mean)
	fmt.Fprintf(&b, "probes      every %v, one in %d a coded pair with a gap of %v (guard %v); %.0f a second answered, %.0f pairs a second\n",
		time.Duration(r.CadenceNS), r.PairEvery, time.Duration(r.PairGapNS), time.Duration(r.GuardNS), r.ProbesPerSecond, r.PairsPerSecond)
	fmt.Fprintf(&b, "evaluated   %d windows, at the %s\n\n", r.Windows, instant)
	times := func(ratio *float64, whose string) string {
		if ratio == nil {
			return ""
		}
		return fmt.Sprintf("p99 is %.2f times %s", *ratio, whose)
	}
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "\tp50\tp99\tmax\t")
	fmt.Fprintf(tw, "error\t%s\t%s\t%s\t\n", formatNanoseconds(r.Error.P50), formatNanoseconds(r.Error.P99), formatNanoseconds(r.Error.Max))
	fmt.Fprintf(tw, "oracle\t%s\t%s\t\t%s\n", formatNanoseconds(r.Oracle.P50), formatNanoseconds(r.Oracle.P99), times(r.Ratio, "the oracle's"))
	fmt.Fprintf(tw, "Cramer-Rao\t%s\t%s\t\t%s\n", formatNanoseconds(r.CramerRao.P50), formatNanoseconds(r.CramerRao.P99), times(r.ToBound, "what no unbiased estimator of one window is below"))
	fmt.Fprintf(tw, "bound\t%s\t%s\t\tstatistical part; the allowance is %v between two clocks\n", formatNanoseconds(r.Bound.P50), formatNanoseconds(r.Bound.P99), time.Duration(r.AllowanceNS))
	fmt.Fprintf(tw, "in use\t%s\t%s\t%s\t1 s later with the same maps: %.5f of %d within the bound\n", formatNanoseconds(r.InUse.Error.P50), formatNanoseconds(r.InUse.Error.P99), formatNanoseconds(r.InUse.Error.Max), r.InUse.Coverage, r.InUse.Claims)
	if h := r.Held; h != nil {
		fmt.Fprintf(tw, "predicted\t%s\t%s\t%s\tnothing measured in the window: %.5f of %d within the bound\n", formatNanoseconds(h.Error.P50), formatNanoseconds(h.Error.P99), formatNanoseconds(h.Error.Max), h.Coverage, h.Claims)
	}
	_ = tw.Flush() // writes to a Builder never fail
	fmt.Fprintf(&b, "\ncoverage    %.5f of all claims within bound and allowance\n", r.Coverage)
	b.WriteString("locked      ")
	if r.SecondsToLock == nil {
		b.WriteString("never all at once")
	} else {
		fmt.Fprintf(&b, "all after %.0f s", *r.SecondsToLock)
	}
	if r.SecondsToRelock != nil {
		fmt.Fprintf(&b, ", and for good %.1f s after the event", *r.SecondsToRelock)
	}
	b.WriteString("\nat the end  ")
	var names []string
	for name, n := range r.FinalStates {
		if n > 0 {
			names = append(names, fmt.Sprintf("%d %s", n, name))
		}
	}
	slices.Sort(names)
	fmt.Fprintf(&b, "%s; %d steps and %d changes of drift were counted\n", strings.Join(names, ", "), r.Steps, r.Drifts)
	return b.String()
}

// formatNanoseconds writes nanoseconds for people.
func formatNanoseconds(x float64) string {
	switch {
	case x >= 1e6:
		return fmt.Sprintf("%.3f ms", x/1e6)
	case x >= 1e4:
		return fmt.Sprintf("%.2f us", x/1e3)
	}
	return fmt.Sprintf("%.1f ns", x)
}
