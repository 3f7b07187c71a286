// Package drift lists for tests the series that the code exposes and those that a PromQL
// expression queries, so that rules and dashboards cannot use a series that does not exist.
package drift

import (
	"fmt"
	"go/ast"
	goparser "go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/graylink/graylink/internal/ibagent"
)

// exposing lists the directories whose code names series, below the repository's root.
var exposing = []string{"exporters", "analyzer/publish", "analyzer/daemon", "cmd", "internal/csig/observe", "internal/gnmi", "internal/pki", "receivers"}

// foreign lists series of Prometheus itself.
var foreign = []string{"up", "ALERTS", "scrape_duration_seconds", "scrape_samples_scraped", "scrape_samples_post_metric_relabeling", "prometheus_target_interval_length_seconds", "prometheus_rule_group_iterations_missed_total",
	"prometheus_remote_storage_samples_failed_total", "prometheus_remote_storage_histograms_failed_total", "cortex_discarded_samples_total"}

var seriesName = regexp.MustCompile(`^(fabric|graylink)_[a-z0-9_]*[a-z0-9]$`)

// ExposedSeries returns the names of all series that the code below root exposes, and of those
// that Prometheus makes itself. The former are all strings of the exposing packages that
// look like a name of a series, the names for InfiniBand, which are composed, and those of the versions of programs.
func ExposedSeries(root string) (map[string]bool, error) {
	out := map[string]bool{}
	for _, name := range foreign {
		out[name] = true
	}
	for i := range ibagent.Families {
		out[ibagent.Families[i].Name] = true
	}
	for _, dir := range exposing {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := goparser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if program, ok := versionCollector(n); ok {
					out[program+"_build_info"] = true
				}
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					if s, err := strconv.Unquote(lit.Value); err == nil && seriesName.MatchString(s) {
						out[s] = true
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("series of %s: %w", dir, err)
		}
	}
	return out, nil
}

// versionCollector returns the program whose version a call of client_golang's collectors/version publishes.
func versionCollector(n ast.Node) (program string, ok bool) {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return "", false
	}
	f, isSelector := call.Fun.(*ast.SelectorExpr)
	lit, isLiteral := call.Args[0].(*ast.BasicLit)
	if !isSelector || f.Sel.Name != "NewCollector" || !isLiteral || lit.Kind != token.STRING {
		return "", false
	}
	program, err := strconv.Unquote(lit.Value)
	return program, err == nil && seriesName.MatchString(program)
}

// StringConstants returns the values of the constants of a named string type in a Go file.
func StringConstants(file, typeName string) ([]string, error) {
	f, err := goparser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		return nil, err
	}
	var out []string
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if t, ok := v.Type.(*ast.Ident); !ok || t.Name != typeName {
			return true
		}
		for _, x := range v.Values {
			if lit, ok := x.(*ast.BasicLit); ok {
				if s, err := strconv.Unquote(lit.Value); err == nil {
					out = append(out, s)
				}
			}
		}
		return true
	})
	return out, nil
}

// QueriedSeries returns the names of the series that an expression queries. It fails if a selector has no name.
func QueriedSeries(expr string) ([]string, error) {
	e, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", expr, err)
	}
	var out []string
	var bad error
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		v, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		i := slices.IndexFunc(v.LabelMatchers, func(m *labels.Matcher) bool {
			return m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual
		})
		if i < 0 {
			bad = fmt.Errorf("%s: a selector without a name reads every series there is", v)
			return bad
		}
		out = append(out, v.LabelMatchers[i].Value)
		return nil
	})
	return out, bad
}
