package looptest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
)

// RunScripts runs every case of the script files that match a pattern. A script says what each window of a fabric
// shows, and what verdict is due. A line is a command; # begins a comment.
//
//	case TEXT                         begins a case, on two spines and four leaves with two hosts each
//	seed N                            seed of the fabric's routes and noise; 1 without it
//	learn                             runs until every flow has a baseline and the fabric is innocent
//	set delay DIRECTION DURATION      what a directed link adds; 0s ends it
//	set loss DIRECTION SHARE          what it loses
//	set slow SWITCH DURATION          what a switch adds
//	set clock NIC DURATION            by how much a clock is ahead
//	set drift NIC DURATION            by how much it runs ahead in every second
//	set steps NIC N                   the clock steps that its node counts
//	set clock_state NIC STATE         the state of the clock; - means that none is published
//	set silent NODE on|off            its agent does not answer
//	set starved NODE on|off           its probe loop is late
//	set untraced on|off               no trace is answered
//	set bursts on|off                 what is lost is lost in every other second
//	reroute ELEMENT [LEAF]            moves the flows that cross it, or those of them from a leaf, to other paths
//	reroute back                      moves them back
//	drain [ELEMENT...]                puts elements under maintenance, and no others
//	recable [ELEMENT...]              the same, with baselines to be relearnt
//	place JOB NODE...                 places a job; a job without nodes has ended
//	outage N                          N seconds without evidence
//	pass DURATION                     lets time pass without a cycle
//	step N                            runs N cycles, one a second
//	within N EXPECTATION              runs cycles until it holds, at most N
//	within M-N EXPECTATION            the same, and not before the Mth cycle
//	for N EXPECTATION                 runs N cycles, and it holds after each
//	now EXPECTATION                   it holds now
//
// Expectations, but for those on routing, are about other verdicts than those on routing. They are joined by " and ": "verdict ELEMENT DIRECTION SCENARIO" (the only open verdict, - for no direction),
// "no verdict", "no incident", "candidate ELEMENT", "no candidate", "verdicts N", "incidents N", "state STATE", "held" (the newest incident is, with a
// reason), "closed TEXT", "summary TEXT" (of the newest incident, in part), "severity TEXT", "jobs NAME,NAME" (that it
// affects), "scope NAME STATE", "clock suspects N", "degraded N" (flows), "baselines all", "excluded NODE",
// "routing ELEMENT SCENARIO SEVERITY" (the only open verdict on routing), "routing none".
func RunScripts(t *testing.T, pattern string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no script %s: %v", pattern, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		cases, err := ParseScript(string(text))
		if err != nil {
			t.Fatalf("%s:%v", file, err)
		}
		for _, c := range cases {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txt")+"/"+c.Name, func(t *testing.T) { c.run(t, file) })
		}
	}
}

// Case is a case of a script.
type Case struct {
	Name  string
	lines []line
}

// line is a command with its place in the file.
type line struct {
	number int
	words  []string
	do     func(*run) error
}

// run is a case that is being run.
type run struct {
	*Rig
	jobs     *jobs.Register
	placed   []jobs.Placement
	drift    map[string]int64
	rerouted map[fabric.Flow]fabric.Path
}

// ParseScript returns the cases of a script. Errors begin with the number of the line.
func ParseScript(text string) ([]Case, error) {
	var out []Case
	for i, l := range strings.Split(text, "\n") {
		l, _, _ = strings.Cut(l, "#")
		words := strings.Fields(l)
		switch {
		case len(words) == 0:
			continue
		case words[0] == "case":
			out = append(out, Case{Name: strings.Join(words[1:], " ")})
			continue
		case len(out) == 0:
			return nil, fmt.Errorf("%d: %s: want a case first", i+1, words[0])
		}
		do, err := parseCommand(words)
		if err != nil {
			return nil, fmt.Errorf("%d: %s: %w", i+1, strings.Join(words, " "), err)
		}
		c := &out[len(out)-1]
		c.lines = append(c.lines, line{i + 1, words, do})
	}
	return out, nil
}

func (c *Case) run(t *testing.T, file string) {
	seed := uint64(1)
	lines := c.lines
	if len(lines) > 0 && lines[0].words[0] == "seed" {
		n, err := strconv.ParseUint(lines[0].words[1], 10, 64)
		if err != nil {
			t.Fatalf("%s:%d: %v", file, lines[0].number, err)
		}
		seed, lines = n, lines[1:]
	}
	r := &run{Rig: NewRig(t, seed), drift: map[string]int64{}, rerouted: map[fabric.Flow]fabric.Path{}}
	if slices.ContainsFunc(lines, func(l line) bool { return l.words[0] == "place" }) {
		r.jobs = jobs.NewRegister(r.World.Graph)
	}
	r.Steps, r.States = map[string]float64{}, map[string]string{}
	r.Configure(func(o *analyzer.LoopOptions) { o.Maintenance, o.Jobs = maintenance.NewRegister(r.World.Graph), r.jobs })
	for _, l := range lines {
		if err := l.do(r); err != nil {
			t.Fatalf("%s:%d: %s: %v; open: %q", file, l.number, strings.Join(l.words, " "), err, OpenVerdicts(r.Loop.Snapshot()))
		}
	}
}

// next runs a cycle.
func (r *run) next() snapshot.Snapshot {
	for nic, by := range r.drift {
		r.World.Clock[nic] += by
	}
	return r.Step()
}

var errArguments = errors.New("these are not the arguments of the command")

// parseCommand returns what a command does.
func parseCommand(w []string) (func(*run) error, error) {
	rest := w[1:]
	switch w[0] {
	case "seed":
		return nil, nil // the run reads it
	case "learn":
		return func(r *run) error { r.Learn(); return nil }, nil
	case "set":
		return parseSet(rest)
	case "reroute":
		return parseReroute(rest)
	case "drain", "recable":
		return func(r *run) error { r.announceWork(rest, w[0] == "recable"); return nil }, nil
	case "place":
		if len(rest) == 0 {
			return nil, errArguments
		}
		return func(r *run) error { r.placeJob(rest[0], rest[1:]); return nil }, nil
	case "pass":
		if len(rest) != 1 {
			return nil, errArguments
		}
		d, err := time.ParseDuration(rest[0])
		return func(r *run) error { r.Now = r.Now.Add(d); return nil }, err
	case "outage", "step":
		if len(rest) != 1 {
			return nil, errArguments
		}
		n, err := strconv.Atoi(rest[0])
		if w[0] == "outage" {
			return func(r *run) error { r.StepWithoutEvidence(n); return nil }, err
		}
		return func(r *run) error {
			for range n {
				r.next()
			}
			return nil
		}, err
	case "within", "for", "now":
		return parseWait(w[0], rest)
	}
	return nil, errors.New("unknown command")
}

// parseSet returns what a set command does.
func parseSet(w []string) (func(*run) error, error) {
	if len(w) == 2 {
		on := w[1] == "on"
		switch w[0] {
		case "untraced":
			return func(r *run) error { r.Untraced = on; return nil }, nil
		case "bursts":
			return func(r *run) error { r.Bursts = on; return nil }, nil
		}
	}
	if len(w) != 3 {
		return nil, errArguments
	}
	target, value := w[1], w[2]
	switch w[0] {
	case "silent":
		return func(r *run) error { r.Silent[target] = value == "on"; return nil }, nil
	case "starved":
		return func(r *run) error { r.Late[target] = value == "on"; return nil }, nil
	case "clock_state":
		return func(r *run) error {
			if r.States[target] = value; value == "-" {
				delete(r.States, target)
			}
			return nil
		}, nil
	case "steps":
		n, err := strconv.ParseFloat(value, 64)
		return func(r *run) error { r.Steps[target] = n; return nil }, err
	case "loss":
		d, err := fabric.ParseDirection(target)
		if err != nil {
			return nil, err
		}
		share, err := strconv.ParseFloat(value, 64)
		return func(r *run) error { r.World.Loss[d] = share; return nil }, err
	}
	took, err := time.ParseDuration(value)
	if err != nil {
		return nil, err
	}
	switch w[0] {
	case "delay":
		d, err := fabric.ParseDirection(target)
		return func(r *run) error { r.World.Delay[d] = int64(took); return nil }, err
	case "slow":
		return func(r *run) error { r.World.Slow[target] = int64(took); return nil }, nil
	case "clock":
		return func(r *run) error { r.World.Clock[target] = int64(took); return nil }, nil
	case "drift":
		return func(r *run) error { r.drift[target] = int64(took); return nil }, nil
	}
	return nil, errArguments
}

// parseReroute returns what a reroute command does.
func parseReroute(w []string) (func(*run) error, error) {
	if len(w) == 0 || len(w) > 2 {
		return nil, errArguments
	}
	if w[0] == "back" {
		return func(r *run) error {
			for e, p := range r.rerouted {
				r.World.Paths[e] = p
			}
			clear(r.rerouted)
			return nil
		}, nil
	}
	el := elementOf(w[0])
	leaf := slices.Concat(w, []string{""})[1]
	return func(r *run) error { r.rerouteAround(el, leaf); return nil }, nil
}

func elementOf(id string) fabric.Element {
	if _, _, ok := fabric.SplitLink(id); ok {
		return fabric.Element{ID: id, Kind: fabric.KindLink}
	}
	return fabric.Element{ID: id, Kind: fabric.KindSwitch}
}

// rerouteAround moves the flows that cross an element, or those of them that begin at a leaf, to other shortest paths.
func (r *run) rerouteAround(el fabric.Element, leaf string) {
	for e, p := range r.World.Paths {
		from, to := e.Endpoints()
		if !el.CrossedBy(p, from, to) || leaf != "" && (len(p) < 2 || p[0].Switch != leaf) {
			continue
		}
		for _, other := range r.World.Graph.ShortestPaths(from, to, 16) {
			if !el.CrossedBy(other, from, to) {
				r.rerouted[e], r.World.Paths[e] = p, other
				break
			}
		}
	}
}

// announceWork puts elements under maintenance, from now on.
func (r *run) announceWork(elements []string, relearn bool) {
	var ws []maintenance.Window
	for _, e := range elements {
		ws = append(ws, maintenance.Window{Element: e, From: r.Now, By: "ann", Reason: "optics", Relearn: relearn})
	}
	r.Loop.MaintenanceRegister().ReplaceSource(maintenance.SourceFile, ws, r.Now)
}

// placeJob places a job on nodes, and removes it if there are none.
func (r *run) placeJob(name string, nodes []string) {
	r.placed = slices.DeleteFunc(r.placed, func(p jobs.Placement) bool { return p.Job == name })
	if len(nodes) > 0 {
		r.placed = append(r.placed, jobs.Placement{Job: name, Nodes: nodes})
	}
	r.jobs.ReplaceSource("script", r.placed)
}

// parseWait returns what a command with an expectation does.
func parseWait(how string, w []string) (func(*run) error, error) {
	least, most := 0, 0
	if how != "now" {
		if len(w) < 2 {
			return nil, errArguments
		}
		first, last, ranged := strings.Cut(w[0], "-")
		var err error
		if most, err = strconv.Atoi(first); err == nil && ranged {
			least = most
			most, err = strconv.Atoi(last)
		}
		if err != nil {
			return nil, err
		}
		w = w[1:]
	}
	var all []expectation
	for _, text := range strings.Split(strings.Join(w, " "), " and ") {
		x, err := parseExpectation(text)
		if err != nil {
			return nil, err
		}
		all = append(all, x)
	}
	holds := func(r *run, s snapshot.Snapshot) error {
		for _, x := range all {
			if err := x(r, &s); err != nil {
				return err
			}
		}
		return nil
	}
	switch how {
	case "now":
		return func(r *run) error { return holds(r, r.Loop.Snapshot()) }, nil
	case "for":
		return func(r *run) error {
			for i := range most {
				if err := holds(r, r.next()); err != nil {
					return fmt.Errorf("after cycle %d: %w", i+1, err)
				}
			}
			return nil
		}, nil
	}
	return func(r *run) error {
		var err error
		for i := range most {
			if err = holds(r, r.next()); err == nil {
				if i+1 < least {
					return fmt.Errorf("it holds after %d cycles already", i+1)
				}
				return nil
			}
		}
		return err
	}, nil
}
