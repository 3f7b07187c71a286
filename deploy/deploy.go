// Package deploy holds files that operators install and that the demo and small sites use.
package deploy

import _ "embed"

// DemoTopology is the topology file of the demo.
//
//go:embed lab/demo.yaml
var DemoTopology []byte

// SRv6Topology is that of the demo's fabric whose hosts choose the path of a packet.
//
//go:embed lab/srv6.yaml
var SRv6Topology []byte

// PrometheusConfig is the example of the configuration of a Prometheus beside the programs.
//
//go:embed prometheus/prometheus.yml
var PrometheusConfig []byte
