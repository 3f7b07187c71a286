package ibagent

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibfabric"
)

// trapPoll is the interval at which the log of OpenSM is read for traps.
const trapPoll = time.Second

// trapPlace identifies the port that a trap is about: a port of a switch, whose number is 0 if the trap names none, or
// a NIC. Both are "" for a LID that no known port has.
type trapPlace struct{ sw, port, nic string }

// trapKey identifies a counter of traps.
type trapKey struct {
	trapPlace
	number uint16
}

// followTraps counts the traps in OpenSM's log until the context ends. A log that cannot be read is opened again, and
// the first failure is logged.
func (a *Agent) followTraps(ctx context.Context) {
	ticker := time.NewTicker(trapPoll)
	defer ticker.Stop()
	var log *ibfabric.OpenSMLog
	failed := false
	for {
		err := error(nil)
		if log == nil {
			if log, err = ibfabric.OpenLog(a.config.OpenSMLog); err == nil {
				log.KeepTraps = true
			}
		}
		if err == nil {
			_, err = log.PollChange()
			a.countTraps(log.TakeTraps())
		}
		if err != nil {
			if !failed {
				a.log.Error("cannot read the log of OpenSM for traps", "err", err)
			}
			if log != nil {
				err = errors.Join(err, log.Close())
				log = nil
			}
		}
		failed = err != nil
		select {
		case <-ctx.Done():
			if log != nil {
				_ = log.Close() // nothing was written
			}
			return
		case <-ticker.C:
		}
	}
}

// countTraps adds traps to the counters of the ports that have their LIDs.
func (a *Agent) countTraps(traps []ibfabric.Trap) {
	if len(traps) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	places := map[ibfabric.LID]trapPlace{}
	for _, p := range a.ports {
		lid := ibfabric.LID(p.LID)
		if !p.Switch {
			places[lid] = trapPlace{nic: p.Element}
		} else if sw, _, ok := fabric.SplitPort(p.Element); ok {
			places[lid] = trapPlace{sw: sw}
		}
	}
	if a.traps == nil {
		a.traps = map[trapKey]uint64{}
	}
	for _, t := range traps {
		place := places[t.LID]
		if place.sw != "" {
			place.port = strconv.Itoa(int(t.Port))
		}
		a.traps[trapKey{place, t.Number}]++
	}
}

// trapPoints returns the counters of traps. A port has those that it has sent since the agent started.
func (a *Agent) trapPoints() (out []Point) {
	if a.config.OpenSMLog == "" {
		return nil
	}
	a.mu.Lock()
	counts := maps.Clone(a.traps)
	a.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(counts), func(x, y trapKey) int {
		return cmp.Or(cmp.Compare(x.sw, y.sw), cmp.Compare(x.port, y.port), cmp.Compare(x.nic, y.nic), cmp.Compare(x.number, y.number))
	})
	unknown := uint64(0)
	for _, k := range keys {
		number := strconv.Itoa(int(k.number))
		switch {
		case k.sw != "":
			out = append(out, newPoint(&portTraps.sw, float64(counts[k]), k.sw, k.port, number))
		case k.nic != "":
			out = append(out, newPoint(&portTraps.nic, float64(counts[k]), k.nic, number))
		default:
			unknown += counts[k]
		}
	}
	return append(out, newPoint(strangeTraps, float64(unknown)))
}
