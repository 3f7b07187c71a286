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
	// Ports sets the interfaces to look at, by number. Those that went are forgotten.
	Ports(numbers []uint32) error
	// Sweep hands over what was seen since the sweep before, or again what was
	// seen ever and not forgotten.
	Sweep(ctx context.Context, see func(key *sighting.Key, s sighting.Sample)) error
	// Forget frees what the source keeps of a flow at a port.
	Forget(key *sighting.Key, port uint32)
	// Dropped counts what was lost since the start.
	Dropped() uint64
	Close() error
}

// wall makes Unix time of the monotonic clock's: what is to be added to it, ns.
type wall struct{ offset int64 }

// restless is by how much the offset may be read differently without being another
// one: what was seen long ago is not to seem to be seen again.
const restless = int64(time.Millisecond)

func (w *wall) set(monotonic int64) {
	if now := time.Now().UnixNano() - monotonic; now-w.offset > restless || w.offset-now > restless {
		w.offset = now
	}
}
