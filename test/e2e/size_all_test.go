//go:build all

package e2e

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
	"github.com/graylink/graylink/internal/sizing"
)

// TestSizeOfLab compares what graylink size predicts of the demo's fabric with the series that a real Prometheus has of real
// agents, and with the octets of their scrapes. 2 % and 10 % are allowed. The health of NICs is left out: virtual links have
// little of it.
func TestSizeOfLab(t *testing.T) {
	profile := *alertProfile
	t.Cleanup(func() { *alertProfile = profile })
	*alertProfile = sizing.Fleet
	c := newChain(t, "e2esz", 1)
	c.wait(3*time.Minute, "the network is innocent", c.innocent)
	topology := c.l.Topology()
	g := fabric.NewGraph(topology)
	s, err := schedule.Make(g, schedule.Options{Cadence: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	p, err := sizing.Predict(sizing.ShapeOf(topology, g, s), sizing.Options{Profile: sizing.Fleet, Scrape: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	paths := map[string]string{sizing.JobNICs: "/metrics/nics?collect[]=node_summary&collect[]=nic_flows&collect[]=host_losses", sizing.JobSums: "/metrics?collect[]=nic_sums&collect[]=leaves", sizing.JobEdges: "/metrics/edges"}
	for _, j := range p.Jobs {
		path := paths[j.Name]
		if path == "" {
			continue
		}
		own := float64(j.Targets * 5) // up and others, which are no samples of a scrape
		c.wait(2*time.Minute, "Prometheus has the series of "+j.Name, func() bool {
			got := c.samplesOf(j.Name)
			return math.Abs(got/(j.Series-own)-1) <= 0.02
		})
		octets := 0.0
		for _, n := range c.nodes() {
			r := httptest.NewRequest(http.MethodGet, "http://"+n+":9868"+path, nil)
			r.Header.Set("Accept", string(expfmt.NewFormat(expfmt.TypeProtoDelim)))
			w := httptest.NewRecorder()
			c.l.HTTPProxy().ServeHTTP(w, r)
			if w.Code != http.StatusOK {
				t.Fatalf("%s of %s: %d %s", path, n, w.Code, w.Body)
			}
			octets += float64(w.Body.Len())
		}
		t.Logf("%s: %.0f series, %.0f are predicted; %.0f octets, %.0f are predicted", j.Name, c.samplesOf(j.Name), j.Series-own, octets, *j.Octets)
		if math.Abs(octets / *j.Octets - 1) > 0.1 {
			t.Errorf("%s: %.0f octets are served, and %.0f are predicted", j.Name, octets, *j.Octets)
		}
	}
}

// samplesOf returns the number of samples of one scrape of all targets of a job.
func (c *chain) samplesOf(job string) float64 {
	values, err := c.instant(fmt.Sprintf(`sum(scrape_samples_post_metric_relabeling{job=%q})`, job))
	if err != nil || len(values) != 1 {
		return 0
	}
	return values[0]
}
