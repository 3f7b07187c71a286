package attribute

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/evidence/evidencetest"
	"github.com/graylink/graylink/internal/fabric"
)

// forwardTags and reverseTags are the labels of the two directions of the tagged flow of the tests. Its path is leaf1:up1, spine1:dn2,
// leaf2:dn1, and the one back leaf2:up1, spine1:dn1, leaf1:dn1.
const (
	forwardTags = `src="h1/eth1",dst="h2/eth1",flow="64",direction="forward"`
	reverseTags = `src="h1/eth1",dst="h2/eth1",flow="64",direction="reverse"`
)

// crossing returns the flows of the tests that cross an element.
func crossing(t *testing.T) func(fabric.Element) []CrossingFlow {
	g := graph(t)
	return func(e fabric.Element) (out []CrossingFlow) {
		for _, f := range []fabric.Flow{{Src: "h1/eth1", Dst: "h2/eth1", Number: 64}, {Src: "h1/eth1", Dst: "h2/eth1", Number: 64, Reply: true}} {
			src, dst := f.Endpoints()
			if p := g.ShortestPaths(src, dst, 1)[0]; e.CrossedBy(p, src, dst) {
				out = append(out, CrossingFlow{f, p})
			}
		}
		return out
	}
}

// domain returns what a node publishes of in-band signals in general. Locators 1 to 3 are the ports of the forward path, 4 to 6 those of
// the reverse one, and 9 is two ports of the forward one.
func domain() []written {
	out := []written{{"graylink_csig_profile_info", `hash="aa"`, "1x200"}}
	for i, port := range []string{"leaf1:up1", "spine1:dn2", "leaf2:dn1", "leaf2:up1", "spine1:dn1", "leaf1:dn1"} {
		sw, name, _ := fabric.SplitPort(port)
		out = append(out, written{"fabric_csig_locator_info", fmt.Sprintf(`format="compact",locator="%d",switch=%q,port=%q`, i+1, sw, name), "1x200"})
	}
	return append(out, written{"fabric_csig_locator_info", `format="compact",locator="9",switch="leaf1",port="up1"`, "1x200"},
		written{"fabric_csig_locator_info", `format="compact",locator="9",switch="spine1",port="dn2"`, "1x200"})
}

// named returns a counter of the tags of a signal with a locator: so many a second in the incident, and ten before it.
func named(flow, signal string, locator, perSecond int) written {
	return written{"fabric_csig_packets_total", fmt.Sprintf(`%s,signal=%q,format="compact",locator="%d"`, flow, signal, locator), step("0+10", fmt.Sprintf("1000+%d", perSecond))}
}

// bounds returns the two series of a value, as "lower upper" before the incident and in it.
func bounds(name, flow, was, is string) (out []written) {
	a, b := strings.Fields(was), strings.Fields(is)
	for i, bound := range []string{"lower", "upper"} {
		out = append(out, written{name, fmt.Sprintf("%s,bound=%q", flow, bound), step(a[i], b[i])})
	}
	return out
}

func shares(flow, was, is string) []written { return bounds(tagShares, flow, was, is) }
func delays(flow, was, is string) []written { return bounds(tagDelays, flow, was, is) }

// askSignals returns the attribution of a verdict by series, with in-band signals.
func askSignals(t *testing.T, v fabric.Verdict, all []written) fabric.Attribution {
	t.Helper()
	var b strings.Builder
	b.WriteString("load 1s\n")
	for _, s := range all {
		for _, replica := range []string{"a", "b"} { // of a node that two servers scrape
			fmt.Fprintf(&b, "  %s{%s,instance=\"h1\",replica=%q} %s\n", s.name, s.labels, replica, s.values)
		}
	}
	a := Attributor{DB: evidencetest.NewQuerier(t, b.String()), Scrape: time.Second}
	got, err := a.Attribute(t.Context(), graph(t), Request{Verdict: v, Since: time.Unix(begin, 0), SureSince: time.Unix(begin+5, 0), Now: time.Unix(end, 0), Crossing: crossing(t)})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// directed returns a verdict on a direction of a link.
func directed(from, to string) fabric.Verdict {
	d := fabric.Direction{From: from, To: to}
	return fabric.Verdict{Element: fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink}, Direction: d.String(), Scenario: fabric.Corridor, Symptom: fabric.Symptom{AddedDelayNS: 1e6}}
}

func TestRules11To14Signals(t *testing.T) {
	const free, scarce = "0.75 0.8", "0 0.01"
	const idle, waits = "1e-6 1.414e-6", "1.024e-3 1.448e-3"
	most := func(flow, signal string, locator int) []written {
		return []written{named(flow, signal, locator, 48), named(flow, signal, locator%3+1, 1), named(flow, signal, 0, 1)}
	}
	on := func(kind fabric.Kind, id string) fabric.Verdict {
		return fabric.Verdict{Element: fabric.Element{ID: id, Kind: kind}, Scenario: fabric.HotSpine}
	}
	up, down := link(), directed("spine1:dn2", "leaf2:up1")
	for _, tt := range []struct {
		name   string
		v      fabric.Verdict
		series [][]written
		says   fabric.SignalOpinion
		weight float64 // of congestion
		words  string  // in the summary, or in the text of the signals
	}{
		{"the share of the sending port", up, [][]written{most(forwardTags, "share", 1), shares(forwardTags, free, scarce)}, fabric.SignalsAgree, 0.8,
			"Cause: congestion at leaf1:up1 (weight 0.80): 96 % of the tags of 1 flows name it as the bottleneck, where 0 % to 1 % of the speed is available."},
		{"its delay", up, [][]written{most(forwardTags, "delay", 1), delays(forwardTags, idle, waits)}, fabric.SignalsAgree, 0.8, "and packets take 1.02 ms to 1.45 ms"},
		{"a delay beyond the last edge", up, [][]written{most(forwardTags, "delay", 1), delays(forwardTags, idle, "0.008192 _")}, fabric.SignalsAgree, 0.8, "packets take 8.19 ms or more"},
		{"half of the tags", up, [][]written{{named(forwardTags, "share", 1, 50), named(forwardTags, "share", 0, 50)}, shares(forwardTags, free, scarce)}, fabric.SignalsAgree, 0.8, "50 % of the tags"},
		{"fewer than half of them", up, [][]written{{named(forwardTags, "share", 1, 48), named(forwardTags, "share", 0, 52)}, shares(forwardTags, free, scarce)}, fabric.SignalsSilent, 0, "do not name one port"},
		{"another port as well", up, [][]written{{named(forwardTags, "share", 1, 70), named(forwardTags, "share", 2, 30)}, shares(forwardTags, free, scarce)}, fabric.SignalsSilent, 0, "do not name one port"},
		{"a queue at another port as well", up, [][]written{{named(forwardTags, "delay", 1, 70), named(forwardTags, "delay", 2, 30)}, delays(forwardTags, idle, waits)}, fabric.SignalsSilent, 0, "do not name one port"},
		{"a port that was as full before", up, [][]written{most(forwardTags, "share", 1), shares(forwardTags, scarce, scarce)}, fabric.SignalsAgree, 0.4, "which it was before the incident as well"},
		{"a share that is not known before", up, [][]written{most(forwardTags, "share", 1), shares(forwardTags, "_ _", scarce)}, fabric.SignalsAgree, 0.4, "is not known of that time"},
		{"an eighth is available", up, [][]written{most(forwardTags, "share", 1), shares(forwardTags, free, "0.1 0.12")}, fabric.SignalsSilent, 0, "do not name one port"},
		{"a delay that is not known before", up, [][]written{most(forwardTags, "delay", 1), delays(forwardTags, "_ _", waits)}, fabric.SignalsSilent, 0, "do not name one port"},
		{"two buckets more", up, [][]written{most(forwardTags, "delay", 1), delays(forwardTags, idle, "2e-6 2.828e-6")}, fabric.SignalsSilent, 0, "do not name one port"},
		{"three buckets more", up, [][]written{most(forwardTags, "delay", 1), delays(forwardTags, idle, "2.829e-6 4e-6")}, fabric.SignalsAgree, 0.8, ""},
		{"from the first bucket", up, [][]written{most(forwardTags, "delay", 1), delays(forwardTags, "0 250e-9", "500e-9 707e-9")}, fabric.SignalsAgree, 0.8, ""},
		{"five narrow buckets more are noise", up, [][]written{most(forwardTags, "delay", 1), delays(forwardTags, "1.28e-6 1.408e-6", "1.92e-6 2.048e-6")}, fabric.SignalsSilent, 0, ""},
		{"many narrow buckets more", up, [][]written{most(forwardTags, "delay", 1), delays(forwardTags, "1.28e-6 1.408e-6", "2.944e-6 3.072e-6")}, fabric.SignalsAgree, 0.8, ""},
		{"two narrow buckets more, and twice as long", up, [][]written{most(forwardTags, "delay", 1), delays(forwardTags, "0 128e-9", "256e-9 384e-9")}, fabric.SignalsSilent, 0, ""},
		{"another port", up, [][]written{most(forwardTags, "share", 2), shares(forwardTags, free, scarce)}, fabric.SignalsDisagree, 0,
			"Contradictory evidence: 96 % of the tags of 1 flows that cross it name spine1:dn2 as the bottleneck, where 0 % to 1 % of the speed is available."},
		{"another port that was as full before", up, [][]written{most(forwardTags, "share", 2), shares(forwardTags, scarce, scarce)}, fabric.SignalsSilent, 0, ""},
		{"the worst hop of an idle path", up, [][]written{most(forwardTags, "share", 1), shares(forwardTags, free, free), most(forwardTags, "delay", 3), delays(forwardTags, idle, idle)}, fabric.SignalsSilent, 0, ""},
		{"tags of the other direction", up, [][]written{most(reverseTags, "share", 1), shares(reverseTags, free, scarce)}, fabric.SignalsSilent, 0, "no tagged packets"},
		{"the other direction has its own ports", directed("spine1:dn1", "leaf1:up1"), [][]written{{named(reverseTags, "share", 5, 50)}, shares(reverseTags, free, scarce)}, fabric.SignalsAgree, 0.8, "at spine1:dn1"},
		{"a locator of no port of the path", up, [][]written{{named(forwardTags, "share", 5, 50)}, shares(forwardTags, free, scarce)}, fabric.SignalsSilent, 0, ""},
		{"a locator of two ports of the path", up, [][]written{{named(forwardTags, "share", 9, 50)}, shares(forwardTags, free, scarce)}, fabric.SignalsSilent, 0, ""},
		{"no tag", up, nil, fabric.SignalsSilent, 0, "no tagged packets"},
		{"a path on which tags do not arrive", up, [][]written{most(forwardTags, "share", 1), shares(forwardTags, free, scarce),
			{{tagSupport, `src="h1/eth1",dst="h2/eth1",flow="64"`, "0x200"}}}, fabric.SignalsSilent, 0, "tagged packets do not arrive"},
		{"another path on which they do not", up, [][]written{most(forwardTags, "share", 1), shares(forwardTags, free, scarce),
			{{tagSupport, `src="h1/eth1",dst="h2/eth1",flow="65"`, "0x200"}, {tagSupport, `src="h1/eth1",dst="h2/eth1",flow="64"`, "1x200"}}}, fabric.SignalsAgree, 0.8, ""},
		{"values of an old window", up, [][]written{most(forwardTags, "share", 1), {{tagShares, forwardTags + `,bound="lower"`, "0.75x100 0x9 stale"}, {tagShares, forwardTags + `,bound="upper"`, "0.8x100 0.01x9 stale"}}}, fabric.SignalsSilent, 0, ""},
		{"packets that are no probes", up, [][]written{most(`src="h1/eth1",dst="h2/eth1",flow="data",direction="forward"`, "share", 1)}, fabric.SignalsSilent, 0, "no tagged packets"},
		{"a few tags", up, [][]written{{{"fabric_csig_packets_total", forwardTags + `,signal="share",format="compact",locator="1"`, step("0", "0x12 5")}}, shares(forwardTags, free, scarce)}, fabric.SignalsSilent, 0, ""},
		{"a switch: any of its ports", on(fabric.KindSwitch, "spine1"), [][]written{most(forwardTags, "share", 2), shares(forwardTags, free, scarce)}, fabric.SignalsAgree, 0.8, "at spine1:dn2"},
		{"a switch: a port before it", on(fabric.KindSwitch, "spine1"), [][]written{most(forwardTags, "share", 1), shares(forwardTags, free, scarce)}, fabric.SignalsDisagree, 0, "name leaf1:up1"},
		{"a queue: its port", on(fabric.KindQueue, "spine1:dn2@tc3"), [][]written{most(forwardTags, "delay", 2), delays(forwardTags, idle, waits)}, fabric.SignalsAgree, 0.8, "at spine1:dn2"},
		{"a NIC: the port that sends to it", on(fabric.KindNIC, "h2/eth1"), [][]written{most(forwardTags, "share", 3), shares(forwardTags, free, scarce)}, fabric.SignalsAgree, 0.8, "at leaf2:dn1"},
		{"a NIC that sends has no port with a locator", fabric.Verdict{Element: fabric.Element{ID: "h1/eth1", Kind: fabric.KindNIC}, Direction: "h1/eth1->leaf1:dn1", Scenario: fabric.BadNIC},
			[][]written{most(forwardTags, "share", 1), shares(forwardTags, free, scarce)}, fabric.SignalsDisagree, 0, "name leaf1:up1"},
		// Both ports are full, and the first one has the tags of the share. The queue is at the second one.
		{"two congestions: the lesser", up, [][]written{most(forwardTags, "share", 1), shares(forwardTags, free, scarce), most(forwardTags, "delay", 2), delays(forwardTags, idle, waits)}, fabric.SignalsDisagree, 0, "name spine1:dn2"},
		{"two congestions: the greater", down, [][]written{most(forwardTags, "share", 1), shares(forwardTags, free, scarce), most(forwardTags, "delay", 2), delays(forwardTags, idle, waits)}, fabric.SignalsAgree, 0.8, "at spine1:dn2"},
	} {
		a := askSignals(t, tt.v, slices.Concat(append(tt.series, domain())...))
		if a.Signals == nil || a.Signals.Says != tt.says || !strings.Contains(a.Summary+a.Signals.Text, tt.words) {
			t.Errorf("%s: %+v, want %s and %q; %s", tt.name, a.Signals, tt.says, tt.words, a.Summary)
			continue
		}
		weight := 0.0
		for _, c := range a.Causes {
			weight = c.Weight
		}
		if weight != tt.weight || len(a.Against) > 0 != (tt.says == fabric.SignalsDisagree) {
			t.Errorf("%s: causes %+v against %q", tt.name, a.Causes, a.Against)
		}
	}
}

// TestSignalsAndSeries: signals add to what the series of ports show, do not replace them, and never say anything where nothing reads
// them.
func TestSignalsAndSeries(t *testing.T) {
	full := slices.Concat(domain(), shares(forwardTags, "0.75 0.8", "0 0.01"), []written{named(forwardTags, "share", 1, 50)})
	queue := written{"fabric_switch_port_queue_bytes", uplink, step("0", "4600")}
	if a := askSignals(t, link(), append(slices.Clone(full), queue)); a.Causes[0].Weight != 0.98 || len(a.Causes) != 1 || a.Agrees == nil || !*a.Agrees {
		t.Errorf("with a queue: %+v", a.Causes)
	}
	if a := askSignals(t, link(), append(slices.Clone(full), idle()...)); len(a.Causes) != 0 || a.Signals.Says != fabric.SignalsAgree || len(a.Against) != 1 || !strings.Contains(a.Against[0], "this is no congestion") {
		t.Errorf("rule 4: an empty queue: %+v, %q", a.Causes, a.Against)
	}
	if a := askSignals(t, link(), full[1:]); a.Signals != nil || a.State != fabric.NoCauseData {
		t.Errorf("nothing reads signals: %+v", a.Signals)
	}
	other := slices.Concat(domain(), idle()[:3], shares(forwardTags, "0.75 0.8", "0 0.01"), []written{named(forwardTags, "share", 2, 50)})
	v := link()
	a := askSignals(t, v, other[:len(other)-1])
	if a.Signals.Says != fabric.SignalsSilent {
		t.Errorf("values without tags: %+v", a.Signals)
	}
	a = askSignals(t, v, slices.Concat(domain(), shares(forwardTags, "0.75 0.8", "0 0.01"), []written{named(forwardTags, "share", 2, 50)}))
	ApplyAttribution(&v, []string{fabric.CauseCongestion}, &a)
	if a.Signals.Says != fabric.SignalsDisagree || !slices.Contains(v.Causes, fabric.CauseCongestion) || v.Action != "generic" || a.Agrees == nil || *a.Agrees {
		t.Errorf("what probes suggest at a lesser queue is dropped: %q, %s, %+v", v.Causes, v.Action, a.Signals)
	}
	// Rule 9: the same flows cross the other link, whose port the tags name.
	v = link()
	v.SameFlowEquivalents = []fabric.DirectedElement{{Element: fabric.Element{ID: "leaf2:up1--spine1:dn2", Kind: fabric.KindLink}, Direction: fabric.Direction{From: "spine1:dn2", To: "leaf2:up1"}}}
	a = askSignals(t, v, slices.Concat(domain(), shares(forwardTags, "0.75 0.8", "0 0.01"), []written{named(forwardTags, "share", 2, 50)}))
	if len(a.Causes) != 1 || a.Causes[0].Element != "spine1:dn2" || a.Signals.Says != fabric.SignalsAgree {
		t.Errorf("rule 9: %+v", a)
	}
}
