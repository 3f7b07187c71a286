package switchagent

import (
	"errors"
	"log/slog"
	"time"

	"github.com/graylink/graylink/internal/sighting"
	"github.com/graylink/graylink/internal/sighting/source"
)

// Simulated represents a simulated switch: its ports, which do not change, the probes that cross it, and the neighbours
// that LLDP would report.
type Simulated struct {
	Switch     string
	Ports      []string
	Source     source.Source // has the n-th port under the number n+1
	Neighbours func() []sighting.Neighbour
	Fresh      time.Duration
	Flows      int
}

// StartSimulated starts the agent of a simulated switch.
func StartSimulated(s Simulated, log *slog.Logger) (*Agent, error) {
	links := func(bool) ([]Link, error) {
		out := make([]Link, len(s.Ports))
		for i, name := range s.Ports {
			out[i] = Link{Number: uint32(i + 1), Name: name, Up: true, Running: true}
		}
		return out, nil
	}
	o := Options{Switch: s.Switch, Ports: []string{"*"}, Fresh: s.Fresh, Flows: s.Flows}
	return startOn(o, s.Source, simulatedNeighbours{s.Neighbours}, links, nil, log)
}

// simulatedNeighbours reports the neighbours of a simulated switch.
type simulatedNeighbours struct{ neighbours func() []sighting.Neighbour }

func (simulatedNeighbours) SetPorts([]uint32) error { return nil }

func (t simulatedNeighbours) CurrentNeighbours(time.Time, func(uint32) string) []sighting.Neighbour {
	return t.neighbours()
}

func (simulatedNeighbours) MalformedFrames() uint64 { return 0 }

func (simulatedNeighbours) SendFrame(int, []byte) error {
	return errors.New("a simulated switch cannot send frames")
}

func (simulatedNeighbours) Close() error { return nil }
