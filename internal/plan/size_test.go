package plan

import (
	"bytes"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// sizeNetwork returns a fabric of leaves with perLeaf NICs each and as many spines as a leaf has uplinks, with rings of 16 nodes as jobs.
func sizeNetwork(t testing.TB, leaves, perLeaf, spines int) (*Network, []Job) {
	t.Helper()
	topo := &fabric.Topology{Version: 1}
	for s := range spines {
		topo.Switches = append(topo.Switches, fabric.Switch{Name: fmt.Sprint("s", s), Role: fabric.Spine})
	}
	for l := range leaves {
		topo.Switches = append(topo.Switches, fabric.Switch{Name: fmt.Sprint("l", l), Role: fabric.Leaf})
		for s := range spines {
			topo.Links = append(topo.Links, fabric.Link{A: fmt.Sprintf("l%d:u%d", l, s), B: fmt.Sprintf("s%d:d%d", s, l), SpeedGbps: 400 * float64(perLeaf) / float64(spines)})
		}
		for h := range perLeaf {
			name := fmt.Sprint("h", l*perLeaf+h)
			topo.Nodes = append(topo.Nodes, fabric.Node{Name: name, NICs: []fabric.NIC{{Node: name, Device: "e0"}}})
			topo.Links = append(topo.Links, fabric.Link{A: name + "/e0", B: fmt.Sprintf("l%d:h%d", l, h), SpeedGbps: 400})
		}
	}
	var jobs []Job
	for first := 0; first < leaves*perLeaf; first += 16 * perLeaf {
		for h := range perLeaf {
			j := Job{Job: fmt.Sprint("j", len(jobs)), QPs: 8}
			for k := range 16 {
				j.Order = append(j.Order, fmt.Sprint("h", first+k*perLeaf+h))
			}
			jobs = append(jobs, j)
		}
	}
	n, err := NewNetwork(fabric.NewGraph(topo), DefaultGoodput)
	if err != nil {
		t.Fatal(err)
	}
	return n, jobs
}

// sizeText returns the catalogue of a synthetic fabric as text.
func sizeText(t testing.TB, n *Network, jobs []Job, ports int) []byte {
	t.Helper()
	var text []byte
	hash := NewHash(n, 1)
	err := n.Pairs(jobs, func(src string, dst []string) (err error) {
		for i := range ports {
			if e, ok := hash.Entry(src, dst, uint16(FirstRoCEPort+i)); ok {
				if text, err = AppendEntry(text, &e); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// readText reads a catalogue.
func readText(t testing.TB, n *Network, text []byte) *Catalogue {
	t.Helper()
	c := NewCatalogue(n)
	err := ReadCatalogue(bytes.NewReader(text), func(_ int, e *Entry) error { c.Add(e); return nil }, func(e fabric.LineError) { t.Error(e) })
	if err != nil || c.Unusable > 0 {
		t.Fatal(err, c.Unusable)
	}
	return c
}

// processorTime returns the processor time that the test has used.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// planSize makes a plan of a fabric and another after a lost link, checks both, and logs what they took. With optimum, test/plancheck computes the
// fractional optimum of both as well.
func planSize(t *testing.T, leaves, perLeaf, spines, ports int, optimum bool) {
	n, jobs := sizeNetwork(t, leaves, perLeaf, spines)
	text := sizeText(t, n, jobs, ports)
	runtime.GC()
	last, lastUsed := time.Now(), processorTime(t)
	step := func(what string) {
		now, used := time.Now(), processorTime(t)
		t.Logf("%-14s %8s, %8s of processors", what, now.Sub(last).Round(time.Millisecond), (used - lastUsed).Round(time.Millisecond))
		last, lastUsed = now, used
	}
	c := readText(t, n, text)
	step("read")
	p, err := Make(&Request{Network: n, Catalogue: c, Jobs: jobs})
	if err != nil {
		t.Fatal(err)
	}
	step("planned")
	lost := "l0:u0--s0:d0"
	if err := n.Exclude(lost, "test"); err != nil {
		t.Fatal(err)
	}
	again, err := Make(&Request{Network: n, Catalogue: c, Jobs: jobs, Previous: p})
	if err != nil {
		t.Fatal(err)
	}
	step("planned again")
	t.Logf("%d NICs, %d queue pairs, %d lines, %d MB: worst ratio %.3f and %.3f", leaves*perLeaf, len(p.Assignments), leaves*perLeaf*ports, len(text)>>20, p.worstRatio(), again.worstRatio())
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	t.Logf("memory from the system: %d MB, of which the text of the catalogue is %d", m.Sys>>20, len(text)>>20)
	if wrong := Check(n, c, again); len(wrong) > 0 {
		t.Error(wrong[0])
	}
	v := newVerifier(t)
	v.check(t, "behind the loss", n, again, optimum)
	clear(n.excluded)
	v.check(t, "before the loss", n, p, optimum)
	t.Log(v)
	moved, need := 0, 0
	for i := range p.Assignments {
		a, b := &p.Assignments[i], &again.Assignments[i]
		if a.SPort == b.SPort {
			continue
		}
		moved++
		for _, l := range a.Links {
			if l == "l0:u0->s0:d0" || l == "s0:d0->l0:u0" {
				need++
			}
		}
	}
	if other := moved - need; need == 0 || other*50 > len(p.Assignments) {
		t.Errorf("%d queue pairs were on the lost link, and %d others of %d have moved, want at most 2 %%", need, other, len(p.Assignments))
	}
}

func TestPlanOfAFewHundredNICs(t *testing.T) { planSize(t, 32, 8, 8, 32, false) }
