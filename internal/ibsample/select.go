package ibsample

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/graylink/graylink/internal/ibmad"
)

// Selection lists what is read of a port: names of queries, or of their fields as the queries name them. An
// empty selection means everything.
type Selection []string

// Validate returns an error that names the first element that is neither a query nor a field.
func (s Selection) Validate() error {
	for _, name := range s {
		known := slices.ContainsFunc(Counters, func(c Counter) bool { return c.Field == name || c.Attribute.String() == name })
		if !known {
			return fmt.Errorf("metric %q: the name of a query or of one of its fields is expected, as PortCountersExtended or SymbolErrorCounter", name)
		}
	}
	return nil
}

func (s Selection) selectsCounter(c *Counter) bool {
	return len(s) == 0 || slices.Contains(s, c.Field) || slices.Contains(s, c.Attribute.String())
}

// Query is a query with its counters that are wanted.
type Query struct {
	Attribute ibmad.Attribute
	IDs       []ID
}

// QueriesFor returns the queries to send to a port (rule 3).
func (s Selection) QueriesFor(t Traits) []Query {
	var out []Query
	for i := range Counters {
		c := &Counters[i]
		if !s.selectsCounter(c) || !t.hasCounter(c) || slices.ContainsFunc(c.wider, func(w ID) bool { return s.selectsCounter(&Counters[w]) && t.hasCounter(&Counters[w]) }) {
			continue
		}
		at := slices.IndexFunc(out, func(a Query) bool { return a.Attribute == c.Attribute })
		if at < 0 {
			at = len(out)
			out = append(out, Query{Attribute: c.Attribute})
		}
		out[at].IDs = append(out[at].IDs, ID(i))
	}
	return out
}

// Pin assigns ports to a sampler: by element ("leaf1:4", "h1/mlx5_0"), by switch or node ("leaf1"), or by LID
// and ports ("22", "22#6", "22#1-36").
type Pin struct {
	Sampler string
	Ports   string
}

// Validate returns an error that names what a pin lacks.
func (p Pin) Validate() error {
	if p.Sampler == "" {
		return fmt.Errorf("ports %q: the name of a sampler is expected", p.Ports)
	}
	_, err := p.targetMatcher()
	return err
}

// targetMatcher returns a function that reports whether a target belongs to the pin.
func (p Pin) targetMatcher() (func(*Target) bool, error) {
	lidText, ports, ranged := strings.Cut(p.Ports, "#")
	lid, err := strconv.ParseUint(lidText, 0, 16)
	switch {
	case p.Ports == "":
		return nil, fmt.Errorf("sampler %s: ports are expected: an element, a LID, or LID#port", p.Sampler)
	case err == nil && (lid == 0 || lid >= 0xc000):
		return nil, fmt.Errorf("ports %q: a unicast LID, 1 to 49151, is expected", p.Ports)
	case err == nil && !ranged:
		return func(t *Target) bool { return uint64(t.LID) == lid }, nil
	case err == nil:
		from, to, isRange := strings.Cut(ports, "-")
		if !isRange {
			to = from
		}
		low, err1 := strconv.ParseUint(from, 10, 8)
		high, err2 := strconv.ParseUint(to, 10, 8)
		if err1 != nil || err2 != nil || low > high {
			return nil, fmt.Errorf("ports %q: a port, or first-last, is expected after #", p.Ports)
		}
		return func(t *Target) bool {
			return uint64(t.LID) == lid && uint64(t.Port) >= low && uint64(t.Port) <= high
		}, nil
	case ranged:
		return nil, fmt.Errorf("ports %q: a LID is expected before #", p.Ports)
	}
	return func(t *Target) bool {
		return t.Element == p.Ports || strings.HasPrefix(t.Element, p.Ports+":") || strings.HasPrefix(t.Element, p.Ports+"/")
	}, nil
}

// resolvePins returns the sampler of each pinned port; a later pin overrides an earlier one.
func resolvePins(pins []Pin, targets []Target) map[Key]string {
	out := map[Key]string{}
	for _, p := range pins {
		match, err := p.targetMatcher()
		if err != nil {
			continue // Validate reports it
		}
		for i := range targets {
			if match(&targets[i]) {
				out[targets[i].Key] = p.Sampler
			}
		}
	}
	return out
}
