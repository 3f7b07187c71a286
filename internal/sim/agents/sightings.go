package agents

import (
	"context"
	"fmt"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sighting"
)

// SightingSource holds the probes that a simulated switch sees. It is a source.Source.
type SightingSource struct {
	f         *Fabric
	sw        int32
	names     []string         // of ports
	ports     map[int32]uint32 // by the network's number
	lastSweep int64            // the sweep before
}

// SightingSource returns the sightings of a switch.
func (f *Fabric) SightingSource(sw string) (*SightingSource, error) {
	i, ok := f.net.SwitchNumber(sw)
	if !ok {
		return nil, fmt.Errorf("the fabric has no switch %q", sw)
	}
	e := &SightingSource{f: f, sw: i, ports: map[int32]uint32{}, lastSweep: -1}
	for _, end := range f.graph.EndsOf(sw) {
		_, port, _ := fabric.SplitPort(end)
		e.names = append(e.names, port)
		if at, ok := f.net.PortNumber(end); ok {
			e.ports[at] = uint32(len(e.names))
		}
	}
	return e, nil
}

// PortNames returns the names of the switch's ports: the n-th has the number n+1.
func (e *SightingSource) PortNames() []string { return e.names }

// Kind implements source.Source.
func (e *SightingSource) Kind() sighting.Kind { return sighting.KindSim }

// SetPorts implements source.Source: all are looked at.
func (e *SightingSource) SetPorts([]uint32) error { return nil }

// SweepFlows implements source.Source.
func (e *SightingSource) SweepFlows(_ context.Context, see func(*sighting.Key, sighting.Sample)) error {
	e.f.mu.Lock()
	defer e.f.mu.Unlock()
	base := e.f.wallTime(0).UnixNano()
	for _, fl := range e.f.flows {
		for way := range fl.trails {
			for _, m := range fl.trails[way] {
				if m.Switch == e.sw && m.Last > e.lastSweep {
					see(&fl.keys[way], sighting.Sample{Port: e.ports[m.Port], First: base + m.First, Last: base + m.Last, Count: m.Count})
				}
			}
		}
	}
	e.lastSweep = e.f.net.Now()
	return nil
}

// ForgetFlow implements source.Source: what is old is not handed over again.
func (e *SightingSource) ForgetFlow(*sighting.Key, uint32) {}

// Dropped implements source.Source.
func (e *SightingSource) Dropped() uint64 { return 0 }

// Close implements source.Source.
func (e *SightingSource) Close() error { return nil }

// Neighbours returns the switches to which this one's cables lead, as LLDP reports them.
func (e *SightingSource) Neighbours() []sighting.Neighbour {
	e.f.mu.Lock()
	defer e.f.mu.Unlock()
	out := []sighting.Neighbour{}
	for _, name := range e.names {
		far, ok := e.f.net.FarEnd(e.f.topo.Switches[e.sw].Name + ":" + name)
		if sw, port, isSwitch := fabric.SplitPort(far); ok && isSwitch {
			out = append(out, sighting.Neighbour{Port: name, System: sw, SystemPort: port, LastSeen: e.f.wallTime(e.f.net.Now()).UTC()})
		}
	}
	return out
}
