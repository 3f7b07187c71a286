package main

import (
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sim/incident"
)

// contestant represents a method that is tested.
type contestant struct {
	name string
	run  func(*fabric.Graph, []*fabric.Observation) answer
	// runWithTruth replaces run for a contestant that gets the truth.
	runWithTruth func(*incident.Case) answer
}

func (c *contestant) answerCase(g *fabric.Graph, cs *incident.Case) answer {
	if c.runWithTruth != nil {
		return c.runWithTruth(cs)
	}
	return c.run(g, cs.Observations)
}

// answer represents what a contestant names.
type answer interface {
	gradeCase(*incident.Case) score
	// writeDetails writes the content of the answer, for the analysis of errors.
	writeDetails(io.Writer)
}

type bench struct {
	only        []string // contestants; nil means all
	first, last uint64
	workers     int
	log         io.Writer
	detail      bool
}

// runCell runs every contestant on every case. Cases are made by several workers. One contestant at a time is
// measured.
func (b *bench) runCell(c cell) []total {
	var who []contestant
	for _, w := range c.contestants {
		if b.only == nil || contains(b.only, w.name) {
			who = append(who, w)
		}
	}
	n := int(b.last - b.first + 1)
	scores := make([][]score, len(who))
	for i := range scores {
		scores[i] = make([]score, n)
	}
	topo := c.topo()
	begun := time.Now()
	fmt.Fprintf(b.log, "%s: %d switches, %d links\n", c.name, len(topo.Switches), len(topo.Links))
	var next, done int
	var mu, measuring sync.Mutex
	take := func() int {
		mu.Lock()
		defer mu.Unlock()
		next++
		return next - 1
	}
	ask := func(f *incident.Fabric, i int, cs *incident.Case) {
		measuring.Lock()
		defer measuring.Unlock()
		for j, w := range who {
			start := time.Now()
			a := w.answerCase(f.Graph, cs)
			ms := float64(time.Since(start).Microseconds()) / 1000
			s := a.gradeCase(cs)
			s.ms = ms
			scores[j][i] = s
			if b.detail && s.wrong+s.missed > 0 {
				b.writeFailure(c.name, w.name, cs, a)
			}
		}
		done++
		if done%10 == 0 || done == n {
			fmt.Fprintf(b.log, "%s: %d of %d cases, %s\n", c.name, done, n, time.Since(begun).Round(time.Second))
		}
	}
	var wg sync.WaitGroup
	for range min(b.workers, n) {
		wg.Go(func() {
			f := incident.NewFabric(topo)
			for i := take(); i < n; i = take() {
				ask(f, i, c.make(f, b.first+uint64(i)))
			}
		})
	}
	wg.Wait()
	// Once more alone, for the memory.
	f := incident.NewFabric(topo)
	cs := c.make(f, b.first)
	out := make([]total, len(who))
	for j, w := range who {
		out[j] = sumScores(c.name, w.name, scores[j])
		out[j].Flows, out[j].Links = len(cs.Observations), len(topo.Links)
		out[j].MB = peakMemory(func() { w.answerCase(f.Graph, cs) })
	}
	runtime.KeepAlive(cs)
	return out
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

// writeFailure prints a case in which something was named wrongly or missed.
func (b *bench) writeFailure(cellName, who string, cs *incident.Case, a answer) {
	fmt.Fprintf(b.log, "%s %s seed %d\n", cellName, who, cs.Truth.Seed)
	for _, f := range cs.Truth.Faults {
		fmt.Fprintf(b.log, "  fault   %s %s %s, %s, windows %d to %d; delay %d ns, loss %.4f, marks %.2f", f.Kind, f.ID, f.Direction, f.Scenario, f.First, f.Last, f.DelayNS, f.Loss, f.ECN)
		var sent, lost uint64
		for _, o := range cs.Observations {
			for _, d := range o.Path.LinkDirections(o.Src, o.Dst) {
				if d.String() == f.Direction {
					sent, lost = sent+o.Sent, lost+o.Lost
				}
			}
		}
		fmt.Fprintf(b.log, "; traced flows that cross it lost %d of %d\n", lost, sent)
	}
	a.writeDetails(b.log)
}

// peakMemory runs fn and returns by how many megabytes the heap grew in it, at most.
func peakMemory(fn func()) float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	before, top := m.HeapAlloc, m.HeapAlloc
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(5 * time.Millisecond)
		defer t.Stop()
		var m runtime.MemStats
		for {
			runtime.ReadMemStats(&m)
			top = max(top, m.HeapAlloc)
			select {
			case <-stop:
				return
			case <-t.C:
			}
		}
	})
	fn()
	close(stop)
	wg.Wait()
	runtime.ReadMemStats(&m)
	return float64(max(top, m.HeapAlloc)-before) / 1e6
}
