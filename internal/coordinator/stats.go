package coordinator

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

// counts has counters, and the values of the last run.
type counts struct {
	sessions     map[string]uint64 // number by result
	runs         map[string]uint64 // number by result
	runSeconds   float64           // duration of the last run
	runAt        time.Time         // wall time of the last successful run
	assignments  uint64
	keysSent     uint64
	traces       map[string]uint64 // number by result: taken, ignored
	clockUpdates uint64
	moves        uint64
	saves        map[string]uint64 // number by result
	questions    map[string]uint64 // number by result
	windows      map[string]uint64 // requests about maintenance windows, by result
	asked        int               // temporary flows at present
	askedHops    int               // hop-limited probes at present
	stepAt       time.Time
	reloadOK     bool
	reloadedAt   time.Time
}

// counters has the counts under a lock of its own, which no other lock is taken under.
type counters struct {
	mu sync.Mutex
	n  counts
}

func newCounters(wall time.Time) *counters {
	return &counters{n: counts{sessions: map[string]uint64{}, runs: map[string]uint64{}, traces: map[string]uint64{}, saves: map[string]uint64{}, questions: map[string]uint64{}, windows: map[string]uint64{}, reloadOK: true, reloadedAt: wall}}
}

// add changes the counts.
func (c *counters) add(change func(*counts)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.n)
}

func (c *counters) addSession(result string) { c.add(func(n *counts) { n.sessions[result]++ }) }

// addRun counts a run of the planner that ended at wall. A failed run has no duration.
func (c *counters) addRun(ok bool, took time.Duration, wall time.Time) {
	c.add(func(n *counts) {
		n.runs[resultText(ok)]++
		if ok {
			n.runSeconds, n.runAt = took.Seconds(), wall
		}
	})
}

// Results of questions, as they are counted.
const (
	questionAnswered  = "answered"
	questionRefused   = "refused"
	questionDenied    = "denied"
	questionMalformed = "malformed"
)

var questionResults = []string{questionAnswered, questionRefused, questionDenied, questionMalformed}

func (c *counters) addQuestion(result string) { c.add(func(n *counts) { n.questions[result]++ }) }

// Results of requests to make or end a maintenance window, as they are counted.
const (
	windowDone      = "done"
	windowRefused   = "refused" // it is invalid, there are too many, or there is no such window
	windowDenied    = "denied"  // the client has no right to it
	windowUnwritten = "unwritten"
	windowStandby   = "not_leader"
)

var windowResults = []string{windowDone, windowRefused, windowDenied, windowUnwritten, windowStandby}

func (c *counters) addWindow(result string) { c.add(func(n *counts) { n.windows[result]++ }) }

func (c *counters) addSave(ok bool) { c.add(func(n *counts) { n.saves[resultText(ok)]++ }) }

func (c *counters) addTraces(taken, ignored int) {
	c.add(func(n *counts) {
		n.traces["taken"] += uint64(taken)
		n.traces["ignored"] += uint64(ignored)
	})
}

// addSent counts the messages that a session sends.
func (c *counters) addSent(sent pendingMessages) {
	c.add(func(n *counts) {
		if sent.assignment {
			n.assignments++
		}
		if sent.keys {
			n.keysSent++
		}
		if sent.clocks {
			n.clockUpdates++
		}
	})
}

// fillStats fills in the counts of statistics. Every result has a number.
func (c *counters) fillStats(s *Stats) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := &c.n
	s.Sessions = map[string]uint64{}
	for _, r := range sessionResults {
		s.Sessions[r] = n.sessions[r]
	}
	s.Questions, s.TemporaryFlows, s.HopProbes = map[string]uint64{}, n.asked, n.askedHops
	for _, r := range questionResults {
		s.Questions[r] = n.questions[r]
	}
	s.WindowRequests = map[string]uint64{}
	for _, r := range windowResults {
		s.WindowRequests[r] = n.windows[r]
	}
	s.Runs = map[string]uint64{"done": n.runs["done"], "failed": n.runs["failed"]}
	s.Saves = map[string]uint64{"done": n.saves["done"], "failed": n.saves["failed"]}
	s.Traces = map[string]uint64{"taken": n.traces["taken"], "ignored": n.traces["ignored"]}
	s.RunSeconds, s.RunAt, s.StepAt = n.runSeconds, n.runAt, n.stepAt
	s.Assignments, s.KeysSent, s.ClockUpdates, s.Moves = n.assignments, n.keysSent, n.clockUpdates, n.moves
	s.ReloadOK, s.ReloadedAt = n.reloadOK, n.reloadedAt
}

// resultText returns the label of a result.
func resultText(ok bool) string {
	if ok {
		return "done"
	}
	return "failed"
}

// Stats are the statistics that the coordinator publishes about itself.
type Stats struct {
	Agents          map[string]int    // number by state
	Sessions        map[string]uint64 // number by result
	Whole           bool
	HasPlan         bool
	Conflicts       map[string]int // reported addresses and GIDs that are not used, by reason; nil without a plan
	Edges           map[string]int // number by state
	Runs            map[string]uint64
	RunSeconds      float64
	RunAt           time.Time
	Assignments     uint64
	KeysSent        uint64
	OutOfDate       int            // connected agents that have not applied their assignment
	AgentVersions   map[string]int // connected agents by the version that they report, at most mostVersions
	KeysEpoch       uint32
	KeysHeld        int
	KeysUnconfirmed int // connected agents that have not confirmed the newest key
	Traces          map[string]uint64
	Refused         map[string]int // agents that are not scraped at their advertised address, by reason
	Handshakes      Handshakes
	Clocks          ClockStats
	ClockUpdates    uint64
	Moves           uint64
	Questions       map[string]uint64 // of analyzers, number by result
	WindowRequests  map[string]uint64 // to make or end maintenance windows, number by result
	Windows         int               // maintenance windows that have not ended
	TemporaryFlows  int               // that analyzers asked for
	HopProbes       int               // that analyzers asked for
	Saves           map[string]uint64
	StepAt          time.Time
	TopologyHash    string
	ReloadOK        bool
	ReloadedAt      time.Time
	Leadership      Leadership
	Links           []LinkEdges // nil before the first path is bound
	LinkEdges       int         // number wanted on every link
}

// Stats returns the present statistics.
func (c *Coordinator) Stats() Stats {
	links, probes, _ := c.paths.linkCounts()
	s := Stats{Agents: map[string]int{}, Edges: map[string]int{}, Refused: map[string]int{}, Clocks: c.clocks.clockStats(), Handshakes: c.server.handshakes(), Links: links, LinkEdges: c.opts.LinkEdges, Leadership: c.Leadership()}
	c.counters.fillStats(&s)
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Whole, s.TopologyHash = c.registry.whole, c.topology.sum
	s.Windows = c.maintenance.countOpen(c.opts.Clock.WallTime())
	newest := uint32(0)
	if c.keys != nil {
		s.KeysEpoch, s.KeysHeld = c.keys.epochs[0].ID, len(c.keys.epochs)
		newest = c.keys.newestID()
	}
	silent := c.countAgents(&s, newest)
	if p := c.planning.plan; p != nil {
		s.HasPlan, s.Conflicts = true, p.countConflicts()
		total := len(p.base.Edges)
		s.Edges = map[string]int{"all": total, "unaddressed": p.unaddressed, "silent": silent, "path_known": probes, "path_unknown": total - probes}
	}
	return s
}

// countAgents counts the agents by state, and returns the number of their silent edges. newest is the
// number of the newest key, or 0. It needs mu.
func (c *Coordinator) countAgents(s *Stats, newest uint32) (silentEdges int) {
	for _, st := range AgentStates {
		s.Agents[st] = 0
	}
	for _, r := range refusedReasons {
		s.Refused[r] = 0
	}
	mono := c.opts.Clock.MonoTime()
	versions := map[string]int{}
	for n := range c.topology.nodes {
		a := c.registry.agents[n]
		if a != nil && a.web.refused != "" {
			s.Refused[a.web.refused]++
		}
		s.Agents[a.stateName(mono, c.opts.Heartbeat)]++
		if a == nil || a.session == nil {
			continue
		}
		versions[cmp.Or(a.software, unknownVersion)]++
		if a.ownConfiguration {
			continue
		}
		silentEdges += a.status.silentEdges
		if !a.upToDate() {
			s.OutOfDate++
		}
		if newest != 0 && !containsID(a.status.applied.GetKeyIds(), newest) {
			s.KeysUnconfirmed++
		}
	}
	s.AgentVersions = boundVersions(versions)
	return silentEdges
}

// mostVersions bounds the versions of agents that are counted one by one. The agents of others are counted as otherVersion.
const (
	mostVersions   = 16
	otherVersion   = "other"
	unknownVersion = "unknown" // of an agent that reports none
)

// boundVersions returns the numbers of agents of the most frequent versions, and those of the others together.
func boundVersions(agents map[string]int) map[string]int {
	if len(agents) <= mostVersions {
		return agents
	}
	versions := slices.SortedFunc(maps.Keys(agents), func(a, b string) int { return cmp.Or(agents[b]-agents[a], cmp.Compare(a, b)) })
	out := map[string]int{}
	for i, v := range versions {
		if i >= mostVersions-1 {
			out[otherVersion] += agents[v]
			continue
		}
		out[v] += agents[v]
	}
	return out
}

// countConflicts returns the number of reported addresses that are not used, by reason.
func (p *plan) countConflicts() map[string]int {
	out := map[string]int{}
	for _, reason := range conflictReasons {
		out[reason] = 0
	}
	for _, f := range p.conflicts {
		out[f.reason]++
	}
	return out
}
