package publish

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/graylink/graylink/analyzer/collectives"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/fabric"
)

// names returns the communicators that have series of a histogram.
func commsOf(t *testing.T, v *prometheus.HistogramVec) map[string]uint64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(v)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]uint64{}
	for _, f := range families {
		for _, m := range f.Metric {
			h := m.GetHistogram()
			if h.GetSchema() == 0 && h.GetZeroThreshold() == 0 {
				t.Errorf("%s is no native histogram", f.GetName())
			}
			name := ""
			for _, l := range m.Label {
				name += l.GetValue() + " "
			}
			out[strings.TrimSpace(name)] += h.GetSampleCount()
		}
	}
	return out
}

// TestCollectiveSeriesAreBounded: 64 communicators have series, the others share one, and a place is freed only by one that is no
// longer used.
func TestCollectiveSeriesAreBounded(t *testing.T) {
	now := time.Unix(1_790_000_000, 0)
	c := NewCollectives(func() time.Time { return now })
	observe := func(i int) {
		c.Observe(workload.Judged{Job: "t7", Comm: fmt.Sprintf("c%d", i), Op: "AllReduce", Transfer: time.Millisecond, Wait: 2 * time.Millisecond, Late: []int{i % 3}})
	}
	for i := range maxCommunicators + 10 {
		observe(i)
	}
	got := commsOf(t, c.transfer)
	if len(got) != maxCommunicators+1 || got["other other AllReduce"]+got["AllReduce other other"]+got["other AllReduce other"] != 10 {
		t.Errorf("%d communicators: %v", len(got), got)
	}
	if n := len(c.worstRanks()); n != maxLateRanks {
		t.Errorf("%d ranks", n)
	}
	for range 3 {
		observe(5)
	}
	if w := c.worstRanks()[0]; w.comm != "c5" || w.n != 4 {
		t.Errorf("%+v", w)
	}
	now = now.Add(forgetComm / 2)
	for i := 1; i < maxCommunicators; i++ {
		observe(i)
	}
	now = now.Add(forgetComm/2 + time.Second)
	observe(maxCommunicators)
	got = commsOf(t, c.wait)
	for name := range got {
		if strings.Contains(name+" ", "c0 ") {
			t.Error("a communicator that is no longer used has its place")
		}
	}
	if len(got) != maxCommunicators+1 {
		t.Errorf("%d communicators", len(got))
	}
}

// TestCollectiveDiagnoses: open diagnoses have series, with the worst that is known of the network of each communicator.
func TestCollectiveDiagnoses(t *testing.T) {
	c := NewCollectives(time.Now)
	d := func(comm string, s workload.Syndrome, n workload.NetworkState, open bool) workload.Diagnosis {
		return workload.Diagnosis{Job: "t7", Comm: comm, CommName: "DP " + comm, Syndrome: s, Network: workload.Network{State: n}, Open: open}
	}
	syndromes, networks := c.openDiagnoses([]workload.Diagnosis{d("1", workload.CommSlow, workload.Guilty, true), d("1", workload.NonCommSlow, workload.Innocent, true),
		d("2", workload.CommHang, workload.Insufficient, true), d("3", workload.CommHang, workload.Guilty, false)})
	one, two := commNames{"t7", "DP 1"}, commNames{"t7", "DP 2"}
	if len(syndromes) != 3 || !syndromes[commSyndrome{one, workload.NonCommSlow}] || len(networks) != 2 || networks[one] != workload.Guilty || networks[two] != workload.Insufficient {
		t.Errorf("%v, %v", syndromes, networks)
	}
}

// TestCollectivesWithoutFollower: nothing is published, and the API says why.
func TestCollectivesWithoutFollower(t *testing.T) {
	if n := testutil.CollectAndCount(CollectivesCollector{Series: NewCollectives(time.Now)}); n != 0 {
		t.Errorf("%d series", n)
	}
	ask := func(f *collectives.Follower, path string) (int, string) {
		mux := http.NewServeMux()
		CollectivesAPI{f}.RegisterHandlers(mux)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	if code, body := ask(nil, "/api/v1/collectives"); code != http.StatusNotFound || !strings.Contains(body, "followed") {
		t.Errorf("%d %s", code, body)
	}
	f := collectives.New(collectives.Options{Graph: fabric.NewGraph(&fabric.Topology{}), Snapshot: func() snapshot.Snapshot { return snapshot.Snapshot{} }})
	if code, body := ask(f, "/api/v1/collectives"); code != http.StatusOK || !strings.Contains(body, `"state":"insufficient_evidence"`) || !strings.Contains(body, `"diagnoses":[]`) {
		t.Errorf("%d %s", code, body)
	}
	if code, body := ask(f, "/api/v1/collectives?job=t7"); code != http.StatusNotFound || !strings.Contains(body, "of this name") {
		t.Errorf("%d %s", code, body)
	}
	got := CollectivesCollector{Series: NewCollectives(time.Now), Follower: f}
	if problems, err := testutil.CollectAndLint(got); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	if n := testutil.CollectAndCount(got, "graylink_analyzer_collective_dropped_total"); n != len(collectives.DropReasons()) {
		t.Errorf("%d reasons", n)
	}
}
