package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/graylink/graylink/internal/kubenode"
)

// kubernetesSeries gathers the counts of requests to Kubernetes.
type kubernetesSeries struct {
	stats func() kubenode.Stats
	now   func() time.Time
}

// KubernetesSeries returns a gatherer of these counts.
func KubernetesSeries(stats func() kubenode.Stats) prometheus.Gatherer {
	return kubernetesSeries{stats, time.Now}
}

// Gather implements prometheus.Gatherer.
func (s kubernetesSeries) Gather() ([]*dto.MetricFamily, error) {
	now := s.now()
	x := newExposition(now)
	requests := x.counterFamily("graylink_node_kubernetes_requests_total", "Requests to Kubernetes, by object and result; retry means that they failed and are repeated.")
	dropped := x.counterFamily("graylink_node_kubernetes_dropped_events_total", "Events that were not written to Kubernetes, by reason.")
	queued := x.gaugeFamily("graylink_node_kubernetes_queued_events", "Events in the queue for Kubernetes.")
	age := x.gaugeFamily("graylink_node_kubernetes_condition_age_seconds", "Time in seconds since Kubernetes last accepted the node's condition; absent before that.")
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
