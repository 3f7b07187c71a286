//go:build !all

package lab

const withLongFaults = false
