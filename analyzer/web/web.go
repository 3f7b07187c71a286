// Package web serves the analyzer's built-in page: the state of the network, a drawing of
// the fabric with the measurements, the verdicts with their evidence, and a look-up of
// single flows. The page is rendered on the server, has no state of its own and loads
// nothing from other sites.
//
// Rules of the page:
//
//  1. A missing measurement is drawn as missing, never as zero.
//  2. Colour is never the only sign: width, dashes, arrows and words repeat it.
//  3. A stale result is marked as stale before anything else.
//  4. However large the fabric, the page stays small: it folds hosts and
//     switches into groups and says so. The strongest open suspects (maxLabels
//     of them) are never folded away.
package web

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/graylink/graylink/analyzer/audit/latest"
	"github.com/graylink/graylink/analyzer/collectives"
	"github.com/graylink/graylink/analyzer/compare"
	"github.com/graylink/graylink/analyzer/matrix"
	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/analyzer/report"
	"github.com/graylink/graylink/analyzer/signals"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibsubnet"
)

//go:embed assets
var assets embed.FS

// policy lets the page use its own files and nothing else: no inline script or
// style, no frame around it, no form that posts elsewhere.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Handler serves the page at / and its files under /static/. Snapshot, Store
// and Graph are required and must be safe for concurrent use; Title and Now
// default to "Graylink" and time.Now. Its links are relative, so that a reverse
// proxy may mount it under a prefix.
type Handler struct {
	Snapshot func() snapshot.Snapshot
	Store    *paths.Store
	// Matrix is what was last measured between the leaves. Nil means that there is no page of the matrix.
	Matrix *matrix.Store
	// Past reads the matrix of past moments. Nil means that they are not known.
	Past *matrix.Past
	// Compare compares two spans of the past. Nil means that there is no page of comparisons.
	Compare func(ctx context.Context, r compare.Request) (*compare.Comparison, error)
	Title   string
	// Prometheus is the base URL at which browsers reach the Prometheus server. With ""
	// the page shows queries as text, without a link.
	Prometheus string
	// Collectives returns what jobs wait for. Nil means that collectives are not followed.
	Collectives func() collectives.State
	// Observer observes the queue pairs of jobs. Nil means that no agents list them.
	Observer Observer
	// MayObserve returns nil if the client of a request may make agents send packets, else the reason why it may not. Nil means that no client may.
	MayObserve func(r *http.Request) error
	// Audit returns what is known of the latest audit. Nil means that there is no report of audits.
	Audit func(now time.Time) latest.View
	// Subnets returns the state of the InfiniBand subnets. Nil means that there are none.
	Subnets func() []ibsubnet.View
	// Bottlenecks returns the bottlenecks of the tagged flows between two NICs, and whether in-band signals are read at all. Nil means that
	// they are not.
	Bottlenecks func(ctx context.Context, now time.Time, a, b string) (of map[fabric.Flow]signals.Bottlenecks, known bool, err error)
	// Reports makes the reports of verdicts. Nil means that verdicts have no pages of their own.
	Reports *report.Collector
	Now     func() time.Time
	// Changes announces each new snapshot. With it, /events has a stream of them, and a page is rendered once for all its viewers. Nil
	// means that pages ask by themselves.
	Changes *snapshot.Changes

	once    sync.Once
	page    *template.Template
	streams atomic.Int64
	shared  sharedAnswers
}

// ServeHTTP answers GET and HEAD: the page at /, the matrix at /matrix, its pictures at /matrix/tile, comparisons at /compare, verdicts at /verdicts/ID,
// changes at /events, and files below /static/. On the page ?src= and ?dst= look up the flows between two NICs, ?pod= unfolds one pod of a folded fabric, ?job= shows what the
// queue pairs of a job do, ?fragment=main leaves out the frame around the main part, for the page's own refresh.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Content-Security-Policy", policy)
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Referrer-Policy", "no-referrer")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		head.Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD are expected here", http.StatusMethodNotAllowed)
		return
	}
	if name, ok := strings.CutPrefix(r.URL.Path, "/static/"); ok {
		serveAsset(w, r, name)
		return
	}
	switch {
	case r.URL.Path == "/":
		asked := h.newQuery(r)
		h.share(w, r, asked.refused, func(w http.ResponseWriter, r *http.Request) { h.servePage(w, r, asked) })
	case r.URL.Path == "/matrix" && h.Matrix != nil:
		h.share(w, r, "", h.serveMatrix)
	case r.URL.Path == "/matrix/tile" && h.Matrix != nil:
		h.share(w, r, "", h.serveTile)
	case r.URL.Path == "/events" && h.Changes != nil:
		h.serveEvents(w, r)
	case r.URL.Path == "/compare" && h.Compare != nil:
		h.share(w, r, "", h.serveCompare)
	case r.URL.Path == "/verdicts" && h.Reports != nil:
		h.share(w, r, "", h.serveVerdicts)
	case strings.HasPrefix(r.URL.Path, "/verdicts/") && h.Reports != nil:
		h.share(w, r, "", func(w http.ResponseWriter, r *http.Request) {
			h.serveVerdict(w, r, strings.TrimPrefix(r.URL.Path, "/verdicts/"))
		})
	default:
		http.NotFound(w, r)
	}
}

func (h *Handler) now() time.Time {
	if h.Now != nil {
		return h.Now()
	}
	return time.Now()
}

// newQuery returns what a request wants of the page, and whether its client may have it observed.
func (h *Handler) newQuery(r *http.Request) query {
	q := r.URL.Query()
	asked := query{src: q.Get("src"), dst: q.Get("dst"), pod: q.Get("pod"), job: q.Get("job"), dscp: q.Get("dscp"), routing: q.Get("adaptive_routing")}
	if asked.job != "" && h.Observer != nil {
		asked.refused = h.whyNotObserve(r)
	}
	return asked
}

func (h *Handler) servePage(w http.ResponseWriter, r *http.Request, asked query) {
	now := h.now()
	v := h.buildView(h.Snapshot(), now, asked)
	if h.Bottlenecks != nil && asked.src != "" && v.Lookup.Error == "" {
		h.addBottlenecks(r.Context(), &v.Lookup, now)
	}
	name := "page.html"
	if r.URL.Query().Get("fragment") == "main" {
		name = "main.html"
	}
	h.render(w, name, v, statusOf(v.Lookup.Error))
}

// title returns what the pages are called.
func (h *Handler) title() string { return cmp.Or(h.Title, "Graylink") }

// pageLink is a link to a page, or the name of the present one.
type pageLink struct {
	Name, Href string
	Current    bool
}

// pageLinks returns the links to all pages from one of them, which is named by its address. The first page has the address "". root leads
// to the first page.
func (h *Handler) pageLinks(root, from string) (out []pageLink) {
	for _, p := range []struct {
		name, path string
		served     bool
	}{{"fabric", "", true}, {"matrix", "matrix", h.Matrix != nil}, {"compare", "compare", h.Compare != nil}} {
		if p.served {
			out = append(out, pageLink{p.name, root + cmp.Or(p.path, "."), p.path == from})
		}
	}
	return out
}

// statusOf returns the status of a page with an error or without one. The request is wrong if there is one.
func statusOf(problem string) int {
	if problem != "" {
		return http.StatusBadRequest
	}
	return http.StatusOK
}

// render writes a template.
func (h *Handler) render(w http.ResponseWriter, name string, view any, status int) {
	h.once.Do(func() {
		h.page = template.Must(template.ParseFS(assets, "assets/*.html"))
		for _, files := range report.Templates() {
			h.page = template.Must(h.page.ParseFS(files, "assets/*.html"))
		}
	})
	var buf bytes.Buffer
	if err := h.page.ExecuteTemplate(&buf, name, view); err != nil {
		http.Error(w, "the page cannot be rendered: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// This fails only when the client has gone, so the error needs no report.
	_, _ = w.Write(buf.Bytes())
}

// whyNotObserve returns why the client of a request may not make agents send packets, or nothing if it may.
func (h *Handler) whyNotObserve(r *http.Request) string {
	if h.MayObserve == nil {
		return "no client may make this program act"
	}
	if err := h.MayObserve(r); err != nil {
		return err.Error()
	}
	return ""
}

func serveAsset(w http.ResponseWriter, r *http.Request, name string) {
	data, err := fs.ReadFile(assets, path.Join("assets", "static", path.Clean("/"+name)))
	if err != nil {
		http.NotFound(w, r)
		return
	}
	sum := sha256.Sum256(data)
	w.Header().Set("ETag", `"`+hex.EncodeToString(sum[:8])+`"`)
	w.Header().Set("Cache-Control", "no-cache")
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(data))
}
