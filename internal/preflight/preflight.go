// Package preflight checks what a host has of the things that an agent needs, and states what is lost without them.
// Nothing is changed by a check: sockets that it opens are closed again.
package preflight

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// State is the state of a need.
type State string

// States, from good to bad.
const (
	OK       State = "ok"
	Degraded State = "degraded" // the agent runs, and something is lost
	Missing  State = "missing"  // the agent does not start
)

// Result is what a check found.
type Result struct {
	Need  string `json:"need"`
	State State  `json:"state"`
	Found string `json:"found"`          // what the host has, or the error
	Lost  string `json:"lost,omitempty"` // what is lost, unless the state is OK
}

// need is something that an agent needs.
type need struct {
	name string
	// lost is what is lost without it.
	lost string
	// check returns the state, and what was found.
	check func() (State, string)
}

// checkAll checks needs in their order.
func checkAll(needs []need) []Result {
	out := []Result{}
	for _, n := range needs {
		r := Result{Need: n.name}
		if r.State, r.Found = n.check(); r.State != OK {
			r.Lost = n.lost
		}
		out = append(out, r)
	}
	return out
}

// Ready reports whether nothing is missing.
func Ready(results []Result) bool {
	for _, r := range results {
		if r.State == Missing {
			return false
		}
	}
	return true
}

// WriteText writes one line for each result.
func WriteText(w io.Writer, results []Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range results {
		line := r.Found
		if r.Lost != "" {
			line += ". " + r.Lost
		}
		// A tab or a line break in an error would break the columns.
		fmt.Fprintf(t, "%s\t%s\t%s\n", r.State, r.Need, strings.Join(strings.Fields(line), " "))
	}
	return t.Flush()
}

// WriteJSON writes the results as one JSON object.
func WriteJSON(w io.Writer, results []Result) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(struct {
		Ready bool     `json:"ready"`
		Needs []Result `json:"needs"`
	}{Ready(results), results})
}
