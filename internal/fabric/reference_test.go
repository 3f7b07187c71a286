package fabric

import (
	"go/ast"
	goparser "go/parser"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const referenceFile = "../../docs/topology.md"

func readReference(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(referenceFile)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// parsedKeys returns the keys that the parser of load.go accepts: the first values of its field literals.
func parsedKeys(t *testing.T) []string {
	t.Helper()
	tree, err := goparser.ParseFile(token.NewFileSet(), "load.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	ast.Inspect(tree, func(n ast.Node) bool {
		list, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		of, ok := list.Type.(*ast.ArrayType)
		if !ok {
			return true
		}
		if name, ok := of.Elt.(*ast.Ident); !ok || name.Name != "field" {
			return true
		}
		for _, e := range list.Elts {
			key, err := strconv.Unquote(e.(*ast.CompositeLit).Elts[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, key)
		}
		return true
	})
	return keys
}

// Every key that the parser accepts is in a table of docs/topology.md, as often as it has a meaning, and no key
// is there that the parser does not accept.
func TestReferenceNamesEveryKey(t *testing.T) {
	known := map[string]int{}
	for _, k := range parsedKeys(t) {
		known[k]++
	}
	if len(known) < 20 {
		t.Fatalf("only %d keys were found in load.go: %v", len(known), known)
	}
	described := map[string]int{}
	table := false
	for _, l := range strings.Split(readReference(t), "\n") {
		switch {
		case strings.HasPrefix(l, "| key |"):
			table = true
		case !strings.HasPrefix(l, "|"):
			table = false
		case table:
			cell, _, _ := strings.Cut(strings.TrimPrefix(l, "|"), "|")
			for _, k := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
				described[k[1]]++
			}
		}
	}
	for k, n := range known {
		if described[k] != n {
			t.Errorf("docs/topology.md describes the key %q %d times, the parser accepts it in %d places", k, described[k], n)
		}
	}
	for k := range described {
		if known[k] == 0 {
			t.Errorf("docs/topology.md describes the key %q, which the parser does not accept", k)
		}
	}
}

// Every block of YAML in docs/topology.md is a topology without an error or a warning.
func TestReferenceExamplesLoad(t *testing.T) {
	blocks := regexp.MustCompile("(?s)\n```yaml\n(.*?)\n```\n").FindAllStringSubmatch(readReference(t), -1)
	if len(blocks) == 0 {
		t.Fatal("docs/topology.md has no block of YAML")
	}
	for _, b := range blocks {
		_, found := ParseTopology("docs/topology.md", []byte(b[1]))
		for _, f := range found {
			t.Errorf("%v in\n%s", f, b[1])
		}
	}
}

var verb = regexp.MustCompile(`%[a-z]`)

// Every message of the parser and of the checks has an example in docs/topology.md.
func TestReferenceHasEveryMessage(t *testing.T) {
	text := readReference(t)
	formats := 0
	for _, name := range []string{"load.go", "check.go", "checkgroups.go", "id.go"} {
		tree, err := goparser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		inspect := func(n ast.Node) bool {
			format, ok := messageFormat(n)
			if !ok || strings.Trim(verb.ReplaceAllString(format, ""), " ") == "" {
				return true
			}
			formats++
			var pattern strings.Builder
			for i, part := range verb.Split(format, -1) {
				if i > 0 {
					pattern.WriteString(".*")
				}
				pattern.WriteString(regexp.QuoteMeta(part))
			}
			if !regexp.MustCompile("`" + pattern.String() + "`").MatchString(text) {
				t.Errorf("docs/topology.md has no example of the message %q", format)
			}
			return true
		}
		for _, d := range tree.Decls {
			// The other functions of id.go read directions and flows, which are in no topology file.
			if f, ok := d.(*ast.FuncDecl); ok && (name != "id.go" || strings.HasPrefix(f.Name.Name, "Check") || f.Name.Name == "checkJoin") {
				ast.Inspect(f, inspect)
			}
		}
	}
	if formats < 30 {
		t.Errorf("only %d messages were found", formats)
	}
}

// messageFormat returns the format of a problem's message, or of an error that becomes one.
func messageFormat(n ast.Node) (format string, ok bool) {
	var e ast.Expr
	switch n := n.(type) {
	case *ast.CallExpr:
		f, ok := n.Fun.(*ast.SelectorExpr)
		switch {
		case ok && (f.Sel.Name == "errorf" || f.Sel.Name == "warnf") && len(n.Args) > 2:
			e = n.Args[2]
		case ok && f.Sel.Name == "Errorf":
			e = n.Args[0]
		}
	case *ast.KeyValueExpr:
		if k, ok := n.Key.(*ast.Ident); ok && k.Name == "Message" {
			e = n.Value
		}
	}
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	format, err := strconv.Unquote(l.Value)
	return format, err == nil
}

// The example of docs/contracts.md is an observation that can be read.
func TestReferenceObservation(t *testing.T) {
	text, err := os.ReadFile("../../docs/contracts.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)\n```json\n(.*?)\n```\n").FindSubmatch(text)
	if block == nil {
		t.Fatal("docs/contracts.md has no block of JSON")
	}
	if _, err := ParseObservation(block[1]); err != nil {
		t.Error(err)
	}
}
