package nichealth

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/nichw"
)

// Names of checks.
const (
	CheckRDMA     = "InfiniBandErrorCheck" // what an RDMA device reports about its ports
	CheckEthernet = "EthernetStateCheck"   // what an interface reports
	CheckCounter  = "NICCounterCheck"
)

// Codes of findings.
const (
	CodeDown     = "state_down"
	CodeInit     = "state_init"
	CodeStuck    = "state_init_stuck"
	CodeArmed    = "state_armed"
	CodeDisabled = "phys_state_disabled"
	CodeRecovery = "phys_state_link_error_recovery"
	CodePolling  = "phys_state_polling"
	CodeTraining = "phys_state_training"
	CodeRate     = "rate_below_expected"
	CodeGone     = "device_disappeared"
	CodeNoGIDs   = "gid_table_empty"
	CodeNoIPv4   = "gid_ipv4_missing"
)

// finding is one thing that is wrong with one entity.
type finding struct {
	findingKey
	check      string
	fatal      bool
	message    string
	endMessage string // what is said when it ends
	// confirm: it has to last, and how long; twice: it has to be in two polls.
	confirm       time.Duration
	needsTwoPolls bool
	quiet         bool
}

// findingKey identifies a finding.
type findingKey struct {
	Entity Entity
	Code   string
}

// openFinding is a finding that holds.
type openFinding struct {
	finding
	since     time.Time
	readings  int
	confirmed bool // confirmed: an event was made, or it was there at first sight
	latched   bool // it ends by a reset only
}

// Monitor is the state of a node's NICs. It is for one goroutine.
type Monitor struct {
	c              Config
	boot           string
	now            time.Time
	open           map[findingKey]*openFinding
	knownEntities  map[Entity]bool
	missing        map[string]*absence // devices that are not listed any more
	series         map[counterKey]*growth
	expected       map[Entity]int64
	ports          int                 // that the product's table counts on, and has found
	saturated      map[counterKey]bool // saturated
	activeWarnings map[findingKey]bool // rules of warnings that hold now, latched or not
	crossings      map[Entity]uint64   // how often one began to hold
}

// absence is a device that is missing.
type absence struct {
	misses int
	last   time.Time
}

// New returns a monitor. remembered is what Save gave, or nil.
func New(c Config, boot string, remembered *Memory) *Monitor {
	m := &Monitor{c: c, boot: boot, open: map[findingKey]*openFinding{}, knownEntities: map[Entity]bool{}, missing: map[string]*absence{}, series: map[counterKey]*growth{},
		expected: map[Entity]int64{}, saturated: map[counterKey]bool{}, activeWarnings: map[findingKey]bool{}, crossings: map[Entity]uint64{}}
	m.restoreMemory(remembered)
	return m
}

// NextPoll returns when the next poll of states is due: sooner while a finding waits to be confirmed.
func (m *Monitor) NextPoll() time.Duration {
	for _, o := range m.open {
		if !o.confirmed && o.confirm > 0 {
			return m.c.ConfirmEvery
		}
	}
	return m.c.Every
}

// ObservePoll processes a poll, and returns the events to report.
func (m *Monitor) ObservePoll(p *nichw.Poll) (events []Event) {
	if p.Boot != "" && m.boot != "" && p.Boot != m.boot {
		*m = *New(m.c, p.Boot, nil) // rule 12
	}
	m.boot = cmp.Or(m.boot, p.Boot)
	m.now = p.At
	var now []finding
	known := map[Entity]bool{} // entities of which everything could be read
	m.updateExpectedRates(p)
	for i := range p.Devices {
		now = m.checkDevice(now, known, p, &p.Devices[i])
	}
	for i := range p.Interfaces {
		now = m.checkInterface(now, known, &p.Interfaces[i])
	}
	now = append(now, m.checkMissing(p, known)...)
	events = m.updateFindings(now, known)
	if p.Parts&nichw.ReadCounters != 0 {
		events = append(events, m.checkCounters(p)...)
	}
	for e := range known {
		m.knownEntities[e] = true
	}
	slices.SortStableFunc(events, func(a, b Event) int {
		return cmp.Or(cmp.Compare(a.EntitiesImpacted[0].Value, b.EntitiesImpacted[0].Value), cmp.Compare(a.ErrorCode[0], b.ErrorCode[0]))
	})
	return events
}

// checkDevice adds what is wrong with the ports of an RDMA device.
func (m *Monitor) checkDevice(now []finding, known map[Entity]bool, p *nichw.Poll, d *nichw.Device) []finding {
	if m.c.IsExcluded(d.Name) {
		return now
	}
	known[NICEntity(d.Name)] = true
	for i := range d.Ports {
		port := &d.Ports[i]
		e := PortEntity(d.Name, port.Number)
		name := fmt.Sprintf("Port %s port %d", d.Name, port.Number)
		add := func(code string, fatal bool, said, over string) *finding {
			now = append(now, finding{findingKey: findingKey{e, code}, check: CheckRDMA, fatal: fatal, message: name + ": " + said, endMessage: name + ": " + over, quiet: m.c.isQuiet(d.Name)})
			return &now[len(now)-1]
		}
		if m.c.mayBeDown(d.Name, d.Function) {
			known[e] = port.State != nichw.StateUnknown
			continue
		}
		known[e] = port.State != nichw.StateUnknown && port.Phys != nichw.PhysUnknown
		switch port.State {
		case nichw.Down:
			add(CodeDown, true, "state DOWN - no connectivity", "state is not DOWN any more").confirm = m.c.Confirm
		case nichw.Init:
			add(CodeInit, false, "state INIT - the subnet manager has not configured it", "state is not INIT any more")
			add(CodeStuck, false, fmt.Sprintf("stuck in INIT for more than %s - check the subnet manager", m.c.Stuck), "state is not INIT any more").confirm = m.c.Stuck
		case nichw.Armed:
			add(CodeArmed, false, "state ARMED but not ACTIVE - check the subnet manager", "state is not ARMED any more")
		}
		switch port.Phys {
		case nichw.Disabled:
			add(CodeDisabled, true, "physical state Disabled", "physical state is not Disabled any more")
		case nichw.LinkErrorRecovery:
			add(CodeRecovery, true, "physical state LinkErrorRecovery - the link has problems", "error recovery of the link has ended")
		case nichw.Polling:
			add(CodePolling, false, "physical state Polling - it looks for a partner", "physical state is not Polling any more")
		case nichw.Training:
			add(CodeTraining, false, "physical state PortConfigurationTraining - the link is being trained", "training has ended")
		}
		if port.State != nichw.Active {
			continue
		}
		if want, ok := m.expected[e]; ok && port.Rate != nil && *port.Rate < want {
			f := add(CodeRate, true, fmt.Sprintf("rate %s, %s are expected", formatGigabits(*port.Rate), formatGigabits(want)), "the rate is as expected")
			f.needsTwoPolls = true
		}
		if port.LinkLayer == "Ethernet" && port.GIDsKnown {
			if len(port.GIDs) == 0 {
				add(CodeNoGIDs, false, "the GID table is empty - queue pairs cannot be set up", "the GID table has entries")
			} else if !hasIPv4(port) && m.otherwiseIPv4(p, d, port) {
				add(CodeNoIPv4, false, "no GID of RoCE v2 with an IPv4 address, and the other ports of its kind have one", "there is a GID of RoCE v2 with an IPv4 address")
			}
		}
	}
	return now
}

func formatGigabits(bytes int64) string { return fmt.Sprintf("%g Gb/s", float64(bytes)*8/1e9) }

func hasIPv4(p *nichw.Port) bool {
	return slices.ContainsFunc(p.GIDs, func(g nichw.GID) bool { return g.IsIPv4() && (g.Type == "" || strings.Contains(g.Type, "v2")) })
}

// otherwiseIPv4 reports whether most other ports of the same role have an IPv4 GID.
func (m *Monitor) otherwiseIPv4(p *nichw.Poll, d *nichw.Device, port *nichw.Port) bool {
	with, without := 0, 0
	for i := range p.Devices {
		o := &p.Devices[i]
		for j := range o.Ports {
			if q := &o.Ports[j]; q != port && portRole(o, q) == portRole(d, port) && q.State == nichw.Active && q.GIDsKnown && o.Function == d.Function {
				if hasIPv4(q) {
					with++
				} else {
					without++
				}
			}
		}
	}
	return with >= 2 && with > without
}

// checkInterface adds what is wrong with an interface that no RDMA device stands for, or that
// is a member of a bond: the bond's device has the state of all of them together.
func (m *Monitor) checkInterface(now []finding, known map[Entity]bool, f *nichw.Interface) []finding {
	if m.c.IsExcluded(f.Name) || f.Device != "" && f.Master == "" {
		return now
	}
	e := NICEntity(f.Name)
	known[e] = f.OperState != ""
	if f.OperState == "down" || f.OperState == "lowerlayerdown" || f.OperState == "notpresent" {
		if !m.c.mayBeDown(f.Name, f.Function) {
			now = append(now, finding{findingKey: findingKey{e, CodeDown}, check: CheckEthernet, fatal: true, confirm: m.c.Confirm, quiet: m.c.isQuiet(f.Name),
				message: fmt.Sprintf("Interface %s: operstate %s - no connectivity", f.Name, f.OperState), endMessage: fmt.Sprintf("Interface %s: it is up again", f.Name)})
		}
	}
	return now
}

// checkMissing returns the findings of rule 3. Devices that were seen and are not listed are counted.
func (m *Monitor) checkMissing(p *nichw.Poll, known map[Entity]bool) (out []finding) {
	listed := map[string]bool{}
	for i := range p.Devices {
		listed[p.Devices[i].Name] = true
	}
	for i := range p.Interfaces {
		listed[p.Interfaces[i].Name] = true
	}
	for e := range m.knownEntities {
		if e.Type != EntityNIC || listed[e.Value] || m.missing[e.Value] != nil {
			continue
		}
		m.missing[e.Value] = &absence{last: m.now.Add(-m.c.Every)}
	}
	for name, a := range m.missing {
		e := NICEntity(name)
		if listed[name] {
			delete(m.missing, name)
			known[e] = true // it is back, and its reported findings end
			continue
		}
		if p.DevicesKnown && p.InterfacesKnown && m.now.Sub(a.last) >= m.c.Every*9/10 {
			a.misses, a.last = a.misses+1, m.now
		}
		if a.misses >= m.c.Misses {
			out = append(out, finding{findingKey: findingKey{e, CodeGone}, check: CheckRDMA, fatal: true, quiet: m.c.isQuiet(name),
				message: fmt.Sprintf("NIC %s disappeared: %d polls did not find it", name, m.c.Misses), endMessage: fmt.Sprintf("NIC %s is back", name)})
		}
	}
	return out
}

// updateFindings turns what holds now into events.
func (m *Monitor) updateFindings(now []finding, known map[Entity]bool) (events []Event) {
	holds := map[findingKey]bool{}
	for i := range now {
		f := &now[i]
		holds[f.findingKey] = true
		o := m.open[f.findingKey]
		if o == nil {
			o = &openFinding{since: m.now}
			m.open[f.findingKey] = o
		}
		o.finding = *f
		o.readings++
		if o.confirmed {
			continue
		}
		first := !m.knownEntities[f.Entity] && f.Code != CodeGone
		switch {
		case first && f.confirm < m.c.Stuck:
			o.confirmed = true // rule 1
		case f.confirm > 0 && (o.readings < 2 || m.now.Sub(o.since) < f.confirm), f.needsTwoPolls && o.readings < 2:
			continue
		default:
			o.confirmed = true
			events = m.appendEvent(events, o)
		}
	}
	for k, o := range m.open {
		device, _, _ := strings.Cut(k.Entity.Value, "_port")
		switch {
		case holds[k] || o.latched:
			continue
		case !known[k.Entity] && m.missing[device] == nil:
			continue // rule 8
		case m.missing[device] != nil && k.Code != CodeGone:
			if m.missing[device].misses < m.c.Misses {
				continue
			}
			// A device that is gone has no state. Its absence is reported separately.
		case o.confirmed:
			events = m.appendEndEvent(events, o)
		}
		delete(m.open, k)
	}
	return events
}

func (m *Monitor) appendEvent(events []Event, o *openFinding) []Event {
	if o.quiet {
		return events
	}
	e := m.newEvent(o)
	e.IsFatal, e.Message = o.fatal, o.message
	e.RecommendedAction = ActionNone
	if o.fatal {
		e.RecommendedAction = ActionReplaceVM
	}
	return append(events, e)
}

func (m *Monitor) appendEndEvent(events []Event, o *openFinding) []Event {
	if o.quiet {
		return events
	}
	e := m.newEvent(o)
	e.IsHealthy, e.Message, e.RecommendedAction = true, o.endMessage, ActionNone
	return append(events, e)
}

func (m *Monitor) newEvent(o *openFinding) Event {
	return Event{Agent: Agent, ComponentClass: ComponentNIC, CheckName: o.check, EntitiesImpacted: []Entity{o.Entity}, ErrorCode: []string{o.Code}, NodeName: m.c.Node, GeneratedTimestamp: m.now}
}

// portRole returns what NICs have in common that should have one rate: the board, or the type if the board is not
// known.
func portRole(d *nichw.Device, p *nichw.Port) string {
	what := cmp.Or(d.Board, d.HCAType)
	if what == "" {
		return ""
	}
	return string(d.Kind) + " " + p.LinkLayer + " " + what
}

// updateExpectedRates applies rule 7.
func (m *Monitor) updateExpectedRates(p *nichw.Poll) {
	type group struct {
		ports []Entity
		rates map[int64]int
	}
	groups := map[string]*group{}
	for i := range p.Devices {
		d := &p.Devices[i]
		if d.Function == nichw.Virtual || m.c.isQuiet(d.Name) || matchesAny(m.c.ExpectedDown, d.Name) {
			continue
		}
		for j := range d.Ports {
			port := &d.Ports[j]
			r := portRole(d, port)
			if r == "" {
				continue
			}
			if groups[r] == nil {
				groups[r] = &group{rates: map[int64]int{}}
			}
			groups[r].ports = append(groups[r].ports, PortEntity(d.Name, port.Number))
			if port.State == nichw.Active && port.Rate != nil {
				groups[r].rates[*port.Rate]++
			}
		}
	}
	clear(m.expected)
	m.ports = 0
	if table := m.c.nodeProduct(); table != nil {
		want := table.Rate / 8
		// The product's ports are those of the groups that reach its rate; all of a group's are,
		// so that a spare one does not stand in for a slow one. Where none does, the largest's.
		var of []*group
		var largest *group
		for _, g := range groups {
			if slices.ContainsFunc(keysOf(g.rates), func(r int64) bool { return r >= want }) {
				of = append(of, g)
			}
			if largest == nil || len(g.ports) > len(largest.ports) {
				largest = g
			}
		}
		if len(of) == 0 && largest != nil {
			of = append(of, largest)
		}
		for _, g := range of {
			m.ports += len(g.ports)
			for _, e := range g.ports {
				m.expected[e] = want
			}
		}
		return
	}
	for _, g := range groups {
		total, most := 0, int64(0)
		for r, n := range g.rates {
			total += n
			if n > g.rates[most] || n == g.rates[most] && r > most {
				most = r
			}
		}
		if g.rates[most] >= 3 && 2*g.rates[most] > total {
			for _, e := range g.ports {
				m.expected[e] = most
			}
		}
	}
}

func keysOf(m map[int64]int) (out []int64) {
	for k := range m {
		out = append(out, k)
	}
	return out
}
