package attribute

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
)

// Prefixes of the series of ports, of switches and of NICs.
const (
	switchPrefix = "fabric_switch_port_"
	nicPrefix    = "fabric_nic_port_"
)

// Attributor reads the series of elements from Prometheus. It sends eight queries for each switch of an element,
// twelve for its NICs together, and four for the control planes where they matter.
type Attributor struct {
	DB evidence.Querier
	// Scrape is the interval at which ports are scraped.
	Scrape time.Duration
	// Before is the length of the time before the incident that is compared with it. 0 means one minute.
	Before time.Duration
}

// maxEnds bounds the ends that are queried for one verdict.
const maxEnds = 256

// maxOthers bounds the equivalents of an element whose series are read.
const maxOthers = 8

// Attribute returns why an element of a fabric is at fault. Where its series show nothing, and those of just one of the links and NICs
// that the same flows cross do, that is the cause (rule 9). It fails if a query fails.
func (a *Attributor) Attribute(ctx context.Context, g *fabric.Graph, q Request) (fabric.Attribution, error) {
	got, err := a.attributeElement(ctx, g, q)
	disagrees := got.Signals != nil && got.Signals.Says == fabric.SignalsDisagree
	if err != nil || got.State != fabric.NoCauseFound && !disagrees || got.State == fabric.CauseFound || len(q.Verdict.SameFlowEquivalents) > maxOthers {
		return got, err
	}
	var with []fabric.Attribution
	for _, other := range q.Verdict.SameFlowEquivalents {
		if k := other.Kind; k != fabric.KindLink && k != fabric.KindAccessLink && k != fabric.KindNIC {
			continue
		}
		x := q
		x.Verdict.Element, x.Verdict.Direction, x.Rerouted = other.Element, "", 0
		if other.Direction != (fabric.Direction{}) {
			x.Verdict.Direction = other.Direction.String()
		}
		o, err := a.attributeElement(ctx, g, x)
		if err != nil {
			return got, err
		}
		if o.State == fabric.CauseFound {
			o.Summary = fmt.Sprintf("The series of %s show nothing unusual, but those of %s do, which the same flows cross. %s", q.Verdict.Element.ID, other.ID, o.Summary)
			with = append(with, o)
		}
	}
	if len(with) != 1 {
		return got, nil
	}
	return with[0], nil
}

// attributeElement returns why an element is at fault, by its own series.
func (a *Attributor) attributeElement(ctx context.Context, g *fabric.Graph, q Request) (fabric.Attribution, error) {
	places := endRolesOf(g, &q.Verdict)
	control := controlPlanesOf(&q.Verdict, places)
	r := &readings{at: map[reading]*values{}, peers: map[string]string{}}
	for _, p := range places {
		r.peers[p.end] = g.PeerOf(p.end)
	}
	ports, nics := map[string][]string{}, []string{} // by switch
	own := ownPorts(&q.Verdict)
	for _, p := range slices.Concat(places, own) {
		if sw, port, ok := fabric.SplitPort(p.end); ok {
			ports[sw] = append(ports[sw], regexp.QuoteMeta(port))
		} else {
			nics = append(nics, regexp.QuoteMeta(p.end))
		}
	}
	t := a.momentsOf(q)
	if c, ok := a.DB.(evidence.Clocked); ok {
		var err error
		if t.ahead, err = c.ClockOffset(ctx); err != nil {
			return fabric.Attribution{}, err
		}
	}
	for _, sw := range slices.Sorted(maps.Keys(ports)) {
		selector := fmt.Sprintf("switch=%s,port=~%s", strconv.Quote(sw), strconv.Quote(strings.Join(ports[sw], "|")))
		if err := a.readSeries(ctx, r, t, switchPrefix, selector); err != nil {
			return fabric.Attribution{}, err
		}
	}
	if len(nics) > 0 {
		selector := "nic=~" + strconv.Quote(strings.Join(nics, "|"))
		if err := a.readSeries(ctx, r, t, nicPrefix, selector); err != nil {
			return fabric.Attribution{}, err
		}
		if err := a.readSnapshots(ctx, r, t, fmt.Sprintf("{__name__=~%s,%s}", strconv.Quote(strings.Join(wholeNames(ofNIC), "|")), selector)); err != nil {
			return fabric.Attribution{}, err
		}
	}
	if len(control) > 0 {
		var names []string
		for _, p := range control {
			names = append(names, regexp.QuoteMeta(p.end))
		}
		if err := a.readSnapshots(ctx, r, t, fmt.Sprintf("{__name__=~%s,switch=~%s}", strconv.Quote(strings.Join(wholeNames(ofSwitch), "|")), strconv.Quote(strings.Join(names, "|")))); err != nil {
			return fabric.Attribution{}, err
		}
	}
	signals, err := a.readSignals(ctx, q, places, t)
	if err != nil {
		return fabric.Attribution{}, err
	}
	return attributionOf(q, places, slices.Concat(control, own), r, signals), nil
}

// moments represents the times of the queries. past and shortlyBefore precede the incident; the second one serves where
// a series is younger than the first. start and sureSince are the earliest and latest beginning of the incident.
// lookback is the oldest age of a value.
type moments struct {
	past, shortlyBefore, start, sureSince, now time.Time
	lookback                                   time.Duration
	// ahead is how far the clock of Prometheus is ahead of the clock of this machine.
	ahead time.Duration
}

func (a *Attributor) momentsOf(q Request) moments {
	before := a.Before
	if before == 0 {
		before = time.Minute
	}
	past := q.Since.Add(-before)
	if quiet := q.Quiet.Add(2 * a.Scrape); quiet.After(past) { // what was scraped last before is of the earlier incident
		past = quiet
		if latest := q.Since.Add(-time.Second); past.After(latest) {
			past = latest
		}
	}
	return moments{past: past, shortlyBefore: q.Since.Add(-before / 12), start: q.Since, sureSince: q.SureSince, now: q.Now, lookback: max(3*a.Scrape, 3*time.Second)}
}

// readSeries reads the series of ports that the table needs: counters and states at the moments, and the averages of
// queues before and in the incident.
func (a *Attributor) readSeries(ctx context.Context, r *readings, t moments, prefix, selector string) error {
	if err := a.readSnapshots(ctx, r, t, fmt.Sprintf("{__name__=~%s,%s}", strconv.Quote(prefix+"(?:"+strings.Join(portSeries(), "|")+")"), selector)); err != nil {
		return err
	}
	for i := range table {
		row := &table[i]
		if row.unit == "" {
			continue
		}
		for _, of := range []struct {
			at   time.Time
			over time.Duration
			set  func(*values, *float64)
		}{
			{t.start, t.start.Sub(t.past), func(v *values, x *float64) { v.avgBefore = x }},
			{t.now, t.now.Sub(t.sureSince), func(v *values, x *float64) { v.avgNow = x }},
		} {
			query := fmt.Sprintf("avg_over_time(%s{%s}[%s])", prefix+row.Series, selector, evidence.PromDuration(of.over))
			samples, err := a.queryInstant(ctx, query, of.at.Add(t.ahead))
			if err != nil {
				return err
			}
			for end, x := range largestByEnd(samples) {
				of.set(r.valuesOf(reading{end, row.Series, ""}), &x)
			}
		}
	}
	return nil
}

// queryInstant runs an instant query. It returns the samples of a partial response without an error.
func (a *Attributor) queryInstant(ctx context.Context, query string, at time.Time) ([]evidence.Sample, error) {
	samples, err := a.DB.QueryInstant(ctx, query, at)
	var partial *evidence.PartialError
	if errors.As(err, &partial) {
		err = nil
	}
	return samples, err
}

// valuesOf returns the values of a reading, and adds empty ones if there are none.
func (r *readings) valuesOf(k reading) *values {
	v := r.at[k]
	if v == nil {
		v = &values{}
		r.at[k] = v
	}
	return v
}

// largestByEnd returns the largest of the values that several scrapes have of the same end, by end.
func largestByEnd(samples []evidence.Sample) map[string]float64 {
	out := map[string]float64{}
	for _, s := range samples {
		end := endOf(s.Labels)
		if was, ok := out[end]; !math.IsNaN(s.Value) && (!ok || s.Value > was) {
			out[end] = s.Value
		}
	}
	return out
}

func endOf(l map[string]string) string {
	if nic := l["nic"]; nic != "" {
		return nic
	}
	if l["port"] == "" {
		return l["switch"]
	}
	return l["switch"] + ":" + l["port"]
}

// readSnapshots queries the last values at four moments. A value older than the lookback does not count, and the value
// of now must come from the incident.
func (a *Attributor) readSnapshots(ctx context.Context, r *readings, t moments, selector string) error {
	one := map[string]*series{}
	for i, of := range []struct {
		at   time.Time
		look time.Duration
	}{{t.past, t.lookback}, {t.shortlyBefore, t.lookback}, {t.start, t.lookback}, {t.now, min(t.lookback, t.now.Sub(t.start))}} {
		samples, err := a.queryInstant(ctx, fmt.Sprintf("last_over_time(%s[%s])", selector, evidence.PromDuration(of.look)), of.at.Add(t.ahead))
		if err != nil {
			return err
		}
		for _, s := range samples {
			if math.IsNaN(s.Value) {
				continue
			}
			id := labelsKey(s.Labels)
			if one[id] == nil {
				one[id] = &series{labels: s.Labels}
			}
			x := s.Value
			one[id].at[i] = &x
		}
	}
	r.mergeSeries(one, t)
	return nil
}

// series represents one series at the four moments.
type series struct {
	labels map[string]string
	at     [4]*float64
}

// labelsKey writes the labels of a series as text that identifies them.
func labelsKey(l map[string]string) string {
	keys := slices.Sorted(maps.Keys(l))
	var b strings.Builder
	for _, k := range keys {
		b.WriteString(k + "=" + strconv.Quote(l[k]) + ",")
	}
	return b.String()
}

// mergeSeries keeps one of the series that several scrapers have of the same object, the one with the most values, and
// sums the series of an end over lanes and priorities.
func (r *readings) mergeSeries(all map[string]*series, t moments) {
	best := map[string]*series{}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		s := all[id]
		own := maps.Clone(s.labels)
		for _, l := range []string{"job", "instance", "replica", "prometheus", "cluster"} {
			delete(own, l)
		}
		if k := labelsKey(own); best[k] == nil || s.knownMoments() > best[k].knownMoments() {
			best[k] = s
		}
	}
	ids := slices.Collect(maps.Keys(best))
	sort.Strings(ids)
	for _, id := range ids {
		s := best[id]
		name := strings.TrimPrefix(strings.TrimPrefix(s.labels["__name__"], switchPrefix), nicPrefix)
		v := r.valuesOf(reading{endOf(s.labels), name, s.labels[labelOf(name)]})
		past, since := s.at[0], t.past
		if past == nil {
			past, since = s.at[1], t.shortlyBefore
		}
		v.secondsBefore, v.seconds = t.start.Sub(since).Seconds(), t.now.Sub(t.start).Seconds()
		for i, to := range []**float64{&v.past, &v.atStart, &v.now} {
			switch x := [...]*float64{past, s.at[2], s.at[3]}[i]; {
			case x == nil:
			case *to == nil:
				y := *x
				*to = &y
			default:
				**to += *x
			}
		}
	}
}

// knownMoments returns a rank by the moments at which a series has a value. Later moments rank higher.
func (s *series) knownMoments() (n int) {
	for i, v := range s.at {
		if v != nil {
			n += 1 << i
		}
	}
	return n
}

// endRolesOf returns the ends that a verdict is about, with their roles.
func endRolesOf(g *fabric.Graph, v *fabric.Verdict) []endRole {
	var out []endRole
	add := func(end string, sends, receives bool) {
		if end == "" || g.LinkAt(end) == nil || len(out) == maxEnds {
			return
		}
		for i := range out {
			if out[i].end == end {
				out[i].sends, out[i].receives = out[i].sends || sends, out[i].receives || receives
				return
			}
		}
		out = append(out, endRole{end, sends, receives})
	}
	way := func(d fabric.Direction) { add(d.From, true, false); add(d.To, false, true) }
	if d, err := fabric.ParseDirection(v.Direction); err == nil {
		way(d)
		return out
	}
	switch v.Kind {
	case fabric.KindSwitch, fabric.KindLeafUplinks:
		for _, d := range v.Footprint(g) {
			if fabric.OwnerOf(d.From) == v.Element.ID {
				add(d.From, true, true)
			}
		}
	case fabric.KindPair:
		leaves := v.Waypoints()
		for _, end := range g.Uplinks(leaves[0]) {
			add(end, true, false)
		}
		for _, end := range g.Uplinks(leaves[len(leaves)-1]) {
			add(end, false, true)
		}
	default:
		for _, d := range v.Footprint(g) {
			way(d)
		}
	}
	return out
}

// controlPlanesOf returns the switches of places whose control plane may be the cause. These are the switches of
// verdicts on lost or rerouted packets, not on late ones.
func controlPlanesOf(v *fabric.Verdict, places []endRole) (out []endRole) {
	switch {
	case v.Scenario == fabric.HardFailure || v.Scenario == fabric.Flap:
	case v.Kind == fabric.KindSwitch || v.Kind == fabric.KindLeafUplinks:
	default:
		return nil
	}
	for _, p := range places {
		sw, _, ok := fabric.SplitPort(p.end)
		if ok && !slices.ContainsFunc(out, func(o endRole) bool { return o.end == sw }) {
			out = append(out, endRole{sw, true, true})
		}
	}
	return out
}
