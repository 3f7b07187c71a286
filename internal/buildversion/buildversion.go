// Package buildversion gives every program the version that it was built from.
//
// The Makefile sets version.Version of prometheus/common by the linker, from the file VERSION. A program built without
// the Makefile has the version that the Go command recorded: the module's version, or a pseudo-version of the commit.
package buildversion

import (
	"runtime/debug"

	"github.com/prometheus/common/version"
)

// unknown is the version of a program that neither the linker nor the Go command gave one, such as a test.
const unknown = "unknown"

// init fills in the version before anything else reads it, which happens without a lock.
func init() {
	info, _ := debug.ReadBuildInfo()
	version.Version = choose(version.Version, info)
}

// choose returns the linked version if there is one, else the one of the build's information, which may be nil.
func choose(linked string, info *debug.BuildInfo) string {
	switch {
	case linked != "":
		return linked
	case info != nil && info.Main.Version != "" && info.Main.Version != "(devel)":
		return info.Main.Version
	}
	return unknown
}

// Version returns the version of this program. It is never empty.
func Version() string {
	return version.Version
}

// Print returns what a program prints for --version: its name, version, revision and Go version, in the form of the
// Prometheus programs.
func Print(program string) string {
	return version.Print(program)
}

// Info returns the version, branch and revision for a line of the log.
func Info() string {
	return version.Info()
}
