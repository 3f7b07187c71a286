package distributed

import (
	"context"
	"errors"
)

// Names of the processes of Thanos.
var (
	receivers = []string{"receiver-1", "receiver-2", "receiver-3"}
	routers   = []string{"router-1", "router-2"}
	sidecars  = []string{"sidecar-1", "sidecar-2"}
)

const (
	querier         = "querier"
	ruler           = "ruler"
	sidecarsQuerier = "querier-sidecars"
)

// decimals are the parts of addresses by which the processes of one kind differ: those of the first are in the files.
var decimals = map[string]string{"receiver-1": "0", "receiver-2": "1", "receiver-3": "2", "router-1": "3", querier: "4", ruler: "5",
	"router-2": "6", "sidecar-1": "7", "sidecar-2": "8", sidecarsQuerier: "9"}

// httpOf returns the address in the files of the HTTP API of a process of Thanos.
func httpOf(name string) string { return "127.0.0.1:109" + decimals[name] + "2" }

// StartThanos starts two Prometheus, a router for each, three receivers that keep three copies, a querier and a ruler, and
// waits until they are ready. It fails if one is not within a minute. Close stops those that were started also then.
func StartThanos(ctx context.Context, o Options) (*Engine, error) {
	e := newEngine(o, receivers)
	e.query, e.ruler = e.addressFor(httpOf(querier)), e.addressFor(httpOf(ruler))
	if err := e.writeThanos(); err != nil {
		return e, err
	}
	return e, e.startGroups(ctx, receivers, routers, []string{querier, ruler}, Replicas)
}

// StartSidecars starts the layout without receivers beside the other one: a sidecar for each Prometheus, and a querier over
// them. It returns the address of that querier's HTTP API, and fails if a process is not ready within a minute.
func (e *Engine) StartSidecars(ctx context.Context) (address string, err error) {
	return e.addressFor(httpOf(sidecarsQuerier)), e.startGroups(ctx, sidecars, []string{sidecarsQuerier})
}

// writeThanos writes the files of all processes.
func (e *Engine) writeThanos() error {
	errs := []error{e.install("hashrings.json", "hashrings.json"), e.install("endpoints.yml", "endpoints.yml"), e.install("endpoints-sidecars.yml", "endpoints-sidecars.yml")}
	// Each process has the flags of the first of its kind, with its own addresses and names.
	thanos := func(name, command, file string, replace ...string) {
		errs = append(errs, e.install(file, name+".flags", replace...))
		e.add(name, Thanos, "http://"+e.addressFor(httpOf(name))+"/-/ready", command, "@"+name+".flags")
	}
	for _, name := range receivers {
		thanos(name, "receive", "receiver.flags", "127.0.0.1:1090", "127.0.0.1:109"+decimals[name], "receiver-1", name)
	}
	for _, name := range routers {
		thanos(name, "receive", "router.flags", "127.0.0.1:1093", "127.0.0.1:109"+decimals[name], "router-1", name, "--tsdb.path=router", "--tsdb.path="+name)
	}
	thanos(querier, "query", "querier.flags")
	thanos(ruler, "rule", "ruler.flags")
	for i, name := range Replicas {
		errs = append(errs, e.install("prometheus.yml", name+".yml", "127.0.0.1:9090", e.ReplicaAddress(name), "prometheus-1", name, "127.0.0.1:1093", "127.0.0.1:109"+decimals[routers[i]]))
		e.addPrometheus(name)
	}
	for i, name := range sidecars {
		thanos(name, "sidecar", "sidecar.flags", "127.0.0.1:1097", "127.0.0.1:109"+decimals[name], "127.0.0.1:9090", e.ReplicaAddress(Replicas[i]))
	}
	thanos(sidecarsQuerier, "query", "querier.flags", "127.0.0.1:1094", "127.0.0.1:1099", "endpoints.yml", "endpoints-sidecars.yml")
	return errors.Join(errs...)
}
