package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/graylink/graylink/analyzer/catalogue"
)

// observeTimeout bounds the time in which an analyzer answers what queue pairs do: it may have to trace their paths.
const observeTimeout = 75 * time.Second

// runningReply is what an analyzer answers about the queue pairs of a job, or why it does not.
type runningReply struct {
	catalogue.Running
	raw []byte // the answer; nil if there is none
	err error
}

// fetchRunning requests from an analyzer what the queue pairs of a job do.
func fetchRunning(ctx context.Context, base string, q catalogue.Question) (r runningReply) {
	u, err := url.Parse(base)
	if err != nil {
		return runningReply{err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	u = u.JoinPath("/api/v1/observe")
	u.RawQuery = url.Values{"job": {q.Job}, "dscp": {strconv.Itoa(q.DSCP)}, "adaptive_routing": {q.AdaptiveRouting}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return runningReply{err: err}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return runningReply{err: fmt.Errorf("the analyzer does not answer: %w", err)}
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	switch {
	case err != nil:
		return runningReply{err: fmt.Errorf("cannot read the analyzer's answer: %w", err)}
	case resp.StatusCode == http.StatusNotFound:
		return runningReply{err: fmt.Errorf("the analyzer has no agents that list queue pairs, or is of an earlier version (404)")}
	case resp.StatusCode != http.StatusOK:
		return runningReply{err: fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(raw[:min(len(raw), 500)])))}
	}
	if err := json.Unmarshal(raw, &r.Running); err != nil {
		return runningReply{err: fmt.Errorf("cannot parse the analyzer's answer: %w", err)}
	}
	r.raw = bytes.TrimSpace(raw)
	return r
}

// shownReasons bounds the reasons that the text has.
const shownReasons = 3

// text returns what the queue pairs do as text for a terminal.
func (r *runningReply) text() string {
	const indent = "             "
	switch {
	case r.err != nil:
		return fmt.Sprintf("  rate       unknown: %v\n", r.err)
	case r.Observed == nil:
		return fmt.Sprintf("  rate       unknown: %s\n", strings.Join(r.Reasons, " "))
	}
	j := r.Observed
	s := "  rate       " + j.RateText()
	if j.BusbwGbps != nil || j.AtMostGbps != nil {
		s += " by the paths of its queue pairs"
	}
	if j.PlannedGbps != nil {
		s += fmt.Sprintf(", and %.1f Gb/s with the source ports of a plan", *j.PlannedGbps)
	}
	s += "\n"
	if r.Refused != "" && r.AgeSeconds != nil {
		s += fmt.Sprintf("%sObserved %.0f s ago. Nothing is observed anew: %s.\n", indent, *r.AgeSeconds, r.Refused)
	}
	if j.Assumed != "" && j.QPs > 0 {
		s += indent + "No placement file has what it sends: a ring in the order of its nodes is assumed.\n"
	}
	for _, text := range j.HurtTexts() {
		s += indent + text + "\n"
	}
	for i, text := range r.Reasons {
		if i == shownReasons {
			s += fmt.Sprintf("%s--format json has the other reasons, %d in all.\n", indent, len(r.Reasons))
			break
		}
		s += indent + text + "\n"
	}
	return s
}

// addTo returns the answer about a job with what its queue pairs do, as the key running, or why that is not known, as running_error.
func (r *runningReply) addTo(raw []byte) ([]byte, error) {
	key, value := "running", r.raw
	if r.err != nil {
		var err error
		if value, err = json.Marshal(r.err.Error()); err != nil {
			return nil, err
		}
		key = "running_error"
	}
	body, ok := bytes.CutSuffix(bytes.TrimSpace(raw), []byte("}"))
	if !ok {
		return raw, nil
	}
	return fmt.Appendf(nil, "%s,%q:%s}\n", body, key, value), nil
}
