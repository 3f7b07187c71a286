package audit

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// failSomeOfEverything gives a fabric readings of which many are wrong, as in a hall that is not finished.
func failSomeOfEverything(s *site, e *Evidence) {
	s.readAll(e)
	rng := rand.New(rand.NewPCG(5, 6))
	for i := range s.g.Topo.Links {
		l := &s.g.Topo.Links[i]
		switch rng.IntN(12) {
		case 0:
			changeLane(e, l.A, "2", func(l *LaneReading) { l.ReceiveWatts = watts(-38) })
		case 1:
			r := e.Ports[l.B]
			r.FEC, r.SpeedGbps = "off", number(200)
			e.Ports[l.B] = r
		case 2:
			delete(e.Ports, l.A)
			delete(e.Ports, l.B)
		case 3:
			r := e.Ports[l.A]
			r.PauseFrames = number(1e6)
			e.Ports[l.A] = r
		}
	}
	for i, nic := range s.g.NICIDs() {
		if i%9 == 0 {
			set(e, nic, "firmware", "28.38.900")
		}
		if i%17 == 0 {
			k := e.Clocks[nic]
			k.Steps = 1
			e.Clocks[nic] = k
		}
	}
}

// Limits of the files of a report.
const (
	maxPage = 5 << 20
	maxJSON = 16 << 20
)

// TestPagesOfLargeFabrics writes the reports of large fabrics in which much is wrong. With GRAYLINK_PAGES, a directory, the pages are
// kept there to be looked at.
func TestPagesOfLargeFabrics(t *testing.T) {
	for name, x := range map[string]struct{ leaves, spines, nics, peers, ports int }{
		"infiniband": {36, 18, 18, 12, 1944}, // 54 switches of 36 ports, which are all in use, and 648 NICs
		"16000":      {500, 8, 32, 1, 500*40 + 8*500},
	} {
		s, e := newLargeEvidence(t, x.leaves, x.spines, x.nics, x.peers)
		ports := 0
		for i := range s.g.Topo.Switches {
			ports += len(s.g.EndsOf(s.g.Topo.Switches[i].Name))
		}
		if ports != x.ports {
			t.Errorf("%s: %d ports of switches, want %d", name, ports, x.ports)
		}
		failSomeOfEverything(s, e)
		began := time.Now()
		r := Run(e, DefaultCriteria(), whole(s.g))
		took := time.Since(began)
		r.Program = "graylink test"
		if r.Status != Fail {
			t.Errorf("%s: %s", name, r.Status)
		}
		var page, json, md, junit bytes.Buffer
		for _, err := range []error{r.WriteHTML(&page), r.WriteJSON(&json), r.WriteMarkdown(&md), r.WriteJUnit(&junit)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if page.Len() >= maxPage || json.Len() >= maxJSON {
			t.Errorf("%s: a page of %d octets, and JSON of %d", name, page.Len(), json.Len())
		}
		if strings.Contains(page.String(), "://") || strings.Contains(page.String(), "src=") {
			t.Errorf("%s: the page needs other files", name)
		}
		t.Logf("%s: %d NICs, %d links, %d records: page %d octets, JSON %d, Markdown %d, JUnit %d; judged in %s", name, len(s.g.NICIDs()), len(s.g.Topo.Links), len(e.Flows), page.Len(), json.Len(), md.Len(), junit.Len(), took)
		if dir := os.Getenv("GRAYLINK_PAGES"); dir != "" {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s.html", name)), page.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}
