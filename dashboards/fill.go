package dashboards

import "strings"

// FillVariables puts into an expression what Grafana puts for its variables while everything is
// chosen, with a window for the slowest scrape interval of the example, 5 s.
func FillVariables(expr string) string {
	for _, v := range []string{"$plane", "$nic", "$src", "$dst", "$switch", "$port", "$link", "$clock", "$element", "$scope"} {
		expr = strings.ReplaceAll(expr, v, ".*")
	}
	return strings.ReplaceAll(expr, "$__rate_interval", "20s")
}

// SeriesExpr is the expression whose series a variable's values are labels of.
func SeriesExpr(v Variable) string {
	in := strings.TrimSuffix(strings.TrimPrefix(v.Query, "label_values("), ")")
	return in[:strings.LastIndex(in, ", ")]
}
