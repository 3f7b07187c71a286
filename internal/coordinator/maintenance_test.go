package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/graylink/graylink/internal/agentapi"
)

// window returns a window of an hour.
func (f *fixture) window(element, by string) maintenanceWindow {
	wall := f.clock.WallTime()
	return maintenanceWindow{Element: element, From: wall, Until: wall.Add(time.Hour), By: by, Reason: "optics"}
}

func (f *fixture) open(w maintenanceWindow) maintenanceWindow {
	f.t.Helper()
	out, err := f.openWindow(context.Background(), w)
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

// elements returns the elements of the windows that analyzers get.
func (f *fixture) elements() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, w := range f.maintenance.served {
		out = append(out, w.Element)
	}
	return strings.Join(out, " ")
}

func wantWindowCode(t *testing.T, what string, err error, code codes.Code, text string) {
	t.Helper()
	var w errWindow
	if !errors.As(err, &w) || w.code != code || !strings.Contains(w.text, text) {
		t.Errorf("%s: %v, want %v with %q", what, err, code, text)
	}
}

func TestRule24WindowsSurviveARestart(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	w := f.open(f.window("spine1", "ann"))
	if again := f.open(f.window("spine1", "ann")); again.ID != w.ID || f.elements() != "spine1" {
		t.Errorf("a repeated request made another window: %v, %v", w, again)
	}
	f.open(f.window("h1", "bob"))
	tag := string(f.maintenance.tag)
	f.restart()
	if f.Stats().Windows != 2 || string(f.maintenance.tag) != tag {
		t.Errorf("%q after a restart", f.elements())
	}
	f.clock.pass(time.Minute)
	if err := f.endWindow(t.Context(), w.ID); err != nil {
		t.Fatal(err)
	}
	if s := f.Stats(); s.Windows != 1 || len(f.maintenance.served) != 2 || string(f.maintenance.tag) == tag {
		t.Errorf("%d windows are open, want one; %q are kept, want both", s.Windows, f.elements())
	}
	wantWindowCode(t, "ended twice", f.endWindow(t.Context(), w.ID), codes.NotFound, "no such window")
	f.clock.pass(windowKept + time.Hour)
	f.open(f.window("leaf1:up1--spine1:dn1", "ann"))
	if f.elements() != "leaf1:up1--spine1:dn1" {
		t.Errorf("%q are kept, want the last one", f.elements())
	}
	later := f.window("spine2", "ann")
	later.From, later.Until = later.From.Add(time.Hour), later.Until.Add(time.Hour)
	if err := f.endWindow(t.Context(), f.open(later).ID); err != nil || strings.Contains(f.elements(), "spine2") {
		t.Errorf("a window that never began is kept: %v", err)
	}
}

func TestRule24WindowsAreRefused(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	for what, c := range map[string]struct {
		change func(*maintenanceWindow)
		want   string
	}{
		"unknown element": {func(w *maintenanceWindow) { w.Element = "spine9" }, `element: "spine9" is not in the topology`},
		"no element":      {func(w *maintenanceWindow) { w.Element = "" }, "element: missing"},
		"alias of a NIC":  {func(w *maintenanceWindow) { w.Element = "h1/eth1" }, "not in the topology"},
		"without a name":  {func(w *maintenanceWindow) { w.By = "" }, "by: missing"},
		"no end":          {func(w *maintenanceWindow) { w.Until = time.Time{} }, "until: missing"},
		"over":            {func(w *maintenanceWindow) { w.From, w.Until = w.From.Add(-2*time.Hour), w.From.Add(-time.Hour) }, "after now"},
		"backwards":       {func(w *maintenanceWindow) { w.From = w.Until.Add(time.Hour) }, "is before from"},
		"empty":           {func(w *maintenanceWindow) { w.From = w.Until }, "not after the beginning"},
		"for ever":        {func(w *maintenanceWindow) { w.Until = w.Until.Add(windowLongest) }, "more than a year"},
		"long reason":     {func(w *maintenanceWindow) { w.Reason = strings.Repeat("x", mostReason+1) }, "reason: 1001 octets"},
		"long name":       {func(w *maintenanceWindow) { w.By = strings.Repeat("x", agentapi.MaxName+1) }, "by: 256 octets"},
		"control":         {func(w *maintenanceWindow) { w.Reason = "a\nb" }, "control character"},
		"not UTF-8":       {func(w *maintenanceWindow) { w.By = "\xff" }, "not UTF-8"},
	} {
		w := f.window("spine1", "ann")
		c.change(&w)
		_, err := f.openWindow(t.Context(), w)
		wantWindowCode(t, what, err, codes.InvalidArgument, c.want)
	}
	if f.elements() != "" {
		t.Errorf("%q are kept", f.elements())
	}
	all := make([]maintenanceWindow, mostWindows)
	for i := range all {
		all[i] = f.window("spine1", "ann")
		all[i].ID = fmt.Sprint(i)
	}
	_, err := withWindow(all, f.window("h1", "ann"), f.clock.WallTime())
	wantWindowCode(t, "too many", err, codes.ResourceExhausted, "4000 windows already")
	all[0].Until = f.clock.WallTime().Add(-windowKept - time.Second)
	if _, err := withWindow(all, f.window("h1", "ann"), f.clock.WallTime()); err != nil {
		t.Errorf("one that is over counts: %v", err)
	}
}

// A window that cannot be written is not made.
func TestRule24NothingIsKeptHalf(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	w := f.open(f.window("spine1", "ann"))
	unblock := f.blockWrites()
	_, err := f.openWindow(t.Context(), f.window("h1", "ann"))
	wantWindowCode(t, "full disk", err, codes.Unavailable, "cannot write")
	f.clock.pass(time.Minute)
	wantWindowCode(t, "full disk", f.endWindow(t.Context(), w.ID), codes.Unavailable, "cannot write")
	unblock()
	f.run(5 * time.Second)
	f.restart()
	if f.elements() != "spine1" || f.Stats().Windows != 1 {
		t.Errorf("%q, want the window that was confirmed, open", f.elements())
	}
	// A standby that follows and does not write delays the answer, and the window is not made.
	follower := f.replication.add()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = f.openWindow(ctx, f.window("h1", "ann"))
	wantWindowCode(t, "slow standby", err, codes.Unavailable, "the standby coordinator has not written")
	if f.elements() != "spine1" || len(f.maintenance.stored) != 1 {
		t.Errorf("%q after the standby did not answer", f.elements())
	}
	done := make(chan error, 1)
	go func() {
		_, err := f.openWindow(context.Background(), f.window("h2", "ann"))
		done <- err
	}()
	for confirmed := false; !confirmed; {
		_, sequence := f.replication.latest()
		f.replication.confirm(follower, sequence)
		select {
		case err := <-done:
			if confirmed = true; err != nil {
				t.Error(err)
			}
		case <-time.After(time.Millisecond):
		}
	}
	if f.Stats().Windows != 2 {
		t.Errorf("%q, want two windows", f.elements())
	}
}

// The standby has the windows when it leads. A coordinator that does not lead makes none.
func TestRule24WindowsMoveToTheStandby(t *testing.T) {
	p := newPair(t, nil)
	p.run(2 * time.Second)
	p.a.open(p.a.window("spine1", "ann"))
	_, err := p.b.openWindow(t.Context(), p.b.window("h1", "ann"))
	wantCode(t, err, codes.Unavailable, "standby")
	p.run(3 * time.Second)
	p.cut = true
	if err := p.b.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p.b.elements() != "spine1" || string(p.b.maintenance.tag) != string(p.a.maintenance.tag) {
		t.Errorf("%q at the new leader", p.b.elements())
	}
}

// A version without windows starts with the state of a leader that has some.
func TestStateWithWindowsForEarlierVersions(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	f.open(f.window("spine1", "ann"))
	b, err := os.ReadFile(f.opts.StateFile)
	if err != nil {
		t.Fatal(err)
	}
	var head struct {
		Version     int               `json:"version"`
		MinReader   int               `json:"min_reader"`
		Maintenance []json.RawMessage `json:"maintenance"`
	}
	if err := json.Unmarshal(b, &head); err != nil || head.Version != 3 || head.MinReader != 1 || len(head.Maintenance) != 1 {
		t.Errorf("%+v %v, want version 3 that version 1 reads, with the window", head, err)
	}
	s := &state{Version: stateVersion, Maintenance: []maintenanceWindow{f.window("spine1", "ann")}}
	if err := s.validate(); err == nil || !strings.Contains(err.Error(), "maintenance[0].id: missing") {
		t.Errorf("a window without an identifier: %v", err)
	}
}
