package clocksim

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/sim"
)

// shape lists what a JSON value holds: keys and kinds.
func shape(at string, v any, out *[]string) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			shape(at+"."+k, x, out)
		}
	case string, bool:
		*out = append(*out, fmt.Sprintf("%s %v", at, v))
	case float64:
		*out = append(*out, at+" number")
	default:
		*out = append(*out, fmt.Sprintf("%s %T", at, v))
	}
}

var (
	// optional matches figures that only some scenarios have: predictions, and times that were never reached.
	optional = regexp.MustCompile(`(?m)^(predicted|\.held\.|\.seconds_to_).*\n`)
	numbers  = regexp.MustCompile(`\d+(\.\d+)?( ns| us| ms)?`)
	blanks   = regexp.MustCompile(` +`)
)

var update = flag.Bool("update", false, "rewrite the expected output")

// TestClocksimGolden checks what is written, whatever the figures are.
func TestClocksimGolden(t *testing.T) {
	o := sim.Options{Clocks: 16, Duration: 21 * time.Second, WarmUp: 20 * time.Second, Load: 0.4, Scenario: "none", Cadence: 10 * time.Millisecond, PairEvery: 5, PairGap: 5 * time.Microsecond}
	step := o
	step.Scenario = "step"
	for name, s := range map[string]Settings{
		"report.json": {Options: step, JSON: true, Noise: sim.Kernel, From: 3, To: 3},
		"report.txt":  {Options: o, Noise: sim.Hardware, From: 1, To: 2},
		"table.txt":   {Options: o, Table: true, From: 1, To: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s.Allowance = 100 * time.Nanosecond
			var out strings.Builder
			simulated := time.Duration(0)
			if err := Run(t.Context(), &out, s, func(_ *sim.Options, done time.Duration) { simulated = max(simulated, done) }); err != nil {
				t.Fatal(err)
			}
			if simulated == 0 {
				t.Error("no progress was reported")
			}
			stdout := out.String()
			got := strings.NewReplacer("| - |", "| 0 |", "never all at once", "all after 0 s").Replace(stdout)
			got = blanks.ReplaceAllString(numbers.ReplaceAllString(got, "N"), " ")
			if strings.HasSuffix(name, ".json") {
				var v map[string]any
				if err := json.Unmarshal([]byte(stdout), &v); err != nil {
					t.Fatal(err)
				}
				var lines []string
				shape("", v, &lines)
				slices.Sort(lines)
				got = strings.Join(lines, "\n") + "\n"
			}
			got = optional.ReplaceAllString(got, "")
			golden := filepath.Join("testdata", name)
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("printed\n%s\nof the shape\n%s\nwant\n%s", stdout, got, want)
			}
		})
	}
}

// TestSimFleet checks that fleets have the tiers, peers and paths for which figures are stated.
func TestSimFleet(t *testing.T) {
	for clocks, tiers := range map[int]int{64: 2, 128: 2, 256: 3, 1024: 3} {
		f, err := newSimFleet(clocks)
		if err != nil {
			t.Fatal(err)
		}
		hops := map[int]int{}
		for _, e := range f.edges {
			hops[e.Hops]++
		}
		if f.tiers != tiers || f.peers.Min < 10 || f.peers.Max > 20 || len(hops) != tiers || hops[1] == 0 || hops[2*tiers-1] == 0 {
			t.Errorf("%d clocks: %d tiers, peers %+v, hops %v", clocks, f.tiers, f.peers, hops)
		}
		var first []int
		for seed := range uint64(20) {
			ways, err := f.chooseLink(seed)
			if err != nil || len(ways) == 0 || len(ways) > len(f.edges)/2 {
				t.Fatalf("%d clocks, seed %d: %d of %d edges cross the link, %v", clocks, seed, len(ways), len(f.edges), err)
			}
			first = append(first, ways[0].Edge)
		}
		slices.Sort(first)
		if len(slices.Compact(first)) < 5 {
			t.Errorf("%d clocks: seeds choose no different links: %v", clocks, first)
		}
	}
}

func TestRunFails(t *testing.T) {
	progress := func(*sim.Options, time.Duration) {}
	if err := Run(t.Context(), io.Discard, Settings{Options: sim.Options{Clocks: 60}}, progress); err == nil || !strings.Contains(err.Error(), "60 clocks: a multiple of 8") {
		t.Errorf("60 clocks: %v", err)
	}
	s := Settings{Options: sim.Options{Clocks: 16, Duration: 21 * time.Second, WarmUp: 20 * time.Second, Scenario: "none", Cadence: 10 * time.Millisecond, PairEvery: 5, PairGap: 5 * time.Microsecond}, Noise: sim.Hardware}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ctx, io.Discard, s, progress); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}
