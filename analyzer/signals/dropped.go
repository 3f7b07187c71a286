package signals

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
)

// droppedTags returns a finding for each switch at which tagged packets end, as nodes find it by hop-limited packets (rule 5).
func (c *Checker) droppedTags(ctx context.Context, now time.Time) ([]Finding, error) {
	all, err := c.query(ctx, now, "count by (address) (last_over_time(fabric_csig_tag_drop_info["+evidence.PromDuration(c.span())+"]))")
	if err != nil {
		return nil, err
	}
	flows := map[string]float64{} // by switch, or by the address of one that is not known
	for _, s := range all {
		name := s.Labels["address"]
		if a, err := netip.ParseAddr(name); err == nil {
			if sw := c.SwitchAt(a); sw != "" {
				name = sw
			}
		}
		flows[name] += s.Value
	}
	var out []Finding
	for _, name := range slices.Sorted(maps.Keys(flows)) {
		out = append(out, Finding{Kind: TagsDropped, Element: name,
			Text: fmt.Sprintf("tagged packets of %.0f flows end at switch %s: it drops them, or the port that sends to it does", flows[name], name)})
	}
	return out, nil
}
