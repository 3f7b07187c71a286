package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// prober is a graylink-node with RDMA in one of two machines, and how it is configured.
type prober struct {
	*agent
	n, other int // 1 and 2
	qkey     uint32
	peerQKey uint32 // what it takes the peer's for
	peerQPN  string // "": the peer is not known
}

const qkey = 0x11223344

// config has each NIC twice: by UDP, and by RDMA beside it.
func (p *prober) config() string {
	out := fmt.Sprintf(`node: h%[1]d
cadence: 20ms
stamp: {port: 8862, class: roce, dscp: 26}
clock: {error_bound: 1ms}
nics:
  - {nic: h%[1]d/eth0, device: eth0, address: 10.0.0.%[1]d}
  - {nic: h%[1]d/rxe0, rdma: {device: rxe0, port: 1, qkey: %#[2]x}}
peers:
  - {nic: h%[3]d/eth0, address: 10.0.0.%[3]d, tier: 1}
`, p.n, p.qkey, p.other)
	if p.peerQPN != "" {
		out += fmt.Sprintf("  - {nic: h%d/rxe0, gid: \"::ffff:10.0.0.%d\", qpn: %s, qkey: %#x, tier: 1}\n", p.other, p.other, p.peerQPN, p.peerQKey)
	}
	return out
}

func (p *prober) write() {
	p.t.Helper()
	if err := p.m.WriteFile(p.t.Context(), "/etc/graylink/node.yaml", []byte(p.config()), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// begin starts the agent.
func (p *prober) begin() {
	p.t.Helper()
	p.write()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	proc, err := p.m.Start(ctx, "graylink-node", "--config.file=/etc/graylink/node.yaml")
	if err != nil {
		p.t.Fatal(err)
	}
	p.agent = &agent{t: p.t, m: p.m, p: proc}
	p.line(func(l string) bool { return strings.Contains(l, "Listening on") })
}

// reload makes the agent read its configuration again.
func (p *prober) reload() {
	p.t.Helper()
	p.write()
	if err := p.p.Signal(p.t.Context(), syscall.SIGHUP); err != nil {
		p.t.Fatal(err)
	}
	p.line(func(l string) bool { return strings.Contains(l, "msg=reloaded") })
}

// qpn waits for the queue pair, and tells its number.
func (p *prober) qpn() (qpn string) {
	p.t.Helper()
	until(p.t, "the queue pair of "+p.m.Name, func() (string, bool) {
		v, found, text := series(p.scrape(), "fabric_nic_rdma_info")
		if len(v) != 1 {
			return text + strings.Join(p.p.Lines, "\n"), false
		}
		for _, l := range found[0].GetLabel() {
			if l.GetName() == "qpn" {
				qpn = l.GetValue()
			}
		}
		return text, qpn != ""
	})
	return qpn
}

// edges is what the agent publishes of its edges.
func (p *prober) edges() map[string]*dto.MetricFamily {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	b, err := p.m.Get(ctx, "http://127.0.0.1:9868/metrics/edges")
	if err != nil {
		p.t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	out, err := parser.TextToMetricFamilies(strings.NewReader(string(b)))
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

// account is an edge's: counts, and sums of delays in seconds. Directions are forward and
// reverse.
type account struct {
	acked     float64
	sent      [2]float64
	lost      [2]float64
	delays    [2]float64
	sum       [2]float64
	timestamp string
}

func (a account) since(b account) account {
	a.acked -= b.acked
	for d := range 2 {
		a.sent[d] -= b.sent[d]
		a.lost[d] -= b.lost[d]
		a.delays[d] -= b.delays[d]
		a.sum[d] -= b.sum[d]
	}
	return a
}

// mean of the delays of a direction, seconds.
func (a account) mean(d int) float64 { return a.sum[d] / a.delays[d] }

// edge reads the account of the edge by a device: eth0 is UDP, rxe0 RDMA.
func (p *prober) edge(device string) (a account) {
	p.t.Helper()
	f := p.edges()
	src := fmt.Sprintf("h%d/%s", p.n, device)
	one := func(name string, labels ...string) float64 {
		v, _, _ := series(f, name, append(labels, "src", src)...)
		if len(v) == 0 {
			return 0
		}
		return v[0]
	}
	a.acked = one("fabric_probe_acked_total")
	for d, name := range []string{"forward", "reverse"} {
		a.sent[d] = one("fabric_probe_sent_total", "direction", name)
		a.lost[d] = one("fabric_probe_lost_total", "direction", name)
		_, found, _ := series(f, "fabric_probe_owd_seconds", "src", src, "direction", name)
		for _, m := range found {
			a.delays[d] += float64(m.GetHistogram().GetSampleCount())
			a.sum[d] += m.GetHistogram().GetSampleSum()
			for _, l := range m.GetLabel() {
				if l.GetName() == "timestamp" && m.GetHistogram().GetSampleCount() > 0 {
					a.timestamp = l.GetValue()
				}
			}
		}
	}
	return a
}

// answered waits for n more answers on an edge, and tells what the edge did meanwhile.
func (p *prober) answered(device string, n float64) (a account) {
	p.t.Helper()
	before := p.edge(device)
	until(p.t, fmt.Sprintf("%g answers to %s of %s", n, device, p.m.Name), func() (string, bool) {
		a = p.edge(device).since(before)
		return fmt.Sprintf("%+v; log:\n%s", a, strings.Join(p.p.Lines, "\n")), a.acked >= n
	})
	return a
}

func (p *prober) value(family string, labels ...string) float64 {
	p.t.Helper()
	v, _, _ := series(p.scrape(), family, labels...)
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum
}

// Probes by unreliable datagrams between two machines, beside the same by UDP.
func TestProbesOverRDMA(t *testing.T) {
	parts := require(t)
	built, err := BuildRDMA(t.Context(), t.TempDir(), "github.com/graylink/graylink/cmd/graylink-node")
	if errors.Is(err, ErrMissing) && os.Getenv("GRAYLINK_REQUIRE_ALL") != "1" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	net := network(t)
	type result struct {
		m   *Machine
		err error
	}
	booted := [2]chan result{make(chan result, 1), make(chan result, 1)}
	for i := range booted {
		go func() {
			m, err := Start(context.Background(), Options{Name: "h" + strconv.Itoa(i+1), Networks: []*Network{net}, Parts: parts,
				Modules: append([]string{"sch_netem"}, SoftRoCE...), Programs: map[string]string{"/usr/local/bin/graylink-node": built[0]}})
			booted[i] <- result{m, err}
		}()
	}
	var probers [2]*prober
	for i := range booted {
		r := <-booted[i]
		if r.err != nil {
			t.Error(r.err)
			continue
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Log(r.m.Console())
			}
			if err := r.m.Close(); err != nil {
				t.Error(err)
			}
		})
		probers[i] = &prober{agent: &agent{t: t, m: r.m}, n: i + 1, other: 2 - i, qkey: qkey, peerQKey: qkey}
	}
	if t.Failed() {
		return
	}
	began := time.Now()
	a, b := probers[0], probers[1]
	for _, p := range probers {
		shell(t, p.m, "ip link set lo up", fmt.Sprintf("ip addr add 10.0.0.%d/24 dev eth0", p.n), "ip link set eth0 up", "rdma link add rxe0 type rxe netdev eth0")
	}
	for _, p := range probers {
		p.begin()
	}
	a.peerQPN, b.peerQPN = b.qpn(), a.qpn()
	for _, p := range probers {
		p.reload()
	}
	for _, p := range probers {
		x := p.answered("rxe0", 50)
		t.Logf("%s by RDMA: %+v", p.m.Name, x)
		t.Logf("%s by UDP: %+v", p.m.Name, p.edge("eth0"))
	}
	t.Logf("%.1f s in the machines", time.Since(began).Seconds())
}
