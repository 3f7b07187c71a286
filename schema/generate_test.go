package schema

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	config_util "github.com/prometheus/common/config"
	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/analyzer/audit"
	"github.com/graylink/graylink/analyzer/daemon"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibagent"
	"github.com/graylink/graylink/internal/nodeagent/health"
	"github.com/graylink/graylink/internal/placement"
	"github.com/graylink/graylink/internal/plainjson"
	"github.com/graylink/graylink/internal/probe"
)

var update = flag.Bool("update", false, "write the schemas, and docs/reference/configuration.md")

// source is a file that users write.
type source struct {
	name, title string
	content     any // the struct of the file, with the values that hold where a file has none
}

var sources = []source{
	{"topology", "the topology file, which most programs read", fabric.Topology{}},
	{"node", "`--config.file` of graylink-node, for a node without a coordinator", probe.DefaultFile()},
	{"nic", "`--nic.config` of graylink-node", health.DefaultFile()},
	{"analyzer", "`--config.file` of graylink-analyzer", daemon.DefaultConfig()},
	{"maintenance", "`maintenance.file` of the analyzer", maintenance.Content[maintenance.Entry]{}},
	{"placement", "a `file` in `jobs` of the analyzer, in the format `placement`", placement.Content[placement.Job]{}},
	{"ib", "`--config.file` of `graylink ib serve`", ibagent.DefaultConfig()},
	{"audit", "`--criteria` of `graylink audit`", audit.DefaultCriteria()},
}

// results are files that programs write, as JSON.
var results = []source{
	{"audit-report", "`audit.json`, which `graylink audit` writes", audit.Report{}},
}

// node is a schema, or a part of one.
type node struct {
	Dialect           string              `json:"$schema,omitempty"`
	ID                string              `json:"$id,omitempty"`
	Ref               string              `json:"$ref,omitempty"`
	Title             string              `json:"title,omitempty"`
	Description       string              `json:"description,omitempty"`
	Type              any                 `json:"type,omitempty"`
	Format            string              `json:"format,omitempty"`
	Enum              []string            `json:"enum,omitempty"`
	Pattern           string              `json:"pattern,omitempty"`
	Minimum           *float64            `json:"minimum,omitempty"`
	ExclusiveMinimum  *float64            `json:"exclusiveMinimum,omitempty"`
	Maximum           *float64            `json:"maximum,omitempty"`
	MinItems          int                 `json:"minItems,omitempty"`
	MaxItems          int                 `json:"maxItems,omitempty"`
	Default           any                 `json:"default,omitempty"`
	Examples          []string            `json:"examples,omitempty"`
	Items             *node               `json:"items,omitempty"`
	Properties        properties          `json:"properties,omitempty"`
	Additional        any                 `json:"additionalProperties,omitempty"` // false, or the schema of all values of a mapping
	Required          []string            `json:"required,omitempty"`
	AnyOf             []requirement       `json:"anyOf,omitempty"`
	OneOf             []requirement       `json:"oneOf,omitempty"`
	DependentRequired map[string][]string `json:"dependentRequired,omitempty"`
	Definitions       properties          `json:"$defs,omitempty"`

	word    string // of the type, for readers
	foreign bool   // a key of another module's struct
}

// requirement is the schema of mappings that have some keys.
type requirement struct {
	Required []string `json:"required"`
}

// properties are keys with their schemas, in the order of the struct.
type properties []property

type property struct {
	name string
	*node
	group string // the type of another module that was inlined and has the key; empty if the struct has it itself
}

func (p properties) MarshalJSON() ([]byte, error) {
	b := bytes.NewBufferString("{")
	for i, x := range p {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(b, "%q:", x.name)
		if err := plainjson.NewEncoder(b).Encode(x.node); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// anyText is the type of texts: the programs take any scalar for one, so that quotes are not needed around 7 or true.
var anyText = []string{"string", "number", "boolean"}

// scalars are the types whose values are texts of a form.
var scalars = map[reflect.Type]node{
	reflect.TypeFor[time.Duration]():          {word: "duration", Type: "string", Pattern: `^[-+]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`},
	reflect.TypeFor[time.Time]():              {word: "time, RFC 3339", Type: "string", Pattern: `^[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].+)?$`},
	reflect.TypeFor[netip.Addr]():             {word: "IP address", Type: "string", Pattern: `^([0-9]+(\.[0-9]+){3}|[0-9A-Fa-f.:]*:[0-9A-Fa-f.:]*(%.+)?)$`},
	reflect.TypeFor[netip.Prefix]():           {word: "IP address with prefix length", Type: "string", Pattern: `^[0-9A-Fa-f.:]*[.:][0-9A-Fa-f.:]*/[0-9]+$`},
	reflect.TypeFor[fabric.Locator]():         {word: "IPv6 prefix of 48 bits", Type: "string", Pattern: `^[0-9A-Fa-f:]*:[0-9A-Fa-f:]*/48$`},
	reflect.TypeFor[config_util.URL]():        {word: "URL", Type: anyText},
	reflect.TypeFor[config_util.TLSVersion](): {Enum: []string{"TLS10", "TLS11", "TLS12", "TLS13"}},
}

// forms are the patterns of texts that tags name. Names are those of internal/fabric.
var forms = map[string]string{
	"name":       `^[^/:>@# \t\r\n]+$`,
	"device":     `^[^>@# \t\r\n]+$`,
	"nic":        `^[^/:>@# \t\r\n]+/[^>@# \t\r\n]+$`,
	"end":        `^[^/:]+[/:].`,
	"url":        `^https?://`,
	"host":       `^([0-9]+(\.[0-9]+){3}|[0-9A-Fa-f.:]*:[0-9A-Fa-f.:]*|[0-9.]*[A-Za-z_-][0-9A-Za-z._-]*)$`,
	"identifier": `^[a-z][a-z0-9_]{0,63}$`,
}

// conditions are what the programs want of several keys of one mapping.
var conditions = map[reflect.Type]node{
	reflect.TypeFor[daemon.Config]():     {AnyOf: []requirement{{[]string{"agents"}}, {[]string{"switches"}}, {[]string{"infiniband"}}}},
	reflect.TypeFor[daemon.Subnet]():     {AnyOf: []requirement{{[]string{"device"}}, {[]string{"urls"}}, {[]string{"ibnetdiscover_file", "lfts_file"}}, {[]string{"ufm"}}}, DependentRequired: map[string][]string{"m_key_file": {"device"}}},
	reflect.TypeFor[ibagent.Config]():    {DependentRequired: map[string][]string{"opensm_log": {"tables"}, "tables": {"listen"}}},
	reflect.TypeFor[daemon.Agents]():     {OneOf: []requirement{{[]string{"url"}}, {[]string{"coordinator"}}}},
	reflect.TypeFor[daemon.Placements](): {OneOf: []requirement{{[]string{"file"}}, {[]string{"slurm"}}, {[]string{"kubernetes"}}}, DependentRequired: map[string][]string{"format": {"file"}}},
	reflect.TypeFor[probe.FileNIC]():     {AnyOf: []requirement{{[]string{"address"}}, {[]string{"device"}}, {[]string{"rdma"}}}},
	reflect.TypeFor[probe.FilePeer](): {AnyOf: []requirement{{[]string{"address"}}, {[]string{"gid"}}},
		DependentRequired: map[string][]string{"gid": {"qpn", "qkey"}, "qpn": {"gid", "qkey"}, "qkey": {"gid", "qpn"}, "lid": {"gid", "qpn", "qkey"}}},
	reflect.TypeFor[ibagent.TLS](): {DependentRequired: map[string][]string{"ca_file": {"cert_file", "key_file"}, "cert_file": {"ca_file", "key_file"}, "key_file": {"ca_file", "cert_file"}}},
}

// reflector makes a schema of a struct by the rules of yaml.v3, the tags yaml and schema, and the comments of fields.
type reflector struct {
	packages    map[string]*packageWords // by path
	json        bool                     // the file is JSON, by the tags json, and times are numbers
	api         *apiNames                // of the schemas of an API, or nil
	definitions properties
}

// packageWords is what the source of a package says of its types.
type packageWords struct {
	comments map[string]string   // by type or type.field
	values   map[string][]string // of the constants of a type that are texts, in their order
}

// describeFile returns the schema of a whole file.
func (r *reflector) describeFile(s *source) *node {
	r.definitions = nil
	v := reflect.ValueOf(s.content)
	n := r.describeMapping(v.Type(), v)
	n.Description = ""
	n.Dialect = "https://json-schema.org/draft/2020-12/schema"
	n.ID = "https://raw.githubusercontent.com/graylink/graylink/main/schema/" + s.name + suffix
	n.Title = "Graylink: " + strings.ReplaceAll(s.title, "`", "")
	n.Definitions = r.definitions
	return n
}

// describeMapping returns the schema of a struct. The value has the defaults.
func (r *reflector) describeMapping(t reflect.Type, v reflect.Value) *node {
	if r.api != nil {
		return r.describeObject(t)
	}
	n := conditions[t]
	n.Type, n.Additional, n.Description = "object", false, r.comment(t, "")
	for i := range t.NumField() {
		f := t.Field(i)
		key, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if r.json {
			key, options, _ = strings.Cut(f.Tag.Get("json"), ",")
		}
		tag := parseTag(f.Tag.Get("schema"))
		switch {
		case !f.IsExported() || key == "-":
		case options == "inline" && f.Type.Kind() == reflect.Map:
			n.Additional = r.describeValue(f.Type.Elem(), reflect.Value{}, tag)
		case options == "inline":
			inlined := r.describeMapping(f.Type, v.Field(i))
			for _, p := range inlined.Properties {
				if isForeign(f.Type) {
					p.group = f.Type.Name()
				}
				n.Properties = append(n.Properties, p)
			}
			n.Required = append(append(n.Required, inlined.Required...), tag["required"]...)
		default:
			p := r.describeValue(f.Type, v.Field(i), tag)
			p.Description, p.foreign = r.comment(t, f.Name), isForeign(t)
			n.Properties = append(n.Properties, property{name: key, node: p})
			if tag["required"] != nil || r.json && options != "omitempty" {
				n.Required = append(n.Required, key)
			}
		}
	}
	return &n
}

// parseTag returns the parts of a tag such as `schema:"required,min=1,enum=a|b"` by their names.
func parseTag(text string) map[string][]string {
	out := map[string][]string{}
	for part := range strings.SplitSeq(text, ",") {
		if name, value, _ := strings.Cut(part, "="); name != "" {
			out[name] = strings.Split(value, "|")
		}
	}
	return out
}

// describeValue returns the schema of a value. The parts of the tag are about the entries of a list or mapping, but for the
// number of entries.
func (r *reflector) describeValue(t reflect.Type, v reflect.Value, tag map[string][]string) *node {
	for t.Kind() == reflect.Pointer {
		if t = t.Elem(); v.IsValid() {
			v = v.Elem()
		}
	}
	n, known := scalars[t]
	if r.json && t == reflect.TypeFor[time.Duration]() {
		n, known = node{}, false
	}
	if r.api != nil && known {
		n.Format, n.Pattern = apiFormats[t], ""
	}
	switch kind := t.Kind(); {
	case known:
	case kind == reflect.Struct:
		return &node{Ref: r.definitionPath() + r.define(t, v)}
	case kind == reflect.Slice:
		n.Type, n.MinItems, n.MaxItems = "array", int(number(tag, "minItems")), int(number(tag, "maxItems"))
		n.Items = r.describeValue(t.Elem(), firstOf(v), tag)
		n.Items.Default = nil
	case kind == reflect.Map:
		values := r.describeValue(t.Elem(), reflect.Value{}, tag)
		n.Type, n.Additional = "object", values
	case kind == reflect.Bool:
		n.Type, n.word = "boolean", "`true` or `false`"
	case kind == reflect.Float64:
		n.Type, n.word = "number", "number"
	case kind == reflect.String && r.json:
		n.Type, n.word = "string", "text"
		n.Examples = r.listValues(t)
	case kind == reflect.String:
		n.Type, n.word = anyText, "text"
	case kind == reflect.Interface:
		n.word = "anything"
	default:
		n.Type, n.word = "integer", "integer"
		if kind >= reflect.Uint && kind <= reflect.Uint32 {
			n.Minimum, n.Maximum = new(float64), bound(math.Ldexp(1, t.Bits())-1)
		}
	}
	if n.Items == nil && t.Kind() != reflect.Map {
		n.applyTag(tag)
	}
	n.Default = defaultOf(v)
	return &n
}

// applyTag sets what a tag says of a scalar.
func (n *node) applyTag(tag map[string][]string) {
	for name, to := range map[string]**float64{"min": &n.Minimum, "above": &n.ExclusiveMinimum, "max": &n.Maximum} {
		if tag[name] != nil {
			*to = bound(number(tag, name))
		}
	}
	if form := tag["form"]; form != nil {
		n.Pattern = forms[form[0]]
		if !regexp.MustCompile(n.Pattern).MatchString("7") {
			n.Type = "string"
		}
	}
	if tag["enum"] != nil {
		n.Type, n.Enum = nil, tag["enum"]
	}
}

func bound(v float64) *float64 { return &v }

// number returns the number of a part of a tag, 0 if it is absent.
func number(tag map[string][]string, name string) float64 {
	if tag[name] == nil {
		return 0
	}
	v, err := strconv.ParseFloat(tag[name][0], 64)
	if err != nil {
		panic(err)
	}
	return v
}

// firstOf returns the first entry of a list, which has the defaults of all.
func firstOf(v reflect.Value) reflect.Value {
	if !v.IsValid() || v.Len() == 0 {
		return reflect.Value{}
	}
	return v.Index(0)
}

// defaultOf returns the value as a file would have it, nil for none.
func defaultOf(v reflect.Value) any {
	if !v.IsValid() || v.IsZero() {
		return nil
	}
	switch x := v.Interface().(type) {
	case time.Duration:
		return zeroParts.ReplaceAllString(x.String(), "$1")
	case string, bool, int, int64, uint8, uint16, float64, []string:
		return x
	}
	return nil
}

// zeroParts are the parts of 24h0m0s that need not be written.
var zeroParts = regexp.MustCompile(`([hm])(0m)?0s$`)

// define adds a struct to the definitions and returns its name there. A struct whose value is not known is the one that an
// empty mapping gives, since UnmarshalYAML sets defaults.
func (r *reflector) define(t reflect.Type, v reflect.Value) string {
	name := r.nameDefinition(t)
	if slices.ContainsFunc(r.definitions, func(p property) bool { return p.name == name }) {
		return name
	}
	if !v.IsValid() && r.api == nil {
		fresh := reflect.New(t)
		_ = yaml.Unmarshal([]byte("{}"), fresh.Interface()) // it fails where keys are required
		v = fresh.Elem()
	}
	at := len(r.definitions)
	r.definitions = append(r.definitions, property{name: name})
	r.definitions[at].node = r.describeMapping(t, v)
	return name
}

// isForeign reports whether a type is of another module.
func isForeign(t reflect.Type) bool {
	return !strings.HasPrefix(t.PkgPath(), "github.com/graylink/graylink/")
}

// comment returns the comment of a struct or of its field as text about the key: without the name in Go. Of a comment in
// another module it is the first sentence, since the others are about the code.
func (r *reflector) comment(t reflect.Type, field string) string {
	key, _, _ := strings.Cut(t.Name(), "[")
	name := key
	if field != "" {
		key, name = key+"."+field, field
	}
	text := strings.Join(strings.Fields(r.wordsOf(t).comments[key]), " ")
	if first, _, more := strings.Cut(text, ". "); more && isForeign(t) {
		text = first + "."
	}
	rest, ok := strings.CutPrefix(text, name+" ")
	if !ok {
		return text
	}
	for _, verb := range []string{"is ", "are "} {
		rest = strings.TrimPrefix(rest, verb)
	}
	first, size := utf8.DecodeRuneInString(rest)
	return string(unicode.ToUpper(first)) + rest[size:]
}

// wordsOf returns what the source of a type's package says.
func (r *reflector) wordsOf(t reflect.Type) *packageWords {
	p := t.PkgPath()
	if r.packages[p] == nil {
		r.packages[p] = readWords(p)
	}
	return r.packages[p]
}

// readWords returns the comments of the structs of a package and of their fields, and the values of its constants.
func readWords(path string) *packageWords {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", path).Output()
	if err != nil {
		panic(fmt.Errorf("go list %s: %w", path, err))
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "*.go"))
	if err != nil {
		panic(err)
	}
	out := &packageWords{comments: map[string]string{}, values: map[string][]string{}}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			panic(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if d, ok := n.(*ast.GenDecl); ok {
				for _, spec := range d.Specs {
					out.addSpec(d, spec)
				}
			}
			return true
		})
	}
	return out
}

// addSpec adds the comments of a type, or the values of constants of a type.
func (w *packageWords) addSpec(d *ast.GenDecl, spec ast.Spec) {
	switch x := spec.(type) {
	case *ast.TypeSpec:
		w.comments[x.Name.Name] = d.Doc.Text() + x.Doc.Text()
		if s, ok := x.Type.(*ast.StructType); ok {
			for _, field := range s.Fields.List {
				for _, id := range field.Names {
					w.comments[x.Name.Name+"."+id.Name] = field.Doc.Text()
				}
			}
		}
	case *ast.ValueSpec:
		of, ok := x.Type.(*ast.Ident)
		if !ok || d.Tok != token.CONST {
			return
		}
		for _, value := range x.Values {
			if lit, ok := value.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil && text != "" {
					w.values[of.Name] = append(w.values[of.Name], text)
				}
			}
		}
	}
}

// describeAll returns the schemas of all sources, in their order.
func describeAll() (out []*node) {
	r := &reflector{packages: map[string]*packageWords{}}
	for i := range sources {
		out = append(out, r.describeFile(&sources[i]))
	}
	return out
}

// describeResults returns the schemas of all results, in their order.
func describeResults() (out []*node) {
	r := &reflector{packages: map[string]*packageWords{}, json: true}
	for i := range results {
		out = append(out, r.describeFile(&results[i]))
	}
	return out
}

// The schemas are those of the structs, and docs/reference/configuration.md is made of them. -update writes both.
func TestGeneratedFilesAreUpToDate(t *testing.T) {
	all := describeAll()
	files := slices.Concat(sources, results)
	for i, n := range slices.Concat(all, describeResults()) {
		b, err := json.MarshalIndent(n, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		checkGenerated(t, files[i].name+suffix, unescape(append(b, '\n')))
	}
	if names := ListNames(); len(names) != len(files) && !*update {
		t.Errorf("the schemas are %v, want those of %d files", names, len(files))
	}
	checkGenerated(t, "../docs/reference/configuration.md", []byte(writeReference(all)))
	b, err := json.MarshalIndent(describeAnalyzerAPI(t), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	checkGenerated(t, "openapi/analyzer.json", unescape(append(b, '\n')))
}

// unescape returns JSON without the escapes that HTML needs.
func unescape(b []byte) []byte {
	return []byte(strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(string(b)))
}

// checkGenerated compares a file with what it should be, or writes it.
func checkGenerated(t *testing.T, name string, want []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(name)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not what the code has (%v); run: go test ./schema -update", name, err)
	}
}
