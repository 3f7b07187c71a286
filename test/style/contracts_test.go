package style

import (
	"go/ast"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const contractsFile = "docs/contracts.md"

var inBackticks = regexp.MustCompile("`([^`]+)`")

// tableRows returns the cells of the rows of a document's tables that begin with a header.
func tableRows(text, header string) (rows [][]string) {
	table := false
	for _, l := range strings.Split(text, "\n") {
		switch {
		case strings.HasPrefix(l, header):
			table = true
		case !strings.HasPrefix(l, "|"):
			table = false
		case table && !strings.HasPrefix(l, "| ---"):
			rows = append(rows, strings.Split(strings.Trim(l, "| "), " | "))
		}
	}
	return rows
}

// quoted returns the texts between backticks.
func quoted(text string) (out []string) {
	for _, m := range inBackticks.FindAllStringSubmatch(text, -1) {
		out = append(out, m[1])
	}
	return out
}

// literalArguments returns the arguments of a call that are string literals, "" for others.
func literalArguments(call *ast.CallExpr) (out []string) {
	for _, a := range call.Args {
		text := ""
		if l, ok := a.(*ast.BasicLit); ok && l.Kind == token.STRING {
			text, _ = strconv.Unquote(l.Value)
		}
		out = append(out, text)
	}
	return out
}

// eachCall runs a function on the calls in the code of some directories, without tests.
func eachCall(t *testing.T, dirs []string, f func(call *ast.CallExpr)) {
	t.Helper()
	for _, s := range sharedSources(t) {
		if s.Tests || !slices.Contains(dirs, s.Dir()) {
			continue
		}
		ast.Inspect(s.Tree, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				f(call)
			}
			return true
		})
	}
}

func calledName(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// Each series of the analyzer and the coordinator is in a table of docs/contracts.md, with its labels. Each series
// that the tables have is one of those, or of docs/metrics.md, or of graylink-node.
func TestContractsListSeries(t *testing.T) {
	declared := map[string][]string{} // labels by name
	eachCall(t, []string{"analyzer/publish", "analyzer/daemon", "exporters/coordinator"}, func(call *ast.CallExpr) {
		args := literalArguments(call)
		if len(args) > 1 && isSeriesName(args[0]) {
			declared[args[0]] = args[2:]
		}
	})
	if len(declared) < 70 {
		t.Fatalf("only %d series were found in the code", len(declared))
	}
	others := readDocument(t, "docs/metrics.md")
	eachCall(t, []string{"exporters/node"}, func(call *ast.CallExpr) {
		for _, a := range literalArguments(call) {
			if isSeriesName(a) {
				others += "`" + a + "`"
			}
		}
	})
	listed := map[string]bool{}
	for _, row := range tableRows(readDocument(t, contractsFile), "| series |") {
		for _, name := range quoted(row[0]) {
			listed[name] = true
			want, ok := declared[name]
			switch {
			case !ok && !strings.Contains(others, "`"+name+"`"):
				t.Errorf("%s: no program publishes %s", contractsFile, name)
			case ok && !slices.Equal(sortedCopy(quoted(row[2])), sortedCopy(want)):
				t.Errorf("%s: %s has the labels %v, not %v", contractsFile, name, want, quoted(row[2]))
			}
		}
	}
	for name := range declared {
		if !listed[name] {
			t.Errorf("%s does not list %s, labels %v", contractsFile, name, declared[name])
		}
	}
}

func isSeriesName(s string) bool {
	return (strings.HasPrefix(s, "fabric_") || strings.HasPrefix(s, "graylink_")) && !strings.HasSuffix(s, "_")
}

func sortedCopy(in []string) []string {
	out := slices.Clone(in)
	slices.Sort(out)
	return out
}

// Each command of graylink that its help lists is in the table of docs/contracts.md by its name, and no other is.
func TestContractsListCommands(t *testing.T) {
	inCode, hidden := map[string]bool{}, map[*ast.CallExpr]bool{}
	eachCall(t, []string{"cmd/graylink"}, func(call *ast.CallExpr) {
		if f, ok := call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Hidden" {
			if of, ok := f.X.(*ast.CallExpr); ok {
				hidden[of] = true
			}
		}
		if args := literalArguments(call); calledName(call) == "Command" && len(args) == 2 && args[0] != "" && !hidden[call] {
			inCode[args[0]] = true
		}
	})
	listed := map[string]bool{}
	for _, row := range tableRows(readDocument(t, contractsFile), "| command | what it does | exit codes |") {
		for _, command := range quoted(row[0]) {
			for _, word := range strings.Fields(command) {
				listed[word] = true
			}
		}
	}
	if !maps.Equal(inCode, listed) {
		t.Errorf("%s lists the commands %v, the program has %v", contractsFile, slices.Sorted(maps.Keys(listed)), slices.Sorted(maps.Keys(inCode)))
	}
}

var (
	route    = regexp.MustCompile(`^[A-Z]+ /`)
	wildcard = regexp.MustCompile(`\{([a-z]+)(\.\.\.)?\}`)
	answerOf = regexp.MustCompile("(?m)^## What does `(.+)` answer\\?$")
)

// servers lists the programs that answer HTTP requests, by the directory of the code that registers them.
var servers = map[string]string{
	"exporters/node": "graylink-node", "exporters/switch": "graylink-switch", "exporters/coordinator": "graylink-coordinator",
	"analyzer/daemon": "graylink-analyzer", "analyzer/publish": "graylink-analyzer", "analyzer/maintenance": "graylink-analyzer",
	"analyzer/catalogue": "graylink-analyzer",
	"exporters/ibfabric": "graylink ib serve", "internal/ibsample": "graylink ib serve", "internal/ibagent": "graylink ib serve",
}

// passesOn lists packages whose handlers pass requests on, to those of servers or to Prometheus' own: graylink serve.
var passesOn = map[string]bool{"cmd/graylink/serve": true, "analyzer/evidence/promserver": true}

// guards lists who gets past the functions that handlers are wrapped in, or begin with.
var guards = map[string]string{"ReloadHandler": "lifecycle", "AdminHandler": "admin", "AskHandler": "asking", "checkSampler": "samplers"}

// Each HTTP request that a program handles is in its table of docs/reference/http-api.md with who may send it, and no other is.
func TestReferenceListsRequests(t *testing.T) {
	const file = "docs/reference/http-api.md"
	inCode := map[string]string{} // who may send it, by program and request
	for _, s := range sharedSources(t) {
		if s.Tests || passesOn[s.Dir()] {
			continue
		}
		ast.Inspect(s.Tree, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if name := ""; ok {
				name = calledName(call)
				ok = (name == "Handle" || name == "HandleFunc") && len(call.Args) == 2
			}
			if !ok {
				return true
			}
			at := s.Set.Position(call.Pos())
			request, known := constantText(call.Args[0], stringConstants(t, s.Dir()))
			switch {
			case !known || !route.MatchString(request):
				t.Errorf("%s:%d: the pattern is not a method and a path that can be read", s.File, at.Line)
			case servers[s.Dir()] == "":
				t.Errorf("%s:%d: %s: the test does not know which program answers it", s.File, at.Line, request)
			default:
				request = wildcard.ReplaceAllStringFunc(request, func(w string) string { return strings.ToUpper(strings.Trim(w, "{.}")) })
				inCode[servers[s.Dir()]+": "+request] = allowedCallers(call.Args[1])
			}
			return true
		})
	}
	if len(inCode) < 40 {
		t.Fatalf("only %d requests were found in the code", len(inCode))
	}
	listed := map[string]string{}
	text := readDocument(t, file)
	for i, m := range answerOf.FindAllStringSubmatchIndex(text, -1) {
		section := text[m[1]:]
		if next := answerOf.FindStringIndex(section); next != nil {
			section = section[:next[0]]
		}
		rows := tableRows(section, "| request | who | answer |")
		if len(rows) == 0 {
			t.Errorf("%s: section %d has no table", file, i+1)
		}
		for _, row := range rows {
			listed[text[m[2]:m[3]]+": "+strings.Trim(row[0], "`")] = row[1]
		}
	}
	for request, who := range inCode {
		if listed[request] != who {
			t.Errorf("%s: %s is for %s, listed: %q", file, request, who, listed[request])
		}
	}
	for request := range listed {
		if inCode[request] == "" {
			t.Errorf("%s: %s is answered by no program", file, request)
		}
	}
}

// allowedCallers returns who may send a request, by the guard in its handler.
func allowedCallers(handler ast.Expr) string {
	who := "everyone"
	ast.Inspect(handler, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && guards[calledName(call)] != "" {
			who = guards[calledName(call)]
		}
		return true
	})
	return who
}

// stringConstants returns the constants of a package that are strings.
func stringConstants(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, s := range sharedSources(t) {
		if s.Dir() != dir || s.Tests {
			continue
		}
		ast.Inspect(s.Tree, func(n ast.Node) bool {
			if v, ok := n.(*ast.ValueSpec); ok {
				for i, value := range v.Values {
					if text, ok := constantText(value, nil); ok {
						out[v.Names[i].Name] = text
					}
				}
			}
			return true
		})
	}
	return out
}

// constantText returns the text of an expression of literals and constants, and whether it is one.
func constantText(e ast.Expr, constants map[string]string) (text string, ok bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil && e.Kind == token.STRING
	case *ast.Ident:
		text, ok = constants[e.Name]
		return text, ok
	case *ast.BinaryExpr:
		left, known := constantText(e.X, constants)
		right, ok := constantText(e.Y, constants)
		return left + right, known && ok && e.Op == token.ADD
	}
	return "", false
}

var recorded = regexp.MustCompile(`(?m)^\s*- record: (\S+)$`)

// Each series that a file of rules records is in the table of docs/contracts.md, and no other is.
func TestContractsListRecordedSeries(t *testing.T) {
	files, err := filepath.Glob(root + "/rules/*.rules.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files of rules: %v", err)
	}
	inRules := map[string]bool{}
	for _, file := range files {
		for _, m := range recorded.FindAllStringSubmatch(readDocument(t, "rules/"+filepath.Base(file)), -1) {
			inRules[m[1]] = true
		}
	}
	listed := map[string]bool{}
	for _, row := range tableRows(readDocument(t, contractsFile), "| recorded series |") {
		for _, name := range quoted(row[0]) {
			listed[name] = true
		}
	}
	if !maps.Equal(inRules, listed) {
		t.Errorf("%s lists the recorded series %v, the rules have %v", contractsFile, slices.Sorted(maps.Keys(listed)), slices.Sorted(maps.Keys(inRules)))
	}
}
