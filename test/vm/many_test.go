package vm

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// many is an agent in one machine, and programs in another that answer it on many addresses.
type many struct {
	*prober
	far *Machine
}

// startMany starts the machines.
func startMany(t testing.TB, count int) *many {
	t.Helper()
	parts := require(t)
	built := withRDMA(t, "github.com/graylink/graylink/cmd/graylink-node", "github.com/graylink/graylink/test/vm/peers")
	o := Options{Name: "h1", Networks: []*Network{network(t)}, Parts: parts, Modules: SoftRoCE,
		Programs: map[string]string{"/usr/local/bin/graylink-node": built[0], "/usr/local/bin/peers": built[1]}}
	other := o
	other.Name = "h2"
	machines := together(t, o, other)
	for _, m := range machines {
		shell(t, m, "ip link set lo up", "ip link set eth0 up", "rdma link add rxe0 type rxe netdev eth0")
	}
	return newMany(t, machines["h1"], machines["h2"], count)
}

// newMany gives one machine the address 10.0.0.1, and the other one count from 10.0.1.0 on.
func newMany(t testing.TB, near, far *Machine, count int) *many {
	t.Helper()
	var batch strings.Builder
	for a, i := farAddress(0), 0; i < count; a, i = a.Next(), i+1 {
		fmt.Fprintf(&batch, "addr add %v/16 dev eth0\n", a)
	}
	if err := far.WriteFile(t.Context(), "/run/addresses", []byte(batch.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	shell(t, near, "ip addr flush dev eth0 scope global", "ip addr add 10.0.0.1/16 dev eth0")
	shell(t, far, "ip addr flush dev eth0 scope global", "ip -batch /run/addresses")
	return &many{prober: &prober{agent: &agent{t: t, m: near}, n: 1}, far: far}
}

func farAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 0, byte(1 + i/256), byte(i)})
}

// answering has count peers answer, and returns the numbers of their queue pairs.
func (m *many) answering(rdma bool, count int) []uint32 {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	args := []string{"peers", "--first=" + farAddress(0).String(), "--count=" + strconv.Itoa(count)}
	if rdma {
		args = append(args, "--rdma=rxe0", fmt.Sprintf("--qkey=%d", qkey))
	}
	p, err := m.far.Start(ctx, args...)
	if err != nil {
		m.t.Fatal(err)
	}
	line, err := p.WaitForLine(ctx, 0, func(l string) bool { return strings.HasPrefix(l, "[") })
	if err != nil {
		m.t.Fatal(err, p.Lines)
	}
	var numbers []uint32
	if err := json.Unmarshal([]byte(p.Lines[line]), &numbers); err != nil || len(numbers) != count {
		m.t.Fatalf("%v: %d numbers are expected: %s", err, count, p.Lines[line])
	}
	m.t.Cleanup(func() { _ = p.SendSignal(context.Background(), syscall.SIGKILL) })
	return numbers
}

// fleet returns a configuration with the first peers, each a flow.
func fleet(rdma bool, numbers []uint32, cadence time.Duration) string {
	var b strings.Builder
	nic := "{nic: h1/eth0, device: eth0, address: 10.0.0.1}"
	if rdma {
		nic = fmt.Sprintf("{nic: h1/rxe0, rdma: {device: rxe0, port: 1, qkey: %d}}", qkey)
	}
	fmt.Fprintf(&b, "node: h1\ncadence: %v\nreply_timeout: 30s\nstamp: {port: 8862, class: roce, dscp: 26}\nclock: {error_bound: 1ms}\ntrace: {packets_per_second: 1, concurrency: 1}\nnics: [%s]\npeers:\n", cadence, nic)
	for i, n := range numbers {
		at := fmt.Sprintf("address: %v", farAddress(i))
		if rdma {
			at = fmt.Sprintf("gid: \"::ffff:%v\", qpn: %d, qkey: %d", farAddress(i), n, qkey)
		}
		fmt.Fprintf(&b, "  - {nic: p%d/eth0, %s, tier: 1, flows: 1}\n", i, at)
	}
	return b.String()
}

// run starts the agent, and ends it with stop.
func (m *many) run(config string) (stop func()) {
	m.t.Helper()
	m.own = func() string { return config }
	m.begin()
	return func() {
		m.t.Helper()
		ctx, cancel := context.WithTimeout(m.t.Context(), patience)
		defer cancel()
		if err := m.p.SendSignal(ctx, syscall.SIGTERM); err != nil {
			m.t.Fatal(err)
		}
		if _, err := m.p.WaitForExit(ctx); err != nil {
			m.t.Fatal(err)
		}
	}
}

// answers returns the answers of each flow.
func (m *many) answers() (each []float64, sum float64) {
	m.t.Helper()
	each, _, _ = series(m.edges(), "fabric_probe_acked_total")
	for _, v := range each {
		sum += v
	}
	return each, sum
}

// all waits until each of count peers has answered n times.
func (m *many) all(count int, n float64) {
	m.t.Helper()
	until(m.t, fmt.Sprintf("%d peers answered %g times", count, n), func() (string, bool) {
		each, _ := m.answers()
		late := slices.DeleteFunc(slices.Clone(each), func(v float64) bool { return v >= n })
		return fmt.Sprintf("%d of %d flows have fewer; log:\n%s", len(late), len(each), strings.Join(m.p.Lines, "\n")), len(each) == count && len(late) == 0
	})
}

// hundreds: one queue pair serves hundreds of peers, by the kernel's own count.
func hundreds(t *testing.T, near, far *Machine) {
	const count = 250 // an address handle names 256 GIDs at most
	m := newMany(t, near, far, count)
	began := time.Now()
	numbers := m.answering(true, count)
	t.Logf("%d queue pairs answer after %.1f s", count, time.Since(began).Seconds())
	began = time.Now()
	stop := m.run(fleet(true, numbers, 2*time.Second))
	// Sums over the edges. The page of 250 edges costs a machine much of a second: it is read when it may be as wanted.
	sums := func() (sent, answered float64) {
		f := m.scrape()
		of, _, _ := series(f, "fabric_leaf_pair_probe_sent_total", "side", "source")
		_, found, _ := series(f, "fabric_leaf_pair_owd_seconds", "side", "source")
		for _, v := range of {
			sent += v
		}
		for _, h := range found {
			answered += float64(h.GetHistogram().GetSampleCount())
		}
		return sent, answered
	}
	until(t, fmt.Sprintf("%d answers", 2*count), func() (string, bool) {
		_, answered := sums()
		return fmt.Sprint(answered), answered >= 2*count
	})
	m.all(count, 2)
	t.Logf("all have answered twice after %.1f s", time.Since(began).Seconds())
	if out := shell(t, m.m, "rdma resource show qp link rxe0/1"); strings.Count(out, "type UD") != 1 {
		t.Errorf("one queue pair of unreliable datagrams is expected:\n%s", out)
	}
	f := m.scrape()
	if !has(f, count, "fabric_nic_rdma_address_handles", "nic", "h1/rxe0") {
		v, _, _ := series(f, "fabric_nic_rdma_address_handles")
		t.Errorf("%v address handles: one per peer is expected", v)
	}
	for _, name := range []string{"fabric_nic_rdma_completion_errors_total", "fabric_nic_rdma_dropped_total"} {
		if v := m.value(name); v != 0 {
			t.Errorf("%s: %g, and none is expected", name, v)
		}
	}
	// These peers report no losses by direction, so that answers are counted: the last of each flow may be on its way, and
	// where a machine is slow some more for a while. What is lost is missing for good.
	var sent, answered float64
	until(t, "all but the last of each flow are answered", func() (string, bool) {
		sent, answered = sums()
		return fmt.Sprintf("%g of %g", answered, sent), sent > 0 && sent-answered <= count
	})
	t.Logf("%g of %g probes are answered", answered, sent)
	stop()
}

// busy returns for how long the sender's processor was busy, seconds.
func (m *many) busy() (s float64) {
	m.t.Helper()
	// cpu user nice system idle iowait irq softirq ...
	out := strings.Fields(shell(m.t, m.m, "head -1 /proc/stat"))
	if len(out) < 8 {
		m.t.Fatalf("seven times are expected: %q", out)
	}
	for _, i := range []int{1, 2, 3, 6, 7} {
		v, err := strconv.ParseFloat(out[i], 64)
		if err != nil {
			m.t.Fatal(err)
		}
		s += v / 100
	}
	return s
}

// BenchmarkProbes measures what a probe and its answer cost the machine that sends it, by RDMA beside UDP, with one
// peer and with hundreds. It is the slope between two rates, so that what goes on without probes is not in it. Code
// is translated in these machines: only ratios mean something.
func BenchmarkProbes(b *testing.B) {
	const count, span = 250, 15 * time.Second
	rates := []float64{20, 220} // probes a second
	m := startMany(b, count)
	udp := map[int]float64{}
	for _, peers := range []int{1, count} {
		for _, rdma := range []bool{false, true} {
			name := fmt.Sprintf("udp/peers=%d", peers)
			if rdma {
				name = fmt.Sprintf("rdma/peers=%d", peers)
			}
			b.Run(name, func(b *testing.B) {
				t := m.t
				m.t = b
				defer func() { m.t = t }()
				numbers := m.answering(rdma, peers)
				var busy, probes [2]float64
				for range b.N {
					for i, rate := range rates {
						stop := m.run(fleet(rdma, numbers, time.Duration(float64(peers)/rate*float64(time.Second)).Round(time.Millisecond)))
						m.all(peers, 1)
						_, before := m.answers()
						began := m.busy()
						time.Sleep(span)
						_, after := m.answers()
						busy[i], probes[i] = busy[i]+m.busy()-began, probes[i]+after-before
						stop()
					}
				}
				more := probes[1] - probes[0]
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(1e6*(busy[1]-busy[0])/more, "us/probe")
				b.ReportMetric(more/float64(b.N), "probes")
				if cost := (busy[1] - busy[0]) / more; !rdma {
					udp[peers] = cost
				} else if udp[peers] > 0 {
					b.ReportMetric(cost/udp[peers], "of-udp")
				}
			})
		}
	}
}
