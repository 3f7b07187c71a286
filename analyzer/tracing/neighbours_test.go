package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/evidence/evidencetest"
	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/internal/fabric"
)

const neighbourTopology = `
version: 1
switches:
  - {name: spine1, role: spine}
  - {name: spine2, role: spine}
  - {name: leaf1, role: leaf}
  - {name: leaf2, role: leaf}
nodes:
  - {name: h1, nics: [{device: eth1, aliases: ["0c:42:a1:00:00:01", mlx5_0]}]}
  - {name: h2, nics: [{device: eth1, aliases: ["0c:42:a1:00:00:02"]}]}
links:
  - {a: h1/eth1, b: "leaf1:dn1"}
  - {a: h2/eth1, b: "leaf1:dn2"}
  - {a: "leaf1:up1", b: "spine1:dn1"}
  - {a: "leaf1:up2", b: "spine2:dn1"}
  - {a: "leaf2:up1", b: "spine1:dn2"}
  - {a: "leaf2:up2", b: "spine2:dn2"}
`

// counting is a Querier that counts its queries, and may fail.
type counting struct {
	evidence.Querier
	asked []string
	rows  int
	err   error
}

func (c *counting) QueryInstant(ctx context.Context, query string, at time.Time) ([]evidence.Sample, error) {
	kind := "all"
	switch {
	case strings.HasPrefix(query, "count"):
		kind = "changed"
	case strings.Contains(query, "switch=~"):
		kind = "some"
	}
	c.asked = append(c.asked, kind)
	if c.err != nil {
		return nil, c.err
	}
	s, err := c.Querier.QueryInstant(ctx, query, at)
	c.rows += len(s)
	return s, err
}

// seriesOf returns series of neighbours in promqltest's notation, every ten seconds, from lines as
// "leaf1:up1 spine1 dn1 CHASSIS VALUES"; "-" is an empty label.
func seriesOf(lines ...string) string {
	var b strings.Builder
	b.WriteString("load 10s\n")
	for _, l := range lines {
		f := strings.SplitN(l, " ", 5)
		for i := range f {
			if f[i] == "-" {
				f[i] = ""
			}
		}
		sw, port, _ := fabric.SplitPort(f[0])
		fmt.Fprintf(&b, "  fabric_switch_port_neighbor_info{job=\"otel\", switch=%q, port=%q, remote=%q, remote_port=%q, remote_chassis=%q} %s\n", sw, port, f[1], f[2], f[3], f[4])
	}
	return b.String()
}

func newNeighbourSources(t testing.TB, db evidence.Querier) *Sources {
	t.Helper()
	topo, found := fabric.ParseTopology("t.yaml", []byte(neighbourTopology))
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return NewSources(Options{Store: paths.NewStore(fabric.NewGraph(topo)), DB: db, Settings: evidence.SettingsFor(10 * time.Second), Log: slog.New(slog.DiscardHandler)})
}

func at(seconds int) time.Time { return time.Unix(int64(seconds), 0) }

// TestNeighboursOfSeries: cables that series report elsewhere are named if they explain each other, and doubtful
// ones are not.
func TestNeighboursOfSeries(t *testing.T) {
	const always = "1x100"
	for name, c := range map[string]struct {
		series []string
		want   string // the links as found
	}{
		"as they should be":         {[]string{"leaf1:up1 spine1 dn1 - " + always, "leaf1:up2 spine2 dn1 - " + always}, ""},
		"swapped":                   {[]string{"leaf1:up1 spine2 dn1 - " + always, "leaf1:up2 spine1 dn1 - " + always}, "leaf1:up1--spine2:dn1 leaf1:up2--spine1:dn1"},
		"swapped, one port reports": {[]string{"leaf1:up1 spine2 dn1 - " + always}, "leaf1:up1--spine2:dn1 leaf1:up2--spine1:dn1"},
		"swapped, spines report":    {[]string{"spine1:dn1 leaf1 up2 - " + always, "spine2:dn1 leaf1 up1 - " + always}, "leaf1:up1--spine2:dn1 leaf1:up2--spine1:dn1"},
		"domain names":              {[]string{"leaf1.dc1.example:up1 spine2.dc1.example dn1 - " + always}, "leaf1:up1--spine2:dn1 leaf1:up2--spine1:dn1"},
		"two domains":               {[]string{"leaf1:up1 spine2.dc1.example dn1 - " + always, "leaf1:up2 spine2.dc2.example dn1 - " + always}, ""},
		"chassis of a name": {[]string{"leaf1:up1 - dn1 00:00:5e:00:53:02 " + always, "leaf2:up2 spine2 dn2 00:00:5e:00:53:02 " + always},
			"leaf1:up1--spine2:dn1 leaf1:up2--spine1:dn1"},
		"chassis of two names":         {[]string{"leaf1:up1 - dn1 00:00:5e:00:53:02 " + always, "leaf2:up2 spine2 dn2 00:00:5e:00:53:02 " + always, "leaf2:up1 spine1 dn2 00:00:5e:00:53:02 " + always}, ""},
		"unknown chassis":              {[]string{"leaf1:up1 - dn1 00:00:5e:00:53:02 " + always}, ""},
		"NICs by name":                 {[]string{"leaf1:dn1 h2 eth1 - " + always}, "h1/eth1--leaf1:dn2 h2/eth1--leaf1:dn1"},
		"NICs by alias":                {[]string{"leaf1:dn2 h1 mlx5_0 - " + always}, "h1/eth1--leaf1:dn2 h2/eth1--leaf1:dn1"},
		"NICs by address":              {[]string{"leaf1:dn1 h2.example 0C:42:A1:00:00:02 - " + always}, "h1/eth1--leaf1:dn2 h2/eth1--leaf1:dn1"},
		"unknown switch":               {[]string{"leaf9:up1 spine2 dn1 - " + always, "leaf1:up1 other dn1 - " + always}, ""},
		"unknown port":                 {[]string{"leaf1:up1 spine2 Ethernet4 - " + always, "leaf1:up9 spine2 dn1 - " + always}, ""},
		"no name at all":               {[]string{"leaf1:up1 - - - " + always}, ""},
		"the ends disagree":            {[]string{"leaf1:up1 spine2 dn1 - " + always, "spine2:dn1 leaf1 up2 - " + always}, ""},
		"the ends disagree, elsewhere": {[]string{"leaf1:up1 spine2 dn1 - " + always, "spine2:dn1 leaf2 up1 - " + always}, ""},
		"the others disagree":          {[]string{"leaf1:up1 spine2 dn1 - " + always, "leaf1:up2 spine2 dn2 - " + always}, ""},
		"two at a port":                {[]string{"leaf1:up1 spine2 dn1 - " + always, "leaf1:up1 spine1 dn1 - " + always}, ""},
		"the old one is fading": {[]string{"leaf1:up1 spine1 dn1 - 1x10 _x90", "leaf1:up1 spine2 dn1 - _x11 1x90"},
			"leaf1:up1--spine2:dn1 leaf1:up2--spine1:dn1"},
		"gone":           {[]string{"leaf1:up1 spine2 dn1 - 1x10 stale"}, ""},
		"nothing at all": {nil, ""},
	} {
		l := newNeighbourSources(t, evidencetest.NewQuerier(t, seriesOf(c.series...)))
		if err := l.neighbours.pollOnce(t.Context(), at(200)); err != nil {
			t.Fatal(err)
		}
		got := l.CheckCables(at(200))
		switch {
		case c.want == "" && len(got) > 0:
			t.Errorf("%s: %+v", name, got)
		case c.want != "" && (len(got) != 1 || !got[0].LLDP):
			t.Errorf("%s: %+v", name, got)
		case c.want != "":
			for _, link := range strings.Fields(c.want) {
				a, b, _ := strings.Cut(link, "--")
				if p := l.opts.Store.Graph().PeerOf(a); p != b {
					t.Errorf("%s: %s is plugged into %s, want %s", name, a, p, b)
				}
			}
		}
	}
}

// TestNeighboursAskedSeldom: while nothing changes there is one small query a turn. A change is queried at its
// switches only, and undone in the same way. After failures the known neighbours stay for a while.
func TestNeighboursAskedSeldom(t *testing.T) {
	db := &counting{Querier: evidencetest.NewQuerier(t, seriesOf(
		"leaf1:up1 spine1 dn1 - 1x60 _x60 1x60 stale", // swapped from 610 s to 1210 s
		"leaf1:up2 spine2 dn1 - 1x60 stale _x59 1x60 stale",
		"leaf1:up1 spine2 dn1 - _x61 1x59 stale",
		"leaf2:up1 spine1 dn2 - 1x180", "leaf2:up2 spine2 dn2 - 1x180"))}
	l := newNeighbourSources(t, db)
	step := func(second int, asked string, swapped int) {
		t.Helper()
		db.asked, db.rows = nil, 0
		err := l.neighbours.pollOnce(t.Context(), at(second))
		if (err != nil) != (db.err != nil) || strings.Join(db.asked, " ") != asked {
			t.Errorf("at %d s: asked %v, want %s; %v", second, db.asked, asked, err)
		}
		if got := l.CheckCables(at(second)); len(got) != swapped {
			t.Errorf("at %d s: %d swaps, want %d: %+v", second, len(got), swapped, got)
		}
	}
	step(200, "all", 0)
	step(215, "changed", 0)
	if db.rows != 0 {
		t.Errorf("%d rows although nothing changed", db.rows)
	}
	// The port has two neighbours until the series of the old one has been absent for long enough.
	for second := 230; second < 680; second += 15 {
		db.asked = nil
		if err := l.neighbours.pollOnce(t.Context(), at(second)); err != nil {
			t.Fatal(err)
		}
		if second > 630 && slices.Contains(db.asked, "all") {
			t.Errorf("at %d s: %v", second, db.asked)
		}
	}
	// Ten minutes are over; and five after the last sample of the old series, which then is
	// an answer no more, its switch is asked about.
	step(905, "all", 1)
	step(920, "changed some", 1)
	db.err = errors.New("away")
	step(935, "changed", 1)
	db.err = nil
	step(950, "changed", 1)
	if g := l.opts.Store.Graph(); g.PeerOf("leaf1:up1") != "spine2:dn1" {
		t.Errorf("leaf1:up1 is at %s", g.PeerOf("leaf1:up1"))
	}
	// Plugged back.
	for second := 1200; second <= 1320; second += 15 {
		if err := l.neighbours.pollOnce(t.Context(), at(second)); err != nil {
			t.Fatal(err)
		}
	}
	if got := l.CheckCables(at(1320)); len(got) != 0 {
		t.Errorf("plugged back: %+v", got)
	}
	// The series are absent for long, so the neighbours are forgotten.
	db.err = errors.New("away")
	if len(l.neighbours.reported) == 0 {
		t.Error("nothing is known")
	}
	for second := 1335; second < 2000; second += 15 {
		if err := l.neighbours.pollOnce(t.Context(), at(second)); err == nil {
			t.Fatal("it is not away")
		}
	}
	if len(l.neighbours.reported)+len(l.neighbours.rows) != 0 {
		t.Errorf("%v is known still", l.neighbours.reported)
	}
}

// TestNeighboursManyChanges: when many switches change at once, one query returns the neighbours of all.
func TestNeighboursManyChanges(t *testing.T) {
	var lines []string
	for i := range changedAtOnce + 1 {
		lines = append(lines, fmt.Sprintf("sw%d:p x p - 1x10 stale", i), fmt.Sprintf("sw%d:p y p - _x11 1x20", i))
	}
	db := &counting{Querier: evidencetest.NewQuerier(t, seriesOf(lines...))}
	l := newNeighbourSources(t, db)
	for _, c := range []struct {
		second int
		asked  string
	}{{100, "all"}, {150, "changed all"}, {165, "changed"}} {
		db.asked = nil
		if err := l.neighbours.pollOnce(t.Context(), at(c.second)); err != nil || strings.Join(db.asked, " ") != c.asked {
			t.Errorf("at %d s: %v, want %s; %v", c.second, db.asked, c.asked, err)
		}
	}
}

// TestNeighboursPartial: an incomplete response counts as a failure.
func TestNeighboursPartial(t *testing.T) {
	db := &counting{Querier: evidencetest.NewQuerier(t, seriesOf("leaf1:up1 spine2 dn1 - 1x100")), err: &evidence.PartialError{Warnings: []string{"half"}}}
	l := newNeighbourSources(t, db)
	if err := l.neighbours.pollOnce(t.Context(), at(100)); err == nil || len(l.CheckCables(at(100))) != 0 {
		t.Errorf("half an answer is believed: %v", err)
	}
}

// BenchmarkNeighbours measures a query for the neighbours of 64,000 ports while nothing moves, and the first query, which
// returns all of them.
func BenchmarkNeighbours(b *testing.B) {
	const ports = 64_000
	var lines []string
	for i := range ports {
		lines = append(lines, fmt.Sprintf("sw%d:p%d sw%d p%d - 1x60", i/64, i%64, i, i))
	}
	db := evidencetest.NewQuerier(b, seriesOf(lines...))
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			if err := newNeighbourSources(b, db).neighbours.pollOnce(b.Context(), at(200)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("nothing moved", func(b *testing.B) {
		l := newNeighbourSources(b, db)
		if err := l.neighbours.pollOnce(b.Context(), at(200)); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if err := l.neighbours.pollOnce(b.Context(), at(215)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
