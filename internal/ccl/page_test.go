package ccl

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/graylink/graylink/internal/fabric"
)

// TestPageIsReadAsItWasWritten writes a page and reads it.
func TestPageIsReadAsItWasWritten(t *testing.T) {
	from := From{Job: "t7", Comm: "0x7f8c", Rank: 2, NRanks: 8, Host: "h3"}
	want := &Page{Node: "h3", Cursor: 1<<63 + 1, Missed: true, More: true, Dropped: map[Reason]uint64{DroppedByWriter: 3}, Records: []Record{
		&Comm{Job: "t7", Comm: "0x7f8c", NRanks: 8, Ranks: []Member{{Rank: 2, Host: "h3"}}},
		&Op{From: from, Seq: 8, Op: "AllReduce", ExecNS: KnownNanos(41), State: Completed},
		&Edge{From: from, Seq: 8, Peer: 3, Direction: Send, Wire: KnownNanos(5), State: string(Completed)},
		&Beat{From: from, AtNS: KnownNanos(7), Launched: map[string]uint64{"AllReduce": 9}},
	}}
	var text bytes.Buffer
	if _, err := want.WriteTo(&text); err != nil {
		t.Fatal(err)
	}
	got, err := ReadPage(&text, func(e fabric.LineError) { t.Error(e) })
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestBadPages reads pages without a head, and one with a record that cannot be read.
func TestBadPages(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "the page is empty",
		`{"kind":"op"}`:                     `field "kind": page is expected, and not "op"`,
		`{"kind":"page","cursor":"x"}`:      "first line",
		`{"kind":"page","cursor":-1}`:       "first line",
		`{"kind":"page","cursor":"1"} more`: "first line",
	} {
		if _, err := ReadPage(strings.NewReader(text), func(fabric.LineError) {}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	var bad []fabric.LineError
	p, err := ReadPage(strings.NewReader(`{"kind":"page","node":"h1","cursor":"5"}`+"\n{\"kind\":\"op\"}\n"), func(e fabric.LineError) { bad = append(bad, e) })
	if err != nil || p.Node != "h1" || p.Cursor != 5 || len(p.Records) != 0 || len(bad) != 1 || bad[0].Line != 2 {
		t.Error(p, bad, err)
	}
}
