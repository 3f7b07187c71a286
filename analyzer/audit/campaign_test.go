package audit

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// seededFault is a kind of fault: it strikes a site or its readings at a link, with the one after it, or at a NIC, and returns which checks
// have to name what.
type seededFault struct {
	name   string
	strike func(x *strike) []string
}

// strike is where a fault strikes.
type strike struct {
	s *site
	// readings change the evidence after everything has healthy readings.
	readings *[]func(*Evidence)
	up, next fabric.Direction
	nic      string
	rng      *rand.Rand
}

// change adds a change of the readings.
func (x *strike) change(f func(*Evidence)) { *x.readings = append(*x.readings, f) }

// changePort changes what the series of a port say.
func (x *strike) changePort(at string, f func(*PortReading)) {
	x.change(func(e *Evidence) {
		r := e.Ports[at]
		f(&r)
		e.Ports[at] = r
	})
}

// seededFaults are the twelve kinds of the issue that asked for the audit, and three more.
var seededFaults = []seededFault{
	{"swap", func(x *strike) []string {
		planned := [2]string{x.up.LinkID(), x.next.LinkID()}
		x.s.swap(x.up, x.next)
		return []string{"A2 " + planned[0], "A2 " + planned[1]}
	}},
	{"missing cable", func(x *strike) []string {
		x.s.missing[x.up.LinkID()] = true
		return []string{"A2 " + x.up.LinkID()}
	}},
	{"loss of 0.1 %", func(x *strike) []string {
		x.s.loss[x.up] = 0.001
		return []string{"A3 " + x.up.LinkID()}
	}},
	{"20 us added", func(x *strike) []string {
		x.s.added[x.up], x.s.added[x.up.Reverse()] = 20*time.Microsecond, 20*time.Microsecond
		return []string{"A4 " + x.up.LinkID()}
	}},
	{"30 us in one direction", func(x *strike) []string {
		x.s.added[x.up.Reverse()] = 30 * time.Microsecond
		return []string{"A4 " + x.up.LinkID(), "A5 " + x.up.LinkID()}
	}},
	{"MTU", func(x *strike) []string {
		x.changePort(x.up.From, func(r *PortReading) { r.MTUBytes = number(1500) })
		return []string{"A9 " + x.up.LinkID()}
	}},
	{"FEC", func(x *strike) []string {
		x.changePort(x.up.From, func(r *PortReading) { r.FEC = []string{"off", "baser"}[x.rng.IntN(2)] })
		return []string{"A9 " + x.up.LinkID()}
	}},
	{"speed", func(x *strike) []string {
		x.changePort(x.up.To, func(r *PortReading) { r.SpeedGbps = number(100) })
		return []string{"A9 " + x.up.LinkID()}
	}},
	{"dark optic", func(x *strike) []string {
		at, lane := []string{x.up.From, x.up.To}[x.rng.IntN(2)], fmt.Sprint(1+x.rng.IntN(4))
		x.change(func(e *Evidence) { changeLane(e, at, lane, func(l *LaneReading) { l.ReceiveWatts = watts(-40) }) })
		return []string{"A8 " + at}
	}},
	{"ECN map", func(x *strike) []string {
		sw := fabric.OwnerOf(x.up.From)
		x.change(func(e *Evidence) {
			for _, end := range x.s.g.EndsOf(sw) {
				e.Configured[end].Settings["ECN profile of queue 3"] = "LOSSY"
			}
		})
		return []string{"A10 " + sw}
	}},
	{"polarised hash", func(x *strike) []string {
		x.s.polarised[fabric.OwnerOf(x.up.From)] = true
		return []string{"A7 " + fabric.OwnerOf(x.up.From)}
	}},
	{"stepping clock", func(x *strike) []string {
		x.s.steps[x.nic] = true
		return []string{"A11 " + x.nic}
	}},
	{"slow access link", func(x *strike) []string {
		to := fabric.Direction{From: x.s.g.PeerOf(x.nic), To: x.nic}
		x.s.added[to], x.s.added[to.Reverse()] = 25*time.Microsecond, 25*time.Microsecond
		return []string{"A4 " + to.LinkID()}
	}},
	{"fatal finding of a NIC", func(x *strike) []string {
		x.change(func(e *Evidence) {
			e.NICs[x.nic] = NICReading{Watched: true, Findings: map[string]string{"rate_below_expected": fatalFinding}}
		})
		return []string{"A12 " + x.nic}
	}},
	{"firmware of a NIC", func(x *strike) []string {
		x.change(func(e *Evidence) { e.Configured[x.nic].Settings["firmware"] = "28.38.900" })
		return []string{"A10 " + x.nic}
	}},
}

// wantedKinds is the number of kinds that the issue asks for. They are the first ones.
const wantedKinds = 12

// swap plugs the far ends of two cables into each other's ports. Flows take the fabric as it is, and LLDP reports it.
func (s *site) swap(a, b fabric.Direction) {
	s.cabled = fabric.NewGraph(s.g.Topo.WithSwappedCables(a.To, b.To))
}

// readAll gives everything healthy readings, and LLDP neighbors as the cables are.
func (s *site) readAll(e *Evidence) {
	readEverything(s.g, e)
	for at, r := range e.Ports {
		r.FEC, r.Lanes, r.ExpectedLanes = "rs", number(4), number(4)
		e.Ports[at] = r
	}
	readOptics(s.g, e)
	configureEverything(s.g, e)
	for i := range s.cabled.Topo.Links {
		l := &s.cabled.Topo.Links[i]
		for _, end := range []string{l.A, l.B} {
			if !fabric.IsNIC(end) {
				e.Neighbours = append(e.Neighbours, Neighbour{Port: end, Far: s.cabled.PeerOf(end)})
			}
		}
	}
}

// audits is the number of audits of a campaign, and accuracy the least recall and precision.
const (
	audits   = 48
	accuracy = 0.98
)

// TestSeededFaultsAreNamed runs audits with 0 to 3 faults at once, on distinct links and NICs. Recall is the share of what has to
// be named that is, and precision the share of what is named that has to be.
func TestSeededFaultsAreNamed(t *testing.T) {
	var expected, named, right int
	struck := map[string]int{}
	for seed := range uint64(audits) {
		rng := rand.New(rand.NewPCG(seed, 99))
		s := newSite(seed, 4, 4, 8)
		var readings []func(*Evidence)
		var want, kinds []string
		links, nics := rng.Perm(16), rng.Perm(len(s.g.NICIDs()))
		kindsOfAudit := rng.Perm(len(seededFaults))
		kindsOfAudit[0] = int(seed) / 4 % wantedKinds // so that each kind is there
		for n, kind := range kindsOfAudit[:seed%4] {
			f := seededFaults[kind]
			// A switch that sends everything by one uplink hides what its other uplinks do, and swapped cables are two.
			alone := f.name == "polarised hash" || f.name == "swap"
			if slices.Contains(kinds, f.name) || alone && n > 0 || slices.Contains(kinds, "polarised hash") || slices.Contains(kinds, "swap") {
				continue
			}
			x := &strike{s: s, readings: &readings, nic: s.g.NICIDs()[nics[n]], rng: rng}
			x.up, _ = s.fabricLink(links[n])
			x.next, _ = s.fabricLink(links[n] + 5)
			kinds = append(kinds, f.name)
			struck[f.name]++
			want = append(want, f.strike(x)...)
		}
		e := s.observe()
		s.readAll(e)
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
	for _, f := range seededFaults[:wantedKinds] {
		if struck[f.name] < 3 {
			t.Errorf("%s struck %d times", f.name, struck[f.name])
		}
	}
	t.Logf("%v", struck)
	recall, precision := float64(right)/float64(expected), float64(right)/float64(named)
	t.Logf("%d audits: %d to be named, %d named, %d of them rightly: recall %.3f, precision %.3f", audits, expected, named, right, recall, precision)
	if recall < accuracy || precision < accuracy {
		t.Errorf("recall %.3f and precision %.3f, want %g", recall, precision, accuracy)
	}
}

// TestCleanFabricsOf128NICsPass audits fabrics without a fault, with readings of everything.
func TestCleanFabricsOf128NICsPass(t *testing.T) {
	for seed := range uint64(5) {
		s := newSite(100+seed, 8, 4, 16)
		s.sparse = 5
		e := longPackets(s)
		e.PathMTU.Tests = testPaths(e, Scope{}, nil, true)
		s.readAll(e)
		c := DefaultCriteria()
		c.Required = slices.DeleteFunc(ListChecks(), func(id string) bool { return id == "A14" })
		r := Run(e, c, whole(s.g))
		if len(s.g.NICIDs()) != 128 || r.Status != Pass || len(failedElements(&r)) > 0 {
			t.Errorf("seed %d, %d NICs: %s\n%s", seed, len(s.g.NICIDs()), r.Status, describe(&r))
		}
		if a1 := checkOf(t, &r, "A1"); *a1.Value != 1 {
			t.Errorf("seed %d: coverage of %g", seed, *a1.Value)
		}
	}
}
