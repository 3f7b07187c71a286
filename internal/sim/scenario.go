package sim

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

const (
	asymmetry    = 500       // ns
	accessDelay  = 2_000_000 // ns
	routeDelay   = 3000      // ns
	stepSize     = 1e6       // ns
	driftChange  = 20e-6
	warmingTime  = 10 * int64(time.Second)
	partitioned  = 20 * int64(time.Second)
	deadTime     = 10 * time.Minute
	lossShare    = 0.2
	scenarioSalt = 1 << 42
	// striking is how long after a window's start a fault strikes: in the middle,
	// a multiple of tick.
	striking = 2 * tick
)

var errNoLink = errors.New("no way crosses the link that it concerns")

// scenarios lists the scenarios by name.
var scenarios = map[string]func(*run) error{
	"none": func(*run) error { return nil },
	"asymmetry": func(s *run) error { // one way of a link is longer, always
		s.event = 0
		return s.lengthenLink(asymmetry, false)
	},
	"asymmetry-later": func(s *run) error { return s.lengthenLink(asymmetry, false) },
	"asymmetry-access": func(s *run) error { // the way from a clock's NIC is longer, always
		s.event = 0
		s.lengthenAccess(asymmetry)
		return nil
	},
	"delay": func(s *run) error {
		s.lengthenAccess(accessDelay)
		return nil
	},
	"route-change":         func(s *run) error { return s.lengthenLink(routeDelay, true) },
	"route-change-one-way": func(s *run) error { return s.lengthenLink(routeDelay, false) },
	"step": func(s *run) error {
		s.addChange(change{clock: s.victimClock(), at: s.event, step: stepSize})
		return nil
	},
	"drift": func(s *run) error {
		s.addChange(change{clock: s.victimClock(), at: s.event, rate: driftChange})
		return nil
	},
	"temperature": func(s *run) error { // at once, as no crystal's rate changes
		r := rand.New(rand.NewPCG(s.o.Seed, scenarioSalt))
		for c := range s.o.Clocks {
			s.addChange(change{clock: c, at: s.event + r.Int64N(warmingTime/tick)*tick, rate: math.Copysign(temperature, r.Float64()-0.5)})
		}
		return nil
	},
	"frozen": func(s *run) error {
		s.addChange(change{clock: s.victimClock(), at: s.event, stops: true})
		return nil
	},
	"lost-agents": func(s *run) error {
		s.silent = s.pickClocks(s.o.Clocks / 2)
		s.cutEdges(span{s.event, math.MaxInt64}, func(e Edge) bool {
			return slices.Contains(s.silent, e.A) || slices.Contains(s.silent, e.B)
		})
		return nil
	},
	"partition": func(s *run) error {
		half := s.o.Clocks / 2
		s.cutEdges(span{s.event, s.event + partitioned}, func(e Edge) bool { return e.A < half != (e.B < half) })
		return nil
	},
	"coordinator-dead": func(s *run) error {
		s.dead = span{s.event, s.event + int64(deadTime)}
		s.o.Duration += deadTime
		return nil
	},
	"queue-asymmetry": func(s *run) error {
		s.load[1] = 0
		return nil
	},
	"loss": func(s *run) error {
		s.loss = lossShare
		return nil
	},
}

// ScenarioNames lists the names of all scenarios.
func ScenarioNames() []string {
	var names []string
	for name := range scenarios {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// arrangeScenario prepares the scenario; what happens in it does so at half time.
func (s *run) arrangeScenario() error {
	set, ok := scenarios[s.o.Scenario]
	if !ok {
		return fmt.Errorf("scenario %q: one of %s is expected", s.o.Scenario, strings.Join(ScenarioNames(), ", "))
	}
	s.event = int64(s.o.Duration)/2/window*window + striking
	if err := set(s); err != nil {
		return fmt.Errorf("scenario %s: %w", s.o.Scenario, err)
	}
	return nil
}

func (s *run) addChange(c change) { s.clocks.changes = append(s.clocks.changes, c) }

// pickClocks chooses n of the clocks.
func (s *run) pickClocks(n int) []int {
	picked := rand.New(rand.NewPCG(s.o.Seed, scenarioSalt)).Perm(s.o.Clocks)[:n]
	slices.Sort(picked)
	return picked
}

// victimClock returns the clock that the scenario concerns.
func (s *run) victimClock() int { return s.pickClocks(1)[0] }

// lengthenLink adds a delay to the ways over the link, or to both ways of their edges.
func (s *run) lengthenLink(by int64, both bool) error {
	if len(s.o.Link) == 0 {
		return errNoLink
	}
	for _, w := range s.o.Link {
		p := &s.paths[w.Edge]
		if both || !w.Reverse {
			p.addedDelay[0] = by
		}
		if both || w.Reverse {
			p.addedDelay[1] = by
		}
	}
	return nil
}

// lengthenAccess adds a delay to all ways from one clock.
func (s *run) lengthenAccess(by int64) {
	v := s.victimClock()
	for i := range s.paths {
		switch p := &s.paths[i]; v {
		case p.A:
			p.addedDelay[0] = by
		case p.B:
			p.addedDelay[1] = by
		}
	}
}

func (s *run) cutEdges(when span, of func(Edge) bool) {
	for i := range s.paths {
		if of(s.paths[i].Edge) {
			s.paths[i].down = when
		}
	}
}
