//go:build all

package bpf

// congestedPorts is the number of ports of TestCongestedPortIsNamed.
const congestedPorts = 20
