//go:build all

package plan

import "testing"

// TestPlanOfManyNICs plans 16,384 NICs with 131,072 queue pairs and a catalogue of 1,048,576 lines.
func TestPlanOfManyNICs(t *testing.T) { planSize(t, 512, 32, 32, 64, true) }

// TestPlanOfSomeNICs plans 4,096 NICs.
func TestPlanOfSomeNICs(t *testing.T) { planSize(t, 128, 32, 32, 64, true) }
