// Package source sees the probes that cross a switch.
//
// Where Linux forwards, it sees all of them: by a program that tc runs for every
// packet a port receives (eBPF), or by a packet socket (Packet). Where a chip
// forwards, the kernel sees none; a rule makes the chip hand over samples (rules.go
// has its text), which the kernel's psample channel carries (Psample).
package source

import (
	"context"
	"time"

	"github.com/graylink/graylink/internal/sighting"
)

// Source sees probes: UDP packets from or to a STAMP port.
type Source interface {
	Kind() sighting.Kind
	// SetPorts sets the interfaces to look at, by number. Those that went are forgotten.
	SetPorts(numbers []uint32) error
	// SweepFlows hands over what was seen since the sweep before, or again what was
	// seen ever and not forgotten.
	SweepFlows(ctx context.Context, see func(key *sighting.Key, s sighting.Sample)) error
	// ForgetFlow frees what the source keeps of a flow at a port.
	ForgetFlow(key *sighting.Key, port uint32)
	// Dropped counts what was lost since the start.
	Dropped() uint64
	Close() error
}

// wallOffset makes Unix time of the monotonic clock's: what is to be added to it, ns.
type wallOffset struct{ offset int64 }

// offsetTolerance is by how much the offset may be read differently without being another
// one: what was seen long ago is not to seem to be seen again.
const offsetTolerance = int64(time.Millisecond)

func (w *wallOffset) setOffset(monotonic int64) {
	if now := time.Now().UnixNano() - monotonic; now-w.offset > offsetTolerance || w.offset-now > offsetTolerance {
		w.offset = now
	}
}
