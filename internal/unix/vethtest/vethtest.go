// Package vethtest joins two interfaces by a cable in a network namespace, for tests.
package vethtest

import (
	"errors"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/testneeds"
	"github.com/graylink/graylink/internal/unix"
)

// Names of the two interfaces.
const (
	Near = "near"
	Far  = "far"
)

// Run makes two interfaces in a network namespace of the test's own, and runs a function there with their indices. What one sends, the
// other receives. Without root it skips the test, or fails it if GRAYLINK_REQUIRE_ALL=1 forbids skips.
func Run(tb testing.TB, fn func(near, far int)) {
	tb.Helper()
	testneeds.Root(tb, "network namespaces")
	err := unix.InNewNetns(func() error {
		near, far, err := addPair()
		if err != nil {
			return err
		}
		fn(near, far)
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// Replace takes the interfaces away and makes new ones with the same names, in a function that Run runs.
func Replace(tb testing.TB) (near, far int) {
	tb.Helper()
	near, far, err := replacePair()
	if err != nil {
		tb.Fatal(err)
	}
	return near, far
}

// replacePair does the work of Replace.
func replacePair() (near, far int, err error) {
	l, err := netlink.LinkByName(Near)
	if err != nil {
		return 0, 0, err
	}
	if err := netlink.LinkDel(l); err != nil {
		return 0, 0, err
	}
	return addPair()
}

// addPair makes the interfaces in the namespace of the thread, and waits until they are up: frames that are sent before the kernel has
// noticed the carrier are lost.
func addPair() (near, far int, err error) {
	h, err := netlink.NewHandle()
	if err != nil {
		return 0, 0, err
	}
	defer h.Close()
	attributes := netlink.NewLinkAttrs()
	attributes.Name = Near
	if err := h.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: Far}); err != nil {
		return 0, 0, err
	}
	var index [2]int
	for i, name := range []string{Near, Far} {
		l, err := h.LinkByName(name)
		if err != nil {
			return 0, 0, err
		}
		if err := h.LinkSetUp(l); err != nil {
			return 0, 0, err
		}
		index[i] = l.Attrs().Index
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		up := 0
		for _, i := range index {
			if l, err := h.LinkByIndex(i); err == nil && l.Attrs().OperState == netlink.OperUp {
				up++
			}
		}
		if up == len(index) {
			return index[0], index[1], nil
		}
		if time.Now().After(deadline) {
			return 0, 0, errors.New("the cable does not come up")
		}
	}
}
