//go:build kubernetes

package kubernetes

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const startPage = "../../docs/start-kubernetes.md"

// shellBlock is a block of shell commands of a page, which may be indented.
var shellBlock = regexp.MustCompile("(?ms)^ *```sh\n(.*?)^ *```$")

// needKubelet are the commands of the page that end at a kubelet, and what the API server answers without one, once it has
// found the pod.
var needKubelet = map[string]string{
	"kubectl --namespace graylink logs statefulset/graylink-coordinator":            "no preferred addresses found",
	"kubectl --namespace graylink port-forward service/graylink-analyzer 9872:http": "no preferred addresses found",
}

// startCommands returns the commands of the page in their order. A site's own registry is all that differs.
func startCommands(t *testing.T) (out []string) {
	t.Helper()
	text, err := os.ReadFile(startPage)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range shellBlock.FindAllStringSubmatch(string(text), -1) {
		for _, command := range strings.Split(strings.ReplaceAll(m[1], "\\\n", " "), "\n") {
			if command = strings.Join(strings.Fields(command), " "); command != "" {
				out = append(out, strings.ReplaceAll(command, "=REGISTRY", "=registry.example:5000"))
			}
		}
	}
	return out
}

// TestStartKubernetes runs the commands of docs/start-kubernetes.md as they stand, with kubectl and helm. Two things stand in
// for what is not here: the test reports the pods of the DaemonSet as its controller would, and makes the pods of the
// coordinator and the analyzer by their templates. Commands that need a kubelet get as far as the API server's search for it.
func TestStartKubernetes(t *testing.T) {
	k := newCluster(t)
	k.operatorKinds()
	k.do("POST", "/api/v1/nodes", map[string]any{"metadata": map[string]any{"name": "h1"}})
	// Commands are run at the root of a clone, with the site's topology file beside.
	dir := t.TempDir()
	deploy, err := filepath.Abs("../../deploy")
	if err != nil {
		t.Fatal(err)
	}
	topology, err := os.ReadFile(topologyFile)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "fabric.yaml"), topology, 0o600)
	}
	if err == nil {
		err = os.Symlink(deploy, filepath.Join(dir, "deploy"))
	}
	if err != nil {
		t.Fatal(err)
	}
	commands := startCommands(t)
	if len(commands) != 6 {
		t.Fatalf("the page has %d commands, want 6: %q", len(commands), commands)
	}
	for _, command := range commands {
		c := exec.Command("bash", "-euc", command)
		c.Dir = dir
		c.Env = append(os.Environ(), "PATH="+filepath.Dir(k.helm)+":"+os.Getenv("PATH"), "KUBECONFIG="+filepath.Join(k.dir, "admin.kubeconfig"), "HELM_CACHE_HOME="+k.dir, "HELM_CONFIG_HOME="+k.dir, "HELM_DATA_HOME="+k.dir)
		c.WaitDelay = time.Second
		if strings.Contains(command, "rollout status") {
			k.reportDaemonSet("graylink-node")
		}
		overdue := time.AfterFunc(time.Minute, func() { _ = c.Process.Kill() })
		out, err := c.CombinedOutput()
		overdue.Stop()
		t.Logf("%s\n%s", command, out)
		switch want, fails := needKubelet[command]; {
		case !fails && err != nil:
			t.Fatalf("%s: %v", command, err)
		case fails && (err == nil || !strings.Contains(string(out), want)):
			t.Errorf("%s: %v, want %q", command, err, want)
		}
		if strings.HasPrefix(command, "helm install") {
			k.podOf("statefulsets", "graylink-coordinator")
			k.podOf("deployments", "graylink-analyzer")
		}
	}
}

// reportDaemonSet reports that all pods of a DaemonSet run, as its controller would.
func (k *cluster) reportDaemonSet(name string) {
	k.t.Helper()
	path := "/apis/apps/v1/namespaces/graylink/daemonsets/" + name
	o := k.do("GET", path, nil)
	o["status"] = map[string]any{"observedGeneration": o["metadata"].(map[string]any)["generation"], "desiredNumberScheduled": 1, "currentNumberScheduled": 1,
		"updatedNumberScheduled": 1, "numberReady": 1, "numberAvailable": 1, "numberMisscheduled": 0}
	k.do("PUT", path+"/status", o)
}

// podOf makes a running pod by the template of an object, on node h1.
func (k *cluster) podOf(resource, name string) {
	k.t.Helper()
	spec := k.do("GET", "/apis/apps/v1/namespaces/graylink/"+resource+"/"+name, nil)["spec"].(map[string]any)
	template := spec["template"].(map[string]any)
	pod := template["spec"].(map[string]any)
	pod["nodeName"] = "h1"
	claims, _ := spec["volumeClaimTemplates"].([]any)
	volumes, _ := pod["volumes"].([]any)
	for _, c := range claims {
		claim := c.(map[string]any)["metadata"].(map[string]any)["name"].(string)
		volumes = append(volumes, map[string]any{"name": claim, "persistentVolumeClaim": map[string]any{"claimName": claim + "-" + name + "-0"}})
	}
	pod["volumes"] = volumes
	made := k.do("POST", "/api/v1/namespaces/graylink/pods", map[string]any{"metadata": map[string]any{"name": name + "-0", "labels": template["metadata"].(map[string]any)["labels"]}, "spec": pod})
	made["status"] = map[string]any{"phase": "Running", "conditions": []any{map[string]any{"type": "Ready", "status": "True"}}}
	k.do("PUT", "/api/v1/namespaces/graylink/pods/"+name+"-0/status", made)
}
