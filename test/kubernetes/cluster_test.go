//go:build kubernetes

// Package kubernetes tests the chart and the enrollment of nodes with a real API server of Kubernetes. There is no kubelet,
// so no pod runs: the tests run the programs themselves, with the tokens that a kubelet would have put into the pods.
package kubernetes

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"
)

// helm is the version that the chart is tested with.
const helm = "helm.sh/helm/v3/cmd/helm@v3.22.0"

// adminToken is that of the tests' administrator.
const adminToken = "tests-administrator"

// cluster is an etcd and an API server.
type cluster struct {
	t      *testing.T
	dir    string
	url    string
	client *http.Client
	helm   string
}

// programs builds the programs that are not ours, and kubectl beside helm. The build cache keeps them.
func programs(t *testing.T) (apiserver, etcd, helmProgram string) {
	t.Helper()
	dir := t.TempDir()
	apiserver, etcd, helmProgram = filepath.Join(dir, "kube-apiserver"), filepath.Join(dir, "etcd"), filepath.Join(dir, "helm")
	for _, args := range [][]string{
		{"build", "-C", "../../tools/kubernetes", "-ldflags", "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3", "-o", apiserver, "k8s.io/kubernetes/cmd/kube-apiserver"},
		{"build", "-C", "../../tools/kubernetes", "-ldflags", "-s -w", "-o", etcd, "go.etcd.io/etcd/server/v3"},
		{"build", "-C", "../../tools/kubernetes", "-ldflags", "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3", "-o", filepath.Join(dir, "kubectl"), "k8s.io/kubernetes/cmd/kubectl"},
		{"install", helm},
	} {
		c := exec.Command("go", args...)
		c.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	return apiserver, etcd, helmProgram
}

// freePorts returns ports of loopback below those that the kernel gives to connections.
func freePorts(t *testing.T, n int) (out []string) {
	t.Helper()
	for port := 21000; len(out) < n && port < 30000; port++ {
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			out = append(out, fmt.Sprint(port))
		}
	}
	if len(out) < n {
		t.Fatal("there are no free ports")
	}
	return out
}

// background starts a program that runs until the test ends, and returns its log.
func background(t *testing.T, program string, args ...string) (log string) {
	t.Helper()
	log = filepath.Join(t.TempDir(), filepath.Base(program)+".log")
	f, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := exec.CommandContext(ctx, program, args...)
	c.Stdout, c.Stderr, c.WaitDelay = f, f, 5*time.Second
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = c.Wait() // it ends by the signal
		f.Close()
	})
	return log
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	apiserver, etcd, helmProgram := programs(t)
	k := &cluster{t: t, dir: t.TempDir(), helm: helmProgram}
	k.write("tokens", adminToken+",admin,admin,system:masters\n")
	k.write("sa.key", serviceAccountKey(t))
	ports := freePorts(t, 3)
	etcdLog := background(t, etcd, "--data-dir", filepath.Join(k.dir, "etcd"), "--listen-client-urls", "http://127.0.0.1:"+ports[0], "--advertise-client-urls", "http://127.0.0.1:"+ports[0],
		"--listen-peer-urls", "http://127.0.0.1:"+ports[1], "--initial-advertise-peer-urls", "http://127.0.0.1:"+ports[1], "--initial-cluster", "default=http://127.0.0.1:"+ports[1], "--log-level", "error")
	apiLog := background(t, apiserver, "--etcd-servers", "http://127.0.0.1:"+ports[0], "--bind-address", "127.0.0.1", "--secure-port", ports[2], "--cert-dir", filepath.Join(k.dir, "pki"),
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", filepath.Join(k.dir, "sa.key"), "--service-account-signing-key-file", filepath.Join(k.dir, "sa.key"),
		"--token-auth-file", filepath.Join(k.dir, "tokens"), "--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.96.0.0/16", "--allow-privileged",
		// No controller makes the accounts and tokens that this plugin wants in each pod.
		"--disable-admission-plugins", "ServiceAccount")
	k.url = "https://127.0.0.1:" + ports[2]
	// The API server signs its own certificate.
	k.client = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		code, _, err := k.send("GET", "/readyz", nil)
		if err == nil && code == http.StatusOK {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the API server is not ready: %d %v\n%s\n%s", code, err, tail(apiLog), tail(etcdLog))
		}
	}
	k.write("admin.kubeconfig", k.kubeconfig(adminToken))
	return k
}

func tail(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-3000):])
}

// serviceAccountKey returns the key that signs the tokens of service accounts.
func serviceAccountKey(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
}

func (k *cluster) write(name, text string) string {
	k.t.Helper()
	file := filepath.Join(k.dir, name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		k.t.Fatal(err)
	}
	return file
}

// kubeconfig returns the text of a kubeconfig for a token.
func (k *cluster) kubeconfig(token string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":%q,"insecure-skip-tls-verify":true}}],"users":[{"name":"u","user":{"token":%q}}],"contexts":[{"name":"x","context":{"cluster":"c","user":"u"}}],"current-context":"x"}`, k.url, token)
}

// send sends a request as the administrator.
func (k *cluster) send(method, path string, body any) (code int, answer map[string]any, err error) {
	var b bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&b).Encode(body); err != nil {
			return 0, nil, err
		}
	}
	q, err := http.NewRequest(method, k.url+path, &b)
	if err != nil {
		return 0, nil, err
	}
	q.Header.Set("Authorization", "Bearer "+adminToken)
	q.Header.Set("Content-Type", "application/json")
	r, err := k.client.Do(q)
	if err != nil {
		return 0, nil, err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return r.StatusCode, nil, err
	}
	_ = json.Unmarshal(text, &answer) // health checks answer with a word
	return r.StatusCode, answer, nil
}

// do sends a request that has to succeed.
func (k *cluster) do(method, path string, body any) map[string]any {
	k.t.Helper()
	code, answer, err := k.send(method, path, body)
	if err != nil || code/100 != 2 {
		k.t.Fatalf("%s %s: %d %v %v", method, path, code, answer["message"], err)
	}
	return answer
}

// operatorKinds has the API server accept the kinds of the Prometheus operator, with the schemas that the operator's own
// types give.
func (k *cluster) operatorKinds() {
	k.t.Helper()
	const types = "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/"
	c := exec.Command("go", "tool", "controller-gen", "crd:allowDangerousTypes=true,maxDescLen=0", "paths="+types+"v1", "paths="+types+"v1alpha1", "output:crd:dir="+k.dir+"/kinds")
	c.Dir, c.Env = "../../tools/chart", append(os.Environ(), "GOFLAGS=")
	if out, err := c.CombinedOutput(); err != nil {
		k.t.Fatalf("controller-gen: %v\n%s", err, out)
	}
	for _, name := range []string{"podmonitors", "servicemonitors", "scrapeconfigs", "prometheusrules"} {
		text, err := os.ReadFile(k.dir + "/kinds/monitoring.coreos.com_" + name + ".yaml")
		if err != nil {
			k.t.Fatal(err)
		}
		var kind map[string]any
		if err := yaml.Unmarshal(text, &kind); err != nil {
			k.t.Fatal(err)
		}
		k.do("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", kind)
		version := kind["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)["name"].(string)
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			code, _, err := k.send("GET", "/apis/monitoring.coreos.com/"+version+"/"+name, nil)
			if err == nil && code == http.StatusOK {
				break
			}
			if time.Now().After(end) {
				k.t.Fatalf("%s are not served after 30 s: %d %v", name, code, err)
			}
		}
	}
}

// objects returns all objects of the chart, by "resource namespace/name", as JSON without what the API server adds.
func (k *cluster) objects() map[string]string {
	k.t.Helper()
	roots := []string{"/api/v1"}
	for _, g := range k.do("GET", "/apis", nil)["groups"].([]any) {
		roots = append(roots, "/apis/"+g.(map[string]any)["preferredVersion"].(map[string]any)["groupVersion"].(string))
		if g.(map[string]any)["name"] == "monitoring.coreos.com" {
			roots = append(roots, "/apis/monitoring.coreos.com/v1alpha1")
		}
	}
	out := map[string]string{}
	for _, root := range roots {
		for _, r := range k.do("GET", root, nil)["resources"].([]any) {
			resource := r.(map[string]any)
			name := resource["name"].(string)
			if strings.Contains(name, "/") || !strings.Contains(fmt.Sprint(resource["verbs"]), "list") {
				continue
			}
			items, _ := k.do("GET", root+"/"+name+"?labelSelector=app.kubernetes.io/instance%3Dgraylink", nil)["items"].([]any)
			for _, item := range items {
				o := item.(map[string]any)
				metadata := o["metadata"].(map[string]any)
				namespace, _ := metadata["namespace"].(string)
				id := name + " " + namespace + "/" + metadata["name"].(string)
				for _, key := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"} {
					delete(metadata, key)
				}
				// The server counts changes, and gives addresses.
				if a, ok := metadata["annotations"].(map[string]any); ok {
					delete(a, "deprecated.daemonset.template.generation")
				}
				if spec, ok := o["spec"].(map[string]any); ok {
					delete(spec, "clusterIP")
					delete(spec, "clusterIPs")
				}
				delete(o, "status")
				text, err := json.Marshal(o)
				if err != nil {
					k.t.Fatal(err)
				}
				out[id] = string(text)
			}
		}
	}
	return out
}

// pod makes a pod of a service account on a node, which nothing runs, and returns its UID.
func (k *cluster) pod(namespace, name, account, node string) string {
	k.t.Helper()
	answer := k.do("POST", "/api/v1/namespaces/"+namespace+"/pods", map[string]any{"metadata": map[string]any{"name": name},
		"spec": map[string]any{"serviceAccountName": account, "nodeName": node, "containers": []any{map[string]any{"name": "c", "image": "none"}}}})
	return answer["metadata"].(map[string]any)["uid"].(string)
}

// token returns what the kubelet would have put into a pod.
func (k *cluster) token(namespace, account, audience, pod, uid string) string {
	k.t.Helper()
	spec := map[string]any{"expirationSeconds": 3600}
	if audience != "" {
		spec["audiences"] = []string{audience}
	}
	if pod != "" {
		spec["boundObjectRef"] = map[string]any{"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid}
	}
	answer := k.do("POST", "/api/v1/namespaces/"+namespace+"/serviceaccounts/"+account+"/token", map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
	return answer["status"].(map[string]any)["token"].(string)
}

// runHelm runs helm as the administrator.
func (k *cluster) runHelm(args ...string) string {
	k.t.Helper()
	c := exec.Command(k.helm, append(args, "--kubeconfig", filepath.Join(k.dir, "admin.kubeconfig"), "--namespace", "graylink")...)
	c.Env = append(os.Environ(), "HELM_CACHE_HOME="+k.dir, "HELM_CONFIG_HOME="+k.dir, "HELM_DATA_HOME="+k.dir)
	out, err := c.CombinedOutput()
	if err != nil {
		k.t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// decode returns what a Secret holds.
func (k *cluster) decode(text string) string {
	k.t.Helper()
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		k.t.Fatal(err)
	}
	return string(b)
}
