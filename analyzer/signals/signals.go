// Package signals reads what in-band signals (CSIG) say in general: the bottlenecks of the paths between two NICs, and whether the domain
// is configured alike everywhere. What they say about a verdict is in package attribute. Rules of findings:
//
//  1. Nodes that read signals by different profiles are a finding.
//  2. Tags with locators that no profile gives to a port are a finding. Somewhere on the ways of the flows that end at the NICs where such
//     tags arrive, a switch has another profile.
//  3. Tags with the locators of ports that are not on a flow's path are a finding, if two flows have them in two checks in a row. The path
//     must have been confirmed while the tags came, so that a path that has changed is none.
//  4. The switch is named that all of these flows cross, and whose own ports no tag names. If there are several, none of them is named.
//  5. The switch at which tagged packets end is a finding, which nodes find by hop-limited packets.
//  6. The cost is bounded: where nothing reads signals it is one query, and a check looks at the flows of some NICs in turn.
package signals

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
)

// Kinds of findings.
const (
	ProfilesDiffer  = "profiles_differ"
	UnknownLocators = "unknown_locators"
	ForeignLocators = "foreign_locators"
	TagsDropped     = "tags_dropped"
)

// Finding represents something that is wrong with the in-band signals of the domain.
type Finding struct {
	Kind string `json:"kind"`
	// Element is the switch that has another profile, or that drops tagged packets. It is "" if it is not known.
	Element string `json:"element,omitempty"`
	Text    string `json:"text"`
}

// PathBinding represents what is known of the path of a flow: since when it is the path, and when that was confirmed last.
type PathBinding struct {
	Path             fabric.Path
	Since, Confirmed time.Time
	Valid            bool
}

// Reader reads the series of in-band signals.
type Reader struct {
	DB evidence.Querier
	// Scrape is the interval at which the series are scraped.
	Scrape time.Duration
	// Lag is how far in the past the newest samples of all nodes are expected.
	Lag time.Duration
	// Patience bounds the time of all queries of one call. 0 means no bound.
	Patience time.Duration
	// PathOf returns what is known of the path of a flow.
	PathOf func(fabric.Flow) PathBinding
}

// Values of the labels of the series.
const (
	shareSignal = "share"
	delaySignal = "delay"
	upperBound  = "upper"
)

// Bottleneck represents the worst port of a flow's path by one signal, with the value that came with it.
type Bottleneck struct {
	// Port is the port that most tags name, or "" if they name no port of the path.
	Port   string        `json:"port,omitempty"`
	Bounds fabric.Bounds `json:"bounds"`
}

// Bottlenecks represents the bottlenecks of a flow's path. Nil means that one is not known.
type Bottlenecks struct {
	Share *Bottleneck `json:"available_ratio,omitempty"`
	Delay *Bottleneck `json:"hop_delay_seconds,omitempty"`
}

// tags counts the tags of a directed flow in a span of time, by signal and locator.
type tags map[string]map[Locator]float64

// span returns the time over which tags are counted, which has several scrapes.
func (r *Reader) span() time.Duration { return max(15*time.Second, 4*r.Scrape) }

// withPatience returns a context that bounds the queries of one call.
func (r *Reader) withPatience(ctx context.Context) (context.Context, context.CancelFunc) {
	if r.Patience > 0 {
		return context.WithTimeout(ctx, r.Patience)
	}
	return context.WithCancel(ctx)
}

// query runs a query for the moment Lag before now. It returns the samples of a partial response without an error.
func (r *Reader) query(ctx context.Context, now time.Time, text string) ([]evidence.Sample, error) {
	at := now.Add(-r.Lag)
	if c, ok := r.DB.(evidence.Clocked); ok {
		ahead, err := c.ClockOffset(ctx)
		if err != nil {
			return nil, err
		}
		at = at.Add(ahead)
	}
	samples, err := r.DB.QueryInstant(ctx, text, at)
	var partial *evidence.PartialError
	if errors.As(err, &partial) {
		err = nil
	}
	return samples, err
}

// isRead reports whether anything reads in-band signals.
func (r *Reader) isRead(ctx context.Context, now time.Time) (bool, error) {
	found, err := r.query(ctx, now, "count(last_over_time(graylink_csig_profile_info["+evidence.PromDuration(r.span())+"]))")
	return len(found) > 0, err
}

// readLocators returns the ports of each locator, of some switches, or of all of them.
func (r *Reader) readLocators(ctx context.Context, now time.Time, switches []string) (map[Locator][]string, error) {
	of := ""
	if switches != nil {
		of = "{switch=~" + evidence.AnyOf(switches) + "}"
	}
	samples, err := r.query(ctx, now, fmt.Sprintf("max by (format, locator, switch, port) (last_over_time(fabric_csig_locator_info%s[%s]))", of, evidence.PromDuration(r.span())))
	if err != nil {
		return nil, err
	}
	return PortsOfLocators(samples), nil
}

// readTags returns the tags of the directed flows that matchers of labels select.
func (r *Reader) readTags(ctx context.Context, now time.Time, matchers string) (map[fabric.Flow]tags, error) {
	samples, err := r.query(ctx, now, fmt.Sprintf(`max by (src, dst, flow, direction, signal, format, locator) (increase(fabric_csig_packets_total{flow=~"[0-9]+",%s}[%s])) > 0`, matchers, evidence.PromDuration(r.span())))
	if err != nil {
		return nil, err
	}
	out := map[fabric.Flow]tags{}
	for _, s := range samples {
		f := FlowOf(s.Labels)
		if out[f] == nil {
			out[f] = tags{}
		}
		signal := s.Labels["signal"]
		if out[f][signal] == nil {
			out[f][signal] = map[Locator]float64{}
		}
		out[f][signal][LocatorOf(s.Labels)] += s.Value
	}
	return out, nil
}

// ReadBottlenecks returns the bottlenecks of the tagged flows between two NICs, in all directions. known is false if nothing reads in-band
// signals. It fails if a query fails.
func (r *Reader) ReadBottlenecks(ctx context.Context, now time.Time, a, b string) (out map[fabric.Flow]Bottlenecks, known bool, err error) {
	ctx, cancel := r.withPatience(ctx)
	defer cancel()
	if known, err = r.isRead(ctx, now); err != nil || !known {
		return nil, false, err
	}
	between := "src=~" + evidence.AnyOf([]string{a, b}) + ",dst=~" + evidence.AnyOf([]string{a, b})
	all, err := r.readTags(ctx, now, between)
	if err != nil {
		return nil, true, err
	}
	var switches []string
	bindings := map[fabric.Flow]PathBinding{}
	for f := range all {
		bindings[f] = r.PathOf(f)
		for _, h := range bindings[f].Path {
			switches = append(switches, h.Switch)
		}
	}
	slices.Sort(switches)
	locators, err := r.readLocators(ctx, now, slices.Compact(switches))
	if err != nil {
		return nil, true, err
	}
	values := map[string]map[fabric.Flow]*fabric.Bounds{}
	for signal, name := range map[string]string{shareSignal: "fabric_csig_available_ratio", delaySignal: "fabric_csig_hop_delay_seconds"} {
		if values[signal], err = r.readValues(ctx, now, name, between); err != nil {
			return nil, true, err
		}
	}
	out = map[fabric.Flow]Bottlenecks{}
	for f, t := range all {
		out[f] = Bottlenecks{Share: bottleneckOf(t[shareSignal], values[shareSignal][f], bindings[f], locators), Delay: bottleneckOf(t[delaySignal], values[delaySignal][f], bindings[f], locators)}
	}
	return out, true, nil
}

// readValues returns the newest value of a signal by flow.
func (r *Reader) readValues(ctx context.Context, now time.Time, name, matchers string) (map[fabric.Flow]*fabric.Bounds, error) {
	samples, err := r.query(ctx, now, fmt.Sprintf(`last_over_time(%s{flow=~"[0-9]+",%s}[%s])`, name, matchers, evidence.PromDuration(max(3*r.Scrape, 3*time.Second))))
	if err != nil {
		return nil, err
	}
	out := map[fabric.Flow]*fabric.Bounds{}
	for _, s := range samples {
		f, v := FlowOf(s.Labels), s.Value
		if out[f] == nil {
			out[f] = &fabric.Bounds{}
		}
		if s.Labels["bound"] == upperBound {
			out[f].Upper = &v
		} else {
			out[f].Lower = &v
		}
	}
	return out, nil
}

// bottleneckOf returns the port that most tags of a signal name, with its value. It returns nil without a value.
func bottleneckOf(named map[Locator]float64, value *fabric.Bounds, b PathBinding, locators map[Locator][]string) *Bottleneck {
	if value == nil {
		return nil
	}
	out := &Bottleneck{Bounds: *value}
	counts := map[string]float64{}
	for l, n := range named {
		if ports := PortsOnPath(b.Path, locators[l]); b.Valid && len(ports) == 1 {
			counts[ports[0]] += n
		}
	}
	for port, n := range counts {
		if m := counts[out.Port]; out.Port == "" || n > m || n == m && port < out.Port {
			out.Port = port
		}
	}
	return out
}
