package main

import (
	"strings"
	"testing"
)

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
		stdout, stderr, code := runGraylink(t, "", append([]string{"clocksim"}, args...)...)
		if code != 1 || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit code %d, want 1 with %q in\n%s%s", args, code, want, stderr, stdout)
		}
	}
}

// TestClocksim checks that the flags reach the simulation.
func TestClocksim(t *testing.T) {
	stdout, stderr, code := runGraylink(t, "", "clocksim", "--clocks", "16", "--duration", "21s", "--load", "0.4", "--noise", "kernel", "--seed", "3")
	if want := "kernel stamps, queues busy 0.4 of the time, scenario none, seed 3\nfleet       16 clocks in 2 tiers"; code != 0 || !strings.HasPrefix(stdout, want) {
		t.Errorf("exit code %d: %s%s, want %q", code, stderr, stdout, want)
	}
}
