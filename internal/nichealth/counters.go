package nichealth

import (
	"fmt"
	"time"

	"github.com/graylink/graylink/internal/nichw"
)

// counterKey is a counter of a port or an interface.
type counterKey struct {
	Entity  Entity
	Counter string
}

// slots is how finely a window is kept: what is older than the window by less than a slot
// still counts.
const slots = 60

// sample is a counter's value at a moment.
type sample struct {
	at    time.Time
	value uint64
}

// growth is the past of one counter, as far as one rule's window reaches. Rules of one counter
// with other windows have their own.
type growth struct {
	last    sample
	known   bool
	windows map[time.Duration][]sample
}

// addSample takes a value, and reports whether it is a reset.
func (g *growth) addSample(s sample, windows []time.Duration) (reset bool) {
	reset = g.known && s.value < g.last.value
	if reset || !g.known {
		g.windows = map[time.Duration][]sample{}
	}
	g.last, g.known = s, true
	for _, w := range windows {
		past := g.windows[w]
		// One before the window's beginning is needed to know what it began with.
		for len(past) > 1 && s.at.Sub(past[1].at) >= w {
			past = past[1:]
		}
		if n := len(past); n == 0 || s.at.Sub(past[n-1].at) >= w/slots {
			past = append(past, s)
		}
		g.windows[w] = past
	}
	return reset
}

// growthOver returns the growth in the window that ends now, or the known part of it.
func (g *growth) growthOver(w time.Duration) uint64 {
	past := g.windows[w]
	for len(past) > 1 && g.last.at.Sub(past[0].at) > w+w/slots {
		past = past[1:]
	}
	if len(past) == 0 {
		return 0
	}
	return g.last.value - past[0].value
}

// checkCounters applies the rules of counters.
func (m *Monitor) checkCounters(p *nichw.Poll) (events []Event) {
	clear(m.saturated)
	for i := range p.Devices {
		d := &p.Devices[i]
		if m.c.IsExcluded(d.Name) {
			continue
		}
		for j := range d.Ports {
			port := &d.Ports[j]
			e, name := PortEntity(d.Name, port.Number), fmt.Sprintf("Port %s port %d", d.Name, port.Number)
			for _, c := range port.Counters {
				if isSaturated(c.Name, c.Value) {
					m.saturated[counterKey{e, c.Name}] = true
				}
				events = append(events, m.checkCounter(e, name, d.Name, c)...)
			}
			for _, c := range port.Hardware {
				events = append(events, m.checkCounter(e, name, d.Name, c)...)
			}
		}
	}
	for i := range p.Interfaces {
		f := &p.Interfaces[i]
		if m.c.IsExcluded(f.Name) || f.Changes == nil {
			continue
		}
		events = append(events, m.checkCounter(NICEntity(f.Name), "Interface "+f.Name, f.Name, nichw.Counter{Name: "carrier_changes", Value: *f.Changes})...)
	}
	return events
}

// checkCounter applies the rules of one counter.
func (m *Monitor) checkCounter(e Entity, name, device string, c nichw.Counter) (events []Event) {
	var windows []time.Duration
	for i := range m.c.Thresholds {
		if t := &m.c.Thresholds[i]; t.Counter == c.Name {
			windows = append(windows, t.Window)
		}
	}
	if len(windows) == 0 {
		return nil
	}
	k := counterKey{e, c.Name}
	g := m.series[k]
	if g == nil {
		g = &growth{}
		m.series[k] = g
	}
	reset := g.addSample(sample{m.now, c.Value}, windows)
	for i := range m.c.Thresholds {
		t := &m.c.Thresholds[i]
		if t.Counter != c.Name {
			continue
		}
		id := findingKey{e, t.Code}
		grown := g.growthOver(t.Window)
		said := m.describeBreach(t, grown)
		if !t.Fatal && !m.c.isQuiet(device) { // rule 14
			began := uint64(0)
			if said != "" && !m.activeWarnings[id] {
				began = 1
			}
			m.crossings[e] += began
			m.activeWarnings[id] = said != ""
		}
		if o := m.open[id]; o != nil {
			if reset {
				events = m.appendEndEvent(events, o)
				delete(m.open, id)
			}
			continue
		}
		if said != "" {
			o := &openFinding{since: m.now, confirmed: true, latched: true, finding: finding{findingKey: id, check: CheckCounter, fatal: t.Fatal, quiet: m.c.isQuiet(device),
				message: fmt.Sprintf("%s: %s %s", name, c.Name, said), endMessage: fmt.Sprintf("%s: %s was reset", name, c.Name)}}
			m.open[id] = o
			events = m.appendEvent(events, o)
		}
	}
	return events
}

// describeBreach returns in words how the growth over a rule's window breaches the rule, and "" if it does not.
func (m *Monitor) describeBreach(t *Threshold, grown uint64) string {
	seconds := t.Window.Seconds()
	switch t.Sort {
	case Growth:
		if grown > 0 {
			return fmt.Sprintf("grew by %d", grown)
		}
	case Rate:
		if r := float64(grown) / seconds; r > t.Above {
			return fmt.Sprintf("grew by %d in %s, more than %g a second", grown, t.Window, t.Above)
		}
	case Share:
		if tick := m.c.XmitWaitTick.Seconds(); tick > 0 {
			if s := float64(grown) * tick / seconds; s > t.Above {
				return fmt.Sprintf("shows that the port could not send for %.0f%% of %s, more than %.0f%%", 100*s, t.Window, 100*t.Above)
			}
		}
	}
	return ""
}
