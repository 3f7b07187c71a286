package daemon

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/analyzer/steer"
)

// addSteerer makes the steerer of an instance, if steering is on.
func (d *Daemon) addSteerer(w *instance) (err error) {
	w.steerer, err = steer.New(w.config.Steering, steer.Options{Log: d.log, ClientOptions: d.host.clientOptions()})
	if err != nil {
		return fmt.Errorf("steering.%w", err)
	}
	if w.steerer != nil {
		d.log.Warn("steering is configured, but this version makes no diagnoses to steer by", "mode", w.config.Steering.Mode)
	}
	return nil
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
