//go:build packaging

// Package packaging tests what a release is made of: the chart, the packages and the images. make test-packaging runs it.
package packaging

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/analyzer/daemon"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/sizing"
)

// helm is the version that the chart is tested with.
const helm = "helm.sh/helm/v3/cmd/helm@v3.22.0"

const chart = "../../deploy/helm/graylink"

// helmProgram builds helm once. The build cache keeps it.
func helmProgram(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "helm")
	c := exec.Command("go", "install", helm)
	c.Env = append(os.Environ(), "GOBIN="+filepath.Dir(program), "GOFLAGS=")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("go install %s: %v\n%s", helm, err, out)
	}
	return program
}

// run runs helm with values as a file.
func run(t *testing.T, program, values string, args ...string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, program, append(args, "--values", file)...)
	c.Env = append(os.Environ(), "HELM_CACHE_HOME="+t.TempDir(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
	out, err := c.CombinedOutput()
	return string(out), err
}

const inline = "topology: {inline: \"version: 1\\nswitches: []\\nnodes: []\\nlinks: []\\n\"}\n"

// renderings are values that sites may have.
var renderings = map[string]string{
	"as it is": inline,
	"everything": inline + `
image: {tag: v1, pullPolicy: Always, pullSecrets: [{name: regcred}]}
node:
  networks: {mode: multus, attachments: [fabric/rail0]}
  rdma: {enabled: true, resource: rdma/shared}
  csig: {existingConfigMap: csig, source: wide}
  kernelLog: privileged
  condition: true
  health: {gpu: H100}
  collectives: {hostPath: /var/lib/graylink-collectives, ras: "127.0.0.1:28028", socket: {hostPath: /run/graylink, group: 1000000}}
  tolerations: [{operator: Exists}]
  nodeSelector: {gpu: "true"}
  extraArgs: [--log.level=debug]
coordinator:
  replicas: 2
  clockReference: h1
  persistence: {storageClassName: fast, size: 2Gi}
  nodeSelector: {role: infra}
  tolerations: [{operator: Exists}]
  extraArgs: [--log.level=debug]
analyzer:
  replicas: 2
  externalURL: https://graylink.example/fabric
  config: {page_above_nics: 3, jobs: [{file: /etc/graylink/jobs.yaml, format: placement}], maintenance: {file: /etc/graylink/maintenance.yaml}}
  kubernetes: {jobs: true, cordons: true}
  nodeSelector: {role: infra}
  tolerations: [{operator: Exists}]
  extraArgs: [--log.level=debug]
collector:
  enabled: true
  config: {receivers: {gnmi: {}}}
  nodeSelector: {role: infra}
  tolerations: [{operator: Exists}]
prometheus: {operator: true, profile: fleet, labels: {release: kps}}
grafana: {dashboards: true}
`,
	"multus with RDMA":    inline + "node: {networks: {mode: multus, attachments: [fabric/rail0, fabric/rail1]}, rdma: {enabled: true, resource: rdma/shared}}\n",
	"in-band signals":     inline + "node: {csig: {profile: \"interval: 1ms\\n\", source: compact}}\n",
	"privileged":          inline + "node: {kernelLog: privileged, condition: true, health: {gpu: H100}, tolerations: [{operator: Exists}], nodeSelector: {gpu: \"true\"}}\n",
	"Prometheus operator": inline + "prometheus: {operator: true, labels: {release: kps}}\ngrafana: {dashboards: true}\nanalyzer: {replicas: 2}\n",
	"own certificates":    "topology: {existingConfigMap: fabric}\ntls: {existingSecret: mine, existingCAConfigMap: mine-ca}\ncoordinator: {persistence: {enabled: false}, clockReference: h1}\n",
	"collector":           inline + "collector: {enabled: true, config: {receivers: {gnmi: {}}}}\nprometheus: {operator: true}\nnetworkPolicy: {enabled: false}\npdb: {enabled: false}\nanalyzer: {config: {page_above_nics: 3}}\n",
}

// manifestChecker is the program tools/chart with the schemas of the Kubernetes that make test-kubernetes runs.
type manifestChecker struct{ program, openAPI string }

// newManifestChecker builds the program. The build cache keeps it.
func newManifestChecker(t *testing.T) manifestChecker {
	t.Helper()
	c := manifestChecker{program: filepath.Join(t.TempDir(), "chart")}
	var module struct{ Dir, Version string }
	for _, args := range [][]string{
		{"build", "-C", "../../tools/chart", "-o", c.program, "."},
		{"mod", "download", "-C", "../../tools/kubernetes", "-json", "k8s.io/kubernetes"},
	} {
		cmd := exec.Command("go", args...)
		cmd.Env = append(os.Environ(), "GOFLAGS=")
		var failure bytes.Buffer
		cmd.Stderr = &failure
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go %s: %v\n%s%s", strings.Join(args, " "), err, out, failure.String())
		}
		if args[0] == "mod" {
			if err := json.Unmarshal(out, &module); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.openAPI = filepath.Join(module.Dir, "api/openapi-spec/swagger.json")
	return c
}

// run runs the program with arguments.
func (c manifestChecker) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, c.program, append([]string{"-openapi", c.openAPI}, args...)...).CombinedOutput()
	return string(out), err
}

// check checks the objects of a text.
func (c manifestChecker) check(t *testing.T, text string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "manifests.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return c.run(t, file)
}

// TestManifestChecker checks that wrong objects are found.
func TestManifestChecker(t *testing.T) {
	manifests := newManifestChecker(t)
	const meta = "metadata: {name: x}\n"
	for _, tc := range []struct{ what, text, want string }{
		{"a valid object", "apiVersion: v1\nkind: ConfigMap\n" + meta, ""},
		{"a valid quantity, port and label", "apiVersion: v1\nkind: Service\nmetadata: {name: x, labels: {a: b}}\nspec: {ports: [{port: 80, targetPort: http}, {port: 81, targetPort: 82}]}\n", ""},
		{"a field of a pod", "apiVersion: v1\nkind: Pod\n" + meta + "spec: {hostNetworks: true, containers: [{name: c}]}\n", "hostNetworks"},
		{"a type", "apiVersion: v1\nkind: Pod\n" + meta + "spec: {containers: [{name: c, args: [7]}]}\n", "/spec/containers/0/args/0"},
		{"a missing field", "apiVersion: apps/v1\nkind: Deployment\n" + meta + "spec: {template: {}}\n", "selector"},
		{"no name", "apiVersion: v1\nkind: ConfigMap\nmetadata: {}\n", "name"},
		{"a version that is gone", "apiVersion: policy/v1beta1\nkind: PodDisruptionBudget\n" + meta, "PodDisruptionBudget"},
		{"a key twice", "apiVersion: v1\nkind: ConfigMap\n" + meta + "data: {a: b, a: c}\n", "already set"},
		{"a field of a PodMonitor", "apiVersion: monitoring.coreos.com/v1\nkind: PodMonitor\n" + meta + "spec: {podMetricsEndpoint: []}\n", "podMetricsEndpoint"},
		{"a field of a ServiceMonitor", "apiVersion: monitoring.coreos.com/v1\nkind: ServiceMonitor\n" + meta + "spec: {endpoint: []}\n", "endpoint"},
		{"a field of a ScrapeConfig", "apiVersion: monitoring.coreos.com/v1alpha1\nkind: ScrapeConfig\n" + meta + "spec: {httpSDConfig: []}\n", "httpSDConfig"},
		{"a field of a PrometheusRule", "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\n" + meta + "spec: {groups: [{name: a, rules: [{alert: A, exp: x}]}]}\n", "exp"},
		{"another kind of the operator", "apiVersion: monitoring.coreos.com/v1\nkind: PodMonitors\n" + meta, "PodMonitors"},
		{"nothing", "# Source\n", "no objects"},
	} {
		out, err := manifests.check(t, tc.text)
		if (err == nil) != (tc.want == "") || !strings.Contains(out, tc.want) {
			t.Errorf("%s: %v %s, want %q", tc.what, err, out, tc.want)
		}
	}
}

// object is a Kubernetes object, as far as the tests look at it.
type object struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		Template struct {
			Spec struct {
				Containers []struct {
					Image string
					Args  []string
				}
			}
		}
	}
}

func parseObjects(t *testing.T, text string) (out []object) {
	t.Helper()
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var o object
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if o.Kind != "" {
			out = append(out, o)
		}
	}
}

// TestChartTakesPredictedValues renders the chart with the values that graylink size prints for a fleet of 2,000 nodes.
func TestChartTakesPredictedValues(t *testing.T) {
	p, err := sizing.Predict(sizing.Shape{Nodes: 2000, NICs: 16000, Flows: 242614}, sizing.Options{Profile: sizing.Fleet, Scrape: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	out, err := run(t, helmProgram(t), inline+p.Values(), "template", "graylink", chart, "--kube-version", "1.36.0")
	if err != nil || !strings.Contains(out, "memory: 2048Mi") {
		t.Errorf("helm template: %v\n%.2000s", err, out)
	}
}

// TestChart lints and renders the chart. The objects fulfil the schemas of Kubernetes and the types of the Prometheus
// operator, and the programs have the flags that the chart gives them.
func TestChart(t *testing.T) {
	program, manifests := helmProgram(t), newManifestChecker(t)
	for name, values := range renderings {
		t.Run(name, func(t *testing.T) {
			if out, err := run(t, program, values, "lint", "--strict", chart); err != nil {
				t.Fatalf("helm lint: %v\n%s", err, out)
			}
			out, err := run(t, program, values, "template", "graylink", chart, "--namespace", "graylink", "--kube-version", "1.36.0")
			if err != nil {
				t.Fatalf("helm template: %v\n%s", err, out)
			}
			if text, err := manifests.check(t, out); err != nil {
				t.Errorf("%v\n%s", err, text)
			}
			checkAnalyzerConfig(t, out)
			objects := parseObjects(t, out)
			seen := map[string]bool{}
			containers := 0
			for _, o := range objects {
				if id := o.Kind + " " + o.Metadata.Name; seen[id] || o.Metadata.Name == "" {
					t.Errorf("%s twice, or without a name", id)
				} else {
					seen[id] = true
				}
				for _, c := range o.Spec.Template.Spec.Containers {
					containers++
					checkFlags(t, c.Image, c.Args)
				}
			}
			if containers < 3 || !seen["DaemonSet graylink-node"] || !seen["StatefulSet graylink-coordinator"] || !seen["Deployment graylink-analyzer"] {
				t.Errorf("%d containers in %v", containers, seen)
			}
		})
	}
}

// TestChartSocket: the agent has the directory of the profiler plugin's socket from the host, and the group of those who may connect.
func TestChartSocket(t *testing.T) {
	program := helmProgram(t)
	const dir, group = "--collectives.socket=/run/graylink/nccl.sock\n", "--collectives.socket-group="
	for values, want := range map[string]map[string]bool{
		"": {dir: false, group: false, "nccl-socket": false, "supplementalGroups": false},
		"node: {collectives: {socket: {hostPath: /run/graylink}}}\n": {dir: true, group: false, "mountPath: /run/graylink}": true,
			"name: nccl-socket\n          hostPath: {path: /run/graylink, type: DirectoryOrCreate}\n": true, "supplementalGroups": false},
		"node: {collectives: {socket: {hostPath: /run/jobs, group: 1000000}}}\n": {dir: true, group + "1000000\n": true, "path: /run/jobs,": true, "supplementalGroups: [1000000]\n": true},
		"node: {collectives: {socket: {group: 5}}}\n":                            {dir: false, group: false, "supplementalGroups": false},
	} {
		out, err := run(t, program, inline+values, "template", "graylink", chart, "--kube-version", "1.36.0", "--show-only", "templates/node.yaml")
		if err != nil {
			t.Fatalf("helm template: %v\n%s", err, out)
		}
		for text, there := range want {
			if strings.Contains(out, text) != there {
				t.Errorf("%q: %q is there: %t, want %t\n%s", values, text, !there, there, out)
			}
		}
	}
}

// TestChartSignals: the agent has the profile of in-band signals, and the capabilities of a source only if it is one.
func TestChartSignals(t *testing.T) {
	program := helmProgram(t)
	const (
		profile = "--csig.profile=/etc/graylink/csig/csig.yml\n"
		mount   = "{name: csig, mountPath: /etc/graylink/csig, readOnly: true}\n"
		few     = "add: [NET_ADMIN, NET_RAW, NET_BIND_SERVICE]}\n"
		more    = "add: [NET_ADMIN, NET_RAW, NET_BIND_SERVICE, BPF, PERFMON]}\n"
		text    = "ethertypes: {compact: 0x88b5}\ninterval: 1ms\ncompact:\n  2: {edges: [0, 1us]} # not JSON\n"
	)
	for values, want := range map[string]map[string]bool{
		"": {"csig": false, few: true},
		"node: {csig: {profile: \"" + strings.ReplaceAll(text, "\n", "\\n") + "\"}}\n": {profile: true, mount: true, "--csig.source": false, few: true,
			"name: graylink-csig\n": true, "configMap: {name: graylink-csig}\n": true, "checksum/csig": true,
			"  csig.yml: |\n    " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ") + "\n": true},
		"node: {csig: {existingConfigMap: mine, source: wide}}\n": {profile: true, mount: true, "--csig.source=wide\n": true, more: true,
			"name: graylink-csig\n": false, "configMap: {name: mine}\n": true, "checksum/csig": false},
	} {
		out, err := run(t, program, inline+values, "template", "graylink", chart, "--kube-version", "1.36.0", "--show-only", "templates/node.yaml")
		if err != nil {
			t.Fatalf("helm template: %v\n%s", err, out)
		}
		for text, there := range want {
			if strings.Contains(out, text) != there {
				t.Errorf("%q: %q is there: %t, want %t\n%s", values, text, !there, there, out)
			}
		}
	}
}

// checkAnalyzerConfig has the analyzer read the configuration that is made for it, with the files of a pod.
func checkAnalyzerConfig(t *testing.T, text string) {
	t.Helper()
	o, ok := objectsByName(t, text, "")["ConfigMap graylink-analyzer"].(map[string]any)
	if !ok {
		t.Error("there is no configuration of the analyzer")
		return
	}
	dir := t.TempDir()
	topology, err := os.ReadFile("../../deploy/lab/demo.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"topology/topology.yaml": string(topology), "jobs.yaml": "jobs: []\n", "maintenance.yaml": "windows: []\n", "account/token": "x",
		"analyzer.yml": strings.NewReplacer("/etc/graylink/", dir+"/", "/var/run/secrets/kubernetes.io/serviceaccount/", dir+"/account/").Replace(o["data"].(map[string]any)["analyzer.yml"].(string)),
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := daemon.LoadConfig(filepath.Join(dir, "analyzer.yml")); err != nil {
		t.Error(err)
	}
}

// checkFlags fails for flags that a program does not have. Files that the flags name are not here.
func checkFlags(t *testing.T, image string, args []string) {
	t.Helper()
	name := image[strings.LastIndexByte(image, '/')+1 : strings.LastIndexByte(image, ':')]
	if name == "otelcol-graylink" {
		return // its flags are the Collector's
	}
	for i, a := range args {
		args[i] = strings.ReplaceAll(a, "$(NODE_NAME)", "h1")
	}
	out, err := exec.Command("../../bin/"+name, append(args, "--check")...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	for _, text := range []string{"unknown long flag", "expected", "unexpected", "must be"} {
		if bytes.Contains(out, []byte(text)) {
			t.Errorf("%s %s: %s", name, strings.Join(args, " "), out)
		}
	}
}

// TestChartProfiles checks what profile fleet and digests change in the objects.
func TestChartProfiles(t *testing.T) {
	program := helmProgram(t)
	digest := "sha256:" + strings.Repeat("ab", 32)
	out, err := run(t, program, inline+"prometheus: {operator: true, profile: fleet}\nimage: {tag: v1, digests: {graylink-node: "+digest+"}}\n", "template", "graylink", chart, "--namespace", "graylink", "--kube-version", "1.36.0")
	if err != nil {
		t.Fatalf("helm template: %v\n%s", err, out)
	}
	objects := objectsByName(t, out, "")
	for name, want := range map[string]string{"graylink-node": "15s", "graylink-node-nics": "1s", "graylink-node-sums": "30s", "graylink-node-edges": "60s"} {
		if got := objects["ScrapeConfig "+name].(map[string]any)["spec"].(map[string]any)["scrapeInterval"]; got != want {
			t.Errorf("%s is scraped every %v, want %s", name, got, want)
		}
	}
	rules, err := yaml.Marshal(objects["PrometheusRule graylink-aggregates"])
	if err != nil || !strings.Contains(string(rules), "fabric_leaf_pair_owd_seconds[90s]") {
		t.Errorf("rules of profile fleet: %v\n%s", err, rules)
	}
	if !strings.Contains(out, "profile: fleet") {
		t.Error("the analyzer has another profile")
	}
	for _, want := range []string{"/graylink-node@" + digest, "/graylink-analyzer:v1"} {
		if !strings.Contains(out, want) {
			t.Errorf("no image %s", want)
		}
	}
}

// TestWrongValues: each is refused, with its key.
func TestWrongValues(t *testing.T) {
	program := helmProgram(t)
	for i, tc := range []struct{ values, key string }{
		{"", "topology.inline"},
		{inline + "imagee: {}\n", "'imagee'"},
		{inline + "image: {registry: \"\"}\n", "/image/registry"},
		{inline + "image: {pullPolicy: Sometimes}\n", "/image/pullPolicy"},
		{inline + "image: {digests: {graylink-node: latest}}\n", "/image/digests/graylink-node"},
		{inline + "image: {digests: {graylink-nod: \"sha256:ab\"}}\n", "graylink-nod"},
		{inline + "prometheus: {profile: huge}\n", "/prometheus/profile"},
		{inline + "image: {pullSecrets: [regcred]}\n", "/image/pullSecrets"},
		{"topology: {inline: 7}\n", "/topology/inline"},
		{"topology: {file: x}\n", "'file'"},
		{inline + "tls: {existingSecret: mine}\n", "tls.existingCAConfigMap"},
		{inline + "tls: {days: 0}\n", "/tls/days"},
		{inline + "tls: {days: ten}\n", "/tls/days"},
		{inline + "node: {networks: {mode: bridge}}\n", "/node/networks/mode"},
		{inline + "node: {networks: {mode: multus}}\n", "node.networks.attachments"},
		{inline + "node: {rdma: {enabled: true}}\n", "node.rdma.resource"},
		{inline + "node: {rdma: {resource: shared}}\n", "/node/rdma/resource"},
		{inline + "node: {csig: {source: compact}}\n", "node.csig.source"},
		{inline + "node: {csig: {source: both}}\n", "/node/csig/source"},
		{inline + "node: {csig: {profile: {interval: 1ms}}}\n", "/node/csig/profile"},
		{inline + "node: {csig: {profile: \"x\", existingConfigMap: csig}}\n", "node.csig.existingConfigMap"},
		{inline + "node: {kernelLog: kmsg}\n", "/node/kernelLog"},
		{inline + "node: {port: 99999}\n", "/node/port"},
		{inline + "node: {state: {hostPath: var/lib}}\n", "/node/state/hostPath"},
		{inline + "node: {collectives: {hostPath: jobs}}\n", "/node/collectives/hostPath"},
		{inline + "node: {collectives: {ras: \"10.0.0.1:28028\"}}\n", "/node/collectives/ras"},
		{inline + "node: {collectives: {socket: {hostPath: run}}}\n", "/node/collectives/socket/hostPath"},
		{inline + "node: {collectives: {socket: {group: users}}}\n", "/node/collectives/socket/group"},
		{inline + "node: {extraArgs: [-v]}\n", "/node/extraArgs"},
		{inline + "node: {nodeSelector: {gpu: true}}\n", "/node/nodeSelector"},
		{inline + "coordinator: {replicas: 3}\n", "/coordinator/replicas"},
		{inline + "coordinator: {persistence: {size: big}}\n", "/coordinator/persistence/size"},
		{inline + "analyzer: {replicas: 0}\n", "/analyzer/replicas"},
		{inline + "analyzer: {prometheusURL: prometheus:9090}\n", "/analyzer/prometheusURL"},
		{inline + "analyzer: {config: {topology_file: x}}\n", "/analyzer/config"},
		{inline + "analyzer: {kubernetes: {jobs: all}}\n", "/analyzer/kubernetes/jobs"},
		{inline + "analyzer: {kubernetes: {pods: true}}\n", "'pods'"},
		{inline + "analyzer: {kubernetes: {cordons: 1}}\n", "/analyzer/kubernetes/cordons"},
		{inline + "collector: {enabled: true}\n", "collector.config"},
		{inline + "prometheus: {labels: {release: 1}}\n", "/prometheus/labels"},
		{inline + "networkPolicy: {from: all}\n", "/networkPolicy/from"},
	} {
		out, err := run(t, program, tc.values, "template", "graylink", chart, "--kube-version", "1.36.0")
		if err == nil || !strings.Contains(out, tc.key) {
			t.Errorf("%d, %s: %v %s, want a refusal with %s", i, fmt.Sprintf("%.60q", tc.values), err, out, tc.key)
		}
	}
}

// TestChartCertificates has the programs' own code use the certificates that the chart makes.
func TestChartCertificates(t *testing.T) {
	out, err := run(t, helmProgram(t), inline, "template", "graylink", chart, "--namespace", "ns1", "--kube-version", "1.36.0", "--show-only", "templates/tls.yaml")
	if err != nil {
		t.Fatalf("helm template: %v\n%s", err, out)
	}
	dir := t.TempDir()
	var fromConfigMap string
	for d := yaml.NewDecoder(strings.NewReader(out)); ; {
		var o struct {
			Kind string
			Data map[string]string
		}
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		for name, text := range o.Data {
			if o.Kind == "ConfigMap" {
				fromConfigMap = text
				continue
			}
			b, err := base64.StdEncoding.DecodeString(text)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	authority, err := pki.OpenAuthority(at("ca.crt"), at("ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority.Certificate())
	if ca, err := os.ReadFile(at("ca.crt")); err != nil || string(ca) != fromConfigMap {
		t.Errorf("nodes get another authority than the coordinator has (%v)", err)
	}
	for _, name := range []string{"coordinator", "analyzer"} {
		k, err := pki.Open(pki.Files{CA: at("ca.crt"), Cert: at(name + ".crt"), Key: at(name + ".key")}, func(err error) { t.Error(err) })
		if err != nil {
			t.Fatal(err)
		}
		if err := k.CheckOwn(roots); err != nil || !k.Trusts(authority.Certificate()) {
			t.Errorf("%s: %v", name, err)
		}
		if want := map[string]string{"coordinator": "graylink-coordinator.ns1.svc", "analyzer": "analyzer"}[name]; k.CertificateName() != want {
			t.Errorf("%s: %q, want %q", name, k.CertificateName(), want)
		}
	}
}
