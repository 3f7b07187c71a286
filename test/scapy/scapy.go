// Package scapy is what tests need that compare octets with scapy.
package scapy

import (
	"os"
	"os/exec"
	"testing"
)

// Python is the interpreter that Debian's python3-scapy belongs to; a python3 earlier in the PATH may be another one.
const Python = "/usr/bin/python3"

// Require skips the test if python3-scapy, which make test installs, is missing. It fails the test instead if
// GRAYLINK_REQUIRE_ALL=1 forbids skips, as in CI.
func Require(t *testing.T) {
	t.Helper()
	if exec.Command(Python, "-c", "import importlib.util as u; exit(u.find_spec('scapy') is None)").Run() == nil {
		return
	}
	if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
		t.Fatal("python3-scapy is not installed")
	}
	t.Skip("python3-scapy is not installed")
}
