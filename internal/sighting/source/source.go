// Package source sees the probes that cross a switch.
//
// If Linux forwards, a source sees all probes, by a program that tc runs for every packet that a port receives (EBPF),
// or by a packet socket (Packet). If a chip forwards, the kernel sees no probes. A rule then makes the chip sample them
// (rules.go has its text), and the kernel's psample channel carries the samples (Psample).
package source

import (
	"context"
	"time"

	"github.com/graylink/graylink/internal/sighting"
)

// Source is the interface of a source of sightings. Probes are UDP packets from or to a STAMP port.
type Source interface {
	Kind() sighting.Kind
	// SetPorts sets the interfaces to watch, by number. Those that are no longer in the list are forgotten.
	SetPorts(numbers []uint32) error
	// SweepFlows yields what was seen since the sweep before. It may yield flows again until they are forgotten.
	SweepFlows(ctx context.Context, see func(key *sighting.Key, s sighting.Sample)) error
	// ForgetFlow frees what the source keeps of a flow at a port.
	ForgetFlow(key *sighting.Key, port uint32)
	// Dropped returns the number of packets or flows that were lost since the start.
	Dropped() uint64
	Close() error
}

// wallOffset returns what has to be added to a monotonic time to get Unix time, in ns.
type wallOffset struct{ offset int64 }

// offsetTolerance is the difference between two readings of the offset up to which it counts as the same. A flow that
// was seen long ago must not appear to be seen again.
const offsetTolerance = int64(time.Millisecond)

func (w *wallOffset) setOffset(monotonic int64) {
	if now := time.Now().UnixNano() - monotonic; now-w.offset > offsetTolerance || w.offset-now > offsetTolerance {
		w.offset = now
	}
}
