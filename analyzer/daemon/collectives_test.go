package daemon

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/collectives/collectivestest"
	"github.com/graylink/graylink/analyzer/steer/steertest"
	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/sim/collective"
	"github.com/graylink/graylink/internal/webaccess"
	"github.com/graylink/graylink/schema/openapi/openapitest"
)

// fourNodes is a topology with the nodes of the simulated job.
const fourNodes = `version: 1
switches: [{name: leaf1, role: leaf}]
nodes: [{name: h1, nics: [{device: eth1}, {device: eth2}]}, {name: h2, nics: [{device: eth1}, {device: eth2}]}, {name: h3, nics: [{device: eth1}, {device: eth2}]}, {name: h4, nics: [{device: eth1}, {device: eth2}]}]
links:
  - {a: "h1/eth1", b: "leaf1:p1"}
  - {a: "h1/eth2", b: "leaf1:p2"}
  - {a: "h2/eth1", b: "leaf1:p3"}
  - {a: "h2/eth2", b: "leaf1:p4"}
  - {a: "h3/eth1", b: "leaf1:p5"}
  - {a: "h3/eth2", b: "leaf1:p6"}
  - {a: "h4/eth1", b: "leaf1:p7"}
  - {a: "h4/eth2", b: "leaf1:p8"}
`

// prometheusWithFinding answers that one NIC has a fault, and has no other series.
func prometheusWithFinding(t *testing.T, nic string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		result, now := "", float64(time.Now().UnixMilli())/1e3
		switch q := r.FormValue("query"); {
		case q == "vector(time())":
			result = fmt.Sprintf(`{"metric":{},"value":[%.3f,"%.3f"]}`, now, now)
		case nic != "" && strings.Contains(q, "fabric_nic_finding"):
			result = fmt.Sprintf(`{"metric":{"nic":%q},"value":[%.3f,"1"]}`, nic, now)
		}
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":[%s]}}`, result)
	}))
	t.Cleanup(s.Close)
	return s
}

// steeredJob is an analyzer that follows a job with a rank that stopped, and an API server of Kubernetes.
type steeredJob struct {
	*Daemon
	node  string // of the rank
	kube  *steertest.Kubernetes
	audit string
}

// newSteeredJob returns one whose records are of accounts, in turn. Without accounts the NIC of the rank has a finding.
func newSteeredJob(t *testing.T, mode string, accounts ...string) steeredJob {
	t.Helper()
	run, err := collective.Simulate(collective.Config{Seed: 2, DP: 4, TP: 2, PP: 1, Steps: 40, Fault: collective.StoppedRank})
	if err != nil {
		t.Fatal(err)
	}
	last := workload.TimeOf(run.Records[len(run.Records)-1])
	collectivestest.Shift(run.Records, time.Since(time.Unix(0, last)))
	agents := collectivestest.NewAgents(t, "h1", "h2", "h3", "h4")
	for i, r := range run.Records {
		if len(accounts) > 0 {
			ccl.SetAccount(r, accounts[i%len(accounts)])
		}
		agents.Add(r)
	}
	s := steeredJob{node: run.Truth.Place.Host, kube: steertest.NewKubernetes(t, "h1", "h2", "h3", "h4")}
	nic := s.node + "/eth1"
	if len(accounts) > 0 {
		nic = ""
	}
	file := write(t, fmt.Sprintf(`topology_file: topology.yaml
prometheus: {url: %q}
agents: {url: "%s/{node}"}
collectives: {follow: true}
jobs: [{file: jobs.yaml}]
steering:
  mode: %s
  audit_file: steering.jsonl
  leader: sole
  trusted_accounts: [ann]
  kubernetes: {url: %q, tls_config: {insecure_skip_verify: true}}
`, prometheusWithFinding(t, nic).URL, agents.URL, mode, s.kube.URL))
	dir := filepath.Dir(file)
	s.audit = filepath.Join(dir, "steering.jsonl")
	for name, text := range map[string]string{"topology.yaml": fourNodes, "jobs.yaml": "jobs: [{job: train, nodes: [h1, h2, h3, h4]}]"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if s.Daemon, err = New(file, &webaccess.Policy{}, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// waitForSeries waits until /metrics has a line.
func (s *steeredJob) waitForSeries(t *testing.T, line string) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		_, body := get(t, s.Daemon, "GET", "/metrics", there)
		if strings.Contains(body, line) {
			return
		}
		if time.Now().After(end) {
			_, report := get(t, s.Daemon, "GET", "/api/v1/collectives", there)
			log, _ := os.ReadFile(s.audit)
			t.Fatalf("no %s; %s; %s", line, report, log)
		}
	}
}

// TestSteerByRecords: a job hangs since a rank stopped, and the agents' records say so. A dry run writes what it would do, and with
// act the node of the rank is cordoned once.
func TestSteerByRecords(t *testing.T) {
	t.Run("dry_run", func(t *testing.T) {
		t.Parallel()
		s := newSteeredJob(t, "dry_run")
		s.waitForSeries(t, `graylink_analyzer_steering_decisions_total{result="dry_run"} 1`)
		log, err := os.ReadFile(s.audit)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, line := range strings.Split(strings.TrimSpace(string(log)), "\n") {
			var e struct{ Mode, Decision, Node, Job, Witness string }
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			found = found || e.Mode == "dry_run" && e.Decision == "dry_run" && e.Node == s.node && e.Job == "train" && e.Witness == "nic_finding"
		}
		if !found || len(s.kube.Requests()) != 0 {
			t.Errorf("%s\n%v", log, s.kube.Requests())
		}
		d := described{openapitest.New(t), t, s.Daemon}
		if got := d.send("GET", "/api/v1/collectives", "", 200); !strings.Contains(got, `"syndrome"`) {
			t.Errorf("no diagnosis: %s", got)
		}
		d.send("GET", "/api/v1/collectives?job=train", "", 200)
		d.send("GET", "/api/v1/collectives?job=none", "", 404)
		d.send("GET", "/api/v1/jobs/train", "", 200)
	})
	t.Run("trusted_account", func(t *testing.T) {
		t.Parallel()
		s := newSteeredJob(t, "dry_run", "ann")
		s.waitForSeries(t, `graylink_analyzer_steering_decisions_total{result="dry_run"} 1`)
		log, err := os.ReadFile(s.audit)
		if err != nil || !strings.Contains(string(log), `"witness":"trusted_account"`) {
			t.Errorf("%s %v", log, err)
		}
	})
	t.Run("another_account_too", func(t *testing.T) {
		t.Parallel()
		s := newSteeredJob(t, "dry_run", "ann", "eve")
		s.waitForSeries(t, `graylink_analyzer_steering_refusals_total{reason="no_second_witness"} 1`)
		if _, body := get(t, s.Daemon, "GET", "/metrics", there); strings.Contains(body, `graylink_analyzer_steering_decisions_total{result="dry_run"} 1`) {
			t.Error("what two accounts wrote counts as a second witness")
		}
	})
	t.Run("act", func(t *testing.T) {
		t.Parallel()
		s := newSteeredJob(t, "act")
		s.waitForSeries(t, `graylink_analyzer_steering_actions_total{actuator="kubernetes",result="done"} 1`)
		s.waitForSeries(t, `graylink_analyzer_steering_refusals_total{reason="already_acted"} 1`)
		patches := 0
		for _, r := range s.kube.Requests() {
			if strings.HasPrefix(r, http.MethodPatch) {
				patches++
			}
		}
		for _, n := range []string{"h1", "h2", "h3", "h4"} {
			if cordoned := s.kube.Node(n).Unschedulable; cordoned != (n == s.node) {
				t.Errorf("%s is cordoned: %v", n, cordoned)
			}
		}
		if patches != 1 || len(s.kube.Forbidden()) != 0 {
			t.Errorf("%v, forbidden %v", s.kube.Requests(), s.kube.Forbidden())
		}
		s.waitForSeries(t, `fabric_collective_network_state{comm_name=`)
		_, body := get(t, s.Daemon, "GET", "/api/v1/jobs/train", there)
		var v struct{ Collectives workload.Report }
		if err := json.Unmarshal([]byte(body), &v); err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(v.Collectives.Diagnoses, func(d workload.Diagnosis) bool {
			return d.Open && d.Syndrome == workload.NonCommHang && slices.Contains(d.Nodes, s.node)
		}) {
			t.Errorf("%s", body)
		}
	})
}
