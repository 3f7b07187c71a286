package openapi_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/graylink/graylink/schema/openapi"
	"github.com/graylink/graylink/schema/openapi/openapitest"
)

// TestDescriptionIsOpenAPI has an independent parser read the description, and validate it by the schema of OpenAPI 3.1. A wrong one is
// refused.
func TestDescriptionIsOpenAPI(t *testing.T) {
	openapitest.New(t)
	for what, change := range map[string][2]string{
		"no answers":        {`"responses"`, `"replies"`},
		"a lost definition": {`"#/components/schemas/Symptom"`, `"#/components/schemas/Nothing"`},
		"another place":     {`"in": "query"`, `"in": "body"`},
	} {
		wrong := bytes.ReplaceAll(openapi.Analyzer(), []byte(change[0]), []byte(change[1]))
		if bytes.Equal(wrong, openapi.Analyzer()) {
			t.Errorf("%s: the description does not have %s", what, change[0])
		}
		if _, err := openapitest.NewOf(wrong); err == nil {
			t.Errorf("%s: the description is accepted", what)
		}
	}
}

// TestOperationsHaveNames wants one identifier for each request, by which clients are generated, and a description.
func TestOperationsHaveNames(t *testing.T) {
	var v struct {
		Paths map[string]map[string]struct{ OperationID, Description string }
	}
	if err := json.Unmarshal(openapi.Analyzer(), &v); err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for path, calls := range v.Paths {
		for method, c := range calls {
			if seen[c.OperationID] != "" || c.OperationID == "" || len(c.Description) < 10 {
				t.Errorf("%s %s: identifier %q, also of %q; description %q", method, path, c.OperationID, seen[c.OperationID], c.Description)
			}
			seen[c.OperationID] = method + " " + path
		}
	}
	if len(seen) < 19 {
		t.Errorf("%d requests", len(seen))
	}
}

// TestCheckerRefuses: answers that are not as described are refused, each for its reason.
func TestCheckerRefuses(t *testing.T) {
	c := openapitest.New(t)
	const links = `{"at":"2026-11-29T03:00:00Z","links":[{"link":"a--b","from":"a","to":"b","edges":1,"degraded_edges":0,"loss_ratio":0}]}`
	const line = `{"src":"a/b","dst":"c/d","proto":"udp","dport":4791,"dscp":26,"sport":49152,"path":[],"state":"valid","source":"trace"}` + "\n"
	for _, x := range []struct {
		what, method, path string
		code               int
		media, body, want  string // "": it is as described
	}{
		{"as described", "GET", "/api/v1/links", 200, "application/json", links, ""},
		{"another key", "GET", "/api/v1/links", 200, "application/json", strings.Replace(links, `"edges"`, `"tier":1,"edges"`, 1), "tier"},
		{"a key is missing", "GET", "/api/v1/links", 200, "application/json", strings.Replace(links, `"from":"a",`, "", 1), "from"},
		{"a text for a number", "GET", "/api/v1/links", 200, "application/json", strings.Replace(links, `"edges":1`, `"edges":"1"`, 1), "integer"},
		{"another type of content", "GET", "/api/v1/links", 200, "text/html", links, "text/html"},
		{"another status", "GET", "/api/v1/links", 410, "text/plain", "gone", "410"},
		{"another request", "GET", "/api/v1/nothing", 200, "application/json", "{}", "not described"},
		{"another method", "PUT", "/api/v1/links", 200, "application/json", links, "not described"},
		{"lines", "GET", "/api/v1/catalogue", 200, "application/x-ndjson", line + line, ""},
		{"a line has another key", "GET", "/api/v1/catalogue", 200, "application/x-ndjson", line + strings.Replace(line, `"dport"`, `"port"`, 1), "line 2"},
		{"a parameter is missing", "GET", "/api/v1/observe", 200, "application/json", `{"job":"j","reasons":[],"nodes":[],"missing":[],"others":[],"queue_pairs":[]}`, "job"},
	} {
		rec := httptest.NewRecorder()
		rec.Header().Set("Content-Type", x.media)
		rec.WriteHeader(x.code)
		rec.WriteString(x.body)
		err := c.Validate(httptest.NewRequest(x.method, x.path, http.NoBody), rec)
		if x.want == "" && err != nil || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)) {
			t.Errorf("%s: %v, want %q", x.what, err, x.want)
		}
	}
}
