package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
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

// TestClocksimGolden checks what is printed, whatever the figures are.
func TestClocksimGolden(t *testing.T) {
	small := []string{"clocksim", "--clocks", "16", "--duration", "21s", "--load", "0.4"}
	for name, args := range map[string][]string{
		"report.json": {"--format", "json", "--noise", "kernel", "--scenario", "step", "--seed", "3"},
		"report.txt":  {"--seeds", "1..2"},
		"table.txt":   {"--table"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := program(t, "", append(small, args...)...)
			if code != 0 {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
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
			golden := filepath.Join("testdata", "clocksim", name)
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

func TestClocksimArguments(t *testing.T) {
	for want, args := range map[string][]string{
		"--clocks 60: a multiple of 8":   {"--clocks", "60"},
		"--clocks 8: a multiple of 8":    {"--clocks", "8"},
		"load 1: a number from 0":        {"--load", "1"},
		"duration 20s: whole seconds":    {"--duration", "20s"},
		"--seeds: seeds \"5..1\"":        {"--seeds", "5..1"},
		"--allowance -1ns: a time":       {"--allowance=-1ns"},
		"pair gap 1s: a positive time":   {"--pair-gap", "1s"},
		"one in 0 probes: a positive":    {"--pair-every", "0"},
		"cadence 1s: 1ms to 100ms":       {"--cadence", "1s"},
		"enum value must be one of":      {"--scenario", "flood"},
		"must be one of hardware,kernel": {"--noise", "none"},
	} {
		stdout, stderr, code := program(t, "", append([]string{"clocksim"}, args...)...)
		if code != 1 || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit code %d, want 1 with %q in\n%s%s", args, code, want, stderr, stdout)
		}
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
