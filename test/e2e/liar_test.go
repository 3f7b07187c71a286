package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/fabric"
)

// liar is an agent that was taken over: what its node answers over HTTP has lies beside the truth.
type liar struct {
	c     *chain
	node  string
	calls int
}

// ServeHTTP implements http.Handler: it forwards to the agents, and adds the lies to what the
// liar's node answers.
func (l *liar) ServeHTTP(w http.ResponseWriter, r *http.Request, forward http.Handler) {
	rec := httptest.NewRecorder()
	r.Header.Del("Accept-Encoding")
	forward.ServeHTTP(rec, r)
	body := rec.Body.Bytes()
	if rec.Code == http.StatusOK {
		switch r.URL.Path {
		case "/metrics", "/metrics/nics", "/metrics/edges":
			body = l.series(rec.Header(), body)
		case "/api/v1/paths", "/api/v1/trace":
			body = l.traces(body)
		}
	}
	for k, v := range rec.Header() {
		w.Header()[k] = v
	}
	w.Header().Del("Content-Length")
	w.WriteHeader(rec.Code)
	_, _ = w.Write(body) // the client may be gone
}

// series adds series about other nodes: each of the liar's own once more with the name of another
// node, counters of losses with the numbers of what was sent, and bounds of clocks of a thousand seconds.
func (l *liar) series(h http.Header, body []byte) []byte {
	format := expfmt.ResponseFormat(h)
	var families []*dto.MetricFamily
	for d := expfmt.NewDecoder(bytes.NewReader(body), format); ; {
		var f dto.MetricFamily
		if err := d.Decode(&f); err == io.EOF {
			break
		} else if err != nil {
			return body
		}
		families = append(families, &f)
	}
	var out bytes.Buffer
	enc := expfmt.NewEncoder(&out, format)
	for _, f := range families {
		for _, m := range slices.Clone(f.Metric) {
			lie, foreign := proto.Clone(m).(*dto.Metric), false
			for _, p := range lie.Label {
				switch p.GetName() {
				case "src", "dst", "nic", "clock":
					// h1's own series become h5's, and those of its peers' ends another's.
					moved := strings.NewReplacer("h1/", "h5/", "h5/", "h8/", "h8/", "h3/", "h3/", "h6/").Replace(p.GetValue())
					foreign = foreign || moved != p.GetValue()
					p.Value = &moved
				}
			}
			if !foreign {
				continue
			}
			if c := lie.Counter; c != nil && strings.Contains(f.GetName(), "lost") || c != nil && strings.Contains(f.GetName(), "stalled") {
				c.Value = proto.Float64(float64(time.Now().UnixMilli()%1e9) / 10) // a hundred a second
			}
			if g := lie.Gauge; g != nil && strings.Contains(f.GetName(), "clock") {
				g.Value = proto.Float64(1000)
			}
			f.Metric = append(f.Metric, lie)
		}
		if err := enc.Encode(f); err != nil {
			return body
		}
	}
	return out.Bytes()
}

// traces adds paths of flows that other nodes send, by turns over one spine and over the other, and
// of times by turns half a second ahead, a day ahead and a day behind.
func (l *liar) traces(body []byte) []byte {
	var answer map[string]any
	if json.Unmarshal(body, &answer) != nil {
		return body
	}
	paths, _ := answer["paths"].([]any)
	l.calls++
	g := l.c.g
	at := time.Now().Add([]time.Duration{500 * time.Millisecond, 24 * time.Hour, -24 * time.Hour}[l.calls%3])
	for _, src := range g.NICIDs() {
		for _, dst := range g.NICIDs() {
			ways := g.ShortestPaths(src, dst, 8)
			if len(ways) == 0 || src == dst || fabric.OwnerOf(src) == l.node {
				continue
			}
			var hops []map[string]any
			for i, d := range ways[l.calls%len(ways)].LinkDirections(src, dst) {
				if link := g.LinkAt(d.To); i < len(ways[0]) && link != nil {
					address := link.BAddress
					if link.A == d.To {
						address = link.AAddress
					}
					hops = append(hops, map[string]any{"ttl": i + 1, "address": address.Addr().String()})
				}
			}
			for _, edge := range []string{fmt.Sprintf("%s>%s#0", src, dst), fmt.Sprintf("%s>%s#0/r", dst, src)} {
				paths = append(paths, map[string]any{"edge": edge, "state": "valid", "traced_at": at.UTC().Format(time.RFC3339Nano), "reached": true, "hops": hops, "notes": []string{}})
			}
		}
	}
	answer["paths"] = paths
	out, err := json.Marshal(answer)
	if err != nil {
		return body
	}
	return out
}

// lies: one agent of eight lies about the flows, paths, NICs and clocks of others, and claims
// addresses that are not its own. No verdict opens on the healthy fabric, and what is broken
// meanwhile is named. (False clock reports: TestRule12LiarLosesItsOwnClockOnly.)
func (c *chain) lies() {
	t := c.t
	began := time.Now()
	l := &liar{c: c, node: "h1"}
	c.tamper.Store(l)
	defer c.tamper.Store(nil)
	claim := func(verb string) {
		t.Helper()
		for _, a := range []string{c.g.ProbeAddress("h8/eth1").String(), "203.0.113.9"} {
			if out, err := c.l.Command(t.Context(), l.node, "ip", "addr", verb, a+"/32", "dev", "eth1").CombinedOutput(); err != nil {
				t.Fatalf("ip addr %s %s: %v: %s", verb, a, err, out)
			}
		}
	}
	fabricVerdicts := func(allowed ...demo.PlannedFault) (n int) {
		for _, r := range c.analyzers {
			_, incidents := c.verdicts(r)
			for i := range incidents {
				v := &incidents[i]
				if v.OpenedAt.After(began) && !slices.ContainsFunc(allowed, func(p demo.PlannedFault) bool { return p.NamedBy(&v.Verdict) }) {
					t.Errorf("%s, while h1 lies: %s %s: %s", r.name, v.Kind, v.Element.ID, v.Summary)
					n++
				}
			}
		}
		return n
	}
	for end := began.Add(lieSpan); time.Now().Before(end) && fabricVerdicts() == 0; time.Sleep(500 * time.Millisecond) {
	}
	// The agent reports the addresses of its interface. Its own kernel drops what comes from an
	// address that it has itself, so that they are given back before something else is broken.
	claim("add")
	for end := time.Now().Add(lieSpan / 2); time.Now().Before(end) && fabricVerdicts() == 0; time.Sleep(500 * time.Millisecond) {
	}
	if n, err := c.value(`sum(graylink_coordinator_edges{state="unaddressed"})`); err != nil || n != 0 {
		t.Errorf("%v edges have no address while h1 claims that of h8, %v", n, err)
	}
	claim("del")
	c.wait(30*time.Second, "the lies are counted", func() bool {
		series, err := c.query(`(scrape_samples_scraped{instance="h1"} - scrape_samples_post_metric_relabeling{instance="h1"}) > 0`)
		traces, err2 := c.query(`graylink_analyzer_traces_refused_total{node="h1"} > 0`)
		return err == nil && err2 == nil && series == 3 && traces > 0 // each of the agents' three jobs
	})
	if n, err := c.query(`graylink_analyzer_traces_refused_total{node!="h1"} > 0`); err != nil || n > 0 {
		t.Errorf("traces of %d honest nodes are refused, %v", n, err)
	}
	if n, err := c.query(`(scrape_samples_scraped{job=~"graylink-(node.*|switch)",instance!="h1"} - scrape_samples_post_metric_relabeling{job=~"graylink-(node.*|switch)",instance!="h1"}) > 0`); err != nil || n > 0 {
		t.Errorf("series of %d honest targets are dropped, %v", n, err)
	}
	c.wait(time.Minute, "the network is innocent", c.innocent)
	var plans []demo.PlannedFault
	for _, kind := range lieKinds {
		plans = append(plans, c.planned(kind, 1))
	}
	for _, group := range together(plans) {
		var ids []string
		at := time.Now()
		for _, p := range group {
			ids = append(ids, c.fault(p.Fault))
		}
		c.wait(45*time.Second, "what is broken is named while h1 lies", func() bool {
			for _, p := range group {
				for _, r := range c.analyzers {
					if len(c.named(r, p, at)) == 0 {
						return false
					}
				}
			}
			return true
		})
		t.Logf("%d faults named %.1f s after they began", len(group), time.Since(at).Seconds())
		for _, id := range ids {
			c.heal(id)
		}
		c.wait(2*time.Minute, "the network is innocent", c.innocent)
		fabricVerdicts(plans...)
	}
}
