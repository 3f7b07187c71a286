package follow

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/points"
)

// The families of a Follower.
var (
	operations  = points.NewCounter("fabric_collective_operations_total", "Completed operations of the node's ranks, by kind; other stands for those beyond 64 communicators.", "comm_name", "job_name", "op")
	openSeconds = points.NewGauge("fabric_collective_open_seconds", "Time in seconds since the oldest open operation of a communicator began; absent if none is open.", "comm_name", "job_name")
	dropped     = points.NewCounter("fabric_collective_dropped_total", "Operations and transfers that are missing from the records, by reason.", "reason")
	files       = points.NewGauge("graylink_node_collectives_files", "Files of collective libraries that are followed, and dumps that were read.")
	unreadable  = points.NewCounter("graylink_node_collectives_lines_unreadable_total", "Lines, entries of dumps and ranks of RAS answers of which no record could be made.")
	refused     = points.NewCounter("graylink_node_collectives_refused_files_total", "Files and directories of collective libraries that are not read, by reason.", "reason")
	truncated   = points.NewCounter("graylink_node_collectives_truncated_files_total", "Files that were truncated; lines that were not read before are lost.")
	failures    = points.NewCounter("graylink_node_collectives_poll_errors_total", "Polls of a directory of collective libraries that failed.")
	held        = points.NewGauge("graylink_node_collectives_records_held", "Records of the last minute that are held: operations, and sums of transfers.", "kind")
	connections = points.NewGauge("graylink_node_collectives_connections", "Open connections of profiler plugins.")
	unadmitted  = points.NewCounter("graylink_node_collectives_refused_connections_total", "Connections of profiler plugins beyond the limits, or of unknown users.")
	queries     = points.NewCounter("graylink_node_collectives_ras_queries_total", "Queries of the RAS service of NCCL, by result; absent means that no job runs.", "result")
)

// Families lists all families, by name.
func Families() []*points.Family {
	out := []*points.Family{operations, openSeconds, dropped, files, unreadable, refused, truncated, failures, held, connections, unadmitted, queries}
	slices.SortFunc(out, func(a, b *points.Family) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// CollectPoints returns the current values of the series.
func (f *Follower) CollectPoints(now time.Time) []points.Point {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.ledger.collectPoints(now)
	add := func(family *points.Family, v uint64, values ...string) {
		out = append(out, family.NewPoint(float64(v), values...))
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
func (l *ledger) collectPoints(now time.Time) (out []points.Point) {
	open := l.openSeconds(now) // before the pairs are listed: it may add some
	pairs := slices.Collect(maps.Values(l.pairs))
	slices.SortFunc(pairs, comparePairs)
	for _, p := range append(pairs, l.other) {
		for _, op := range slices.Sorted(maps.Keys(p.completed)) {
			out = append(out, operations.NewPoint(float64(p.completed[op]), p.comm, p.job, op))
		}
		if seconds, isOpen := open[p.pairKey]; isOpen {
			out = append(out, openSeconds.NewPoint(seconds, p.comm, p.job))
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
