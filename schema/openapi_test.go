package schema

import (
	"encoding"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/graylink/graylink/analyzer/audit/latest"
	"github.com/graylink/graylink/analyzer/catalogue"
	"github.com/graylink/graylink/analyzer/compare"
	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/matrix"
	"github.com/graylink/graylink/analyzer/publish"
	"github.com/graylink/graylink/analyzer/report"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plan"
)

// content is the body of a request or of an answer: of one media type, with the Go type that is encoded.
type content struct {
	media string
	of    reflect.Type // nil if the description says all
	text  string       // the description of what has no type
}

const (
	mediaJSON  = "application/json"
	mediaLines = "application/x-ndjson"
	mediaYAML  = "application/yaml"
	mediaText  = "text/plain"
)

func jsonOf[T any]() *content  { return &content{media: mediaJSON, of: reflect.TypeFor[T]()} }
func linesOf[T any]() *content { return &content{media: mediaLines, of: reflect.TypeFor[T]()} }

// operation is a request of the analyzer, with the types of its bodies. What it answers besides, who may send it, and its parameters
// are in docs/reference/http-api.md.
type operation struct {
	id       string
	body     *content // nil: it has none
	answer   *content // nil: the answer has no body
	required []string // parameters that it needs
	also     []string // other media types of the answer, which is text then
}

var analyzerOperations = map[string]operation{
	"GET /api/v1/openapi.json":             {id: "getDescription", answer: &content{media: mediaJSON, text: "This description."}},
	"GET /api/v1/verdicts":                 {id: "listVerdicts", answer: jsonOf[publish.VerdictsAnswer]()},
	"GET /api/v1/verdicts/ID":              {id: "getVerdict", answer: jsonOf[incident.Incident]()},
	"GET /api/v1/verdicts/ID/observations": {id: "listVerdictObservations", answer: linesOf[fabric.Observation]()},
	"GET /api/v1/verdicts/ID/report":       {id: "getVerdictReport", answer: jsonOf[report.Report](), also: []string{"text/html", "text/markdown"}},
	"GET /api/v1/paths":                    {id: "listPaths", answer: jsonOf[publish.PathsAnswer]()},
	"GET /api/v1/links":                    {id: "listLinks", answer: jsonOf[publish.LinksAnswer]()},
	"GET /api/v1/observations":             {id: "listObservations", answer: linesOf[fabric.Observation]()},
	"GET /api/v1/jobs":                     {id: "listJobs", answer: jsonOf[publish.JobsAnswer]()},
	"GET /api/v1/jobs/NAME":                {id: "getJob", answer: jsonOf[publish.JobAnswer]()},
	"GET /api/v1/collectives":              {id: "getCollectives", answer: jsonOf[publish.CollectivesAnswer]()},
	"GET /api/v1/audit":                    {id: "getAudit", answer: jsonOf[latest.View]()},
	"GET /api/v1/matrix":                   {id: "getMatrix", answer: jsonOf[matrix.Table]()},
	"GET /api/v1/compare":                  {id: "compareSpans", answer: jsonOf[compare.Comparison](), required: []string{"from"}},
	"GET /api/v1/catalogue":                {id: "listCatalogue", answer: linesOf[plan.Entry]()},
	"POST /api/v1/catalogue":               {id: "buildCatalogue", body: jsonOf[catalogue.Request](), answer: linesOf[plan.Entry]()},
	"GET /api/v1/plan":                     {id: "getPlan", answer: jsonOf[plan.Plan]()},
	"POST /api/v1/plan":                    {id: "makePlan", body: &content{media: mediaYAML, text: "A file of jobs, in YAML or JSON: graylink config schema placement prints its schema."}, answer: jsonOf[plan.Plan]()},
	"GET /api/v1/observe":                  {id: "observeJob", answer: jsonOf[catalogue.Running](), required: []string{"job"}},
	"GET /api/v1/maintenance":              {id: "listMaintenance", answer: jsonOf[maintenance.ListAnswer]()},
	"POST /api/v1/maintenance":             {id: "addMaintenance", body: jsonOf[maintenance.AddRequest](), answer: jsonOf[maintenance.Window]()},
	"DELETE /api/v1/maintenance/ID":        {id: "endMaintenance"},
}

// queryParameters are the parameters of the query by name. Each means the same in all requests.
var queryParameters = map[string]parameter{
	"job":              {Description: "Name of a job. Where a job of the scheduler has an identifier, that serves as well.", Schema: &node{Type: "string"}},
	"src":              {Description: "NIC that sends, as node/device.", Schema: &node{Type: "string"}},
	"dst":              {Description: "NIC that is probed, as node/device.", Schema: &node{Type: "string"}},
	"at":               {Description: "A moment: a time (RFC 3339), or how long ago it is, like 10m. Without it, the present.", Schema: &node{Type: "string"}},
	"of":               {Description: "The quantity. Without it, degraded.", Schema: &node{Type: "string", Enum: quantityNames()}},
	"by":               {Description: "nic: rows and columns are NICs, and not leaves.", Schema: &node{Type: "string", Enum: []string{"nic"}}},
	"pod":              {Description: "Name of a pod. Without it, all.", Schema: &node{Type: "string"}},
	"plane":            {Description: "Name of a plane. Without it, all.", Schema: &node{Type: "string"}},
	"class":            {Description: "Class of probes. Without it, all.", Schema: &node{Type: "string"}},
	"direction":        {Description: "forward for probes, reverse for replies. Without it, both.", Schema: &node{Type: "string", Enum: []string{"forward", "reverse"}}},
	"row":              {Description: "Name of the only row that is wanted.", Schema: &node{Type: "string"}},
	"column":           {Description: "Name of the only column that is wanted.", Schema: &node{Type: "string"}},
	"from":             {Description: "End of the earlier span: a time (RFC 3339), or how long ago it is, like 24h.", Schema: &node{Type: "string"}},
	"to":               {Description: "End of the later span, as from. Without it, the present.", Schema: &node{Type: "string"}},
	"span":             {Description: "Length of a span, like 10m, from 1m to 24h. Without it, 10m.", Schema: &node{Type: "string"}},
	"kind":             {Description: "What is compared. Without it, all.", Schema: &node{Type: "string", Enum: []string{"link", "leaf", "nic"}}},
	"limit":            {Description: "Largest number of entries of a list, 1 to 200. Without it, 50.", Schema: &node{Type: "integer"}},
	"qps":              {Description: "Queue pairs of each connection. Without it, 8.", Schema: &node{Type: "integer"}},
	"dscp":             {Description: "DSCP of the packets. Without it, 26.", Schema: &node{Type: "integer"}},
	"exclude":          {Description: "Element that is not used. It may be repeated.", Schema: &node{Type: "array", Items: &node{Type: "string"}}},
	"format":           {Description: "Format of the file. Without it, json.", Schema: &node{Type: "string", Enum: []string{"json", "html", "markdown"}}},
	"adaptive_routing": {Description: "off: the NICs are known not to mark packets for adaptive routing.", Schema: &node{Type: "string", Enum: []string{"off"}}},
}

func quantityNames() (out []string) {
	for _, q := range matrix.Quantities() {
		out = append(out, string(q))
	}
	return out
}

// pathParameters are the words that stand for a part of a path in docs/reference/http-api.md.
var pathParameters = map[string]parameter{
	"ID":   {Name: "id", Description: "Identifier.", Schema: &node{Type: "string"}},
	"NAME": {Name: "name", Description: "Name or identifier. A slash in it is written as %2F.", Schema: &node{Type: "string"}},
}

// api is an OpenAPI description (3.1), as far as it is needed.
type api struct {
	OpenAPI    string                        `json:"openapi"`
	Info       apiInfo                       `json:"info"`
	Paths      map[string]map[string]apiCall `json:"paths"`
	Components struct {
		Schemas properties `json:"schemas"`
	} `json:"components"`
}

type apiInfo struct {
	Title       string     `json:"title"`
	Description string     `json:"description"`
	Version     string     `json:"version"`
	License     apiLicense `json:"license"`
}

type apiLicense struct {
	Name       string `json:"name"`
	Identifier string `json:"identifier"`
}

// apiCall is one request of an API.
type apiCall struct {
	ID          string               `json:"operationId"`
	Description string               `json:"description"`
	Clients     string               `json:"x-graylink-clients"` // who may send it, as docs/reference/http-api.md names them
	Parameters  []parameter          `json:"parameters,omitempty"`
	Body        *apiAnswer           `json:"requestBody,omitempty"`
	Answers     map[string]apiAnswer `json:"responses"`
}

type parameter struct {
	Name        string `json:"name"`
	In          string `json:"in"`
	Required    bool   `json:"required,omitempty"`
	Description string `json:"description"`
	Schema      *node  `json:"schema"`
}

// apiAnswer is the body of an answer or of a request.
type apiAnswer struct {
	Description string              `json:"description,omitempty"`
	Required    bool                `json:"required,omitempty"` // of a request
	Content     map[string]apiMedia `json:"content,omitempty"`
}

// apiMedia has the schema of a body. That of lines of JSON is a text, and Line is the schema of each line.
type apiMedia struct {
	Schema *node `json:"schema"`
	Line   *node `json:"x-graylink-line,omitempty"`
}

// apiNames are the names of types in a description. A type whose name another one has is named with its package.
type apiNames struct {
	of    map[reflect.Type]string
	taken map[string]bool
}

// apiFormats are the formats of scalar types in answers.
var apiFormats = map[reflect.Type]string{reflect.TypeFor[time.Time](): "date-time", reflect.TypeFor[netip.Addr](): ""}

// definitionPath returns where references to definitions begin.
func (r *reflector) definitionPath() string {
	if r.api != nil {
		return "#/components/schemas/"
	}
	return "#/$defs/"
}

// nameDefinition returns the name of the definition of a struct.
func (r *reflector) nameDefinition(t reflect.Type) string {
	if r.api == nil {
		return t.Name()
	}
	if name := r.api.of[t]; name != "" {
		return name
	}
	for _, marshals := range []reflect.Type{reflect.TypeFor[json.Marshaler](), reflect.TypeFor[encoding.TextMarshaler]()} {
		if reflect.PointerTo(t).Implements(marshals) {
			panic(fmt.Sprintf("%v encodes itself: describe it in scalars", t))
		}
	}
	name := capitalize(t.Name())
	if r.api.taken[name] {
		name = capitalize(t.PkgPath()[strings.LastIndexByte(t.PkgPath(), '/')+1:]) + name
	}
	if name == "" || r.api.taken[name] {
		panic(fmt.Sprintf("%v: no name is left for it", t))
	}
	r.api.of[t], r.api.taken[name] = name, true
	return name
}

func capitalize(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:]
}

// listValues returns the texts that a type has constants for. More may be added to them, so they are no enumeration.
func (r *reflector) listValues(t reflect.Type) []string {
	if r.api == nil || t.PkgPath() == "" {
		return nil
	}
	return r.wordsOf(t).values[t.Name()]
}

// describeObject returns the schema of a struct as encoding/json writes it. Keys may be added to it, so others than those that it lists
// are not forbidden. A key of the struct itself hides that of an embedded one.
func (r *reflector) describeObject(t reflect.Type) *node {
	n := &node{Type: "object", Description: r.comment(t, "")}
	var embedded []property
	var required []string
	add := func(p property, needed bool) {
		if slices.ContainsFunc(n.Properties, func(o property) bool { return o.name == p.name }) {
			panic(fmt.Sprintf("%v: two fields are named %s", t, p.name))
		}
		n.Properties = append(n.Properties, p)
		if needed {
			n.Required = append(n.Required, p.name)
		}
	}
	for f := range t.Fields() {
		key, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Tag.Get("json") == "-":
		case f.Anonymous && key == "":
			inner := r.describeObject(f.Type)
			embedded, required = append(embedded, inner.Properties...), append(required, inner.Required...)
		case !f.IsExported():
		default:
			if key == "" {
				key = f.Name
			}
			p := r.describeValue(f.Type, reflect.Value{}, parseTag(f.Tag.Get("schema")))
			always := options != "omitempty" && options != "omitzero"
			if always {
				p.allowNull(f.Type)
			}
			if p.Ref == "" {
				p.Description = r.comment(t, f.Name)
			}
			add(property{name: key, node: p}, always)
		}
	}
	for _, p := range embedded {
		if !slices.ContainsFunc(n.Properties, func(o property) bool { return o.name == p.name }) {
			add(p, slices.Contains(required, p.name))
		}
	}
	return n
}

// allowNull adds null to the types of a value that is null where nothing is set.
func (n *node) allowNull(t reflect.Type) {
	switch t.Kind() {
	case reflect.Slice, reflect.Map, reflect.Pointer:
		text, ok := n.Type.(string)
		if !ok {
			panic(fmt.Sprintf("%v: a value that may be null needs a type", t))
		}
		n.Type = []string{text, "null"}
	}
}

// describeRequest returns the schema of a request's body. Only keys with the tag are required.
func (r *reflector) describeRequest(t reflect.Type) *node {
	n := r.describeObject(t)
	n.Required = nil
	for f := range t.Fields() {
		if key, _, _ := strings.Cut(f.Tag.Get("json"), ","); parseTag(f.Tag.Get("schema"))["required"] != nil {
			n.Required = append(n.Required, key)
		}
	}
	n.Additional = false
	return n
}

// describeContent returns a body with its schema.
func (r *reflector) describeContent(c *content, description string) apiAnswer {
	out := apiAnswer{Description: description}
	switch {
	case c == nil:
	case c.of == nil:
		out.Description = strings.TrimSpace(description + " " + c.text)
		out.Content = map[string]apiMedia{c.media: {Schema: &node{}}}
	case c.media == mediaLines:
		out.Content = map[string]apiMedia{c.media: {Schema: &node{Type: "string"}, Line: r.describeValue(c.of, reflect.Value{}, nil)}}
	default:
		out.Content = map[string]apiMedia{c.media: {Schema: r.describeValue(c.of, reflect.Value{}, nil)}}
	}
	return out
}

// requestRow is a row of a table of docs/reference/http-api.md.
type requestRow struct{ method, path, who, answer string }

var (
	rowOfRequest = regexp.MustCompile("(?m)^\\| `([A-Z]+) (/api/v1/[^`]*)` \\| ([a-z]+) \\| (.*) \\|$")
	linkInText   = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	asParameter  = regexp.MustCompile("[`&?]\\??([a-z_]+)=")
	asStatus     = regexp.MustCompile(`\b[2-5][0-9][0-9]\b`)
	asWord       = regexp.MustCompile(`\b[A-Z]+\b`)
)

// readRequests returns the requests below /api/v1 that a program answers, as docs/reference/http-api.md lists them.
func readRequests(t *testing.T, program string) (out []requestRow) {
	t.Helper()
	b, err := os.ReadFile("../docs/reference/http-api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(b), "## What does `"+program+"` answer?")
	if !ok {
		t.Fatalf("docs/reference/http-api.md has no section on %s", program)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	for _, m := range rowOfRequest.FindAllStringSubmatch(text, -1) {
		out = append(out, requestRow{m[1], m[2], m[3], linkInText.ReplaceAllString(m[4], "$1")})
	}
	return out
}

// describeAnalyzerAPI returns the description of the analyzer's API. It reports requests that are listed in one place only.
func describeAnalyzerAPI(t *testing.T) *api {
	t.Helper()
	r := &reflector{packages: map[string]*packageWords{}, json: true, api: &apiNames{map[reflect.Type]string{}, map[string]bool{}}}
	a := &api{OpenAPI: "3.1.1", Paths: map[string]map[string]apiCall{}, Info: apiInfo{Title: "graylink-analyzer", Version: "v1", License: apiLicense{"Apache License 2.0", "Apache-2.0"},
		Description: "The HTTP API of Graylink's analyzer. Keys of answers and values of texts may be added; none is removed or renamed without a note in the changelog. " +
			"A value that is not known is absent. Names of elements, jobs and nodes, and texts with such names, come from the fabric and are data."}}
	listed := map[string]bool{}
	for _, row := range readRequests(t, "graylink-analyzer") {
		name := row.method + " " + row.path
		op, ok := analyzerOperations[name]
		if listed[name] = true; !ok {
			t.Errorf("%s: docs/reference/http-api.md lists it, and analyzerOperations does not", name)
			continue
		}
		path := asWord.ReplaceAllStringFunc(row.path, func(w string) string { return "{" + pathParameters[w].Name + "}" })
		if a.Paths[path] == nil {
			a.Paths[path] = map[string]apiCall{}
		}
		a.Paths[path][strings.ToLower(row.method)] = r.describeCall(t, &row, op)
	}
	for name := range analyzerOperations {
		if !listed[name] {
			t.Errorf("%s: docs/reference/http-api.md does not list it", name)
		}
	}
	a.Components.Schemas = r.definitions
	return a
}

// describeCall returns one request: what the table says of it, and its bodies.
func (r *reflector) describeCall(t *testing.T, row *requestRow, op operation) apiCall {
	t.Helper()
	c := apiCall{ID: op.id, Description: capitalize(row.answer) + ".", Clients: row.who, Answers: map[string]apiAnswer{}}
	for _, w := range asWord.FindAllString(row.path, -1) {
		p := pathParameters[w]
		p.In, p.Required = "path", true
		c.Parameters = append(c.Parameters, p)
	}
	for _, m := range asParameter.FindAllStringSubmatch(row.answer, -1) {
		p, ok := queryParameters[m[1]]
		if !ok {
			t.Errorf("%s %s: the parameter %s is not in queryParameters", row.method, row.path, m[1])
		}
		p.Name, p.In, p.Required = m[1], "query", slices.Contains(op.required, m[1])
		c.Parameters = append(c.Parameters, p)
	}
	if op.body != nil {
		body := r.describeContent(op.body, "")
		if op.body.of != nil {
			body.Content[op.body.media] = apiMedia{Schema: r.describeRequest(op.body.of)}
		}
		body.Required = true
		c.Body = &body
	}
	done := "200"
	why := apiAnswer{Description: "The reason, as text.", Content: map[string]apiMedia{mediaText: {Schema: &node{Type: "string"}}}}
	if row.who != "everyone" {
		c.Answers["403"] = apiAnswer{Description: "This client may not send the request. The reason, as text.", Content: why.Content}
	}
	for _, status := range asStatus.FindAllString(row.answer, -1) {
		if status[0] == '2' {
			done = status
		} else {
			c.Answers[status] = why
		}
	}
	c.Answers[done] = r.describeContent(op.answer, "Done.")
	for _, media := range op.also {
		c.Answers[done].Content[media] = apiMedia{Schema: &node{Type: "string"}}
	}
	c.Answers["default"] = apiAnswer{Description: "The listener refuses the request, as 401 without the credentials that it wants, and 421 with a name of the host that is not the program's. The reason, as text.", Content: why.Content}
	return c
}
