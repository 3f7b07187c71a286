package node

import (
	"time"

	"github.com/graylink/graylink/internal/kubenode"
	"github.com/graylink/graylink/internal/nvsentinel"
)

// kubernetesCollector publishes the counts of requests to Kubernetes.
type kubernetesCollector struct {
	stats func() kubenode.Stats
	now   func() time.Time
}

func newKubernetesCollector(from *sources) collector {
	if from.kubernetes == nil {
		return nil
	}
	return kubernetesCollector{from.kubernetes, from.now}
}

// addSeries implements collector.
func (c kubernetesCollector) addSeries(s *scrape) error {
	requests := s.counterFamily("graylink_node_kubernetes_requests_total", "Requests to Kubernetes, by object and result; retry means that they failed and are repeated.")
	dropped := s.counterFamily("graylink_node_kubernetes_dropped_events_total", "Events that were not written to Kubernetes, by reason.")
	queued := s.gaugeFamily("graylink_node_kubernetes_queued_events", "Events in the queue for Kubernetes.")
	age := s.gaugeFamily("graylink_node_kubernetes_condition_age_seconds", "Time in seconds since Kubernetes last accepted the node's condition; absent before that.")
	now := c.now()
	v := c.stats()
	for k, n := range v.Requests {
		s.addCounter(requests, float64(n), s.labelPairs("object", k.Object, "result", k.Result))
	}
	for why, n := range v.Dropped {
		s.addCounter(dropped, float64(n), s.labelPairs("reason", string(why)))
	}
	s.addGauge(queued, float64(v.Queued), nil)
	if !v.Written.IsZero() {
		s.addGauge(age, now.Sub(v.Written).Seconds(), nil)
	}
	return nil
}

// nvsentinelCollector publishes the counts of the events that went to NVSentinel.
type nvsentinelCollector struct{ stats func() nvsentinel.Stats }

func newNVSentinelCollector(from *sources) collector {
	if from.nvsentinel == nil {
		return nil
	}
	return nvsentinelCollector{from.nvsentinel}
}

// addSeries implements collector.
func (c nvsentinelCollector) addSeries(s *scrape) error {
	events := s.counterFamily("graylink_node_nvsentinel_events_total", "Events for NVSentinel, by result.")
	failures := s.counterFamily("graylink_node_nvsentinel_failures_total", "Requests to NVSentinel that failed and were tried again.")
	queued := s.gaugeFamily("graylink_node_nvsentinel_queued_events", "Events in the queue for NVSentinel.")
	v := c.stats()
	s.addCounter(events, float64(v.Sent), s.labelPairs("result", "sent"))
	s.addCounter(events, float64(v.Dropped), s.labelPairs("result", "dropped"))
	s.addCounter(events, float64(v.Rejected), s.labelPairs("result", "rejected"))
	s.addCounter(failures, float64(v.Failures), nil)
	s.addGauge(queued, float64(v.Queued), nil)
	return nil
}
