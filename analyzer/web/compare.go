package web

import (
	"cmp"
	"net/http"
	"net/url"
	"time"

	"github.com/graylink/graylink/analyzer/compare"
)

// compareView holds what the page of comparisons shows.
type compareView struct {
	Title, Error   string
	Pages          []pageLink
	From, To, Span string // as in the request
	Kinds          []option
	Result         *comparisonView // nil if nothing was compared
}

// comparisonView is a comparison in words.
type comparisonView struct {
	Head             string
	Worse            bool
	Before, After    string
	MatrixBefore     string // the address of the matrix of that moment, or ""
	MatrixAfter, API string
	Swapped          string // the address of the same comparison the other way round
	Warnings         []string
	Kinds            []comparedKind
}

// comparedKind has the sections of a kind.
type comparedKind struct {
	Name     string
	Sections []comparedSection
}

type comparedSection struct {
	ID, Name, Text string
	Changes        []changeView
	Missing        []string
	MissingText    string
	LeftOut        string
}

// changeView is a row of a section: medians, and in parentheses what bounds four fifths of the windows.
type changeView struct{ Place, Before, After, AtLeast string }

// serveCompare answers /compare. Nothing is compared before a moment was chosen.
func (h *Handler) serveCompare(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	v := compareView{Title: h.title(), Pages: h.pageLinks("", "compare"), From: cmp.Or(q.Get("from"), "24h"), To: q.Get("to"), Span: cmp.Or(q.Get("span"), "10m")}
	v.Kinds = append(v.Kinds, option{"", "all", q.Get("kind") == ""})
	for _, k := range compare.Kinds() {
		v.Kinds = append(v.Kinds, option{string(k), k.Words(), q.Get("kind") == string(k)})
	}
	if q.Get("from") == "" {
		h.render(w, "compare.html", v, http.StatusOK)
		return
	}
	request, err := compare.ParseRequest(q, h.now())
	var c *compare.Comparison
	if err == nil {
		c, err = h.Compare(r.Context(), request)
	}
	if err != nil {
		v.Error = err.Error()
	} else {
		v.Result = h.newComparisonView(c, request)
	}
	h.render(w, "compare.html", v, statusOf(v.Error))
}

func (h *Handler) newComparisonView(c *compare.Comparison, r compare.Request) *comparisonView {
	v := &comparisonView{Head: c.Words(), Worse: c.Worse(), Before: c.From.String(), After: c.To.String(), Warnings: c.Warnings}
	from, to := r.From.Format(time.RFC3339), r.To.Format(time.RFC3339)
	address := func(path, from, to string) string {
		return path + "?" + url.Values{"from": {from}, "to": {to}, "span": {r.Span.String()}, "kind": {string(r.Kind)}}.Encode()
	}
	v.API, v.Swapped = address("api/v1/compare", from, to), address("compare", to, from)
	if h.Matrix != nil && h.Past != nil {
		matrixAt := func(at string) string { return "matrix?" + url.Values{"of": {"median"}, "at": {at}}.Encode() }
		v.MatrixBefore, v.MatrixAfter = matrixAt(from), matrixAt(to)
	}
	for i := range c.Sections {
		s := &c.Sections[i]
		if n := len(v.Kinds); n == 0 || v.Kinds[n-1].Name != s.Kind.Words() {
			v.Kinds = append(v.Kinds, comparedKind{Name: s.Kind.Words()})
		}
		kind := &v.Kinds[len(v.Kinds)-1]
		kind.Sections = append(kind.Sections, newComparedSection(s))
	}
	return v
}

func newComparedSection(s *compare.Section) comparedSection {
	v := comparedSection{ID: string(s.Kind) + "-" + string(s.Quantity), Name: s.Quantity.Words(), Text: s.Words(), LeftOut: compare.LeftOutText(s.ChangesLeftOut)}
	for i := range s.Changes {
		c := &s.Changes[i]
		spread := func(of compare.Spread) string {
			return s.Unit.Format(of.Median) + " (" + s.Unit.Format(of.Low) + " to " + s.Unit.Format(of.High) + ")"
		}
		v.Changes = append(v.Changes, changeView{c.Words(), spread(c.Before), spread(c.After), s.Unit.Format(c.AtLeast)})
	}
	for i := range s.Missing {
		v.Missing = append(v.Missing, s.Missing[i].Words())
	}
	v.MissingText = s.Quantity.MissingWords()
	if s.MissingLeftOut > 0 {
		v.Missing = append(v.Missing, compare.LeftOutText(s.MissingLeftOut))
	}
	return v
}
