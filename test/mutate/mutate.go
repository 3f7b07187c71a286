// Command mutate changes one operator or constant of a package at a time and runs tests on the result. A change that no
// test notices survives: a line that nothing checks.
//
//	go run ./test/mutate --count 60 ./internal/judge
//	go run ./test/mutate --at judge.go:285 ./internal/judge
//
// Files on disk stay as they are: the compiler gets the changed file by go build's -overlay. Exit codes: 0 done, 1 the
// package cannot be read or its tests fail without a change, 2 more changes survived than --most allows.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// mutation is one change of a file: the text between two offsets is replaced.
type mutation struct {
	file     string // path
	line     int
	from, to int // offsets in bytes
	old, new string
}

func (m mutation) String() string {
	return fmt.Sprintf("%s:%d: %s -> %s", m.file, m.line, m.old, m.new)
}

// swaps lists what an operator may be replaced by.
var swaps = map[token.Token][]token.Token{
	token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR}, token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL}, token.LAND: {token.LOR}, token.LOR: {token.LAND},
	token.ADD: {token.SUB}, token.SUB: {token.ADD}, token.MUL: {token.QUO}, token.QUO: {token.MUL},
	token.ADD_ASSIGN: {token.SUB_ASSIGN}, token.SUB_ASSIGN: {token.ADD_ASSIGN},
}

// listMutations returns the changes of one file, in the order of the text.
func listMutations(path string, src []byte) ([]mutation, error) {
	files := token.NewFileSet()
	tree, err := parser.ParseFile(files, path, src, 0)
	if err != nil {
		return nil, err
	}
	var out []mutation
	add := func(at token.Pos, old, replacement string) {
		p := files.Position(at)
		out = append(out, mutation{path, p.Line, p.Offset, p.Offset + len(old), old, replacement})
	}
	operator := func(at token.Pos, op token.Token) {
		for _, other := range swaps[op] {
			add(at, op.String(), other.String())
		}
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.ReturnStmt:
			return !returnsNothing(n)
		case *ast.BinaryExpr:
			if isText(n.X) || isText(n.Y) {
				return true // texts are joined by +, which has no inverse
			}
			operator(n.OpPos, n.Op)
		case *ast.AssignStmt:
			operator(n.TokPos, n.Tok)
		case *ast.UnaryExpr:
			if n.Op == token.NOT {
				add(n.OpPos, "!", "")
			}
		case *ast.BasicLit:
			if replacement, ok := otherNumber(n); ok {
				add(n.Pos(), n.Value, replacement)
			}
		}
		return true
	})
	slices.SortStableFunc(out, func(a, b mutation) int { return a.from - b.from })
	return out, nil
}

// returnsNothing reports whether a return states by its last result, false, that the others mean nothing.
func returnsNothing(r *ast.ReturnStmt) bool {
	if len(r.Results) < 2 {
		return false
	}
	last, ok := r.Results[len(r.Results)-1].(*ast.Ident)
	return ok && last.Name == "false"
}

func isText(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BasicLit:
		return e.Kind == token.STRING
	case *ast.BinaryExpr:
		return isText(e.X) || isText(e.Y)
	}
	return false
}

// otherNumber returns a number that stands in for a literal: one and a half times a float, an integer plus one.
func otherNumber(l *ast.BasicLit) (string, bool) {
	switch l.Kind {
	case token.INT:
		v, err := strconv.ParseInt(strings.ReplaceAll(l.Value, "_", ""), 0, 64)
		return strconv.FormatInt(v+1, 10), err == nil
	case token.FLOAT:
		v, err := strconv.ParseFloat(l.Value, 64)
		return strconv.FormatFloat(v*1.5, 'g', -1, 64), err == nil && v != 0
	}
	return "", false
}

// apply returns the source with the change.
func (m mutation) apply(src []byte) []byte {
	return slices.Concat(src[:m.from], []byte(m.new), src[m.to:])
}

// verdict is what tests say of a change.
type verdict string

const (
	killed    verdict = "killed"
	survived  verdict = "SURVIVED"
	unbuilt   verdict = "does not compile"
	timedOut  verdict = "killed (too slow)"
	buildFail         = "[build failed]"
)

// runner runs the tests of packages on changed files.
type runner struct {
	dir     string // of temporary files
	tests   []string
	timeout time.Duration
}

// judge runs the tests with one file replaced. An empty path replaces nothing.
func (r *runner) judge(ctx context.Context, path string, src []byte) (verdict, []byte, error) {
	args := []string{"test", "-count", "1", "-vet", "off", "-short", "-timeout", r.timeout.String()}
	if path != "" {
		full, err := filepath.Abs(path)
		if err != nil {
			return "", nil, err
		}
		changed, overlay := filepath.Join(r.dir, "changed.go"), filepath.Join(r.dir, "overlay.json")
		b, err := json.Marshal(map[string]map[string]string{"Replace": {full: changed}})
		if err := errors.Join(err, os.WriteFile(changed, src, 0o600), os.WriteFile(overlay, b, 0o600)); err != nil {
			return "", nil, err
		}
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, r.tests...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return "", out, ctx.Err()
	case err == nil:
		return survived, out, nil
	case !errors.As(err, &exit):
		return "", out, err
	case bytes.Contains(out, []byte(buildFail)):
		return unbuilt, out, nil
	case bytes.Contains(out, []byte("panic: test timed out")):
		return timedOut, out, nil
	}
	return killed, out, nil
}

// options are the flags.
type options struct {
	count   int
	seed    uint64
	at      string
	tests   string
	most    float64
	timeout time.Duration
}

// choose lists the changes of a package's files, and picks among them.
func (o *options) choose(dir string, sources map[string][]byte) ([]mutation, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var all []mutation
	for _, p := range paths {
		if strings.HasSuffix(p, "_test.go") {
			continue
		}
		src, err := os.ReadFile(p)
		if err != nil {
			return nil, err
		}
		m, err := listMutations(p, src)
		if err != nil {
			return nil, err
		}
		sources[p] = src
		all = append(all, m...)
	}
	if o.at != "" {
		file, line, _ := strings.Cut(o.at, ":")
		all = slices.DeleteFunc(all, func(m mutation) bool {
			return filepath.Base(m.file) != file || line != "" && strconv.Itoa(m.line) != line
		})
		return all, nil
	}
	rng := rand.New(rand.NewPCG(o.seed, 0))
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(o.count, len(all))], nil
}

// run changes a package's files one by one and reports what became of each change.
func run(ctx context.Context, out io.Writer, dir string, o options) (alive, judged int, err error) {
	tmp, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	sources := map[string][]byte{}
	chosen, err := o.choose(dir, sources)
	if err != nil {
		return 0, 0, err
	}
	if len(chosen) == 0 {
		return 0, 0, fmt.Errorf("%s has nothing to change at %q", dir, o.at)
	}
	r := &runner{dir: tmp, tests: strings.Fields(cmp.Or(o.tests, "./"+filepath.Clean(dir))), timeout: o.timeout}
	began := time.Now()
	if v, text, err := r.judge(ctx, "", nil); err != nil || v != survived {
		return 0, 0, fmt.Errorf("tests of %s without a change: %s: %w\n%s", dir, v, err, text)
	}
	fmt.Fprintf(out, "%s: %d changes; the tests take %.1f s without one\n", dir, len(chosen), time.Since(began).Seconds())
	for i, m := range chosen {
		v, _, err := r.judge(ctx, m.file, m.apply(sources[m.file]))
		if err != nil {
			return alive, judged, err
		}
		switch v {
		case unbuilt:
			continue
		case survived:
			alive++
		}
		judged++
		fmt.Fprintf(out, "%3d of %d  %-17s  %s\n", i+1, len(chosen), v, m)
	}
	return alive, judged, nil
}

func main() {
	var o options
	flag.IntVar(&o.count, "count", 20, "how many changes to try in each package, chosen by --seed")
	flag.Uint64Var(&o.seed, "seed", 1, "which changes to choose")
	flag.StringVar(&o.at, "at", "", "try every change at FILE or FILE:LINE instead")
	flag.StringVar(&o.tests, "tests", "", "packages whose tests run, separated by spaces; empty: the changed package")
	flag.Float64Var(&o.most, "most", 1, "share of the changes that may survive")
	flag.DurationVar(&o.timeout, "timeout", 2*time.Minute, "time after which tests of a change are ended; it counts as noticed")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "mutate: directories of packages are expected: go run ./test/mutate ./internal/judge")
		os.Exit(1)
	}
	alive, judged := 0, 0
	for _, dir := range flag.Args() {
		a, n, err := run(context.Background(), os.Stdout, dir, o)
		if err != nil {
			fmt.Fprintln(os.Stderr, "mutate:", err)
			os.Exit(1)
		}
		alive, judged = alive+a, judged+n
	}
	fmt.Printf("%d of %d changes survived\n", alive, judged)
	if float64(alive) > o.most*float64(judged) {
		os.Exit(2)
	}
}
