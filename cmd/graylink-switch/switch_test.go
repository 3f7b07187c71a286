package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/sighting"
	"github.com/graylink/graylink/internal/testneeds"
	"github.com/graylink/graylink/internal/unix"
)

const namespace = "graylink-switch-test"

var switchProgram string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "graylink-switch")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		switchProgram = filepath.Join(dir, "graylink-switch")
		if out, err := exec.Command("go", "build", "-o", switchProgram, ".").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "building graylink-switch: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// bench is a network namespace with a cable from a to b, and a graylink-switch in it that watches b.
type bench struct {
	t       testing.TB
	cmd     *exec.Cmd
	client  *http.Client
	log     *os.File
	a, b    int
	packets *unix.Packet
}

// need skips a test that lacks what it needs, or fails it where GRAYLINK_REQUIRE_ALL=1 forbids that.
func need(t testing.TB, has bool, what string) {
	t.Helper()
	if !has {
		testneeds.Missing(t, what)
	}
}

func start(t testing.TB, args ...string) *bench {
	t.Helper()
	need(t, os.Getuid() == 0, "root, for network namespaces")
	_ = unix.RemoveNetns(namespace)
	if err := unix.CreateNetns(namespace); err != nil {
		t.Fatal(err)
	}
	x := &bench{t: t}
	t.Cleanup(func() {
		if x.cmd != nil {
			_ = x.cmd.Process.Signal(os.Interrupt)
			if err := x.cmd.Wait(); err != nil {
				t.Errorf("graylink-switch: %v", err)
			}
		}
		if err := unix.RemoveNetns(namespace); err != nil {
			t.Error(err)
		}
	})
	err := unix.InNetns(namespace, func() error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"}); err != nil {
			return err
		}
		for name, index := range map[string]*int{"lo": new(int), "a": &x.a, "b": &x.b} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			*index = l.Attrs().Index
			if err := netlink.LinkSetUp(l); err != nil {
				return err
			}
		}
		var err error
		x.packets, err = unix.OpenPacket(0xffff, x.a, 64)
		if err != nil {
			return err
		}
		x.cmd = exec.Command(switchProgram, append([]string{"--switch", "leaf1", "--ports", "b", "--web.listen-address", "127.0.0.1:9871"}, args...)...)
		x.log, err = os.Create(filepath.Join(t.TempDir(), "log"))
		if err != nil {
			return err
		}
		x.cmd.Stderr = x.log
		return x.cmd.Start()
	})
	if err != nil {
		x.cmd = nil
		t.Fatal(err)
	}
	x.client = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		err = unix.InNetns(namespace, func() error {
			c, err = (&net.Dialer{}).DialContext(ctx, network, addr)
			return err
		})
		return c, err
	}}}
	x.until("it is ready", func() bool {
		r, err := x.client.Get("http://127.0.0.1:9871/-/ready")
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
	return x
}

func (x *bench) until(what string, ok func() bool) {
	x.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(x.log.Name())
			x.t.Fatalf("waited in vain until %s\n%s", what, log)
		}
	}
}

func (x *bench) get(path string) []byte {
	x.t.Helper()
	r, err := x.client.Get("http://127.0.0.1:9871" + path)
	if err != nil {
		x.t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		x.t.Fatalf("%s: %s %v %s", path, r.Status, err, b)
	}
	return b
}

func (x *bench) report(instance string, since uint64) (r sighting.Report) {
	x.t.Helper()
	if err := json.Unmarshal(x.get(fmt.Sprintf("/api/v1/sightings?instance=%s&since=%d", instance, since)), &r); err != nil {
		x.t.Fatal(err)
	}
	return r
}

// probe returns a frame of flow i.
func probe(i int) []byte {
	b := append(make([]byte, 12), 8, 0, 0x45, 0, 0, 72, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, byte(i>>8), byte(i), 10, 200, 0, 1)
	b = binary.BigEndian.AppendUint16(b, uint16(49152+i>>16))
	b = binary.BigEndian.AppendUint16(b, 862)
	return append(b, make([]byte, 48)...)
}

func (x *bench) send(i int) {
	x.t.Helper()
	if err := x.packets.Send(x.a, probe(i)); err != nil {
		x.t.Fatal(err)
	}
}

// TestSwitch checks that a flow that is seen is reported once, stays without further reports, and is gone at the end. A
// version of another instance is answered with the whole table.
func TestSwitch(t *testing.T) {
	x := start(t, "--fresh", "2s", "--lldp.send", "1s")
	var r sighting.Report
	x.until("a probe is reported", func() bool {
		x.send(1)
		r = x.report("", 0)
		return len(r.Flows) == 1 && r.Version > 0 // the table may be newer than the version of the report
	})
	want := sighting.Flow{Src: netip.MustParseAddrPort("10.0.0.1:49152"), Dst: netip.MustParseAddrPort("10.200.0.1:862")}
	if r.Switch != "leaf1" || r.Kind != sighting.KindEBPF || r.Since != 0 || r.Version == 0 || r.Flows[0].Flow != want || len(r.Flows[0].Ports) != 1 || r.Flows[0].Ports[0].Name != "b" {
		t.Fatalf("%+v", r)
	}
	for range 3 {
		x.send(1)
		if d := x.report(r.Instance, r.Version); d.Since != r.Version || d.Version != r.Version || len(d.Flows)+len(d.Gone) != 0 {
			t.Fatalf("nothing changed, got %+v", d)
		}
	}
	if d := x.report("another", r.Version); d.Since != 0 || len(d.Flows) != 1 {
		t.Fatalf("of another instance: %+v", d)
	}
	x.until("the flow is gone", func() bool {
		g := x.report(r.Instance, r.Version)
		return len(g.Gone) == 1 && g.Gone[0] == want
	})

	text := string(x.get("/metrics"))
	for _, line := range []string{`fabric_switch_port_oper_up{port="b",switch="leaf1"} 1`, `graylink_switch_source_info{kind="software-ebpf",switch="leaf1"} 1`,
		`graylink_switch_collector_up{collector="links",switch="leaf1"} 1`, `graylink_switch_collector_up{collector="queues",switch="leaf1"} 1`,
		`fabric_switch_port_carrier_changes_total{port="b",switch="leaf1"}`, `fabric_switch_port_receive_errors_total{port="b",reason="crc",switch="leaf1"} 0`,
		`fabric_switch_port_speed_bytes_per_second{port="b",switch="leaf1"} 1.25e+09`, `graylink_switch_build_info{`} {
		if !strings.Contains(text, line) {
			t.Errorf("series %s is absent", line)
		}
	}
	if strings.Contains(text, `port="a"`) {
		t.Error("a is no port, but has series")
	}
	var ports struct {
		Ports []struct{ Port, MAC string }
	}
	if err := json.Unmarshal(x.get("/api/v1/ports"), &ports); err != nil || len(ports.Ports) != 1 || ports.Ports[0].Port != "b" {
		t.Errorf("ports: %+v, %v", ports, err)
	}
	resp, err := x.client.Get("http://127.0.0.1:9871/api/v1/sightings?since=x")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("since x: %s", resp.Status)
	}
}

func TestBadArguments(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--fresh", "1s"}, "fresh 1s"},
		{[]string{"--stamp-port", "0"}, "STAMP ports"},
		{[]string{"--ports", "["}, "pattern"},
		{[]string{"--flows", "0"}, "flows 0"},
		{[]string{"--print-rules", "sonic", "--ports", "*"}, "expected"},
	} {
		out, err := exec.Command(switchProgram, c.args...).CombinedOutput()
		if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 1 || !strings.Contains(string(out), c.says) {
			t.Errorf("%v: %v\n%s", c.args, err, out)
		}
	}
}

// BenchmarkFootprint measures the cost of 50,000 flows on the switch, with a probe a second each and an analyzer that
// polls every second.
func BenchmarkFootprint(b *testing.B) {
	const flows = 50_000
	for _, kind := range []sighting.Kind{sighting.KindEBPF, sighting.KindPacket} {
		b.Run(string(kind), func(b *testing.B) {
			x := start(b, "--source", string(kind), "--packet.rate", "100000")
			if stats, err := ebpf.EnableStats(0); err == nil {
				defer stats.Close()
			}
			ctx, stop := context.WithCancel(b.Context())
			sent := make(chan int)
			go func() { sent <- x.probes(ctx, flows) }()
			x.until("all flows are in the table", func() bool { return metric(x, "graylink_switch_flows") >= flows })
			pid := x.cmd.Process.Pid
			time.Sleep(3 * time.Second)
			before, began := cpu(b, pid), time.Now()
			runs, spent := programs(b)
			b.ResetTimer()
			var r sighting.Report
			for range 15 * b.N {
				r = x.report(r.Instance, r.Version)
				time.Sleep(time.Second)
			}
			b.StopTimer()
			took, used := time.Since(began), cpu(b, pid)-before
			endRuns, endSpent := programs(b)
			stop()
			b.ReportMetric(float64(<-sent)/time.Since(began).Seconds(), "probes/s")
			b.ReportMetric(100*used/took.Seconds(), "%core")
			b.ReportMetric(rss(b, pid), "MB")
			b.ReportMetric(1000*metric(x, "graylink_switch_round_seconds"), "ms/round")
			b.ReportMetric(metric(x, "graylink_switch_dropped_total"), "dropped")
			if endRuns > runs {
				b.ReportMetric((endSpent-spent)/(endRuns-runs), "ns/packet")
			}
		})
	}
}

// probes sends a probe of every flow each second until the end, and counts them.
func (x *bench) probes(ctx context.Context, flows int) (n int) {
	frames := make([][]byte, flows)
	for i := range frames {
		frames[i] = probe(i)
	}
	for began := time.Now(); ctx.Err() == nil; time.Sleep(time.Millisecond) {
		for due := int(time.Since(began).Seconds() * float64(flows)); n < due; n++ {
			if x.packets.Send(x.a, frames[n%flows]) != nil {
				break
			}
		}
	}
	return n
}

func metric(x *bench, name string) float64 {
	for line := range strings.Lines(string(x.get("/metrics"))) {
		if strings.HasPrefix(line, name+"{") || strings.HasPrefix(line, name+" ") {
			f := strings.Fields(line)
			v, _ := strconv.ParseFloat(f[len(f)-1], 64)
			return v
		}
	}
	return 0
}

// cpu returns the processor time of a process in seconds.
func cpu(t testing.TB, pid int) float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	u, _ := strconv.ParseFloat(f[11], 64)
	s, _ := strconv.ParseFloat(f[12], 64)
	return (u + s) / 100
}

func rss(t testing.TB, pid int) float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); f[0] == "VmRSS:" {
			v, _ := strconv.ParseFloat(f[1], 64)
			return v / 1024
		}
	}
	return 0
}

// programs sums runs and nanoseconds of the agent's programs.
func programs(t testing.TB) (runs, spent float64) {
	for id := ebpf.ProgramID(0); ; {
		next, err := ebpf.ProgramGetNextID(id)
		if err != nil {
			return runs, spent
		}
		id = next
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue
		}
		if info, err := p.Info(); err == nil && info.Name == "graylink_seen" {
			if s, err := p.Stats(); err == nil {
				runs += float64(s.RunCount)
				spent += float64(s.Runtime)
			}
		}
		p.Close()
	}
}
