package dashboards

import "strings"

// FillVariables returns an expression with the values that Grafana uses for its variables while everything is
// selected, with a rate window for the slowest scrape interval of the example, 5 s.
func FillVariables(expr string) string {
	for _, v := range []string{"$plane", "$nic", "$src", "$dst", "$switch", "$port", "$link", "$clock", "$element", "$scope"} {
		expr = strings.ReplaceAll(expr, v, ".*")
	}
	return strings.ReplaceAll(expr, "$__rate_interval", "20s")
}

// SeriesExpr returns the expression whose series have the values of the variable as labels.
func SeriesExpr(v Variable) string {
	in := strings.TrimSuffix(strings.TrimPrefix(v.Query, "label_values("), ")")
	return in[:strings.LastIndex(in, ", ")]
}
