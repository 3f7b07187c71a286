package ibsubnet

import (
	"sync"
	"time"

	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ibmad"
)

// loadSeconds is the number of seconds over which a Load is averaged.
const loadSeconds = 10

// Load counts the datagrams that a process sends, in all and to each switch. It is safe for concurrent use.
//
// Datagrams are counted for the node that they are sent to. Those along a directed route also occupy the switches on their way,
// which is not counted.
type Load struct {
	mu      sync.Mutex
	fabric  *ibfabric.Fabric
	started time.Time
	seconds [loadSeconds]loadSecond // by the Unix second
	most    uint64
}

// loadSecond is what was sent in one second.
type loadSecond struct {
	unix     int64
	total    uint64
	bySwitch map[ibfabric.GUID]uint64
}

// LoadView is a Load at one moment. Rates are means of the last ten seconds, or of the time since the first count.
type LoadView struct {
	// PerSecond is the number of datagrams a second.
	PerSecond float64
	// Switch is the name of the switch that was sent the most, and SwitchPerSecond how many that were a second. It is empty if no
	// switch was sent any.
	Switch          string
	SwitchPerSecond float64
	// SwitchMost is the largest number of datagrams that any switch was sent in one second, since the start.
	SwitchMost uint64
}

// SetFabric sets the fabric by which addresses are mapped to switches.
func (l *Load) SetFabric(f *ibfabric.Fabric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fabric = f
}

// Add adds what a client has sent since the last call, as of a moment. Before there is a fabric it adds nothing.
func (l *Load) Add(client *ibmad.Client, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fabric == nil {
		return
	}
	if l.started.IsZero() {
		l.started = now
	}
	unix := now.Unix()
	s := &l.seconds[unix%loadSeconds]
	if s.unix != unix {
		*s = loadSecond{unix: unix, bySwitch: map[ibfabric.GUID]uint64{}}
	}
	for address, n := range client.TakeSent() {
		s.total += n
		node, known := l.fabric.NodeAt(address)
		if !known || int(node) >= l.fabric.Switches {
			continue
		}
		g := l.fabric.Nodes[node].GUID
		s.bySwitch[g] += n
		l.most = max(l.most, s.bySwitch[g])
	}
}

// View returns the rates at a moment.
func (l *Load) View(now time.Time) LoadView {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := LoadView{SwitchMost: l.most}
	if l.fabric == nil || l.started.IsZero() {
		return out
	}
	total, bySwitch := uint64(0), map[ibfabric.GUID]uint64{}
	for i := range l.seconds {
		s := &l.seconds[i]
		if s.unix == 0 || now.Unix()-s.unix >= loadSeconds {
			continue
		}
		total += s.total
		for g, n := range s.bySwitch {
			bySwitch[g] += n
		}
	}
	over := min(max(now.Sub(l.started), time.Second), loadSeconds*time.Second).Seconds()
	out.PerSecond = float64(total) / over
	most := uint64(0)
	for i := range l.fabric.Switches {
		if n := bySwitch[l.fabric.Nodes[i].GUID]; n > most {
			most, out.Switch = n, l.fabric.NodeName(int32(i))
		}
	}
	out.SwitchPerSecond = float64(most) / over
	return out
}
