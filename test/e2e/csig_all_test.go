//go:build all

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"
	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/analyzer/signals"
	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/cmd/graylink/labsignals"
	"github.com/graylink/graylink/deploy"
	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/locator"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

// labProfile writes a profile for a fleet's lab, and returns its file and what it says.
func (f *fleet) labProfile() (file string, p *csig.Profile) {
	f.t.Helper()
	a := locator.AssignLocators(f.g)
	text, err := yaml.Marshal(map[string]any{"ethertypes": map[string]int{"compact": 0x88b5, "wide": 0x88b6}, "interval": "100ms", "fastest_gbps": 100,
		"locators": map[string]any{"compact": a.LocatorsOf(csig.Compact), "wide": a.LocatorsOf(csig.Wide)}})
	if err != nil {
		f.t.Fatal(err)
	}
	file = f.write("csig.yml", string(text))
	if p, err = csig.LoadProfile(file); err != nil {
		f.t.Fatal(err)
	}
	return file, p
}

// treatTags makes the lab's switches treat tags until the test ends.
func (f *fleet) treatTags(o labsignals.Options) {
	f.t.Helper()
	s, err := labsignals.Attach(f.l, o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	f.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Error(err)
		}
		if err := s.Close(); err != nil {
			f.t.Error(err)
		}
	})
	if err != nil {
		done <- nil
		f.t.Fatal(err)
	}
	go func() { done <- s.Run(ctx) }()
}

// captured is a tcpdump in a namespace of the lab.
type captured struct {
	file string
	end  func()
}

// capturePort records what a switch sends to a NIC: with the tags with which packets arrive there.
func (f *fleet) capturePort(nic string) captured {
	f.t.Helper()
	end := f.g.PeerOf(nic)
	sw, _, _ := strings.Cut(end, ":")
	ports, err := f.l.PortInterfaces(sw)
	if err != nil {
		f.t.Fatal(err)
	}
	c := captured{file: filepath.Join(f.dir, strings.ReplaceAll(nic, "/", "-")+".pcap")}
	for _, p := range ports {
		if p.End != end {
			continue
		}
		cmd := f.l.Command(context.Background(), sw, "tcpdump", "-i", p.Name, "-n", "-U", "--immediate-mode", "-Z", "root", "-B", "65536", "-Q", "out", "-s", "400", "-w", c.file)
		r, w := io.Pipe()
		cmd.Stderr = w
		if err := cmd.Start(); err != nil {
			f.t.Fatal(err)
		}
		lines, said, read := bufio.NewScanner(r), strings.Builder{}, make(chan struct{})
		for lines.Scan() && !strings.Contains(lines.Text(), "listening on") {
			said.WriteString(lines.Text() + "\n")
		}
		go func() {
			defer close(read)
			for lines.Scan() {
				said.WriteString(lines.Text() + "\n")
			}
		}()
		c.end = func() {
			stop(f.t, cmd)
			w.Close()
			<-read
			if !strings.Contains(said.String(), "\n0 packets dropped by kernel") {
				f.t.Errorf("tcpdump missed packets: %s", said.String())
			}
		}
		return c
	}
	f.t.Fatalf("%s: switch %s has no port %s", nic, sw, end)
	return c
}

// probeID identifies a request, by its ends and its number.
type probeID struct {
	src, dst     [4]byte
	sport, dport uint16
	seq          uint32
}

// seenProbe is a STAMP packet as it arrived at a NIC.
type seenProbe struct {
	id    probeID // of the request
	reply bool
	tag   string // EtherType and value; "" without one
	tlv   []byte // value of the TLV of type 253; nil without one
}

// Layout of authenticated STAMP packets: RFC 8762 sections 4.2.2 and 4.3.2, RFC 8972 section 4.
const (
	authBase      = 112
	authSenderSeq = 48
	signalType    = 253
)

// readProbes returns the STAMP packets of a capture.
func readProbes(t *testing.T, file string) (out []seenProbe) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for {
		b, _, err := r.ReadPacketData()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := parseProbe(b); ok {
			out = append(out, p)
		}
	}
}

func parseProbe(b []byte) (p seenProbe, ok bool) {
	at := 12
	switch binary.BigEndian.Uint16(b[at:]) {
	case 0x88b5:
		p.tag, at = string(b[at:at+4]), at+4
	case 0x88b6:
		p.tag, at = string(b[at:at+8]), at+8
	}
	if binary.BigEndian.Uint16(b[at:]) != 0x0800 {
		return p, false
	}
	ip := b[at+2:]
	if ip[0] != 0x45 || ip[9] != 17 {
		return p, false
	}
	udp := ip[20:]
	sport, dport, data := binary.BigEndian.Uint16(udp), binary.BigEndian.Uint16(udp[2:]), udp[8:]
	if len(data) < authBase {
		return p, false
	}
	src, dst := [4]byte(ip[12:16]), [4]byte(ip[16:20])
	switch {
	case dport == 862:
		p.id = probeID{src, dst, sport, dport, binary.BigEndian.Uint32(data)}
	case sport == 862:
		p.reply, p.id = true, probeID{dst, src, dport, sport, binary.BigEndian.Uint32(data[authSenderSeq:])}
	default:
		return p, false
	}
	for tlv := data[authBase:]; len(tlv) >= 4; {
		n := int(binary.BigEndian.Uint16(tlv[2:]))
		if len(tlv) < 4+n {
			break
		}
		if tlv[1] == signalType && tlv[0]&0x80 == 0 { // U=0
			p.tlv = bytes.Clone(tlv[4 : 4+n])
		}
		tlv = tlv[4+n:]
	}
	return p, true
}

// TestSignalsOfAgents checks that the tag that a reply brings back is the one with which the request arrived at the far end, by captures of
// what switches sent to the NICs, while a link loses 1 % of the packets. A node without signals brings none back, and its probes go on.
func TestSignalsOfAgents(t *testing.T) {
	need(t)
	if _, err := exec.LookPath("tcpdump"); err != nil {
		t.Fatal(err) // make test-all installs it
	}
	for _, format := range csig.Formats {
		t.Run(format.String(), func(t *testing.T) {
			f := newFleet(t, "e2ecs", "../../deploy/lab/demo.yaml", "--schedule.cadence=20ms", "--schedule.class==0", "--schedule.class=csig=0")
			file, p := f.labProfile()
			f.treatTags(labsignals.Options{Profile: p})
			if _, err := f.l.AddFault(t.Context(), lab.Fault{Kind: lab.KindLoss, At: "leaf1:up1--spine1:dn1", Direction: "leaf1:up1->spine1:dn1", Loss: 0.01}); err != nil {
				t.Fatal(err)
			}
			f.startCoordinator()
			const without = "h8"
			var captures []captured
			for _, n := range f.nodes() {
				captures = append(captures, f.capturePort(n+"/eth1"))
				flags := []string{"--csig.profile=" + file, "--csig.source=" + format.String()}
				if n == without {
					flags = nil
				}
				f.startAgent(n, flags...)
			}
			f.wait(90*time.Second, "20,000 tagged packets are counted", func() bool {
				n := 0.0
				for _, node := range f.nodes() {
					n += f.agent(node, "/metrics/edges").sum(`fabric_csig_packets_total{.*direction="forward"`)
				}
				return n > 20_000
			})
			own := f.agent("h1", "/metrics/edges")
			for _, c := range captures {
				c.end()
			}
			f.compareSignals(captures, own)
			if n := own.sum(`fabric_csig_packets_total{.*direction="forward".*dst="` + without); n != 0 {
				t.Errorf("%v tags of %s, which handles no signals", n, without)
			}
			if n := own.sum(`fabric_probe_received_total{.*class="csig".*`); !(n > 100) {
				t.Errorf("%v probes of class csig are received", n)
			}
			for name, v := range own {
				if strings.HasPrefix(name, "fabric_csig_dropped_total") && v != 0 {
					t.Errorf("%s %v", name, v)
				}
			}
		})
	}
}

// compareSignals compares what replies bring back with how their requests arrived.
func (f *fleet) compareSignals(captures []captured, own series) {
	t := f.t
	requests := map[probeID]string{}
	var replies []seenProbe
	for _, c := range captures {
		for _, p := range readProbes(t, c.file) {
			if p.reply {
				replies = append(replies, p)
			} else {
				requests[p.id] = p.tag
			}
		}
	}
	tagged, plain, wrong, unlike := 0, 0, 0, 0
	for _, r := range replies {
		tag, there := requests[r.id]
		if !there || r.tlv == nil {
			continue // of a flow without signals, or of a node without them
		}
		want := make([]byte, 10)
		if tag != "" {
			tagged++
			want[0] = byte(len(tag))
			copy(want[2:], tag)
		} else {
			plain++
		}
		if !bytes.Equal(r.tlv[:10], want) {
			if wrong++; wrong < 5 {
				t.Errorf("request %+v arrived with %x, and its reply says % x", r.id, tag, r.tlv)
			}
		}
		if (tag != "") != (r.tag != "") || (tag != "") != (r.id.seq&1 == 1) {
			unlike++
		}
	}
	t.Logf("%d tagged and %d plain requests came back; %d are wrong", tagged, plain, wrong)
	if tagged < 10_000 || plain < 10_000 || wrong > 0 || unlike > 0 {
		t.Errorf("%d tagged and %d plain requests came back, %d wrong, %d whose reply has a tag unlike the request's", tagged, plain, wrong, unlike)
	}
	if n := own.sum(`fabric_csig_packets_total{.*direction="reverse"`); !(n > 500) {
		t.Errorf("%v tags of replies", n)
	}
}

var csigSpan = flag.Duration("csig.span", 30*time.Second, "for how long TestSwitchWithoutTags waits for a verdict, which there must not be")

// startSignalDemo starts the lab of the demo with agents, an analyzer and in-band signals.
func startSignalDemo(t *testing.T, name string, o labsignals.Options) *demo.Demo {
	t.Helper()
	topo, found := fabric.ParseTopology("the demo's topology", deploy.DemoTopology)
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	d := startDemo(t, demo.Options{Name: name, Topology: topo, Cadence: 40 * time.Millisecond, Signals: true, SignalsOf: o, BendClocks: true})
	return d
}

// awaitFinding waits for a finding about in-band signals, of any element if that is "", and returns how long that took.
func awaitFinding(t *testing.T, d *demo.Demo, limit time.Duration, kind, element string) time.Duration {
	t.Helper()
	began := time.Now()
	for time.Since(began) < limit {
		for _, f := range d.Loop().Snapshot().Signals {
			if f.Kind == kind && (f.Element == element || element == "") {
				t.Logf("after %.1f s: %s", time.Since(began).Seconds(), f.Text)
				return time.Since(began)
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("no finding %s about %s within %v: %+v", kind, element, limit, d.Loop().Snapshot().Signals)
	return 0
}

// TestSwitchWithoutTags has a switch that drops tagged frames: it is named, the paths over it are not supported and the others are, and
// there is no verdict.
func TestSwitchWithoutTags(t *testing.T) {
	need(t)
	d := startSignalDemo(t, "e2ecd", labsignals.Options{Without: []string{"spine2"}})
	began := time.Now()
	awaitFinding(t, d, 60*time.Second, signals.TagsDropped, "spine2")
	for time.Since(began) < *csigSpan {
		if s := d.Loop().Snapshot(); len(s.Incidents) > 0 || s.Report.State != fabric.Innocent {
			t.Fatalf("after %v: %s, %+v", time.Since(began), s.Report.State, s.Incidents)
		}
		time.Sleep(100 * time.Millisecond)
	}
	var findings []string
	for _, f := range d.Loop().Snapshot().Signals {
		findings = append(findings, f.Kind+" "+f.Element)
	}
	if !slices.Equal(findings, []string{signals.TagsDropped + " spine2"}) {
		t.Errorf("findings %v", findings)
	}
	value := valuesOf(t, d)
	unsupported, supported := value(`count(fabric_csig_path_supported == 0)`), value(`count(fabric_csig_path_supported == 1)`)
	t.Logf("in %v: %v paths without support, %v with it", time.Since(began).Round(time.Second), unsupported, supported)
	if unsupported < 10 || supported < 10 {
		t.Errorf("%v paths do not support tags, %v do", unsupported, supported)
	}
}

// TestSwitchWithAnotherProfile has a switch whose locators no other device knows, which is a finding within 30 s. Ports that no tag names
// are idle, or of a switch with another profile, so that the finding names all switches of which nothing else is known.
func TestSwitchWithAnotherProfile(t *testing.T) {
	need(t)
	other, err := csig.ParseProfile("other.yml", []byte(`{ethertypes: {compact: 0x88b5, wide: 0x88b6}, interval: 100ms, fastest_gbps: 100,
locators: {compact: {"spine2:dn1": 121, "spine2:dn2": 122, "spine2:dn3": 123, "spine2:dn4": 124}}}`))
	if err != nil {
		t.Fatal(err)
	}
	d := startSignalDemo(t, "e2ecp", labsignals.Options{Others: map[string]*csig.Profile{"spine2": other}})
	// A port's locator comes with the worst hop alone, so that there must be some load.
	for _, port := range []string{"spine2:dn1", "spine2:dn2", "spine2:dn3", "spine2:dn4"} {
		if _, err := d.Lab().AddFault(t.Context(), lab.Fault{Kind: lab.KindCongest, At: port, Delay: time.Millisecond}); err != nil {
			t.Fatal(err)
		}
	}
	if took := awaitFinding(t, d, 60*time.Second, signals.UnknownLocators, ""); took > 30*time.Second {
		t.Errorf("the finding took %v, 30 s are asked", took)
	}
}
