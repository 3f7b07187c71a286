package attribute

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/signals"
	"github.com/graylink/graylink/internal/fabric"
)

// Rules of in-band signals (CSIG), whose tags name the worst egress port of a packet's path:
//
//  11. A flow counts if its path is known since before the incident, crosses the element in the direction of the verdict, and
//     supports tags. Its tags name a port if exactly one port of that path has the locator.
//  12. A tag counts with a value of congestion only: at most a tenth of the port's speed is available, or its hop delay is three buckets
//     above what it was before the incident, and twice as long, since buckets of wide tags are narrower than noise.
//  13. The signals agree if half of the tags of one signal name a port that sends into the element with such a value, and hardly
//     any tag names another port with one. They disagree if half of them name one other port. Otherwise they are silent, which is
//     never a sign that there is no congestion.
//  14. A tag names the worst hop alone. Hop delays decide before shares, since ports in a row may all be full and only one has
//     the queue. A port that was as full before the incident contradicts nothing.

const (
	// signalWeight is how strongly tags that agree point to congestion.
	signalWeight = 0.8
	// scarceShare is the available share of a port's speed up to which it is congested, and risenBuckets and risenFactor by how much
	// a hop delay must have risen.
	scarceShare  = 0.1
	risenBuckets = 3
	risenFactor  = 2
	// enoughTags is the share of tags that name a port. From rivalTags on, another port prevents an agreement.
	enoughTags, rivalTags = 0.5, 0.1
	// fewestTags is the least number of tags of a signal.
	fewestTags = 10
	// mostSources bounds the NICs whose tagged flows are queried for one element, and longestSignals the time over which they are. What does
	// not change with traffic may be as old.
	mostSources    = 64
	longestSignals = time.Minute
)

// Series of in-band signals, and the values of their label signal.
const (
	tagPackets    = "fabric_csig_packets_total"
	tagShares     = "fabric_csig_available_ratio"
	tagDelays     = "fabric_csig_hop_delay_seconds"
	tagSupport    = "fabric_csig_path_supported"
	tagLocators   = "fabric_csig_locator_info"
	tagProfiles   = "graylink_csig_profile_info"
	shareSignal   = "share"
	delaySignal   = "delay"
	upperBound    = "upper"
	medianOfRange = "quantile_over_time(0.5, "
)

// CrossingFlow represents a flow whose present path crosses an element.
type CrossingFlow struct {
	Flow fabric.Flow
	Path fabric.Path
}

// taggedFlow represents what the tags of one directed flow said.
type taggedFlow struct {
	path fabric.Path
	// named counts the tags of each signal by the port that they name, and under "" those that name none.
	named         map[string]map[string]float64
	share, before fabric.Bounds
	delay, idle   fabric.Bounds // now, and before the incident
	unsupported   bool
}

// isCongested reports whether a value of the flow is one of congestion, and whether it is known to have changed (rules 12 and 14). A
// share that was as small before has not changed.
func (f *taggedFlow) isCongested(signal string) (congested, changed, asBefore bool) {
	if signal == delaySignal {
		risen := delayRose(f.idle, f.delay)
		return risen, risen, false
	}
	scarce := func(b fabric.Bounds) bool { return b.Upper != nil && *b.Upper <= scarceShare+1e-9 }
	known := f.before.Lower != nil || f.before.Upper != nil
	return scarce(f.share), known && !scarce(f.before), scarce(f.before)
}

// delayRose reports whether a delay is at least risenBuckets above an earlier one, and risenFactor times as long. The width of the
// buckets follows from the bounds: all are as wide, or each is larger than the one before by the same factor.
func delayRose(before, now fabric.Bounds) bool {
	if before.Upper == nil || before.Lower == nil || now.Lower == nil || *now.Lower < risenFactor**before.Upper {
		return false
	}
	lower, upper := *before.Lower, *before.Upper
	above := *now.Lower - upper
	if now.Upper != nil && math.Abs((*now.Upper-*now.Lower)-(upper-lower)) <= 0.01*(upper-lower) {
		return above >= (risenBuckets-1.01)*(upper-lower)
	}
	factor := 0.0
	switch {
	case now.Upper != nil:
		factor = *now.Upper / *now.Lower
	case lower > 0:
		factor = upper / lower
	}
	return factor > 1 && math.Log(*now.Lower/upper) >= (risenBuckets-1.01)*math.Log(factor)
}

// signalOpinion represents what in-band signals say of an element. asBefore means that the value was as bad before the incident, or
// that it is not known.
type signalOpinion struct {
	*fabric.SignalReading
	asBefore bool
}

// readSignals returns what in-band signals say of an element whose ends have roles. It has no reading if nothing reads signals, and
// fails if a query fails.
func (a *Attributor) readSignals(ctx context.Context, q Request, places []endRole, t moments) (none signalOpinion, err error) {
	if q.Crossing == nil {
		return none, nil
	}
	read, err := a.queryInstant(ctx, fmt.Sprintf("count(last_over_time(%s[%s]))", tagProfiles, evidence.PromDuration(longestSignals)), t.now.Add(t.ahead))
	if err != nil || len(read) == 0 {
		return none, err
	}
	sending, switches := map[string]bool{}, map[string]bool{}
	for _, p := range places {
		if p.sends {
			sending[p.end] = true
		}
	}
	flows := map[string]*taggedFlow{}
	for _, c := range q.Crossing(q.Verdict.Element) {
		src, dst := c.Flow.Endpoints()
		if slices.ContainsFunc(c.Path.LinkDirections(src, dst), func(d fabric.Direction) bool { return sending[d.From] }) {
			flows[c.Flow.String()] = &taggedFlow{path: c.Path, named: map[string]map[string]float64{}}
			for _, h := range c.Path {
				switches[h.Switch] = true
			}
		}
	}
	if len(flows) > 0 {
		locators, err := a.readLocators(ctx, slices.Sorted(maps.Keys(switches)), t)
		if err != nil {
			return none, err
		}
		if err := a.readTags(ctx, flows, locators, q, t); err != nil {
			return none, err
		}
	}
	return opinionOf(flows, sending), nil
}

// readLocators returns the ports of some switches that have a locator, by locator.
func (a *Attributor) readLocators(ctx context.Context, switches []string, t moments) (map[signals.Locator][]string, error) {
	samples, err := a.queryInstant(ctx, fmt.Sprintf("max by (format, locator, switch, port) (last_over_time(%s{switch=~%s}[%s]))", tagLocators, evidence.AnyOf(switches), evidence.PromDuration(longestSignals)), t.now.Add(t.ahead))
	if err != nil {
		return nil, err
	}
	return signals.PortsOfLocators(samples), nil
}

// portOnPath returns the one port of a path that has a locator, or "" if there is none or more than one (rule 11).
func portOnPath(path fabric.Path, ports []string) string {
	if on := signals.PortsOnPath(path, ports); len(on) == 1 {
		return on[0]
	}
	return ""
}

// readTags reads what the tags of flows said in the incident, and before it.
func (a *Attributor) readTags(ctx context.Context, flows map[string]*taggedFlow, locators map[signals.Locator][]string, q Request, t moments) error {
	sources := map[string]bool{}
	for name := range flows {
		if e, err := fabric.ParseFlow(name); err == nil {
			sources[e.Src] = true
		}
	}
	of := fmt.Sprintf("{flow=~\"[0-9]+\",src=~%s}", evidence.AnyOf(spreadOver(slices.Sorted(maps.Keys(sources)), mostSources)))
	now := t.now.Add(t.ahead)
	over := min(max(t.now.Sub(q.SureSince), 3*a.Scrape), longestSignals)
	packets, err := a.queryInstant(ctx, fmt.Sprintf("max by (src, dst, flow, direction, signal, format, locator) (increase(%s%s[%s]))", tagPackets, of, evidence.PromDuration(over)), now)
	if err != nil {
		return err
	}
	for _, s := range packets {
		f := flows[signals.FlowOf(s.Labels).String()]
		if f == nil || !(s.Value > 0) {
			continue
		}
		signal := s.Labels["signal"]
		if f.named[signal] == nil {
			f.named[signal] = map[string]float64{}
		}
		f.named[signal][portOnPath(f.path, locators[signals.LocatorOf(s.Labels)])] += s.Value
	}
	// A value that is not of the last moments is of a flow that has ended, or has no tags any more.
	latest := func(name string) string {
		return fmt.Sprintf("%s%s%s[%s]) and last_over_time(%s%s[%s])", medianOfRange, name, of, evidence.PromDuration(over), name, of, evidence.PromDuration(t.lookback))
	}
	before := func(name string) string {
		return fmt.Sprintf("%s%s%s[%s])", medianOfRange, name, of, evidence.PromDuration(t.start.Sub(t.past)))
	}
	for _, r := range []struct {
		query string
		at    time.Time
		of    func(*taggedFlow) *fabric.Bounds
	}{
		{latest(tagShares), now, func(f *taggedFlow) *fabric.Bounds { return &f.share }},
		{before(tagShares), t.start.Add(t.ahead), func(f *taggedFlow) *fabric.Bounds { return &f.before }},
		{latest(tagDelays), now, func(f *taggedFlow) *fabric.Bounds { return &f.delay }},
		{before(tagDelays), t.start.Add(t.ahead), func(f *taggedFlow) *fabric.Bounds { return &f.idle }},
	} {
		samples, err := a.queryInstant(ctx, r.query, r.at)
		if err != nil {
			return err
		}
		for _, s := range samples {
			f := flows[signals.FlowOf(s.Labels).String()]
			if f == nil || math.IsNaN(s.Value) || math.IsInf(s.Value, 0) {
				continue
			}
			v := s.Value
			if b := r.of(f); s.Labels["bound"] == upperBound {
				b.Upper = &v
			} else {
				b.Lower = &v
			}
		}
	}
	return a.readSupport(ctx, flows, of, t)
}

// readSupport marks the flows on whose paths tagged packets do not arrive.
func (a *Attributor) readSupport(ctx context.Context, flows map[string]*taggedFlow, of string, t moments) error {
	samples, err := a.queryInstant(ctx, fmt.Sprintf("min by (src, dst, flow) (last_over_time(%s%s[%s])) == 0", tagSupport, of, evidence.PromDuration(longestSignals)), t.now.Add(t.ahead))
	if err != nil {
		return err
	}
	for name, f := range flows {
		e, err := fabric.ParseFlow(name)
		f.unsupported = err != nil || slices.ContainsFunc(samples, func(s evidence.Sample) bool {
			return s.Labels["src"] == e.Src && s.Labels["dst"] == e.Dst && s.Labels["flow"] == strconv.Itoa(e.Number)
		})
	}
	return nil
}

// spreadOver returns at most so many of some names, from the first to the last of them.
func spreadOver(names []string, most int) []string {
	if len(names) <= most {
		return names
	}
	out := make([]string, most)
	for i := range out {
		out[i] = names[i*len(names)/most]
	}
	return out
}

// signalCount represents what the tags of one signal name with a value of congestion.
type signalCount struct {
	signal string
	total  float64
	// tags counts the tags by port, fresh those of them whose value was another one before the incident, and old those whose value was the
	// same.
	tags, fresh, old map[string]float64
}

// countTags counts the tags of a signal over flows.
func countTags(signal string, flows []*taggedFlow) signalCount {
	c := signalCount{signal: signal, tags: map[string]float64{}, fresh: map[string]float64{}, old: map[string]float64{}}
	for _, f := range flows {
		congested, changed, asBefore := f.isCongested(signal)
		for port, n := range f.named[signal] {
			c.total += n
			if !congested || port == "" {
				continue
			}
			c.tags[port] += n
			if changed {
				c.fresh[port] += n
			}
			if asBefore {
				c.old[port] += n
			}
		}
	}
	return c
}

// share returns the share of the tags that name a port of a set, and the one of them that most tags name. old leaves out values that
// were the same before the incident.
func (c *signalCount) share(old bool, in func(string) bool) (share float64, port string) {
	sum := 0.0
	for _, p := range slices.Sorted(maps.Keys(c.tags)) {
		n := c.tags[p]
		if !old {
			n -= c.old[p]
		}
		if in(p) && n > 0 {
			sum += n
			if port == "" || n > c.tags[port] {
				port = p
			}
		}
	}
	if c.total < fewestTags {
		return 0, ""
	}
	return sum / c.total, port
}

// strongestRival returns the port that does not send into the element and that most tags name, with the share of its tags.
func (c *signalCount) strongestRival(old bool, sending map[string]bool) (share float64, port string) {
	for _, p := range slices.Sorted(maps.Keys(c.tags)) {
		if n, _ := c.share(old, func(o string) bool { return o == p }); !sending[p] && n > share {
			share, port = n, p
		}
	}
	return share, port
}

// countFlows returns the flows whose tags count, sorted by name, and the number of those that do not support tags. It counts both in
// a reading.
func countFlows(all map[string]*taggedFlow, r *fabric.SignalReading) (flows []*taggedFlow, unsupported int) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f := all[name]
		switch {
		case f.unsupported:
			unsupported++
		case len(f.named) > 0:
			flows = append(flows, f)
			r.Flows++
			for _, ports := range f.named {
				for _, n := range ports {
					r.Packets += int64(math.Round(n))
				}
			}
		}
	}
	return flows, unsupported
}

// opinionOf returns what the tags of flows say of an element into which some ends send (rules 13 and 14).
func opinionOf(all map[string]*taggedFlow, sending map[string]bool) signalOpinion {
	r := signalOpinion{&fabric.SignalReading{Says: fabric.SignalsSilent}, false}
	flows, unsupported := countFlows(all, r.SignalReading)
	switch {
	case len(flows) == 0 && unsupported > 0:
		r.Text = fmt.Sprintf("tagged packets do not arrive on the paths of %d flows that cross it", unsupported)
		return r
	case len(flows) == 0:
		r.Text = "no tagged packets of flows with a known path cross it"
		return r
	}
	delay, share := countTags(delaySignal, flows), countTags(shareSignal, flows)
	isOwn := func(p string) bool { return sending[p] }
	ownDelay, delayPort := delay.share(true, isOwn)
	ownShare, sharePort := share.share(true, isOwn)
	rivalDelay, _ := delay.strongestRival(true, sending)
	rivalShare, _ := share.strongestRival(true, sending)
	otherDelay, otherDelayPort := delay.strongestRival(false, sending)
	otherShare, otherSharePort := share.strongestRival(false, sending)
	switch {
	case ownDelay >= enoughTags && rivalDelay < rivalTags:
		r.Says, r.Port, r.NamedRatio = fabric.SignalsAgree, delayPort, ownDelay
	case ownShare >= enoughTags && rivalShare < rivalTags && rivalDelay < rivalTags:
		r.Says, r.Port, r.NamedRatio = fabric.SignalsAgree, sharePort, ownShare
		r.asBefore = share.fresh[sharePort] < enoughTags*share.tags[sharePort]
	case otherDelay >= enoughTags:
		r.Says, r.Port, r.NamedRatio = fabric.SignalsDisagree, otherDelayPort, otherDelay
	case otherShare >= enoughTags && ownDelay < enoughTags:
		r.Says, r.Port, r.NamedRatio = fabric.SignalsDisagree, otherSharePort, otherShare
	default:
		r.Text = fmt.Sprintf("the tags of %d flows do not name one port that is congested", r.Flows)
		return r
	}
	r.AvailableRatio = medianBounds(flows, shareSignal, r.Port, func(f *taggedFlow) fabric.Bounds { return f.share })
	r.HopDelay = medianBounds(flows, delaySignal, r.Port, func(f *taggedFlow) fabric.Bounds { return f.delay })
	r.Text = textOfSignals(r.SignalReading)
	return r
}

// medianBounds returns the bounds of the flow in the middle, of those whose tags of a signal name a port most. It returns nil if no flow has
// a value.
func medianBounds(flows []*taggedFlow, signal, port string, valueOf func(*taggedFlow) fabric.Bounds) *fabric.Bounds {
	var all []fabric.Bounds
	for _, f := range flows {
		total := 0.0
		for _, n := range f.named[signal] {
			total += n
		}
		if v := valueOf(f); 2*f.named[signal][port] >= total && total > 0 && v.Lower != nil {
			all = append(all, v)
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b fabric.Bounds) int { return cmp.Compare(*a.Lower, *b.Lower) })
	return &all[(len(all)-1)/2]
}

// says reports whether there is a reading, and what it says.
func (o signalOpinion) says(what fabric.SignalOpinion) bool {
	return o.SignalReading != nil && o.Says == what
}

// causes returns the cause that tags point to if they agree.
func (o signalOpinion) causes() []fabric.Cause {
	if !o.says(fabric.SignalsAgree) {
		return nil
	}
	c := fabric.Cause{Cause: fabric.CauseCongestion, Element: o.Port, Weight: signalWeight, Text: o.Text}
	if o.asBefore {
		c.Weight *= unknownBefore
		c.Text += ", which it was before the incident as well, or is not known of that time"
	}
	return []fabric.Cause{c}
}

// textOfSignals describes the port that tags name, with its values.
func textOfSignals(r *fabric.SignalReading) string {
	text := fmt.Sprintf("%.0f %% of the tags of %d flows name it as the bottleneck", 100*r.NamedRatio, r.Flows)
	if r.Says == fabric.SignalsDisagree {
		text = fmt.Sprintf("%.0f %% of the tags of %d flows that cross it name %s as the bottleneck", 100*r.NamedRatio, r.Flows, r.Port)
	}
	if b := r.AvailableRatio; b != nil {
		text += ", where " + b.FormatShare() + " of the speed is available"
	}
	if b := r.HopDelay; b != nil {
		text += ", and packets take " + b.FormatDelay()
	}
	return text
}
