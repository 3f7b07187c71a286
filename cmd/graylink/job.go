package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/analyzer/catalogue"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/fabric"
)

// Exit codes of graylink job, as in its help text.
const (
	jobSuspect = 2
	jobUnclear = 3
)

func addJob(app *kingpin.Application, commands map[string]command) {
	cmd := app.Command("job", "Report whether the network slows a job, and the evidence. Exit code 0: the network is innocent, 1: the analyzer does not answer, or no such job runs, 2: the network is suspect, 3: the evidence is insufficient.")
	name := cmd.Arg("name", "Name of the job, or its identifier in the scheduler.").Required().String()
	base := cmd.Flag("analyzer", "Base URL of the analyzer.").Default("http://127.0.0.1:9872").String()
	format := cmd.Flag("format", "Output format.").Default("text").Enum("text", "json")
	observe := cmd.Flag("observe", "Have the paths of the job's running queue pairs traced, and report the rate that they allow.").Default("true").Bool()
	q := catalogue.Question{}
	cmd.Flag("dscp", "DSCP of the job's packets.").Default("26").IntVar(&q.DSCP)
	cmd.Flag("adaptive-routing", "off: the NICs are known not to mark packets for adaptive routing. Without it, the agents have to know.").EnumVar(&q.AdaptiveRouting, "off")
	commands[cmd.FullCommand()] = func(ctx context.Context) error {
		v, raw, err := fetchJob(ctx, *base, *name)
		if err != nil {
			return err
		}
		running := ""
		if *observe {
			q.Job = v.Job
			r := fetchRunning(ctx, *base, q)
			running = r.text()
			if raw, err = r.addTo(raw); err != nil {
				return err
			}
		}
		if *format == "json" {
			_, err = os.Stdout.Write(raw)
		} else {
			_, err = io.WriteString(os.Stdout, jobText(v, running))
		}
		if err != nil {
			return fmt.Errorf("cannot write the answer: %w", err)
		}
		switch v.State {
		case fabric.Innocent:
			return nil
		case fabric.Suspect:
			return exitError{code: jobSuspect}
		}
		return exitError{code: jobUnclear}
	}
}

// jobReply represents the analyzer's answer about a job.
type jobReply struct {
	At time.Time `json:"at"`
	snapshot.JobView
	Collectives *workload.Report `json:"collectives"` // nil: they are not followed, or none are known
}

// Bounds of the request to an analyzer.
const (
	jobTimeout = 10 * time.Second
	maxReply   = 64 << 20
)

// fetchJob requests the state of a job from an analyzer. raw is the unchanged body of the answer.
func fetchJob(ctx context.Context, base, name string) (v jobReply, raw []byte, err error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return v, nil, fmt.Errorf("--analyzer %q: want a URL such as http://127.0.0.1:9872", base)
	}
	ctx, cancel := context.WithTimeout(ctx, jobTimeout)
	defer cancel()
	// A name may hold slashes (Kubernetes' namespace/name): the path takes them as they are.
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.JoinPath("/api/v1/jobs", name).String(), nil)
	if err != nil {
		return v, nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return v, nil, fmt.Errorf("the analyzer does not answer: %w", err)
	}
	defer resp.Body.Close()
	raw, err = io.ReadAll(io.LimitReader(resp.Body, maxReply))
	switch {
	case err != nil:
		return v, nil, fmt.Errorf("cannot read the analyzer's answer: %w", err)
	case resp.StatusCode != http.StatusOK:
		return v, nil, fmt.Errorf("the analyzer at %s: %s: %s", u.Host, resp.Status, strings.TrimSpace(string(raw[:min(len(raw), 500)])))
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return v, nil, fmt.Errorf("cannot parse the analyzer's answer: %w", err)
	}
	return v, raw, nil
}

// jobText returns the answer as text for a terminal, with the lines about the queue pairs.
func jobText(v jobReply, running string) string {
	answer := map[fabric.State]string{fabric.Innocent: "the network is innocent", fabric.Suspect: "the network is suspect"}[v.State]
	if answer == "" {
		answer = "the evidence does not suffice to say whether it is the network"
	}
	s := fmt.Sprintf("Job %s on %d NICs: %s.\n  evidence   %s\n", v.Job, len(v.NICs), answer, v.Why)
	s += waitsText(v.Collectives) + running
	for i := range v.Verdicts {
		in := &v.Verdicts[i]
		s += fmt.Sprintf("\n%s  since      %s\n", verdictText(in.Verdict), in.FirstSeen.Format(time.RFC3339))
	}
	for i := range v.Before {
		if i == 0 {
			s += "\nBefore:\n"
		}
		in := &v.Before[i]
		s += fmt.Sprintf("  %s  %s (%s): %s\n", in.FirstSeen.Format(time.RFC3339), in.Element.ID, in.Scenario, in.Closed)
	}
	for i, p := range v.Peers {
		if i == 0 {
			s += "\nJobs that share links with it:\n"
		}
		says := map[fabric.State]string{fabric.Innocent: "clean: what they share is not at fault", fabric.Suspect: "suspect as well"}[p.State]
		if says == "" {
			says = "says nothing, the evidence does not suffice"
		}
		if p.Accused {
			says += "; it crosses what is blamed, too"
		}
		s += fmt.Sprintf("  %s  %d links: %s\n", p.Job, p.Shared, says)
	}
	if v.Unknown > 0 {
		s += fmt.Sprintf("\n%d nodes or NICs of the placements are not in the topology.\n", v.Unknown)
	}
	return s
}

// waitsText returns what a job waits for, as text for a terminal. It is empty if nothing is known of its collectives.
func waitsText(r *workload.Report) string {
	if r == nil {
		return ""
	}
	s := ""
	for i := range r.Diagnoses {
		d := &r.Diagnoses[i]
		if !d.Open {
			continue
		}
		s += fmt.Sprintf("  waits      %s; %s.\n             %s\n             since %s, confidence %.3f\n", d.EffectText(), d.NetworkText(), d.Summary, d.BeganAt.Format(time.RFC3339), d.Confidence)
	}
	switch {
	case s != "":
		return s
	case r.State == workload.InsufficientState:
		return "  waits      It is unknown for what: too few of its operations are known to compare them.\n"
	}
	return fmt.Sprintf("  waits      For no rank and no connection: %d operations of %d communicators.\n", r.Coverage.Operations, r.Coverage.Communicators)
}
