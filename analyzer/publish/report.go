package publish

import (
	"cmp"
	"errors"
	"net/http"
	"strings"

	"github.com/graylink/graylink/analyzer/report"
)

// filePolicy lets a report that a browser shows have its own style and nothing else.
const filePolicy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// fileExtensions are the ends of the names of files, by format.
var fileExtensions = map[string]string{report.HTML: ".html", report.Markdown: ".md", report.JSON: ".json"}

// handleReport serves the report of a verdict as a file.
func (a *API) handleReport(w http.ResponseWriter, r *http.Request) {
	format := cmp.Or(r.URL.Query().Get("format"), report.JSON)
	if report.MediaType(format) == "" {
		http.Error(w, "format: json, html or markdown is expected", http.StatusBadRequest)
		return
	}
	id := r.PathValue("id")
	made, err := a.Reports.Report(r.Context(), id)
	switch {
	case errors.Is(err, report.ErrUnknown):
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	file, err := made.Encode(format, a.ReportStyle)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	head := w.Header()
	head.Set("Content-Type", report.MediaType(format))
	head.Set("Content-Disposition", `attachment; filename="graylink-verdict-`+fileName(id)+fileExtensions[format]+`"`)
	head.Set("Content-Security-Policy", filePolicy)
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Cache-Control", "no-store")
	_, _ = w.Write(file) // the client may be gone
}

// fileName returns what of an identifier can stand in the name of a file everywhere.
func fileName(id string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return -1
	}, id[:min(len(id), 64)])
}
