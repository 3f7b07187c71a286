package schedule_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
	"github.com/graylink/graylink/internal/schedule/clos"
)

func TestTry(t *testing.T) {
	start := time.Now()
	lap := func(what string) { t.Log(what, time.Since(start).Round(time.Millisecond)); start = time.Now() }
	topo := clos.Clos(clos.Full())
	lap("clos")
	g := fabric.NewGraph(topo)
	lap("graph")
	s, err := schedule.Make(g, schedule.Options{})
	if err != nil {
		t.Fatal(err)
	}
	lap("make")
	c := s.Expected(g)
	lap("expected")
	t.Log(len(s.NICs), len(s.Edges), s.Findings, len(s.Components), s.Components[0])
	for _, x := range c.Tiers {
		t.Logf("%+v", x)
	}
	t.Log(c.Gap)
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	t.Log(m.Sys>>20, m.HeapAlloc>>20)
}
