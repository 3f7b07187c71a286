// Package schema has the JSON Schemas (draft 2020-12) of the YAML files that users write. Editors and CI check files by
// them. Its test generates them from the structs that the programs read: go test ./schema -update.
//
// A schema covers what can be said of a key by itself: that it exists, its type, its bounds, and which keys are required.
// What depends on other keys or on files is checked by the programs. A schema is stricter than some of them in four spellings:
// a key without a value, a whole number in quotes or with a fraction, and yes for true.
package schema

import (
	"embed"
	"io/fs"
	"strings"
)

//go:embed *.schema.json
var files embed.FS

const suffix = ".schema.json"

// ListNames returns the names of the schemas in order.
func ListNames() (names []string) {
	found, _ := fs.Glob(files, "*"+suffix) // it fails on a wrong pattern only
	for _, name := range found {
		names = append(names, strings.TrimSuffix(name, suffix))
	}
	return names
}

// ReadText returns the text of a schema. It fails if ListNames does not have the name.
func ReadText(name string) ([]byte, error) { return files.ReadFile(name + suffix) }
