//go:build packaging

package packaging

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

var update = flag.Bool("update", false, "write deploy/kustomize")

const kustomize = "../../deploy/kustomize"

// siteObjects are values by which the chart renders none of what a site has to bring: the topology and the keys.
const siteObjects = "topology: {existingConfigMap: graylink-topology}\ntls: {existingSecret: graylink-tls, existingCAConfigMap: graylink-ca}\n"

// kustomizations are the directories of deploy/kustomize, with the chart's values that each corresponds to. All but base
// replace the specification of base's DaemonSet.
var kustomizations = map[string]string{
	"base":       "",
	"privileged": "node: {kernelLog: privileged}\n",
	"multus":     "node: {networks: {mode: multus, attachments: [fabric/rail0, fabric/rail1]}}\n",
}

// generated is the first line of each file that the test writes.
const generated = "# Rendered from deploy/helm/graylink: go test -tags packaging ./test/packaging -run TestKustomize -update\n"

// TestKustomize checks that deploy/kustomize is what the chart renders, that it can be built, and that what is built is
// valid and equal to the chart's objects.
func TestKustomize(t *testing.T) {
	program, manifests := helmProgram(t), newManifestChecker(t)
	want := map[string]string{}
	rendered := map[string][]*yaml.Node{}
	for name, values := range kustomizations {
		out, err := run(t, program, siteObjects+values, "template", "graylink", chart, "--namespace", "graylink", "--kube-version", "1.36.0")
		if err != nil {
			t.Fatalf("helm template: %v\n%s", err, out)
		}
		rendered[name] = withoutHelm(t, out)
		maps.Copy(want, kustomizationFiles(t, name, rendered[name]))
	}
	if *update {
		for name, text := range want {
			file := filepath.Join(kustomize, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	files, err := filepath.Glob(kustomize + "/*/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name, err := filepath.Rel(kustomize, file)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if want[name] != string(text) {
			t.Errorf("%s differs from what the chart renders: -update writes it", file)
		}
		delete(want, name)
	}
	for name := range want {
		t.Errorf("%s/%s is missing: -update writes it", kustomize, name)
	}
	for name := range kustomizations {
		out, err := manifests.run(t, "-kustomize", filepath.Join(kustomize, name))
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
			continue
		}
		got, ofChart := objectsByName(t, out, ""), map[string]any{}
		for _, o := range rendered[name] {
			var b bytes.Buffer
			if err := yaml.NewEncoder(&b).Encode(o); err != nil {
				t.Fatal(err)
			}
			maps.Copy(ofChart, objectsByName(t, b.String(), "graylink"))
		}
		for id, o := range ofChart {
			if !reflect.DeepEqual(got[id], o) {
				t.Errorf("%s: %s is\n%v\nand the chart's is\n%v", name, id, got[id], o)
			}
		}
		if len(got) != len(ofChart) {
			t.Errorf("%s has %v, the chart %v", name, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(ofChart)))
		}
	}
}

// TestKustomizeExample follows deploy/kustomize/README.md as far as it goes without a cluster. The analyzer accepts its
// configuration, and the pods refer to the site's topology and certificates.
func TestKustomizeExample(t *testing.T) {
	readme, err := os.ReadFile(kustomize + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	block := func(language string) string {
		_, rest, found := strings.Cut(string(readme), "```"+language+"\n")
		text, _, ends := strings.Cut(rest, "```")
		if !found || !ends {
			t.Fatalf("no block of %s", language)
		}
		return text
	}
	dir := t.TempDir()
	site := filepath.Join(dir, "site")
	if err := os.CopyFS(filepath.Join(dir, "graylink/deploy/kustomize"), os.DirFS(kustomize)); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(site, "pki"), 0o755); err != nil {
		t.Fatal(err)
	}
	topology, err := os.ReadFile("../../deploy/lab/demo.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"fabric.yaml": string(topology), "kustomization.yaml": block("yaml")} {
		if err := os.WriteFile(filepath.Join(site, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	programs, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("sh", "-e", "-c", block("sh"))
	c.Dir, c.Env = site, append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"))
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := newManifestChecker(t).run(t, "-kustomize", site)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	objects := objectsByName(t, out, "")
	for id, o := range objects {
		text := fmt.Sprint(o)
		if strings.Contains(text, "example.net") {
			t.Errorf("%s has the chart's registry", id)
		}
		for _, name := range []string{"graylink-topology", "graylink-ca", "graylink-tls"} {
			if strings.Contains(text, "ame:"+name+"]") {
				t.Errorf("%s refers to %s, which has another name: %s", id, name, text)
			}
		}
	}
	checkAnalyzerConfig(t, out)
	var generated []string
	for id := range objects {
		if strings.HasPrefix(id, "Secret graylink-tls-") || strings.HasPrefix(id, "ConfigMap graylink-ca-") || strings.HasPrefix(id, "ConfigMap graylink-topology-") {
			generated = append(generated, id)
		}
	}
	if len(generated) != 3 {
		t.Errorf("%q of the site, want three", generated)
	}
}

// withoutHelm returns the objects of a rendering without the labels that only Helm's own objects have.
func withoutHelm(t *testing.T, text string) (out []*yaml.Node) {
	t.Helper()
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var document yaml.Node
		if err := d.Decode(&document); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		if document.Kind == 0 || document.Content[0].Kind != yaml.MappingNode {
			continue
		}
		removeKeys(document.Content[0], "helm.sh/chart", "app.kubernetes.io/managed-by")
		document.HeadComment, document.Content[0].HeadComment, document.Content[0].Content[0].HeadComment = "", "", ""
		out = append(out, document.Content[0])
	}
}

// removeKeys removes keys from a node and from all below it.
func removeKeys(n *yaml.Node, keys ...string) {
	for i := 0; n.Kind == yaml.MappingNode && i < len(n.Content); {
		if slices.Contains(keys, n.Content[i].Value) {
			n.Content = slices.Delete(n.Content, i, i+2)
		} else {
			i += 2
		}
	}
	for _, c := range n.Content {
		removeKeys(c, keys...)
	}
}

// kustomizationFiles returns the files of a directory of deploy/kustomize.
func kustomizationFiles(t *testing.T, name string, objects []*yaml.Node) map[string]string {
	t.Helper()
	out := map[string]string{}
	if name != "base" {
		for _, o := range objects {
			if kind, _ := kindAndName(o); kind == "DaemonSet" {
				out[name+"/node.yaml"] = generated + encode(t, replacingPatch(t, o))
			}
		}
		out[name+"/kustomization.yaml"] = generated + "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../base]\npatches:\n  - path: node.yaml\n"
		return out
	}
	texts := map[string][]string{}
	for _, o := range objects {
		var component string
		for _, c := range []string{"node", "coordinator", "analyzer"} {
			if _, objectName := kindAndName(o); strings.HasPrefix(objectName, "graylink-"+c) {
				component = c
			}
		}
		if component == "" {
			t.Fatalf("%v belongs to no program", o)
		}
		texts[component] = append(texts[component], encode(t, o))
	}
	list := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n# The names of services have the namespace in them.\nnamespace: graylink\nresources:\n"
	for _, c := range slices.Sorted(maps.Keys(texts)) {
		out["base/"+c+".yaml"] = generated + strings.Join(texts[c], "---\n")
		list += "  - " + c + ".yaml\n"
	}
	out["base/kustomization.yaml"] = generated + list
	return out
}

// replacingPatch returns a strategic merge patch by which an object's specification is that of o.
func replacingPatch(t *testing.T, o *yaml.Node) *yaml.Node {
	t.Helper()
	kind, name := kindAndName(o)
	patch := &yaml.Node{}
	if err := yaml.Unmarshal([]byte("apiVersion: apps/v1\nkind: "+kind+"\nmetadata: {name: "+name+"}\n"), patch); err != nil {
		t.Fatal(err)
	}
	patch = patch.Content[0]
	key, spec := child(o, "spec")
	directive := []*yaml.Node{{Kind: yaml.ScalarNode, Value: "$patch"}, {Kind: yaml.ScalarNode, Value: "replace"}}
	replaced := *spec
	replaced.Content = append(directive, spec.Content...)
	patch.Content = append(patch.Content, key, &replaced)
	return patch
}

// child returns the key and the value of a mapping's key.
func child(n *yaml.Node, name string) (key, value *yaml.Node) {
	for i := 0; i < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i], n.Content[i+1]
		}
	}
	return nil, &yaml.Node{}
}

func kindAndName(o *yaml.Node) (kind, name string) {
	_, k := child(o, "kind")
	_, metadata := child(o, "metadata")
	_, n := child(metadata, "name")
	return k.Value, n.Value
}

func encode(t *testing.T, n *yaml.Node) string {
	t.Helper()
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(n); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// objectsByName returns the objects of a text by kind and name. Those of a namespace that do not name it are in the given
// one.
func objectsByName(t *testing.T, text, namespace string) map[string]any {
	t.Helper()
	out := map[string]any{}
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var o map[string]any
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if o == nil {
			continue
		}
		kind, metadata := o["kind"].(string), o["metadata"].(map[string]any)
		if metadata["namespace"] == nil && namespace != "" && !strings.HasPrefix(kind, "ClusterRole") {
			metadata["namespace"] = namespace
		}
		out[kind+" "+metadata["name"].(string)] = o
	}
}
