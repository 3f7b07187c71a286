package nodeagent

import (
	"errors"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/sighting/lldp"
	"github.com/graylink/graylink/internal/testneeds"
	"github.com/graylink/graylink/internal/unix"
)

// An interface has the neighbour that announces itself over its cable, until the carrier is lost.
func TestNeighbourIsHeard(t *testing.T) {
	testneeds.Root(t, "network namespaces")
	if err := unix.InNewNetns(func() error { return hearNeighbour(t) }); err != nil {
		t.Fatal(err)
	}
}

func hearNeighbour(t *testing.T) error {
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near"}, PeerName: "far"}); err != nil {
		return err
	}
	near, err := netlink.LinkByName("near")
	if err != nil {
		return err
	}
	far, err := netlink.LinkByName("far")
	if err != nil {
		return err
	}
	if err := errors.Join(netlink.LinkSetUp(near), netlink.LinkSetUp(far)); err != nil {
		return err
	}
	l, err := lldp.Listen()
	if err != nil {
		return err
	}
	defer l.Close()
	f := &fleet{node: &Node{neighbours: l, log: slog.New(slog.DiscardHandler)}}
	heard := func() []*agentapi.LLDPNeighbour {
		all, err := net.Interfaces()
		if err != nil {
			t.Fatal(err)
		}
		f.listenForNeighbours(all)
		return f.neighboursAt(near.Attrs().Index)
	}
	frame, err := lldp.BuildFrame(far.Attrs().HardwareAddr, "leaf1", "swp1", time.Minute)
	if err != nil {
		return err
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %+v, %q", what, heard(), f.lldpError)
			}
		}
	}
	until("the neighbour is heard", func() bool {
		if n := heard(); len(n) == 1 {
			return n[0].System == "leaf1" && n[0].Port == "swp1" && n[0].Chassis == "leaf1" && n[0].Forwards
		}
		return l.SendFrame(far.Attrs().Index, frame) != nil // it is not heard before the interface listens
	})
	if err := netlink.LinkSetDown(far); err != nil {
		return err
	}
	until("the neighbour is forgotten", func() bool { return len(heard()) == 0 })
	f.node.neighbours = nil
	if n := heard(); n != nil {
		t.Errorf("%v without a listener", n)
	}
	return nil
}
