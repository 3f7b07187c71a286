package e2e

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/unix"
	"github.com/graylink/graylink/internal/unix/vethtest"
)

// captureAgent is an agent h2 with the NIC eth1 (10.0.0.2) that captures in-band signals, in the namespace of vethtest.Run.
type captureAgent struct {
	t      *testing.T
	config string
	cmd    *exec.Cmd
	output bytes.Buffer
}

const captureProfile = `ethertypes: {compact: 0x88b5, wide: 0x88b6}
interval: 1ms
fastest_gbps: 100
locators:
  compact: {"leaf1:up1": 1}
  wide: {"leaf1:up1": 1}
`

// writeConfig writes the configuration of the agent with a peer for each name, at 10.0.0.1, 10.0.0.9 and so on.
func (a *captureAgent) writeConfig(peers ...string) {
	text := "node: h2\nstamp: {port: 8862}\nnics: [{nic: h2/eth1, device: far, leaf: leaf1, leaf_port: dn1, plane: a, side: left}]\npeers:\n"
	for i, p := range peers {
		text += fmt.Sprintf("  - {nic: %s, address: 10.0.0.%d, leaf: leaf2, tier: 2, plane: a}\n", p, 1+8*i)
	}
	if err := os.WriteFile(a.config, []byte(text), 0o644); err != nil {
		a.t.Error(err)
	}
}

// scrape returns the series of in-band signals that the agent publishes, by name and labels. It dials on this thread, which is in the
// agent's namespace.
func (a *captureAgent) scrape() map[string]float64 {
	conn, err := net.DialTimeout("tcp", "127.0.0.1:9868", time.Second)
	if err != nil {
		return nil
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return nil
	}
	fmt.Fprint(conn, "GET /metrics/edges HTTP/1.1\r\nHost: 127.0.0.1:9868\r\nConnection: close\r\n\r\n")
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || r.StatusCode != http.StatusOK {
		return nil
	}
	defer r.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r.Body)
	if err != nil {
		a.t.Error(err)
	}
	out := map[string]float64{}
	for name, f := range families {
		if !strings.Contains(name, "_csig_") {
			continue
		}
		for _, m := range f.GetMetric() {
			key := name
			for _, l := range m.GetLabel() {
				key += " " + l.GetValue()
			}
			out[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return out
}

// until sends what send sends, and scrapes, until the scraped values have been as wanted, each at some time.
func (a *captureAgent) until(send func(), want map[string]float64) {
	a.t.Helper()
	seen := map[string]bool{}
	var last map[string]float64
	for end := time.Now().Add(time.Minute); len(seen) < len(want); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			a.t.Errorf("within a minute there were not all of %v: the last values are %v\n%s", want, last, a.output.String())
			return
		}
		send()
		last = a.scrape()
		for k, v := range want {
			if got, ok := last[k]; ok && (got == v || v < 0 && got >= -v) {
				seen[k] = true
			}
		}
	}
}

// tagged returns a frame from an address to 10.0.0.2: a probe of flow 3 with a compact tag (share, code 23), or data with a wide one.
func tagged(from string, data bool) []byte {
	tag, ports := "88b52b81", "c003229e" // 49155 to 8862
	if data {
		tag, ports = "88b6000110000a00", "c00312b7"
	}
	a := netip.MustParseAddr(from).As4()
	f, err := hex.DecodeString("020000000002020000000001" + tag + "0800" + "4500001c0000000040110000" + hex.EncodeToString(a[:]) + "0a000002" +
		ports + "00080000")
	if err != nil {
		panic(err)
	}
	return f
}

// giveAddress gives an interface an address. An address that is empty only sets it up.
func giveAddress(t *testing.T, name, address string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err == nil && address != "" {
		var a *netlink.Addr
		if a, err = netlink.ParseAddr(address); err == nil {
			err = netlink.AddrAdd(l, a)
		}
	}
	if err == nil {
		err = netlink.LinkSetUp(l)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestCapturedSignals runs an agent with --csig.profile and without --csig.source, whose only capability is CAP_NET_RAW. It publishes what
// the tags of frames say that arrive at its NIC, also after its configuration has changed and after its interface was made anew.
func TestCapturedSignals(t *testing.T) {
	need(t)
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	profile := filepath.Join(dir, "csig.yml")
	if err := os.WriteFile(profile, []byte(captureProfile), 0o644); err != nil {
		t.Fatal(err)
	}
	a := &captureAgent{t: t, config: filepath.Join(dir, "h2.yaml")}
	a.writeConfig("h1/eth1")
	vethtest.Run(t, func(near, _ int) {
		giveAddress(t, "lo", "")
		giveAddress(t, vethtest.Far, "10.0.0.2/24")
		a.cmd = exec.Command(filepath.Join(bin, "graylink-node"), "--config.file", a.config, "--csig.profile", profile)
		a.cmd.Dir, a.cmd.Stdout, a.cmd.Stderr = "/", &a.output, &a.output
		a.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534},
			AmbientCaps: []uintptr{uintptr(unix.CapNetRaw)}}
		if err := a.cmd.Start(); err != nil {
			t.Error(err)
			return
		}
		a.observeSignals(near)
		if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := a.cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, a.output.String())
		}
	})
}

// observeSignals sends frames from an interface, and compares what the agent publishes.
func (a *captureAgent) observeSignals(near int) {
	from, err := unix.OpenPacket(0, 0, 64)
	if err != nil {
		a.t.Error(err)
		return
	}
	defer from.Close()
	sent := 0.0
	send := func(frames ...[]byte) {
		for _, f := range frames {
			if err := from.Send(near, f); err != nil {
				a.t.Error(err)
			}
		}
	}
	const (
		captured  = "graylink_csig_captured_packets_total h2/eth1"
		strangers = "fabric_csig_dropped_total h2/eth1 stranger"
		probes    = "fabric_csig_packets_total forward h2/eth1 3 compact 1 share h1/eth1"
		data      = "fabric_csig_packets_total forward h2/eth1 data wide 1 share "
		lower     = "fabric_csig_available_ratio lower forward h2/eth1 3 h1/eth1"
		upper     = "fabric_csig_available_ratio upper forward h2/eth1 3 h1/eth1"
	)
	a.until(func() {}, map[string]float64{captured: 0}) // it has begun
	a.until(func() {
		if sent < 100 {
			sent++
			send(tagged("10.0.0.1", false), tagged("10.0.0.1", true), tagged("10.0.0.9", true))
		}
	}, map[string]float64{lower: 0.56, upper: 0.6, probes: 100, data + "h1/eth1": 100, strangers: 100, captured: 300})

	a.writeConfig("h1/eth1", "h9/eth1")
	if err := a.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		a.t.Error(err)
	}
	a.until(func() { send(tagged("10.0.0.9", true)) }, map[string]float64{data + "h9/eth1": -10, data + "h1/eth1": 100})

	near, _ = vethtest.Replace(a.t)
	giveAddress(a.t, vethtest.Far, "10.0.0.2/24")
	a.until(func() { send(tagged("10.0.0.1", false)) }, map[string]float64{probes: -110})
}
