//go:build !all

package e2e

import "time"

// What make test has. make test-all has more: all_test.go.

const (
	everything         = false
	weightedRoutes     = false
	silenceSpanDefault = 20 * time.Second
	floodLasts         = 5 * time.Second
	lieSpan            = 12 * time.Second
	hardKinds          = "link-down,nic-slow"
)

var (
	lieKinds          = []string{"delay", "blackhole"}
	healthyTopologies = []string{"../../deploy/lab/demo.yaml"}
	muteTopologies    = []string{"../../internal/lab/testdata/clos3.yaml"}
)
