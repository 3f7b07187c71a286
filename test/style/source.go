// Package style holds the project's rules of language that a program can check: names, comments,
// help texts and the lines of documents. docs/glossary.md has the vocabulary.
//
// Its rules, which the tests are named after:
//
//  1. Fewer than MaxOneWord of a hundred functions have a name of one word.
//  2. No name, comment, message or document uses a word of banned.
//  3. The comment of a function says what it does or returns: it does not begin with "Name is".
//  4. A help text is a phrase of at most MaxHelp characters that begins with a capital letter and ends with a period.
//  5. A line of a document has at most MaxLine characters, outside tables, blocks of code and links.
//  6. A function has at most MaxFunction lines, of which those of tables (composite literals) are not counted.
package style

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of the rules.
const (
	MaxOneWord = 45  // percent
	MaxHelp    = 100 // characters
	MaxLine    = 120 // characters

	MaxFunction = 99 // lines
)

// banned lists the words that stand for something more exact.
var banned = regexp.MustCompile(`(?i)\b(tell|tells|telling|told|whom|nobody)\b`)

// bannedNames lists the words that no name is made of.
var bannedNames = map[string]bool{
	"tell": true, "tells": true, "told": true, "whom": true, "nobody": true, "vouch": true, "vouched": true, "aside": true,
}

// Problem is one place that breaks a rule.
type Problem struct {
	File string // slash-separated, from the root of the project
	Line int
	Text string
}

func (p Problem) String() string { return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Text) }

// Source is a parsed Go file.
type Source struct {
	File  string // slash-separated, from the root of the project
	Set   *token.FileSet
	Tree  *ast.File
	Tests bool // a file of tests
}

// ReadSources parses the Go files below a directory, without generated ones and testdata.
func ReadSources(root string) ([]Source, error) {
	var out []Source
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := d.Name(); base == "testdata" || base == ".git" || base == "bin" || base == "node_modules" {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		set := token.NewFileSet()
		tree, err := parser.ParseFile(set, name, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		if ast.IsGenerated(tree) {
			return nil
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		out = append(out, Source{File: filepath.ToSlash(rel), Set: set, Tree: tree, Tests: strings.HasSuffix(name, "_test.go")})
		return nil
	})
	return out, err
}

// Dir returns the directory of the file's package.
func (s *Source) Dir() string { return path.Dir(s.File) }

func (s *Source) problem(at token.Pos, format string, args ...any) Problem {
	return Problem{s.File, s.Set.Position(at).Line, fmt.Sprintf(format, args...)}
}

// words splits a name in camel case.
func words(name string) []string {
	var out []string
	start := 0
	runes := []rune(name)
	for i := 1; i < len(runes); i++ {
		lowerThenUpper := unicode.IsUpper(runes[i]) && !unicode.IsUpper(runes[i-1])
		endOfCapitals := unicode.IsUpper(runes[i]) && i+1 < len(runes) && unicode.IsLower(runes[i+1]) && unicode.IsUpper(runes[i-1])
		if lowerThenUpper || endOfCapitals || runes[i] == '_' {
			out = append(out, strings.Trim(string(runes[start:i]), "_"))
			start = i
		}
	}
	return append(out, strings.Trim(string(runes[start:]), "_"))
}

// CountOneWord returns how many functions and methods there are outside tests, and how many of them have a
// name of one word.
func CountOneWord(sources []Source) (all, one int) {
	for i := range sources {
		if sources[i].Tests {
			continue
		}
		for _, d := range sources[i].Tree.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				all++
				if len(words(f.Name.Name)) == 1 {
					one++
				}
			}
		}
	}
	return all, one
}

// CheckNames returns the declared names that have a banned word.
func (s *Source) CheckNames() (found []Problem) {
	check := func(id *ast.Ident) {
		for _, w := range words(id.Name) {
			if bannedNames[strings.ToLower(w)] {
				found = append(found, s.problem(id.Pos(), "the name %s has the word %q", id.Name, w))
				return
			}
		}
	}
	ast.Inspect(s.Tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			check(n.Name)
		case *ast.TypeSpec:
			check(n.Name)
		case *ast.ValueSpec:
			for _, id := range n.Names {
				check(id)
			}
		case *ast.Field:
			for _, id := range n.Names {
				check(id)
			}
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				for _, e := range n.Lhs {
					if id, ok := e.(*ast.Ident); ok {
						check(id)
					}
				}
			}
		}
		return true
	})
	return found
}

// CheckWords returns the comments and strings that have a banned word. Import paths are left out.
func (s *Source) CheckWords() (found []Problem) {
	for _, group := range s.Tree.Comments {
		for _, c := range group.List {
			for i, l := range strings.Split(c.Text, "\n") {
				if w := banned.FindString(l); w != "" {
					p := s.problem(c.Pos(), "a comment has the word %q: %s", w, strings.TrimSpace(l))
					p.Line += i
					found = append(found, p)
				}
			}
		}
	}
	ast.Inspect(s.Tree, func(n ast.Node) bool {
		if _, ok := n.(*ast.ImportSpec); ok {
			return false
		}
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if w := banned.FindString(l.Value); w != "" {
				found = append(found, s.problem(l.Pos(), "a text has the word %q: %.100s", w, l.Value))
			}
		}
		return true
	})
	return found
}

var definition = regexp.MustCompile(`^(is|are|was|were)\b`)

// CheckFunctionComments returns the comments of functions that define instead of saying what the function
// does.
func (s *Source) CheckFunctionComments() (found []Problem) {
	for _, d := range s.Tree.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Doc == nil {
			continue
		}
		first, _, _ := strings.Cut(f.Doc.Text(), "\n")
		rest, ok := strings.CutPrefix(first, f.Name.Name+" ")
		if ok && definition.MatchString(rest) {
			found = append(found, s.problem(f.Doc.Pos(), "the comment does not say what the function does: %s", first))
		}
	}
	return found
}

// CheckFunctionLengths returns the functions that break rule 6. Those of tests may be longer.
func (s *Source) CheckFunctionLengths() (found []Problem) {
	if s.Tests {
		return nil
	}
	lines := func(n ast.Node) int { return s.Set.Position(n.End()).Line - s.Set.Position(n.Pos()).Line }
	for _, d := range s.Tree.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		code := lines(f) + 1
		ast.Inspect(f, func(n ast.Node) bool {
			if table, ok := n.(*ast.CompositeLit); ok {
				code -= lines(table)
				return false
			}
			return true
		})
		if code > MaxFunction {
			found = append(found, s.problem(f.Pos(), "%s has %d lines, want at most %d", f.Name.Name, code, MaxFunction))
		}
	}
	return found
}

// CheckHelp returns the help texts of series that break rule 4: the second argument of prometheus.NewDesc, and
// fields named Help of composite literals.
func (s *Source) CheckHelp() (found []Problem) {
	check := func(e ast.Expr) {
		l, ok := e.(*ast.BasicLit)
		if !ok || l.Kind != token.STRING {
			return
		}
		text, err := strconv.Unquote(l.Value)
		if err != nil || text == "" {
			return
		}
		first, _ := utf8.DecodeRuneInString(text)
		switch {
		case !unicode.IsUpper(first) && !unicode.IsDigit(first):
			found = append(found, s.problem(l.Pos(), "a help text begins with a capital letter: %q", text))
		case !strings.HasSuffix(text, "."):
			found = append(found, s.problem(l.Pos(), "a help text ends with a period: %q", text))
		case utf8.RuneCountInString(text) > MaxHelp:
			found = append(found, s.problem(l.Pos(), "a help text of %d characters, want at most %d: %q", utf8.RuneCountInString(text), MaxHelp, text))
		}
	}
	if s.Tests {
		return nil
	}
	ast.Inspect(s.Tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "NewDesc" && len(n.Args) > 1 {
				check(n.Args[1])
			}
		case *ast.KeyValueExpr:
			if id, ok := n.Key.(*ast.Ident); ok && id.Name == "Help" {
				check(n.Value)
			}
		}
		return true
	})
	return found
}

var link = regexp.MustCompile(`\]\([^)]*\)|https?://\S+`)

// CheckDocument returns the lines of a document that break rules 2 and 5.
func CheckDocument(root, file string) (found []Problem, err error) {
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
	if err != nil {
		return nil, err
	}
	code := false
	for i, l := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(strings.TrimSpace(l), "```") {
			code = !code
			continue
		}
		if code {
			continue
		}
		if n := utf8.RuneCountInString(link.ReplaceAllString(l, "")); n > MaxLine && !strings.HasPrefix(strings.TrimSpace(l), "|") {
			found = append(found, Problem{file, i + 1, fmt.Sprintf("a line of %d characters, want at most %d", n, MaxLine)})
		}
		if w := banned.FindString(l); w != "" {
			found = append(found, Problem{file, i + 1, fmt.Sprintf("the word %q: %s", w, l)})
		}
	}
	return found, nil
}

// Documents returns the project's documents in Markdown, without the change log.
func Documents(root string) ([]string, error) {
	var out []string
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || d.Name() == ".git") {
			return fs.SkipDir
		}
		if strings.HasSuffix(name, ".md") && d.Name() != "CHANGELOG.md" {
			rel, err := filepath.Rel(root, name)
			if err != nil {
				return err
			}
			out = append(out, filepath.ToSlash(rel))
		}
		return nil
	})
	return out, err
}
