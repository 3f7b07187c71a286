package web

import (
	"net/url"
	"strings"

	"github.com/graylink/graylink/analyzer/report"
)

// promQuery represents a query to Prometheus about something that the page shows.
type promQuery struct {
	Name, Expr string
	Href       string // the query in the user interface of Prometheus; "" means that its address is unknown
}

func (h *Handler) newPromQuery(name, expr string) promQuery {
	a := promQuery{Name: name, Expr: expr}
	if h.Prometheus != "" {
		a.Href = strings.TrimRight(h.Prometheus, "/") + "/graph?" + url.Values{"g0.expr": {expr}, "g0.tab": {"0"}, "g0.range_input": {"1h"}}.Encode()
	}
	return a
}

// promQueries returns queries with their links.
func (h *Handler) promQueries(all []report.NamedExpr) (out []promQuery) {
	for _, q := range all {
		out = append(out, h.newPromQuery(q.Name, q.Expr))
	}
	return out
}
