// Package deploy holds files that operators install and the demo uses.
package deploy

import _ "embed"

// DemoTopology is the topology file of the demo.
//
//go:embed lab/demo.yaml
var DemoTopology []byte
