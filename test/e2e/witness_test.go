package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/fabric"
)

// witness records, whenever an analyzer opens an incident, what that analyzer had seen of the flows that changed. A
// wrong verdict has to be explained from the output of the test, because the analyzer of a CI run cannot be queried
// again.
type witness struct {
	mu   sync.Mutex
	seen map[string][]sight // by analyzer and incident
	end  chan struct{}
}

// sight holds what an analyzer saw when it opened an incident.
type sight struct {
	at, summary string
	moved       []string
}

// watch begins to look at the analyzers, until the test is over.
func (c *chain) watch() *witness {
	w := &witness{seen: map[string][]sight{}, end: make(chan struct{})}
	var all sync.WaitGroup
	for _, r := range c.analyzers {
		all.Go(func() { w.look(r.name, r.address) })
	}
	c.t.Cleanup(func() { close(w.end); all.Wait() })
	return w
}

// look looks at one analyzer twice a second; sightings are two cycles of an incident.
func (w *witness) look(name, address string) {
	get := func(path string) []byte {
		resp, err := http.Get("http://" + address + path)
		if err != nil {
			return nil // it is not up at the moment
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return b
	}
	for tick := time.NewTicker(500 * time.Millisecond); ; {
		select {
		case <-w.end:
			return
		case <-tick.C:
		}
		var v struct{ Verdicts []incident.Incident }
		if json.Unmarshal(get("/api/v1/verdicts"), &v) != nil {
			continue
		}
		for i := range v.Verdicts {
			in := &v.Verdicts[i]
			w.mu.Lock()
			had := len(w.seen[name+in.ID])
			w.mu.Unlock()
			if !in.Open || had >= 3 {
				continue
			}
			s := sight{at: time.Now().UTC().Format("15:04:05.0"), moved: moved(get("/api/v1/observations"))}
			s.summary = fmt.Sprintf("%s, confidence %.3f, %+v", in.Summary, in.Confidence, in.Evidence)
			w.mu.Lock()
			w.seen[name+in.ID] = append(w.seen[name+in.ID], s)
			w.mu.Unlock()
		}
	}
}

// moved returns the flows that lost probes, are slower than before, or are not trusted.
func moved(body []byte) (out []string) {
	p50 := func(q *fabric.Quantiles) string {
		if q == nil || q.P50 == nil {
			return "?"
		}
		s := time.Duration(*q.P50).Round(time.Microsecond).String()
		if q.P90 != nil {
			s += "/" + time.Duration(*q.P90).Round(time.Microsecond).String()
		}
		return s
	}
	total := 0
	for d := json.NewDecoder(bytes.NewReader(body)); d.More(); total++ {
		var o fabric.Observation
		if d.Decode(&o) != nil {
			break
		}
		slow := o.OWD != nil && o.Baseline != nil && o.OWD.P50 != nil && o.Baseline.P50 != nil && *o.OWD.P50 > *o.Baseline.P50+30_000
		if !slow && o.Lost == 0 && !o.HostSuspect && !o.ClockSuspect {
			continue
		}
		bound := "?"
		if o.ClockErrorNS != nil {
			bound = time.Duration(*o.ClockErrorNS).String()
		}
		out = append(out, fmt.Sprintf("%s %s, %v long: %d of %d lost, owd %s, baseline %s, clock within %s, suspect host %v clock %v, %v %s", o.Edge, o.Start.UTC().Format("15:04:05.0"),
			time.Duration(o.WindowNS), o.Lost, o.Sent, p50(o.OWD), p50(o.Baseline), bound, o.HostSuspect, o.ClockSuspect, o.PathState, o.Path))
	}
	slices.Sort(out)
	return append(out, fmt.Sprintf("%d flows in all", total))
}

// explain logs what was seen of the incidents since a moment that do not name a fault.
func (c *chain) explain(w *witness, p demo.PlannedFault, since time.Time) {
	for _, r := range c.analyzers {
		_, incidents := c.verdicts(r)
		for i := range incidents {
			if in := &incidents[i]; !in.OpenedAt.Before(since) && !p.NamedBy(&in.Verdict) {
				c.explainOne(w, r, in.ID)
			}
		}
	}
}

// explainOne logs what an analyzer had seen when it opened an incident.
func (c *chain) explainOne(w *witness, r *replica, id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.seen[r.name+id] {
		c.t.Logf("  %s saw at %s: %s\n    %s", r.name, s.at, s.summary, strings.Join(s.moved, "\n    "))
	}
}
