//go:build kubernetes

package kubernetes

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/internal/fabric"
)

const (
	chart        = "../../deploy/helm/graylink"
	topologyFile = "../../deploy/lab/demo.yaml" // it has nodes h1 to h8
	built        = "../../bin"
)

// TestKubernetes has one API server for all of its parts, which follow each other.
func TestKubernetes(t *testing.T) {
	k := newCluster(t)
	for _, n := range []string{"h1", "h2"} {
		k.do("POST", "/api/v1/nodes", map[string]any{"metadata": map[string]any{"name": n}})
	}
	k.do("POST", "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": "graylink", "labels": map[string]any{"pod-security.kubernetes.io/enforce": "privileged"}}})
	k.operatorKinds()
	t.Run("install", func(t *testing.T) { k.t = t; k.install() })
	t.Run("enroll", func(t *testing.T) { k.t = t; k.enroll() })
	t.Run("jobs", func(t *testing.T) { k.t = t; k.watchJobs() })
	t.Run("leader", func(t *testing.T) { k.t = t; k.leader() })
	t.Run("rights", func(t *testing.T) { k.t = t; k.rights() })
	t.Run("pod security", func(t *testing.T) { k.t = t; k.podSecurity() })
	t.Run("upgrade and roll back", func(t *testing.T) { k.t = t; k.upgrade() })
	t.Run("remove", func(t *testing.T) { k.t = t; k.remove() })
}

// everything are values by which the chart makes all objects that it has.
const everything = `
node: {condition: true, health: {gpu: H100}}
coordinator: {replicas: 2}
analyzer: {replicas: 2, kubernetes: {jobs: true, cordons: true}}
collector: {enabled: true, config: {receivers: {gnmi: {}}}}
prometheus: {operator: true, labels: {release: kps}}
grafana: {dashboards: true}
`

// install installs the chart with everything.
func (k *cluster) install() {
	k.runHelm("install", "graylink", chart, "--set-file", "topology.inline="+topologyFile, "--values", k.write("everything.yaml", everything))
	objects := k.objects()
	for _, id := range []string{
		"daemonsets graylink/graylink-node", "statefulsets graylink/graylink-coordinator", "deployments graylink/graylink-analyzer", "deployments graylink/graylink-collector",
		"poddisruptionbudgets graylink/graylink-analyzer", "poddisruptionbudgets graylink/graylink-coordinator", "services graylink/graylink-coordinator-1", "roles graylink/graylink-coordinator", "networkpolicies graylink/graylink-coordinator", "secrets graylink/graylink-tls", "configmaps graylink/graylink-ca",
		"roles default/graylink-node-events-graylink", "clusterroles /graylink-analyzer-graylink", "scrapeconfigs graylink/graylink-node-edges", "podmonitors graylink/graylink-analyzer",
		"prometheusrules graylink/graylink-graylink", "configmaps graylink/graylink-dashboard-fleet",
	} {
		if objects[id] == "" {
			k.t.Errorf("there is no %s", id)
		}
	}
	// All that the chart makes has its labels, by which the other parts of this test find it.
	if made := strings.Count(k.runHelm("get", "manifest", "graylink"), "\nkind: "); made != len(objects) {
		k.t.Errorf("the chart made %d objects, of which %d have its labels: %q", made, len(objects), slices.Sorted(maps.Keys(objects)))
	}
	// The account of the coordinator can have tokens reviewed, and that of the node agent can write what it is for.
	for _, tc := range []struct {
		account, group, resource, subresource, verb, namespace string
		want                                                   bool
	}{
		{"graylink-coordinator", "authentication.k8s.io", "tokenreviews", "", "create", "", true},
		{"graylink-coordinator", "", "secrets", "", "get", "graylink", false},
		{"graylink-coordinator", "coordination.k8s.io", "leases", "", "create", "graylink", true},
		{"graylink-coordinator", "coordination.k8s.io", "leases", "", "create", "default", false},
		{"graylink-coordinator", "coordination.k8s.io", "leases", "", "patch", "graylink", false}, // of any name but its own
		{"graylink-node", "authentication.k8s.io", "tokenreviews", "", "create", "", false},
		{"graylink-node", "", "nodes", "status", "patch", "", true},
		{"graylink-node", "", "events", "", "create", "default", true},
		{"graylink-node", "", "nodes", "", "get", "", false},
		{"graylink-node", "", "secrets", "", "get", "graylink", false},
		{"graylink-analyzer", "", "pods", "", "list", "", true},
		{"graylink-analyzer", "", "pods", "", "get", "", false},
		{"graylink-analyzer", "", "secrets", "", "get", "graylink", false},
	} {
		answer := k.do("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", map[string]any{"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
			"spec": map[string]any{"user": "system:serviceaccount:graylink:" + tc.account, "resourceAttributes": map[string]any{
				"group": tc.group, "resource": tc.resource, "subresource": tc.subresource, "verb": tc.verb, "namespace": tc.namespace}}})
		if got := answer["status"].(map[string]any)["allowed"]; got != tc.want {
			k.t.Errorf("%s may %s %s/%s: %v, want %v", tc.account, tc.verb, tc.resource, tc.subresource, got, tc.want)
		}
	}
}

// tlsFile writes a value of the chart's Secret to a file.
func (k *cluster) tlsFile(name string) string {
	k.t.Helper()
	data := k.do("GET", "/api/v1/namespaces/graylink/secrets/graylink-tls", nil)["data"].(map[string]any)
	return k.write(name, k.decode(data[name].(string)))
}

// startCoordinator runs a coordinator with the arguments of the chart, as far as they fit outside of a pod. It returns its
// address and the file of its authority.
func (k *cluster) startCoordinator() (address, ca string) {
	t := k.t
	coordinator := k.token("graylink", "graylink-coordinator", "", "", "")
	ports := freePorts(t, 2)
	address = "127.0.0.1:" + ports[0]
	ca = k.tlsFile("ca.crt")
	log := background(t, filepath.Join(built, "graylink-coordinator"), "--topology.file", topologyFile, "--state.file", filepath.Join(k.dir, "state.json"), "--agents.listen-address", address,
		"--agents.ca", ca, "--agents.cert", k.tlsFile("coordinator.crt"), "--agents.key", k.tlsFile("coordinator.key"), "--enroll.ca-cert", ca, "--enroll.ca-key", k.tlsFile("ca.key"),
		"--enroll.kubernetes", "--enroll.kubernetes-service-account", "graylink/graylink-node", "--enroll.kubeconfig", k.write("coordinator.kubeconfig", k.kubeconfig(coordinator)), "--web.listen-address", "127.0.0.1:"+ports[1])
	waitFor(t, log, "listening for agents")
	return address, ca
}

// enroll runs a coordinator, and nodes with the tokens of pods.
func (k *cluster) enroll() {
	t := k.t
	address, ca := k.startCoordinator()
	uid := k.pod("graylink", "graylink-node-a", "graylink-node", "h1")
	good := k.token("graylink", "graylink-node", "graylink-coordinator", "graylink-node-a", uid)
	k.do("POST", "/api/v1/namespaces/graylink/serviceaccounts", map[string]any{"metadata": map[string]any{"name": "other"}})
	otherUID := k.pod("graylink", "other-a", "other", "h1")
	goneUID := k.pod("graylink", "graylink-node-b", "graylink-node", "h2")
	gone := k.token("graylink", "graylink-node", "graylink-coordinator", "graylink-node-b", goneUID)
	k.do("DELETE", "/api/v1/namespaces/graylink/pods/graylink-node-b?gracePeriodSeconds=0", nil)
	time.Sleep(11 * time.Second) // the API server caches what it knows of a token for ten seconds
	for _, tc := range []struct{ what, node, token, want string }{
		{"the pod's own node", "h1", good, "certificate obtained"},
		{"another node", "h2", good, "not on node"},
		{"another service account", "h1", k.token("graylink", "other", "graylink-coordinator", "other-a", otherUID), "other"},
		{"another audience", "h1", k.token("graylink", "graylink-node", "vault", "graylink-node-a", uid), "proves no node"},
		{"no audience of its own", "h1", k.token("graylink", "graylink-node", "", "graylink-node-a", uid), "proves no node"},
		{"no pod", "h1", k.token("graylink", "graylink-node", "graylink-coordinator", "", ""), "not bound to a pod"},
		{"a pod that was deleted", "h2", gone, "proves no node"},
		{"a token of another cluster", "h1", good[:len(good)-4] + "AAAA", "proves no node"},
	} {
		out := k.enrollNode(tc.node, tc.token, address, ca)
		if !strings.Contains(out, tc.want) || (tc.want != "certificate obtained") == strings.Contains(out, "certificate obtained") {
			t.Errorf("%s: want %q\n%s", tc.what, tc.want, out)
		}
	}
}

// enrollNode runs a node agent with the token of a pod until it has a certificate or ends, at most for some seconds. It
// returns the log.
func (k *cluster) enrollNode(node, token, coordinator, ca string) string {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), 20*time.Second)
	defer cancel()
	dir := k.t.TempDir()
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		k.t.Fatal(err)
	}
	logFile := filepath.Join(dir, "log")
	log, err := os.Create(logFile)
	if err != nil {
		k.t.Fatal(err)
	}
	defer log.Close()
	c := exec.CommandContext(ctx, filepath.Join(built, "graylink-node"), "--node.name", node, "--enroll", "--enroll.directory", filepath.Join(dir, "pki"), "--enroll.kubernetes-token-file", file,
		"--coordinator.address", coordinator, "--coordinator.ca", ca, "--coordinator.server-name", "graylink-coordinator", "--web.listen-address", "127.0.0.1:"+freePorts(k.t, 1)[0], "--nic.log", "off")
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		k.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	for {
		text := tail(logFile)
		ended := false
		select {
		case err := <-done:
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				k.t.Fatal(err)
			}
			ended = true
		case <-time.After(50 * time.Millisecond):
		}
		if ended {
			return tail(logFile)
		}
		if strings.Contains(text, "certificate obtained") || strings.Contains(text, "cannot enroll yet") {
			cancel()
			<-done
			return text
		}
	}
}

// podSecurity has the API server check the pods of the chart against its own policies.
func (k *cluster) podSecurity() {
	for _, tc := range []struct{ path, level string }{
		{"/apis/apps/v1/namespaces/graylink/statefulsets/graylink-coordinator", "restricted"},
		{"/apis/apps/v1/namespaces/graylink/deployments/graylink-analyzer", "restricted"},
		{"/apis/apps/v1/namespaces/graylink/daemonsets/graylink-node", "privileged"},
	} {
		for _, level := range []string{"restricted", "privileged"} {
			set := k.do("GET", tc.path, nil)["spec"].(map[string]any)
			spec := set["template"].(map[string]any)["spec"].(map[string]any)
			namespace := "policy-" + level
			if code, _, err := k.send("GET", "/api/v1/namespaces/"+namespace, nil); err != nil || code != 200 {
				k.do("POST", "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": namespace, "labels": map[string]any{"pod-security.kubernetes.io/enforce": level}}})
			}
			if claims, ok := set["volumeClaimTemplates"].([]any); ok && len(claims) == 1 {
				spec["volumes"] = append(spec["volumes"].([]any), map[string]any{"name": "state", "emptyDir": map[string]any{}})
			}
			code, answer, err := k.send("POST", "/api/v1/namespaces/"+namespace+"/pods?dryRun=All", map[string]any{"metadata": map[string]any{"name": "x"}, "spec": spec})
			admitted := err == nil && code == 201
			if want := level == "privileged" || tc.level == "restricted"; admitted != want {
				k.t.Errorf("%s in a namespace %s: %d %v (%v)", tc.path, level, code, answer["message"], err)
			}
		}
	}
}

// upgrade changes values, and goes back. Nodes know the authority, which stays the same.
func (k *cluster) upgrade() {
	authority := []string{"secrets graylink/graylink-tls", "configmaps graylink/graylink-ca"}
	before := k.objects()
	k.runHelm("upgrade", "graylink", chart, "--reuse-values", "--set", "coordinator.clockReference=h1,coordinator.replicas=1,node.condition=false,analyzer.replicas=1,analyzer.kubernetes.jobs=false,analyzer.kubernetes.cordons=false,prometheus.operator=false,collector.enabled=false")
	after := k.objects()
	if !strings.Contains(after["statefulsets graylink/graylink-coordinator"], "--clock.reference=h1") {
		k.t.Error("the upgrade did not set the clock's reference")
	}
	for _, id := range authority {
		if after[id] != before[id] {
			k.t.Errorf("the upgrade changed %s", id)
		}
	}
	for id := range after {
		if before[id] == "" {
			k.t.Errorf("the upgrade made %s", id)
		}
		for _, prefix := range []string{"poddisruptionbudgets ", "scrapeconfigs ", "podmonitors ", "prometheusrules ", "roles ", "rolebindings ", "clusterroles /graylink-node", "clusterroles /graylink-analyzer", "deployments graylink/graylink-collector"} {
			if strings.HasPrefix(id, prefix) {
				k.t.Errorf("%s is still there after the upgrade", id)
			}
		}
	}
	k.runHelm("rollback", "graylink", "1")
	back := k.objects()
	for _, id := range slices.Sorted(maps.Keys(before)) {
		if back[id] != before[id] {
			k.t.Errorf("after the roll-back %s is\n%s\nand was\n%s", id, back[id], before[id])
		}
	}
	if len(back) != len(before) {
		k.t.Errorf("%d objects after the roll-back, %d before the upgrade", len(back), len(before))
	}
}

// remove removes the chart. Only the authority stays, which another installation takes over.
func (k *cluster) remove() {
	before := k.objects()
	want := []string{"configmaps graylink/graylink-ca", "secrets graylink/graylink-tls"}
	k.runHelm("uninstall", "graylink")
	left := k.objects()
	if got := slices.Sorted(maps.Keys(left)); !slices.Equal(got, want) {
		k.t.Errorf("after the removal there are %q, want %q", got, want)
	}
	k.runHelm("install", "graylink", chart, "--set-file", "topology.inline="+topologyFile)
	again := k.objects()
	for _, id := range want {
		if left[id] != before[id] || again[id] != before[id] {
			k.t.Errorf("%s is another one after the removal or the next installation", id)
		}
	}
	if again["daemonsets graylink/graylink-node"] == "" {
		k.t.Error("the node agent is not there after the next installation")
	}
}

func waitFor(t *testing.T, log, text string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !strings.Contains(tail(log), text); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not %q in 30 s:\n%s", text, tail(log))
		}
	}
}

// bearer sends requests with a token.
type bearer struct {
	http.RoundTripper
	token string
}

func (b bearer) RoundTrip(q *http.Request) (*http.Response, error) {
	q = q.Clone(q.Context())
	q.Header.Set("Authorization", "Bearer "+b.token)
	return b.RoundTripper.RoundTrip(q)
}

// graph returns the fabric of the tests.
func (k *cluster) graph() *fabric.Graph {
	k.t.Helper()
	topology, found := fabric.LoadTopology(topologyFile)
	if err := found.Err(); err != nil {
		k.t.Fatal(err)
	}
	return fabric.NewGraph(topology)
}

// analyzerClient returns a client with the token of the analyzer's account.
func (k *cluster) analyzerClient() *http.Client {
	k.t.Helper()
	return &http.Client{Timeout: 30 * time.Second, Transport: bearer{k.client.Transport, k.token("graylink", "graylink-analyzer", "", "", "")}}
}

// jobPod makes a pod of a job on a node.
func (k *cluster) jobPod(name, job, node string) {
	k.t.Helper()
	k.do("POST", "/api/v1/namespaces/graylink/pods", map[string]any{"metadata": map[string]any{"name": name, "labels": map[string]any{"batch.kubernetes.io/job-name": job}},
		"spec": map[string]any{"nodeName": node, "containers": []any{map[string]any{"name": "c", "image": "none"}}}})
}

// placements returns the jobs of a register with their NICs.
func placements(r *jobs.Register) (out []string) {
	m := r.MapAt(time.Now())
	if m == nil {
		return nil
	}
	for _, name := range m.JobNames() {
		out = append(out, name+" "+strings.Join(m.NICsOf(name), " "))
	}
	return out
}

// watchJobs has the analyzer's source of placements watch the pods of jobs.
func (k *cluster) watchJobs() {
	r := jobs.NewRegister(k.graph())
	source := &jobs.Kubernetes{Client: k.analyzerClient(), URL: k.url}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { source.Follow(ctx, r, slog.New(slog.DiscardHandler)); close(done) }()
	defer func() { cancel(); <-done }()
	are := func(want ...string) {
		k.t.Helper()
		var got []string
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if got = placements(r); slices.Equal(got, want) {
				return
			}
		}
		k.t.Errorf("jobs %q, want %q", got, want)
	}
	k.jobPod("train-0", "train", "h1")
	are("graylink/train h1/eth1")
	k.jobPod("train-1", "train", "h2")
	are("graylink/train h1/eth1 h2/eth1")
	k.do("DELETE", "/api/v1/namespaces/graylink/pods/train-0?gracePeriodSeconds=0", nil)
	are("graylink/train h2/eth1")
	// Watches end after 20 s, and the next ones go on where they ended.
	time.Sleep(22 * time.Second)
	k.jobPod("eval-0", "eval", "h3")
	are("graylink/eval h3/eth1", "graylink/train h2/eth1")
}
