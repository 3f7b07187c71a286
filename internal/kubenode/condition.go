package kubenode

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/kubeapi"
	"github.com/graylink/graylink/internal/nichealth"
)

// Statuses of conditions.
const (
	statusTrue    = "True"
	statusFalse   = "False"
	statusUnknown = "Unknown"
)

// Reasons of conditions that are no finding's.
const (
	reasonHealthy = "NICsHealthy"
	reasonUnread  = "NICsNotReadable"
	reasonOther   = "NICProblem" // of a code that makes no word
)

// condition is a NodeCondition of core/v1. Times are of RFC 3339, in whole seconds, as metav1.Time writes them.
type condition struct {
	Type       string `json:"type"`
	Status     string `json:"status"`
	Heartbeat  string `json:"lastHeartbeatTime,omitempty"`
	Transition string `json:"lastTransitionTime,omitempty"`
	Reason     string `json:"reason"`
	Message    string `json:"message"`
}

// node is a Node of core/v1, as far as conditions go.
type node struct {
	Status struct {
		Conditions []condition `json:"conditions"`
	} `json:"status"`
}

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// strength orders codes by the state of the NIC, the worst first: it is not there, it has no connectivity, it works badly. Others come
// after these, by name.
var strength = []string{nichealth.CodeGone, nichealth.CodeDown, nichealth.CodeDisabled, nichealth.CodeRecovery, nichealth.CodeRate}

func codeRank(code string) int {
	if i := slices.Index(strength, code); i >= 0 {
		return i
	}
	return len(strength)
}

// desiredCondition returns the condition by rule 1. ok is false while nothing is known yet.
func desiredCondition(s State, started, now time.Time) (c condition, ok bool) {
	var fatal []nichealth.Finding
	for _, f := range s.Findings {
		if f.Fatal {
			fatal = append(fatal, f)
		}
	}
	read := s.Read
	if read.IsZero() {
		read = started
	}
	switch {
	case len(fatal) > 0:
		return condition{Status: statusTrue, Reason: reasonOf(strongestCode(fatal)), Message: describeFindings(fatal)}, true
	case now.Sub(read) > unreadAfter:
		return condition{Status: statusUnknown, Reason: reasonUnread, Message: "The NICs of this node cannot be listed."}, true
	case s.Read.IsZero():
		return condition{}, false
	}
	return condition{Status: statusFalse, Reason: reasonHealthy, Message: "No NIC of this node has a fatal finding."}, true
}

func strongestCode(fs []nichealth.Finding) string {
	return slices.MinFunc(fs, func(a, b nichealth.Finding) int {
		return cmp.Or(cmp.Compare(codeRank(a.Code), codeRank(b.Code)), cmp.Compare(a.Code, b.Code))
	}).Code
}

// reasonOf makes a word of a code, as reasons have to be: "state_down" is StateDown.
func reasonOf(code string) string {
	var b strings.Builder
	upper := true
	for _, r := range code {
		switch {
		case r >= 'a' && r <= 'z' && upper:
			b.WriteRune(r - 'a' + 'A')
			upper = false
		case r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z':
			b.WriteRune(r)
			upper = false
		case r >= '0' && r <= '9' && b.Len() > 0:
			b.WriteRune(r)
			upper = true
		default:
			upper = true
		}
	}
	if b.Len() == 0 {
		return reasonOther
	}
	return b.String()[:min(b.Len(), maxReason)]
}

// maxReason is in octets: events of Kubernetes have 128 at most, and what is over is said by a suffix.
const maxReason = 100

// describeFindings names the NICs and ports, each with its codes: "mlx5_0_port1: state_down, link_downed; mlx5_1: device_disappeared". What does not
// fit is counted.
func describeFindings(fs []nichealth.Finding) string {
	codes := map[string][]string{}
	for _, f := range fs {
		codes[f.Entity.Value] = append(codes[f.Entity.Value], f.Code)
	}
	var names []string
	for name := range codes {
		names = append(names, name)
	}
	slices.Sort(names)
	const room = 32 // for how many are left
	text := ""
	for i, name := range names {
		slices.SortFunc(codes[name], func(a, b string) int { return cmp.Or(cmp.Compare(codeRank(a), codeRank(b)), cmp.Compare(a, b)) })
		part := strings.ToValidUTF8(name+": "+strings.Join(slices.Compact(codes[name]), ", "), "\uFFFD")
		if i > 0 {
			part = "; " + part
		}
		if len(text)+len(part) > kubeapi.MaxMessage-room {
			if i == 0 {
				return kubeapi.Truncate(part)
			}
			return text + fmt.Sprintf("; and %d more", len(names)-i)
		}
		text += part
	}
	return text
}

// conditionKeeper keeps one condition as it should be.
type conditionKeeper struct {
	wanted        condition
	since         time.Time  // of the wanted status
	server        *condition // as the server has it; nil if not known
	nextHeartbeat time.Time  // of the next heartbeat
	notBefore     time.Time  // no request before that
	wait          backoff
	failed        bool // the last request
}

// setWanted takes what the condition should be.
func (k *conditionKeeper) setWanted(c condition, now time.Time) {
	if c.Status != k.wanted.Status {
		k.since = now
	}
	k.wanted = c
}

// writeDue reports whether there is something to write, and it is time.
func (k *conditionKeeper) writeDue(now time.Time) bool {
	if k.wanted.Status == "" || now.Before(k.notBefore) {
		return false
	}
	s := k.server
	return s == nil || s.Status != k.wanted.Status || s.Reason != k.wanted.Reason || s.Message != k.wanted.Message || !now.Before(k.nextHeartbeat)
}

// fullCondition returns what to write now, given what the server has: rule 2.
func (k *conditionKeeper) fullCondition(now time.Time) condition {
	c := k.wanted
	c.Heartbeat, c.Transition = formatTime(now), formatTime(k.since)
	if k.server.Status == c.Status && k.server.Transition != "" {
		c.Transition = k.server.Transition
	}
	return c
}

// keepCondition writes the condition when it has to be.
func (r *Reporter) keepCondition(ctx context.Context) {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	var k conditionKeeper
	for {
		now := time.Now()
		if c, ok := desiredCondition(r.c.State(), r.started, now); ok {
			c.Type = r.c.Condition
			k.setWanted(c, now)
		}
		if k.writeDue(now) {
			r.writeCondition(ctx, &k)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-r.changed:
		}
	}
}

// writeCondition makes the server's condition the wanted one, or returns when to try again.
func (r *Reporter) writeCondition(ctx context.Context, k *conditionKeeper) {
	err := r.patchCondition(ctx, k)
	now := time.Now()
	switch {
	case err == nil:
		k.notBefore = now.Add(patchEvery)
		// Up to a tenth less: nodes that began together are not to stay together.
		k.nextHeartbeat = now.Add(heartbeatEvery - rand.N(heartbeatEvery/10))
		k.wait.reset()
		if k.failed {
			r.log.Info("writing the node's condition to Kubernetes works again", "node", r.c.Node, "condition", r.c.Condition)
		}
		k.failed = false
		r.mu.Lock()
		r.stats.Written = now
		r.mu.Unlock()
	case ctx.Err() != nil:
	default:
		k.server = nil // it may have been written nevertheless, or the Node is another one now
		k.notBefore = now.Add(k.wait.waitAfter(err))
		if !k.failed {
			r.log.Warn("cannot write the node's condition to Kubernetes; will retry", "node", r.c.Node, "condition", r.c.Condition, "err", err)
		}
		k.failed = true
	}
}

// patchCondition sends one or two requests. The first one of a keeper changes nothing: its response contains what the
// server has, so that no right to read is needed.
func (r *Reporter) patchCondition(ctx context.Context, k *conditionKeeper) error {
	if k.server == nil {
		var n node
		if err := r.patchNode(ctx, struct{}{}, &n); err != nil {
			return err
		}
		k.server = &condition{}
		for _, c := range n.Status.Conditions {
			if c.Type == r.c.Condition {
				k.server = &c
			}
		}
	}
	var q node
	q.Status.Conditions = []condition{k.fullCondition(time.Now())}
	if err := r.patchNode(ctx, q, nil); err != nil {
		return err
	}
	k.server = &q.Status.Conditions[0]
	return nil
}

func (r *Reporter) patchNode(ctx context.Context, body, into any) error {
	err := r.api.SendRequest(ctx, http.MethodPatch, kubeapi.TypePatch, body, into, "api", "v1", "nodes", r.c.Node, "status")
	switch {
	case err == nil:
		r.countRequest(ObjectCondition, ResultOK)
	case ctx.Err() != nil:
	case kubeapi.IsPermanent(err):
		r.countRequest(ObjectCondition, ResultRefused)
	default:
		r.countRequest(ObjectCondition, ResultRetry)
	}
	return err
}
