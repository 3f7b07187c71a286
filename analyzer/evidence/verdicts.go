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
	Element   fabric.Element
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
		"pastCleared":  `max by (element, kind) (fabric_suspect_cleared_timestamp_seconds)`,
		"pastDelay":    `max by (element, kind) (fabric_suspect_added_delay_seconds) > 0`,
		"pastLoss":     `max by (element, kind) (fabric_suspect_loss_ratio) > 0`,
	}
}

// RecallVerdicts returns the verdicts that were published within Past.Search before now,
// the oldest first. Verdicts of two analyzers that have the same element and first moment are one.
func RecallVerdicts(ctx context.Context, db Ranger, s Settings, now time.Time) ([]PastVerdict, error) {
	ctx, cancel := context.WithTimeout(ctx, recallPatience)
	defer cancel()
	now = now.Truncate(time.Second)
	queries := s.VerdictQueries()
	ask := func(name string) ([]Series, error) {
		series, err := db.QueryRange(ctx, queries[name], now.Add(-s.Past.Search), now, verdictStep)
		var partial *PartialError
		if err != nil && !errors.As(err, &partial) {
			return nil, fmt.Errorf("query %q: %w", name, err)
		}
		return series, nil
	}
	named, err := ask("pastVerdicts")
	if err != nil {
		return nil, err
	}
	of := func(s *Series) fabric.Element {
		return fabric.Element{ID: s.Labels["element"], Kind: fabric.Kind(s.Labels["kind"])}
	}
	all := map[fabric.Element]map[time.Time]*PastVerdict{}
	for i := range named {
		s := &named[i]
		for _, p := range s.Points {
			el, first := of(s), timeFromSeconds(p.Value)
			if first.IsZero() || el.ID == "" {
				continue
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
				continue
			}
			v.LastSeen, v.Scenario, v.Severity = p.At, fabric.Scenario(s.Labels["scenario"]), s.Labels["severity"]
			v.Plane, v.Class, v.Direction = s.Labels["plane"], s.Labels["class"], fabric.Direction{From: s.Labels["from"], To: s.Labels["to"]}
		}
	}
	var out []*PastVerdict
	for _, of := range all {
		for _, v := range of {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b *PastVerdict) int {
		return cmp.Or(a.FirstSeen.Compare(b.FirstSeen), cmp.Compare(a.Element.ID, b.Element.ID), cmp.Compare(a.Element.Kind, b.Element.Kind))
	})
	// at is the verdict of an element that was open at a moment.
	at := func(el fabric.Element, t time.Time) (found *PastVerdict) {
		for _, v := range all[el] {
			if !v.FirstSeen.After(t) && (found == nil || v.FirstSeen.After(found.FirstSeen)) {
				found = v
			}
		}
		return found
	}
	each := func(name string, take func(of fabric.Element, p Point)) error {
		series, err := ask(name)
		for i := range series {
			for _, p := range series[i].Points {
				take(of(&series[i]), p)
			}
		}
		return err
	}
	err = each("pastCleared", func(of fabric.Element, p Point) {
		end := timeFromSeconds(p.Value)
		if v := at(of, end); v != nil && end.After(v.Cleared) {
			v.Cleared = end
		}
	})
	if err != nil {
		return nil, err
	}
	// during is the verdict that a value is of, unless that was over by then.
	during := func(of fabric.Element, p Point) *PastVerdict {
		v := at(of, p.At)
		if v == nil || !v.Cleared.IsZero() && p.At.After(v.Cleared) {
			return &PastVerdict{}
		}
		return v
	}
	err = each("pastDelay", func(of fabric.Element, p Point) {
		v := during(of, p)
		v.Symptom.AddedDelayNS = max(v.Symptom.AddedDelayNS, int64(math.Round(p.Value*1e9)))
	})
	if err != nil {
		return nil, err
	}
	err = each("pastLoss", func(of fabric.Element, p Point) {
		v := during(of, p)
		v.Symptom.LossRatio = max(v.Symptom.LossRatio, p.Value)
	})
	if err != nil {
		return nil, err
	}
	verdicts := make([]PastVerdict, len(out))
	for i, v := range out {
		verdicts[i] = *v
	}
	return verdicts, nil
}

// timeFromSeconds converts a time in seconds, to the millisecond. It returns the zero time for an invalid one.
func timeFromSeconds(seconds float64) time.Time {
	if !(seconds > 0 && seconds < 1e11) {
		return time.Time{}
	}
	return time.UnixMilli(int64(math.Round(seconds * 1e3)))
}
