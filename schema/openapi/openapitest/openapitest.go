// Package openapitest checks, for tests, that requests and answers are as the description of the analyzer's API says.
package openapitest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	validationerrors "github.com/pb33f/libopenapi-validator/errors"
	"github.com/pb33f/libopenapi-validator/paths"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/graylink/graylink/schema/openapi"
)

// Checker validates requests and answers. It refuses keys that the description does not have, although clients have to accept them.
type Checker struct {
	// Seen counts the answers that were checked, by method, path of the description and status.
	Seen map[string]int

	model     *v3.Document
	validator validator.Validator
	lines     *jsonschema.Compiler
}

const documentURL = "https://graylink.invalid/analyzer.json"

// New returns a checker by the description of the analyzer.
func New(t testing.TB) *Checker {
	t.Helper()
	c, err := NewOf(openapi.Analyzer())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// NewOf returns a checker by a description. It fails if that is not valid by the schema of OpenAPI 3.1.
func NewOf(description []byte) (*Checker, error) {
	closed, err := closeSchemas(description)
	if err != nil {
		return nil, err
	}
	document, err := libopenapi.NewDocument(closed)
	if err != nil {
		return nil, err
	}
	model, err := document.BuildV3Model()
	if err != nil {
		return nil, err
	}
	c := &Checker{Seen: map[string]int{}, model: &model.Model, validator: validator.NewValidatorFromV3Model(&model.Model), lines: jsonschema.NewCompiler()}
	c.validator.SetDocument(document)
	if ok, errs := c.validator.ValidateDocument(); !ok {
		return nil, fmt.Errorf("the description is not OpenAPI 3.1: %w", joinErrors(errs))
	}
	of, err := jsonschema.UnmarshalJSON(bytes.NewReader(closed))
	if err != nil {
		return nil, err
	}
	return c, c.lines.AddResource(documentURL, of)
}

// joinErrors returns all errors of a validation as one, or nil for none.
func joinErrors(errs []*validationerrors.ValidationError) error {
	var all []error
	for _, e := range errs {
		all = append(all, e)
		for _, s := range e.SchemaValidationErrors {
			all = append(all, s)
		}
	}
	return errors.Join(all...)
}

// closeSchemas returns a description whose objects have no other keys than those that it lists, and whose requests have no other
// answers.
func closeSchemas(description []byte) ([]byte, error) {
	var v struct {
		api
		Components struct {
			Schemas map[string]map[string]any `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(description, &v); err != nil {
		return nil, err
	}
	for _, of := range v.Components.Schemas {
		if _, open := of["additionalProperties"]; of["properties"] != nil && !open {
			of["additionalProperties"] = false
		}
	}
	for _, calls := range v.Paths {
		for _, call := range calls {
			if answers, ok := call["responses"].(map[string]any); ok {
				delete(answers, "default")
			}
		}
	}
	return json.Marshal(v)
}

// api is a description, with the parts that closeSchemas changes.
type api struct {
	OpenAPI string                               `json:"openapi"`
	Info    map[string]any                       `json:"info"`
	Paths   map[string]map[string]map[string]any `json:"paths"`
}

// Serve has a handler answer a request, and reports what is not as described: the answer, and of one that succeeded the request.
func (c *Checker) Serve(t testing.TB, h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	r.Body = io.NopCloser(bytes.NewReader(body))
	if err := c.Validate(r, rec); err != nil {
		t.Errorf("%s %s: %d is not as described: %v\n%.2000s", r.Method, r.URL, rec.Code, err, rec.Body)
	}
	return rec
}

// Validate returns what is wrong with an answer to a request, whose body has not been read.
func (c *Checker) Validate(r *http.Request, rec *httptest.ResponseRecorder) error {
	body := rec.Body.Bytes()
	resp := rec.Result()
	defer resp.Body.Close()
	lines := strings.HasPrefix(resp.Header.Get("Content-Type"), "application/x-ndjson")
	resp.Body = io.NopCloser(bytes.NewReader(body))
	if lines && rec.Code < 400 {
		// The validator reads one value of JSON: a text, as the description has it. The lines are validated below.
		resp.Body = io.NopCloser(strings.NewReader(`""`))
	}
	path, errs, name := paths.FindPath(r, c.model, nil)
	if path == nil || len(errs) > 0 {
		return fmt.Errorf("the request is not described: %w", joinErrors(errs))
	}
	c.Seen[fmt.Sprintf("%s %s %d", r.Method, name, rec.Code)]++
	if ok, errs := c.validator.ValidateHttpResponse(r, resp); !ok {
		return joinErrors(errs)
	}
	if rec.Code < 400 {
		if ok, errs := c.validator.ValidateHttpRequest(r); !ok {
			return joinErrors(errs)
		}
	}
	if lines {
		return c.validateLines(name, r.Method, body)
	}
	return nil
}

// validateLines validates each line of an answer.
func (c *Checker) validateLines(path, method string, body []byte) error {
	escaped := strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(path)
	line, err := c.lines.Compile(documentURL + "#/paths/" + escaped + "/" + strings.ToLower(method) + "/responses/200/content/application~1x-ndjson/x-graylink-line")
	if err != nil {
		return err
	}
	for i, text := range bytes.Split(bytes.TrimSpace(body), []byte("\n")) {
		if len(text) == 0 {
			continue
		}
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err == nil {
			err = line.Validate(v)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	return nil
}
