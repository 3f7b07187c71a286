package audit

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
)

// watts converts a power in dBm.
func watts(dbm float64) *float64 { return number(math.Pow(10, dbm/10) / 1000) }

// healthyModule returns a module of four lanes that differ a little, as those of one type do.
func healthyModule(n int) ModuleReading {
	m := ModuleReading{Type: "V P-400G-DR4", TemperatureCelsius: number(45 + float64(n%7)), VoltageVolts: number(3.28 + float64(n%3)/100), PreFECBER: number(1e-9 * float64(1+n%50)),
		Lanes:  map[string]LaneReading{},
		Limits: map[string]ModuleLimits{"temperature": {number(-5), number(0), number(70), number(75)}, "receive_power": {watts(-10), watts(-7), watts(4), watts(6)}}}
	for lane := range 4 {
		spread := float64((n+lane)%5)*0.4 - 0.8 // dB
		m.Lanes[fmt.Sprint(lane+1)] = LaneReading{ReceiveWatts: watts(-1 + spread), TransmitWatts: watts(1 + spread/2), BiasAmperes: number(0.06 + spread/100), PreFECBER: number(2e-9)}
	}
	return m
}

// readOptics gives all ports healthy modules.
func readOptics(g *fabric.Graph, e *Evidence) {
	e.Modules = map[string]ModuleReading{}
	for i := range g.Topo.Links {
		for j, end := range []string{g.Topo.Links[i].A, g.Topo.Links[i].B} {
			e.Modules[end] = healthyModule(2*i + j)
		}
	}
}

// changeLane changes a lane of a module.
func changeLane(e *Evidence, at, lane string, change func(*LaneReading)) {
	l := e.Modules[at].Lanes[lane]
	change(&l)
	e.Modules[at].Lanes[lane] = l
}

func TestOptics(t *testing.T) {
	s := newSite(1, 4, 4, 8)
	up, down := s.fabricLink(3)
	nic := s.g.NICIDs()[4]
	seen := s.observe()
	change := func(at string, f func(*ModuleReading)) func(*Evidence) {
		return func(e *Evidence) {
			m := e.Modules[at]
			f(&m)
			e.Modules[at] = m
		}
	}
	for name, x := range map[string]struct {
		change func(*Evidence)
		status Status
		at     string
		text   string
	}{
		"healthy":     {func(*Evidence) {}, Pass, "", ""},
		"no readings": {func(e *Evidence) { e.Modules = nil }, Unknown, "", ""},
		"a dark lane": {func(e *Evidence) {
			changeLane(e, up.From, "3", func(l *LaneReading) { l.ReceiveWatts = watts(-40) })
		}, Fail, up.From, "Lane 3 is dark: it receives -40.0 dBm."},
		"no light at all": {func(e *Evidence) {
			changeLane(e, nic, "1", func(l *LaneReading) { l.ReceiveWatts = number(0) })
		}, Fail, nic, "Lane 1 is dark: it receives no power."},
		"a laser that is off": {func(e *Evidence) {
			changeLane(e, up.From, "2", func(l *LaneReading) { l.TransmitWatts, l.BiasAmperes = number(0), number(0) })
		}, Fail, up.From, "Lane 2 is dark: its laser sends no power."},
		"a weak lane": {func(e *Evidence) {
			changeLane(e, down.From, "4", func(l *LaneReading) { l.ReceiveWatts = watts(-6.9) })
		}, Warn, down.From, "on lane 4, and the median of its lanes is"},
		"below the alarm of the module": {func(e *Evidence) {
			changeLane(e, down.From, "4", func(l *LaneReading) { l.ReceiveWatts = watts(-11) })
		}, Fail, down.From, "received power is -11.0 dBm on lane 4, below the module's threshold of -10.0 dBm for its alarm"},
		"all lanes weak": {func(e *Evidence) {
			for lane := range e.Modules[nic].Lanes {
				changeLane(e, nic, lane, func(l *LaneReading) { l.ReceiveWatts = watts(-6.5) })
			}
		}, Warn, nic, "the median of the 96 modules of its kind is"},
		"hot": {change(up.From, func(m *ModuleReading) { m.TemperatureCelsius = number(71) }), Warn, up.From, "Its temperature is 71 °C, above the module's threshold of 70 °C for its warning"},
		"warmer than others": {change(up.From, func(m *ModuleReading) { m.TemperatureCelsius = number(68) }), Warn, up.From,
			"Its temperature is 68 °C, and the median of the 96 modules of its kind is 48 °C"},
		"cooler than others": {change(up.From, func(m *ModuleReading) { m.TemperatureCelsius = number(10) }), Pass, "", ""},
		"bit errors":         {change(nic, func(m *ModuleReading) { m.PreFECBER = number(3e-4) }), Fail, nic, "bit error ratio before FEC is 0.0003; at most 0.0001 is accepted"},
		"more bit errors than others": {change(nic, func(m *ModuleReading) { m.PreFECBER = number(2e-5) }), Warn, nic,
			"and the median of the 96 modules of its kind is"},
		"bit errors of a lane": {func(e *Evidence) {
			changeLane(e, up.From, "2", func(l *LaneReading) { l.PreFECBER = number(5e-4) })
		}, Fail, up.From, "on lane 2; at most 0.0001"},
		"a bias of three times": {func(e *Evidence) {
			changeLane(e, up.From, "2", func(l *LaneReading) { l.BiasAmperes = number(0.18) })
		}, Warn, up.From, "bias current is 180 mA on lane 2"},
		"thresholds that include nothing": {change(nic, func(m *ModuleReading) {
			m.Limits = map[string]ModuleLimits{"temperature": {number(0), number(0), number(0), number(0)}}
		}), Pass, "", ""},
		"a kind of its own": {change(nic, func(m *ModuleReading) {
			*m = ModuleReading{Type: "W X", TemperatureCelsius: number(44)}
		}), Unknown, nic, "fewer than 6 modules of its kind"},
		"no light at one end": {func(e *Evidence) { delete(e.Modules, nic) }, Unknown, "ports without readings", "1 ports"},
		"not a number":        {change(nic, func(m *ModuleReading) { m.TemperatureCelsius = number(math.NaN()) }), Pass, "", ""},
	} {
		copied := *seen
		e := &copied
		readOptics(s.g, e)
		x.change(e)
		r := Run(e, DefaultCriteria(), whole(s.g))
		c := checkOf(t, &r, "A8")
		if c.Status != x.status || len(c.Items) > 1 {
			t.Errorf("%s: A8 is %s, want %s\n%s", name, c.Status, x.status, describe(&r))
			continue
		}
		if x.at != "" && !slices.ContainsFunc(c.Items, func(i Item) bool { return i.Element == x.at && strings.Contains(i.Text, x.text) }) {
			t.Errorf("%s: %+v", name, c.Items)
		}
	}
}

// Modules of an unknown type are compared with those at the same kind of end of links of the same kind.
func TestModulesOfUnknownTypesAreComparedByRole(t *testing.T) {
	s := newSite(1, 4, 4, 8)
	e := s.observe()
	readOptics(s.g, e)
	for at, m := range e.Modules {
		m.Type, m.Limits = "", nil
		for lane, l := range m.Lanes {
			if !fabric.IsNIC(at) { // switches have stronger lasers here
				l.TransmitWatts = watts(6)
			}
			m.Lanes[lane] = l
		}
		e.Modules[at] = m
	}
	r := Run(e, DefaultCriteria(), whole(s.g))
	if c := checkOf(t, &r, "A8"); c.Status != Pass || !strings.Contains(c.Text, "kinds: 4.") {
		t.Errorf("%s\n%s", c.Status, describe(&r))
	}
}
