package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/collectives"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/steer"
	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/fabric"
)

// addSteerer makes the steerer of an instance, if steering is on.
func (d *Daemon) addSteerer(w *instance) (err error) {
	w.steerer, err = steer.New(w.config.Steering, steer.Options{Log: d.log, ClientOptions: d.host.clientOptions()})
	if err != nil {
		return fmt.Errorf("steering.%w", err)
	}
	return nil
}

// steering calls the steerer of an instance with what its follower finds.
type steering struct {
	steerer  *steer.Steerer
	follower *collectives.Follower
	graph    *fabric.Graph
	jobs     *jobs.Register
	windows  *maintenance.Register
	findings nodeFindings
	log      *slog.Logger

	states    chan collectives.State // the newest that was not steered by
	lastError string
}

// newSteering returns what steers an instance, or nil if steering is off.
func (d *Daemon) newSteering(w *instance, o *analyzer.LoopOptions) *steering {
	if w.steerer == nil {
		return nil
	}
	return &steering{steerer: w.steerer, follower: w.follower, graph: o.Graph, jobs: o.Jobs, windows: o.Maintenance, log: d.log,
		findings: nodeFindings{db: w.db, lag: o.Settings.Lag}, states: make(chan collectives.State, 1)}
}

// offer makes a state the next one that is steered by, in the place of one that waits: actions may take longer than a cycle.
func (s *steering) offer(state collectives.State) {
	select {
	case <-s.states:
	default:
	}
	s.states <- state
}

// run steers until ctx ends.
func (s *steering) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case state := <-s.states:
			s.steer(ctx, state)
		}
	}
}

// steer decides about the diagnoses of a state. An error is logged when it differs from the one before.
func (s *steering) steer(ctx context.Context, state collectives.State) {
	around := steer.Surroundings{Graph: s.graph, Jobs: s.jobs.MapAt(state.At), Maintenance: s.windows.WindowsBetween(state.At, state.At), Sources: s.windows.SourceStates()}
	var err error
	if slices.ContainsFunc(state.Report.Diagnoses, func(d workload.Diagnosis) bool { return d.Open && len(d.Isolate.Nodes) > 0 }) {
		for _, node := range s.follower.Silent(state.At) {
			around.Witnesses = append(around.Witnesses, steer.Witness{Node: node, Kind: steer.SilentAgent, At: state.At})
		}
		var found []steer.Witness
		found, err = s.findings.witnesses(ctx, state.At)
		around.Witnesses = append(around.Witnesses, found...)
	}
	around.Accounts = accountsOf(state.Report.Diagnoses)
	_, actErr := s.steerer.Steer(ctx, state.At, state.Report.Diagnoses, around)
	text := ""
	if err = errors.Join(err, actErr); err != nil && ctx.Err() == nil {
		text = err.Error()
	}
	if text != "" && text != s.lastError {
		s.log.Error("cannot steer", "err", err)
	}
	s.lastError = text
}

// accountsOf returns the account that wrote the records of each job. A job with an open diagnosis that has another account, or none,
// has none.
func accountsOf(diagnoses []workload.Diagnosis) map[string]string {
	out := map[string]string{}
	for i := range diagnoses {
		d := &diagnoses[i]
		if !d.Open || d.Job == "" {
			continue
		}
		if account, known := out[d.Job]; known && account != d.Account {
			d = &workload.Diagnosis{Job: d.Job}
		}
		out[d.Job] = d.Account
	}
	return out
}

// nodeFindings reads faults of nodes from series that no job can write. It remembers them for some seconds.
type nodeFindings struct {
	db    evidence.Querier
	lag   time.Duration
	at    time.Time // of the last query
	found []steer.Witness
	err   error
}

// findingsEvery is the time between two queries for the faults of nodes.
const findingsEvery = 10 * time.Second

// witnessQueries are the queries for faults of nodes. Their results have a NIC. A finding link_downed stays until somebody resets
// it, and says nothing of now.
var witnessQueries = []struct {
	kind  steer.WitnessKind
	query string
}{
	{steer.NICFinding, `max by (nic) (fabric_nic_finding{severity="fatal", code!="link_downed"}) == 1`},
	{steer.KernelFinding, `max by (nic) (increase(fabric_nic_driver_events_total{nic!="", severity="fatal"}[5m])) > 0`},
}

// witnesses returns the faults of nodes. What could be read stands also where another query failed.
func (f *nodeFindings) witnesses(ctx context.Context, now time.Time) ([]steer.Witness, error) {
	if age := now.Sub(f.at); age >= 0 && age < findingsEvery {
		return f.found, f.err
	}
	f.at, f.found, f.err = now, nil, nil
	moment := now.Add(-f.lag)
	for _, w := range witnessQueries {
		samples, err := f.db.QueryInstant(ctx, w.query, moment)
		var partial *evidence.PartialError
		if err != nil && !errors.As(err, &partial) {
			f.err = errors.Join(f.err, fmt.Errorf("second witnesses of kind %s: %w", w.kind, err))
			continue
		}
		for _, s := range samples {
			if nic := s.Labels["nic"]; nic != "" {
				f.found = append(f.found, steer.Witness{Node: fabric.OwnerOf(nic), Kind: w.kind, At: moment})
			}
		}
	}
	return f.found, f.err
}

var (
	steeringDecisions = newDesc("graylink_analyzer_steering_decisions_total", "Decisions about nodes that jobs wait for, by result: act, dry_run or refused.", "result")
	steeringRefusals  = newDesc("graylink_analyzer_steering_refusals_total", "Decisions that refuse to act, by reason.", "reason")
	steeringActions   = newDesc("graylink_analyzer_steering_actions_total", "Actions on nodes by actuator and result: done, left_alone or failed.", "actuator", "result")
)

// steeringHealth publishes the counters of a steerer. Without one it has no series.
type steeringHealth struct{ s *steer.Steerer }

// Describe implements prometheus.Collector.
func (steeringHealth) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{steeringDecisions, steeringRefusals, steeringActions} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (h steeringHealth) Collect(ch chan<- prometheus.Metric) {
	c := h.s.Counts()
	for result, n := range c.Decisions {
		ch <- prometheus.MustNewConstMetric(steeringDecisions, prometheus.CounterValue, float64(n), string(result))
	}
	for reason, n := range c.Refusals {
		ch <- prometheus.MustNewConstMetric(steeringRefusals, prometheus.CounterValue, float64(n), string(reason))
	}
	for actuator, outcomes := range c.Outcomes {
		for result, n := range outcomes {
			ch <- prometheus.MustNewConstMetric(steeringActions, prometheus.CounterValue, float64(n), actuator, result)
		}
	}
}
