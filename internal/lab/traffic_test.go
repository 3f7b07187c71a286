package lab

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/fabric"
)

// TestCongest checks that packets that cross the full queue are late by at most the requested delay, that some of
// them are lost, and that the other direction is not affected.
func TestCongest(t *testing.T) { onBothFamilies(t, "congest", congestPorts) }

func congestPorts(t *testing.T, l *Lab) {
	for _, c := range []struct {
		name  string
		fault Fault
		d     fabric.Direction
		src   string
		dst   string
	}{
		{"uplink", Fault{Kind: KindCongest, At: upward.From, Delay: 10 * time.Millisecond}, upward, "h1/eth1", "h7/eth1"},
		{"incast", Fault{Kind: KindIncast, At: "h7/eth1", Delay: 10 * time.Millisecond}, fabric.Direction{From: fabric.NewGraph(l.Topology()).PeerOf("h7/eth1"), To: "h7/eth1"}, "h1/eth1", "h7/eth1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := pickFlow(t, l, c.src, c.dst, func(fwd, rev []fabric.Direction) bool { return slices.Contains(fwd, c.d) && !slices.Contains(rev, c.d) })
			before := measure(t, l, f, 200, time.Millisecond, time.Second)
			af := addFault(t, l, c.fault)
			if af.Direction != c.d.String() {
				t.Errorf("direction %s, want %s", af.Direction, c.d)
			}
			// The queue fills within a second: it gets a twentieth more than it lets go.
			var r result
			for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
				if r = measure(t, l, f, 200, time.Millisecond, time.Second); quantileOf(r.fwd, 0.5) > 5*time.Millisecond {
					break
				}
			}
			if m := quantileOf(r.fwd, 0.5); m < 5*time.Millisecond || m > 12*time.Millisecond {
				t.Errorf("forward median %v, want about 10ms; before %v", m, quantileOf(before.fwd, 0.5))
			}
			if m := delayOf(r.rev); m > 2*time.Millisecond {
				t.Errorf("reverse median %v", m)
			}
			if loss := r.fwdLoss(); loss > 0.4 {
				t.Errorf("forward loss %.2f", loss)
			}
			if loss := r.revLoss(); loss > 0.02 {
				t.Errorf("reverse loss %.2f", loss)
			}
			clearFaults(t, l)
			if r := measure(t, l, f, 200, time.Millisecond, time.Second); r.gotBack != 200 || delayOf(r.fwd) > 2*time.Millisecond {
				t.Errorf("cleared: %d of 200 came back, forward delay %v", r.gotBack, delayOf(r.fwd))
			}
			err := l.fabricOf(t).onInterface(c.d.From, func(h *netlink.Handle, link netlink.Link) error {
				list, err := h.QdiscList(link)
				for _, q := range list {
					if q.Type() == "tbf" {
						t.Error("the shaper is still there")
					}
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func (l *Lab) fabricOf(t *testing.T) *index {
	t.Helper()
	x, err := l.currentFabric()
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// TestFlap: the link goes down and up until the fault is cleared, and is whole then.
func TestFlap(t *testing.T) { onBothFamilies(t, "flap", flapLinks) }

func flapLinks(t *testing.T, l *Lab) {
	before := routing(t, l)
	f := pickFlow(t, l, "h1/eth1", "h7/eth1", func(fwd, _ []fabric.Direction) bool { return slices.Contains(fwd, upward) })
	addFault(t, l, Fault{Kind: KindFlap, At: spineLink})
	changes, last := 0, true
	for deadline := time.Now().Add(20 * time.Second); changes < 6 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		p, err := l.KernelPath(t.Context(), l.addr(f.src), l.addr(f.dst), syscall.IPPROTO_UDP, uint16(f.sport), echoPort)
		if err != nil {
			continue // between two states of the state file
		}
		if over := slices.Contains(p.LinkDirections(f.src, f.dst), upward); over != last {
			changes, last = changes+1, over
		}
	}
	if changes < 6 {
		t.Errorf("%d changes of the path in 20 s", changes)
	}
	clearFaults(t, l)
	if after := routing(t, l); after != before {
		t.Errorf("the routes are not what they were:\n%s", diff(before, after))
	}
	if r := measure(t, l, f, 50, time.Millisecond, time.Second); r.gotBack != 50 {
		t.Errorf("after clearing %d of 50 came back", r.gotBack)
	}
}

// TestMiscable checks that every pair still communicates by the cables as they are plugged, and that a trace shows
// the ports that they are plugged into.
func TestMiscable(t *testing.T) {
	for _, c := range []struct{ file, at string }{
		{demoFile, "leaf1:up1--spine1:dn1,leaf3:up2--spine2:dn3"},
		{demoFile, "spine1:dn2--leaf2:up1,leaf1:up1--spine1:dn1"},
		{clos3File, ""},
		{demoFileV6, "leaf1:up1--spine1:dn1,leaf3:up2--spine2:dn3"},
	} {
		t.Run(filepath.Base(c.file)+" "+strings.ReplaceAll(c.at, "/", "_"), func(t *testing.T) {
			l := up(t, c.file, "miscable")
			before := routing(t, l)
			g := fabric.NewGraph(l.Topology())
			if c.at == "" {
				var links []string
				for i := range g.Topo.Links {
					if k := &g.Topo.Links[i]; !k.IsAccess() {
						links = append(links, k.ID())
					}
				}
				c.at = links[0] + "," + links[len(links)-1]
			}
			addFault(t, l, Fault{Kind: KindMiscable, At: c.at})
			nics := g.NICIDs()
			crossed, odd := 0, 0
			for n, src := range nics {
				dst := nics[(n+len(nics)/2)%len(nics)]
				if fabric.OwnerOf(src) == fabric.OwnerOf(dst) {
					continue
				}
				for sport := 20000; sport < 20016; sport++ {
					p, err := l.KernelPath(t.Context(), l.addr(src), l.addr(dst), syscall.IPPROTO_UDP, uint16(sport), 862)
					if err != nil {
						t.Fatal(err)
					}
					wrong := false
					for _, d := range p.LinkDirections(src, dst) {
						wrong = wrong || g.PeerOf(d.From) != d.To
					}
					if !wrong {
						continue
					}
					crossed++
					if crossed > 20 {
						continue
					}
					f := flow{src: src, dst: dst, sport: sport}
					if r := measure(t, l, f, 5, time.Millisecond, time.Second); r.gotBack != 5 {
						t.Errorf("%s to %s from port %d, by %s: %d of 5 came there, %d back", src, dst, sport, p.CanonicalKey(), r.gotThere, r.gotBack)
					}
					tr := newTracer(t, l, src, sport)
					for i, h := range p {
						if got := g.EndOf(tr.hop(t, netip.AddrPortFrom(l.addr(dst), 862), i+1)); got != h.Switch+":"+h.In {
							odd++
							t.Errorf("%s to %s from port %d, hop %d: %s answers, the kernel's path is %s", src, dst, sport, i+1, got, p.CanonicalKey())
						}
					}
					tr.udp.Close()
					tr.icmp.Close()
				}
			}
			if crossed == 0 {
				t.Error("no flow crosses a swapped cable")
			}
			if _, err := l.addFault(t.Context(), Fault{Kind: KindLinkDown, At: strings.Split(c.at, ",")[0]}); err == nil {
				t.Error("a swapped cable was taken down, too")
			}
			clearFaults(t, l)
			if after := routing(t, l); after != before {
				t.Errorf("the routes are not what they were:\n%s", diff(before, after))
			}
			f := pickFlow(t, l, nics[0], nics[len(nics)-1], anyWay)
			if r := measure(t, l, f, 50, time.Millisecond, time.Second); r.gotBack != 50 {
				t.Errorf("after clearing %d of 50 came back", r.gotBack)
			}
		})
	}
}

// TestMute: a switch that does not answer traces forwards all the same.
func TestMute(t *testing.T) { onBothFamilies(t, "mute", muteSwitch) }

func muteSwitch(t *testing.T, l *Lab) {
	f := pickFlow(t, l, "h1/eth1", "h7/eth1", func(fwd, _ []fabric.Direction) bool { return slices.Contains(fwd, upward) })
	addFault(t, l, Fault{Kind: KindMute, At: "spine1"})
	tr := newTracer(t, l, f.src, f.sport)
	defer tr.icmp.Close()
	g := fabric.NewGraph(l.Topology())
	setIP(t, tr.udp, syscall.IP_TTL, 2)
	var heard sync.WaitGroup
	heard.Go(func() {
		buf := make([]byte, 256)
		for {
			n, from, err := tr.icmp.ReadFrom(buf)
			switch {
			case err != nil:
				return
			case l.x.family() == ipv4Family || buf[0] < 128: // neighbour discovery is above: RFC 4443 section 2.1
				t.Errorf("%d octets from %v", n, from)
			}
		}
	})
	deadline(t, tr.icmp, 300*time.Millisecond)
	if _, err := tr.udp.WriteToUDPAddrPort([]byte("hop"), netip.AddrPortFrom(l.addr(f.dst), echoPort)); err != nil {
		t.Fatal(err)
	}
	heard.Wait()
	if got := g.EndOf(tr.hop(t, netip.AddrPortFrom(l.addr(f.dst), echoPort), 3)); !strings.HasPrefix(got, "leaf4:") {
		t.Errorf("beyond the mute switch %q answers", got)
	}
	tr.udp.Close()
	if r := measure(t, l, f, 50, time.Millisecond, time.Second); r.gotBack != 50 {
		t.Errorf("%d of 50 came back", r.gotBack)
	}
	clearFaults(t, l)
}
