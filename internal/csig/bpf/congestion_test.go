package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/locator"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/unix"
)

// Of TestCongestedPortIsNamed.
const (
	shapedRate    = 20_000_000 // bit/s of the port under test; the links have 50 times as much
	shapedBurst   = 16_000     // octets: timers that are late lose no rate
	shapedLimit   = 50_000     // octets: 20 ms
	crossPayload  = 1400
	crossTarget   = 9 // discard, RFC 863
	csigInterval  = 100 * time.Millisecond
	probeInterval = 4 * time.Millisecond
	stepBound     = 2*csigInterval + time.Second
	enoughTags    = 20 // of each format and signal
	leastWindows  = 3
	mostWindows   = 100
	latestReading = 10 * time.Millisecond // after the end of a window
)

// threeTiers returns a topology of two cores and two pods, with two spines, two leaves and six hosts each. Links have 1 Gbit/s.
func threeTiers() string {
	var b strings.Builder
	b.WriteString("version: 1\nswitches:\n  - {name: c1, role: core}\n  - {name: c2, role: core}\n")
	var nodes, links strings.Builder
	link := func(a, b string) { fmt.Fprintf(&links, "  - {a: %q, b: %q, speed_gbps: 1}\n", a, b) }
	for pod := 1; pod <= 2; pod++ {
		for i := 1; i <= 2; i++ {
			fmt.Fprintf(&b, "  - {name: p%ds%d, role: spine, pod: p%d}\n  - {name: p%dl%d, role: leaf, pod: p%d}\n", pod, i, pod, pod, i, pod)
			for j := 1; j <= 2; j++ {
				link(fmt.Sprintf("p%dl%d:up%d", pod, i, j), fmt.Sprintf("p%ds%d:dn%d", pod, j, i))
				link(fmt.Sprintf("p%ds%d:up%d", pod, i, j), fmt.Sprintf("c%d:p%ds%d", j, pod, i))
			}
			for j := 1; j <= 3; j++ {
				host := fmt.Sprintf("h%d%d%d", pod, i, j)
				fmt.Fprintf(&nodes, "  - {name: %s, nics: [{device: eth1}]}\n", host)
				link(host+"/eth1", fmt.Sprintf("p%dl%d:dn%d", pod, i, j))
			}
		}
	}
	return b.String() + "nodes:\n" + nodes.String() + "links:\n" + links.String()
}

// pathTo is a flow whose packets leave a switch by the port under test.
type pathTo struct {
	nic  string
	from netip.AddrPort
}

// findFlows returns flows of three hosts to one NIC, of which each crosses a port: two of probes, and one of the load.
func findFlows(n *network, r *rand.Rand, g *fabric.Graph, port string) (target string, flows []pathTo) {
	n.t.Helper()
	walk, err := n.NewWalk()
	if err != nil {
		n.t.Fatal(err)
	}
	nics := g.NICIDs()
	for range 200 {
		target, flows = nics[r.IntN(len(nics))], nil
		if peer := g.PeerOf(port); fabric.IsNIC(peer) {
			target = peer
		}
		sources := slices.Clone(nics)
		r.Shuffle(len(sources), func(i, j int) { sources[i], sources[j] = sources[j], sources[i] })
		for _, nic := range sources {
			for try := 0; try < 8 && nic != target && len(flows) < 3; try++ {
				from := netip.AddrPortFrom(g.ProbeAddress(nic), uint16(40000+r.IntN(20000)))
				to := uint16(stampPort)
				if len(flows) == 2 {
					to = crossTarget
				}
				p, err := walk.KernelPath(n.t.Context(), from.Addr(), g.ProbeAddress(target), 17, from.Port(), to)
				if err != nil {
					n.t.Fatal(err)
				}
				if slices.ContainsFunc(p, func(h fabric.Hop) bool { return h.Switch+":"+h.Out == port }) {
					flows = append(flows, pathTo{nic, from})
					break
				}
			}
		}
		if len(flows) == 3 {
			return target, flows
		}
	}
	n.t.Fatalf("no flows of three hosts cross %s", port)
	return "", nil
}

// load is traffic that the kernel paces: a socket sends as fast as the token bucket of its host's NIC lets it.
type load struct {
	n      *network
	flow   pathTo
	conn   *net.UDPConn
	to     netip.AddrPort
	sender sync.WaitGroup
	runs   bool
}

// begin sends at a rate in bit/s of frames, until end is called. Rate 0 sends nothing.
func (l *load) begin(rate uint64) {
	l.n.t.Helper()
	if rate == 0 {
		return
	}
	if err := l.conn.SetWriteDeadline(time.Time{}); err != nil {
		l.n.t.Fatal(err)
	}
	l.n.bucket(l.flow.nic, rate, shapedBurst, 1<<20)
	l.runs = true
	l.sender.Go(func() {
		payload := make([]byte, crossPayload)
		for {
			_, err := l.conn.WriteToUDPAddrPort(payload, l.to)
			if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
				return
			}
		}
	})
}

func (l *load) end() {
	l.n.t.Helper()
	if !l.runs {
		return
	}
	l.runs = false
	if err := l.conn.SetWriteDeadline(time.Unix(1, 0)); err != nil {
		l.n.t.Fatal(err)
	}
	l.sender.Wait()
	l.n.clearBucket(l.flow.nic)
}

// received is a tag that came with a probe of one of the flows.
type received struct {
	at     time.Time
	seq    uint32
	format csig.Format
	tag    csig.Tag
}

// crossing is a port under test with its flows.
type crossing struct {
	n       *network
	profile *csig.Profile
	port    string
	target  *Endpoint
	sink    *net.UDPConn
	senders []*net.UDPConn
	flows   []pathTo
	to      netip.AddrPort
	seq     uint32
}

// exchange sends one probe of each flow, and returns the tags that have arrived until then.
func (c *crossing) exchange(out []received) []received {
	t := c.n.t
	t.Helper()
	c.seq += 2 // probes with an odd number, whose signals take turns
	for _, s := range c.senders {
		if _, err := s.WriteToUDPAddrPort(probe(c.seq, 44, 0), c.to); err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.Now().Add(probeInterval)
	if err := c.sink.SetReadDeadline(deadline); err != nil {
		t.Fatal(err)
	}
	var b [128]byte
	for {
		n, from, err := c.sink.ReadFromUDPAddrPort(b[:])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return out
		} else if err != nil || n != 44 {
			t.Fatalf("a probe of %d octets, %v", n, err)
		}
		if err := c.target.ReadTags(); err != nil {
			t.Fatal(err)
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		seq := binary.BigEndian.Uint32(b[:])
		a, ok := c.target.ArrivedTag(from, c.to, seq)
		if !ok || a.Malformed {
			t.Fatalf("a probe from %v: %+v, %t", from, a, ok)
		}
		out = append(out, received{time.Now(), seq, a.Tag.Format, a.Tag})
	}
}

// shareOf returns the available share that a tag stands for: the middle of its code's values.
func (c *crossing) shareOf(tag *csig.Tag) float64 {
	r, ok := c.profile.Decode(tag)
	if !ok {
		c.n.t.Fatalf("%+v has no value", tag)
	}
	if !r.HasUpper {
		r.Upper = csig.Million
	}
	return float64(r.Lower+r.Upper) / 2 / csig.Million
}

// awaitStep sends probes until a tag says that the port is idle, or no longer idle, and returns how long that took. No other
// port of the path has less than 90 % to spare.
func (c *crossing) awaitStep(idle bool) time.Duration {
	began := time.Now()
	for time.Since(began) < 5*stepBound {
		for _, r := range c.exchange(nil) {
			if r.tag.Signal == csig.Share && (c.shareOf(&r.tag) > 0.9) == idle {
				return r.at.Sub(began)
			}
		}
	}
	return time.Since(began)
}

// measurement is what tags and counters said in the same windows.
type measurement struct {
	tags   []received
	shares []float64       // by the counters, in the window before each tag
	waits  []time.Duration // of the octets in the queue when the tag was written; unsteady if they changed meanwhile
}

// unsteady stands for a wait that is not known, since the queue was another one before and after the exchange of a probe.
const unsteady time.Duration = -1

// waitOf returns how long the octets of a queue take that was read before and after a probe was exchanged.
func waitOf(before, after uint64) time.Duration {
	if max(before, after)-min(before, after) > max(before/5, 3000) {
		return unsteady
	}
	return time.Duration(float64(before+after) / 2 * 8 / shapedRate * float64(time.Second))
}

// isEnough reports whether there are tags of each kind.
func (m *measurement) isEnough() bool {
	n := map[csig.Tag]int{}
	for i, r := range m.tags {
		if r.tag.Signal == csig.Share || m.waits[i] != unsteady {
			n[csig.Tag{Format: r.format, Signal: r.tag.Signal}]++
		}
	}
	for _, f := range csig.Formats {
		if n[csig.Tag{Format: f, Signal: csig.Share}] < enoughTags || n[csig.Tag{Format: f, Signal: csig.Delay}] < enoughTags {
			return false
		}
	}
	return true
}

// measure reads the counters of the port where its windows end, and the tags of the window after that. It leaves out windows
// at whose end the test did not get to read the counters in time, and tags that may be of another window.
func (c *crossing) measure() (m measurement) {
	var state portState
	if err := c.egress().state.Lookup(uint32(0), &state); err != nil {
		c.n.t.Fatal(err)
	}
	end := int64(state.Start)
	var before time.Time
	var sent uint64
	share := -1.0
	for windows := 0; windows < leastWindows+2 || windows < mostWindows && !m.isEnough(); windows++ {
		for read := unix.MonotonicNanos(); end <= read; {
			end += csigInterval.Nanoseconds()
		}
		first := c.seq + 1
		for unix.MonotonicNanos() < end {
			_, _, waiting := c.n.readQueue(c.port)
			tags := c.exchange(nil)
			_, _, after := c.n.readQueue(c.port)
			if share < 0 || unix.MonotonicNanos() >= end {
				continue
			}
			for _, r := range tags {
				if r.seq >= first {
					m.tags = append(m.tags, r)
					m.shares = append(m.shares, share)
					m.waits = append(m.waits, waitOf(waiting, after))
				}
			}
		}
		at, octets, waiting := c.n.readQueue(c.port)
		octets += waiting // a port's octets count when they enter its queue (rule 4)
		late := unix.MonotonicNanos()-end > latestReading.Nanoseconds()
		share = -1
		if !late && !before.IsZero() {
			share = max(0, 1-float64(octets-sent)*8/at.Sub(before).Seconds()/shapedRate)
		}
		if before, sent = at, octets; late {
			before = time.Time{}
		}
	}
	return m
}

// check compares tags with counters: the port is named, the share is within one code, and the delay within a fifth or 200 us.
func (c *crossing) check(load int, m *measurement) {
	t := c.n.t
	t.Helper()
	for _, f := range csig.Formats {
		locators := map[csig.Format]map[string]uint16{csig.Compact: c.profile.CompactLocators, csig.Wide: c.profile.WideLocators}[f]
		shares, named := 0, 0
		var share, counted float64
		var delay, backlog time.Duration
		delays := 0
		for i, r := range m.tags {
			switch {
			case r.format != f:
			case r.tag.Signal == csig.Share:
				shares++
				counted += m.shares[i]
				share += c.shareOf(&r.tag)
				if r.tag.Locator == locators[c.port] {
					named++
				}
			case m.waits[i] != unsteady:
				d, _ := c.profile.Decode(&r.tag)
				delays++
				delay += time.Duration(d.Lower)
				backlog += m.waits[i]
			}
		}
		if shares < enoughTags || delays < enoughTags {
			t.Errorf("%s at %d %%: %v: %d and %d tags have arrived", c.port, load, f, shares, delays)
			continue
		}
		share, counted = share/float64(shares), counted/float64(shares)
		if load >= 50 && named*100 < shares*99 {
			t.Errorf("%s at %d %%: %v: %d of %d tags name it", c.port, load, f, named, shares)
		}
		codes := c.profile.Tables[csig.Share]
		got, want := codes.CodeOf(uint64(share*csig.Million)), codes.CodeOf(uint64(counted*csig.Million))
		if got+1 < want || got > want+1 {
			t.Errorf("%s at %d %%: %v: share %.4f, counters say %.4f", c.port, load, f, share, counted)
		}
		delay, backlog = delay/time.Duration(delays), backlog/time.Duration(delays)
		if f == csig.Compact {
			a, b := c.profile.Tables[csig.Delay].CodeOf(uint64(delay)), c.profile.Tables[csig.Delay].CodeOf(uint64(backlog))
			if backlog > time.Millisecond && (a+1 < b || a > b+1) {
				t.Errorf("%s at %d %%: compact: delay %v, backlog %v", c.port, load, delay, backlog)
			}
		} else if off := (delay - backlog).Abs(); off > 200*time.Microsecond && off > backlog/5 {
			t.Errorf("%s at %d %%: wide: delay %v, backlog %v", c.port, load, delay, backlog)
		}
		t.Logf("%s at %d %%: %v: %d of %d tags name it; share %.4f, counters %.4f; delay %v, backlog %v", c.port, load, f, named, shares, share, counted, delay, backlog)
	}
}

// egress returns the program of the port under test.
func (c *crossing) egress() *egress {
	for _, p := range c.n.switches[fabric.OwnerOf(c.port)].ports {
		if p.Name == c.port {
			return p.egress
		}
	}
	c.n.t.Fatalf("%s has no program", c.port)
	return nil
}

// bucket gives an interface a token bucket, and clearBucket takes it away.
func (n *network) bucket(end string, rate uint64, burst, limit uint32) {
	n.t.Helper()
	index := n.indexOf(end)
	n.in(fabric.OwnerOf(end), func() error {
		ticks := netlink.TickInUsec() * float64(burst) * 8e6 / float64(rate)
		return netlink.QdiscReplace(&netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
			Rate: rate / 8, Limit: limit, Buffer: uint32(ticks)})
	})
}

func (n *network) clearBucket(end string) {
	n.t.Helper()
	index := n.indexOf(end)
	n.in(fabric.OwnerOf(end), func() error {
		return netlink.QdiscDel(&netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}})
	})
}

// readQueue returns what the token bucket of a port has sent, and what waits there, in octets.
func (n *network) readQueue(end string) (at time.Time, sent, backlog uint64) {
	n.t.Helper()
	for _, p := range n.switches[fabric.OwnerOf(end)].ports {
		if p.Name != end {
			continue
		}
		s := n.switches[fabric.OwnerOf(end)]
		l, err := s.netlink.LinkByIndex(p.Interface)
		if err != nil {
			n.t.Fatal(err)
		}
		list, err := s.netlink.QdiscList(l)
		at = time.Now()
		if err != nil {
			n.t.Fatal(err)
		}
		for _, q := range list {
			if t, ok := q.(*netlink.Tbf); ok && t.Statistics != nil {
				return at, t.Statistics.Basic.Bytes, uint64(t.Statistics.Queue.Backlog)
			}
		}
	}
	n.t.Fatalf("%s has no token bucket", end)
	return at, 0, 0
}

// TestCongestedPortIsNamed loads random ports of a fabric of three tiers, and compares the tags of probes in both formats with
// the counters of the ports' token buckets, after each step of the load.
func TestCongestedPortIsNamed(t *testing.T) {
	topology := threeTiers()
	needRoot(t)
	p := parseProfile(t, "interval: 100ms\n")
	g := fabric.NewGraph(loadText(t, topology))
	a := locator.AssignLocators(g)
	p.CompactLocators, p.WideLocators = a.LocatorsOf(csig.Compact), a.LocatorsOf(csig.Wide)
	n := buildNetwork(t, topology, p, nil)
	g = fabric.NewGraph(n.Topology())
	r := rand.New(rand.NewPCG(5, 7))
	ports := slices.Clone(a.Ports)
	r.Shuffle(len(ports), func(i, j int) { ports[i], ports[j] = ports[j], ports[i] })
	for _, port := range ports[:congestedPorts] {
		t.Run(port.Port, func(t *testing.T) {
			n := &network{n.Lab, t, n.switches}
			n.shape(port.Port, shapedRate, shapedBurst, shapedLimit)
			defer func() {
				n.clearBucket(port.Port)
				if err := n.switches[fabric.OwnerOf(port.Port)].RefreshSpeeds(); err != nil {
					t.Error(err)
				}
			}()
			target, flows := findFlows(n, r, g, port.Port)
			c := n.crossingOf(p, port.Port, target, flows[:2])
			cross := &load{n: n, flow: flows[2], conn: n.socket(fabric.OwnerOf(flows[2].nic), flows[2].from), to: netip.AddrPortFrom(c.to.Addr(), crossTarget)}
			_ = n.socket(fabric.OwnerOf(target), cross.to) // so that no ICMP errors are sent
			for _, percent := range []int{0, 50, 90, 100} {
				rate := uint64(percent) * shapedRate / 100
				if percent == 100 {
					rate = rate * 105 / 100 // so that a queue stands
				}
				idle := c.awaitStep(true)
				cross.begin(rate)
				busy := c.awaitStep(percent == 0)
				if idle > stepBound || busy > stepBound {
					t.Errorf("%s: the end of the load is seen after %v, and the step to %d %% after %v; want at most %v", port.Port, idle, percent, busy, stepBound)
				}
				m := c.measure()
				cross.end()
				c.check(percent, &m)
				t.Logf("%s: the end of the load is seen after %v, the step to %d %% after %v", port.Port, idle, percent, busy)
			}
		})
	}
}

// crossingOf attaches endpoints for two flows of probes, the first one with compact tags and the second one with wide ones.
func (n *network) crossingOf(p *csig.Profile, port, target string, flows []pathTo) *crossing {
	n.t.Helper()
	o := EndpointOptions{EtherTypes: p.EtherTypes, Format: csig.Wide, Signals: []csig.Signal{csig.Share, csig.Delay}}
	c := &crossing{n: n, profile: p, port: port, flows: flows, seq: 1, target: n.endpoint(target, o)}
	c.to = netip.AddrPortFrom(fabric.NewGraph(n.Topology()).ProbeAddress(target), stampPort)
	c.sink = n.socket(fabric.OwnerOf(target), c.to)
	for i, flow := range flows {
		o.Format = csig.Formats[i]
		e := n.endpoint(flow.nic, o)
		if err := e.TagFlows([]csig.TaggedFlow{{From: flow.from, To: c.to}}); err != nil {
			n.t.Fatal(err)
		}
		c.senders = append(c.senders, n.socket(fabric.OwnerOf(flow.nic), flow.from))
	}
	return c
}
