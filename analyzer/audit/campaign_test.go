package audit

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// seededFault is a kind of fault: it strikes a site or its readings at a link or NIC, and returns which checks have to name what.
type seededFault struct {
	name   string
	strike func(s *site, readings *[]func(*Evidence), up fabric.Direction, nic string) []string
}

var seededFaults = []seededFault{
	{"missing cable", func(s *site, _ *[]func(*Evidence), up fabric.Direction, _ string) []string {
		s.missing[up.LinkID()] = true
		return []string{"A2 " + up.LinkID()}
	}},
	{"loss of 0.1 %", func(s *site, _ *[]func(*Evidence), up fabric.Direction, _ string) []string {
		s.loss[up] = 0.001
		return []string{"A3 " + up.LinkID()}
	}},
	{"20 us added", func(s *site, _ *[]func(*Evidence), up fabric.Direction, _ string) []string {
		s.added[up], s.added[up.Reverse()] = 20*time.Microsecond, 20*time.Microsecond
		return []string{"A4 " + up.LinkID()}
	}},
	{"30 us in one direction", func(s *site, _ *[]func(*Evidence), up fabric.Direction, _ string) []string {
		s.added[up.Reverse()] = 30 * time.Microsecond
		return []string{"A4 " + up.LinkID(), "A5 " + up.LinkID()}
	}},
	{"slow access link", func(s *site, _ *[]func(*Evidence), _ fabric.Direction, nic string) []string {
		to := fabric.Direction{From: s.g.PeerOf(nic), To: nic}
		s.added[to], s.added[to.Reverse()] = 25*time.Microsecond, 25*time.Microsecond
		return []string{"A4 " + to.LinkID()}
	}},
	{"MTU", func(_ *site, r *[]func(*Evidence), up fabric.Direction, _ string) []string {
		*r = append(*r, func(e *Evidence) { e.Ports[up.From] = PortReading{SpeedGbps: number(400), MTUBytes: number(1500)} })
		return []string{"A9 " + up.LinkID()}
	}},
	{"speed", func(_ *site, r *[]func(*Evidence), up fabric.Direction, _ string) []string {
		*r = append(*r, func(e *Evidence) { e.Ports[up.To] = PortReading{SpeedGbps: number(100), MTUBytes: number(9216)} })
		return []string{"A9 " + up.LinkID()}
	}},
	{"polarised hash", func(s *site, _ *[]func(*Evidence), up fabric.Direction, _ string) []string {
		s.polarised[fabric.OwnerOf(up.From)] = true
		return []string{"A7 " + fabric.OwnerOf(up.From)}
	}},
	{"stepping clock", func(s *site, _ *[]func(*Evidence), _ fabric.Direction, nic string) []string {
		s.steps[nic] = true
		return []string{"A11 " + nic}
	}},
	{"fatal finding of a NIC", func(_ *site, r *[]func(*Evidence), _ fabric.Direction, nic string) []string {
		*r = append(*r, func(e *Evidence) {
			e.NICs[nic] = NICReading{Watched: true, Findings: map[string]string{"rate_below_expected": fatalFinding}}
		})
		return []string{"A12 " + nic}
	}},
}

// audits is the number of audits of a campaign, and accuracy the least recall and precision.
const (
	audits   = 60
	accuracy = 0.98
)

// TestSeededFaultsAreNamed runs audits with 0 to 3 faults at once, on distinct links and NICs. Recall is the share of what has to
// be named that is, and precision the share of what is named that has to be.
func TestSeededFaultsAreNamed(t *testing.T) {
	var expected, named, right int
	for seed := range uint64(audits) {
		rng := rand.New(rand.NewPCG(seed, 99))
		s := newSite(seed, 4, 4, 8)
		var readings []func(*Evidence)
		var want, kinds []string
		links, nics := rng.Perm(16), rng.Perm(len(s.g.NICIDs()))
		for n, kind := range rng.Perm(len(seededFaults))[:seed%4] {
			up, _ := s.fabricLink(links[n])
			f := seededFaults[kind]
			// A switch that sends everything by one uplink hides what its other uplinks do.
			if f.name == "polarised hash" && n > 0 || slices.Contains(kinds, "polarised hash") {
				continue
			}
			kinds = append(kinds, f.name)
			want = append(want, f.strike(s, &readings, up, s.g.NICIDs()[nics[n]])...)
		}
		e := s.observe()
		readEverything(s.g, e)
		for _, change := range readings {
			change(e)
		}
		r := Run(e, DefaultCriteria(), whole(s.g))
		got := failedElements(&r)
		expected, named = expected+len(want), named+len(got)
		hits := 0
		for _, w := range want {
			if slices.Contains(got, w) {
				hits++
			}
		}
		right += hits
		if hits < len(want) || len(got) > hits {
			t.Logf("seed %d, %v: %v failed, want %v\n%s", seed, kinds, got, want, describe(&r))
		}
		if clean := len(want) == 0; clean != (r.Status == Pass) || !clean && r.Status != Fail {
			t.Errorf("seed %d, %v: the audit is %s", seed, kinds, r.Status)
		}
	}
	recall, precision := float64(right)/float64(expected), float64(right)/float64(named)
	t.Logf("%d audits: %d to be named, %d named, %d of them rightly: recall %.3f, precision %.3f", audits, expected, named, right, recall, precision)
	if recall < accuracy || precision < accuracy {
		t.Errorf("recall %.3f and precision %.3f, want %g", recall, precision, accuracy)
	}
}
