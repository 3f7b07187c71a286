package routing_test

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/analyzer/routing"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

var corpusSeeds = flag.Int("routing.seeds", 3, "seeds of each case of TestCorpus")

// truth is what a case should find.
type truth struct {
	scenario fabric.Scenario
	elements []fabric.Element // one of them is named
	prefix   string
}

func switchElement(sw string) fabric.Element { return fabric.Element{ID: sw, Kind: fabric.KindSwitch} }

// upperSwitch draws a switch of a tier above the leaves that has several next hops toward some leaf below another one.
func (w *world) draw(ok func(sw string) bool) string {
	var all []string
	for _, sw := range w.g.Topo.Switches {
		if ok(sw.Name) {
			all = append(all, sw.Name)
		}
	}
	return all[w.rng.IntN(len(all))]
}

func (w *world) drawLeaf() string {
	return w.draw(func(sw string) bool { return w.g.SwitchTier(sw) == 1 })
}

func (w *world) drawLink() *fabric.Link {
	for {
		if l := &w.g.Topo.Links[w.rng.IntN(len(w.g.Topo.Links))]; !l.IsAccess() {
			return l
		}
	}
}

// drawAbove draws a switch above the leaves on a shortest path to a leaf from another one, which has alternatives.
func (w *world) drawAbove(leaf string) string {
	return w.draw(func(sw string) bool {
		if w.g.SwitchTier(sw) == 1 {
			return false
		}
		for from, to := range w.full {
			if from != leaf && len(to[leaf]) > 1 && w.g.SwitchTier(from) == 1 {
				for _, port := range to[leaf] {
					if fabric.OwnerOf(w.g.PeerOf(from+":"+port)) == sw {
						return true
					}
				}
			}
		}
		return false
	})
}

// failLink kills the directions of a link, each for some time, and has routing leave it then. 0 means that a direction works.
func (w *world) failLink(t *testing.T, l *fabric.Link, there, back time.Duration) {
	start := w.now.Add(time.Duration(w.rng.IntN(1000)) * time.Millisecond)
	d := fabric.Direction{From: l.A, To: l.B}
	if there > 0 {
		w.dead[d] = [2]time.Time{start, start.Add(there)}
	}
	if back > 0 {
		w.dead[d.Reverse()] = [2]time.Time{start, start.Add(back)}
	}
	for w.now.Before(start.Add(max(there, back))) {
		w.step(t)
	}
	w.down[l.ID()] = true
	w.converge()
}

// cases are the kinds of faults. Each applies its fault to a world that has run for a while, runs it, and returns what is true.
var cases = map[string]func(*testing.T, *world) truth{
	"withdrawn": func(t *testing.T, w *world) truth {
		leaf := w.drawLeaf()
		at := w.drawAbove(leaf)
		w.withdraw(at, leaf)
		w.run(t, 12)
		return truth{fabric.RoutingFault, []fabric.Element{switchElement(at)}, leaf}
	},
	"wrong-as-path": func(t *testing.T, w *world) truth {
		leaf := w.drawLeaf()
		at := w.drawAbove(leaf)
		w.prepend(at, leaf)
		w.run(t, 12)
		return truth{fabric.RoutingFault, []fabric.Element{switchElement(at)}, leaf}
	},
	"ecmp-shrunk": func(t *testing.T, w *world) truth {
		at := w.draw(func(sw string) bool {
			n := 0
			for _, ports := range w.full[sw] {
				if len(ports) > 1 {
					n++
				}
			}
			return n > 1
		})
		for leaf, ports := range w.hops[at] {
			if len(ports) > 1 {
				w.hops[at][leaf] = ports[:1]
			}
		}
		w.run(t, 12)
		return truth{scenario: fabric.RoutingFault, elements: []fabric.Element{switchElement(at)}}
	},
	"bgp-flap":  func(t *testing.T, w *world) truth { return w.flapSession(t, "bgp") },
	"bfd-false": func(t *testing.T, w *world) truth { return w.flapSession(t, "bfd") },
	"blackhole-fib": func(t *testing.T, w *world) truth {
		w.report()
		w.run(t, 2)
		leaf := w.drawLeaf()
		at := w.draw(func(sw string) bool { return sw != leaf && len(w.hops[sw][leaf]) > 0 })
		w.nowhere[[2]string{at, leaf}] = true
		w.report()
		w.run(t, 6)
		return truth{fabric.FIBMismatch, []fabric.Element{switchElement(at)}, leaf}
	},
	"slow-convergence": func(t *testing.T, w *world) truth {
		l := w.drawLink()
		after := time.Duration(3000+w.rng.IntN(6000)) * time.Millisecond
		w.failLink(t, l, after, after)
		w.run(t, 6)
		return truth{scenario: fabric.Convergence, elements: []fabric.Element{{ID: l.ID(), Kind: fabric.KindLink}}}
	},
	"polarized": func(t *testing.T, w *world) truth {
		seed := w.rng.Uint32()
		var spines []fabric.Element
		for sw := range w.seeds {
			w.seeds[sw] = seed
			if w.g.SwitchTier(sw) == 2 {
				spines = append(spines, switchElement(sw))
			}
		}
		w.run(t, 12)
		return truth{scenario: fabric.Polarization, elements: spines}
	},
}

// flapSession has the sessions of a link come and go three times, without loss.
func (w *world) flapSession(t *testing.T, protocol string) truth {
	w.report()
	w.run(t, 2)
	l := w.drawLink()
	w.carriers = map[string]int{l.A: 0, l.B: 0}
	for range 3 {
		w.bumpSession(l, protocol)
		w.down[l.ID()] = true
		w.converge()
		w.run(t, 3)
		w.down[l.ID()] = false
		w.converge()
		w.run(t, 6)
	}
	return truth{scenario: fabric.RoutingFault, elements: []fabric.Element{{ID: l.ID(), Kind: fabric.KindLink}}}
}

func fabrics(t testing.TB) map[string]*fabric.Graph {
	return map[string]*fabric.Graph{"two tiers": worldtest.NewClos(t, 2, 4, 2), "three tiers": worldtest.NewPods(t, 2, 2)}
}

// judged says whether the verdicts on a case are right: one of the truth, and no other that is more than information.
func judged(w *world, want truth) (scenario, element, alone bool) {
	alone = true
	for _, v := range classify.RoutingVerdicts(w.g, w.found) {
		right := v.Scenario == want.scenario
		scenario = scenario || right
		named := func(e fabric.Element) bool {
			return e == v.Element || slices.Contains(v.Equivalent, e) && v.Scenario != fabric.Polarization
		}
		if right && slices.ContainsFunc(want.elements, named) && v.Prefix == want.prefix {
			element = true
		} else if v.Severity != fabric.SeverityInfo {
			alone = false
		}
	}
	return scenario, element, alone
}

// TestCorpus applies eight kinds of faults to two fabrics with many seeds: scenario, element and prefix are right in 95 of 100.
func TestCorpus(t *testing.T) {
	kinds := make([]string, 0, len(cases))
	for kind := range cases {
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	total, scenarios, elements, extra := 0, 0, 0, 0
	for _, kind := range kinds {
		for name, g := range fabrics(t) {
			if kind == "polarized" && name == "two tiers" {
				continue // there is one choice on each path
			}
			ok := 0
			for seed := range *corpusSeeds {
				w := newWorld(g, uint64(seed))
				w.hidden = []float64{0, 0.02}[seed%2]
				w.run(t, 6)
				if len(w.found) > 0 {
					t.Errorf("%s in %s, seed %d: before the fault: %s", kind, name, seed, describe(w))
				}
				want := cases[kind](t, w)
				scenario, element, alone := judged(w, want)
				total++
				for _, c := range []struct {
					right bool
					count *int
				}{{scenario, &scenarios}, {element, &elements}, {!alone, &extra}} {
					if c.right {
						*c.count++
					}
				}
				if scenario && element && alone {
					ok++
				} else {
					t.Logf("%s in %s, seed %d: want %v, found %s", kind, name, seed, want, describe(w))
				}
			}
			t.Logf("%s in %s: %d of %d right and alone", kind, name, ok, *corpusSeeds)
		}
	}
	t.Logf("of %d cases: scenario right in %d, element in %d, other verdicts in %d", total, scenarios, elements, extra)
	if scenarios*100 < total*95 || elements*100 < total*95 || extra*100 > total*5 {
		t.Errorf("of %d cases: scenario right in %d, element in %d, other verdicts in %d", total, scenarios, elements, extra)
	}
}

func describe(w *world) (text string) {
	for _, v := range classify.RoutingVerdicts(w.g, w.found) {
		text += fmt.Sprintf("\n\t%s %s %s %s: %s", v.Element.ID, v.Scenario, v.Prefix, v.Severity, v.Summary)
	}
	return text
}

// TestFailoverDuration compares the stated durations with those of the loss, of links that fail in both directions, for as long or not, and
// in one.
func TestFailoverDuration(t *testing.T) {
	const both, twice, there, back = 0, 1, 2, 3
	for name, g := range fabrics(t) {
		for seed := range *corpusSeeds {
			for _, after := range []time.Duration{130 * time.Millisecond, 300 * time.Millisecond, 3 * time.Second} {
				for way := both; way <= back; way++ {
					w := newWorld(g, uint64(seed))
					w.run(t, 6)
					l := w.drawLink()
					after += time.Duration(w.rng.IntN(60)) * time.Millisecond
					d := fabric.Direction{From: l.A, To: l.B}
					lasts := map[fabric.Direction]time.Duration{d: after, d.Reverse(): after}
					switch way {
					case twice:
						lasts[d] = after + 100*time.Millisecond
					case there:
						delete(lasts, d.Reverse())
					case back:
						delete(lasts, d)
					}
					w.failLink(t, l, lasts[d], lasts[d.Reverse()])
					w.run(t, 6)
					i := slices.IndexFunc(w.found, func(f routing.Finding) bool { return f.Kind == routing.Converged })
					if e := (fabric.Element{ID: l.ID(), Kind: fabric.KindLink}); i < 0 || w.found[i].Element != e && !slices.Contains(w.found[i].Others, e) {
						t.Errorf("%s, seed %d, %v: %s is not named: %s", name, seed, lasts, l.ID(), describe(w))
						continue
					}
					if f := &w.found[i]; f.ID == l.ID() {
						compareDurations(t, f, lasts, fmt.Sprintf("%s, seed %d", name, seed))
					}
				}
			}
		}
	}
}

// Flows whose new path is not known yet count for the duration of a failover as well.
func TestFailoverOfUnsettledFlows(t *testing.T) {
	flows := map[float64]int{}
	for _, hidden := range []float64{0, 0.7} {
		w := twoTiers(t, 10)
		w.run(t, 6)
		l := w.g.LinkAt("leaf2:up1")
		d := fabric.Direction{From: l.A, To: l.B}
		w.failLink(t, l, 300*time.Millisecond, 0)
		w.hidden = hidden
		w.run(t, 6)
		i := slices.IndexFunc(w.found, func(f routing.Finding) bool { return f.Kind == routing.Converged })
		if i < 0 {
			t.Fatalf("no failover: %s", describe(w))
		}
		compareDurations(t, &w.found[i], map[fabric.Direction]time.Duration{d: 300 * time.Millisecond}, fmt.Sprintf("%g of the flows are hidden", hidden))
		flows[hidden] = w.found[i].Failovers[0].Flows
	}
	if flows[0.7]*10 < flows[0]*9 {
		t.Errorf("%d flows show the failover, want about %d", flows[0.7], flows[0])
	}
}

// A cycle that was missed while a link lost everything does not make the stated duration shorter.
func TestFailoverOverAMissedCycle(t *testing.T) {
	w := twoTiers(t, 9)
	w.run(t, 6)
	l := w.g.LinkAt("leaf2:up1")
	d := fabric.Direction{From: l.A, To: l.B}
	const lasts = 3400 * time.Millisecond
	w.dead[d] = [2]time.Time{w.now.Add(500 * time.Millisecond), w.now.Add(500*time.Millisecond + lasts)}
	w.run(t, 2)
	w.moment(func(fabric.Flow) bool { return true }) // it is not reviewed
	w.run(t, 1)
	w.down[l.ID()] = true
	w.converge()
	w.run(t, 6)
	i := slices.IndexFunc(w.found, func(f routing.Finding) bool { return f.Kind == routing.Converged })
	if i < 0 {
		t.Fatalf("no failover: %s", describe(w))
	}
	compareDurations(t, &w.found[i], map[fabric.Direction]time.Duration{d: lasts}, "a cycle was missed")
}

// compareDurations compares the durations of a finding with those of the directions that lost packets.
func compareDurations(t *testing.T, f *routing.Finding, lasts map[fabric.Direction]time.Duration, where string) {
	t.Helper()
	if len(f.Failovers) == 0 || len(f.Failovers) > len(lasts) {
		t.Errorf("%s: %v is stated as %v", where, lasts, f.Failovers)
	}
	for _, x := range f.Failovers {
		truth := lasts[x.Direction]
		if x.From == "" {
			for _, d := range lasts {
				truth = max(truth, d)
			}
		}
		if off := x.Loss - truth; off.Abs() > 20*time.Millisecond {
			t.Errorf("%s: %v is stated as %v", where, lasts, f.Failovers)
		}
	}
}

// TestChurnIsSilent refreshes routes without loss for long: hashes change, links leave and come back once, paths are unknown now and then.
func TestChurnIsSilent(t *testing.T) {
	for name, g := range fabrics(t) {
		for seed := range *corpusSeeds {
			w := newWorld(g, uint64(seed))
			w.hidden = 0.02
			for minute := range 5 {
				w.seeds[w.draw(func(string) bool { return true })] = w.rng.Uint32()
				for s := range 20 {
					w.step(t)
					if len(w.found) > 0 {
						t.Fatalf("%s, seed %d, %d.%d: %s", name, seed, minute, s, describe(w))
					}
				}
			}
		}
	}
}

// TestLinkFaultBesideRouting has a link fail and a prefix missing at once: both are named.
func TestLinkFaultBesideRouting(t *testing.T) {
	both, total := 0, 0
	for name, g := range fabrics(t) {
		for seed := range *corpusSeeds {
			w := newWorld(g, uint64(seed))
			w.run(t, 6)
			leaf := w.drawLeaf()
			at := w.drawAbove(leaf)
			l := w.drawLink()
			for a, b, _ := fabric.SplitLink(l.ID()); fabric.OwnerOf(a) == at || fabric.OwnerOf(b) == at || fabric.OwnerOf(a) == leaf || fabric.OwnerOf(b) == leaf; a, b, _ = fabric.SplitLink(l.ID()) {
				l = w.drawLink()
			}
			w.withdraw(at, leaf)
			w.failLink(t, l, 400*time.Millisecond, 400*time.Millisecond)
			w.withdraw(at, leaf)
			w.run(t, 12)
			total++
			_, element, _ := judged(w, truth{fabric.RoutingFault, []fabric.Element{switchElement(at)}, leaf})
			_, link, _ := judged(w, truth{scenario: fabric.Convergence, elements: []fabric.Element{{ID: l.ID(), Kind: fabric.KindLink}}})
			if element && link {
				both++
			} else {
				t.Logf("%s, seed %d: want %s without %s, and %s: %s", name, seed, at, leaf, l.ID(), describe(w))
			}
		}
	}
	t.Logf("both named in %d of %d", both, total)
	if both*10 < total*9 {
		t.Errorf("both named in %d of %d", both, total)
	}
}
