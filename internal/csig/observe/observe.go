// Package observe keeps what the in-band signals of flows said, in windows. It does no I/O and reads no clock. Its rules, which the tests
// are named after:
//
//  1. A window has the worst value of each signal, with the locator that came with it. Of equal values the first one stays.
//  2. A window without a tag has no value. That is not the value of an idle path.
//  3. A tag that no port has replaced (locator 0) has no value. It is counted.
//  4. What cannot be read is counted by its reason and used for nothing.
//  5. Memory is bounded: by the number of flows, and by how many new locators of flows there are in a minute.
//  6. A locator that reports that a port is down has no value. It is counted, and the port is reported until a whole window has no such
//     tag.
package observe

import (
	"time"

	"github.com/graylink/graylink/internal/csig"
)

// Bounds of an Observer, unless its Options say otherwise.
const (
	DefaultFlows       = 4096
	DefaultNewLocators = 1000
)

// maxLocators bounds the locators of a signal of a flow whose packets are counted apart: twice the hops of a long path.
const maxLocators = 16

// Reason says why a tag is not used.
type Reason uint8

// Reasons, as fabric_csig_dropped_total has them. Used is none of them.
const (
	Used           Reason = iota
	Malformed             // the frame cannot be read
	UnknownSignal         // the profile has no scale for the signal, or no such code
	UnknownLocator        // the profile gives the locator to no port
	Stranger              // the packet is of no registered sender
	Limit                 // there are too many flows, or too many new locators in a minute
	reasons
)

func (r Reason) String() string {
	return [reasons]string{"used", "malformed", "unknown_signal", "unknown_locator", "stranger", "limit"}[r]
}

// Reasons lists the reasons for which tags are not used.
func Reasons() []Reason {
	return []Reason{Malformed, UnknownSignal, UnknownLocator, Stranger, Limit}
}

// Options bound an Observer. Zero values stand for the defaults.
type Options struct {
	Flows       int           // that are observed, in both directions together
	NewLocators int           // of flows, in a minute
	Window      time.Duration // one second by default
}

// Observer keeps what the tags of flows said. One goroutine at a time may use it, and its flows.
type Observer struct {
	profile *csig.Profile
	options Options
	flows   int
	known   map[locator]bool // those of ports
	down    map[locator]*downReport
	// minute is the number of the present minute, in which so many locators were new.
	minute      int64
	newLocators int
	// Dropped counts the tags that are not used, by reason.
	Dropped DropCounts
}

// downReport says when a locator last reported that a port is down.
type downReport struct {
	window int64 // 0 before the first report
}

// New returns an observer of tags by a profile.
func New(p *csig.Profile, o Options) *Observer {
	if o.Flows == 0 {
		o.Flows = DefaultFlows
	}
	if o.NewLocators == 0 {
		o.NewLocators = DefaultNewLocators
	}
	if o.Window == 0 {
		o.Window = time.Second
	}
	x := &Observer{profile: p, options: o, known: make(map[locator]bool, len(p.CompactLocators)+len(p.WideLocators)),
		down: make(map[locator]*downReport, len(p.CompactDown)+len(p.WideDown))}
	for f, all := range map[csig.Format]map[string]uint16{csig.Compact: p.CompactLocators, csig.Wide: p.WideLocators} {
		for _, l := range all {
			x.known[locator{f, l}] = true
		}
	}
	for f, all := range map[csig.Format]map[uint16]string{csig.Compact: p.CompactDown, csig.Wide: p.WideDown} {
		for l := range all {
			x.down[locator{f, l}] = &downReport{}
		}
	}
	return x
}

// windowOf returns the number of the window of a time. The first one is 1.
func (o *Observer) windowOf(now int64) int64 { return now/int64(o.options.Window) + 1 }

// locator is a locator in tags of a format.
type locator struct {
	format csig.Format
	number uint16
}

// Flow is what the tags of a flow said in one direction.
type Flow struct {
	observer *Observer
	window   int64 // number of the present window; 0 before the first tag
	now      [csig.Signals]worst
	last     [csig.Signals]worst
	packets  [csig.Signals][]LocatorCount
}

// worst is the worst value of a signal in a window.
type worst struct {
	known  bool
	tag    csig.Tag
	values csig.Range
}

// LocatorCount is the number of packets whose tag had a locator.
type LocatorCount struct {
	Format  csig.Format
	Locator uint16
	Packets uint64
}

// Value is the worst value of a signal in the last whole window of a flow.
type Value struct {
	Tag csig.Tag
	csig.Range
}

// NewFlow returns a flow that is observed from now on. It returns nil, and counts, if there are as many as the options allow.
func (o *Observer) NewFlow() *Flow {
	if o.flows == o.options.Flows {
		o.Dropped[Limit]++
		return nil
	}
	o.flows++
	return &Flow{observer: o}
}

// Close ends the observation of a flow, which must not be used after that.
func (f *Flow) Close() { f.observer.flows-- }

// Drop counts a tag that is not used.
func (o *Observer) Drop(why Reason) { o.Dropped[why]++ }

// Add takes the tag of a packet that arrived at a time, in nanoseconds of a clock that does not go back. It returns why the tag is not
// used. A nil flow uses none.
func (f *Flow) Add(t *csig.Tag, now int64) Reason {
	if f == nil {
		return Limit
	}
	o := f.observer
	f.advance(now)
	values, ok := o.profile.Decode(t)
	down := o.down[locator{t.Format, t.Locator}]
	if down != nil {
		down.window = max(down.window, o.windowOf(now))
	}
	why := Used
	switch {
	case !ok:
		why = UnknownSignal
	case t.Locator != 0 && down == nil && !o.known[locator{t.Format, t.Locator}]:
		why = UnknownLocator
	case !f.count(t, now):
		why = Limit
	}
	if why != Used {
		o.Dropped[why]++
		return why
	}
	if w := &f.now[t.Signal]; t.Locator != 0 && down == nil && (!w.known || isWorse(t.Signal, values, w.values)) {
		*w = worst{true, *t, values}
	}
	return Used
}

// isWorse reports whether values are worse than others: what is available is less, or what waits is more. A code that has no upper end
// is larger than all.
func isWorse(s csig.Signal, v, than csig.Range) bool {
	if s == csig.Bandwidth || s == csig.Share {
		return v.Lower < than.Lower
	}
	return v.Lower > than.Lower
}

// count counts a packet by its locator. It is false if there are too many of them.
func (f *Flow) count(t *csig.Tag, now int64) bool {
	all := f.packets[t.Signal]
	for i := range all {
		if all[i].Locator == t.Locator && all[i].Format == t.Format {
			all[i].Packets++
			return true
		}
	}
	o := f.observer
	if minute := now / int64(time.Minute); minute != o.minute {
		o.minute, o.newLocators = minute, 0
	}
	if len(all) == maxLocators || o.newLocators == o.options.NewLocators {
		return false
	}
	o.newLocators++
	f.packets[t.Signal] = append(all, LocatorCount{t.Format, t.Locator, 1})
	return true
}

// advance ends the windows that are over.
func (f *Flow) advance(now int64) {
	n := f.observer.windowOf(now)
	switch {
	case n <= f.window:
		return
	case n == f.window+1:
		f.last = f.now
	default:
		f.last = [csig.Signals]worst{}
	}
	f.now, f.window = [csig.Signals]worst{}, n
}

// LastValue returns the worst value of a signal in the last whole window before a time. ok is false if it had none.
func (f *Flow) LastValue(s csig.Signal, now int64) (v Value, ok bool) {
	if !s.IsKnown() {
		return Value{}, false
	}
	f.advance(now)
	w := &f.last[s]
	return Value{w.tag, w.values}, w.known
}

// Counts returns the packets of a signal by locator, since the flow was first observed. They must not be changed.
func (f *Flow) Counts(s csig.Signal) []LocatorCount { return f.packets[s] }
