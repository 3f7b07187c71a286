package ibfabric

import (
	"context"
	"errors"
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
