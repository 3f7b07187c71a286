package style

import (
	"flag"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/graylink/graylink/"

// packageImports returns what each package of the module imports of the module, without tests. Files of every
// build tag count, generated ones as well: those import nothing of the module.
func packageImports(t *testing.T) map[string][]string {
	t.Helper()
	imports := map[string][]string{}
	for _, s := range sharedSources(t) {
		if s.Tests {
			continue
		}
		imports[s.Dir()] = append(imports[s.Dir()], moduleImports(t, &s)...)
	}
	for dir, of := range imports {
		slices.Sort(of)
		imports[dir] = slices.Compact(of)
	}
	return imports
}

func moduleImports(t *testing.T, s *Source) (out []string) {
	t.Helper()
	for _, i := range s.Tree.Imports {
		name, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		if rest, ok := strings.CutPrefix(name, module); ok {
			out = append(out, rest)
		}
	}
	return out
}

// mayImportAll reports whether a package is of cmd or test, which the list leaves out.
func mayImportAll(dir string) bool {
	return strings.HasPrefix(dir, "cmd/") || strings.HasPrefix(dir, "test/")
}

var importList = regexp.MustCompile("(?s)<!-- imports -->\n```\n(.*?)```\n<!-- end of imports -->")

// readImportList returns the list of docs/architecture.md: "package -> package package", or "package -> nothing".
func readImportList(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(root + "/docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	m := importList.FindSubmatch(text)
	if m == nil {
		t.Fatal("docs/architecture.md has no list of imports")
	}
	list := map[string][]string{}
	for _, l := range strings.Split(strings.TrimSpace(strings.ReplaceAll(string(m[1]), "\n    ", " ")), "\n") {
		dir, of, ok := strings.Cut(l, " -> ")
		if _, twice := list[dir]; !ok || twice {
			t.Errorf("docs/architecture.md: %q is no line of the list, or the second of its package", l)
			continue
		}
		list[dir] = []string{}
		if of != "nothing" {
			list[dir] = strings.Fields(of)
		}
	}
	return list
}

var update = flag.Bool("update", false, "write the list of imports of docs/architecture.md")

// writeImportList replaces the list of docs/architecture.md.
func writeImportList(t *testing.T, imports map[string][]string) {
	t.Helper()
	var b strings.Builder
	for _, dir := range slices.Sorted(maps.Keys(imports)) {
		if mayImportAll(dir) {
			continue
		}
		line := dir + " ->"
		for _, name := range imports[dir] {
			if len(line)+1+len(name) > 120 {
				b.WriteString(line + "\n")
				line = "   "
			}
			line += " " + name
		}
		if len(imports[dir]) == 0 {
			line += " nothing"
		}
		b.WriteString(line + "\n")
	}
	file := root + "/docs/architecture.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text = importList.ReplaceAllLiteral(text, []byte("<!-- imports -->\n```\n"+b.String()+"```\n<!-- end of imports -->"))
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// Docs/architecture.md lists every package and what it imports, and no more.
func TestArchitectureListsImports(t *testing.T) {
	imports := packageImports(t)
	if *update {
		writeImportList(t, imports)
	}
	list := readImportList(t)
	if len(imports) < 60 {
		t.Fatalf("only %d packages were found", len(imports))
	}
	for dir, of := range imports {
		if mayImportAll(dir) {
			continue
		}
		want := "nothing"
		if len(of) > 0 {
			want = strings.Join(of, " ")
		}
		if listed, ok := list[dir]; !ok || !slices.Equal(of, listed) {
			t.Errorf("docs/architecture.md: the list of imports needs the line\n%s -> %s\nit has %q", dir, want, listed)
		}
	}
	for dir := range list {
		if _, ok := imports[dir]; !ok || mayImportAll(dir) {
			t.Errorf("docs/architecture.md: %s is in the list of imports and is no package that belongs there", dir)
		}
	}
}

// loopUsers are the packages of the analyzer that are above the loop. All others are its parts.
var loopUsers = []string{"analyzer/daemon", "analyzer/looptest"}

// Internal packages import internal packages only, nothing imports cmd or test from outside, and no part of the
// analyzer imports the loop.
func TestImportsGoOneWay(t *testing.T) {
	for dir, of := range packageImports(t) {
		for _, name := range of {
			top, _, _ := strings.Cut(dir, "/")
			switch {
			case mayImportAll(name) && !strings.HasPrefix(name, top+"/"):
				t.Errorf("%s imports %s", dir, name)
			case top == "analyzer" && name == "analyzer" && !slices.Contains(loopUsers, dir):
				t.Errorf("%s imports %s, which is above it", dir, name)
			case top == "internal" && !strings.HasPrefix(name, "internal/"):
				t.Errorf("%s imports %s, which is above it", dir, name)
			}
		}
	}
}
