//go:build !all

package bpf

// congestedPorts is the number of ports of TestCongestedPortIsNamed. make test-all has 20.
const congestedPorts = 3
