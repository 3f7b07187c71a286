package main

import (
	"os"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/probe"
)

// TestConfigurationsAskForTheRate: what both hosts of a rung are given can be
// read, and both probe at the rate that is measured.
func TestConfigurationsAskForTheRate(t *testing.T) {
	const cadence = 10 * time.Millisecond
	for _, rate := range []int{100, 1000, 5000, 10_000, 20_000, 50_000, 100_000} {
		nics, peers := spreadEdges(rate / 100)
		if nics > 8 || peers > maxAddresses {
			t.Errorf("%d/s: %d NICs with %d peers each", rate, nics, peers)
		}
		for host, c := range []string{nodeConfig(0, nics, peers, cadence), nodeConfig(1, peers, nics, cadence)} {
			cfg, err := probe.ParseConfig([]byte(c))
			if err != nil {
				t.Errorf("%d/s: host %d: %v", rate, host+1, err)
				continue
			}
			if got := len(cfg.NICs) * len(cfg.Peers) * int(time.Second/cadence); got != rate {
				t.Errorf("host %d probes %d/s, want %d", host+1, got, rate)
			}
		}
	}
}

func TestUsageOfThisProcess(t *testing.T) {
	before, err := usageOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); ; {
		now, err := usageOf(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if now.hwm < now.rss || now.rss < 1<<20 {
			t.Fatalf("%d bytes resident, %d at most", now.rss, now.hwm)
		}
		if now.cpu >= before.cpu+0.02 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%v s of CPU after 20 s of work, %v before", now.cpu, before.cpu)
		}
	}
}

func TestWhatBreaks(t *testing.T) {
	for _, tc := range []struct {
		symptoms map[string]float64
		broke    bool
	}{
		{nil, false},
		{map[string]float64{"probes skipped": 9, stalled: 0.01}, false},
		{map[string]float64{"probes skipped": 11}, true},
		{map[string]float64{stalled: 0.03}, true},
		{map[string]float64{tooFew: 1}, true},
	} {
		v := &result{Probes: 10_000, Seconds: 20, Symptoms: tc.symptoms}
		if v.isBroken() != tc.broke {
			t.Errorf("%v: broke %v, want %v", tc.symptoms, v.isBroken(), tc.broke)
		}
	}
}
