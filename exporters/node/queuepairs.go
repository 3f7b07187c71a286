package node

import (
	"context"
	"net/http"
	"time"

	"github.com/graylink/graylink/internal/queuepair"
)

// QueuePairLister lists the RDMA queue pairs of the node. nldev.Machine implements it.
type QueuePairLister interface {
	List(ctx context.Context) ([]queuepair.QueuePair, error)
	HostNamespace() bool
}

// serveQueuePairs answers GET /api/v1/queue-pairs: one line of JSON.
func (e *Exporter) serveQueuePairs(w http.ResponseWriter, r *http.Request) {
	qps, err := e.pairs.List(r.Context())
	if err != nil {
		e.log.Warn("cannot list queue pairs", "err", err)
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	if qps == nil {
		qps = []queuepair.QueuePair{}
	}
	w.Header().Set("Content-Type", "application/jsonl")
	list := queuepair.Node{Node: e.node.Name(), Time: time.Now().UTC(), HostNamespace: e.pairs.HostNamespace(), QueuePairs: qps}
	if err := queuepair.Write(w, &list); err != nil {
		e.log.Debug("cannot write queue pairs", "err", err)
	}
}
