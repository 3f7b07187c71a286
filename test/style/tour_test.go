package style

import (
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

const tourStops = 10

// parsedSources returns the sources, which tests of documents share, since parsing takes seconds.
var parsedSources = sync.OnceValues(func() ([]Source, error) { return ReadSources(root) })

func sharedSources(t *testing.T) []Source {
	t.Helper()
	s, err := parsedSources()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var (
	tourName = regexp.MustCompile("`([a-z0-9_./A-Z-]+\\.(?:go|yaml|md))(?::\\s([A-Za-z0-9_]+))?`")
	tourStop = regexp.MustCompile(`(?m)^## \d+\. `)
)

// Every file that docs/tour.md and CONTRIBUTING.md name exists, and has the function or alert that is named with it.
func TestTourNamesFunctionsThatExist(t *testing.T) {
	functions := functionsByFile(t)
	stops := tourStop.Split(readDocument(t, "docs/tour.md"), -1)[1:]
	if len(stops) != tourStops {
		t.Errorf("%d stops, want %d", len(stops), tourStops)
	}
	for i, stop := range stops {
		if checkNames(t, fmt.Sprintf("docs/tour.md, stop %d", i+1), stop, functions) == 0 {
			t.Errorf("stop %d names no function", i+1)
		}
	}
	checkNames(t, "CONTRIBUTING.md", readDocument(t, "CONTRIBUTING.md"), functions)
}

func readDocument(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// functionsByFile returns the names of the functions and methods of each file.
func functionsByFile(t *testing.T) map[string]map[string]bool {
	t.Helper()
	functions := map[string]map[string]bool{}
	for _, s := range sharedSources(t) {
		functions[s.File] = map[string]bool{}
		for _, d := range s.Tree.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				functions[s.File][f.Name.Name] = true
			}
		}
	}
	return functions
}

// checkNames reports the names in a text that do not exist, and returns how many names of functions and alerts
// do.
func checkNames(t *testing.T, where, text string, functions map[string]map[string]bool) (named int) {
	t.Helper()
	for _, m := range tourName.FindAllStringSubmatch(text, -1) {
		file, name := m[1], m[2]
		if !strings.Contains(file, "/") {
			continue // one of several of that name, or of the root
		}
		content, err := os.ReadFile(filepath.Join(root, file))
		switch {
		case err != nil:
			t.Errorf("%s: %v", where, err)
		case name == "":
		case strings.HasSuffix(file, ".go") && !functions[file][name]:
			t.Errorf("%s: %s has no function %s", where, file, name)
		case strings.HasSuffix(file, ".yaml") && !strings.Contains(string(content), "- alert: "+name+"\n"):
			t.Errorf("%s: %s has no alert %s", where, file, name)
		default:
			named++
		}
	}
	return named
}
