package ibsubnet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibfabric"
)

// givenReading is a source that reads what it is given.
type givenReading struct {
	ibfabric.Reading
	err error
}

func (g *givenReading) Read(context.Context) (ibfabric.Reading, error) { return g.Reading, g.err }
func (g *givenReading) Pause() time.Duration                           { return Interval }
func (g *givenReading) Origin() string                                 { return "given" }
func (g *givenReading) Close() error                                   { return nil }

// TestChoicesOfAFile: switches choose as the file says, until the source reads something else. Then no path across them is known until
// the file has been written anew.
func TestChoicesOfAFile(t *testing.T) {
	const head, table = "Switch 0x0000000000200000\nGroups Definition:\n0 0 0 3,4,\n1 0 0 2,4,\nLFT Definition:\nPLFT_NUM: 0, top: 0x13\n", "0x000e 4 Free "
	const data = "../ibfabric/testdata/tree."
	f, _, err := ReadFiles(data+"ibnetdiscover", data+"lfts")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	at := func(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }
	file := filepath.Join(t.TempDir(), "ibdiagnet2.far")
	write := func(group string, minutes int) {
		t.Helper()
		if err := os.WriteFile(file, []byte(head+table+group+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, at(minutes), at(minutes)); err != nil {
			t.Fatal(err)
		}
	}
	given := &givenReading{Reading: ibfabric.Reading{Fabric: f, Found: []string{"x"}}}
	c := &Adaptive{Source: given, File: file, Writing: LongestWriting}
	read := func(minutes int) ibfabric.Reading {
		t.Helper()
		given.Begun, given.Ended = at(minutes), at(minutes)
		r, err := c.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	ways := func(r ibfabric.Reading) int {
		all, _, err := r.Fabric.CandidateWalks(2, 14, 0, 8)
		if errors.Is(err, ibfabric.ErrStale) {
			return -1
		}
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	if _, err := c.Read(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	write("0", 0)
	first := read(0)
	if n := ways(first); n != 2 || len(first.Found) != 1 || first.Found[0] != "x" {
		t.Errorf("%d ways, %q", n, first.Found)
	}
	if again := read(1); again.Fabric != first.Fabric {
		t.Error("a reading that changes nothing has another fabric")
	}
	// The source reads something else.
	lfts := append([][]uint8(nil), f.LFTs...)
	lfts[len(lfts)-1] = append([]uint8(nil), lfts[len(lfts)-1]...)
	lfts[len(lfts)-1][15]++
	given.Fabric = f.WithTables(lfts)
	changed := read(10)
	if n := ways(changed); n != -1 || len(changed.Found) != 2 || !strings.Contains(changed.Found[1], "may be of before a change behind ") {
		t.Errorf("%d ways behind a change, %q", n, changed.Found)
	}
	if _, _, err := changed.Fabric.CandidateWalks(8, 12, 0, 8); !errors.Is(err, ibfabric.ErrStale) {
		t.Errorf("a walk to another LID, whose group may have changed: %v", err)
	}
	write("0", 2) // it may have been begun before the change
	if n := ways(read(11)); n != -1 {
		t.Errorf("%d ways by a file that may be older", n)
	}
	c.Writing = 0
	if n := ways(read(12)); n != 2 {
		t.Errorf("%d ways by a file that is taken for current", n)
	}
	c.Writing = LongestWriting
	write("0", 12)
	if r := read(13); ways(r) != 2 || len(r.Found) != 1 {
		t.Errorf("%d ways by a new file, %q", ways(r), r.Found)
	}
	given.err = errors.New("away")
	if _, err := c.Read(t.Context()); err == nil {
		t.Error("the source's error is lost")
	}
	given.err = nil
	if got := c.Origin(); got != "given, with the groups of adaptive routing of "+file {
		t.Error(got)
	}
	if err := os.WriteFile(file, []byte("Switch x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "ibdiagnet2.far:1: Switch: a number of 64 bits") {
		t.Errorf("a bad file: %v", err)
	}
}
