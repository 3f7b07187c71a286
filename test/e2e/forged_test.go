package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/evidence/promserver"
	judging "github.com/graylink/graylink/internal/judge"
	"github.com/graylink/graylink/internal/stamp"
	"github.com/graylink/graylink/internal/unix"
)

const (
	// flooded is the finding that a flood must make, whatever its rate.
	flooded = "NIC h2/eth1 is flooded by packets with forged HMAC from " + peerAddr
)

// floodWitness judges a flow between h1 and h2 as the analyzer does, from the series
// of both nodes, and counts by their own counters.
type floodWitness struct {
	*arena
	db   *promserver.Server
	web1 *http.Client // reaches h1
}

// clientIn reaches a program that listens in a namespace.
func clientIn(ns string) (*http.Client, func(ctx context.Context, network, addr string) (net.Conn, error)) {
	dial := func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		err = unix.InNetns(ns, func() (err error) { c, err = (&net.Dialer{}).DialContext(ctx, network, addr); return err })
		return c, err
	}
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}, dial
}

func newFloodWitness(a *arena) *floodWitness {
	a.t.Helper()
	web1, near := clientIn(a.near)
	_, far := clientIn(a.far)
	db, err := promserver.New(promserver.Options{
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			// The addresses differ for Prometheus only: both nodes have 127.0.0.1.
			if strings.HasPrefix(addr, "127.0.0.2:") {
				return far(ctx, network, "127.0.0.1:9868")
			}
			return near(ctx, network, "127.0.0.1:9868")
		},
		Config: promserver.StaticConfig(time.Second, []promserver.Target{{Job: "graylink-node-edges", Address: "127.0.0.1:9868", Path: "/metrics/edges"},
			{Job: "graylink-node-edges", Address: "127.0.0.2:9868", Path: "/metrics/edges"}})})
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() {
		if err := db.Close(); err != nil {
			a.t.Errorf("close the embedded Prometheus: %v", err)
		}
	})
	return &floodWitness{a, db, web1}
}

// counted are the counters of both directions of probing.
type counted struct{ sent1, acked1, lost1, sent2, acked2 float64 }

func (w *floodWitness) counters() counted {
	w.t.Helper()
	far := w.client
	defer func() { w.client = far }()
	two := counted{sent2: w.metric("/metrics/edges", `fabric_probe_sent_total{class="",direction="forward"`), acked2: w.metric("/metrics/edges", "fabric_probe_acked_total{")}
	w.client = w.web1
	two.sent1, two.acked1 = w.metric("/metrics/edges", `fabric_probe_sent_total{class="",direction="forward"`), w.metric("/metrics/edges", "fabric_probe_acked_total{")
	two.lost1 = w.metric("/metrics/edges", `fabric_probe_lost_total{class="",direction="forward"`)
	return two
}

func (c counted) minus(o counted) counted {
	return counted{c.sent1 - o.sent1, c.acked1 - o.acked1, c.lost1 - o.lost1, c.sent2 - o.sent2, c.acked2 - o.acked2}
}

// seenWindows counts the windows of a span by their result.
type seenWindows struct {
	all, unread int // of the flows, both directions
	degraded    []judging.Finding
	sent, lost  uint64 // forward from h1, in windows that are evidence
	findings    map[string]bool
}

// watch judges a window a second until done is closed, and those that are still
// about the time before.
func (w *floodWitness) watch(done <-chan struct{}) (s seenWindows) {
	w.t.Helper()
	s.findings = map[string]bool{}
	for left := 4; left > 0; {
		select {
		case <-done:
			left--
		default:
		}
		time.Sleep(time.Second)
		v, err := evidence.ReadWindow(w.t.Context(), w.db, evidence.DefaultSettings(), time.Now())
		if err != nil {
			w.t.Fatal(err)
		}
		for _, f := range v.Floods {
			text, _, _ := strings.Cut(f.String(), " (")
			s.findings[text] = true
		}
		for _, f := range judging.FindingsOf(v.Observations, judging.DefaultParameters()) {
			s.all++
			if f.Obs.Unread {
				s.unread++
			}
			if f.Condition == judging.Degraded {
				s.degraded = append(s.degraded, f)
			}
			if f.Flow.Src == "h1/eth1" && !f.Flow.Reply && !f.HostSuspect {
				s.sent, s.lost = s.sent+f.Obs.Sent, s.lost+f.Obs.Lost
			}
		}
	}
	return s
}

// ports of the two ends of h1's flow to h2, and of h2's to h1.
const (
	flowPort    = 49152
	reflectPort = 862
	victimSSID  = 78
)

// forge sends packets that seem to come from h1: by turns probes and replies,
// with the ports, SSIDs and sequence numbers of the true ones, and a wrong HMAC.
// It returns how many it sent.
func (w *floodWitness) forge(before counted, perSecond int, d time.Duration) (sent int, err error) {
	var raw *unix.RawIP
	src, dst := netip.MustParseAddr(peerAddr), netip.MustParseAddr(victimAddr)
	if err := unix.InNetns(w.near, func() (err error) { raw, err = unix.OpenRawIP("eth1", src); return err }); err != nil {
		return 0, err
	}
	defer raw.Close()
	wrong := stamp.NewAuthenticator([]byte("an attacker's guess"))
	const headers = 28
	packets := [2][]byte{make([]byte, headers+stamp.AuthBaseLen), make([]byte, headers+stamp.AuthBaseLen)}
	for i, ports := range [2][2]uint16{{flowPort, reflectPort}, {reflectPort, flowPort}} {
		b := packets[i]
		// RFC 791 section 3.1 and RFC 768: the kernel fills in length and checksum of
		// the first, and the second's is left out.
		b[0], b[8], b[9] = 0x45, 64, 17
		copy(b[12:], src.AsSlice())
		copy(b[16:], dst.AsSlice())
		binary.BigEndian.PutUint16(b[20:], ports[0])
		binary.BigEndian.PutUint16(b[22:], ports[1])
		binary.BigEndian.PutUint16(b[24:], uint16(len(b)-20))
	}
	began := time.Now()
	for {
		spent := time.Since(began)
		if spent >= d {
			return sent, nil
		}
		next := uint32(spent.Seconds()*100) + 1 + uint32(sent%50) // of the 100 probes a second
		now := stamp.TimestampPTP(time.Now().UnixNano())
		probe := stamp.SenderPacket{Seq: uint32(before.sent1) + next, Timestamp: now, ErrorEstimate: stamp.NewErrorEstimate(1000, false, true), SSID: peerSSID}
		probe.PutAuth(packets[0][headers:], wrong)
		reply := stamp.ReflectorPacket{Seq: uint32(before.sent2) + next, Timestamp: now, Receive: now, ErrorEstimate: probe.ErrorEstimate, SSID: victimSSID,
			SenderSeq: uint32(before.sent2) + next - 1, SenderErrorEstimate: probe.ErrorEstimate}
		reply.PutAuth(packets[1][headers:], wrong)
		for due := int(spent.Seconds() * float64(perSecond)); sent < due; sent++ {
			if err := raw.Send(packets[sent%2], dst); err != nil {
				return sent, err
			}
		}
		time.Sleep(200 * time.Microsecond)
	}
}

// flood forges for a while, does something in the middle of it, and returns what
// was seen and counted meanwhile.
func (w *floodWitness) flood(perSecond int, inTheMiddle func()) (seenWindows, counted) {
	w.t.Helper()
	before := w.counters()
	done := make(chan struct{})
	go func() {
		defer close(done)
		began := time.Now()
		sent, err := w.forge(before, perSecond, floodLasts)
		if err != nil {
			w.t.Errorf("forge packets: %v", err)
		}
		w.t.Logf("%.0f forged packets a second of %d", float64(sent)/time.Since(began).Seconds(), perSecond)
	}()
	middle := time.AfterFunc(floodLasts/2, inTheMiddle)
	s := w.watch(done)
	middle.Stop()
	c := w.counters().minus(before)
	w.t.Logf("h1: %.0f probes, %.0f answered, %.0f lost; h2: %.0f probes, %.0f answered; %d of %d windows are no evidence; h2 dropped %.0f with a wrong HMAC, %.0f unverified",
		c.sent1, c.acked1, c.lost1, c.sent2, c.acked2, s.unread, s.all, w.dropped("bad_hmac"), w.dropped("unverified"))
	if !s.findings[flooded] {
		w.t.Errorf("findings %v, want %q", s.findings, flooded)
	}
	if s.all == 0 {
		w.t.Error("no window was judged")
	}
	return s, c
}

// forgedFloods returns floods of packets of which only the HMAC is wrong.
func forgedFloods(t *testing.T, secret string) {
	a := newArena(t)
	a.victimSSID = victimSSID
	victim := a.nodes("authentication: {key_file: " + a.file("keys", "1 "+secret+"\n") + "}\n")
	w := newFloodWitness(a)
	t.Run("5000", func(t *testing.T) {
		a.t = t
		s, c := w.flood(5000, func() {})
		if c.acked1 < 0.99*c.sent1 || c.acked2 < 0.99*c.sent2 {
			t.Errorf("of h1's %.0f probes %.0f were answered, of h2's %.0f %.0f", c.sent1, c.acked1, c.sent2, c.acked2)
		}
		if len(s.degraded) != 0 {
			t.Errorf("loss is reported: %+v", s.degraded[0].Obs)
		}
	})
	runInAll(t, "50000", func(t *testing.T) {
		a.t = t
		if s, _ := w.flood(50_000, func() {}); len(s.degraded) != 0 {
			t.Errorf("loss is reported: %+v", s.degraded[0].Obs)
		}
	})
	t.Run("50000 and full sockets", func(t *testing.T) {
		a.t = t
		// While h2 stands still, for less than makes its host a suspect, its sockets
		// overflow, and true probes are lost in them.
		s, c := w.flood(50_000, func() {
			err := victim.Process.Signal(syscall.SIGSTOP)
			time.Sleep(400 * time.Millisecond)
			if err := errors.Join(err, victim.Process.Signal(syscall.SIGCONT)); err != nil {
				t.Errorf("stop h2: %v", err)
			}
		})
		if len(s.degraded) != 0 {
			t.Errorf("loss is reported: %+v", s.degraded[0].Obs)
		}
		full := w.metric("/metrics/edges", `fabric_nic_unread_packets_total{nic="h2/eth1",reason="socket_full"}`)
		t.Logf("%.0f packets found h2's sockets full; h1 lost %.0f probes", full, c.lost1)
		if full > 0 && s.unread == 0 {
			t.Errorf("%.0f packets found h2's sockets full, and every window is evidence", full)
		}
	})
	t.Run("50000 and a loss of 3 %", func(t *testing.T) {
		a.t = t
		lose := func(what string) {
			cmd := exec.Command("ip", "netns", "exec", a.far, "iptables", what, "INPUT", "-p", "udp", "-m", "statistic", "--mode", "random", "--probability", "0.03", "-j", "DROP")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("iptables: %v: %s", err, out)
			}
		}
		lose("-A")
		s, c := w.flood(50_000, func() {})
		lose("-D")
		for _, f := range s.degraded {
			// What h2 receives is lost: h1's probes to it, and h1's replies to its own.
			if f.Obs.Dst != "h2/eth1" {
				t.Errorf("the loss is reported on %s: %+v", f.Obs.Edge, f.Obs)
			}
		}
		t.Logf("%d of %d probes are lost in windows that are evidence", s.lost, s.sent)
		// The kernel dropped 3 % of h1's probes. What is evidence has to say so.
		if s.sent > 1000 && float64(s.lost) < 0.002*float64(s.sent) {
			t.Errorf("%d of %d probes are lost in windows that are evidence, and %.0f by h1's counters: the flood hides the loss", s.lost, s.sent, c.lost1)
		}
	})
}
