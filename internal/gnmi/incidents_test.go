package gnmi

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gpb "github.com/openconfig/gnmi/proto/gnmi"

	"github.com/graylink/graylink/internal/gnmi/gnmitest"
	"github.com/graylink/graylink/internal/gnmi/preset"
)

var writeIncidents = flag.Bool("incidents.update", false, "write the series of incidents for the attribution's test")

// An incident begins after second incidentBegin and is recorded until incidentEnd. Switches are sampled every
// incidentSample seconds, and Prometheus scrapes every second.
const (
	incidentBegin  = 100
	incidentEnd    = 130
	incidentSample = 10
)

// incident is a script for the two ends of a link: their states n seconds into the incident, 0 before it, at
// second s.
type incident struct {
	name, words, vendor string
	verdict, causes     string // as the attribution's test reads them
	targets             []string
	paths               []preset.UserPath
	sends, receives     func(x *gnmitest.State, s, n int)
	more                func(end string, s, n int) []*gpb.Update
}

// idle applies what happens at any time.
func idle(x *gnmitest.State, s int) {
	x.Octets += uint64(s) * 1e9
	x.PFCReceived += uint64(s) * 2
	x.ECNMarked += uint64(s)
}

func counterOf(t *testing.T, path string, v uint64) *gpb.Update {
	t.Helper()
	return &gpb.Update{Path: path1(t, path), Val: &gpb.TypedValue{Value: &gpb.TypedValue_UintVal{UintVal: v}}}
}

func incidents(t *testing.T) []incident {
	const link = "link leaf1:up1--spine1:dn1 leaf1:up1->spine1:dn1 "
	wait := func(end string, s, n int) []*gpb.Update {
		ticks := uint64(s) * 40
		if end == "leaf1:up1" {
			ticks += uint64(n) * 90_000
		}
		_, port, _ := strings.Cut(end, ":")
		return []*gpb.Update{counterOf(t, "/interfaces/interface[name="+port+"]/infiniband/state/counters/port/xmit-wait", ticks)}
	}
	class := preset.UserPath{Path: "/copp/classes/class[name={class}]/state/dropped-pkts", Metric: "fabric_switch_control_plane_discards_total", Type: "counter", Unit: "none"}
	policed := func(end string, s, n int) []*gpb.Update {
		bgp := uint64(s / 10)
		if end == "spine1:dn1" {
			bgp += uint64(n) * 400
		}
		return []*gpb.Update{counterOf(t, "/copp/classes/class[name=bgp]/state/dropped-pkts", bgp), counterOf(t, "/copp/classes/class[name=arp]/state/dropped-pkts", 17)}
	}
	return []incident{
		{name: "pfc-storm", words: "The spine pauses priority 3 of the leaf's uplink for 40 % of the time.", vendor: "cumulus", verdict: link + "corridor", causes: "pause_stall at leaf1:up1",
			sends: func(x *gnmitest.State, _, n int) {
				x.PFCReceived += uint64(n) * 900
				x.PauseReceived += time.Duration(n) * 400 * time.Millisecond
			}},
		{name: "tail-drop", words: "A queue of the leaf's uplink fills: packets are marked, and thrown away.", vendor: "sonic", targets: []string{"COUNTERS_DB", "APPL_DB", "STATE_DB"}, verdict: link + "corridor",
			causes: "congestion at leaf1:up1, drops at leaf1:up1", sends: func(x *gnmitest.State, _, n int) {
				x.ECNMarked += uint64(n) * 5000
				x.Dropped += uint64(n) * 50
				if n > 0 {
					x.Watermark = 9 << 20
				}
			}},
		{name: "optic-fading", words: "The light that the spine receives falls from 0.5 to 0.2 mW, and bits in error before correction grow hundredfold.", vendor: "arista", verdict: link + "corridor",
			causes: "optics at spine1:dn1, physical_errors at spine1:dn1", receives: func(x *gnmitest.State, _, n int) {
				if n > 0 {
					x.Power, x.PreBER = 0.0002, 4e-5
				}
			}},
		{name: "fec-rising", words: "Blocks that the spine cannot correct, and bits in error that are left over.", vendor: "cumulus", verdict: link + "corridor", causes: "physical_errors at spine1:dn1",
			receives: func(x *gnmitest.State, _, n int) {
				x.Uncorrectable += uint64(n) * 5
				if n > 0 {
					x.PostBER = 3e-9
				}
			}},
		{name: "credit-stall", words: "An InfiniBand port has data to send and no credits.", vendor: "nvos", verdict: link + "corridor", causes: "pause_stall at leaf1:up1", more: wait},
		{name: "copp", words: "The spine polices packets of its routing sessions away: the link loses everything, and both ports are up. The path of the policers is a user's.", vendor: "arista", paths: []preset.UserPath{class},
			verdict: link + "hard_failure", causes: "control_plane at spine1", more: policed},
	}
}

// TestIncidents plays scripted incidents: two switches send by gNMI what those of their vendor send, and the
// decoder's series are the input of the attribution's test (analyzer/attribute/testdata/incidents).
func TestIncidents(t *testing.T) {
	for _, in := range incidents(t) {
		var b strings.Builder
		fmt.Fprintf(&b, "# Written by go test ./internal/gnmi -run TestIncidents -incidents.update: a script, sent by a %s switch every %d s, scraped every second.\n# %s\n# verdict: %s\n# causes: %s\nload 1s\n",
			in.vendor, incidentSample, in.words, in.verdict, in.causes)
		for _, end := range []struct {
			at     string
			script func(*gnmitest.State, int, int)
		}{{"leaf1:up1", in.sends}, {"spine1:dn1", in.receives}} {
			lines := in.play(t, end.at, end.script)
			for _, series := range slices.Sorted(maps.Keys(lines)) {
				fmt.Fprintf(&b, "  %s %s\n", series, lines[series])
			}
		}
		file := filepath.Join("../../analyzer/attribute/testdata/incidents", in.name+".txt")
		if *writeIncidents {
			if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != b.String() {
			t.Errorf("%s differs from the recorded series (%v); write it with -incidents.update", file, err)
		}
	}
}

// play returns the series of one end, with a value a second in promqltest's notation.
func (in *incident) play(t *testing.T, end string, script func(*gnmitest.State, int, int)) map[string]string {
	t.Helper()
	sw, port, _ := strings.Cut(end, ":")
	c := DefaultConfig()
	c.Preset, c.Paths = in.vendor, in.paths
	rules, err := c.allRules()
	if err != nil {
		t.Fatal(err)
	}
	tree, err := preset.CompileRules(rules)
	if err != nil {
		t.Fatal(err)
	}
	st := newStore(tree, false, 1000)
	targets := in.targets
	if targets == nil {
		targets = []string{""}
	}
	base := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	values := map[string][]float64{}
	for s := 0; s <= incidentEnd; s++ {
		now := base.Add(time.Duration(s) * time.Second)
		if n := max(0, s-incidentBegin); s%incidentSample == 0 {
			x := gnmitest.ExampleState(now)
			x.Port = port
			idle(&x, s)
			if script != nil {
				script(&x, s, n)
			}
			for _, target := range targets {
				updates := gnmitest.VendorUpdates(in.vendor, target, x)
				if in.more != nil {
					updates = append(updates, in.more(end, s, n)...)
				}
				m := &gpb.Notification{Timestamp: now.UnixNano(), Update: updates}
				if target != "" {
					m.Prefix = &gpb.Path{Target: target}
				}
				st.applyNotification(message{body: m}, now)
			}
		}
		points, _ := st.appendPoints(nil, sw, now, time.Minute)
		for _, p := range points {
			labels := []string{`instance="collector:9873"`, `job="otelcol-graylink"`}
			for i, l := range p.Family.Labels {
				labels = append(labels, l+"="+strconv.Quote(p.Values[i]))
			}
			labels = append(labels, "switch="+strconv.Quote(sw))
			series := p.Family.Name + "{" + strings.Join(labels, ",") + "}"
			if len(values[series]) != s {
				t.Fatalf("%s: %s has %d values before second %d", in.name, series, len(values[series]), s)
			}
			values[series] = append(values[series], p.Value)
		}
	}
	if len(values) < 3 {
		t.Fatalf("%s: %s has only %v", in.name, end, values)
	}
	out := map[string]string{}
	for series, v := range values {
		var runs []string
		for i := 0; i < len(v); {
			n := i
			for n < len(v) && v[n] == v[i] {
				n++
			}
			runs = append(runs, fmt.Sprintf("%sx%d", strconv.FormatFloat(v[i], 'g', -1, 64), n-i-1))
			i = n
		}
		out[series] = strings.Join(runs, " ")
	}
	return out
}
