package agents

import (
	"context"
	"fmt"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sighting"
)

// Eyes are what a simulated switch sees of probes. It is a source.Source.
type Eyes struct {
	f     *Fabric
	sw    int32
	names []string         // of ports
	ports map[int32]uint32 // by the network's number
	since int64            // the sweep before
}

// Eyes are those of a switch.
func (f *Fabric) Eyes(sw string) (*Eyes, error) {
	i, ok := f.net.Switch(sw)
	if !ok {
		return nil, fmt.Errorf("the fabric has no switch %q", sw)
	}
	e := &Eyes{f: f, sw: i, ports: map[int32]uint32{}, since: -1}
	for _, end := range f.graph.Ends(sw) {
		_, port, _ := fabric.SplitPort(end)
		e.names = append(e.names, port)
		if at, ok := f.net.Port(end); ok {
			e.ports[at] = uint32(len(e.names))
		}
	}
	return e, nil
}

// Names are the switch's ports: the n-th has the number n+1.
func (e *Eyes) Names() []string { return e.names }

// Kind implements source.Source.
func (e *Eyes) Kind() sighting.Kind { return sighting.KindSim }

// Ports implements source.Source: all are looked at.
func (e *Eyes) Ports([]uint32) error { return nil }

// Sweep implements source.Source.
func (e *Eyes) Sweep(_ context.Context, see func(*sighting.Key, sighting.Sample)) error {
	e.f.mu.Lock()
	defer e.f.mu.Unlock()
	base := e.f.wall(0).UnixNano()
	for _, fl := range e.f.flows {
		for way := range fl.trails {
			for _, m := range fl.trails[way] {
				if m.Switch == e.sw && m.Last > e.since {
					see(&fl.keys[way], sighting.Sample{Port: e.ports[m.Port], First: base + m.First, Last: base + m.Last, Count: m.Count})
				}
			}
		}
	}
	e.since = e.f.net.Now()
	return nil
}

// Forget implements source.Source: what is old is not handed over again.
func (e *Eyes) Forget(*sighting.Key, uint32) {}

// Dropped implements source.Source.
func (e *Eyes) Dropped() uint64 { return 0 }

// Close implements source.Source.
func (e *Eyes) Close() error { return nil }

// Neighbours are the switches that this one's cables lead to, as LLDP tells them.
func (e *Eyes) Neighbours() []sighting.Neighbour {
	e.f.mu.Lock()
	defer e.f.mu.Unlock()
	out := []sighting.Neighbour{}
	for _, name := range e.names {
		far, ok := e.f.net.Plugged(e.f.topo.Switches[e.sw].Name + ":" + name)
		if sw, port, isSwitch := fabric.SplitPort(far); ok && isSwitch {
			out = append(out, sighting.Neighbour{Port: name, System: sw, SystemPort: port, Seen: e.f.wall(e.f.net.Now()).UTC()})
		}
	}
	return out
}
