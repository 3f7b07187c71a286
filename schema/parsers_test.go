package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/analyzer/audit"
	"github.com/graylink/graylink/analyzer/daemon"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibagent"
	"github.com/graylink/graylink/internal/nodeagent/health"
	"github.com/graylink/graylink/internal/probe"
)

// parsers run the programs' own parsers on the text of a file, by the name of its schema. The directory has a topology.
var parsers = map[string]func(dir string, text []byte) error{
	"topology": func(_ string, text []byte) error {
		_, problems := fabric.ParseTopology("f", text)
		return problems.Err()
	},
	"node": func(_ string, text []byte) error {
		_, err := probe.ParseConfig(text)
		return err
	},
	"nic": func(dir string, text []byte) error {
		o := health.DefaultOptions()
		return withFile(dir, text, func(file string) error { return health.LoadOptions(file, &o) })
	},
	"analyzer": func(dir string, text []byte) error {
		return withFile(dir, text, func(file string) error {
			_, err := daemon.LoadConfig(file)
			return err
		})
	},
	"maintenance": func(_ string, text []byte) error {
		_, err := maintenance.Parse("f", text, func(element string) error {
			if element == "" {
				return fmt.Errorf("empty")
			}
			return nil
		})
		return err
	},
	"placement": func(_ string, text []byte) error {
		_, err := jobs.Parse(jobs.FormatPlacement, "f", text, time.UTC)
		return err
	},
	"audit": func(_ string, text []byte) error {
		_, err := audit.ParseCriteria("f", text)
		return err
	},
	"ib": func(dir string, text []byte) error {
		return withFile(dir, text, func(file string) error {
			_, err := ibagent.LoadConfig(file)
			return err
		})
	},
}

func withFile(dir string, text []byte, load func(file string) error) error {
	file := filepath.Join(dir, "f.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return err
	}
	return load(file)
}

// newParsers returns a function that runs the parser of a schema.
func newParsers(t *testing.T) func(name string, text []byte) error {
	t.Helper()
	dir := t.TempDir()
	topology, err := os.ReadFile("testdata/topology.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "topology.yaml"), topology, 0o600); err != nil {
		t.Fatal(err)
	}
	return func(name string, text []byte) error { return parsers[name](dir, text) }
}

// compileSchema compiles a schema as `graylink config schema` prints it, after a change to it.
func compileSchema(t *testing.T, name string, change func(schema map[string]any)) *jsonschema.Schema {
	t.Helper()
	text, err := ReadText(name)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	change(doc.(map[string]any))
	c := jsonschema.NewCompiler()
	if err := c.AddResource(name, doc); err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile(name)
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

func unchanged(map[string]any) {}

// validate validates the text of a file.
func validate(s *jsonschema.Schema, text []byte) error {
	var v any
	if err := yaml.Unmarshal(text, &v); err != nil {
		return err
	}
	return s.Validate(plainValue(v))
}

// plainValue returns a value of YAML as JSON has it.
func plainValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = plainValue(v[k])
		}
	case []any:
		for i := range v {
			v[i] = plainValue(v[i])
		}
	case time.Time:
		return v.Format(time.RFC3339)
	}
	return v
}

// semantic are the keys whose values mean something elsewhere, which only the programs check.
var semantic = map[string][]string{
	"analyzer":  {"topology_file", "switches.names[0]", "asking.address", "queries.sent", "evidence.lag", "prometheus.proxy_url", "switches.url", "agents.url", "collectives.follow"},
	"nic":       {"without[0]", "log.severity", "log.extra[0].regexp", "excluded[0]", "management[0]", "expected_down[0]"},
	"node":      {"node", "stamp.classes[1].name", "nics[0].nic", "nics[1].nic", "nics[2].nic", "peers[0].from[0]"},
	"ib":        {"listen", "metrics[0]", "metrics[1]", "delegator", "tls"},
	"placement": {"jobs[0].ranks[0].rank", "jobs[0].ranks[0].node", "jobs[0].ranks[0].nic", "jobs[0].ranks[1].rank", "jobs[0].ranks[1].node"},
	"topology": {"nodes[0].bonds[0].members[0]", "nodes[0].bonds[0].members[1]", "nodes[0].bonds[0].members",
		"switches[0].group", "switches[1].group", "switches[2].group", "switches[3].group", "forwarding", "switches[0].locator", "switches[1].locator"},
}

// structural matches the errors of parsers about keys and types.
var structural = regexp.MustCompile(`unknown key|unknown; want|unknown field|there is no such key|not found in type|cannot unmarshal|, where \S+ is expected`)

// wrongValues are what stands in for each value: another type, and a text and numbers that are no good.
var wrongValues = []string{"{no_such_key: 1}", "[[]]", "~~", "-1", "1000000000000000"}

// A schema refuses a file for its form if and only if the program does. Every key of a valid file is removed once, another
// is put beside it, and its value is replaced. What the programs alone refuse must be about something else than this key.
func TestSchemasAgreeWithParsers(t *testing.T) {
	parse := newParsers(t)
	changes, refused := 0, 0
	all := describeAll()
	for i := range sources {
		name := sources[i].name
		s := compileSchema(t, name, unchanged)
		examples, err := filepath.Glob("testdata/" + name + "*.yaml")
		if err != nil || len(examples) == 0 {
			t.Fatalf("no examples of %s: %v", name, err)
		}
		seen := map[string]bool{}
		for _, file := range examples {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := parse(name, text); err != nil {
				t.Errorf("%s: the program refuses it: %v", file, err)
			}
			if err := validate(s, text); err != nil {
				t.Errorf("%s: the schema refuses it: %v", file, err)
			}
			for _, c := range listChanges(t, text, all[i], seen) {
				bySchema, byParser := validate(s, c.text), parse(name, c.text)
				changes++
				if bySchema != nil {
					refused++
				}
				about := byParser != nil && (structural.MatchString(byParser.Error()) || namesPath(byParser, c.path)) && !slices.Contains(semantic[name], c.path)
				if bySchema != nil && byParser == nil || bySchema == nil && about {
					t.Errorf("%s: %s\nthe schema: %v\nthe program: %v", file, c.what, bySchema, byParser)
				}
			}
		}
		for _, key := range listKeys(all[i]) {
			if !seen[key] {
				t.Errorf("%s: no example has the key %s", name, key)
			}
		}
	}
	t.Logf("%d changed files, of which %d are refused", changes, refused)
	if changes < 1000 || refused < 500 {
		t.Errorf("only %d changes, of which %d are refused", changes, refused)
	}
}

// namesPath reports whether an error names a key by its whole path.
func namesPath(err error, path string) bool {
	return regexp.MustCompile(`(^|[^\w.\]])` + regexp.QuoteMeta(path) + `($|[^\w.\[])`).MatchString(err.Error())
}

// change is a file with one change.
type change struct {
	what, path string
	text       []byte
}

// walker makes the changes of a file. It changes the file's tree, writes it, and changes it back.
type walker struct {
	t       *testing.T
	root    *yaml.Node
	schema  *node
	seen    map[string]bool // keys that were met, as listKeys lists them
	changes []change
}

func listChanges(t *testing.T, text []byte, n *node, seen map[string]bool) []change {
	t.Helper()
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	w := walker{t: t, root: &doc, schema: n, seen: seen}
	w.walk(doc.Content[0], n, "", "")
	return w.changes
}

// record records the file as it is now.
func (w *walker) record(path, format string, args ...any) {
	w.t.Helper()
	b, err := yaml.Marshal(w.root)
	if err != nil {
		w.t.Fatal(err)
	}
	w.changes = append(w.changes, change{path + ": " + fmt.Sprintf(format, args...), path, b})
}

// walk changes all that is in a value. of is the definition that the value is one of.
func (w *walker) walk(y *yaml.Node, n *node, path, of string) {
	if name, ok := strings.CutPrefix(n.Ref, "#/$defs/"); ok {
		n, of = w.schema.definition(name), name
	}
	switch y.Kind {
	case yaml.MappingNode:
		content := y.Content
		if n.Additional == false {
			y.Content = append(slices.Clone(content), &yaml.Node{Kind: yaml.ScalarNode, Value: "no_such_key"}, &yaml.Node{Kind: yaml.ScalarNode, Value: "1"})
			w.record(join(path, "no_such_key"), "added")
		}
		for i := 0; i < len(content); i += 2 {
			key := content[i].Value
			at := join(path, key)
			w.seen[of+"."+key] = true
			y.Content = slices.Delete(slices.Clone(content), i, i+2)
			w.record(at, "removed")
			y.Content = content
			w.walkValue(content[i+1], n.value(key), at, of)
		}
	case yaml.SequenceNode:
		for i, item := range y.Content {
			w.walkValue(item, n.Items, fmt.Sprintf("%s[%d]", path, i), of)
		}
	}
}

// walkValue replaces a value, and changes what is in it.
func (w *walker) walkValue(y *yaml.Node, n *node, path, of string) {
	if n == nil {
		w.t.Errorf("%s: the schema has no such key", path)
		return
	}
	whole := *y
	for _, text := range append(n.numbersAtBounds(), wrongValues...) {
		var doc yaml.Node
		if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
			w.t.Fatal(err)
		}
		if *y = *doc.Content[0]; n.Type == "object" && y.Kind == yaml.MappingNode {
			continue // any keys are right
		}
		w.record(path, "%s", text)
	}
	*y = whole
	w.walk(y, n, path, of)
}

// numbersAtBounds returns the bounds of a number, and the numbers beyond them.
func (n *node) numbersAtBounds() (out []string) {
	for _, x := range []struct {
		bound  *float64
		beyond float64
	}{{n.Minimum, -1}, {n.ExclusiveMinimum, 0}, {n.Maximum, 1}} {
		if x.bound != nil {
			out = append(out, strconv.FormatFloat(*x.bound, 'f', -1, 64), strconv.FormatFloat(*x.bound+x.beyond, 'f', -1, 64))
		}
	}
	return out
}

// definition returns a definition by its name.
func (n *node) definition(name string) *node {
	return n.Definitions[slices.IndexFunc(n.Definitions, func(p property) bool { return p.name == name })].node
}

// value returns the schema of the value of a key, nil if there is none.
func (n *node) value(key string) *node {
	for _, p := range n.Properties {
		if p.name == key {
			return p.node
		}
	}
	values, _ := n.Additional.(*node)
	return values
}

// listKeys returns the keys of a schema as DEFINITION.KEY, without those of other modules.
func listKeys(root *node) (keys []string) {
	add := func(of string, all properties) {
		for _, p := range all {
			if p.group == "" && !p.foreign {
				keys = append(keys, of+"."+p.name)
			}
		}
	}
	add("", root.Properties)
	for _, d := range root.Definitions {
		add(d.name, d.Properties)
	}
	return keys
}

// Every mapping of a schema refuses keys that it does not list.
func TestSchemasAreClosed(t *testing.T) {
	for _, name := range ListNames() {
		text, err := ReadText(name)
		if err != nil {
			t.Fatal(err)
		}
		var v any
		if err := json.Unmarshal(text, &v); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		checkClosed(t, name, v)
	}
	if _, err := ReadText("absent"); err == nil {
		t.Error("a schema that does not exist was read")
	}
}

// checkClosed fails if a mapping with properties accepts other keys.
func checkClosed(t *testing.T, at string, v any) {
	switch v := v.(type) {
	case map[string]any:
		if v["properties"] != nil && v["type"] != nil && v["additionalProperties"] != false {
			t.Errorf("%s accepts keys that it does not list", at)
		}
		for k, x := range v {
			checkClosed(t, at+"/"+k, x)
		}
	case []any:
		for _, x := range v {
			checkClosed(t, at, x)
		}
	}
}
