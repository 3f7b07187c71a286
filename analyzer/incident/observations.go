package incident

import (
	"bytes"
	"compress/gzip"

	"github.com/graylink/graylink/internal/plainjson"
)

// keptCycles is the number of cycles whose observations are kept, the last ones in which an incident opened or was
// narrowed. Those of 5,000 flows take some 300 kB.
const keptCycles = 64

// recordedCycle holds what a cycle observed in which incidents opened or were narrowed.
type recordedCycle struct {
	cycle     int
	file      []byte // observation file, compressed by gzip; it is never changed
	incidents []*Incident
}

// Observations returns what was observed in the cycle in which the incident opened, or was narrowed last, as an
// observation file that is compressed by gzip. It returns nil if that is no longer kept. It must not be changed.
func (in *Incident) Observations() []byte { return in.observations }

// keepObservations keeps what a cycle observed for a published incident.
func (t *Tracker) keepObservations(in *Incident, m *Moment) {
	if in.foreign {
		return
	}
	if n := len(t.recorded); n == 0 || t.recorded[n-1].cycle != m.Cycle {
		t.recorded = append(t.recorded, &recordedCycle{cycle: m.Cycle, file: m.observationFile()})
		if n == keptCycles {
			t.recorded[0].release()
			t.recorded = t.recorded[1:]
		}
	}
	c := t.recorded[len(t.recorded)-1]
	c.incidents = append(c.incidents, in)
	in.observations = c.file
}

// release drops the observations of a cycle from the incidents that still have them.
func (c *recordedCycle) release() {
	for _, in := range c.incidents {
		if len(c.file) > 0 && len(in.observations) > 0 && &in.observations[0] == &c.file[0] {
			in.observations = nil
		}
	}
}

// observationFile returns the observations of a cycle as a compressed file, or nil if there are none.
func (m *Moment) observationFile() []byte {
	if len(m.Findings) == 0 {
		return nil
	}
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is valid
	}
	enc := plainjson.NewEncoder(z)
	for i := range m.Findings {
		if err := enc.Encode(m.Findings[i].Obs); err != nil {
			panic(err) // observations are numbers and texts, and nothing is written but memory
		}
	}
	if err := z.Close(); err != nil {
		panic(err)
	}
	return out.Bytes()
}
