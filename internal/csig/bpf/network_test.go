package bpf

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "graylink-csig")
	if err != nil {
		panic(err)
	}
	os.Setenv(lab.StateDirEnv, dir)
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// chain is a lab of two hosts with a switch between them.
const chain = `
version: 1
switches:
  - {name: sw, role: leaf}
nodes:
  - {name: h1, nics: [{device: eth1, addresses: [10.0.1.2]}]}
  - {name: h2, nics: [{device: eth1, addresses: [10.0.2.2]}]}
links:
  - {a: "h1/eth1", b: "sw:1", speed_gbps: 1}
  - {a: "h2/eth1", b: "sw:2", speed_gbps: 1}
`

// stampPort is that of the tests' reflectors.
const stampPort = 862

// network is a lab whose switches treat tags.
type network struct {
	*lab.Lab
	t        testing.TB
	switches map[string]*Switch
}

// loadText returns a topology.
func loadText(t testing.TB, topology string) *fabric.Topology {
	t.Helper()
	file := filepath.Join(t.TempDir(), "topology.yaml")
	if err := os.WriteFile(file, []byte(topology), 0o600); err != nil {
		t.Fatal(err)
	}
	topo, findings := fabric.LoadTopology(file)
	if err := findings.Err(); err != nil {
		t.Fatal(err)
	}
	return topo
}

// buildNetwork builds a lab of a topology, and attaches programs to all ports of its switches. ofPort changes their options.
func buildNetwork(t testing.TB, topology string, p *csig.Profile, ofPort func(*SwitchPort)) *network {
	t.Helper()
	needRoot(t)
	l, err := lab.Up(t.Context(), loadText(t, topology), lab.Options{Name: fmt.Sprintf("csig%d", os.Getpid()), Owner: true})
	if err != nil {
		t.Fatal(err)
	}
	n := &network{l, t, map[string]*Switch{}}
	t.Cleanup(func() {
		for _, s := range n.switches {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := l.SetLinkMTU(lab.DefaultMTU + int(csig.Wide)); err != nil {
		t.Fatal(err)
	}
	err = l.InEachSwitch(func(name string, ports []lab.PortInterface) error {
		s, err := NewSwitch(p)
		if err != nil {
			return err
		}
		n.switches[name] = s
		for _, port := range ports {
			o := SwitchPort{Name: port.End, Interface: port.Index, Speed: port.Speed}
			if ofPort != nil {
				ofPort(&o)
			}
			if err := s.AttachPort(o); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// in runs a function in the namespace of a node or switch.
func (n *network) in(element string, fn func() error) {
	n.t.Helper()
	if err := n.InNamespace(element, fn); err != nil {
		n.t.Fatal(err)
	}
}

// indexOf returns the number of the interface of a port or NIC.
func (n *network) indexOf(end string) int {
	n.t.Helper()
	ports, err := n.PortInterfaces(fabric.OwnerOf(end))
	if err != nil {
		n.t.Fatal(err)
	}
	for _, p := range ports {
		if p.End == end {
			return p.Index
		}
	}
	n.t.Fatalf("no interface of %s", end)
	return 0
}

// shape gives a port a rate in bit/s, a burst and a limit in octets.
func (n *network) shape(end string, rate uint64, burst, limit uint32) {
	n.t.Helper()
	n.bucket(end, rate, burst, limit)
	if err := n.switches[fabric.OwnerOf(end)].RefreshSpeeds(); err != nil {
		n.t.Fatal(err)
	}
}

// socket opens a UDP socket at a node.
func (n *network) socket(node string, at netip.AddrPort) *net.UDPConn {
	n.t.Helper()
	c, err := n.ListenPacket(n.t.Context(), node, "udp4", at.String())
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { c.Close() })
	return c.(*net.UDPConn)
}

// endpoint attaches an endpoint to a node's NIC.
func (n *network) endpoint(nic string, o EndpointOptions) *Endpoint {
	n.t.Helper()
	o.Interface, o.StampPorts = n.indexOf(nic), []uint16{stampPort}
	if o.Flows == 0 {
		o.Flows, o.Arrived = 16, 1024
	}
	var e *Endpoint
	n.in(fabric.OwnerOf(nic), func() (err error) {
		e, err = OpenEndpoint(o)
		return err
	})
	n.t.Cleanup(func() {
		if err := e.Close(); err != nil {
			n.t.Error(err)
		}
	})
	return e
}

// capture runs tcpdump at an interface, which sees frames as they are sent, and returns a function that waits for so many
// frames and returns them.
func (n *network) capture(end string, frames int) func() [][]byte {
	n.t.Helper()
	if _, err := exec.LookPath("tcpdump"); err != nil {
		if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
			n.t.Fatal("needs the program tcpdump")
		}
		n.t.Skip("needs the program tcpdump")
	}
	ports, err := n.PortInterfaces(fabric.OwnerOf(end))
	if err != nil {
		n.t.Fatal(err)
	}
	name := ports[slices.IndexFunc(ports, func(p lab.PortInterface) bool { return p.End == end })].Name
	cmd := n.Command(n.t.Context(), fabric.OwnerOf(end), "tcpdump", "-i", name, "-Q", "out", "-B", "8192", "-U", "--immediate-mode", "-c", strconv.Itoa(frames), "-w", "-")
	var pcap bytes.Buffer
	cmd.Stdout = &pcap
	said, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		n.t.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	for lines.Scan() && !strings.Contains(lines.Text(), "listening on") {
	}
	return func() [][]byte {
		n.t.Helper()
		interrupt := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Signal(syscall.SIGINT) }) // fewer were sent
		defer interrupt.Stop()
		for lines.Scan() {
		}
		if err := cmd.Wait(); err != nil {
			n.t.Fatal(err)
		}
		return parsePcap(n.t, pcap.Bytes())
	}
}

// parsePcap returns the frames of a file of tcpdump on this machine: pcap-savefile(5).
func parsePcap(t testing.TB, b []byte) (frames [][]byte) {
	t.Helper()
	const headerLen, recordLen = 24, 16
	if len(b) < headerLen || binary.NativeEndian.Uint32(b) != 0xa1b2c3d4 {
		t.Fatalf("tcpdump wrote %d octets, which are no capture", len(b))
	}
	for b = b[headerLen:]; len(b) >= recordLen; {
		n := int(binary.NativeEndian.Uint32(b[8:]))
		frames = append(frames, b[recordLen:recordLen+n])
		b = b[recordLen+n:]
	}
	return frames
}

// probe writes a packet of a length with a sequence number. A reply has that of the request too.
func probe(seq uint32, octets int, sender uint32) []byte {
	b := make([]byte, octets)
	binary.BigEndian.PutUint32(b, seq)
	binary.BigEndian.PutUint32(b[senderNumberAt:], sender)
	return b
}

// receive reads a packet, and returns its sequence number.
func receive(t testing.TB, c *net.UDPConn) (seq uint32, from netip.AddrPort, octets int) {
	t.Helper()
	b := make([]byte, 2048)
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	n, from, err := c.ReadFromUDPAddrPort(b)
	if err != nil {
		t.Fatal(err)
	}
	return binary.BigEndian.Uint32(b), netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), n
}

var (
	sender    = netip.MustParseAddrPort("10.0.1.2:50000")
	reflector = netip.MustParseAddrPort("10.0.2.2:862")
)

// tagsBySeq returns the tags of the frames whose UDP payload begins with a sequence number. Frames without a tag are in it
// without a format.
func tagsBySeq(t testing.TB, frames [][]byte) map[uint32]csig.Tag {
	t.Helper()
	out := map[uint32]csig.Tag{}
	for _, frame := range frames {
		rest, found, s := etherTypes.Strip(bytes.Clone(frame))
		if s == csig.Malformed || len(rest) < 14+20+8+4 || rest[12] != 8 || rest[13] != 0 || rest[14+9] != protocolUDP {
			t.Errorf("a frame that the test did not send: %x", frame)
			continue
		}
		out[binary.BigEndian.Uint32(rest[14+20+8:])] = found.Tag
	}
	return out
}

// exchange sends a probe from h1 to h2 and its reply back, and returns the tags with which they arrived.
type exchange struct {
	n         *network
	near, far *Endpoint
	a, b      *net.UDPConn
}

func (x *exchange) send(seq uint32, octets int) (forward, reverse csig.ArrivedSignal) {
	t := x.n.t
	t.Helper()
	if _, err := x.a.WriteToUDPAddrPort(probe(seq, octets, 0), reflector); err != nil {
		t.Fatal(err)
	}
	got, from, size := receive(t, x.b)
	if got != seq || from != sender || size != octets {
		t.Fatalf("probe %d of %d octets from %v, want %d of %d from %v", got, size, from, seq, octets, sender)
	}
	forward = arrived(t, x.far, sender, reflector, seq)
	if _, err := x.b.WriteToUDPAddrPort(probe(seq+1<<20, octets, seq), sender); err != nil {
		t.Fatal(err)
	}
	if got, _, size := receive(t, x.a); got != seq+1<<20 || size != octets {
		t.Fatalf("reply %d of %d octets", got, size)
	}
	return forward, arrived(t, x.near, reflector, sender, seq+1<<20)
}

// arrived returns the tag of a packet that was read from a socket, or none. It checks that it is returned once.
func arrived(t testing.TB, e *Endpoint, from, to netip.AddrPort, seq uint32) csig.ArrivedSignal {
	t.Helper()
	if err := e.ReadTags(); err != nil {
		t.Fatal(err)
	}
	a, ok := e.ArrivedTag(from, to, seq)
	if ok != (a.Tag.Format != csig.None) {
		t.Fatalf("packet %d: %+v, %v", seq, a, ok)
	}
	if again, ok := e.ArrivedTag(from, to, seq); ok {
		t.Fatalf("packet %d has its tag twice: %+v", seq, again)
	}
	return a
}

// TestProbesCarryTags sends probes and their replies through a switch with one shaped port, in both formats, up to the largest
// payload of the MTU. tcpdump sees the tags on the wire.
func TestProbesCarryTags(t *testing.T) {
	for _, f := range csig.Formats {
		t.Run(f.String(), func(t *testing.T) {
			n := buildNetwork(t, chain, parseProfile(t, "interval: 10ms"), nil)
			n.shape("sw:2", 8_000_000, 1600, 100_000)
			o := EndpointOptions{EtherTypes: etherTypes, Format: f, Signals: []csig.Signal{csig.Delay, csig.Share}}
			x := &exchange{n, n.endpoint("h1/eth1", o), n.endpoint("h2/eth1", o), n.socket("h1", sender), n.socket("h2", reflector)}
			if err := x.near.TagFlows([]csig.TaggedFlow{{From: sender, To: reflector}}); err != nil {
				t.Fatal(err)
			}
			locator := map[csig.Format]uint16{csig.Compact: 6, csig.Wide: 600}[f] // of sw:2
			const probes = 200
			fromHost, fromSwitch := n.capture("h1/eth1", probes), n.capture("sw:2", probes)
			fromFar, toHost := n.capture("h2/eth1", probes), n.capture("sw:1", probes)
			forward, reverse := map[uint32]csig.Tag{}, map[uint32]csig.Tag{}
			named := 0
			for seq := range uint32(probes) {
				to, back := x.send(seq, []int{44, 1472}[seq>>1&1])
				forward[seq], reverse[seq+1<<20] = to.Tag, back.Tag
				if to.Malformed || to.Tag.Format != csig.None && to.EtherType != etherTypes.Of(f) {
					t.Errorf("probe %d arrived with %+v", seq, to)
				}
				if to.Tag.Locator == locator {
					named++
				} else if to.Tag.Locator != 0 {
					t.Errorf("probe %d has locator %d, want %d", seq, to.Tag.Locator, locator)
				}
			}
			sent := map[uint32]csig.Tag{}
			for seq := range uint32(probes) {
				sent[seq] = csig.Tag{}
				if seq&1 == 1 {
					sent[seq] = csig.NewTag(f, o.Signals[seq>>1&1])
				}
			}
			replies := map[uint32]csig.Tag{}
			for seq, tag := range sent {
				replies[seq+1<<20] = tag
			}
			for name, c := range map[string]struct{ got, want map[uint32]csig.Tag }{
				"probes from h1":     {tagsBySeq(t, fromHost()), sent},
				"probes from sw":     {tagsBySeq(t, fromSwitch()), forward},
				"replies from h2":    {tagsBySeq(t, fromFar()), replies},
				"replies from sw":    {tagsBySeq(t, toHost()), reverse},
				"formats of probes":  {formats(forward), formats(sent)},
				"formats of replies": {formats(reverse), formats(replies)},
			} {
				if !maps.Equal(c.got, c.want) {
					t.Errorf("%s: %v, want %v", name, c.got, c.want)
				}
			}
			// Probes of 1,472 octets empty the bucket of the port, so that those with the share wait or use the port.
			if named < probes/8 {
				t.Errorf("the shaped port is named by %d of %d tags", named, probes/2)
			}
			t.Logf("%d of %d tags name the shaped port", named, probes/2)
			for name, e := range map[string]*Endpoint{"h1": x.near, "h2": x.far} {
				if c, err := e.Counts(); err != nil || c != (EndpointCounts{Tagged: probes / 2, Stripped: probes / 2}) {
					t.Errorf("%s: %+v, %v", name, c, err)
				}
			}
		})
	}
}

// formats leaves only the formats of tags.
func formats(tags map[uint32]csig.Tag) map[uint32]csig.Tag {
	out := map[uint32]csig.Tag{}
	for seq, tag := range tags {
		out[seq] = csig.Tag{Format: tag.Format}
	}
	return out
}
