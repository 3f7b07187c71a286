package ibfabric

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
)

// readTree returns the fabric of the files that ibnetdiscover and dump_lfts of Debian wrote.
func readTree(tb testing.TB) *Fabric {
	tb.Helper()
	net, err := os.ReadFile("testdata/tree.ibnetdiscover")
	if err != nil {
		tb.Fatal(err)
	}
	lfts, err := os.ReadFile("testdata/tree.lfts")
	if err != nil {
		tb.Fatal(err)
	}
	f, _, err := ReadNetDiscover("tree", bytes.NewReader(net))
	if err != nil {
		tb.Fatal(err)
	}
	if f, _, err = f.ReadLFTs("lfts", bytes.NewReader(lfts)); err != nil {
		tb.Fatal(err)
	}
	return f
}

// TestEncodedFabric checks that a fabric that was encoded and decoded is the same one, with the same walks and names.
func TestEncodedFabric(t *testing.T) {
	f := readTree(t)
	f.LFTs = slices.Clone(f.LFTs)
	f.LFTs[1] = nil // a table that was not read stays unread
	text, err := EncodeFabric(f)
	if err != nil {
		t.Fatal(err)
	}
	g, found, err := DecodeFabric(text)
	if err != nil || len(found) > 0 {
		t.Fatal(err, found)
	}
	if !g.Equal(f) {
		t.Error("the decoded fabric is another one")
	}
	pairs := 0
	for a := range LID(64) {
		for b := range LID(64) {
			x, errX := f.Walk(a, b)
			y, errY := g.Walk(a, b)
			if !slices.Equal(x, y) || (errX == nil) != (errY == nil) {
				t.Fatalf("%d to %d: %v %v, decoded %v %v", a, b, x, errX, y, errY)
			}
			if errX == nil {
				pairs++
			}
		}
	}
	if pairs < 20 {
		t.Errorf("only %d pairs have a walk", pairs)
	}
	for i := range f.Nodes {
		if f.NodeName(int32(i)) != g.NodeName(int32(i)) {
			t.Errorf("node %d is %s, decoded %s", i, f.NodeName(int32(i)), g.NodeName(int32(i)))
		}
	}
}

func TestBadEncodedFabrics(t *testing.T) {
	text, err := EncodeFabric(readTree(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ old, new, want string }{
		{`{"nodes"`, `{"nodes":[],"n"`, "nodes: 0: 1 to"},
		{`"type":2`, `"type":9`, "nodes[0]: type: 9"},
		{`"type":2`, `"type":1`, "nodes[1]: switches are expected first"},
		{`"far":{"Node":`, `"far":{"Node":9`, "far: there is no port"},
		{`"lid":`, `"lmc":8,"lid":`, "lmc: 8: 0 to 7"},
		{`"lid":`, `"lid":65535,"x":`, "lid: 65535: at most"},
		{`"speed":`, `"speed":77,"x":`, "speed: 77: at most"},
		{`"lfts":[`, `"lfts":["",`, "tables: one for each of"},
		{`"from":{"Node":`, `"from":{"Node":99`, "from: there is no port"},
		{`{`, `[`, "fabric: "},
	} {
		broken := strings.Replace(string(text), x.old, x.new, 1)
		if broken == string(text) {
			t.Fatalf("the text has no %s", x.old)
		}
		if _, _, err := DecodeFabric([]byte(broken)); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s for %s: %v, want %q", x.new, x.old, err, x.want)
		}
	}
}

func FuzzDecodeFabric(f *testing.F) {
	text, err := EncodeFabric(readTree(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"nodes":[{"guid":1,"type":2,"ports":[{"lid":1},{"far":{"Node":0,"Port":1}}]}],"lfts":["AQE="]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		g, _, err := DecodeFabric(text)
		if err != nil {
			return
		}
		for a := range LID(8) {
			for b := range LID(8) {
				_, _ = g.Walk(a, b) // it has to end
			}
		}
		again, err := EncodeFabric(g)
		if err != nil {
			t.Fatal(err)
		}
		h, _, err := DecodeFabric(again)
		if err != nil || !h.Equal(g) {
			t.Fatalf("encoded again: %v", err)
		}
	})
}
