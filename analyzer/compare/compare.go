// Package compare finds what became worse from one span of time to another, of links, leaves and NICs, by what Prometheus has of
// both spans.
//
// Rules:
//
//  1. A span is looked at in evenly spread windows. Of each series of a span, the 10th percentile, the median and the 90th
//     percentile of its windows count.
//  2. A value became larger if its 10th percentile in the later span exceeds its 90th percentile in the earlier one. What differs
//     by no more than the spread within the spans is not listed.
//  3. The size of a change is the distance of these two percentiles: by so much it changed at least. The largest come first.
//  4. What is not known is never 0. A series that had windows in the earlier span and has next to none in the later one is listed
//     as missing.
//  5. Each list is bounded, and says how many entries it leaves out. A section that could not be read says so, and the others hold.
package compare

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
)

// Kind is a kind of what is compared.
type Kind string

// Kinds of what is compared.
const (
	Links  Kind = "link"
	Leaves Kind = "leaf"
	NICs   Kind = "nic"
)

// Kinds lists the kinds in the order of the sections.
func Kinds() []Kind { return []Kind{Links, Leaves, NICs} }

// Quantity is what is compared.
type Quantity string

// Quantities that are compared.
const (
	// AddedDelay is the delay that a direction of a link adds.
	AddedDelay Quantity = "added_delay"
	// MedianDelay and TailDelay are the median and the 99th percentile of one-way delays.
	MedianDelay Quantity = "median_delay"
	TailDelay   Quantity = "p99_delay"
	// LossRatio is the share of packets that were lost, MarkRatio that of packets with a mark of congestion.
	LossRatio Quantity = "loss"
	MarkRatio Quantity = "marks"
	// Coverage is the number of flows that cross a direction of a link, or of probes a second.
	Coverage Quantity = "coverage"
)

// Unit is the unit of the values of a section.
type Unit string

// Units of values.
const (
	Nanoseconds     Unit = "ns"
	Ratio           Unit = "ratio"
	Flows           Unit = "flows"
	ProbesPerSecond Unit = "probes_per_second"
)

// Bounds of a request.
const (
	defaultSpan, leastSpan, mostSpan = 10 * time.Minute, time.Minute, 24 * time.Hour
	defaultLimit, mostLimit          = 50, 200
)

// patience bounds the queries for one comparison, and the wait for another one that is being made.
const patience = 30 * time.Second

// parallelSections is the number of sections that are read at the same time.
const parallelSections = 4

// keptComparisons is the number of comparisons that are kept for those who ask for the same.
const keptComparisons = 4

// Request says what is compared. The two spans end at From and To.
type Request struct {
	From, To time.Time
	Span     time.Duration
	// Kind restricts the comparison to one kind. "" means all.
	Kind Kind
	// Limit bounds the entries of each list.
	Limit int
}

// ParseRequest reads the parameters from, to, span, kind and limit. Moments are times, or how long ago they are.
func ParseRequest(v url.Values, now time.Time) (r Request, err error) {
	r = Request{To: now.UTC().Truncate(time.Second), Span: defaultSpan, Kind: Kind(v.Get("kind")), Limit: defaultLimit}
	if r.From, err = evidence.ParsePastMoment(v.Get("from"), now); err != nil {
		return r, fmt.Errorf("from: %w", err)
	}
	if text := v.Get("to"); text != "" {
		if r.To, err = evidence.ParsePastMoment(text, now); err != nil {
			return r, fmt.Errorf("to: %w", err)
		}
	}
	if text := v.Get("span"); text != "" {
		if r.Span, err = time.ParseDuration(text); err != nil || r.Span < leastSpan || r.Span > mostSpan {
			return r, fmt.Errorf("span: %.60q; expected a length of time from %s to %s", text, leastSpan, mostSpan)
		}
		r.Span = r.Span.Truncate(time.Second)
	}
	if text := v.Get("limit"); text != "" {
		if r.Limit, err = strconv.Atoi(text); err != nil || r.Limit < 1 || r.Limit > mostLimit {
			return r, fmt.Errorf("limit: %.60q; expected a number from 1 to %d", text, mostLimit)
		}
	}
	if r.Kind != "" && !slices.Contains(Kinds(), r.Kind) {
		return r, fmt.Errorf("kind: %.60q; expected one of %v", r.Kind, Kinds())
	}
	if r.To.Sub(r.From).Abs() < r.Span {
		return r, fmt.Errorf("the spans of %s that end at %s and at %s overlap", r.Span, r.From.Format(time.RFC3339), r.To.Format(time.RFC3339))
	}
	return r, nil
}

// Span is a span of time.
type Span struct {
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`
}

// Comparison is what became worse from one span to another.
type Comparison struct {
	From     Span      `json:"from"`
	To       Span      `json:"to"`
	Sections []Section `json:"sections"`
	// Warnings has the warnings of Prometheus about answers that may be incomplete.
	Warnings []string `json:"warnings,omitempty"`
}

// Section is what became worse of one kind, in one quantity.
type Section struct {
	Kind     Kind     `json:"kind"`
	Quantity Quantity `json:"quantity"`
	Unit     Unit     `json:"unit"`
	// Error is the reason why the section is not known. It is absent if the section is known.
	Error string `json:"error,omitempty"`
	// Compared is the number of series that have values at the ends of both spans. Where it is 0, nothing is known.
	Compared int `json:"compared"`
	// Changes are what became worse, the largest change first. ChangesLeftOut is the number of others.
	Changes        []Change `json:"changes"`
	ChangesLeftOut int      `json:"changes_left_out"`
	// Missing are series that had values in the earlier span, and have next to none in the later one.
	Missing        []Place `json:"missing"`
	MissingLeftOut int     `json:"missing_left_out"`
}

// Place is a link, leaf or NIC, in one direction.
type Place struct {
	Element string `json:"element"`
	// Direction is from->to, of a link.
	Direction string `json:"direction,omitempty"`
	// Side is source for packets from a leaf or NIC, and destination for packets to it.
	Side  string `json:"side,omitempty"`
	Class string `json:"class,omitempty"`
	Plane string `json:"plane,omitempty"`
}

// Change is a value that differs by more than the spread within the spans.
type Change struct {
	Place
	// AtLeast is the distance between the windows of the two spans, without the tenth of them at either end.
	AtLeast float64 `json:"at_least"`
	Before  Spread  `json:"before"`
	After   Spread  `json:"after"`
}

// Spread has the 10th percentile, the median and the 90th percentile of the windows of a span.
type Spread struct {
	Low    float64 `json:"low"`
	Median float64 `json:"median"`
	High   float64 `json:"high"`
}

// Worse reports whether a comparison lists anything.
func (c *Comparison) Worse() bool {
	return slices.ContainsFunc(c.Sections, func(s Section) bool { return len(s.Changes)+len(s.Missing) > 0 })
}

// Unknown reports whether a section could not be read, or no section has anything to compare.
func (c *Comparison) Unknown() bool {
	known := false
	for i := range c.Sections {
		if c.Sections[i].Error != "" {
			return true
		}
		known = known || c.Sections[i].Compared > 0
	}
	return !known
}

// Comparer compares spans. Its methods may be called concurrently.
type Comparer struct {
	db    evidence.Querier
	graph func() *fabric.Graph

	busy chan struct{}    // has an entry while a comparison is made; this guards kept
	kept []keptComparison // the newest first
}

// keptComparison is a comparison that was made.
type keptComparison struct {
	request Request
	graph   *fabric.Graph
	result  *Comparison
}

// New returns a Comparer. What the graph does not have is not listed.
func New(db evidence.Querier, graph func() *fabric.Graph) *Comparer {
	return &Comparer{db: db, graph: graph, busy: make(chan struct{}, 1)}
}

// find returns a comparison that was made, or nil.
func (c *Comparer) find(r Request, g *fabric.Graph) *Comparison {
	for i := range c.kept {
		if c.kept[i].request == r && c.kept[i].graph == g {
			return c.kept[i].result
		}
	}
	return nil
}

// Compare compares two spans. One comparison is made at a time. It fails if others take too long; what the server does not answer is
// an error of its section. The result must not be changed.
func (c *Comparer) Compare(ctx context.Context, r Request) (*Comparison, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case c.busy <- struct{}{}:
		defer func() { <-c.busy }()
	case <-ctx.Done():
		return nil, errors.New("other comparisons are being made; try again later")
	}
	g := c.graph()
	if old := c.find(r, g); old != nil {
		return old, nil
	}
	b := builder{db: c.db, graph: g, request: r, warnings: map[string]bool{}}
	out := &Comparison{From: Span{r.From.Add(-r.Span), r.From}, To: Span{r.To.Add(-r.Span), r.To}, Sections: b.sections(ctx)}
	out.Warnings = slices.Sorted(maps.Keys(b.warnings))
	if !slices.ContainsFunc(out.Sections, func(s Section) bool { return s.Error != "" }) {
		c.kept = append([]keptComparison{{r, g, out}}, c.kept[:min(len(c.kept), keptComparisons-1)]...)
	}
	return out, nil
}

// builder makes one comparison.
type builder struct {
	db      evidence.Querier
	graph   *fabric.Graph
	request Request

	mu       sync.Mutex
	warnings map[string]bool
}

// sections reads all sections.
func (b *builder) sections(ctx context.Context) []Section {
	var wanted []measure
	for _, m := range measures() {
		if b.request.Kind == "" || b.request.Kind == m.kind {
			wanted = append(wanted, m)
		}
	}
	out := make([]Section, len(wanted))
	slots := make(chan struct{}, parallelSections)
	var all sync.WaitGroup
	for i := range wanted {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			out[i] = b.section(ctx, &wanted[i])
		})
	}
	all.Wait()
	return out
}

// section reads one section.
func (b *builder) section(ctx context.Context, m *measure) Section {
	s := Section{Kind: m.kind, Quantity: m.quantity, Unit: m.unit, Changes: []Change{}, Missing: []Place{}}
	q := b.newQueries(m)
	err := b.fillChanges(ctx, &s, q)
	if err == nil && m.reportsMissing {
		s.Missing, s.MissingLeftOut, err = b.places(ctx, q, q.missing())
		slices.SortStableFunc(s.Missing, func(a, b Place) int { return fabric.CompareNatural(a.Element, b.Element) })
	}
	if err == nil {
		s.Compared, err = b.count(ctx, q.compared())
	}
	if err != nil {
		return Section{Kind: m.kind, Quantity: m.quantity, Unit: m.unit, Error: err.Error(), Changes: []Change{}, Missing: []Place{}}
	}
	return s
}

// places returns the places of an expression's answer, the largest values first, and the number of others.
func (b *builder) places(ctx context.Context, q *queries, expression string) (out []Place, leftOut int, err error) {
	samples, err := b.ask(ctx, fmt.Sprintf("topk(%d, %s)", b.request.Limit+1, expression))
	if err != nil {
		return nil, 0, err
	}
	slices.SortStableFunc(samples, func(a, b evidence.Sample) int { return cmp.Compare(b.Value, a.Value) })
	if len(samples) > b.request.Limit {
		samples = samples[:b.request.Limit]
		n, err := b.count(ctx, "count("+expression+")")
		if err != nil {
			return nil, 0, err
		}
		leftOut = n - len(samples)
	}
	out = []Place{}
	for _, s := range samples {
		if p, known := b.placeOf(q.measure, s.Labels); known {
			out = append(out, p)
		}
	}
	return out, leftOut, nil
}

// fillChanges adds what became worse to a section.
func (b *builder) fillChanges(ctx context.Context, s *Section, q *queries) error {
	places, leftOut, err := b.places(ctx, q, q.changed())
	if err != nil || len(places) == 0 {
		return err
	}
	s.ChangesLeftOut = leftOut
	spreads := [2]map[Place]*spreadOf{}
	for i, query := range q.details(places) {
		samples, err := b.ask(ctx, query)
		if err != nil {
			return err
		}
		spreads[i] = map[Place]*spreadOf{}
		for _, sample := range samples {
			p, known := b.placeOf(q.measure, sample.Labels)
			if !known {
				continue
			}
			if spreads[i][p] == nil {
				spreads[i][p] = &spreadOf{}
			}
			spreads[i][p].add(sample.Labels[statLabel], sample.Value*q.measure.scale())
		}
	}
	for _, p := range places {
		before, after := spreads[0][p], spreads[1][p]
		if before == nil || after == nil || before.windows < leastWindows || after.windows < leastWindows {
			continue
		}
		c := Change{Place: p, Before: before.Spread, After: after.Spread, AtLeast: after.Low - before.High}
		if q.measure.falls {
			c.AtLeast = before.Low - after.High
		}
		s.Changes = append(s.Changes, c)
	}
	slices.SortStableFunc(s.Changes, func(a, b Change) int {
		return cmp.Or(cmp.Compare(b.AtLeast, a.AtLeast), cmp.Compare(a.Element, b.Element))
	})
	return nil
}

// spreadOf is the spread of a series, with the number of windows that it has a value in.
type spreadOf struct {
	Spread
	windows int
}

// add adds a statistic by its name.
func (s *spreadOf) add(name string, v float64) {
	switch name {
	case "low":
		s.Low = v
	case "median":
		s.Median = v
	case "high":
		s.High = v
	case "windows":
		s.windows = int(v)
	}
}

// placeOf returns the place that labels name, and whether the graph has it.
func (b *builder) placeOf(m *measure, labels map[string]string) (p Place, known bool) {
	switch m.kind {
	case Links:
		p = Place{Element: labels["link"], Direction: labels["from"] + "->" + labels["to"]}
		return p, b.graph.HasElement(fabric.Element{ID: p.Element, Kind: fabric.KindLink})
	case Leaves:
		p = Place{Element: labels["leaf"], Side: labels["side"], Class: labels["class"], Plane: labels["plane"]}
		return p, b.graph.HasElement(fabric.Element{ID: p.Element, Kind: fabric.KindSwitch})
	}
	p = Place{Element: labels["nic"], Side: labels["side"], Class: labels["class"], Plane: labels["plane"]}
	return p, b.graph.HasElement(fabric.Element{ID: p.Element, Kind: fabric.KindNIC})
}

// count evaluates an expression that is a number or nothing, which is 0.
func (b *builder) count(ctx context.Context, expression string) (int, error) {
	samples, err := b.ask(ctx, expression)
	if err != nil || len(samples) == 0 {
		return 0, err
	}
	return int(samples[0].Value), nil
}

// ask evaluates an expression at the end of the later span.
func (b *builder) ask(ctx context.Context, expression string) ([]evidence.Sample, error) {
	samples, err := b.db.QueryInstant(ctx, expression, b.request.To)
	var partial *evidence.PartialError
	switch {
	case errors.As(err, &partial):
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, w := range partial.Warnings {
			b.warnings[w] = true
		}
	case err != nil:
		return nil, fmt.Errorf("cannot read the past: %s", shortenStart(err.Error()))
	}
	return samples, nil
}

// shortenStart leaves the start of a long text out. Errors may begin with the expression, and end with the reason.
func shortenStart(text string) string {
	const most = 240
	if runes := []rune(text); len(runes) > most {
		return "…" + string(runes[len(runes)-most:])
	}
	return text
}
