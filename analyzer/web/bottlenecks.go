package web

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/analyzer/signals"
	"github.com/graylink/graylink/internal/fabric"
)

// What the page says of the bottleneck of a path without a value.
const (
	noTags      = "not known, since no packet of this flow had an in-band signal lately"
	unreadTags  = "not known, since the in-band signals cannot be read"
	unknownPort = "a port that is not known"
)

// addBottlenecks adds the bottlenecks of the paths of a look-up, as in-band signals show them, and the flows that have such signals. Nothing
// is added where nothing reads signals.
func (h *Handler) addBottlenecks(ctx context.Context, l *lookup, now time.Time) {
	g := h.Store.Graph()
	src, dst := g.NIC(l.Src), g.NIC(l.Dst)
	if src == nil || dst == nil {
		return
	}
	all, known, err := h.Bottlenecks(ctx, now, src.ID(), dst.ID())
	if err == nil && !known {
		return
	}
	tagged := slices.SortedFunc(maps.Keys(all), func(a, b fabric.Flow) int { return fabric.CompareNatural(a.String(), b.String()) })
	for i := range l.Ways {
		w := &l.Ways[i]
		more := 0
		for _, f := range tagged {
			from, to := f.Endpoints()
			if shown := slices.ContainsFunc(w.Flows, func(v flowView) bool { return v.Edge == f.String() }); shown || from != w.From || to != w.To || more == maxFlows {
				continue
			}
			if v, ok := h.newFlowView(f, nil); ok {
				w.Flows = append(w.Flows, v)
				more++
			}
		}
		for k := range w.Flows {
			v := &w.Flows[k]
			v.Bottleneck = noTags
			if err != nil {
				v.Bottleneck = unreadTags
			}
			if f, bad := fabric.ParseFlow(v.Edge); bad == nil {
				v.addBottlenecks(all[f])
			}
		}
	}
}

// addBottlenecks adds the bottlenecks of a flow to its view, and marks the hops that they are at.
func (v *flowView) addBottlenecks(of signals.Bottlenecks) {
	var text []string
	for _, b := range []struct {
		of    *signals.Bottleneck
		value func(fabric.Bounds) string
	}{
		{of.Share, func(x fabric.Bounds) string { return x.FormatShare() + " of the speed is available" }},
		{of.Delay, func(x fabric.Bounds) string { return "packets take " + x.FormatDelay() }},
	} {
		if b.of == nil {
			continue
		}
		value, at := b.value(b.of.Bounds), unknownPort
		for i := range v.Hops {
			if h := &v.Hops[i]; b.of.Port != "" && h.Switch+":"+h.Out == b.of.Port {
				at = b.of.Port
				h.Worst = append(h.Worst, value)
			}
		}
		text = append(text, fmt.Sprintf("at %s, %s", at, value))
	}
	if len(text) > 0 {
		v.Bottleneck = strings.Join(text, "; ")
	}
}

// formatBottleneck describes the bottleneck that in-band signals show for a verdict. It returns "" where nothing reads them.
func formatBottleneck(a *fabric.Attribution) string {
	switch {
	case a == nil || a.Signals == nil:
		return ""
	case a.Signals.Port == "":
		return "not known: " + a.Signals.Text
	}
	var value []string
	if b := a.Signals.AvailableRatio; b != nil {
		value = append(value, b.FormatShare()+" of its speed is available")
	}
	if b := a.Signals.HopDelay; b != nil {
		value = append(value, "packets take "+b.FormatDelay())
	}
	opinion := map[fabric.SignalOpinion]string{fabric.SignalsAgree: "agree", fabric.SignalsDisagree: "disagree"}[a.Signals.Says]
	return fmt.Sprintf("%s, where %s (in-band signals %s with the verdict)", a.Signals.Port, strings.Join(value, " and "), opinion)
}
