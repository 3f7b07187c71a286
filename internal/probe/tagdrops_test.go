package probe

import (
	"encoding/binary"
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/observe"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/testneeds"
	"github.com/graylink/graylink/internal/unix"
)

// mostHops is more than the hops of a line, and less than the hop limit of a probe.
const mostHops = 8

// traceCount is the number of hop-limited packets by hop limit.
type traceCount map[uint8]int

// traceWatch counts the hop-limited packets to reflectors that a switch receives, those with even numbers and those with odd ones.
type traceWatch struct {
	mu        sync.Mutex
	even, odd traceCount
}

// watchTraces counts what h1 sends through r1, until the test ends.
func watchTraces(t *testing.T, l *line) *traceWatch {
	t.Helper()
	w := &traceWatch{even: traceCount{}, odd: traceCount{}}
	const ipv4 = 0x0800
	var ring *unix.PacketRing
	err := unix.InNetns(l.name("r1"), func() error {
		i, err := net.InterfaceByName("dn1")
		if err == nil {
			o := unix.RingOptions{Snap: 96, BlockOctets: 1 << 16, Blocks: 8, Retire: 10 * time.Millisecond}
			ring, err = unix.OpenPacketRing(ipv4, i.Index, o)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := ring.Recv(time.Now().Add(50*time.Millisecond), w.take); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error(err)
				return
			}
		}
	})
	t.Cleanup(func() {
		close(done)
		ended.Wait()
		if err := ring.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// take counts a frame: Ethernet, IPv4 without options (RFC 791: the hop limit is octet 8, the protocol octet 9), UDP and STAMP.
func (w *traceWatch) take(frame []byte, _ int64) {
	const header, ip, udp, protocolUDP = 14, 20, 8, 17
	if len(frame) < header+ip+udp+4 {
		return
	}
	packet := frame[header:]
	port := binary.BigEndian.Uint16(packet[ip+2:])
	if ttl := packet[8]; packet[9] == protocolUDP && port == defaultConfig().Stamp.Port && ttl <= mostHops {
		w.mu.Lock()
		defer w.mu.Unlock()
		if binary.BigEndian.Uint32(packet[ip+udp:])&1 == 1 {
			w.odd[ttl]++
		} else {
			w.even[ttl]++
		}
	}
}

// counts returns the packets so far.
func (w *traceWatch) counts() (even, odd traceCount) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.even), maps.Clone(w.odd)
}

// TestTracesOfTaggedPackets sends probes through two switches, of which the second one drops those with an odd number, as a switch that
// does not know tags drops what is tagged. The trace of tagged packets finds it with as few packets as it may send, traces of plain ones
// never have odd numbers, and without budget nothing is sent.
func TestTracesOfTaggedPackets(t *testing.T) {
	l := newLine(t)
	// The first four octets behind IP's and UDP's headers are the number of the packet: iptables-extensions(8), u32.
	drop := []string{"ip", "netns", "exec", l.name("r2"), "iptables", "-w", "-t", "raw", "-A", "PREROUTING", "-i", "up1",
		"-p", "udp", "-m", "u32", "--u32", "0>>22&0x3C@8&0x1=1", "-j", "DROP"}
	if out, err := exec.Command(drop[0], drop[1:]...).CombinedOutput(); err != nil {
		testneeds.Missing(t, "match u32 of iptables: "+string(out))
	}
	w := watchTraces(t, l)
	l.start("h2", "10.83.2.2", "10.83.1.2")
	a := startTagging(t, l)
	until(t, 30*time.Second, "the switch that drops tagged packets is found", func() bool {
		f := a.SignalStats().Flows[0]
		return f.Supported == observe.Unsupported && f.DroppedAt == netip.MustParseAddr("10.83.9.2")
	})
	wantOdd := traceCount{1: tagDropAttempts, 2: 2 * tagDropAttempts} // what was silent is sent to once more
	until(t, 20*time.Second, "the packets of the search are counted", func() bool {
		_, odd := w.counts()
		return odd[2] >= wantOdd[2]
	})
	for range 3 {
		if _, err := a.TraceFlows(t.Context(), []fabric.Flow{traced}); err != nil {
			t.Fatal(err)
		}
	}

	flow, plain := tracedFlow(t, a)
	drainBudgets(a.tracer.budgets)
	answered, err := a.tracer.probeTagged(t.Context(), flow, plain)
	if err != nil || !slices.Equal(answered, []bool{true, true}) {
		t.Errorf("without budget: %v, %v; hops that were not probed count as those that answered", answered, err)
	}
	before, _ := w.counts()
	a.tracer.forgetAll()
	if _, err := a.TraceFlows(t.Context(), []fabric.Flow{traced}); err != nil {
		t.Fatal(err)
	}
	until(t, 20*time.Second, "the packets of the last trace are counted", func() bool {
		even, _ := w.counts()
		return even[1] > before[1] && even[2] > before[2]
	})
	if even, odd := w.counts(); !maps.Equal(odd, wantOdd) {
		t.Errorf("%v packets with odd numbers by hop limit, want %v; %v with even ones", odd, wantOdd, even)
	}
}

// startTagging starts the engine of h1, whose flow to h2 has in-band signals.
func startTagging(t *testing.T, l *line) *Engine {
	t.Helper()
	c := defaultConfig()
	c.Node = "h1"
	c.NICs = []NICConfig{{NIC: "h1/eth1", Address: netip.MustParseAddr("10.83.1.2")}}
	c.Stamp.Classes = []ClassConfig{{Name: fabric.ClassCSIG}}
	peer := PeerConfig{NIC: "h2/eth1", Address: netip.MustParseAddr("10.83.2.2")}
	c.connectPeers([]filePeer{{PeerConfig: peer, flows: 1, tier: 2, probe: true}})
	d := HostDeps()
	d.Signals = &Signals{Profile: signalProfile(t), Format: csig.Compact, Kinds: []csig.Signal{csig.Share}, Flows: 10,
		OpenPort: func(netip.Addr, SignalPortOptions) (SignalPort, error) {
			return &fakeSignals{tagOf: func(_, _ netip.AddrPort, _ uint32) (s csig.ArrivedSignal, ok bool) { return s, false }}, nil
		}}
	var e *Engine
	if err := unix.InNetns(l.name("h1"), func() (err error) {
		e, err = startFor(&c, d)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// tracedFlow returns the flow of h1 for a trace of tagged packets, with its path.
func tracedFlow(t *testing.T, e *Engine) (traceFlow, *TracedPath) {
	t.Helper()
	flows := e.allNICs()[0].traceableFlows()
	i := slices.IndexFunc(flows, func(f traceFlow) bool { return f.edge == traced })
	if i < 0 {
		t.Fatalf("%v is not among %d flows", traced, len(flows))
	}
	flows[i].tagged = true
	e.tracer.mu.Lock()
	defer e.tracer.mu.Unlock()
	plain := e.tracer.paths[traced]
	if plain == nil || hops(*plain) != "10.83.1.1 10.83.9.2" || plain.State != fabric.PathValid {
		t.Fatalf("path %+v", plain)
	}
	return flows[i], plain
}

// drainBudgets makes the budgets of all switches so small that no packet may be sent to them.
func drainBudgets(b *budgets) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.known {
		s.tokens, s.burst = 0.5, 0.5
	}
}
