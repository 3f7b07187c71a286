package follow

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/ccl"
)

// Family describes a family of series.
type Family struct {
	Name    string // Prometheus name
	Help    string
	Counter bool     // a gauge otherwise
	Labels  []string // in order
}

// Point is a sample of a family.
type Point struct {
	*Family
	Values []string // of Labels
	Value  float64
}

// The families of a Follower.
var (
	operations  = &Family{"fabric_collective_operations_total", "Completed operations of the node's ranks, by kind; other stands for those beyond 64 communicators.", true, []string{"comm_name", "job_name", "op"}}
	openSeconds = &Family{"fabric_collective_open_seconds", "Time in seconds since the oldest open operation of a communicator began; absent if none is open.", false, []string{"comm_name", "job_name"}}
	dropped     = &Family{"fabric_collective_dropped_total", "Operations and transfers that are missing from the records, by reason.", true, []string{"reason"}}
	files       = &Family{"graylink_node_collectives_files", "Files of collective libraries that are followed, and dumps that were read.", false, nil}
	unreadable  = &Family{"graylink_node_collectives_lines_unreadable_total", "Lines, entries of dumps and ranks of RAS answers of which no record could be made.", true, nil}
	refused     = &Family{"graylink_node_collectives_refused_files_total", "Files and directories of collective libraries that are not read, by reason.", true, []string{"reason"}}
	truncated   = &Family{"graylink_node_collectives_truncated_files_total", "Files that were truncated; lines that were not read before are lost.", true, nil}
	failures    = &Family{"graylink_node_collectives_poll_errors_total", "Polls of a directory of collective libraries that failed.", true, nil}
	held        = &Family{"graylink_node_collectives_records_held", "Records of the last minute that are held: operations, and sums of transfers.", false, []string{"kind"}}
	connections = &Family{"graylink_node_collectives_connections", "Open connections of profiler plugins.", false, nil}
	unadmitted  = &Family{"graylink_node_collectives_refused_connections_total", "Connections of profiler plugins beyond the limits, or of unknown users.", true, nil}
	queries     = &Family{"graylink_node_collectives_ras_queries_total", "Queries of the RAS service of NCCL, by result; absent means that no job runs.", true, []string{"result"}}
)

// Families lists all families, by name.
func Families() []*Family {
	out := []*Family{operations, openSeconds, dropped, files, unreadable, refused, truncated, failures, held, connections, unadmitted, queries}
	slices.SortFunc(out, func(a, b *Family) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// CollectPoints returns the current values of the series.
func (f *Follower) CollectPoints(now time.Time) []Point {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.ledger.collectPoints(now)
	add := func(family *Family, v uint64, values ...string) {
		out = append(out, Point{family, values, float64(v)})
	}
	missing := f.dropped()
	for _, why := range slices.Sorted(maps.Keys(missing)) {
		add(dropped, missing[why], string(why))
	}
	s := f.sampler.Stats()
	add(held, uint64(s.Edges), "edge")
	add(held, uint64(s.Ops), "op")
	plugin := f.pluginStats()
	add(unreadable, f.files.Unreadable+f.ras.Unreadable+plugin.Unreadable)
	if f.plugin != nil {
		add(connections, uint64(plugin.Connections))
		add(unadmitted, plugin.Refused)
	}
	if f.config.Dir != "" {
		add(files, uint64(f.files.files))
		add(truncated, f.files.truncated)
		add(failures, f.failed)
		for _, why := range ccl.RefusalReasons() {
			add(refused, f.files.refused[why], string(why))
		}
	}
	if f.config.RAS != "" {
		for _, result := range rasResults() {
			add(queries, f.ras.queries[result], string(result))
		}
	}
	return out
}

// collectPoints returns the series of operations, in the order of their labels.
func (l *ledger) collectPoints(now time.Time) (out []Point) {
	open := l.openSeconds(now) // before the pairs are listed: it may add some
	pairs := slices.Collect(maps.Values(l.pairs))
	slices.SortFunc(pairs, comparePairs)
	for _, p := range append(pairs, l.other) {
		for _, op := range slices.Sorted(maps.Keys(p.completed)) {
			out = append(out, Point{operations, []string{p.comm, p.job, op}, float64(p.completed[op])})
		}
		if seconds, isOpen := open[p.pairKey]; isOpen {
			out = append(out, Point{openSeconds, []string{p.comm, p.job}, seconds})
		}
	}
	return out
}

// comparePairs orders pairs by job and communicator.
func comparePairs(a, b *pair) int {
	if c := strings.Compare(a.job, b.job); c != 0 {
		return c
	}
	return strings.Compare(a.comm, b.comm)
}
