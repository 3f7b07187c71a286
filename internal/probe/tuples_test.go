package probe

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/roce"
)

// tupling returns a NIC that is probed by UDP, whose copies go to a fake host.
func tupling(t *testing.T, h *fakeHost) idle {
	t.Helper()
	c := loopConfig("h1", 1, 2, "h2/eth1", 1)
	c.NICs[0].Device = "eth7"
	c.NICs[0].Timestamps = TimestampsKernel
	n := newIdle(t, c, HostDeps())
	n.ports.udp.copies.host = h
	return n
}

func roceTuple(sport int) Tuple {
	return Tuple{Src: "h1/eth1", Dst: "h2/eth1", Proto: "udp", DPort: roce.Port, SPort: sport, DSCP: 26}
}

func traceTuple(t *testing.T, n idle, tuple Tuple) TracedPath {
	t.Helper()
	paths, err := n.e.TraceTuples(t.Context(), []Tuple{tuple})
	if err != nil {
		t.Fatal(err)
	}
	return paths[0].Path
}

// An agent sends no packet for a tuple that is not a registered peer's, or that has other ports.
func TestTupleRule1WhatIsRefused(t *testing.T) {
	h := &fakeHost{switches: []netip.Addr{up1}}
	n := tupling(t, h)
	for _, x := range []struct {
		change func(*Tuple)
		want   string
	}{
		{func(t *Tuple) { t.Src = "h9/eth1" }, `field "src": "h9/eth1", want a NIC of this node`},
		{func(t *Tuple) { t.Dst = "h9/eth1" }, `field "dst": "h9/eth1", want a NIC of a registered peer`},
		{func(t *Tuple) { t.Dst = "h1/eth1" }, `field "dst": "h1/eth1", want a NIC of a registered peer`},
		{func(t *Tuple) { t.Proto = "tcp" }, `field "proto": "tcp", want udp`},
		{func(t *Tuple) { t.DPort = 53 }, `field "dport": 53, want 4791 (RoCE v2) or 8862`},
		{func(t *Tuple) { t.SPort = 49151 }, `field "sport": 49151, want 49152 to 65535`},
		{func(t *Tuple) { t.SPort = 65536 }, `field "sport": 65536, want 49152 to 65535`},
		{func(t *Tuple) { t.DSCP = 64 }, `field "dscp": 64, want 0 to 63`},
		{func(t *Tuple) { t.Variant = -1 }, `field "variant": -1, want 0 to 255`},
		{func(t *Tuple) { t.Variant = 256 }, `field "variant": 256, want 0 to 255`},
		{func(t *Tuple) { t.Packets = 9 }, `field "packets": 9, want 0 to 8`},
		{func(t *Tuple) { t.Packets = -1 }, `field "packets": -1, want 0 to 8`},
		{func(t *Tuple) { t.DPort, t.Variant = 8862, 1 }, `field "variant": 1, want 0 for another port than 4791`},
		{func(t *Tuple) { t.DPort, t.SPort = 8862, 60000 }, `field "sport": 60000, want the source port of a flow`},
		{func(t *Tuple) { t.Variant = 1 }, `field "variant": 1: the length of the path is not known yet`},
	} {
		bad := roceTuple(49200)
		x.change(&bad)
		tuples := []Tuple{roceTuple(49201), bad}
		if bad.Variant == 1 && bad.DPort == roce.Port {
			tuples = tuples[1:]
		}
		_, err := n.e.TraceTuples(t.Context(), tuples)
		var refused *TupleError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%+v: %v, want %q", bad, err, x.want)
		}
	}
	if len(h.sent) != 0 {
		t.Errorf("%d packets were sent for tuples that were refused", len(h.sent))
	}
}

func TestTupleRule3CopiesHaveTheTuple(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHost{switches: []netip.Addr{up1, spine1, up2}}
		n := tupling(t, h)
		p := traceTuple(t, n, roceTuple(51234))
		if p.State != fabric.PathValid || hops(p) != "10.2.0.1 10.1.0.1 10.2.0.2" || p.Edge.String() != "h1/eth1>h2/eth1#51234" {
			t.Errorf("%+v", p)
		}
		if len(h.sent) == 0 || len(h.opened) != 1 || !strings.HasPrefix(h.opened[0], "eth7 ") {
			t.Errorf("%d packets by %q", len(h.sent), h.opened)
		}
		cfg := n.e.Config()
		for _, c := range h.sent {
			if c.Src != cfg.NICs[0].Address || c.Dst != cfg.Peers[0].Address || c.SrcPort != 51234 || c.TOS != 26<<2|ect0 || c.DestQPN != 0 {
				t.Errorf("%+v", c)
			}
		}
		if _, paths := n.e.TracedPaths(); len(paths) != 0 {
			t.Errorf("a tuple is among the paths of flows: %+v", paths)
		}
	})
}

// The length is known after the first trace, so that nothing arrives at the destination any more: neither packets for queue
// pair 0, nor those of variants.
func TestTupleRule4NothingArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHost{switches: []netip.Addr{up1, spine1, up2}}
		n := tupling(t, h)
		traceTuple(t, n, roceTuple(50000))
		h.sent = nil
		queuePairs := map[uint32]bool{}
		for variant := range 4 {
			tuple := roceTuple(50000)
			tuple.Variant, tuple.Packets = variant, 4
			if p := traceTuple(t, n, tuple); p.State != fabric.PathValid || hops(p) != "10.2.0.1 10.1.0.1 10.2.0.2" {
				t.Errorf("variant %d: %+v", variant, p)
			}
		}
		for _, c := range h.sent {
			queuePairs[c.DestQPN] = true
			if c.HopLimit > 3 {
				t.Errorf("hop limit %d: it arrives at the destination", c.HopLimit)
			}
		}
		if len(h.sent) != 4*4*3 || len(queuePairs) != 2 {
			t.Errorf("%d packets with queue pairs %v, want 48 with two", len(h.sent), queuePairs)
		}
	})
}

// Half of the variants by IPv6 have a flow label, since many switches hash it. Those by IPv4 have none.
func TestTupleRule3FlowLabels(t *testing.T) {
	n := tupling(t, &fakeHost{switches: []netip.Addr{up1}})
	for _, x := range []struct {
		src, dst string
		want     [4]bool // by variant
	}{
		{"2001:db8::1", "2001:db8::2", [4]bool{false, false, true, true}},
		{"10.0.1.2", "10.0.2.2", [4]bool{}},
	} {
		ends := tupleEnds{copier: n.ports.udp.copies, src: netip.MustParseAddr(x.src), dst: netip.MustParseAddr(x.dst), netdev: "eth7"}
		n.e.tracer.tupleLengths[nicDestination{"h1/eth1", ends.dst}] = 4
		for variant, want := range x.want {
			tuple := roceTuple(50000)
			tuple.Variant = variant
			f, err := n.e.tracer.planTuple(tuple, ends)
			if err != nil {
				t.Fatal(err)
			}
			p := f.copies.packet
			if (p.FlowLabel != 0) != want || (p.DestQPN == multicastQPN) != (variant&1 == 1) || p.SrcPort != 50000 {
				t.Errorf("variant %d from %s: label %#x, queue pair %#x, port %d", variant, x.src, p.FlowLabel, p.DestQPN, p.SrcPort)
			}
		}
	}
}

// A variant has another path where a switch hashes what is not part of the tuple. If packets of one variant have two paths,
// the switch balances by packet.
func TestTupleVariantsShowTheHash(t *testing.T) {
	for _, x := range []struct {
		name              string
		choose            func(p roce.Packet) netip.Addr
		another, balanced bool
	}{
		{"tuple", nil, false, false},
		{"queue pair", func(p roce.Packet) netip.Addr { return []netip.Addr{spine1, up2}[p.DestQPN&1] }, true, false},
		{"packet", func(p roce.Packet) netip.Addr { return []netip.Addr{spine1, up2}[p.PSN/3&1] }, false, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := &fakeHost{switches: []netip.Addr{up1, spine1, up2}}
			n := tupling(t, h)
			traceTuple(t, n, roceTuple(50000))
			h.choose = x.choose
			paths := map[string]bool{}
			balanced := false
			for variant := range 2 {
				tuple := roceTuple(50000)
				tuple.Variant, tuple.Packets = variant, 4
				p := traceTuple(t, n, tuple)
				paths[hops(p)] = true
				balanced = balanced || p.Balanced
			}
			if balanced != x.balanced || !balanced && (len(paths) > 1) != x.another {
				t.Errorf("%s: paths %v, balanced %v", x.name, paths, balanced)
			}
		})
	}
}

func TestTuplesKeepTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHost{switches: []netip.Addr{up1, spine1, up2}}
		n := tupling(t, h)
		traceTuple(t, n, roceTuple(49999))
		h.sent = nil
		tuples := make([]Tuple, 100)
		for i := range tuples {
			tuples[i] = roceTuple(50000 + i)
		}
		began := time.Now()
		paths, err := n.e.TraceTuples(t.Context(), tuples)
		if err != nil {
			t.Fatal(err)
		}
		valid := 0
		for i, p := range paths {
			switch {
			case p.Tuple != tuples[i] || p.Marking != fabric.MarkingNone:
				t.Errorf("%+v", p)
			case p.Path.State == fabric.PathValid:
				valid++
			case !strings.Contains(strings.Join(p.Path.Notes, " "), "rate limited"):
				t.Errorf("%+v, want a valid path, or a note about the limit", p)
			}
		}
		if valid < 80 {
			t.Errorf("%d of 100 paths are valid", valid)
		}
		perHop := map[uint8]int{}
		for _, c := range h.sent {
			perHop[c.HopLimit]++
		}
		most := int(50*time.Since(began).Seconds()) + int(burstFor(50)) + 1
		for hop, k := range perHop {
			if k > most {
				t.Errorf("%d copies for hop limit %d in %v, want %d at most", k, hop, time.Since(began), most)
			}
		}
	})
}

func TestMarkingIsNotGuessed(t *testing.T) {
	for driver, want := range map[string]fabric.Marking{"": fabric.MarkingNone, "virtio_net": fabric.MarkingNone, "mlx5_core": fabric.MarkingUnknown, "bnxt_en": fabric.MarkingUnknown} {
		if got := newCopier(&fakeHost{driver: driver}).markingOf("eth7"); got != want {
			t.Errorf("driver %q: %s, want %s", driver, got, want)
		}
	}
	if got := newCopier(sysHost{t.TempDir()}).markingOf("eth7"); got != fabric.MarkingUnknown {
		t.Errorf("without an interface: %s", got)
	}
}
