//go:build all

package e2e

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/internal/unix"
)

// crossings is the truth about the packets of probe flows: what packet sockets in the namespaces of all switches receive, with the
// kernel's times. Nothing of it comes from Graylink's agents.
type crossings struct {
	t     *testing.T
	g     *fabric.Graph
	rings []*unix.PacketRing
	wait  sync.WaitGroup

	mu    sync.Mutex
	flows map[packetKey]*packetFlow
	kept  []portEntry
	// keepsFrom is the time from which packets are kept, in nanoseconds since 1970. 0 means that none are.
	keepsFrom int64
}

// packetKey is what the packets of a flow have in common.
type packetKey struct {
	src, dst     [4]byte
	sport, dport uint16
}

// packetFlow is a probe flow with the times in which its packets entered ports of switches.
type packetFlow struct {
	fabric.Flow
	entered map[string][]span
}

// span is a time in which packets followed each other by no more than mostApart.
type span struct{ from, to int64 }

// mostApart is less than the length of a window, so that every window within a span has a packet.
const mostApart = 800 * time.Millisecond

// portEntry is a packet that entered a port of a switch.
type portEntry struct {
	*packetFlow
	port string
	seq  uint32
	at   int64
}

// probeTTL is below that of probes, and above that of the packets of traces, which are not to arrive.
const probeTTL = 40

// watchCrossings begins to receive. The fabric's probes have addresses of IPv4.
func watchCrossings(t *testing.T, l *lab.Lab, flows int) *crossings {
	t.Helper()
	c := &crossings{t: t, g: fabric.NewGraph(l.Topology()), flows: map[packetKey]*packetFlow{}}
	nics := c.g.NICIDs()
	for _, src := range nics {
		for _, dst := range nics {
			for n := range flows {
				f := fabric.Flow{Src: src, Dst: dst, Number: n}
				k := packetKey{c.g.ProbeAddress(src).As4(), c.g.ProbeAddress(dst).As4(), uint16(demo.SourcePort + n), demo.StampPort}
				c.flows[k] = &packetFlow{Flow: f, entered: map[string][]span{}}
				f.Reply = true
				c.flows[packetKey{k.dst, k.src, k.dport, k.sport}] = &packetFlow{Flow: f, entered: map[string][]span{}}
			}
		}
	}
	t.Cleanup(c.close)
	err := l.InEachSwitch(func(_ string, ports []lab.PortInterface) error {
		byMAC := map[[6]byte]string{}
		for _, p := range ports {
			i, err := net.InterfaceByIndex(p.Index)
			if err != nil {
				return err
			}
			byMAC[[6]byte(i.HardwareAddr)] = p.End
		}
		r, err := unix.OpenPacketRing(0x0800, 0, unix.RingOptions{Snap: 64, BlockOctets: 1 << 16, Blocks: 128, Retire: 100 * time.Millisecond})
		if err != nil {
			return err
		}
		c.rings = append(c.rings, r)
		c.wait.Go(func() { c.receive(r, byMAC) })
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *crossings) close() {
	for _, r := range c.rings {
		if _, drops, err := r.Totals(); err != nil || drops > 0 {
			c.t.Errorf("the truth has a gap of %d packets, %v", drops, err)
		}
		if err := r.Close(); err != nil {
			c.t.Error(err)
		}
	}
	c.wait.Wait()
}

func (c *crossings) receive(r *unix.PacketRing, byMAC map[[6]byte]string) {
	for {
		err := r.Recv(time.Now().Add(time.Second), func(frame []byte, at int64) { c.take(frame, at, byMAC) })
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			c.t.Error(err)
			return
		}
	}
}

// take records a packet, if it is one of a probe flow.
func (c *crossings) take(frame []byte, at int64, byMAC map[[6]byte]string) {
	const ip, udp, payload = 14, 34, 42
	if len(frame) < payload+4 || frame[ip] != 0x45 || frame[ip+9] != 17 {
		return
	}
	k := packetKey{[4]byte(frame[ip+12:]), [4]byte(frame[ip+16:]), binary.BigEndian.Uint16(frame[udp:]), binary.BigEndian.Uint16(frame[udp+2:])}
	c.mu.Lock()
	defer c.mu.Unlock()
	f, port := c.flows[k], byMAC[[6]byte(frame)]
	if f == nil || port == "" || frame[ip+8] < probeTTL {
		return
	}
	all := f.entered[port]
	if last := len(all) - 1; last >= 0 && at-all[last].to <= int64(mostApart) {
		all[last].to = max(at, all[last].to)
	} else {
		f.entered[port] = append(all, span{at, at})
	}
	if c.keepsFrom > 0 && at >= c.keepsFrom {
		c.kept = append(c.kept, portEntry{f, port, binary.BigEndian.Uint32(frame[payload:]), at})
	}
}

// keep begins to keep all packets, and drops those that were kept before.
func (c *crossings) keep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keepsFrom, c.kept = time.Now().UnixNano(), nil
}

// taken returns the packets that were kept, by their times. Those from a moment on are returned the next time as well.
func (c *crossings) taken(again time.Time) []portEntry {
	c.mu.Lock()
	out := c.kept
	c.kept = nil
	for _, x := range out {
		if x.at >= again.UnixNano() {
			c.kept = append(c.kept, x)
		}
	}
	c.mu.Unlock()
	slices.SortFunc(out, func(a, b portEntry) int { return cmp.Compare(a.at, b.at) })
	return out
}

// portsIn returns the ports of switches that packets of a flow entered in a time.
func (f *packetFlow) portsIn(from, to time.Time) (out []string) {
	a, b := from.UnixNano(), to.UnixNano()
	for port, all := range f.entered {
		// The first span that ends after the time begins.
		i, _ := slices.BinarySearchFunc(all, a, func(s span, at int64) int {
			if s.to < at {
				return -1
			}
			return 1
		})
		if i < len(all) && all[i].from < b {
			out = append(out, port)
		}
	}
	return out
}

// byName returns the flows by their names.
func (c *crossings) byName() map[string]*packetFlow {
	out := make(map[string]*packetFlow, len(c.flows))
	for _, f := range c.flows {
		out[f.String()] = f
	}
	return out
}

// lostAt is what became of the packets that a switch did not send on.
type lostAt struct {
	packets int
	flows   map[string]int
	times   []int64
}

// lostPackets returns where packets were last that entered their first switch and never their last one, by their times. Those of a moment
// and later may be on their way.
func (c *crossings) lostPackets(all []portEntry, until time.Time) (out []portEntry) {
	type packet struct {
		flow *packetFlow
		seq  uint32
	}
	last := map[packet]portEntry{}
	for _, x := range all {
		last[packet{x.packetFlow, x.seq}] = x
	}
	for _, x := range last {
		_, to := x.Endpoints()
		if leaf, _ := c.g.LeafOf(to); x.at < until.UnixNano() && fabric.OwnerOf(x.port) != leaf {
			out = append(out, x)
		}
	}
	slices.SortFunc(out, func(a, b portEntry) int { return cmp.Compare(a.at, b.at) })
	return out
}

// lossesOf returns, by the switch that had the packet last, what was lost of some packets: they entered their first switch
// and never the last one.
func (c *crossings) lossesOf(all []portEntry, until time.Time) map[string]*lostAt {
	out := map[string]*lostAt{}
	for _, x := range c.lostPackets(all, until) {
		sw := fabric.OwnerOf(x.port)
		l := out[sw]
		if l == nil {
			l = &lostAt{flows: map[string]int{}}
			out[sw] = l
		}
		l.packets++
		l.flows[x.String()]++
		l.times = append(l.times, x.at)
	}
	return out
}

// String describes the losses.
func (l *lostAt) String() string {
	return fmt.Sprintf("%d packets of %d flows in %.1f ms", l.packets, len(l.flows), float64(l.times[len(l.times)-1]-l.times[0])/1e6)
}
