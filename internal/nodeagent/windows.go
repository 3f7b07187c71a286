package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/graylink/graylink/internal/clocksync"
	"github.com/graylink/graylink/internal/durable"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/window"
)

const (
	// baselinesSuffix is appended to the name of the state file to form the name of the file with what is normal for
	// the flows.
	baselinesSuffix = ".baselines"
	// keepBaselinesEvery is the time between two writes of that file.
	keepBaselinesEvery = 5 * time.Minute
	// readEvery is the time between two readings of the counters.
	readEvery = time.Second
)

// windows reads the counters of the flows every second, and keeps what is normal for them in a file.
type windows struct {
	node     *Node
	recorder *window.Recorder
	file     string // empty: nothing is kept
	log      *slog.Logger
}

// newWindows returns the windows of a node. It recalls what is normal from the file beside the state file.
func newWindows(n *Node, state string, log *slog.Logger) *windows {
	w := &windows{node: n, recorder: window.NewRecorder(), log: log}
	if state == "" {
		return w
	}
	w.file = state + baselinesSuffix
	learnt, err := readBaselines(w.file)
	if err != nil {
		log.Warn("cannot read what is normal for the flows; it is learnt anew", "err", err)
		return w
	}
	w.recorder.Recall(learnt)
	return w
}

// run reads the counters at each full second until ctx ends.
func (w *windows) run(ctx context.Context) {
	kept := time.Now()
	for {
		now := time.Now()
		select {
		case <-ctx.Done():
			w.keepBaselines()
			return
		case <-time.After(now.Truncate(readEvery).Add(readEvery).Sub(now)):
		}
		w.node.ReadState(func(s State) { w.recorder.AddReading(readingOf(&s, time.Now())) })
		w.node.retraceMoved(w.recorder.MovedFlows())
		if time.Since(kept) >= keepBaselinesEvery {
			kept = time.Now()
			w.keepBaselines()
		}
	}
}

// readingOf returns the counters of a node at a moment.
func readingOf(s *State, at time.Time) *window.Reading {
	nics := s.Snapshot().NICs
	out := &window.Reading{At: at, NICs: make([]window.NICReading, len(nics))}
	synced := s.Config().ClockSync
	for i := range nics {
		n := &nics[i]
		k := window.NICReading{NIC: n.NIC, Late: n.Stalled, ClockUsable: !synced}
		for _, packets := range n.Unread {
			k.Unread += packets
		}
		if s.Clocks != nil {
			if v, ok := s.Clocks.ViewOf(n.NIC); ok && v.Known {
				bound := time.Duration(v.Bound + v.Allowance)
				k.ClockUsable, k.ClockBound = v.State == clocksync.Locked || v.State == clocksync.Holdover, &bound
			}
		}
		out.NICs[i] = k
		for j := range n.Edges {
			out.Flows = append(out.Flows, flowReading(&n.Edges[j]))
		}
		for _, r := range n.Received {
			out.Received = append(out.Received, window.ReceivedReading{Flow: r.Edge, Received: r.Received})
		}
	}
	return out
}

// flowReading returns the counters of a flow.
func flowReading(e *probe.EdgeStats) window.FlowReading {
	f := window.FlowReading{Flow: e.Edge, Class: e.Class, Plane: e.Plane, Tier: e.Tier, Sent: [2]uint64{e.Sent, e.RepliesSent}, Lost: e.Lost, ECN: e.ECN,
		Replies: e.Acked + e.Late, PeerBound: e.PeerBound}
	for d := range f.Delays {
		for _, h := range []*probe.Histogram{&e.OWD[d].Hardware, &e.OWD[d].Kernel, &e.OWD[d].User} {
			f.Delays[d] = append(f.Delays[d], window.Buckets{Zero: h.Zero, Positive: h.PositiveBuckets, Negative: h.NegativeBuckets})
		}
	}
	return f
}

// baselinesFile is the content of the file with what is normal for the flows.
type baselinesFile struct {
	Version int                        `json:"version"`
	Flows   map[string]window.Baseline `json:"flows"`
}

// readBaselines reads what is normal for flows. Without a file, nothing is.
func readBaselines(file string) (map[fabric.Flow]window.Baseline, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var in baselinesFile
	if err := json.Unmarshal(b, &in); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if in.Version != 1 {
		return nil, fmt.Errorf("%s: version %d: version 1 is expected", file, in.Version)
	}
	out := make(map[fabric.Flow]window.Baseline, len(in.Flows))
	for name, l := range in.Flows {
		e, err := fabric.ParseFlow(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		out[e] = l
	}
	return out, nil
}

// keepBaselines writes what is normal for the flows.
func (w *windows) keepBaselines() {
	if w.file == "" {
		return
	}
	out := baselinesFile{Version: 1, Flows: map[string]window.Baseline{}}
	for e, b := range w.recorder.Baselines() {
		out.Flows[e.String()] = b
	}
	b, err := json.Marshal(out)
	if err == nil {
		err = durable.WriteFile(w.file, b)
	}
	if err != nil {
		w.log.Warn("cannot keep what is normal for the flows; a restart learns it anew", "err", err)
	}
}
