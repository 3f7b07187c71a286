package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var update = flag.Bool("update", false, "rewrite the expected output")

// TestScheduleGolden checks that the flags lead to the output that internal/schedule/report expects.
func TestScheduleGolden(t *testing.T) {
	tests := map[string][]string{
		"summary.txt":        {"--edges", "--links"},
		"constrained.txt":    {"--absent", "h2", "--class", "bulk", "--class", "control", "--budget", "500", "--min-peers", "7"},
		"edge.txt":           {"--explain", "h1/eth1>h4/eth1#0"},
		"edge-same-leaf.txt": {"--explain", "h1/eth1>h2/eth1", "--fan-out", "3,3,3"},
		"link.txt":           {"--explain", "spine1:dn1--leaf1:up1"},
		"direction.txt":      {"--explain", "leaf1:dn1->h1/eth1", "--edges"},
		"summary.json":       {"--format", "json", "--min-flows", "2"},
		"edge.json":          {"--explain", "h1/eth1>h4/eth1#0", "--format", "json"},
		"direction.json":     {"--explain", "leaf1:up1->spine1:dn1", "--format", "json", "--min-flows", "2"},
	}
	for name, args := range tests {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := runGraylink(t, "", append([]string{"schedule", "--topology", demoTopology}, args...)...)
			if code != 0 || stderr != "" {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
			golden := filepath.Join("../../internal/schedule/report/testdata", name)
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if stdout != string(want) {
				t.Errorf("printed\n%s\nwant\n%s", stdout, want)
			}
		})
	}
}

func TestScheduleArguments(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string
	}{
		"no topology":         {nil, "topology"},
		"a bad topology":      {[]string{"--topology", "../../internal/fabric/testdata/values.bad.yaml"}, "values.bad.yaml:5:"},
		"two fan-outs":        {[]string{"--topology", demoTopology, "--fan-out", "1,2"}, "--fan-out 1,2: want three numbers"},
		"a fan-out of zero":   {[]string{"--topology", demoTopology, "--fan-out", "1,0,2"}, `"0": want a positive number`},
		"a huge fan-out":      {[]string{"--topology", demoTopology, "--fan-out", "1,2,65"}, "fan-out 65 of tier 3"},
		"no budget":           {[]string{"--topology", demoTopology, "--budget", "0"}, "--budget: want a positive value"},
		"no cadence":          {[]string{"--topology", demoTopology, "--cadence", "0s"}, "--cadence: want a positive value"},
		"one class twice":     {[]string{"--topology", demoTopology, "--class", "a", "--class", "a"}, `class 1 is named "a", as another class is`},
		"a stranger absent":   {[]string{"--topology", demoTopology, "--absent", "h99"}, "--absent h99: the topology has no such node"},
		"a switch absent":     {[]string{"--topology", demoTopology, "--absent", "leaf1"}, "--absent leaf1: the topology has no such node"},
		"an edge of no NIC":   {[]string{"--topology", demoTopology, "--explain", "h99/eth1>h1/eth1"}, `no NIC "h99/eth1"`},
		"not an edge":         {[]string{"--topology", demoTopology, "--explain", "h1/eth1>h1/eth1"}, "not in the schedule: h1/eth1 probes h2/eth1, "},
		"an edge of a silent": {[]string{"--topology", demoTopology, "--absent", "h1", "--explain", "h1/eth1>h2/eth1"}, "h1/eth1 probes no NIC"},
		"no such link":        {[]string{"--topology", demoTopology, "--explain", "leaf1:up1--spine2:dn1"}, "no link leaf1:up1--spine2:dn1"},
		"nonsense":            {[]string{"--topology", demoTopology, "--explain", "leaf1"}, "want SRC>DST#N"},
	}
	for name, tt := range tests {
		stdout, stderr, code := runGraylink(t, "", append([]string{"schedule"}, tt.args...)...)
		if code != 1 || stdout != "" || !strings.Contains(stderr, tt.want) {
			t.Errorf("%s: exit code %d, want 1 with %q in\n%s%s", name, code, tt.want, stderr, stdout)
		}
	}
}

// TestMeanwhile checks that long work reports its progress every two seconds, and short work does not.
func TestMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		runWithProgress(&b, "counting", func() { time.Sleep(slowAfter - time.Millisecond) })
		if b.Len() > 0 {
			t.Errorf("said %q", b.String())
		}
		runWithProgress(&b, "counting", func() { time.Sleep(2*slowAfter + time.Millisecond) })
		if want := "graylink: counting: 2 s\ngraylink: counting: 4 s\n"; b.String() != want {
			t.Errorf("said %q, want %q", b.String(), want)
		}
	})
}
