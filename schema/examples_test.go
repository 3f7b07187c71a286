package schema

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"gopkg.in/yaml.v3"
)

// example is a file of YAML in the repository, or a block of it in a document.
type example struct {
	at   string
	text []byte
	part bool // a block may be a part of a file
}

var fencedYAML = regexp.MustCompile("(?ms)^ *```ya?ml\n(.*?)^ *```")

// listExamples returns the YAML of the repository, without files that are wrong on purpose.
func listExamples(t *testing.T) (out []example) {
	t.Helper()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if name := d.Name(); name != ".." && (strings.HasPrefix(name, ".") || name == "bin" || name == "dist") {
				return fs.SkipDir
			}
			return nil
		case strings.HasSuffix(path, ".bad.yaml"):
			return nil
		}
		ext := filepath.Ext(path)
		if ext != ".yaml" && ext != ".yml" && ext != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if ext != ".md" {
			// graylink serve reads a site.yaml and fills in the rest.
			out = append(out, example{at: path, text: text, part: filepath.Base(path) == "site.yaml"})
			return nil
		}
		for _, m := range fencedYAML.FindAllSubmatch(text, -1) {
			out = append(out, example{at: path + ": " + strings.SplitN(string(m[1]), "\n", 2)[0], text: m[1], part: true})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// checker validates the files of one schema, and parts of them.
type checker struct {
	name        string
	keys        map[string]bool // of the top level
	whole, part *jsonschema.Schema
}

func newCheckers(t *testing.T) (out []checker) {
	t.Helper()
	for i := range sources {
		name := sources[i].name
		c := checker{name: name, keys: map[string]bool{}}
		c.whole = compileSchema(t, name, func(s map[string]any) {
			for key := range s["properties"].(map[string]any) {
				c.keys[key] = true
			}
		})
		c.part = compileSchema(t, name, func(s map[string]any) {
			delete(s, "required")
			delete(s, "anyOf")
		})
		out = append(out, c)
	}
	return out
}

// fitting returns the checkers that have most of the keys of a file, more than half of them.
func fitting(all []checker, file map[string]any) (best []checker) {
	most := len(file) / 2
	for _, c := range all {
		n := 0
		for key := range file {
			if c.keys[key] {
				n++
			}
		}
		switch {
		case n > most:
			best, most = []checker{c}, n
		case n == most && best != nil:
			best = append(best, c)
		}
	}
	return best
}

// Every example of a configuration file in the repository is valid: files of deploy and of tests, and blocks of documents.
// A file is one of the schema that most of its keys are of.
func TestExamplesAreValid(t *testing.T) {
	all := newCheckers(t)
	valid := map[string]int{}
	for _, e := range listExamples(t) {
		var file map[string]any
		if yaml.Unmarshal(e.text, &file) != nil || len(file) == 0 {
			continue // a template, a list or several documents
		}
		var errs []error
		for _, c := range fitting(all, file) {
			s := c.whole
			if e.part {
				s = c.part
			}
			err := validate(s, e.text)
			if err == nil {
				valid[c.name]++
				t.Logf("%s: %s", c.name, e.at)
				errs = nil
				break
			}
			errs = append(errs, err)
		}
		if err := errors.Join(errs...); err != nil {
			t.Errorf("%s: %v", e.at, err)
		}
	}
	total := 0
	for i := range sources {
		name := sources[i].name
		if valid[name] == 0 {
			t.Errorf("no example of %s was found", name)
		}
		total += valid[name]
	}
	t.Logf("%d examples: %v", total, valid)
	if total < 30 {
		t.Errorf("only %d examples were found", total)
	}
}

// wrongFiles are files that a schema refuses, with the key that the error names.
var wrongFiles = []struct{ schema, key, text string }{
	{"topology", "planes", "{version: 1, planes: 3, switches: [{name: l, role: leaf}], nodes: [{name: h}]}"},
	{"topology", "version", "{switches: [{name: l, role: leaf}], nodes: [{name: h}]}"},
	{"topology", "version", "{version: 2, switches: [{name: l, role: leaf}], nodes: [{name: h}]}"},
	{"topology", "switches", "{version: 1, switches: [], nodes: [{name: h}]}"},
	{"topology", "role", "{version: 1, switches: [{name: l, role: leave}], nodes: [{name: h}]}"},
	{"topology", "role", "{version: 1, switches: [{name: l}], nodes: [{name: h}]}"},
	{"topology", "tier", "{version: 1, switches: [{name: l, role: leaf, tier: 12}], nodes: [{name: h}]}"},
	{"topology", "name", "{version: 1, switches: [{name: leaf/1, role: leaf}], nodes: [{name: h}]}"},
	{"topology", "addresses", "{version: 1, switches: [{name: l, role: leaf, addresses: 10.0.0.1}], nodes: [{name: h}]}"},
	{"topology", "address", "{version: 1, switches: [{name: l, role: leaf}], nodes: [{name: h, address: \"http://h:9868\"}]}"},
	{"topology", "rail", "{version: 1, switches: [{name: l, role: leaf}], nodes: [{name: h, nics: [{device: eth1, rail: left}]}]}"},
	{"topology", "members", "{version: 1, switches: [{name: l, role: leaf}], nodes: [{name: h, bonds: [{name: b, members: []}]}]}"},
	{"topology", "speed_gbps", "{version: 1, switches: [{name: l, role: leaf}], nodes: [{name: h}], links: [{a: h/e, b: \"l:1\", speed_gbps: fast}]}"},
	{"topology", "a_address", "{version: 1, switches: [{name: l, role: leaf}], nodes: [{name: h}], links: [{a: h/e, b: \"l:1\", a_address: 10.0.0.1}]}"},
	{"topology", "b", "{version: 1, switches: [{name: l, role: leaf}], nodes: [{name: h}], links: [{a: h/e, b: leaf1}]}"},
	{"node", "nics", "{node: h1}"},
	{"node", "cadence", "{node: h1, cadence: 10, nics: [{nic: h1/e, address: 10.0.0.1}]}"},
	{"node", "nic", "{node: h1, nics: [{nic: eth1, address: 10.0.0.1}]}"},
	{"node", "address", "{node: h1, nics: [{nic: h1/e}]}"},
	{"node", "dscp", "{node: h1, stamp: {dscp: 64}, nics: [{nic: h1/e, address: 10.0.0.1}]}"},
	{"node", "timestamps", "{node: h1, nics: [{nic: h1/e, address: 10.0.0.1, timestamps: hardware}]}"},
	{"node", "qkey", "{node: h1, nics: [{nic: h1/e, address: 10.0.0.1}], peers: [{nic: h2/e, gid: \"::1\", qpn: 7}]}"},
	{"node", "flow", "{node: h1, nics: [{nic: h1/e, address: 10.0.0.1}], peers: [{nic: h2/e, address: 10.0.0.2, flow: 1}]}"},
	{"nic", "product", "{product: []}"},
	{"nic", "ports", "{products: [{match: h100, rate_bits_per_second: 1}]}"},
	{"nic", "sort", "{thresholds: [{counter: c, sort: sum, window: 10s}]}"},
	{"nic", "severity", "{log: {extra: [{id: a, regexp: b, severity: loud}]}}"},
	{"nic", "every", "{every: 1 second}"},
	{"analyzer", "topology_file", "{prometheus: {url: \"http://p\"}, switches: {url: \"http://{switch}\"}}"},
	{"analyzer", "agents", "{topology_file: topology.yaml, prometheus: {url: \"http://p\"}}"},
	{"analyzer", "url", "{topology_file: topology.yaml, prometheus: {}, switches: {url: \"http://{switch}\"}}"},
	{"analyzer", "coordinator", "{topology_file: topology.yaml, prometheus: {url: \"http://p\"}, agents: {}}"},
	{"analyzer", "backend", "{topology_file: topology.yaml, prometheus: {url: \"http://p\", backend: grpc}, switches: {url: \"http://{switch}\"}}"},
	{"analyzer", "tls_confg", "{topology_file: topology.yaml, prometheus: {url: \"http://p\", tls_confg: {}}, switches: {url: \"http://{switch}\"}}"},
	{"analyzer", "parallel", "{topology_file: topology.yaml, prometheus: {url: \"http://p\"}, evidence: {parallel: 0}, switches: {url: \"http://{switch}\"}}"},
	{"analyzer", "jobs", "{topology_file: topology.yaml, prometheus: {url: \"http://p\"}, jobs: [{file: f, slurm: {}}], switches: {url: \"http://{switch}\"}}"},
	{"analyzer", "key_file", "{topology_file: topology.yaml, prometheus: {url: \"http://p\"}, asking: {address: \"c:1\", ca_file: a, cert_file: b}, switches: {url: \"http://{switch}\"}}"},
	{"maintenance", "until", "{maintenance: [{element: spine1}]}"},
	{"maintenance", "untill", "{maintenance: [{element: spine1, until: 2026-11-22T04:00:00Z, untill: 2026-11-22T04:00:00Z}]}"},
	{"placement", "job", "{jobs: [{nodes: [h1]}]}"},
	{"placement", "hosts", "{jobs: [{job: a, hosts: [h1]}]}"},
	{"ib", "interval", "{interval: 1}"},
	{"ib", "redundancy", "{redundancy: 17}"},
	{"ib", "key_file", "{tls: {ca_file: a, cert_file: b}}"},
}

// Schemas and programs refuse wrong files, and the errors of the schemas name the key.
func TestWrongFilesAreRefused(t *testing.T) {
	parse := newParsers(t)
	schemas := map[string]*jsonschema.Schema{}
	for _, name := range ListNames() {
		schemas[name] = compileSchema(t, name, unchanged)
	}
	for _, w := range wrongFiles {
		if err := validate(schemas[w.schema], []byte(w.text)); err == nil || !regexp.MustCompile(`\b`+w.key+`\b`).MatchString(err.Error()) {
			t.Errorf("%s: %s\n%v, want an error that names %s", w.schema, w.text, err, w.key)
		}
		if parse(w.schema, []byte(w.text)) == nil {
			t.Errorf("the program accepts as %s: %s", w.schema, w.text)
		}
	}
	t.Logf("%d wrong files", len(wrongFiles))
}
