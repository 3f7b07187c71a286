package sizing

import (
	"fmt"
	"math"
	"strings"
	"text/tabwriter"
)

// Text returns a prediction for a person.
func (p *Prediction) Text() string {
	var b strings.Builder
	sh := p.Shape
	fmt.Fprintf(&b, "%d nodes, %d NICs, %d switches, %d links; %d flows (%.1f a NIC), %d sums per pair of leaves; profile %s\n\n",
		sh.Nodes, sh.NICs, sh.Switches, sh.Links, sh.Flows, float64(sh.Flows)/math.Max(1, float64(sh.NICs)), sh.LeafPairs, p.Profile)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "job\ttargets\tevery\tseries\tof them histograms\tsamples/s\t")
	for _, j := range p.Jobs {
		fmt.Fprintf(w, "%s\t%d\t%v\t%s\t%s\t%s\t\n", j.Name, j.Targets, j.Interval, round(j.Series), round(j.NativeHistograms), round(j.SamplesPerSecond))
	}
	fmt.Fprintf(w, "together\t\t\t%s\t%s\t%s\t\n", round(p.Series), round(p.NativeHistograms), round(p.SamplesPerSecond))
	_ = w.Flush() // a strings.Builder does not fail
	fmt.Fprintf(&b, "\nAgents: %.0f samples/s a node; %sB/s of all nodes, in protobuf with gzip.\n", p.SamplesPerSecondPerNode, round(p.OctetsPerSecond))
	fmt.Fprintf(&b, "Probes and replies: %sbit/s a NIC, in each direction together.\n", round(p.ProbeBitsPerSecondNIC))
	b.WriteString("\n")
	fmt.Fprintln(w, "part\tprocessors\tmemory\t")
	for _, l := range p.Loads {
		processors, memory := "unknown", "unknown"
		if l.Processors != nil {
			processors = fmt.Sprintf("%.3g", *l.Processors)
		}
		if l.Octets != nil {
			memory = round(*l.Octets) + "B"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t\n", l.Part, processors, memory)
	}
	_ = w.Flush()
	b.WriteString("\n")
	for _, l := range p.Loads {
		fmt.Fprintf(&b, "%s: %s.\n", l.Part, l.Conditions)
	}
	b.WriteString("Not predicted: series of recording rules and of collectors, queries of people, memory of the analyzer.\n")
	return b.String()
}

// round returns a number with three digits and the prefix of its unit.
func round(v float64) string {
	for _, u := range []struct {
		size   float64
		prefix string
	}{{1e9, "G"}, {1e6, "M"}, {1e4, "k"}} {
		if v >= u.size {
			if u.prefix == "k" {
				u.size = 1e3
			}
			return fmt.Sprintf("%.3g %s", v/u.size, u.prefix)
		}
	}
	return fmt.Sprintf("%.0f ", v)
}

// headroom is the factor of the limits above the prediction. It is chosen, not measured.
const headroom = 1.5

// MimirOverrides returns the runtime configuration of Mimir with the limits of a tenant, which are half as much again as
// predicted, for series of rules and churn. Mimir allows each distributor an equal share of the rate: shares is the number
// of distributors if one of them may take all that a Prometheus writes, and 1 if requests are spread over them.
func (p *Prediction) MimirOverrides(tenant string, shares int) string {
	rate := headroom * p.SamplesPerSecond * float64(shares)
	return fmt.Sprintf(`overrides:
  %q:
    max_global_series_per_user: %.0f
    ingestion_rate: %.0f
    ingestion_burst_size: %.0f
    native_histograms_ingestion_enabled: true
`, tenant, math.Ceil(headroom*p.Series), math.Ceil(rate), math.Ceil(10*headroom*p.SamplesPerSecond))
}

// Values returns values of the Helm chart: the profile, and the coordinator's memory.
func (p *Prediction) Values() string {
	mebi := math.Max(256, math.Ceil(p.CoordinatorOctets/(1<<20)))
	return fmt.Sprintf(`prometheus:
  profile: %s
coordinator:
  resources:
    requests: {memory: %.0fMi}
    limits: {memory: %.0fMi}
`, p.Profile, mebi, math.Max(2048, math.Ceil(headroom*mebi)))
}
