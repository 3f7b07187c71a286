package signals

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/evidence/evidencetest"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/csig"
	assign "github.com/graylink/graylink/internal/csig/locator"
	"github.com/graylink/graylink/internal/fabric"
)

// domain is a fabric in which every NIC sends tagged packets to every other one. At each port of a flow's path, some of its packets meet
// their worst hop. From wrongSince on, a switch has another profile.
type domain struct {
	t          *testing.T
	graph      *fabric.Graph
	locators   map[string]uint16
	paths      map[fabric.Flow]fabric.Path
	wrong      string // the switch with another profile, or ""
	known      bool   // its locators are those of other ports
	wrongSince int
	changed    map[fabric.Flow]time.Time // when a path became the present one
	more       string
}

const seconds = 120

func newDomain(t *testing.T) *domain {
	d := &domain{t: t, graph: worldtest.NewClos(t, 2, 4, 2), paths: map[fabric.Flow]fabric.Path{}, changed: map[fabric.Flow]time.Time{}}
	d.locators = assign.AssignLocators(d.graph).LocatorsOf(csig.Compact)
	for i, src := range d.graph.NICIDs() {
		for j, dst := range d.graph.NICIDs() {
			if src != dst {
				all := d.graph.ShortestPaths(src, dst, 8)
				d.paths[fabric.Flow{Src: src, Dst: dst, Number: 64}] = all[(i+j)%len(all)]
			}
		}
	}
	return d
}

// foreignLocator returns the locator of a port that is not on a path.
func (d *domain) foreignLocator(p fabric.Path) uint16 {
	own := map[uint16]bool{}
	for _, h := range p {
		own[d.locators[h.Switch+":"+h.Out]] = true
	}
	for _, l := range d.locators {
		if !own[l] {
			return l
		}
	}
	d.t.Fatal("all ports are on one path")
	return 0
}

// checker returns a checker of the domain's series.
func (d *domain) checker() *Checker {
	var b strings.Builder
	b.WriteString("load 1s\n")
	unknown := map[string]bool{}
	for f, p := range d.paths {
		for _, h := range p {
			l, sw := d.locators[h.Switch+":"+h.Out], h.Switch
			put := func(l uint16, values string) {
				fmt.Fprintf(&b, "  fabric_csig_packets_total{src=%q,dst=%q,flow=\"%d\",direction=\"forward\",signal=\"share\",format=\"compact\",locator=\"%d\"} %s\n", f.Src, f.Dst, f.Number, l, values)
			}
			if sw != d.wrong {
				put(l, fmt.Sprintf("0+5x%d", seconds))
				continue
			}
			put(l, fmt.Sprintf("0+5x%d %dx%d", d.wrongSince, 5*d.wrongSince, seconds-d.wrongSince))
			if d.known {
				put(d.foreignLocator(p), fmt.Sprintf("0x%d 0+5x%d", d.wrongSince, seconds-d.wrongSince))
			} else {
				unknown[f.Dst] = true
			}
		}
		fmt.Fprintf(&b, "  fabric_csig_available_ratio{src=%q,dst=%q,flow=\"%d\",direction=\"forward\",bound=\"lower\"} 0.6x%d\n", f.Src, f.Dst, f.Number, seconds)
		fmt.Fprintf(&b, "  fabric_csig_available_ratio{src=%q,dst=%q,flow=\"%d\",direction=\"forward\",bound=\"upper\"} 0.65x%d\n", f.Src, f.Dst, f.Number, seconds)
	}
	for _, nic := range d.graph.NICIDs() {
		values := fmt.Sprintf("0x%d", seconds)
		if unknown[nic] {
			values = fmt.Sprintf("0x%d 0+5x%d", d.wrongSince, seconds-d.wrongSince)
		}
		fmt.Fprintf(&b, "  fabric_csig_dropped_total{nic=%q,reason=\"unknown_locator\"} %s\n", nic, values)
	}
	for port, l := range d.locators {
		sw, name, _ := fabric.SplitPort(port)
		fmt.Fprintf(&b, "  fabric_csig_locator_info{format=\"compact\",locator=\"%d\",switch=%q,port=%q} 1x%d\n", l, sw, name, seconds)
	}
	for i := range 8 {
		fmt.Fprintf(&b, "  graylink_csig_profile_info{hash=\"aa\",instance=\"h%d\"} 1x%d\n", i+1, seconds)
	}
	c := &Checker{NICs: d.graph.NICIDs, SwitchAt: func(a netip.Addr) string { return dropAddresses[a] }}
	c.Reader = Reader{DB: evidencetest.NewQuerier(d.t, b.String()+d.more), Scrape: time.Second, Lag: time.Second, PathOf: func(f fabric.Flow) PathBinding {
		return PathBinding{Path: d.paths[f], Since: d.changed[f], Confirmed: time.Unix(1e6, 0), Valid: d.paths[f] != nil}
	}}
	return c
}

// dropAddresses are the switches that have addresses.
var dropAddresses = map[netip.Addr]string{netip.MustParseAddr("10.9.0.1"): "spine2", netip.MustParseAddr("10.9.0.2"): "spine2"}

// check runs a check every ten seconds, and returns the findings of each.
func (d *domain) check() (out [][]Finding) {
	d.t.Helper()
	c := d.checker()
	for at := 30; at <= seconds; at += 10 {
		found, err := c.Check(d.t.Context(), time.Unix(int64(at), 0))
		if err != nil {
			d.t.Fatal(err)
		}
		out = append(out, found)
	}
	return out
}

func TestNothingIsWrong(t *testing.T) {
	for i, found := range newDomain(t).check() {
		if len(found) != 0 {
			t.Errorf("check %d: %+v", i, found)
		}
	}
}

// TestRule1ProfilesDiffer: a node with another profile is named.
func TestRule1ProfilesDiffer(t *testing.T) {
	d := newDomain(t)
	d.more = fmt.Sprintf("  graylink_csig_profile_info{hash=\"bb\",instance=\"h9\"} _x50 1x%d\n", seconds)
	for i, found := range d.check() {
		at := 30 + 10*i
		named := len(found) == 1 && found[0].Kind == ProfilesDiffer && strings.Contains(found[0].Text, "h9 do not have that of most, aa")
		if late := at >= 60; named != late || !late && len(found) > 0 {
			t.Errorf("second %d: %+v", at, found)
		}
	}
}

// TestRules2To4WrongProfile: each switch in turn has another profile, with locators that no port has, or those of other ports. It is found
// within 30 s, and by name.
func TestRules2To4WrongProfile(t *testing.T) {
	for _, known := range []bool{false, true} {
		for _, wrong := range []string{"leaf1", "leaf4", "spine1", "spine2"} {
			d := newDomain(t)
			d.wrong, d.known, d.wrongSince = wrong, known, 45
			kind := map[bool]string{false: UnknownLocators, true: ForeignLocators}[known]
			first, named := 0, 0
			for i, found := range d.check() {
				at := 30 + 10*i
				for _, f := range found {
					if f.Kind != kind || at < d.wrongSince || f.Element != "" && f.Element != wrong {
						t.Errorf("%s, second %d: %+v", wrong, at, f)
					}
					if first == 0 {
						first = at
					}
					if named == 0 && f.Element == wrong {
						named = at
					}
				}
			}
			t.Logf("%s, %s: found after %d s, by name after %d s", wrong, kind, first-d.wrongSince, named-d.wrongSince)
			if first == 0 || first > d.wrongSince+30 || named == 0 {
				t.Errorf("%s with %s: found at second %d, by name at %d", wrong, kind, first, named)
			}
		}
	}
}

// TestRule3PathsThatChange: the tags of flows whose path has just changed, or is not known, are no finding.
func TestRule3PathsThatChange(t *testing.T) {
	d := newDomain(t)
	d.wrong, d.known, d.wrongSince = "spine1", true, 45
	for f := range d.paths {
		d.changed[f] = time.Unix(1e5, 0)
	}
	for i, found := range d.check() {
		if len(found) != 0 {
			t.Errorf("check %d: %+v", i, found)
		}
	}
}

// TestRule5NextSources: the checks look at all NICs in turn, and at no more than so many at once.
// TestRule5TagsDropped: the switch at which tagged packets end is named, by whichever of its addresses answered. An address that no
// switch has is named as it is.
func TestRule5TagsDropped(t *testing.T) {
	d := newDomain(t)
	for i, address := range []string{"10.9.0.1", "10.9.0.2", "10.9.0.2", "192.0.2.7"} {
		d.more += fmt.Sprintf("  fabric_csig_tag_drop_info{src=\"h1/e\",dst=\"h2/e\",flow=\"%d\",address=%q} _x50 1x%d\n", 64+i, address, seconds)
	}
	for i, found := range d.check() {
		at := 30 + 10*i
		named := len(found) == 2 && found[0].Kind == TagsDropped && found[0].Element == "192.0.2.7" && found[1].Element == "spine2" &&
			strings.Contains(found[1].Text, "packets of 3 flows end at switch spine2")
		if late := at >= 60; named != late || !late && len(found) > 0 {
			t.Errorf("second %d: %+v", at, found)
		}
	}
}

func TestRule6NextSources(t *testing.T) {
	all := make([]string, 200)
	for i := range all {
		all[i] = fmt.Sprintf("h%d/eth1", i)
	}
	c := &Checker{NICs: func() []string { return all }}
	seen := map[string]bool{}
	for range 4 {
		some := c.nextSources()
		if len(some) > sourcesAtOnce {
			t.Errorf("%d NICs at once", len(some))
		}
		for _, nic := range some {
			seen[nic] = true
		}
	}
	if len(seen) != len(all) {
		t.Errorf("%d of %d NICs in four checks", len(seen), len(all))
	}
	c.NICs = func() []string { return nil }
	if some := c.nextSources(); len(some) != 0 {
		t.Errorf("%v of no NIC", some)
	}
}

// TestBottlenecks: the bottleneck of a flow's path is a port with a value, and the value alone where the path is not known.
func TestBottlenecks(t *testing.T) {
	d := newDomain(t)
	a, b := fabric.Flow{Src: "h1/eth1", Dst: "h8/eth1", Number: 64}, fabric.Flow{Src: "h8/eth1", Dst: "h1/eth1", Number: 64}
	path := d.paths[a]
	port := path[1].Switch + ":" + path[1].Out
	d.more = fmt.Sprintf("  fabric_csig_packets_total{src=%q,dst=%q,flow=\"64\",direction=\"forward\",signal=\"share\",format=\"compact\",locator=\"%d\",replica=\"b\"} 0+50x%d\n", a.Src, a.Dst, d.locators[port], seconds)
	c := d.checker()
	delete(d.paths, b)
	got, known, err := c.ReadBottlenecks(t.Context(), time.Unix(100, 0), "h8/eth1", "h1/eth1")
	if err != nil || !known || len(got) != 2 {
		t.Fatalf("%+v, %v, %v", got, known, err)
	}
	if s := got[a].Share; s == nil || s.Port != port || *s.Bounds.Lower != 0.6 || *s.Bounds.Upper != 0.65 || got[a].Delay != nil {
		t.Errorf("%+v, want %s", s, port)
	}
	if s := got[b].Share; s == nil || s.Port != "" || *s.Bounds.Upper != 0.65 {
		t.Errorf("without a path: %+v", s)
	}
	c.DB = evidencetest.NewQuerier(t, "load 1s\n  up 1x100\n")
	if got, known, err := c.ReadBottlenecks(t.Context(), time.Unix(100, 0), "h8/eth1", "h1/eth1"); err != nil || known || len(got) != 0 {
		t.Errorf("nothing reads signals: %+v, %v, %v", got, known, err)
	}
	if found, err := c.Check(t.Context(), time.Unix(100, 0)); err != nil || found != nil {
		t.Errorf("nothing reads signals: %+v, %v", found, err)
	}
	if names := listNames(slices.Clone([]string{"b", "a", "f", "e", "d", "c", "g"})); names != "a, b, c, d, e and 2 more" {
		t.Error(names)
	}
}
