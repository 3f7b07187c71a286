package switchagent

import (
	"net/netip"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sighting"
)

// Status represents the state of the agent at one moment.
type Status struct {
	Switch  string
	Kind    sighting.Kind
	Flows   int    // flows in the table
	Version uint64 // of the table
	Dropped uint64 // samples and flows that were lost because a buffer or the table was full
	Rounds  uint64
	Took    time.Duration // duration of the last round
	LastEnd time.Time     // end of the last round that succeeded

	MalformedLLDP uint64 // frames

	Routes *RouteStatus // nil if routes are not read
}

// Status returns the present state.
func (a *Agent) Status() Status {
	var routes *RouteStatus
	if a.routes != nil {
		routes = a.routes.status()
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	return Status{Routes: routes, Switch: a.o.Switch, Kind: a.source.Kind(), Flows: a.table.Len(), Version: a.table.Version(), Dropped: a.table.Dropped + a.source.Dropped(),
		Rounds: a.last.done, Took: a.last.took, LastEnd: a.last.end, MalformedLLDP: a.lldp.MalformedFrames()}
}

// Port represents a port of the switch with what the kernel reports of it. What is not known is nil.
type Port struct {
	Link
	BytesPerSecond *float64 // negotiated rate
	Queue          *Queue
}

// Telemetry represents what the kernel reports of the ports. What could not be read is absent, and has an error.
type Telemetry struct {
	Ports             []Port
	LinkErr, QueueErr error
}

// ReadTelemetry reads the state of the ports from the kernel.
func (a *Agent) ReadTelemetry() Telemetry {
	var t Telemetry
	links, err := a.links(a.o.Aliases)
	t.LinkErr = err
	queues, err := listQueues()
	t.QueueErr = err
	rates := linkSpeeds(links)
	for _, l := range links {
		if !a.o.IsPort(l.Name) {
			continue
		}
		p := Port{Link: l}
		if v, ok := rates[l.Name]; ok {
			p.BytesPerSecond = &v
		}
		if q, ok := queues[l.Number]; ok {
			p.Queue = &q
		}
		t.Ports = append(t.Ports, p)
	}
	return t
}

// DescribePorts returns the ports of the last round with their addresses and neighbours, for programs that draw the
// fabric.
func (a *Agent) DescribePorts() (fabric.SwitchView, error) {
	own, beyond, err := listAddresses()
	if err != nil {
		return fabric.SwitchView{}, err
	}
	a.mu.RLock()
	links := a.last.ports
	heard := a.lldp.CurrentNeighbours(time.Now(), a.portName)
	a.mu.RUnlock()
	rates := linkSpeeds(links)
	out := fabric.SwitchView{Switch: a.o.Switch, Ports: make([]fabric.PortView, 0, len(links))}
	for _, l := range links {
		p := fabric.PortView{Port: l.Name, MAC: l.MAC.String(), Up: l.Running, SpeedGbps: rates[l.Name] * 8 / 1e9, Addresses: own[l.Number], LearnedAddresses: beyond[l.Number]}
		for _, n := range heard {
			if n.Port == l.Name {
				p.System, p.SystemPort = n.System, n.SystemPort
			}
		}
		if p.Addresses == nil {
			p.Addresses = []netip.Prefix{}
		}
		if p.LearnedAddresses == nil {
			p.LearnedAddresses = []fabric.LearnedAddress{}
		}
		out.Ports = append(out.Ports, p)
	}
	return out, nil
}
