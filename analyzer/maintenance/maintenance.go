// Package maintenance holds the elements under maintenance, from a file, from the API, from a coordinator that keeps the
// windows of the API for all analyzers, from Alertmanager's silences and from Kubernetes' cordons. The tests here and those of analyzer.Loop
// are named after these rules:
//
//  1. A window covers its element and everything that belongs to it: a switch with its ports and
//     links, a node with its NICs, a NIC with its cable, a port with its cable.
//  2. A flow that may cross a covered element is excluded while the window is in force, or if it
//     was in force at any time since the flow's own evidence began. It neither raises an alarm
//     nor changes a baseline.
//  3. A covered element gets no verdict. An open verdict is closed when the window begins.
//  4. Excluded flows and links count neither for nor against coverage.
//  5. When a window ends, everything is as before it: nothing was learnt, and nothing forgotten.
//     Only a window with relearn, or during which cables were found swapped, drops the baselines
//     of the flows that it touched.
//  6. A source that cannot be read changes nothing. Its known windows stay until they end.
//  7. An element that the topology does not have is an error. In silences it is ignored. Of windows that a coordinator
//     keeps, the coordinator decides.
//  8. With a coordinator, a window is made and ended there, or not at all.
package maintenance

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Window represents a time in which an element is under maintenance.
type Window struct {
	ID      string `json:"id"`
	Element string `json:"element"`
	// From is zero where it was in force before anybody looked. Until is zero for a cordon,
	// which ends when the node is uncordoned.
	From   time.Time `json:"from,omitzero"`
	Until  time.Time `json:"until,omitzero"`
	By     string    `json:"by,omitempty"`
	Reason string    `json:"reason,omitempty"`
	// Relearn forgets the baselines of the flows that the window touched when it ends.
	Relearn bool   `json:"relearn,omitempty"`
	Source  string `json:"source"`
}

// Sources of windows.
const (
	SourceFile         = "file"
	SourceAPI          = "api"         // of this process
	SourceCoordinator  = "coordinator" // of the API of any analyzer
	SourceAlertmanager = "alertmanager"
	SourceKubernetes   = "kubernetes"
)

// inForceDuring reports whether the window is in force at any time of an interval.
func (w *Window) inForceDuring(from, to time.Time) bool {
	return !w.From.After(to) && (w.Until.IsZero() || !w.Until.Before(from))
}

// TouchesDirection reports whether the window covers a way through a cable.
func (w *Window) TouchesDirection(d fabric.Direction) bool {
	return w.ownsEnd(d.From) || w.ownsEnd(d.To) || w.Element == d.LinkID()
}

// ownsEnd reports whether an end is the window's element or belongs to it.
func (w *Window) ownsEnd(end string) bool {
	return w.Element == end || w.Element == fabric.OwnerOf(end)
}

// CoversVerdict reports whether the window covers the element of a verdict, or one of its
// equivalents.
func (w *Window) CoversVerdict(g *fabric.Graph, v *fabric.Verdict) bool {
	return w.coversElement(g, v.Element) || slices.ContainsFunc(v.Equivalent, func(e fabric.Element) bool { return w.coversElement(g, e) })
}

func (w *Window) coversElement(g *fabric.Graph, e fabric.Element) bool {
	if w.Element == e.ID {
		return true
	}
	switch e.Kind {
	case fabric.KindLink, fabric.KindAccessLink:
		a, b, _ := e.LinkEnds()
		return w.TouchesDirection(fabric.Direction{From: a, To: b})
	case fabric.KindPort, fabric.KindQueue:
		return w.TouchesDirection(fabric.Direction{From: e.Port(), To: g.PeerOf(e.Port())})
	case fabric.KindNIC:
		return w.TouchesDirection(fabric.Direction{From: e.ID, To: g.PeerOf(e.ID)})
	case fabric.KindClock:
		return w.ownsEnd(e.ID)
	case fabric.KindHost:
		// One NIC of a node is not the node, unless it is its only one.
		ends := g.EndsOf(e.ID)
		return len(ends) == 1 && w.TouchesDirection(fabric.Direction{From: ends[0], To: g.PeerOf(ends[0])})
	case fabric.KindPair, fabric.KindCorridor:
		return slices.Contains(e.Waypoints(), w.Element)
	}
	return false // a switch, a leaf's uplinks: only the switch itself covers them
}

// String returns the owner, the reason and the end of the window in words.
func (w *Window) String() string {
	s := "under maintenance"
	if w.By != "" {
		s += " by " + w.By
	}
	if !w.Until.IsZero() {
		s += " until " + w.Until.UTC().Format(time.RFC3339)
	}
	if w.Reason != "" {
		s += ": " + w.Reason
	}
	return s
}

// Register holds the windows of all sources. A nil Register has none.
type Register struct {
	graph *fabric.Graph

	reading map[string]*sync.Mutex // by source: held while it is read, so that no older answer replaces a newer one

	mu      sync.Mutex
	sources map[string][]Window
	ended   []Window // taken back before their time, dated when
	reads   map[string]SourceState
}

// SourceState says whether a source can be read.
type SourceState struct {
	Source string    `json:"source"`
	Up     bool      `json:"up"`
	Since  time.Time `json:"since"` // of the first read with this result
	Error  string    `json:"error,omitempty"`
}

// String returns in words what is wrong with the source.
func (s SourceState) String() string {
	return "the windows of source " + s.Source + " cannot be read since " + s.Since.UTC().Format(time.RFC3339) + ", known ones are kept: " + s.Error
}

// allSources are the sources in the order in which windows are listed.
var allSources = []string{SourceFile, SourceAPI, SourceCoordinator, SourceAlertmanager, SourceKubernetes}

// NewRegister returns an empty one for a fabric.
func NewRegister(g *fabric.Graph) *Register {
	r := &Register{graph: g, reading: map[string]*sync.Mutex{}, sources: map[string][]Window{}, reads: map[string]SourceState{}}
	for _, s := range allSources {
		r.reading[s] = &sync.Mutex{}
	}
	return r
}

// recordRead records the result of reading a source.
func (r *Register) recordRead(source string, err error, now time.Time) {
	next := SourceState{Source: source, Up: err == nil, Since: now}
	if err != nil {
		next.Error = err.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, ok := r.reads[source]; ok && old.Up == next.Up {
		next.Since = old.Since
	}
	r.reads[source] = next
}

// SourceStates returns the states of the sources that were read, sorted by name.
func (r *Register) SourceStates() []SourceState {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	out := []SourceState{}
	for _, source := range slices.Sorted(maps.Keys(r.reads)) {
		out = append(out, r.reads[source])
	}
	return out
}

// CheckElement returns an error if the topology does not have an element.
func (r *Register) CheckElement(element string) error { return r.graph.CheckElement(element) }

// keepEnded is how long a window that was taken back is remembered: longer than any window
// of evidence.
const keepEnded = time.Hour

// ReplaceSource replaces the windows of a source. Windows that it no longer has end at now.
func (r *Register) ReplaceSource(source string, windows []Window, now time.Time) {
	for i := range windows {
		windows[i].Source = source
		windows[i].ID = cmp.Or(windows[i].ID, windowID(&windows[i]))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, old := range r.sources[source] {
		if !slices.ContainsFunc(windows, func(w Window) bool { return w.ID == old.ID }) {
			r.rememberEnded(old, now)
		}
	}
	r.sources[source] = windows
}

// rememberEnded remembers a window that is taken back. r.mu is held.
func (r *Register) rememberEnded(w Window, now time.Time) {
	r.ended = slices.DeleteFunc(r.ended, func(o Window) bool { return now.Sub(o.Until) > keepEnded })
	if w.From.After(now) || !w.Until.IsZero() && w.Until.Before(now) {
		return // it never began, or was over
	}
	w.Until = now
	r.ended = append(r.ended, w)
}

// windowID names a window that its source gave no name, the same in every process.
func windowID(w *Window) string {
	sum := sha256.Sum256([]byte(w.Source + "\x00" + w.Element + "\x00" + w.By + "\x00" + w.From.UTC().Format(time.RFC3339) + "\x00" + w.Reason))
	return hex.EncodeToString(sum[:6])
}

// maxWindows bounds what one source may hold.
const maxWindows = 10_000

// AddWindow adds a window of the API, and returns it with its identifier. The error names an invalid field.
func (r *Register) AddWindow(w Window) (Window, error) {
	if err := r.CheckElement(w.Element); err != nil {
		return w, fmt.Errorf("field %q: %w", "element", err)
	}
	if err := w.checkEnd(); err != nil {
		return w, err
	}
	w.Source = SourceAPI
	w.ID = windowID(&w)
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.DeleteFunc(r.sources[SourceAPI], func(o Window) bool {
		return o.ID == w.ID || !o.Until.IsZero() && w.From.Sub(o.Until) > keepEnded
	})
	if len(all) >= maxWindows {
		return w, fmt.Errorf("there are %d windows already", len(all))
	}
	r.sources[SourceAPI] = append(all, w)
	return w, nil
}

// checkEnd returns an error if the window of a request has no end after its beginning.
func (w *Window) checkEnd() error {
	if w.Until.IsZero() {
		return fmt.Errorf("field %q is missing: every window has an end; want until, or duration as 2h30m", "until")
	}
	if !w.Until.After(w.From) {
		return fmt.Errorf("field %q: %s is not after the beginning, %s", "until", w.Until.Format(time.RFC3339), w.From.Format(time.RFC3339))
	}
	return nil
}

// InheritFrom takes over the windows of the API, of elements that are still there, what was taken back, and the windows that
// a coordinator keeps. Without a coordinator from now on, those end now.
func (r *Register) InheritFrom(old *Register) {
	old.mu.Lock()
	kept, shared, ended := slices.Clone(old.sources[SourceAPI]), slices.Clone(old.sources[SourceCoordinator]), slices.Clone(old.ended)
	old.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sources[SourceAPI] = slices.DeleteFunc(kept, func(w Window) bool { return r.CheckElement(w.Element) != nil })
	r.ended = ended
	if _, follows := r.sources[SourceCoordinator]; follows {
		r.sources[SourceCoordinator] = shared
	}
}

// RemoveWindow ends a window of the API at now, and reports whether there was one.
func (r *Register) RemoveWindow(id string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.sources[SourceAPI]
	i := slices.IndexFunc(all, func(w Window) bool { return w.ID == id })
	if i < 0 {
		return false
	}
	r.rememberEnded(all[i], now)
	r.sources[SourceAPI] = slices.Delete(slices.Clone(all), i, i+1)
	return true
}

// WindowsBetween lists the windows in force at any time of an interval, by element.
func (r *Register) WindowsBetween(from, to time.Time) []Window {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.selectWindows(func(w *Window) bool { return w.inForceDuring(from, to) }, r.ended)
}

// CurrentWindows lists the windows in force at now and those to come.
func (r *Register) CurrentWindows(now time.Time) []Window {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.selectWindows(func(w *Window) bool { return w.Until.IsZero() || w.Until.After(now) }, nil)
}

func (r *Register) selectWindows(keep func(*Window) bool, more []Window) []Window {
	out := []Window{}
	lists := [][]Window{more}
	for _, s := range allSources {
		lists = append(lists, r.sources[s])
	}
	for _, ws := range lists {
		for i := range ws {
			if keep(&ws[i]) {
				out = append(out, ws[i])
			}
		}
	}
	slices.SortFunc(out, func(a, b Window) int {
		return cmp.Or(cmp.Compare(a.Element, b.Element), a.From.Compare(b.From), cmp.Compare(a.ID, b.ID))
	})
	return out
}
