//go:build all

package nccl

import "testing"

// TestSanitizers runs the plugin with gcc's sanitizers for addresses, undefined behaviour and threads.
func TestSanitizers(t *testing.T) {
	for name, flags := range map[string][]string{
		"address": {"-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1"},
		"thread":  {"-fsanitize=thread", "-O1"},
	} {
		t.Run(name, func(t *testing.T) {
			p := build(t, t.TempDir(), flags...)
			for _, version := range []int{3, 4, 7} {
				checkTruth(t, p, version)
			}
			checkOpen(t, p)
			checkFlood(t, p, 20000)
		})
	}
}
