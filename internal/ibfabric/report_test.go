package ibfabric

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibfabric/ibtest"
)

func TestFabricReport(t *testing.T) {
	f := tree(t)
	f.Unanswered = append(f.Unanswered, Unanswered{Near: End{Node: 0, Port: 1}, Query: "NodeInfo", Err: errors.New("no answer")})
	r := f.Describe([]string{"two cables at one port"})
	if len(r.Nodes) != 11 || len(r.Silent) != 1 || r.Silent[0].Query != "NodeInfo" || r.Silent[0].Error != "no answer" || len(r.Notes) != 1 || len(r.Ports) == 0 {
		t.Errorf("%+v", r)
	}
	var b strings.Builder
	if err := r.WriteText(&b, f, 1500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"does not answer: NodeInfo near ", "note: two cables at one port\n", "5 switches, 6 other nodes, 12 cables, read in 1.5s\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%s\nwant %q", b.String(), want)
		}
	}
}

func TestPathReport(t *testing.T) {
	f := tree(t)
	p, hops, err := f.FindPath("h0/hca", "h3/hca", 0)
	if err != nil || len(hops) != 3 || p.State != fabric.PathValid || p.Edge != "h0/hca>h3/hca#0" || p.Hops[1].LID != 11 {
		t.Fatalf("%+v, %v, %v", p, hops, err)
	}
	lane := uint8(1)
	p.Hops[0].VL, p.Notes, p.Candidates = &lane, []string{"seen"}, [][]HopReport{p.Hops[:1]}
	var b strings.Builder
	if err := p.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	want := `path of h0/hca>h3/hca#0, LID 2 to LID 14: valid
hop  switch  LID  in  out  VL
  1  leaf0   4    1   4    1
  2  spine1  11   1   2    *
  3  leaf1   5    4   2    *
candidate 1
  1  leaf0  4  1  4  1
  note: seen
`
	if b.String() != want {
		t.Errorf("%s\nwant\n%s", b.String(), want)
	}
	for _, ends := range [][2]string{{"h9/hca", "h3/hca"}, {"h0/hca", "h9/hca"}} {
		if _, _, err := f.FindPath(ends[0], ends[1], 0); err == nil || !strings.Contains(err.Error(), "h9/hca: the fabric has no such") {
			t.Errorf("%v: %v", ends, err)
		}
	}
}

func TestReadPath(t *testing.T) {
	sim := ibtest.Start(t, ibtest.FatTree(2, 2, 2), ibtest.Options{})
	w, _ := watchOn(t, sim, "h0")
	p, err := ReadPath(context.Background(), w.Client, "h0/hca", "h3/hca", 1)
	if err != nil || p.State != fabric.PathValid || p.SL == nil || *p.SL != 1 || len(p.Hops) != 3 || p.Hops[0].VL == nil {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := ReadPath(context.Background(), w.Client, "h9/hca", "h3/hca", 0); err == nil {
		t.Error("a node that the fabric lacks is accepted")
	}
}

func TestPathsThatAreNotKnown(t *testing.T) {
	f := tree(t)
	leaf0, _ := f.ByName("leaf0")
	f.Adaptive = make([]*Adaptive, f.Switches)
	f.Adaptive[leaf0.Node] = NewAdaptive(1<<2, map[LID][]uint8{14: {3, 4}})
	p, _, err := f.FindPath("h0/hca", "14", 2)
	if err != nil || p.State != fabric.PathUnknown || len(p.Hops) != 0 || len(p.Candidates) != 2 || len(p.Notes) != 1 || !strings.HasPrefix(p.Notes[0], "adaptive routing") {
		t.Errorf("with a choice: %+v, %v", p, err)
	}
	tables, err := os.ReadFile("testdata/tree.lfts")
	if err != nil {
		t.Fatal(err)
	}
	half := tables[:bytes.LastIndexByte(tables[:len(tables)/2], '\n')]
	net, err := os.ReadFile("testdata/tree.ibnetdiscover")
	if err != nil {
		t.Fatal(err)
	}
	if f, _, err = ReadNetDiscover("tree", bytes.NewReader(net)); err != nil {
		t.Fatal(err)
	}
	if f, _, err = f.ReadLFTs("half", bytes.NewReader(half)); err != nil {
		t.Fatal(err)
	}
	if p, _, err = f.FindPath("2", "h4/hca", 0); err != nil || p.State != fabric.PathUnknown || len(p.Notes) != 1 {
		t.Errorf("without tables: %+v, %v", p, err)
	}
}

func TestReadPathWithoutFabric(t *testing.T) {
	sim := ibtest.Start(t, ibtest.FatTree(2, 2, 2), ibtest.Options{})
	w, _ := watchOn(t, sim, "h0")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ReadPath(ctx, w.Client, "h0/hca", "h3/hca", 0); err == nil {
		t.Error("a fabric that cannot be read has a path")
	}
}

func TestChangedPathIsStale(t *testing.T) {
	for before, after := range map[fabric.PathState]fabric.PathState{fabric.PathValid: fabric.PathStale, fabric.PathUnknown: fabric.PathUnknown} {
		p := PathReport{State: before}
		if p.markChanged(); p.State != after || len(p.Notes) != 1 {
			t.Errorf("%s becomes %+v", before, p)
		}
	}
	if got := describeHops([]HopReport{{Switch: "leaf0", In: "1", Out: "3"}, {Switch: "spine0", In: "1", Out: "2"}}); got != "leaf0[1>3]spine0[1>2]" {
		t.Error(got)
	}
}
