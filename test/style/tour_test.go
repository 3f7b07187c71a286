package style

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const tourStops = 10

var (
	tourName = regexp.MustCompile("`([a-z0-9_./A-Z-]+\\.(?:go|yaml|md))(?::\\s([A-Za-z0-9_]+))?`")
	tourStop = regexp.MustCompile(`(?m)^## \d+\. `)
)

// Every file that docs/tour.md names exists, and has the function or alert that is named with it.
func TestTourNamesFunctionsThatExist(t *testing.T) {
	text, err := os.ReadFile(root + "/docs/tour.md")
	if err != nil {
		t.Fatal(err)
	}
	functions := map[string]map[string]bool{} // by file
	for _, s := range sources(t) {
		functions[s.File] = map[string]bool{}
		for _, d := range s.Tree.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				functions[s.File][f.Name.Name] = true
			}
		}
	}
	stops := tourStop.Split(string(text), -1)[1:]
	if len(stops) != tourStops {
		t.Errorf("%d stops, want %d", len(stops), tourStops)
	}
	for i, stop := range stops {
		named := 0
		for _, m := range tourName.FindAllStringSubmatch(stop, -1) {
			file, name := m[1], m[2]
			content, err := os.ReadFile(filepath.Join(root, file))
			switch {
			case err != nil:
				t.Errorf("stop %d: %v", i+1, err)
			case name == "":
			case strings.HasSuffix(file, ".go") && !functions[file][name]:
				t.Errorf("stop %d: %s has no function %s", i+1, file, name)
			case strings.HasSuffix(file, ".yaml") && !strings.Contains(string(content), "- alert: "+name+"\n"):
				t.Errorf("stop %d: %s has no alert %s", i+1, file, name)
			default:
				named++
			}
		}
		if named == 0 {
			t.Errorf("stop %d names no function", i+1)
		}
	}
}
