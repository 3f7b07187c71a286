// Package steer takes nodes that jobs wait for out of use, or says what it would do. Rules, after which tests are named:
//
//  1. It is off unless the configuration says otherwise, and acts only if the configuration says act.
//  2. A decision is pure: it follows from the diagnoses of two consecutive cycles, the scheduler's placements, maintenance,
//     second witnesses and the history of actions. A refusal has one reason.
//  3. A decision is in the audit log, on the disk, before anything is done. If it cannot be written, nothing is done.
//  4. A diagnosis is acted on once, over restarts and by one analyzer of several. An action that a crash interrupted is
//     continued if everything but the limits still allows it, with the same identifier, and actuators recognize it.
//  5. The limits count what was begun, whatever became of it.
//  6. Nodes are taken out of use, and never put back; links are proposed and never shut; no process is ended.
package steer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	config_util "github.com/prometheus/common/config"

	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/durable"
	"github.com/graylink/graylink/internal/kubeapi"
)

// Options are what a Steerer needs besides its settings.
type Options struct {
	Log *slog.Logger
	// ClientOptions are further options of the HTTP clients.
	ClientOptions []config_util.HTTPClientOption
	// Leader replaces the one of the settings.
	Leader Leader
	// Now returns the time that signatures of requests have. Nil means time.Now.
	Now func() time.Time
	// Wait waits between two attempts of a request, for a time or until the context ends. Nil means by a timer.
	Wait func(ctx context.Context, d time.Duration)
}

// Steerer decides what is done about diagnoses, and does it. Its methods may be called from any goroutine.
type Steerer struct {
	settings  Settings
	log       *slog.Logger
	audit     audit
	leader    Leader
	actuators []Actuator

	steering sync.Mutex // held by Steer and Close
	lock     io.Closer  // of the audit log; nil until it was read
	before   Cycle
	history  []Action
	said     map[place]said // what the audit log says of the diagnoses of the last cycles

	counting sync.Mutex
	counts   Counts
}

// place is a node of a diagnosis.
type place struct{ id, node string }

// said is the last decision about a place that the audit log has.
type said struct {
	result Result
	reason Reason
	at     time.Time // of the last cycle that had it
}

// Counts are the counters of a Steerer. Decisions are counted when they change.
type Counts struct {
	Decisions map[Result]uint64
	Refusals  map[Reason]uint64
	Outcomes  map[string]map[string]uint64 // of actions, by actuator
}

// New returns a Steerer, or nil if the settings say that steering is off. It reads no file, and sends nothing. It fails if the
// settings are invalid or an HTTP client cannot be made of them.
func New(s Settings, o Options) (*Steerer, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if s.Mode == ModeOff {
		return nil, nil
	}
	t := &Steerer{settings: s, log: o.Log, audit: audit{s.AuditFile}, leader: o.Leader, said: map[place]said{},
		counts: Counts{map[Result]uint64{}, map[Reason]uint64{}, map[string]map[string]uint64{}}}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	if err := t.addActuators(o); err != nil {
		return nil, err
	}
	if t.leader == nil && s.Mode == ModeAct {
		var err error
		if t.leader, err = s.newLeader(); err != nil {
			return nil, err
		}
	}
	for _, result := range []Result{Act, DryRun, Refuse} {
		t.counts.Decisions[result] = 0
	}
	for _, reason := range Reasons() {
		t.counts.Refusals[reason] = 0
	}
	for _, a := range t.actuators {
		t.counts.Outcomes[a.Name()] = map[string]uint64{OutcomeDone: 0, OutcomeLeftAlone: 0, OutcomeFailed: 0}
	}
	return t, nil
}

// newLeader returns the Leader of the settings.
func (s *Settings) newLeader() (Leader, error) {
	if s.Leader != leaderLease {
		return Sole{}, nil
	}
	api, err := kubeapi.Open(s.Lease.Kubeconfig, "graylink-analyzer")
	if err != nil {
		return nil, &FieldError{"lease.kubeconfig", err}
	}
	start := time.Now()
	return NewLeaseLeader(api, s.Lease.Namespace, s.Lease.Name, newIdentity(), func() time.Duration { return time.Since(start) }), nil
}

// addActuators adds the actuators of the settings. In a dry run there are none.
func (t *Steerer) addActuators(o Options) error {
	if t.settings.Mode != ModeAct {
		return nil
	}
	now := o.Now
	if now == nil {
		now = time.Now
	}
	for _, target := range t.settings.targets() {
		s, err := newServer(target.key, target.Target, o)
		if err != nil {
			return err
		}
		switch target.key {
		case "kubernetes":
			t.actuators = append(t.actuators, &cordon{s, t.settings.Kubernetes.Taint})
		case "slurm":
			t.actuators = append(t.actuators, &drain{s, t.settings.Slurm.Version})
		default:
			t.actuators = append(t.actuators, &webhook{s, t.settings.Webhook.SecretFile, now})
		}
	}
	return nil
}

// Close lets another process use the audit log. Steer may not be called after it.
func (t *Steerer) Close() error {
	if t == nil {
		return nil
	}
	t.steering.Lock()
	defer t.steering.Unlock()
	if t.lock == nil {
		return nil
	}
	err := t.lock.Close()
	t.lock = nil
	return err
}

// Counts returns the counters so far. Those of a nil Steerer are empty.
func (t *Steerer) Counts() Counts {
	if t == nil {
		return Counts{}
	}
	t.counting.Lock()
	defer t.counting.Unlock()
	c := Counts{maps.Clone(t.counts.Decisions), maps.Clone(t.counts.Refusals), map[string]map[string]uint64{}}
	for name, outcomes := range t.counts.Outcomes {
		c.Outcomes[name] = maps.Clone(outcomes)
	}
	return c
}

// Steer decides about the diagnoses of a cycle, and does what is decided. It is called once a cycle, also without diagnoses. It
// returns the decisions, and an error if the audit log, the leader or an actuator failed; the decisions say what follows from
// that. An action takes at most three requests with their timeouts and 3 s for each actuator, so that the caller's own cycle does
// not wait for it. A nil Steerer does nothing.
func (t *Steerer) Steer(ctx context.Context, at time.Time, diagnoses []workload.Diagnosis, s Surroundings) ([]Decision, error) {
	if t == nil {
		return nil, nil
	}
	t.steering.Lock()
	defer t.steering.Unlock()
	now := Cycle{at, slices.Clone(diagnoses)}
	defer func() { t.before = now }()
	if len(diagnoses) == 0 {
		return nil, nil
	}
	auditErr := t.openAudit()
	leads, leaderErr := true, error(nil)
	if t.settings.Mode == ModeAct {
		leads, leaderErr = t.follow(ctx)
	}
	decisions := Decide(now, t.before, s, t.history, t.settings.TrustedAccounts)
	for i := range decisions {
		switch d := &decisions[i]; {
		case d.Result != Act:
		case auditErr != nil:
			d.refuse(AuditUnavailable)
		case t.settings.Mode != ModeAct:
			d.Result = DryRun
		case leaderErr != nil:
			d.refuse(LeaderUnknown)
		case !leads:
			d.refuse(NotLeader)
		}
	}
	if auditErr == nil {
		auditErr = t.writeDecisions(decisions, &now)
	}
	err := errors.Join(auditErr, leaderErr)
	if auditErr == nil {
		err = errors.Join(err, t.actAll(ctx, decisions, &now))
	}
	return decisions, err
}

func (d *Decision) refuse(reason Reason) { d.Result, d.Reason, d.Resumed = Refuse, reason, false }

// openAudit locks and reads the audit log, unless it was.
func (t *Steerer) openAudit() error {
	if t.lock != nil {
		return nil
	}
	lock, err := durable.Lock(t.audit.path + ".lock")
	if err != nil {
		return fmt.Errorf("steering: the audit log: %w", err)
	}
	history, err := t.audit.read(t.settings.Mode)
	if err != nil {
		return errors.Join(fmt.Errorf("steering: the audit log: %w", err), lock.Close())
	}
	t.lock, t.history = lock, history
	return nil
}

// follow reports whether this analyzer leads, and takes over what other leaders did.
func (t *Steerer) follow(ctx context.Context) (leads bool, err error) {
	leads, recorded, shared, err := t.leader.Lead(ctx)
	if err != nil {
		return false, fmt.Errorf("steering: which analyzer acts: %w", err)
	}
	t.history = merge(t.history, recorded, shared)
	return leads, nil
}

// forgetAfter is how long a decision is remembered whose diagnosis is no longer there.
const forgetAfter = 10 * time.Minute

// writeDecisions writes the decisions that differ from those of the last cycle to the audit log, and counts them. If it fails,
// what was to be done is refused.
func (t *Steerer) writeDecisions(decisions []Decision, now *Cycle) error {
	var entries []entry
	var changed []*Decision
	for i := range decisions {
		d := &decisions[i]
		at := place{d.ID, d.Node}
		if old, ok := t.said[at]; ok && old.result == d.Result && old.reason == d.Reason && d.Result != Act {
			t.said[at] = said{d.Result, d.Reason, now.At}
			continue
		}
		changed = append(changed, d)
		summary := now.find(d.ID).Summary
		entries = append(entries, entry{Kind: kindDecision, At: now.At, Mode: t.settings.Mode, ID: d.ID, Job: d.Job, Node: d.Node, Target: d.Target,
			Decision: d.Result, Reason: d.Reason, Witness: d.Witness, Links: d.Links[:min(len(d.Links), maxLinks)], Resumed: d.Resumed,
			Summary: summary[:min(len(summary), maxSummary)]})
	}
	err := t.audit.write(entries)
	for _, d := range changed {
		if err != nil && d.Result != Refuse {
			d.refuse(AuditUnavailable)
		}
		if err == nil {
			t.said[place{d.ID, d.Node}] = said{d.Result, d.Reason, now.At}
			if d.Result != Refuse {
				t.history = begin(t.history, Action{At: now.At, ID: d.ID, Job: d.Job, Node: d.Node, Done: d.Result == DryRun})
			}
		}
		t.countDecision(d)
	}
	maps.DeleteFunc(t.said, func(_ place, s said) bool { return now.At.Sub(s.at) > forgetAfter })
	if err != nil {
		return fmt.Errorf("steering: the audit log: %w", err)
	}
	return nil
}

// find returns a diagnosis of a cycle that has it.
func (c *Cycle) find(id string) *workload.Diagnosis {
	i := slices.IndexFunc(c.Diagnoses, func(x workload.Diagnosis) bool { return x.ID == id })
	return &c.Diagnoses[i]
}

func (t *Steerer) countDecision(d *Decision) {
	t.counting.Lock()
	defer t.counting.Unlock()
	t.counts.Decisions[d.Result]++
	if d.Result == Refuse {
		t.counts.Refusals[d.Reason]++
	}
}

// actAll does what was decided, after it was recorded for other analyzers.
func (t *Steerer) actAll(ctx context.Context, decisions []Decision, now *Cycle) error {
	var acts []*Decision
	for i := range decisions {
		if decisions[i].Result == Act {
			acts = append(acts, &decisions[i])
		}
	}
	if len(acts) == 0 {
		return nil
	}
	if err := t.leader.Record(ctx, t.history); err != nil {
		err = fmt.Errorf("steering: nothing was done, since the action could not be recorded: %w", err)
		return errors.Join(err, t.voidAll(acts, now))
	}
	var errs []error
	for _, d := range acts {
		errs = append(errs, t.act(ctx, d, now))
	}
	if err := t.leader.Record(ctx, t.history); err != nil {
		errs = append(errs, fmt.Errorf("steering: an action could not be recorded as done: %w", err))
	}
	return errors.Join(errs...)
}

// voidAll takes back actions that were not begun. If a leader has recorded them nevertheless, they come back with its record.
func (t *Steerer) voidAll(acts []*Decision, now *Cycle) error {
	var entries []entry
	for _, d := range acts {
		if d.Resumed {
			continue // it stays as it was
		}
		t.history = slices.DeleteFunc(t.history, func(a Action) bool { return a.ID == d.ID && a.Node == d.Node })
		entries = append(entries, entry{Kind: kindResult, At: now.At, Mode: t.settings.Mode, ID: d.ID, Job: d.Job, Node: d.Node, Outcome: OutcomeVoid})
	}
	return t.audit.write(entries)
}

// act does one action with all actuators, and writes how it ended to the audit log. If ctx ends before, the action stays open,
// and is continued after a restart.
func (t *Steerer) act(ctx context.Context, d *Decision, now *Cycle) error {
	order := &Order{ID: d.ID + "/" + d.Node, At: now.At, Target: d.Target, Node: d.Node, Witness: d.Witness, Diagnosis: now.find(d.ID)}
	outcomes, total := map[string]string{}, OutcomeLeftAlone
	var errs []error
	for _, a := range t.actuators {
		outcome, err := a.Act(ctx, order)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("steering: diagnosis %s, node %s: interrupted: %w", d.ID, d.Node, ctx.Err())
		case err != nil:
			outcome, outcomes[a.Name()], total = OutcomeFailed, OutcomeFailed+": "+err.Error(), OutcomeFailed
			errs = append(errs, fmt.Errorf("steering: diagnosis %s, node %s: %w", d.ID, d.Node, err))
		default:
			outcomes[a.Name()] = outcome
			if outcome == OutcomeDone && total == OutcomeLeftAlone {
				total = OutcomeDone
			}
		}
		t.counting.Lock()
		t.counts.Outcomes[a.Name()][outcome]++
		t.counting.Unlock()
	}
	for i := range t.history {
		if a := &t.history[i]; a.ID == d.ID && a.Node == d.Node {
			a.Done = true
		}
	}
	t.log.Warn("acted on a node that a job waits for", "node", d.Node, "job", printable(d.Job), "diagnosis", printable(d.ID), "outcome", total,
		"actuators", strings.Join(slices.Sorted(maps.Keys(outcomes)), ","), "err", errors.Join(errs...))
	errs = append(errs, t.audit.write([]entry{{Kind: kindResult, At: now.At, Mode: t.settings.Mode, ID: d.ID, Job: d.Job, Node: d.Node, Target: d.Target,
		Outcome: total, Outcomes: outcomes}}))
	return errors.Join(errs...)
}
