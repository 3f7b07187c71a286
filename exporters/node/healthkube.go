package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/graylink/graylink/internal/kubenode"
)

// kubernetesSeries are what became of what goes to Kubernetes.
type kubernetesSeries struct {
	stats func() kubenode.Stats
	now   func() time.Time
}

// KubernetesSeries publishes them.
func KubernetesSeries(stats func() kubenode.Stats) prometheus.Gatherer {
	return kubernetesSeries{stats, time.Now}
}

// Gather implements prometheus.Gatherer.
func (s kubernetesSeries) Gather() ([]*dto.MetricFamily, error) {
	now := s.now()
	x := newExposition(now)
	requests := x.counterFamily("graylink_node_kubernetes_requests_total", "Requests to Kubernetes, by what they were about and what became of them; retry: they failed, and were or will be repeated.")
	dropped := x.counterFamily("graylink_node_kubernetes_dropped_events_total", "Events that were not written to Kubernetes, by the reason.")
	queued := x.gaugeFamily("graylink_node_kubernetes_queued_events", "Events that wait for Kubernetes.")
	age := x.gaugeFamily("graylink_node_kubernetes_condition_age_seconds", "Time since Kubernetes last took the node's condition; absent until it does.")
	v := s.stats()
	for k, n := range v.Requests {
		x.addCounter(requests, float64(n), x.labelPairs("object", k.Object, "result", k.Result))
	}
	for why, n := range v.Dropped {
		x.addCounter(dropped, float64(n), x.labelPairs("reason", string(why)))
	}
	x.addGauge(queued, float64(v.Queued), nil)
	if !v.Written.IsZero() {
		x.addGauge(age, now.Sub(v.Written).Seconds(), nil)
	}
	return x.sortedFamilies(), nil
}
