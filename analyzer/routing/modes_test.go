package routing_test

import (
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/routing"
	"github.com/graylink/graylink/internal/fabric"
)

func TestModesAreFindings(t *testing.T) {
	since := time.Unix(900, 0)
	for _, test := range []struct {
		mode   fabric.SwitchMode
		kind   routing.Kind
		others []string
		text   string
	}{
		{fabric.SwitchMode{Switch: "leaf1", Leaves: []string{"leaf1"}, Sprays: true, Seen: 24, SeenSplit: 23}, routing.Sprays, nil,
			"Evidence: of 24 flows that switches see, 23 take several ways at the same time."},
		{fabric.SwitchMode{Switch: "leaf1", Leaves: []string{"leaf1"}, Sprays: true, Traces: 40, TracesSplit: 31}, routing.Sprays, nil,
			"Evidence: of 40 recent traces, 31 had answers of several ways."},
		{fabric.SwitchMode{Switch: "leaf1", Leaves: []string{"leaf1"}, Sprays: true, Traces: 40, TracesSplit: 31, HopProbes: 12, Seen: 9}, routing.Sprays, nil,
			"Evidence: of 40 recent traces and hop-limited probes (12 of them), 31 had answers of several ways."},
		{fabric.SwitchMode{Switch: "spine1", Leaves: []string{"leaf1", "leaf2"}, Sprays: true, Seen: 24, SeenSplit: 23}, routing.Sprays, []string{"leaf1", "leaf2"},
			"Evidence: of 24 flows that switches see, 23 take several ways at the same time."},
		{fabric.SwitchMode{Switch: "leaf1", Leaves: []string{"leaf1"}, Traces: 48, Seen: 8}, routing.HashesFlows, nil,
			"Evidence: 8 flows that switches see come by one way each; 48 traces in a row found the path of the trace before."},
		{fabric.SwitchMode{Switch: "leaf1", Leaves: []string{"leaf1"}, Sprays: true}, routing.Sprays, nil, ""},
	} {
		test.mode.Since = since
		m := &routing.Moment{Now: time.Unix(1000, 0), Step: time.Second, Graph: fabric.NewGraph(&fabric.Topology{Version: 1}), Modes: []fabric.SwitchMode{test.mode}}
		w := routing.NewWatcher()
		got := w.Review(m)
		if len(got) != 1 || got[0].Kind != test.kind || got[0].ID != test.mode.Switch || got[0].Text != test.text || !got[0].Since.Equal(since) || len(got[0].Others) != len(test.others) {
			t.Errorf("%+v: got %+v", test.mode, got)
		}
		// It is over at once.
		m.Modes, m.Now = nil, m.Now.Add(time.Second)
		if got := w.Review(m); len(got) > 0 {
			t.Errorf("afterwards: %+v", got)
		}
	}
}
