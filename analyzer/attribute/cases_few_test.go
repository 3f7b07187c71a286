//go:build !all

package attribute_test

// simulatedCases is the number of faults of each kind that are simulated.
const simulatedCases = 3
