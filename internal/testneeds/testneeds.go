// Package testneeds skips tests on machines that lack what they need, and says what that is. With GRAYLINK_REQUIRE_ALL=1, as in CI, such a
// test fails instead, so that no feature stays untested without notice.
package testneeds

import (
	"os"
	"testing"
)

// Missing skips a test for want of a feature, or fails it if all tests are required to run.
func Missing(tb testing.TB, what string) {
	tb.Helper()
	if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
		tb.Fatal("needs " + what)
	}
	tb.Skip("needs " + what)
}

// Root skips a test without root, or fails it if all tests are required to run. reason says what root is needed for.
func Root(tb testing.TB, reason string) {
	tb.Helper()
	if os.Geteuid() != 0 {
		Missing(tb, "root: "+reason)
	}
}
