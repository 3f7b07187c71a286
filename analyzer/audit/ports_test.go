package audit

import (
	"slices"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
)

func number(v float64) *float64 { return &v }

// readEverything gives all ports and NICs readings as planned.
func readEverything(g *fabric.Graph, e *Evidence) {
	e.Ports, e.NICs = map[string]PortReading{}, map[string]NICReading{}
	for i := range g.Topo.Links {
		l := &g.Topo.Links[i]
		l.SpeedGbps = 400
		for _, end := range []string{l.A, l.B} {
			e.Ports[end] = PortReading{SpeedGbps: number(400), MTUBytes: number(9216), PauseFrames: number(3), Discards: number(0.2)}
		}
	}
	for _, nic := range g.NICIDs() {
		e.NICs[nic] = NICReading{Watched: true, CarrierChanges: number(0)}
	}
}

func TestReadingsOfPortsAndNICs(t *testing.T) {
	s := newSite(1, 4, 4, 8)
	up, down := s.fabricLink(3)
	nic := s.g.NICIDs()[4]
	seen := s.observe()
	for name, x := range map[string]struct {
		change func(*Evidence)
		check  string
		status Status
		at     string
		text   string
	}{
		"as planned":        {func(*Evidence) {}, "A9", Pass, "", ""},
		"no readings":       {func(e *Evidence) { e.Ports = nil }, "A9", Unknown, "", ""},
		"half the readings": {func(e *Evidence) { delete(e.Ports, up.From); delete(e.Ports, up.To) }, "A9", Unknown, "links without readings", "1 links"},
		"too slow":          {func(e *Evidence) { e.Ports[up.From] = PortReading{SpeedGbps: number(200)} }, "A9", Fail, up.LinkID(), "200 Gbit/s"},
		"MTU":               {func(e *Evidence) { e.Ports[up.From] = PortReading{MTUBytes: number(1500)} }, "A9", Fail, up.LinkID(), "1500"},
		"FEC": {func(e *Evidence) {
			e.Ports[up.From], e.Ports[up.To] = PortReading{FEC: "rs"}, PortReading{FEC: "off"}
		}, "A9", Fail, up.LinkID(), "FEC modes"},
		"lanes": {func(e *Evidence) {
			e.Ports[up.From], e.Ports[up.To] = PortReading{Lanes: number(4)}, PortReading{Lanes: number(2)}
		}, "A9", Fail, up.LinkID(), "lanes"},
		"fewer lanes than the cable has": {func(e *Evidence) {
			e.Ports[up.From], e.Ports[up.To] = PortReading{Lanes: number(2), ExpectedLanes: number(4)}, PortReading{Lanes: number(2)}
		}, "A9", Fail, up.LinkID(), "runs on 2 lanes, and its cable has 4"},
		"FEC at one end": {func(e *Evidence) {
			e.Ports[up.From], e.Ports[up.To] = PortReading{FEC: "rs"}, PortReading{}
		}, "A9", Unknown, "links without readings", "1 links"},
		"pauses under load": {func(e *Evidence) {
			e.LoadFrom, e.Ports[down.From] = "nccl-tests of run 7", PortReading{PauseFrames: number(6000)}
		}, "A6", Unknown, "", ""},
		"discards under load": {func(e *Evidence) {
			e.LoadFrom, e.Ports[down.From] = "nccl-tests of run 7", PortReading{PauseFrames: number(6000), Discards: number(7)}
		}, "A6", Warn, down.From, "7 packets"},
		"pauses":   {func(e *Evidence) { e.Ports[down.From] = PortReading{PauseFrames: number(6000)} }, "A6", Warn, down.From, "100 pause frames"},
		"discards": {func(e *Evidence) { e.Ports[down.From] = PortReading{Discards: number(7)} }, "A6", Warn, down.From, "7 packets"},
		"a fatal finding": {func(e *Evidence) {
			e.NICs[nic] = NICReading{Watched: true, Findings: map[string]string{"state_down": "fatal"}}
		}, "A12", Fail, nic, "state_down (fatal)"},
		"a warning": {func(e *Evidence) {
			e.NICs[nic] = NICReading{Watched: true, Findings: map[string]string{"x": "warning"}}
		}, "A12", Warn, nic, "x (warning)"},
		"a flap":             {func(e *Evidence) { e.NICs[nic] = NICReading{Watched: true, CarrierChanges: number(2)} }, "A12", Fail, nic, "2 times"},
		"health of no NIC":   {func(e *Evidence) { e.NICs = nil }, "A12", Unknown, "", ""},
		"health of some NIC": {func(e *Evidence) { delete(e.NICs, nic) }, "A12", Unknown, "NICs without health", "1 NICs"},
	} {
		copied := *seen
		e := &copied
		readEverything(s.g, e)
		x.change(e)
		r := Run(e, DefaultCriteria(), whole(s.g))
		c := checkOf(t, &r, x.check)
		if c.Status != x.status {
			t.Errorf("%s: %s is %s, want %s\n%s", name, x.check, c.Status, x.status, describe(&r))
			continue
		}
		if x.at != "" && !slices.ContainsFunc(c.Items, func(i Item) bool { return i.Element == x.at && strings.Contains(i.Text, x.text) }) {
			t.Errorf("%s: %+v", name, c.Items)
		}
		if want := map[Status]Status{Pass: Pass, Warn: Warn, Unknown: Pass, Fail: Fail}[x.status]; r.Status != want {
			t.Errorf("%s: the audit is %s, want %s, since the check is not required", name, r.Status, want)
		}
		if len(failedElements(&r)) > 1 {
			t.Errorf("%s: %v", name, failedElements(&r))
		}
	}
}

// Under a load that is named, marks and pauses are counted and not judged, and nothing passes: the fabric was not seen idle.
func TestLoadIsNamedInTheReport(t *testing.T) {
	s := newSite(1, 4, 4, 8)
	up, _ := s.fabricLink(2)
	s.marked[up] = 0.3
	e := s.observe()
	e.LoadFrom = "nccl-tests <run 7>"
	r := Run(e, DefaultCriteria(), whole(s.g))
	a6 := checkOf(t, &r, "A6")
	if a6.Status != Unknown || len(a6.Items) > 0 || r.Status != Pass || !strings.Contains(a6.Text, "under load (nccl-tests <run 7>): many marks on") {
		t.Errorf("%s: %s", a6.Status, describe(&r))
	}
	var md, page strings.Builder
	for _, err := range []error{r.WriteMarkdown(&md), r.WriteHTML(&page)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"Markdown": md.String(), "HTML": page.String()} {
		if !strings.Contains(text, "The fabric was under load: nccl-tests &lt;run 7&gt;.") {
			t.Errorf("%s does not say that there was load, or does not escape it", name)
		}
	}
}

func TestMarksOfProbesAreWarnings(t *testing.T) {
	s := newSite(1, 4, 4, 8)
	up, _ := s.fabricLink(2)
	s.marked[up] = 0.3
	r := s.audit()
	a6 := checkOf(t, &r, "A6")
	if a6.Status != Warn || r.ExitCode() != 0 || !slices.ContainsFunc(a6.Items, func(i Item) bool { return i.Direction == up.String() && *i.Value > 0.29 }) {
		t.Errorf("%s, exit code %d\n%s", a6.Status, r.ExitCode(), describe(&r))
	}
}
