package web

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/report"
	"github.com/graylink/graylink/internal/fabric"
)

// verdictPage holds what the page of a verdict shows.
type verdictPage struct {
	Title string
	Root  string // leads to the first page
	Pages []pageLink
	// Level is that of the banner, and Head its text.
	Level, Head, State string
	Stale              string
	// Error is why there is no report.
	Error    string
	Document *report.Document
	Download string // the address of the report, without its format
}

// pageOf returns the address of a verdict's page from the first page, or "" if verdicts have none.
func (h *Handler) pageOf(id string) string {
	if h.Reports == nil {
		return ""
	}
	return "verdicts/" + url.PathEscape(id)
}

// serveVerdict answers /verdicts/ID.
func (h *Handler) serveVerdict(w http.ResponseWriter, r *http.Request, id string) {
	v := h.newVerdictPage("../")
	made, err := h.Reports.Report(r.Context(), id)
	status := http.StatusOK
	switch {
	case errors.Is(err, report.ErrUnknown):
		v.Error, status = "No verdict has the identifier "+shortenMiddle(id, 120)+": it never had one, or the verdict closed too long ago. The last 1,000 that closed are kept.", http.StatusNotFound
	case err != nil:
		v.Error, status = err.Error(), http.StatusServiceUnavailable
	default:
		v.fill(h, made)
	}
	h.renderVerdict(w, r, v, status)
}

// newVerdictPage returns the page of a verdict without its report.
func (h *Handler) newVerdictPage(root string) *verdictPage {
	snap := h.Snapshot()
	b := newBanner(snap, openIncidents(snap.Incidents), h.now())
	return &verdictPage{Title: h.title(), Root: root, Pages: h.pageLinks(root, "verdicts"), Level: "insufficient", Head: "No such verdict", Stale: b.Stale}
}

func (v *verdictPage) fill(h *Handler, made *report.Report) {
	v.Document = made.Document(report.Options{QueryLink: func(expr string) string { return h.newPromQuery("", expr).Href },
		FlowLink: func(src, dst string) string {
			return "../?" + url.Values{"src": {src}, "dst": {dst}}.Encode() + "#lookup"
		}})
	v.Head, v.State, v.Level = v.Document.Title, v.Document.State, "closed"
	if v.Document.Open {
		v.Level = "suspect"
	}
	v.Download = "../api/v1/verdicts/" + url.PathEscape(made.Verdict.ID) + "/report?format="
}

func (h *Handler) renderVerdict(w http.ResponseWriter, r *http.Request, v *verdictPage, status int) {
	name := "verdictpage.html"
	if r.URL.Query().Get("fragment") == "main" {
		name = "verdictmain.html"
	}
	h.render(w, name, v, status)
}

// serveVerdicts answers /verdicts: it leads to the newest verdict on an element, an open one before a closed one.
func (h *Handler) serveVerdicts(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	element, kind, scenario := q.Get("element"), q.Get("kind"), q.Get("scenario")
	found := slices.DeleteFunc(slices.Clone(h.Snapshot().Incidents), func(in incident.Incident) bool {
		return in.Element.ID != element || kind != "" && in.Kind != fabric.Kind(kind) || scenario != "" && in.Scenario != fabric.Scenario(scenario)
	})
	slices.SortStableFunc(found, func(a, b incident.Incident) int {
		if a.Open != b.Open {
			if a.Open {
				return -1
			}
			return 1
		}
		return b.LastSeen.Compare(a.LastSeen)
	})
	if len(found) > 0 {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Location", h.pageOf(found[0].ID))
		w.WriteHeader(http.StatusSeeOther)
		return
	}
	v := h.newVerdictPage("")
	v.Error = fmt.Sprintf("No verdict is known on the element %q. The last 1,000 that closed are kept.", shortenMiddle(element, 120))
	if element == "" {
		v.Head, v.Error = "Verdicts", "A verdict has a page of its own: /verdicts/ID, or /verdicts?element=NAME for the newest one on an element."
	}
	h.renderVerdict(w, r, v, http.StatusNotFound)
}

// Style returns the style sheets of a report as a file.
func Style() string {
	var out strings.Builder
	for _, name := range []string{"page.css", "report.css"} {
		b, err := fs.ReadFile(assets, "assets/static/"+name)
		if err != nil {
			panic(err) // it is embedded
		}
		out.Write(b)
	}
	return out.String()
}
