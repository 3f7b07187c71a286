package web

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/signals"
	"github.com/graylink/graylink/internal/fabric"
)

func bounds(lower, upper float64) fabric.Bounds { return fabric.Bounds{Lower: &lower, Upper: &upper} }

// TestBottlenecksOfALookup: the bottleneck is drawn at its hop, with its value, and the page says where it is not known.
func TestBottlenecksOfALookup(t *testing.T) {
	g, s := demoFault(t)
	h := handler(g, s)
	traced(t, g, h.Store, "h3/eth1>h1/eth1#0")
	path := traced(t, g, h.Store, "h3/eth1>h1/eth1#64")
	traced(t, g, h.Store, "h3/eth1>h1/eth1#64/r")
	port := path[1].Switch + ":" + path[1].Out
	tagged := fabric.Flow{Src: "h3/eth1", Dst: "h1/eth1", Number: 64}
	back := tagged
	back.Reply = true
	var failed error
	known := true
	h.Bottlenecks = func(_ context.Context, now time.Time, a, b string) (map[fabric.Flow]signals.Bottlenecks, bool, error) {
		if a != "h3/eth1" || b != "h1/eth1" || now.Sub(noon()) > time.Second {
			t.Errorf("asked about %s and %s at %s", a, b, now)
		}
		if failed != nil || !known {
			return nil, known, failed
		}
		return map[fabric.Flow]signals.Bottlenecks{
			tagged: {Share: &signals.Bottleneck{Port: port, Bounds: bounds(0, 0.01)}, Delay: &signals.Bottleneck{Port: port, Bounds: bounds(1.024e-3, 1.448e-3)}},
			back:   {Share: &signals.Bottleneck{Bounds: bounds(0.5, 0.52)}},
			{Src: "h3/eth1", Dst: "h1/eth1", Number: 65}: {}, // no path of it is known
		}, true, nil
	}
	const url = "/?src=h3/eth1&dst=h1/eth1"
	_, all := page(t, h, url)
	flow := one(t, all, "data-flow", tagged.String()).text
	contains(t, flow, path[1].Switch+" in "+path[1].In+", out "+path[1].Out+" → ", "← bottleneck: 0 % to 1 % of the speed is available", "← bottleneck: packets take 1.02 ms to 1.45 ms",
		"Bottleneck: at "+port+", 0 % to 1 % of the speed is available; at "+port+", packets take 1.02 ms to 1.45 ms.")
	if strings.Count(flow, "←") != 2 {
		t.Errorf("another hop is marked: %s", flow)
	}
	contains(t, one(t, all, "data-flow", back.String()).text, "Bottleneck: at a port that is not known, 50 % to 52 % of the speed is available.")
	contains(t, one(t, all, "data-flow", "h3/eth1>h1/eth1#0").text, "Bottleneck: not known, since no packet of this flow had an in-band signal lately.")
	if n := len(with(all, "data-flow", "h3/eth1>h1/eth1#65")); n != 0 {
		t.Errorf("%d flows of which nothing is known", n)
	}
	failed = errors.New("Prometheus is down")
	_, all = page(t, h, url)
	contains(t, one(t, all, "data-flow", "h3/eth1>h1/eth1#0").text, "Bottleneck: not known, since the in-band signals cannot be read.")
	failed, known = nil, false
	if text, _ := page(t, h, url); strings.Contains(text, "ottleneck") {
		t.Error("a bottleneck where nothing reads in-band signals")
	}
}

// TestBottleneckOfAVerdict: a verdict has the port that tags name, or why there is none, and nothing where nothing reads them.
func TestBottleneckOfAVerdict(t *testing.T) {
	share, delay := bounds(0, 0.01), bounds(1e-3, 2e-3)
	for _, tt := range []struct {
		reading *fabric.SignalReading
		want    string
	}{
		{&fabric.SignalReading{Says: fabric.SignalsAgree, Port: "spine1:dn1", AvailableRatio: &share, HopDelay: &delay}, "bottleneck" + "spine1:dn1, where 0 % to 1 % of its speed is available and packets take 1 ms to 2 ms (in-band signals agree with the verdict)"},
		{&fabric.SignalReading{Says: fabric.SignalsDisagree, Port: "leaf2:up1", HopDelay: &delay}, "bottleneck" + "leaf2:up1, where packets take 1 ms to 2 ms (in-band signals disagree with the verdict)"},
		{&fabric.SignalReading{Says: fabric.SignalsSilent, Text: "no tagged packets of flows with a known path cross it"}, "bottleneck" + "not known: no tagged packets"},
		{nil, ""},
	} {
		g, s := demoFault(t)
		s.Incidents[0].Attribution = &fabric.Attribution{State: fabric.NoCauseData, Signals: tt.reading}
		_, all := page(t, handler(g, s), "/")
		text := one(t, all, "data-verdict", s.Incidents[0].ID).text
		if !strings.Contains(text, tt.want) || tt.reading == nil && strings.Contains(text, "bottleneck") {
			t.Errorf("want %q: %s", tt.want, text)
		}
	}
}

// TestSignalFindingIsSaid: what is wrong with in-band signals is on the page.
func TestSignalFindingIsSaid(t *testing.T) {
	g, s := demoFault(t)
	s.Signals = []signals.Finding{{Kind: signals.ForeignLocators, Element: "spine1", Text: "tags of 9 flows name ports that are not on their path"}}
	text, _ := page(t, handler(g, s), "/")
	contains(t, text, "tags of 9 flows name ports that are not on their path")
}
