// Package ibtest runs an InfiniBand subnet (package iblab) for the length of a test. What goes wrong fails the test.
package ibtest

import (
	"context"
	"os"
	"slices"
	"testing"

	"github.com/graylink/graylink/internal/iblab"
)

// RequireTools skips the test with -short, or if a program is missing, and gives the reason. With
// GRAYLINK_REQUIRE_ALL=1 a missing program fails the test.
func RequireTools(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("builds a fabric: left out by -short")
	}
	if missing := iblab.MissingPrograms(slices.Concat(iblab.Programs, iblab.Diagnostics)...); len(missing) > 0 {
		if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
			tb.Fatalf("needs %s", missing)
		}
		tb.Skipf("needs %s", missing)
	}
}

// Names of package iblab that tests use.
type (
	// Options select what runs on a fabric.
	Options = iblab.Options
	// Link represents one link of a route.
	Link = iblab.Link
)

// ErrLost means that ibtracert's own queries were not answered, so that it does not know the route.
var ErrLost = iblab.ErrLost

// FatTree, Dragonfly and Torus return the text of a net file.
var (
	FatTree   = iblab.FatTree
	Dragonfly = iblab.Dragonfly
	Torus     = iblab.Torus
)

// Fabric is a running subnet.
type Fabric struct {
	*iblab.Subnet
	tb testing.TB
}

// Start runs a fabric from a net file's text (FatTree returns such) and waits until OpenSM has brought the
// subnet up. The fabric ends with the test.
func Start(tb testing.TB, net string, o Options) *Fabric {
	tb.Helper()
	RequireTools(tb)
	s, err := iblab.Start(context.Background(), tb.TempDir(), net, o)
	f := &Fabric{Subnet: s, tb: tb}
	tb.Cleanup(func() { f.check(s.Close()) })
	f.check(err)
	return f
}

// AttachSocket returns a Fabric for programs on a fabric that the test itself runs, under ibsim's protocol.
// Only Run and RunInput work on it.
func AttachSocket(tb testing.TB, socket string) *Fabric {
	tb.Helper()
	return &Fabric{Subnet: iblab.Attach(tb.TempDir(), socket), tb: tb}
}

func (f *Fabric) check(err error) {
	f.tb.Helper()
	if err != nil {
		f.tb.Fatal(err)
	}
}

// RunConsole enters one command in ibsim's console and returns what it printed.
func (f *Fabric) RunConsole(command string) string {
	f.tb.Helper()
	out, err := f.Subnet.RunConsole(command)
	f.check(err)
	return out
}

// StartSM runs OpenSM, which must not run, and waits until the subnet is up.
func (f *Fabric) StartSM() {
	f.tb.Helper()
	f.check(f.Subnet.StartSM(context.Background()))
}

// StopSM ends OpenSM; the tables remain as they are.
func (f *Fabric) StopSM() {
	f.tb.Helper()
	f.check(f.Subnet.StopSM())
}

// WaitUp waits until the running OpenSM has logged SUBNET UP n times.
func (f *Fabric) WaitUp(n int) {
	f.tb.Helper()
	f.check(f.Subnet.WaitUp(context.Background(), n))
}

// ChangeAndWait runs a console command that sends OpenSM a trap, and waits until it has swept the fabric again.
func (f *Fabric) ChangeAndWait(command string) {
	f.tb.Helper()
	n := f.CountSubnetUp()
	f.RunConsole(command)
	f.WaitUp(n + 1)
}

// Run runs a diagnostic on an HCA and returns what it wrote to standard output.
func (f *Fabric) Run(host, name string, args ...string) (string, error) {
	return f.Subnet.Run(host, "", name, args...)
}

// RunInput does the same with a text for standard input.
func (f *Fabric) RunInput(host, input, name string, args ...string) (string, error) {
	return f.Subnet.Run(host, input, name, args...)
}
