package maintenance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// Source is a source of windows.
type Source interface {
	Name() string
	// ReadWindows returns all windows. It returns nil and no error if they have not changed.
	ReadWindows(ctx context.Context, r *Register) ([]Window, error)
}

// FollowSource keeps a source's windows in the register until ctx ends. It logs an error of the source
// once, and again when the error changes.
func FollowSource(ctx context.Context, r *Register, s Source, every time.Duration, log *slog.Logger) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	said := ""
	for {
		switch err := UpdateSource(ctx, r, s, time.Now()); {
		case err == nil:
			said = ""
		case ctx.Err() == nil && err.Error() != said:
			said = err.Error()
			log.Error("cannot read maintenance windows, known ones are kept", "source", s.Name(), "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// UpdateSource reads a source once, and records in the register whether that worked.
func UpdateSource(ctx context.Context, r *Register, s Source, now time.Time) error {
	reading := r.reading[s.Name()]
	reading.Lock()
	defer reading.Unlock()
	windows, err := s.ReadWindows(ctx, r)
	if ctx.Err() == nil {
		r.recordRead(s.Name(), err, now)
	}
	if err != nil {
		return err
	}
	if windows != nil {
		r.ReplaceSource(s.Name(), windows, now)
	}
	return nil
}

// File is a YAML file of windows, read again when it changes:
//
//	maintenance:
//	  - {element: spine2, from: 2026-11-22T02:00:00Z, until: 2026-11-22T04:00:00Z, by: ann, reason: new optics, relearn: true}
type File struct {
	Path        string
	lastContent []byte
}

// maxFile bounds a file, octets.
const maxFile = 4 << 20

// Name implements Source.
func (f *File) Name() string { return SourceFile }

// ReadWindows implements Source. A file that is not there has none.
func (f *File) ReadWindows(_ context.Context, r *Register) ([]Window, error) {
	b, err := os.ReadFile(f.Path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		b = []byte{}
	case err != nil:
		return nil, fmt.Errorf("maintenance: %w", err)
	}
	if f.lastContent != nil && bytes.Equal(b, f.lastContent) {
		return nil, nil
	}
	windows, err := Parse(f.Path, b, r.CheckElement)
	if err != nil {
		return nil, err
	}
	f.lastContent = b
	return windows, nil
}

// Content is the content of a file of windows. Parse decodes the windows one by one, since its errors have their lines.
type Content[W Entry | yaml.Node] struct {
	// Maintenance lists the windows.
	Maintenance []W `yaml:"maintenance"`
}

// Entry is a window as a file writes it.
type Entry struct {
	// Element is the element that is in maintenance.
	Element string `yaml:"element" schema:"required"`
	// From is the time at which the window begins. Without it, the window has begun.
	From time.Time `yaml:"from"`
	// Until is the time at which the window ends.
	Until time.Time `yaml:"until" schema:"required"`
	// By is who does the maintenance.
	By string `yaml:"by"`
	// Reason is why.
	Reason string `yaml:"reason"`
	// Relearn has the baselines of the element's flows learnt anew after the window.
	Relearn bool `yaml:"relearn"`
}

// Parse reads a file of windows; check says what is wrong with an element. The error names
// file, line and field.
func Parse(file string, b []byte, check func(element string) error) ([]Window, error) {
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s: %d octets, at most %d are read", file, len(b), maxFile)
	}
	var doc Content[yaml.Node]
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %s", file, yamlText(err))
	}
	if len(doc.Maintenance) > maxWindows {
		return nil, fmt.Errorf("%s: %d windows, at most %d are read", file, len(doc.Maintenance), maxWindows)
	}
	out := []Window{}
	for i := range doc.Maintenance {
		node := &doc.Maintenance[i]
		at := func(field string) string { return fmt.Sprintf("%s:%d: maintenance[%d].%s", file, node.Line, i, field) }
		if err := checkKeys(node); err != nil {
			return nil, fmt.Errorf("%s: %w", strings.TrimSuffix(at(""), "."), err)
		}
		var e Entry
		if err := node.Decode(&e); err != nil {
			return nil, fmt.Errorf("%s: %s", strings.TrimSuffix(at(""), "."), yamlText(err))
		}
		if err := check(e.Element); err != nil {
			return nil, fmt.Errorf("%s: %w", at("element"), err)
		}
		if e.Until.IsZero() {
			return nil, fmt.Errorf("%s is missing: every window has an end", at("until"))
		}
		if !e.Until.After(e.From) {
			return nil, fmt.Errorf("%s: %s is not after from, %s", at("until"), e.Until.Format(time.RFC3339), e.From.Format(time.RFC3339))
		}
		out = append(out, Window{Element: e.Element, From: e.From, Until: e.Until, By: e.By, Reason: e.Reason, Relearn: e.Relearn})
	}
	return out, nil
}

// checkKeys returns an error if an entry has other keys, or a mapping as a value: yaml.v3 takes one for an empty time.
func checkKeys(n *yaml.Node) error {
	if n.Kind != yaml.MappingNode {
		return errors.New("want a mapping with element, from, until, by, reason, relearn")
	}
	for i := 0; i < len(n.Content); i += 2 {
		switch k := n.Content[i].Value; k {
		case "element", "from", "until", "by", "reason", "relearn":
			if n.Content[i+1].Kind == yaml.MappingNode {
				return fmt.Errorf("%s: a mapping: want a text, a time or true", k)
			}
		default:
			return fmt.Errorf("unknown field %q: want element, from, until, by, reason, relearn", k)
		}
	}
	return nil
}

// yamlText returns a decoder's error on one line.
func yamlText(err error) string {
	return strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "yaml: ")), " ")
}

// Alertmanager is a source of windows from silences whose matchers are on elements alone.
type Alertmanager struct {
	Client *http.Client
	URL    string // base, without a path
	// Elements are those of the topology, for silences by regular expression.
	Elements []string
}

// Name implements Source.
func (a *Alertmanager) Name() string { return SourceAlertmanager }

// maxAnswer bounds the response of a server, in octets.
const maxAnswer = 16 << 20

// ReadWindows implements Source.
func (a *Alertmanager) ReadWindows(ctx context.Context, r *Register) ([]Window, error) {
	at, err := url.JoinPath(a.URL, "/api/v2/silences")
	if err != nil {
		return nil, fmt.Errorf("silences: %w", err)
	}
	b, err := fetchJSON(ctx, a.Client, at, "Alertmanager")
	if err != nil {
		return nil, fmt.Errorf("silences: %w", err)
	}
	return parseSilences(b, a.Elements, r.CheckElement)
}

// fetchJSON reads the response of a server.
func fetchJSON(ctx context.Context, client *http.Client, at, server string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s answered %s", server, resp.Status)
	case len(b) > maxAnswer:
		return nil, fmt.Errorf("the response has more than %d octets", maxAnswer)
	}
	return b, nil
}

// silence is one of Alertmanager's API, version 2 (gettableSilence).
type silence struct {
	ID     string `json:"id"`
	Status struct {
		State string `json:"state"`
	} `json:"status"`
	Matchers  []matcher `json:"matchers"`
	StartsAt  time.Time `json:"startsAt"`
	EndsAt    time.Time `json:"endsAt"`
	CreatedBy string    `json:"createdBy"`
	Comment   string    `json:"comment"`
}

type matcher struct {
	Name    string `json:"name"`
	Value   string `json:"value"`
	IsRegex bool   `json:"isRegex"`
	// IsEqual is absent before Alertmanager 0.22, which knew no other.
	IsEqual *bool `json:"isEqual"`
}

// parseSilences takes the silences whose matchers are all on the label element and say what
// it is: one that also asks for a severity or an alert's name silences less than the element.
func parseSilences(b []byte, elements []string, check func(string) error) ([]Window, error) {
	var all []silence
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, fmt.Errorf("silences: Alertmanager's answer: %w", err)
	}
	out := []Window{}
	for _, s := range all {
		if s.Status.State == "expired" {
			continue
		}
		for _, el := range s.silencedElements(elements) {
			if check(el) != nil {
				continue
			}
			if len(out) == maxWindows {
				return nil, fmt.Errorf("silences: more than %d elements are silenced", maxWindows)
			}
			out = append(out, Window{ID: s.ID + "/" + el, Element: el, From: s.StartsAt, Until: s.EndsAt, By: s.CreatedBy, Reason: s.Comment})
		}
	}
	return out, nil
}

// silencedElements returns the elements that a silence matches.
func (s *silence) silencedElements(all []string) []string {
	type test struct {
		is    func(string) bool
		equal bool
	}
	var tests []test
	candidates, positive := all, false
	for _, m := range s.Matchers {
		if m.Name != "element" || m.Value == "" {
			return nil
		}
		t := test{func(el string) bool { return el == m.Value }, m.IsEqual == nil || *m.IsEqual}
		if m.IsRegex {
			re, err := regexp.Compile("^(?:" + m.Value + ")$")
			if err != nil {
				return nil
			}
			t.is = re.MatchString
		} else if t.equal {
			candidates = []string{m.Value}
		}
		positive = positive || t.equal
		tests = append(tests, t)
	}
	if !positive { // a silence of all elements but some is no maintenance
		return nil
	}
	var out []string
	for _, el := range candidates {
		if !slices.ContainsFunc(tests, func(t test) bool { return t.is(el) != t.equal }) {
			out = append(out, el)
		}
	}
	return out
}
