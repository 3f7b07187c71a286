//go:build all

package lab

// withLongFaults makes TestRoutingFaults wait for BGP's hold time as well.
const withLongFaults = true
