package style

import (
	"os/exec"
	"strings"
	"testing"
)

// TestFailedTestsAreFound runs test/failed on what go test prints.
func TestFailedTestsAreFound(t *testing.T) {
	for name, c := range map[string]struct{ printed, want string }{
		"all passed": {"== a stage\nok  \tm/a\t1.2s\n?   \tm/b\t[no test files]\n", ""},
		"two tests of one package": {
			"ok  \tm/a\t1.2s\n--- FAIL: TestOne (0.10s)\n    --- FAIL: TestOne/sub (0.10s)\n        x_test.go:4: no\n--- FAIL: TestTwo (0.10s)\nFAIL\nFAIL\tm/b\t0.4s\nok  \tm/c\t1s\nFAIL\n",
			"m/b TestOne|TestTwo\n"},
		"one package after the other": {"--- FAIL: TestOne (0.10s)\nFAIL\nFAIL\tm/b\t0.4s\n--- FAIL: TestTwo (1.10s)\nFAIL\nFAIL\tm/c\t0.4s\nFAIL\n", "m/b TestOne\nm/c TestTwo\n"},
		"build":                       {"# m/b\nx.go:3: undefined: y\nFAIL\tm/b [build failed]\nFAIL\n", "m/b !\n"},
		"race":                        {"==================\nWARNING: DATA RACE\n--- FAIL: TestOne (0.10s)\n    testing.go:1: race detected during execution of test\nFAIL\nFAIL\tm/b\t0.4s\nFAIL\n", "m/b !\n"},
		"panic":                       {"--- FAIL: TestOne (0.10s)\npanic: no [recovered]\n\ngoroutine 1\nFAIL\tm/b\t0.4s\nFAIL\n", "m/b !\n"},
		"time limit":                  {"panic: test timed out after 1s\nFAIL\tm/b\t1.0s\nok  \tm/c\t1s\nFAIL\n", "m/b !\n"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("../failed")
			cmd.Stdin = strings.NewReader(c.printed)
			out, err := cmd.CombinedOutput()
			if err != nil || string(out) != c.want {
				t.Errorf("%q, %v; want %q", out, err, c.want)
			}
		})
	}
}
