//go:build kubernetes

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	t.Run("install", func(t *testing.T) { k.t = t; k.install() })
	t.Run("enroll", func(t *testing.T) { k.t = t; k.enroll() })
	t.Run("jobs", func(t *testing.T) { k.t = t; k.watchJobs() })
	t.Run("pod security", func(t *testing.T) { k.t = t; k.podSecurity() })
	t.Run("upgrade and roll back", func(t *testing.T) { k.t = t; k.upgrade() })
	t.Run("remove", func(t *testing.T) { k.t = t; k.remove() })
}

// install installs the chart.
func (k *cluster) install() {
	k.runHelm("install", "graylink", chart, "--set-file", "topology.inline="+topologyFile, "--set", "networkPolicy.enabled=true", "--set", "analyzer.replicas=2", "--set", "node.condition=true")
	for _, path := range []string{
		"/apis/apps/v1/namespaces/graylink/daemonsets/graylink-node", "/apis/apps/v1/namespaces/graylink/statefulsets/graylink-coordinator",
		"/apis/apps/v1/namespaces/graylink/deployments/graylink-analyzer", "/apis/policy/v1/namespaces/graylink/poddisruptionbudgets/graylink-analyzer",
		"/apis/networking.k8s.io/v1/namespaces/graylink/networkpolicies/graylink-coordinator", "/api/v1/namespaces/graylink/secrets/graylink-tls", "/api/v1/namespaces/graylink/configmaps/graylink-ca",
	} {
		k.do("GET", path, nil)
	}
	// The account of the coordinator can have tokens reviewed, and that of the node agent can write what it is for.
	for _, tc := range []struct {
		account, group, resource, subresource, verb, namespace string
		want                                                   bool
	}{
		{"graylink-coordinator", "authentication.k8s.io", "tokenreviews", "", "create", "", true},
		{"graylink-coordinator", "", "secrets", "", "get", "graylink", false},
		{"graylink-node", "authentication.k8s.io", "tokenreviews", "", "create", "", false},
		{"graylink-node", "", "nodes", "status", "patch", "", true},
		{"graylink-node", "", "events", "", "create", "default", true},
		{"graylink-node", "", "nodes", "", "get", "", false},
		{"graylink-node", "", "secrets", "", "get", "graylink", false},
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

// enroll runs a coordinator with the arguments of the chart, as far as they fit outside of a pod, and nodes with the tokens
// of pods.
func (k *cluster) enroll() {
	t := k.t
	coordinator := k.token("graylink", "graylink-coordinator", "", "", "")
	ports := freePorts(t, 2)
	address := "127.0.0.1:" + ports[0]
	ca := k.tlsFile("ca.crt")
	log := background(t, filepath.Join(built, "graylink-coordinator"), "--topology.file", topologyFile, "--state.file", filepath.Join(k.dir, "state.json"), "--agents.listen-address", address,
		"--agents.ca", ca, "--agents.cert", k.tlsFile("coordinator.crt"), "--agents.key", k.tlsFile("coordinator.key"), "--enroll.ca-cert", ca, "--enroll.ca-key", k.tlsFile("ca.key"),
		"--enroll.kubernetes", "--enroll.kubernetes-service-account", "graylink/graylink-node", "--enroll.kubeconfig", k.write("coordinator.kubeconfig", k.kubeconfig(coordinator)), "--web.listen-address", "127.0.0.1:"+ports[1])
	waitFor(t, log, "listening for agents")

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
	// The right to have tokens reviewed is needed.
	k.do("DELETE", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/graylink-coordinator-graylink", nil)
	if out := k.enrollNode("h1", good, address, ca); strings.Contains(out, "certificate obtained") || !strings.Contains(out, "cannot have tokens reviewed") {
		t.Errorf("without the right to create tokenreviews:\n%s", out)
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
	ca := func() string {
		return k.do("GET", "/api/v1/namespaces/graylink/configmaps/graylink-ca", nil)["data"].(map[string]any)["ca.crt"].(string)
	}
	reference := func() bool {
		out := fmt.Sprint(k.do("GET", "/apis/apps/v1/namespaces/graylink/statefulsets/graylink-coordinator", nil)["spec"])
		return strings.Contains(out, "--clock.reference=h1")
	}
	before := ca()
	k.runHelm("upgrade", "graylink", chart, "--reuse-values", "--set", "coordinator.clockReference=h1")
	if ca() != before || !reference() {
		k.t.Errorf("after the upgrade: the same authority %v, the new value %v", ca() == before, reference())
	}
	k.runHelm("rollback", "graylink", "1")
	if ca() != before || reference() {
		k.t.Errorf("after the roll-back: the same authority %v, the new value %v", ca() == before, reference())
	}
}

// remove removes the chart. The authority stays.
func (k *cluster) remove() {
	k.runHelm("uninstall", "graylink")
	if code, _, err := k.send("GET", "/apis/apps/v1/namespaces/graylink/daemonsets/graylink-node", nil); err != nil || code != 404 {
		k.t.Errorf("the node agent is still there: %d %v", code, err)
	}
	k.do("GET", "/api/v1/namespaces/graylink/secrets/graylink-tls", nil)
}

func waitFor(t *testing.T, log, text string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !strings.Contains(tail(log), text); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not %q in 30 s:\n%s", text, tail(log))
		}
	}
}

// bearer sends requests as the administrator.
type bearer struct{ http.RoundTripper }

func (b bearer) RoundTrip(q *http.Request) (*http.Response, error) {
	q = q.Clone(q.Context())
	q.Header.Set("Authorization", "Bearer "+adminToken)
	return b.RoundTripper.RoundTrip(q)
}

// watchJobs has the analyzer's source of placements watch the pods of jobs.
func (k *cluster) watchJobs() {
	topology, found := fabric.LoadTopology(topologyFile)
	if err := found.Err(); err != nil {
		k.t.Fatal(err)
	}
	r := jobs.NewRegister(fabric.NewGraph(topology))
	source := &jobs.Kubernetes{Client: &http.Client{Timeout: 30 * time.Second, Transport: bearer{k.client.Transport}}, URL: k.url}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { source.Follow(ctx, r, slog.New(slog.DiscardHandler)); close(done) }()
	defer func() { cancel(); <-done }()
	create := func(name, job, node string) {
		k.do("POST", "/api/v1/namespaces/graylink/pods", map[string]any{"metadata": map[string]any{"name": name, "labels": map[string]any{"batch.kubernetes.io/job-name": job}},
			"spec": map[string]any{"nodeName": node, "containers": []any{map[string]any{"name": "c", "image": "none"}}}})
	}
	are := func(want ...string) {
		k.t.Helper()
		var got []string
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			m := r.MapAt(time.Now())
			if m == nil {
				continue
			}
			got = nil
			for _, name := range m.JobNames() {
				got = append(got, name+" "+strings.Join(m.NICsOf(name), " "))
			}
			if slices.Equal(got, want) {
				return
			}
		}
		k.t.Errorf("jobs %q, want %q", got, want)
	}
	create("train-0", "train", "h1")
	are("graylink/train h1/eth1")
	create("train-1", "train", "h2")
	are("graylink/train h1/eth1 h2/eth1")
	k.do("DELETE", "/api/v1/namespaces/graylink/pods/train-0?gracePeriodSeconds=0", nil)
	are("graylink/train h2/eth1")
	// Watches end after 20 s, and the next ones go on where they ended.
	time.Sleep(22 * time.Second)
	create("eval-0", "eval", "h3")
	are("graylink/eval h3/eth1", "graylink/train h2/eth1")
}
