package chaos

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Target is what an event happens to.
type Target string

// Targets of events.
const (
	OnNode       Target = "node"
	OnSwitch     Target = "switch"
	OnAnalyzer   Target = "analyzer"
	OnPrometheus Target = "prometheus"
	OnFleet      Target = "fleet" // the leading coordinator, or all
)

// Kind describes a kind of event.
type Kind struct {
	Name   string
	Target Target
	// Lasts is the time until it is undone. An event lasts up to half of it longer, by the seed.
	Lasts time.Duration
	// Probes is set if it takes answers to probes from the node, so that the node's probes are not accounted for.
	Probes bool
	// Cut is set if it really takes the node off the fabric, so that a verdict about the node is right.
	Cut bool
	// Clocks is set if nothing relates the clocks of the nodes while it lasts, so that one which steps then is not noticed.
	Clocks bool
	About  string
}

// Kinds are the kinds of events, in the order in which seeds take them.
var Kinds = []Kind{
	{Name: "kill_agent", Target: OnNode, Lasts: time.Second, Probes: true, About: "the agent is killed, and started again"},
	{Name: "kill_coordinator", Target: OnFleet, Lasts: 3 * time.Second, About: "the leader is killed, and started again"},
	{Name: "prometheus_lost", Target: OnPrometheus, Lasts: 4 * time.Second, About: "one of two Prometheus is killed, and started again"},
	{Name: "stop_agent", Target: OnNode, Lasts: 3 * time.Second, Probes: true, About: "the agent does not run (SIGSTOP), and goes on"},
	{Name: "disk_full", Target: OnFleet, Lasts: 4 * time.Second, About: "the disk of all state files is full"},
	{Name: "interface_flap", Target: OnNode, Lasts: 2 * time.Second, Probes: true, Cut: true, About: "the NIC's link goes down for a moment, twice"},
	{Name: "coordinator_one_way", Target: OnFleet, Lasts: 5 * time.Second, About: "nothing from the coordinators reaches the agents"},
	{Name: "kill_analyzer", Target: OnAnalyzer, Lasts: 2 * time.Second, About: "the analyzer is killed, and started again"},
	{Name: "certificate_expired", Target: OnNode, Lasts: 4 * time.Second, About: "the agent has to connect again, and its certificate has expired"},
	{Name: "oom_agent", Target: OnNode, Lasts: 2 * time.Second, Probes: true, About: "the kernel ends the agent, which is out of memory"},
	{Name: "bad_reload_coordinator", Target: OnFleet, Lasts: time.Second, About: "the coordinators are reloaded with a topology that is none"},
	{Name: "half_upgraded", Target: OnFleet, Lasts: 6 * time.Second, Probes: true, About: "half of the agents are those of the last release"},
	{Name: "kill_switch_agent", Target: OnSwitch, Lasts: 2 * time.Second, About: "the switch's agent is killed, and started again"},
	{Name: "stop_coordinator", Target: OnFleet, Lasts: 4 * time.Second, About: "the leader does not run (SIGSTOP), and goes on"},
	{Name: "remote_write_429", Target: OnFleet, Lasts: 5 * time.Second, About: "the receiver of remote write refuses everything with 429"},
	{Name: "no_files_agent", Target: OnNode, Lasts: 3 * time.Second, About: "the agent may not open files"},
	{Name: "node_drained", Target: OnNode, Lasts: 5 * time.Second, Probes: true, About: "maintenance of the node is announced, and its agent ends"},
	{Name: "ca_rolled", Target: OnFleet, Lasts: 4 * time.Second, About: "a new authority signs all certificates, and the old one is taken away"},
	{Name: "stop_analyzer", Target: OnAnalyzer, Lasts: 4 * time.Second, About: "the analyzer does not run (SIGSTOP), and goes on"},
	{Name: "nic_unplugged", Target: OnNode, Lasts: 4 * time.Second, Probes: true, Cut: true, About: "the NIC's link is down"},
	{Name: "coordinator_slow", Target: OnFleet, Lasts: 6 * time.Second, About: "what coordinators and agents send each other takes 300 ms"},
	{Name: "oom_coordinator", Target: OnFleet, Lasts: 2 * time.Second, About: "the kernel ends the leader, which is out of memory"},
	{Name: "dns_gone", Target: OnFleet, Lasts: 3 * time.Second, About: "the names of nodes and switches cannot be resolved"},
	{Name: "duplicate_name", Target: OnNode, Lasts: 4 * time.Second, About: "another machine runs an agent with the node's name and certificate"},
	{Name: "ruler_late", Target: OnPrometheus, Lasts: 3 * time.Second, About: "one of two Prometheus does not run (SIGSTOP), and goes on"},
	{Name: "address_change", Target: OnNode, Lasts: time.Second, Probes: true, Cut: true, About: "the NIC loses its address, and gets it again"},
	{Name: "two_leaders", Target: OnFleet, Lasts: 4 * time.Second, Clocks: true, About: "the standby is made leader while neither coordinator can be reached"},
	{Name: "no_files_coordinator", Target: OnFleet, Lasts: 3 * time.Second, About: "the leader may not open files"},
	{Name: "oom_analyzer", Target: OnAnalyzer, Lasts: 2 * time.Second, About: "the kernel ends the analyzer, which is out of memory"},
	{Name: "bad_reload_analyzer", Target: OnAnalyzer, Lasts: time.Second, About: "the analyzer is reloaded with a configuration that is none"},
	{Name: "stop_switch_agent", Target: OnSwitch, Lasts: 3 * time.Second, About: "the switch's agent does not run (SIGSTOP), and goes on"},
	{Name: "no_files_analyzer", Target: OnAnalyzer, Lasts: 3 * time.Second, About: "the analyzer may not open files"},
	{Name: "oom_switch_agent", Target: OnSwitch, Lasts: 2 * time.Second, About: "the kernel ends the switch's agent, which is out of memory"},
}

// FindKind returns the kind of a name.
func FindKind(name string) (Kind, bool) {
	i := slices.IndexFunc(Kinds, func(k Kind) bool { return k.Name == name })
	if i < 0 {
		return Kind{}, false
	}
	return Kinds[i], true
}

// FaultKinds are the faults of the fabric, in the order in which seeds take them. With two faults a seed the step of a clock
// is the first one: a clock that steps within half a minute of a delay is not trusted, and is not named.
var FaultKinds = []string{"clock-step", "delay", "loss", "blackhole", "nic-slow", "link-down", "ecn", "switch-slow"}

// Event is something that happens to Graylink or to a host. Times are since the beginning.
type Event struct {
	At     time.Duration `json:"at_ns"`
	Until  time.Duration `json:"until_ns"`
	Kind   string        `json:"kind"`
	Target string        `json:"target,omitempty"`
}

// Fault is something that happens to the fabric. Its seed chooses where.
type Fault struct {
	At    time.Duration `json:"at_ns"`
	Until time.Duration `json:"until_ns"`
	Kind  string        `json:"kind"`
	Seed  uint64        `json:"seed"`
}

// Schedule is what happens in a span of time.
type Schedule struct {
	Seed   uint64        `json:"seed"`
	Span   time.Duration `json:"span_ns"`
	Events []Event       `json:"events"`
	Faults []Fault       `json:"faults"`
}

// Site has the names of what events can happen to.
type Site struct{ Nodes, Switches, Analyzers, Prometheus []string }

// Times of a schedule.
const (
	startGap   = 3 * time.Second  // before the first event
	eventEvery = 8 * time.Second  // from one event to the next, at least
	eventGap   = time.Second      // between two events, at least
	faultFirst = 12 * time.Second // before the first fault
	faultLasts = 30 * time.Second
	faultEvery = 46 * time.Second // from one fault to the next
	// quietEnd is left without faults, so that what they brought about is over, and eventsEnd without events.
	quietEnd  = 25 * time.Second
	eventsEnd = 12 * time.Second
)

// MinSpan is the shortest span of a schedule.
const MinSpan = faultFirst + faultLasts + quietEnd

// NewSchedule returns what a seed makes happen in a span. Events follow each other, and a fault may come at any time beside
// them. The seeds take the kinds in turn, so that as many seeds as need be have all of them.
func NewSchedule(seed uint64, span time.Duration, site Site) (Schedule, error) {
	if span < MinSpan {
		return Schedule{}, fmt.Errorf("a span of %s: at least %s is expected", span, MinSpan)
	}
	if len(site.Nodes) == 0 || len(site.Switches) == 0 || len(site.Analyzers) == 0 || len(site.Prometheus) == 0 {
		return Schedule{}, fmt.Errorf("a site of %+v: nodes, switches, analyzers and Prometheus are expected", site)
	}
	rng := rand.New(rand.NewPCG(seed, 0x6368616f73))
	s := Schedule{Seed: seed, Span: span}
	count := int((span - startGap - eventsEnd) / eventEvery)
	deck := make([]Kind, count)
	for i := range deck {
		deck[i] = Kinds[(int(seed%uint64(len(Kinds)))*count+i)%len(Kinds)]
	}
	rng.Shuffle(count, func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
	names := map[Target][]string{OnNode: site.Nodes, OnSwitch: site.Switches, OnAnalyzer: site.Analyzers, OnPrometheus: site.Prometheus}
	for i, k := range deck {
		lasts := min(k.Lasts+time.Duration(rng.Int64N(int64(k.Lasts/2))), eventEvery-eventGap)
		e := Event{Kind: k.Name, At: startGap + time.Duration(i)*eventEvery}
		e.At += time.Duration(rng.Int64N(int64(eventEvery - eventGap - lasts + 1)))
		e.Until = e.At + lasts
		if of := names[k.Target]; of != nil {
			e.Target = of[rng.IntN(len(of))]
		}
		s.Events = append(s.Events, e)
	}
	faults := 1 + int((span-MinSpan)/faultEvery)
	for i := range faults {
		at := faultFirst + time.Duration(i)*faultEvery + time.Duration(rng.Int64N(int64(4*time.Second)))
		s.Faults = append(s.Faults, Fault{At: at, Until: at + faultLasts, Seed: rng.Uint64N(1 << 32),
			Kind: FaultKinds[(int(seed%uint64(len(FaultKinds)))*faults+i)%len(FaultKinds)]})
	}
	return s, nil
}

// WriteJSON writes a schedule, as ReadSchedule reads it.
func (s Schedule) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(s)
}

// ReadSchedule reads a schedule that WriteJSON wrote.
func ReadSchedule(r io.Reader) (s Schedule, err error) {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return s, fmt.Errorf("the schedule: %w", err)
	}
	for i, e := range s.Events {
		if _, ok := FindKind(e.Kind); !ok {
			return s, fmt.Errorf("events[%d].kind: %q, one of %s is expected", i, e.Kind, strings.Join(kindNames(), ", "))
		}
		if e.At < 0 || e.Until < e.At || e.Until > s.Span || i > 0 && e.At < s.Events[i-1].Until {
			return s, fmt.Errorf("events[%d]: from %s to %s, within the span of %s and after the event before it is expected", i, e.At, e.Until, s.Span)
		}
	}
	for i, f := range s.Faults {
		if !slices.Contains(FaultKinds, f.Kind) {
			return s, fmt.Errorf("faults[%d].kind: %q, one of %s is expected", i, f.Kind, strings.Join(FaultKinds, ", "))
		}
		if f.At < 0 || f.Until < f.At || f.Until > s.Span || i > 0 && f.At < s.Faults[i-1].Until {
			return s, fmt.Errorf("faults[%d]: from %s to %s, within the span of %s and after the fault before it is expected", i, f.At, f.Until, s.Span)
		}
	}
	return s, nil
}

func kindNames() (names []string) {
	for _, k := range Kinds {
		names = append(names, k.Name)
	}
	return names
}
