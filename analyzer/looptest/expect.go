package looptest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
)

// expectation returns an error that says what it found unless it holds.
type expectation func(*run, *snapshot.Snapshot) error

// compare returns an error unless two values are equal.
func compare[T comparable](what string, got, want T) error {
	if got != want {
		return fmt.Errorf("%s: %v, want %v", what, got, want)
	}
	return nil
}

// parseExpectation returns the expectation of a text, as RunScripts lists them.
func parseExpectation(text string) (expectation, error) {
	word, rest, _ := strings.Cut(text, " ")
	switch text {
	case "no verdict":
		return func(_ *run, s *snapshot.Snapshot) error {
			return compare("verdicts", len(OfParts(s.Report.Verdicts)), 0)
		}, nil
	case "no incident":
		return func(_ *run, s *snapshot.Snapshot) error { return compare("incidents", len(ofParts(s)), 0) }, nil
	case "no candidate":
		return func(_ *run, s *snapshot.Snapshot) error {
			return compare("candidates", len(s.Report.Candidates), 0)
		}, nil
	case "baselines all":
		return func(r *run, s *snapshot.Snapshot) error {
			return compare("baselines", s.Baselines, len(r.World.Flows))
		}, nil
	case "held":
		return ofNewest(func(in *incident.Incident) error {
			if !in.Open || in.Held == "" {
				return fmt.Errorf("the newest incident is not held: %+v", in)
			}
			return nil
		}), nil
	}
	switch word {
	case "verdicts", "incidents", "degraded", "clock":
		return parseCount(word, strings.TrimPrefix(rest, "suspects "))
	case "verdict":
		return parseVerdict(rest)
	case "routing":
		return parseRouting(rest)
	case "candidate":
		return func(_ *run, s *snapshot.Snapshot) error {
			if !slices.ContainsFunc(s.Report.Candidates, func(c fabric.Candidate) bool { return c.ID == rest }) {
				return fmt.Errorf("candidates %+v", s.Report.Candidates)
			}
			return nil
		}, nil
	case "state":
		return func(_ *run, s *snapshot.Snapshot) error {
			return compare("state", s.Report.State, fabric.State(rest))
		}, nil
	case "scope":
		name, state, _ := strings.Cut(rest, " ")
		return func(_ *run, s *snapshot.Snapshot) error {
			for _, sc := range s.Scopes {
				if sc.Scope == name {
					return compare(sc.Why, sc.State, fabric.State(state))
				}
			}
			return fmt.Errorf("no scope %s", name)
		}, nil
	case "excluded":
		return func(_ *run, s *snapshot.Snapshot) error {
			if s.Hosts[rest] == "" {
				return fmt.Errorf("hosts %v", s.Hosts)
			}
			return nil
		}, nil
	case "closed":
		return ofNewest(func(in *incident.Incident) error { return contains("closed", in.Closed, rest) }), nil
	case "summary":
		return ofNewest(func(in *incident.Incident) error { return contains("summary", in.Summary, rest) }), nil
	case "severity":
		return ofNewest(func(in *incident.Incident) error { return compare("severity", in.Severity, rest) }), nil
	case "jobs":
		return ofNewest(func(in *incident.Incident) error { return compare("jobs", strings.Join(in.Jobs, ","), rest) }), nil
	}
	return nil, fmt.Errorf("unknown expectation %q", text)
}

func contains(what, text, part string) error {
	if !strings.Contains(text, part) {
		return fmt.Errorf("%s %q", what, text)
	}
	return nil
}

// ofNewest returns an expectation of the newest incident.
func ofNewest(check func(*incident.Incident) error) expectation {
	return func(_ *run, s *snapshot.Snapshot) error {
		all := ofParts(s)
		if len(all) == 0 {
			return fmt.Errorf("no incident")
		}
		return check(&all[0])
	}
}

func parseCount(word, number string) (expectation, error) {
	n, err := strconv.Atoi(number)
	if err != nil {
		return nil, err
	}
	return func(_ *run, s *snapshot.Snapshot) error {
		got := map[string]int{"verdicts": len(OfParts(s.Report.Verdicts)), "incidents": len(ofParts(s)), "degraded": s.Report.Edges.Degraded, "clock": s.Report.Edges.ClockSuspect}
		return compare(word, got[word], n)
	}, nil
}

// parseVerdict returns the expectation of exactly one open verdict.
func parseVerdict(text string) (expectation, error) {
	f := strings.Fields(text)
	if len(f) != 3 {
		return nil, fmt.Errorf("verdict %q: want an element, a direction or -, and a scenario", text)
	}
	if f[1] == "-" {
		f[1] = ""
	}
	want := strings.Join(f, " ")
	return func(_ *run, s *snapshot.Snapshot) error {
		return compare("open verdicts", strings.Join(describeVerdicts(OfParts(s.Report.Verdicts)), ", "), want)
	}, nil
}

// OfParts returns the verdicts that are not about routing.
func OfParts(all []fabric.Verdict) []fabric.Verdict {
	return slices.DeleteFunc(slices.Clone(all), func(v fabric.Verdict) bool { return v.Scenario.IsRouting() })
}

// ofParts returns the incidents that are not about routing, the newest first.
func ofParts(s *snapshot.Snapshot) []incident.Incident {
	return slices.DeleteFunc(slices.Clone(s.Incidents), func(in incident.Incident) bool { return in.Scenario.IsRouting() })
}

// parseRouting returns the expectation of one verdict on routing, by element, scenario and severity, or of none.
func parseRouting(want string) (expectation, error) {
	if want != "none" && len(strings.Fields(want)) != 3 {
		return nil, fmt.Errorf("routing %q: want none, or an element, a scenario and a severity", want)
	}
	return func(_ *run, s *snapshot.Snapshot) error {
		var got []string
		for _, v := range s.Report.Verdicts {
			if v.Scenario.IsRouting() {
				got = append(got, v.Element.ID+" "+string(v.Scenario)+" "+v.Severity)
			}
		}
		if want == "none" {
			return compare("verdicts on routing", strings.Join(got, ", "), "")
		}
		return compare("verdicts on routing", strings.Join(got, ", "), want)
	}, nil
}
