package style

import (
	"go/ast"
	"os"
	"regexp"
	"strings"
	"testing"
)

var glossaryRow = regexp.MustCompile("^\\| ([a-z]+) \\| .+ \\| `([a-z0-9/]+)(?:\\.([A-Za-z]+))?` \\|$")

// Every term of docs/glossary.md is in the comments of the package or type that is said to define it.
func TestGlossaryIsTheCode(t *testing.T) {
	text, err := os.ReadFile(root + "/docs/glossary.md")
	if err != nil {
		t.Fatal(err)
	}
	comments := map[string]string{} // by package directory, and by directory and type: comments and names of fields, in lower case
	for _, s := range sources(t) {
		if s.Tests {
			continue
		}
		if s.Tree.Doc != nil {
			comments[s.Dir()] += strings.ToLower(s.Tree.Doc.Text())
		}
		for _, d := range s.Tree.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range g.Specs {
				if of, ok := spec.(*ast.TypeSpec); ok {
					comments[s.Dir()+"."+of.Name.Name] = strings.ToLower(g.Doc.Text() + of.Doc.Text() + fieldText(of.Type))
				}
			}
		}
	}
	terms := 0
	for i, l := range strings.Split(string(text), "\n") {
		if !strings.HasPrefix(l, "| ") || strings.HasPrefix(l, "| term ") {
			continue
		}
		m := glossaryRow.FindStringSubmatch(l)
		if m == nil {
			t.Errorf("docs/glossary.md:%d: %q is not a row of term, meaning and `package.Type`", i+1, l)
			continue
		}
		where := m[2]
		if m[3] != "" {
			where += "." + m[3]
		}
		comment, ok := comments[where]
		switch {
		case !ok:
			t.Errorf("docs/glossary.md:%d: %s is not in the code, or has no comment", i+1, where)
		case !strings.Contains(comment, m[1]):
			t.Errorf("docs/glossary.md:%d: the comment of %s does not have the term %q", i+1, where, m[1])
		}
		terms++
	}
	if terms < 20 {
		t.Errorf("%d terms were found", terms)
	}
}

// fieldText returns the names and comments of a struct's fields.
func fieldText(e ast.Expr) string {
	s, ok := e.(*ast.StructType)
	if !ok {
		return ""
	}
	out := ""
	for _, f := range s.Fields.List {
		for _, n := range f.Names {
			out += " " + n.Name
		}
		out += " " + f.Doc.Text() + f.Comment.Text()
	}
	return out
}
