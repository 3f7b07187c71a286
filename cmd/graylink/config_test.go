package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/graylink/graylink/schema"
)

func TestConfigSchema(t *testing.T) {
	names := schema.ListNames()
	if len(names) < 7 {
		t.Fatalf("only the schemas %v", names)
	}
	for _, name := range names {
		out, stderr, code := runGraylink(t, "", "config", "schema", name)
		var s struct {
			Dialect string `json:"$schema"`
			Closed  *bool  `json:"additionalProperties"`
		}
		if err := json.Unmarshal([]byte(out), &s); err != nil || code != 0 || s.Dialect != "https://json-schema.org/draft/2020-12/schema" || s.Closed == nil || *s.Closed {
			t.Errorf("%s: code %d, %s, %v: %.200s", name, code, stderr, err, out)
		}
	}
	if _, stderr, code := runGraylink(t, "", "config", "schema", "absent"); code != 1 || !strings.Contains(stderr, "topology") {
		t.Errorf("an absent schema: code %d, %s", code, stderr)
	}
}
