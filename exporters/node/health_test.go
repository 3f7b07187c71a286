package node

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/graylink/graylink/internal/fakesys"
	"github.com/graylink/graylink/internal/nodeagent/health"
	"github.com/graylink/graylink/internal/nodeagent/health/healthtest"
	"github.com/graylink/graylink/internal/webaccess"
)

var updateHealth = flag.Bool("update.health", false, "rewrite the golden exposition of NICs, and the table of docs/nic-health.md")

// patient is a Patient with its series.
type patient struct {
	*healthtest.Patient
	t testing.TB
}

func newPatient(t testing.TB, profile string, edit func(*health.Options)) *patient {
	t.Helper()
	return &patient{healthtest.NewPatient(t, profile, edit), t}
}

// gatherer returns a gatherer of the patient's series. No time passes while it gathers.
func (p *patient) gatherer() prometheus.Gatherer {
	from := &sources{readState: (&madeUp{}).read, health: func() *health.Snapshot { return p.Snapshot() }, now: func() time.Time { return p.Now }}
	return newGatherer(from, healthConstructors(), newRuns(), true)
}

// exposition returns the text of all series but those of time.
func (p *patient) exposition() string {
	p.t.Helper()
	families, err := p.gatherer().Gather()
	if err != nil {
		p.t.Fatal(err)
	}
	var b bytes.Buffer
	seen := map[string]bool{}
	for _, f := range families {
		if f.GetName() == "graylink_node_nic_poll_seconds" {
			continue
		}
		for _, m := range f.Metric {
			id := f.GetName() + fmt.Sprint(m.Label)
			if seen[id] {
				p.t.Errorf("twice: %s", id)
			}
			seen[id] = true
			if !slices.IsSortedFunc(m.Label, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) }) {
				p.t.Errorf("labels out of order: %s", id)
			}
		}
		slices.SortFunc(f.Metric, func(a, b *dto.Metric) int { return strings.Compare(fmt.Sprint(a.Label), fmt.Sprint(b.Label)) })
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			p.t.Fatal(err)
		}
	}
	problems, err := testutil.GatherAndLint(prometheus.Gatherers{p.gatherer()})
	if err != nil {
		p.t.Error(err)
	}
	for _, x := range problems {
		p.t.Errorf("%s: %s", x.Metric, x.Text)
	}
	return b.String()
}

func (p *patient) has(series ...string) {
	p.t.Helper()
	text := p.exposition()
	for _, s := range series {
		want, absent := strings.CutPrefix(s, "no ")
		if strings.Contains(text, want) == absent {
			i := strings.Index(text, want[:strings.IndexAny(want, "{ ")])
			p.t.Errorf("want %s; there is:\n%s", s, text[max(i, 0):min(len(text), max(i, 0)+1500)])
		}
	}
}

// TestHealthOfAnH100 compares the whole output for one tree with a golden file.
func TestHealthOfAnH100(t *testing.T) {
	p := newPatient(t, "h100", nil)
	if events := p.PollFor(3 * time.Second); len(events) > 0 {
		t.Errorf("a healthy node: %q", events)
	}
	got := p.exposition()
	const golden = "testdata/nics-h100.metrics"
	if *updateHealth {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the exposition differs from %s (rewrite it with -update.health)", golden)
	}
}

// TestHealthOfEveryTree checks that no series appears twice, that names are valid, that no file fails, and that nothing
// is reported about a node on which nothing happens.
func TestHealthOfEveryTree(t *testing.T) {
	for i, profile := range fakesys.Profiles() {
		if profile.Name == "broken" || testing.Short() && i%3 != 0 {
			continue
		}
		t.Run(profile.Name, func(t *testing.T) {
			p := newPatient(t, profile.Name, nil)
			if events := p.PollFor(5 * time.Second); len(events) > 0 {
				t.Errorf("events %q", events)
			}
			unread := p.Snapshot().Poll.Errors
			for i := range unread {
				t.Errorf("%v", &unread[i])
			}
			if text := p.exposition(); !strings.Contains(text, `fabric_nic_port_state{nic="h1/`) {
				t.Errorf("no states:\n%s", text)
			}
		})
	}
}

// TestABrokenTree checks that what can be read is published, and that the rest is counted by reason.
func TestABrokenTree(t *testing.T) {
	p := newPatient(t, "broken", func(o *health.Options) { o.Patience = 300 * time.Millisecond })
	p.PollFor(2 * time.Second)
	text := p.exposition()
	for _, why := range []string{"unreadable", "malformed", "hanging"} {
		if strings.Contains(text, fmt.Sprintf("graylink_node_nic_read_errors_total{why=%q} 0\n", why)) {
			t.Errorf("nothing is counted as %s", why)
		}
	}
	for _, i := range []int{0, 1, 2, 3, 5, 6, 7} { // mlx5_4 has no ports
		if !strings.Contains(text, fmt.Sprintf(`fabric_nic_port_state{nic="h1/mlx5_%d",state="ACTIVE"} 1`, i)) {
			t.Errorf("mlx5_%d is not published as ACTIVE", i)
		}
	}
	if !strings.Contains(text, "graylink_node_nic_hanging_reads 1\n") {
		t.Error("one read hangs")
	}
}

// TestHealthAPI checks that findings are listed, and that a reset by an authorized client ends latched ones.
func TestHealthAPI(t *testing.T) {
	p := newPatient(t, "h100", nil)
	p.PollFor(6 * time.Second)
	p.RunSteps("add mlx5_0/1 counters/link_downed 1", "add mlx5_1/1 counters/link_downed 1")
	p.PollFor(6 * time.Second)
	mux, policy := http.NewServeMux(), &webaccess.Policy{}
	healthAPI{p.Watcher, slog.New(slog.DiscardHandler)}.addRoutes(mux, policy)
	found := func() (out healthJSON) {
		t.Helper()
		code, body := do(mux, request("GET", "/api/v1/nic-health", ""))
		if err := json.Unmarshal([]byte(body), &out); err != nil || code != http.StatusOK {
			t.Fatalf("%d %s: %v", code, body, err)
		}
		return out
	}
	f := found()
	if len(f.Findings) != 2 || f.Node != "h1" || f.Polled == nil || f.Findings[0].NIC != "h1/mlx5_0" || f.Findings[0].Code != "link_downed" || !f.Findings[0].Latched || !f.Findings[0].Fatal || len(f.Unread) != 0 {
		t.Fatalf("%+v", f)
	}
	if code, _ := do(mux, request("POST", "/api/v1/nic-health/reset", "")); code != http.StatusForbidden || len(found().Findings) != 2 {
		t.Errorf("a reset without authorization: %d", code)
	}
	policy.AdminAPI = true
	for body, want := range map[string]int{`{"entity":"mlx5_7_port1"}`: http.StatusNotFound, `{"entity":7}`: http.StatusBadRequest, `{"nic":"mlx5_0_port1"}`: http.StatusBadRequest} {
		if code, answer := do(mux, request("POST", "/api/v1/nic-health/reset", body)); code != want || len(found().Findings) != 2 {
			t.Errorf("%s: %d %s", body, code, answer)
		}
	}
	p.NewEvents()
	if code, body := do(mux, request("POST", "/api/v1/nic-health/reset", `{"entity":"mlx5_0_port1"}`)); code != http.StatusOK || strings.TrimSpace(body) != `{"reset":1}` {
		t.Errorf("reset of one: %d %s", code, body)
	}
	if got, want := p.NewEvents(), []string{"healthy link_downed NICPort:mlx5_0_port1 NONE"}; !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
	if f := found(); len(f.Findings) != 1 || f.Findings[0].NIC != "h1/mlx5_1" {
		t.Errorf("after it: %+v", f.Findings)
	}
	if code, body := do(mux, request("POST", "/api/v1/nic-health/reset", "")); code != http.StatusOK || strings.TrimSpace(body) != `{"reset":1}` || len(found().Findings) != 0 {
		t.Errorf("reset of all: %d %s", code, body)
	}
}

// TestWhatIsProbedIsLookedAfter checks an interface without hardware that a coordinator has probed after the agent
// started. It is watched from that moment on, and not from the next minute.
func TestWhatIsProbedIsLookedAfter(t *testing.T) {
	p := newPatient(t, "h100", nil)
	p.PollFor(2 * time.Second)
	p.has(`no fabric_nic_port_carrier_changes_total{nic="h1/bond0"}`)
	p.SetNICs(map[string]string{"bond0": "h1/bond0"})
	p.PollFor(2 * time.Second)
	p.has(`fabric_nic_port_carrier_changes_total{nic="h1/bond0"}`)
}

func TestNamesOfNICs(t *testing.T) {
	p := newPatient(t, "mlx4", nil)
	p.PollFor(time.Second)
	p.has(`fabric_nic_port_info{board=`, `nic="h1/mlx4_0.2"`, `nic="h1/mlx4_0"`)
	p = newPatient(t, "h100", nil)
	p.SetNICs(map[string]string{"bond0": "h1/bond0", "mlx5_3": "h1/rail3"})
	p.PollFor(time.Second)
	p.has(`fabric_nic_port_state{nic="h1/bond0",state="ACTIVE"} 1`, `fabric_nic_port_state{nic="h1/rail3",state="ACTIVE"} 1`, `no nic="h1/mlx5_3"`)
}
