package evidence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Ranger evaluates PromQL over a span of time.
type Ranger interface {
	// QueryRange evaluates an expression at from and every step after it until to, by the
	// server's clock.
	QueryRange(ctx context.Context, query string, from, to time.Time, step time.Duration) ([]Series, error)
}

// Series are the values of one set of labels, oldest first.
type Series struct {
	Labels map[string]string
	Points []Point
}

// Point is a value at a moment.
type Point struct {
	At    time.Time
	Value float64
}

// PastVerdict represents a verdict that analyzers published.
type PastVerdict struct {
	// ID is its identifier, or "" if that was not published.
	ID      string
	Element fabric.Element
	// Earlier are the elements that it named before it was narrowed.
	Earlier   []fabric.Element
	Scenario  fabric.Scenario
	Direction fabric.Direction // zero: none was known
	Severity  string
	Plane     string
	Class     string
	Symptom   fabric.Symptom
	FirstSeen time.Time
	// Cleared is zero if its end was not published. LastSeen is when it was last
	// published, to the resolution of the query.
	Cleared, LastSeen time.Time
}

// verdictStep is the resolution of the history of verdicts. A cleared one is published for
// five minutes.
const verdictStep = 15 * time.Second

// VerdictQueries lists the questions about verdicts by name, as Queries does.
func (s Settings) VerdictQueries() map[string]string {
	return s.expandQueries(defaultVerdictQueries(), "")
}

func defaultVerdictQueries() map[string]string {
	const element = `job, instance, element, kind`
	return map[string]string{
		"pastVerdicts": `max by (element, kind, scenario, from, to, severity, plane, class) (fabric_suspect_first_seen_timestamp_seconds * on (` + element + `) group_right () (fabric_suspect_info * 0 + 1))`,
		"pastIDs":      `max by (id, element, kind) (fabric_suspect_first_seen_timestamp_seconds * on (` + element + `) group_right () (fabric_verdict_info * 0 + 1))`,
		"pastCleared":  `max by (element, kind) (fabric_suspect_cleared_timestamp_seconds)`,
		"pastDelay":    `max by (element, kind) (fabric_suspect_added_delay_seconds) > 0`,
		"pastLoss":     `max by (element, kind) (fabric_suspect_loss_ratio) > 0`,
	}
}

// RecallVerdicts returns the verdicts that were published within Past.Search before now,
// the oldest first. Verdicts of two analyzers that have the same element and first moment are one, and so are those with the same
// identifier, one of which was narrowed to the other.
func RecallVerdicts(ctx context.Context, db Ranger, s Settings, now time.Time) ([]PastVerdict, error) {
	ctx, cancel := context.WithTimeout(ctx, recallPatience)
	defer cancel()
	q := &verdictQuery{ctx: ctx, db: db, settings: &s, now: now.Truncate(time.Second)}
	named, err := q.readSeries("pastVerdicts")
	if err != nil {
		return nil, err
	}
	all := pastVerdicts{}
	for i := range named {
		for _, p := range named[i].Points {
			all.addPoint(&named[i], p)
		}
	}
	ids, err := q.readSeries("pastIDs")
	if err != nil {
		return nil, err
	}
	for i := range ids {
		for _, p := range ids[i].Points {
			all.addID(&ids[i], p)
		}
	}
	for _, part := range []struct {
		query string
		take  func(fabric.Element, Point)
	}{{"pastCleared", all.addEnd}, {"pastDelay", all.addDelay}, {"pastLoss", all.addLoss}} {
		if err := q.eachPoint(part.query, part.take); err != nil {
			return nil, err
		}
	}
	return all.list(), nil
}

// verdictQuery reads the series of verdicts that were published before a moment.
type verdictQuery struct {
	ctx      context.Context
	db       Ranger
	settings *Settings
	now      time.Time
}

// readSeries returns the series of a named query. It fails if the query does, except that a partial result is used.
func (q *verdictQuery) readSeries(name string) ([]Series, error) {
	series, err := q.db.QueryRange(q.ctx, q.settings.VerdictQueries()[name], q.now.Add(-q.settings.Past.Search), q.now, verdictStep)
	var partial *PartialError
	if err != nil && !errors.As(err, &partial) {
		return nil, fmt.Errorf("query %q: %w", name, err)
	}
	return series, nil
}

// eachPoint calls take for every point of a named query.
func (q *verdictQuery) eachPoint(name string, take func(fabric.Element, Point)) error {
	series, err := q.readSeries(name)
	for i := range series {
		for _, p := range series[i].Points {
			take(elementOf(&series[i]), p)
		}
	}
	return err
}

func elementOf(s *Series) fabric.Element {
	return fabric.Element{ID: s.Labels["element"], Kind: fabric.Kind(s.Labels["kind"])}
}

// pastVerdicts are verdicts by element and start.
type pastVerdicts map[fabric.Element]map[time.Time]*PastVerdict

// addPoint adds a point of the series that has a verdict's start as its value. The latest point has the properties.
func (all pastVerdicts) addPoint(s *Series, p Point) {
	el, first := elementOf(s), timeFromSeconds(p.Value)
	if first.IsZero() || el.ID == "" {
		return
	}
	v := all[el][first]
	if v == nil {
		if all[el] == nil {
			all[el] = map[time.Time]*PastVerdict{}
		}
		v = &PastVerdict{Element: el, FirstSeen: first}
		all[el][first] = v
	}
	if p.At.Before(v.LastSeen) {
		return
	}
	v.LastSeen, v.Scenario, v.Severity = p.At, fabric.Scenario(s.Labels["scenario"]), s.Labels["severity"]
	v.Plane, v.Class, v.Direction = s.Labels["plane"], s.Labels["class"], fabric.Direction{From: s.Labels["from"], To: s.Labels["to"]}
}

// addID adds a point of the series that has the start of a verdict as its value, and its identifier.
func (all pastVerdicts) addID(s *Series, p Point) {
	if v := all[elementOf(s)][timeFromSeconds(p.Value)]; v != nil {
		v.ID = s.Labels["id"]
	}
}

// addEnd adds a point of the series that has the end of a verdict as its value.
func (all pastVerdicts) addEnd(el fabric.Element, p Point) {
	end := timeFromSeconds(p.Value)
	if v := all.openAt(el, end); v != nil && end.After(v.Cleared) {
		v.Cleared = end
	}
}

// addDelay adds a point of the series of added delays, in seconds.
func (all pastVerdicts) addDelay(el fabric.Element, p Point) {
	v := all.measuredAt(el, p.At)
	v.Symptom.AddedDelayNS = max(v.Symptom.AddedDelayNS, int64(math.Round(p.Value*1e9)))
}

// addLoss adds a point of the series of losses.
func (all pastVerdicts) addLoss(el fabric.Element, p Point) {
	v := all.measuredAt(el, p.At)
	v.Symptom.LossRatio = max(v.Symptom.LossRatio, p.Value)
}

// openAt returns the latest verdict on an element that had begun at a moment, or nil.
func (all pastVerdicts) openAt(el fabric.Element, t time.Time) (found *PastVerdict) {
	for _, v := range all[el] {
		if !v.FirstSeen.After(t) && (found == nil || v.FirstSeen.After(found.FirstSeen)) {
			found = v
		}
	}
	return found
}

// measuredAt returns the verdict that a value of a moment belongs to. If that was over by then, it returns one that
// nothing has.
func (all pastVerdicts) measuredAt(el fabric.Element, t time.Time) *PastVerdict {
	v := all.openAt(el, t)
	if v == nil || !v.Cleared.IsZero() && t.After(v.Cleared) {
		return &PastVerdict{}
	}
	return v
}

// list returns the verdicts by start.
func (all pastVerdicts) list() []PastVerdict {
	out := []PastVerdict{}
	for _, of := range all {
		for _, v := range of {
			out = append(out, *v)
		}
	}
	slices.SortFunc(out, func(a, b PastVerdict) int {
		return cmp.Or(a.FirstSeen.Compare(b.FirstSeen), cmp.Compare(a.Element.ID, b.Element.ID), cmp.Compare(a.Element.Kind, b.Element.Kind))
	})
	return joinNarrowed(out)
}

// joinNarrowed joins verdicts with the same identifier. The one that was published last has the element.
func joinNarrowed(all []PastVerdict) (out []PastVerdict) {
	at := map[string]int{}
	for _, v := range all {
		i, known := at[v.ID]
		if v.ID == "" || !known {
			at[v.ID] = len(out)
			out = append(out, v)
			continue
		}
		before, after := out[i], v
		if after.LastSeen.Before(before.LastSeen) {
			before, after = after, before
		}
		after.Earlier = append(append(slices.Clone(before.Earlier), after.Earlier...), before.Element)
		out[i] = after
	}
	return out
}

// timeFromSeconds converts a time in seconds, to the millisecond. It returns the zero time for an invalid one.
func timeFromSeconds(seconds float64) time.Time {
	if !(seconds > 0 && seconds < 1e11) {
		return time.Time{}
	}
	return time.UnixMilli(int64(math.Round(seconds * 1e3)))
}
