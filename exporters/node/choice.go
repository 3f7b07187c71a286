package node

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Parameters of a scrape. The first two choose collectors by name, as those of Prometheus' node_exporter do.
const (
	collectParameter = "collect[]" // exactly these, of any path
	excludeParameter = "exclude[]" // those of the path, without these
	planeParameter   = "plane"     // the engine's series of the NICs of these planes alone
)

// allConstructors returns the collectors of all paths, each once.
func allConstructors() []constructor {
	all := slices.Concat(metricsConstructors(), nicsConstructors(), edgesConstructors())
	byName := func(a, b constructor) int { return strings.Compare(a.name, b.name) }
	slices.SortFunc(all, byName)
	return slices.CompactFunc(all, func(a, b constructor) bool { return a.name == b.name })
}

// chooseCollectors returns the collectors that a scrape asks for, of those that the path has by itself. chosen is false
// if the scrape does not choose. all are the collectors of all paths. It fails for a name that no collector has, and for
// both parameters at once.
func chooseCollectors(q url.Values, own, all []constructor) (of []constructor, chosen bool, err error) {
	collect, exclude := q[collectParameter], q[excludeParameter]
	if len(collect) > 0 && len(exclude) > 0 {
		return nil, false, fmt.Errorf("parameters %q and %q: one of them is expected", collectParameter, excludeParameter)
	}
	for _, name := range slices.Concat(collect, exclude) {
		if !slices.ContainsFunc(all, func(c constructor) bool { return c.name == name }) {
			var names []string
			for _, c := range all {
				names = append(names, c.name)
			}
			return nil, false, fmt.Errorf("collector %q does not exist: one of %s is expected", name, strings.Join(names, ", "))
		}
	}
	switch {
	case len(collect) > 0:
		return slices.DeleteFunc(slices.Clone(all), func(c constructor) bool { return !slices.Contains(collect, c.name) }), true, nil
	case len(exclude) > 0:
		return slices.DeleteFunc(slices.Clone(own), func(c constructor) bool { return slices.Contains(exclude, c.name) }), true, nil
	}
	return own, false, nil
}

// serveScrapes returns the handler of a path: of its own collectors, or of those and of the planes that a scrape chooses.
// others are published unless a scrape asks for single collectors; they may be nil.
func (e *Exporter) serveScrapes(own []constructor, showRuns bool, others prometheus.Gatherer) http.Handler {
	opts := promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError, EnableOpenMetrics: true}
	handlerOf := func(of []constructor, whole bool, planes []string) http.Handler {
		own := newGatherer(&e.from, of, e.runs, showRuns && whole)
		own.planes = planes
		g := disjoint{own}
		if whole && others != nil {
			g = append(g, others)
		}
		return promhttp.HandlerFor(g, opts)
	}
	ordinary, all := handlerOf(own, true, nil), allConstructors()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		of, chosen, err := chooseCollectors(q, own, all)
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadRequest)
		case chosen || q.Has(planeParameter):
			handlerOf(of, !q.Has(collectParameter), q[planeParameter]).ServeHTTP(w, r)
		default:
			ordinary.ServeHTTP(w, r)
		}
	})
}
