package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// writeSchemas converts the definitions of an OpenAPI 2 document into the JSON schemas that kubeconform reads: a file with
// all definitions, and one for each kind and version that refers to it. As with kubectl's own check, an object has no
// properties besides those that are described.
func writeSchemas(openAPI, dir string) error {
	text, err := os.ReadFile(openAPI)
	if err != nil {
		return err
	}
	var document struct {
		Definitions map[string]map[string]any `json:"definitions"`
	}
	if err := json.Unmarshal(text, &document); err != nil {
		return fmt.Errorf("%s: %w", openAPI, err)
	}
	// A number is a quantity as well, which OpenAPI 2 cannot express.
	document.Definitions["io.k8s.apimachinery.pkg.api.resource.Quantity"] = map[string]any{"type": []string{"string", "number"}}
	kinds := 0
	for name, definition := range document.Definitions {
		makeStrict(definition)
		versions, ok := definition["x-kubernetes-group-version-kind"].([]any)
		if !ok || len(versions) != 1 {
			continue // a part of objects, or one that every group has
		}
		v, ok := versions[0].(map[string]any)
		if !ok {
			return fmt.Errorf("%s: %s: x-kubernetes-group-version-kind is %v", openAPI, name, versions[0])
		}
		group, version, kind := fmt.Sprint(v["group"]), fmt.Sprint(v["version"]), fmt.Sprint(v["kind"])
		file := strings.ToLower(kind) + "-"
		if group != "" {
			file += strings.ToLower(strings.SplitN(group, ".", 2)[0]) + "-"
		}
		schema := map[string]any{"allOf": []any{
			map[string]any{"$ref": "_definitions.json#/definitions/" + name},
			// The server refuses an object without a name, which the OpenAPI does not say.
			map[string]any{"required": []string{"apiVersion", "kind", "metadata"}, "properties": map[string]any{
				"metadata": map[string]any{"anyOf": []any{map[string]any{"required": []string{"name"}}, map[string]any{"required": []string{"generateName"}}}},
			}},
		}}
		if err := writeJSON(filepath.Join(dir, file+strings.ToLower(version)+".json"), schema); err != nil {
			return err
		}
		kinds++
	}
	if kinds < 50 {
		return fmt.Errorf("%s has %d kinds, which is not a whole Kubernetes", openAPI, kinds)
	}
	return writeJSON(filepath.Join(dir, "_definitions.json"), map[string]any{"definitions": document.Definitions})
}

// makeStrict closes the objects of a schema, and lets a number stand where a number or a word may.
func makeStrict(schema any) {
	switch s := schema.(type) {
	case map[string]any:
		if _, described := s["properties"].(map[string]any); described && s["additionalProperties"] == nil {
			s["additionalProperties"] = false
		}
		if s["format"] == "int-or-string" {
			s["type"] = []string{"string", "integer"}
		}
		// Formats are of OpenAPI, and a property of that name is no format.
		if _, ok := s["format"].(string); ok {
			delete(s, "format")
		}
		for _, v := range s {
			makeStrict(v)
		}
	case []any:
		for _, v := range s {
			makeStrict(v)
		}
	}
}

func writeJSON(file string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}
