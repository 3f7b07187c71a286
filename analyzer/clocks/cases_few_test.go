//go:build !all

package clocks

// propertyCases is the number of generated cases of each property.
const propertyCases = 300
