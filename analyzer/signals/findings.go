package signals

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
)

const (
	// sourcesAtOnce is the number of NICs whose flows one check looks at.
	sourcesAtOnce = 64
	// fewestForeign is the least number of tags of a flow, and fewestFlows that of flows, that make a finding of rule 3.
	fewestForeign = 3
	fewestFlows   = 2
	// locatorsHold is the time after which the ports of locators are read again.
	locatorsHold = time.Minute
	// maxNames bounds the names in the text of a finding.
	maxNames = 5
)

// Checker looks for what is wrong with the in-band signals of a domain. Its methods must not be called concurrently.
type Checker struct {
	Reader
	// NICs returns the NICs whose flows are looked at.
	NICs func() []string
	// SwitchAt returns the switch that has an address, or "".
	SwitchAt func(netip.Addr) string

	turn       int
	locators   map[Locator][]string
	locatorsAt time.Time
	// foreign are the switches that the last check suspected by rule 3.
	foreign []string
}

// Check returns what is wrong at a time, sorted by kind. It fails if a query fails.
func (c *Checker) Check(ctx context.Context, now time.Time) ([]Finding, error) {
	ctx, cancel := c.withPatience(ctx)
	defer cancel()
	if read, err := c.isRead(ctx, now); err != nil || !read {
		c.foreign = nil
		return nil, err
	}
	out, err := c.checkProfiles(ctx, now)
	if err != nil {
		return nil, err
	}
	dropped, err := c.droppedTags(ctx, now)
	if err != nil {
		return nil, err
	}
	out = append(out, dropped...)
	dropping, err := c.droppingNICs(ctx, now)
	if err != nil {
		return nil, err
	}
	seen, err := c.lookAtFlows(ctx, now, dropping)
	if err != nil {
		return nil, err
	}
	if len(dropping) > 0 {
		out = append(out, unknownLocators(dropping, seen))
	}
	suspects := seen.foreignSwitches()
	if again := slices.DeleteFunc(slices.Clone(suspects), func(sw string) bool { return !slices.Contains(c.foreign, sw) }); len(again) > 0 {
		out = append(out, foreignLocators(again, seen))
	}
	c.foreign = suspects
	slices.SortStableFunc(out, func(a, b Finding) int { return strings.Compare(a.Kind, b.Kind) })
	return out, nil
}

// checkProfiles returns a finding if nodes have different profiles (rule 1).
func (c *Checker) checkProfiles(ctx context.Context, now time.Time) ([]Finding, error) {
	const hashes = "count by (hash) (last_over_time(graylink_csig_profile_info["
	all, err := c.query(ctx, now, hashes+evidence.PromDuration(c.span())+"]))")
	if err != nil || len(all) < 2 {
		return nil, err
	}
	most := slices.MinFunc(all, func(a, b evidence.Sample) int {
		return cmp.Or(cmp.Compare(b.Value, a.Value), strings.Compare(a.Labels["hash"], b.Labels["hash"]))
	}).Labels["hash"]
	others, err := c.query(ctx, now, fmt.Sprintf("count by (instance) (last_over_time(graylink_csig_profile_info{hash!=%q}[%s]))", most, evidence.PromDuration(c.span())))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range others {
		names = append(names, s.Labels["instance"])
	}
	return []Finding{{Kind: ProfilesDiffer, Text: fmt.Sprintf("in-band signals are read by %d different profiles: %s do not have that of most, %s", len(all), listNames(names), most)}}, nil
}

// listNames lists the first few of some names.
func listNames(names []string) string {
	slices.Sort(names)
	if n := len(names); n > maxNames {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), n-maxNames)
	}
	return strings.Join(names, ", ")
}

// droppingNICs returns the NICs where tags with unknown locators arrive (rule 2).
func (c *Checker) droppingNICs(ctx context.Context, now time.Time) (out []string, err error) {
	all, err := c.query(ctx, now, fmt.Sprintf(`max by (nic) (increase(fabric_csig_dropped_total{reason="unknown_locator"}[%s])) > 0`, evidence.PromDuration(c.span())))
	for _, s := range all {
		out = append(out, s.Labels["nic"])
	}
	slices.Sort(out)
	return out, err
}

// seenFlows is what a check saw of flows.
type seenFlows struct {
	// named counts the tags that name a port of a switch on the path.
	named map[string]float64
	// foreign has the switches on the path of each flow with tags of ports that are not on it.
	foreign map[fabric.Flow][]string
	// arriving has the switches on the ways to each of the NICs where unknown locators arrive.
	arriving map[string]map[string]bool
}

// lookAtFlows looks at the flows of some NICs, which are others in each check, and at those that end at NICs where unknown locators arrive.
func (c *Checker) lookAtFlows(ctx context.Context, now time.Time, dropping []string) (*seenFlows, error) {
	seen := &seenFlows{named: map[string]float64{}, foreign: map[fabric.Flow][]string{}, arriving: map[string]map[string]bool{}}
	matchers := []string{"src=~" + evidence.AnyOf(c.nextSources())}
	if len(dropping) > 0 {
		few := evidence.AnyOf(dropping[:min(len(dropping), sourcesAtOnce)])
		matchers = append(matchers, "dst=~"+few, "src=~"+few)
	}
	for _, m := range matchers {
		all, err := c.readTags(ctx, now, m)
		if err != nil {
			return nil, err
		}
		if err := c.refreshLocators(ctx, now, all); err != nil {
			return nil, err
		}
		for f, t := range all {
			c.addFlow(seen, f, t, now, dropping)
		}
	}
	return seen, nil
}

// nextSources returns the NICs whose flows this check looks at. They are far from each other, so that each leaf has some.
func (c *Checker) nextSources() (out []string) {
	all := c.NICs()
	turns := (len(all) + sourcesAtOnce - 1) / sourcesAtOnce
	for i := range all {
		if turns > 0 && i%turns == c.turn%turns {
			out = append(out, all[i])
		}
	}
	c.turn++
	return out
}

// refreshLocators reads the ports of locators if they are old, or if tags have others.
func (c *Checker) refreshLocators(ctx context.Context, now time.Time, all map[fabric.Flow]tags) error {
	fresh := now.Sub(c.locatorsAt) < locatorsHold
	for _, t := range all {
		for _, of := range t {
			for l := range of {
				fresh = fresh && (l.Number == "0" || len(c.locators[l]) > 0)
			}
		}
	}
	if fresh {
		return nil
	}
	locators, err := c.readLocators(ctx, now, nil)
	if err == nil {
		c.locators, c.locatorsAt = locators, now
	}
	return err
}

// addFlow adds what the tags of a flow name. A flow whose path was not confirmed in the meantime says nothing of foreign locators.
func (c *Checker) addFlow(seen *seenFlows, f fabric.Flow, t tags, now time.Time, dropping []string) {
	b := c.PathOf(f)
	end := now.Add(-c.Lag)
	begin := end.Add(-c.span())
	if !b.Valid || b.Since.After(begin) {
		return
	}
	var switches []string
	for _, h := range b.Path {
		switches = append(switches, h.Switch)
	}
	foreign := 0.0
	for _, of := range t {
		for l, n := range of {
			ports := c.locators[l]
			on := PortsOnPath(b.Path, ports)
			for _, port := range on {
				seen.named[fabric.OwnerOf(port)] += n
			}
			if len(ports) > 0 && len(on) == 0 {
				foreign += n
			}
		}
	}
	if foreign >= fewestForeign && !b.Confirmed.Before(begin) {
		seen.foreign[f] = switches
	}
	if _, to := f.Endpoints(); slices.Contains(dropping, to) {
		if seen.arriving[to] == nil {
			seen.arriving[to] = map[string]bool{}
		}
		for _, sw := range switches {
			seen.arriving[to][sw] = true
		}
	}
}

// narrow returns the switches that all of some groups have, without those whose ports tags name if others remain (rule 4).
func (s *seenFlows) narrow(groups [][]string) []string {
	counts := map[string]int{}
	for _, g := range groups {
		for _, sw := range g {
			counts[sw]++
		}
	}
	maps.DeleteFunc(counts, func(_ string, n int) bool { return n < len(groups) })
	unnamed := maps.Clone(counts)
	maps.DeleteFunc(unnamed, func(sw string, _ int) bool { return s.named[sw] > 0 })
	if len(unnamed) > 0 {
		counts = unnamed
	}
	return slices.Sorted(maps.Keys(counts))
}

// foreignSwitches returns the switches that may have another profile, by the flows with tags of ports that are not on their path.
func (s *seenFlows) foreignSwitches() []string {
	if len(s.foreign) < fewestFlows {
		return nil
	}
	return s.narrow(slices.Collect(maps.Values(s.foreign)))
}

// unknownLocators returns the finding of rule 2.
func unknownLocators(dropping []string, seen *seenFlows) Finding {
	f := Finding{Kind: UnknownLocators, Text: fmt.Sprintf("tags with locators that no profile gives to a port arrive at %s", listNames(slices.Clone(dropping)))}
	var groups [][]string
	for _, switches := range seen.arriving {
		groups = append(groups, slices.Collect(maps.Keys(switches)))
	}
	f.nameSwitch(seen.narrow(groups))
	return f
}

// foreignLocators returns the finding of rule 3.
func foreignLocators(switches []string, seen *seenFlows) Finding {
	f := Finding{Kind: ForeignLocators, Text: fmt.Sprintf("tags of %d flows name ports that are not on their path", len(seen.foreign))}
	f.nameSwitch(switches)
	return f
}

// nameSwitch adds the switches that may have another profile to a finding.
func (f *Finding) nameSwitch(switches []string) {
	switch len(switches) {
	case 0:
	case 1:
		f.Element = switches[0]
		f.Text += ": switch " + f.Element + " seems to have another profile"
	default:
		f.Text += ": one of the switches " + listNames(switches) + " seems to have another profile"
	}
}
