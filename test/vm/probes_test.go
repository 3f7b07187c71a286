package vm

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// prober is a graylink-node with RDMA in one of two machines, and how it is configured.
type prober struct {
	*agent
	n, other int // 1 and 2
	qkey     uint32
	busy     string        // for how long the receiver polls without sleeping
	peerQKey uint32        // what it takes the peer's for
	peerQPN  string        // "": the peer is not known
	ipv6     bool          // by RoCE over IPv6
	own      func() string // another configuration; nil means that of config
}

const qkey = 0x11223344

// config has each NIC twice: by UDP, and by RDMA beside it. An answer may take as long as a slow machine needs.
func (p *prober) config() string {
	if p.own != nil {
		return p.own()
	}
	gid, peer := "", fmt.Sprintf("::ffff:10.0.0.%d", p.other)
	if p.ipv6 {
		gid, peer = fmt.Sprintf(", gid: \"fd00::%d\"", p.n), fmt.Sprintf("fd00::%d", p.other)
	}
	out := fmt.Sprintf(`node: h%[1]d
cadence: 20ms
reply_timeout: 30s
stamp: {port: 8862, class: roce, dscp: 26}
clock: {error_bound: 1ms}
nics:
  - {nic: h%[1]d/eth0, device: eth0, address: 10.0.0.%[1]d}
  - {nic: h%[1]d/rxe0, rdma: {device: rxe0, port: 1, qkey: %#[2]x, busy_poll: %[4]s%[5]s}}
peers:
  - {nic: h%[3]d/eth0, address: 10.0.0.%[3]d, tier: 1}
`, p.n, p.qkey, p.other, p.busy, gid)
	if p.peerQPN != "" {
		out += fmt.Sprintf("  - {nic: h%d/rxe0, gid: \"%s\", qpn: %s, qkey: %#x, tier: 1}\n", p.other, peer, p.peerQPN, p.peerQKey)
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
func (p *prober) begin(flags ...string) {
	p.t.Helper()
	p.write()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	proc, err := p.m.Start(ctx, append([]string{"graylink-node", "--config.file=/etc/graylink/node.yaml"}, flags...)...)
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
	if err := p.p.SendSignal(p.t.Context(), syscall.SIGHUP); err != nil {
		p.t.Fatal(err)
	}
	p.line(func(l string) bool { return strings.Contains(l, "msg=reloaded") })
}

// qpn waits for the queue pair, and returns its number.
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

// edges returns what the agent publishes of its edges.
func (p *prober) edges() map[string]*dto.MetricFamily {
	p.t.Helper()
	return p.families("/metrics/edges")
}

// account is an edge's: counts, and sums of delays in seconds. Directions are forward and
// reverse.
type account struct {
	acked     float64
	sent      [2]float64
	lost      [2]float64
	delays    [2]float64
	sum       [2]float64
	user      [2]float64 // of the delays, those by a program's times: RDMA
	timestamp string     // kinds of its delays, in order
}

func (a account) since(b account) account {
	a.acked -= b.acked
	for d := range 2 {
		a.sent[d] -= b.sent[d]
		a.lost[d] -= b.lost[d]
		a.delays[d] -= b.delays[d]
		a.user[d] -= b.user[d]
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
				if l.GetName() == "timestamp" && l.GetValue() == "user" {
					a.user[d] += float64(m.GetHistogram().GetSampleCount())
				}
				if l.GetName() == "timestamp" && m.GetHistogram().GetSampleCount() > 0 && !strings.Contains(a.timestamp, l.GetValue()) {
					a.timestamp = strings.TrimSpace(a.timestamp + " " + l.GetValue())
				}
			}
		}
	}
	return a
}

// answered waits for n more answers on an edge, and returns what the edge did meanwhile.
func (p *prober) answered(device string, n float64) (a account) {
	p.t.Helper()
	before := p.edge(device)
	until(p.t, fmt.Sprintf("%g answers to %s of %s", n, device, p.m.Name), func() (string, bool) {
		a = p.edge(device).since(before)
		return fmt.Sprintf("%+v; log:\n%s", a, strings.Join(p.p.Lines, "\n")), a.acked >= n
	})
	return a
}

// drain waits until what is on its way now has arrived: for as many answers as probes have none yet.
func (p *prober) drain(device string) {
	p.t.Helper()
	x := p.edge(device)
	p.answered(device, max(5, x.sent[0]-x.acked-x.lost[0]-x.lost[1]))
}

// steady waits for n answers in which nothing is lost and the delays of nearly all are known in both directions, and
// returns what the edge did meanwhile. A reply says when the one before it was sent. What was on its way when something
// was changed may be lost, and so the first answers may not do.
func (p *prober) steady(device string, n float64) (a account) {
	p.t.Helper()
	until(p.t, fmt.Sprintf("%g answers to %s of %s, no loss, and delays both ways", n, device, p.m.Name), func() (string, bool) {
		a = p.answered(device, n)
		return fmt.Sprintf("%+v", a), a.lost == [2]float64{} && min(a.delays[0], a.delays[1]) >= 0.9*a.acked
	})
	return a
}

// netem makes eth0 of a machine treat the packets that it sends as what states; "" ends that. Packets that wait for
// their delay are dropped either way, so that they do not arrive among later ones.
func netem(t *testing.T, m *Machine, what string) {
	t.Helper()
	command := "tc qdisc del dev eth0 root 2>/dev/null || true"
	if what != "" {
		command += "; tc qdisc add dev eth0 root netem " + what
	}
	shell(t, m, command)
}

func median(values []float64) float64 {
	return slices.Sorted(slices.Values(values))[len(values)/2]
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

// probesOverRDMA checks probes by unreliable datagrams between two machines, beside the same by UDP.
func probesOverRDMA(t *testing.T, machines *bed) {
	probers := [2]*prober{}
	for i, m := range []*Machine{machines.h1, machines.h2} {
		probers[i] = &prober{agent: &agent{t: t, m: m}, n: i + 1, other: 2 - i, qkey: qkey, peerQKey: qkey, busy: []string{"0s", "200us"}[i]}
	}
	began := time.Now()
	a, b := probers[0], probers[1]

	t.Run("without a device", func(t *testing.T) {
		r, err := a.m.Run(t.Context(), "graylink-node", "--selftest=rdma")
		if err != nil || r.Code != 4 || !strings.Contains(r.Stdout, "devices: none") {
			t.Errorf("%+v, %v; exit code 4 is expected", r, err)
		}
	})
	t.Run("built without RDMA", func(t *testing.T) {
		r, err := a.m.Run(t.Context(), "graylink-node-plain", "--selftest=rdma")
		if err != nil || r.Code != 3 || !strings.Contains(r.Stdout, "built without RDMA") {
			t.Errorf("%+v, %v; exit code 3 is expected", r, err)
		}
		a.write()
		r, err = a.m.Run(t.Context(), "graylink-node-plain", "--config.file=/etc/graylink/node.yaml")
		if err != nil || r.Code != 1 || !strings.Contains(r.Stderr, "NIC h1/rxe0: RDMA: this program was built without RDMA") {
			t.Errorf("%+v, %v; exit code 1 is expected", r, err)
		}
	})

	// The first agent starts before its device is there.
	for _, p := range probers {
		shell(t, p.m, "ip link set lo up", fmt.Sprintf("ip addr add 10.0.0.%d/24 dev eth0", p.n), "ip link set eth0 up")
	}
	a.begin()
	if f := a.scrape(); !has(f, 0, "fabric_nic_rdma_usable", "nic", "h1/rxe0") || !has(f, 1, "fabric_nic_rdma_queue_pair_state", "nic", "h1/rxe0", "state", "absent") {
		t.Errorf("a port without a device: it is expected to be absent and not usable")
	}
	for _, p := range probers {
		shell(t, p.m, "rdma link add rxe0 type rxe netdev eth0")
	}
	t.Run("self-test", func(t *testing.T) {
		r, err := b.m.Run(t.Context(), "graylink-node", "--selftest=rdma")
		if err != nil || r.Code != 0 || !strings.Contains(r.Stdout, "rxe0 port 1: ok, 10 datagrams") || !strings.Contains(r.Stdout, "::ffff:10.0.0.2 (RoCE v2)") {
			t.Errorf("%+v, %v; exit code 0 is expected", r, err)
		}
		t.Log(r.Stdout)
	})
	t.Run("tests of the queue pair", func(t *testing.T) {
		r, err := b.m.Run(t.Context(), "sh", "-c", "GRAYLINK_RDMA_DEVICE=rxe0 rdma.test -test.v -test.run ^TestDevice[SPQ]")
		if err != nil || r.Code != 0 || strings.Contains(r.Stdout, "SKIP") || strings.Count(r.Stdout, "--- PASS: TestDevice") != 3 {
			t.Errorf("%+v, %v; three tests are expected to pass", r, err)
		}
		t.Log(r.Stdout)
	})
	b.begin()
	learn := func() {
		t.Helper()
		a.peerQPN, b.peerQPN = b.qpn(), a.qpn()
		for _, p := range probers {
			p.reload()
		}
	}
	learn()

	// Directions are forward and reverse; clocks of the machines are not related, so that a
	// delay of one direction has their difference in it, which does not change.
	for _, p := range probers {
		x := p.steady("rxe0", 50)
		if x.timestamp != "user" || x.mean(0)+x.mean(1) <= 0 {
			t.Errorf("%s: %+v: delays by the program's times, and a round trip above 0, are expected", p.m.Name, x)
		}
		var u account
		until(t, "50 answers by UDP to "+p.m.Name, func() (string, bool) {
			u = p.edge("eth0")
			return fmt.Sprintf("%+v", u), u.acked >= 50
		})
		if !strings.HasPrefix(u.timestamp, "kernel") { // where the host is slow, some stamps are missed
			t.Errorf("%s: %+v: the same edge by UDP is expected, by the kernel's times", p.m.Name, u)
		}
		t.Logf("%s: round trip %.2f ms by RDMA, %.2f ms by UDP", p.m.Name, 1e3*(x.mean(0)+x.mean(1)), 1e3*(u.mean(0)+u.mean(1)))
		if v := p.value("graylink_node_stamps_missing_total", "nic", fmt.Sprintf("h%d/rxe0", p.n)); v != 0 {
			t.Errorf("%s: %g stamps are missed that no device gives", p.m.Name, v)
		}
	}

	t.Run("delay one way", func(t *testing.T) {
		for i, p := range probers {
			slow := i                // what h1 sends: its probes, and its replies to h2
			var more, same []float64 // ms, of each turn
			// The delay is far above what a machine adds that waits for a processor: 14 ms on a busy host, 100 ms with a
			// twentieth of a core. The median of all turns, with and without it, comes closer to the truth with each.
			until(t, "500 ms more in direction "+strconv.Itoa(slow)+" of "+p.m.Name, func() (string, bool) {
				mean := func(what string) account {
					netem(t, a.m, what)
					p.drain("rxe0")
					return p.answered("rxe0", 25)
				}
				without, with := mean(""), mean("delay 500ms")
				more, same = append(more, 1e3*(with.mean(slow)-without.mean(slow))), append(same, 1e3*(with.mean(1-slow)-without.mean(1-slow)))
				t.Logf("%s: %.2f ms more in direction %d, %.2f ms in the other", p.m.Name, more[len(more)-1], slow, same[len(same)-1])
				return fmt.Sprint(more, same), math.Abs(median(more)-500) < 200 && math.Abs(median(same)) < 200
			})
			netem(t, a.m, "")
		}
	})
	t.Run("loss one way", func(t *testing.T) {
		for _, p := range probers {
			p.drain("rxe0")
			p.steady("rxe0", 10) // what was dropped when the delay ended is counted
		}
		netem(t, a.m, "loss 10%")
		var before [2]account
		for i, p := range probers {
			before[i] = p.edge("rxe0")
		}
		var of, most [2]float64 // probes that were sent under the loss: at least, at most
		for i, p := range probers {
			until(t, "200 probes of "+p.m.Name, func() (string, bool) {
				x := p.edge("rxe0").since(before[i])
				of[i] = x.sent[0]
				return fmt.Sprintf("%+v", x), x.acked+x.lost[0]+x.lost[1] >= 200
			})
		}
		// A probe that is missing is lost when it is missing for good: without further loss all are accounted for.
		netem(t, a.m, "")
		for i, p := range probers {
			most[i] = p.edge("rxe0").since(before[i]).sent[0]
		}
		for i, p := range probers {
			var x account
			until(t, "all probes of "+p.m.Name+" are answered or lost", func() (string, bool) {
				x = p.edge("rxe0").since(before[i])
				return fmt.Sprintf("%+v", x), x.sent[0]-x.acked-x.lost[0]-x.lost[1] <= 3
			})
			t.Logf("%s: of %g to %g probes under loss %v were lost", p.m.Name, of[i], most[i], x.lost)
			// 20 of 200, by chance 2 % to 20 % in all but one of 100,000 runs.
			if x.lost[i] < of[i]/50 || x.lost[i] > most[i]/5 || x.lost[1-i] != 0 {
				t.Errorf("%s: %+v: about a tenth lost in direction %d, and none in the other, are expected", p.m.Name, x, i)
			}
		}
		netem(t, a.m, "")
	})
	t.Run("copies and disorder one way", func(t *testing.T) {
		counted := func(p *prober, family string) float64 {
			v, _, _ := series(p.edges(), family, "src", fmt.Sprintf("h%d/rxe0", p.n))
			sum := 0.0
			for _, x := range v {
				sum += x
			}
			return sum
		}
		for _, x := range []struct {
			netem    string
			from, to float64 // copies of 200 probes
		}{{"duplicate 20%", 10, 80}, {"delay 30ms reorder 30% 50%", 0, 0}} {
			netem(t, a.m, "")
			for _, p := range probers {
				p.drain("rxe0")
				p.steady("rxe0", 10)
			}
			netem(t, a.m, x.netem)
			var before [2]account
			var copies [2]float64
			begin := func(i int) {
				before[i], copies[i] = probers[i].edge("rxe0"), counted(probers[i], "fabric_probe_duplicate_total")
			}
			begin(0)
			begin(1)
			for i, p := range probers {
				var n float64
				var y account
				until(t, fmt.Sprintf("200 answers to %s, %s", p.m.Name, x.netem), func() (string, bool) {
					if y = p.edge("rxe0").since(before[i]); y.acked < 200 {
						return fmt.Sprintf("%+v", y), false
					}
					n = counted(p, "fabric_probe_duplicate_total") - copies[i]
					t.Logf("%s, %s: %g answers, %g copies, %v lost", p.m.Name, x.netem, y.acked, n, y.lost)
					// A machine that stands still for long drops packets on its own, and one that is overtaken by longer
					// than loss takes to settle counts as lost: 200 answers without such a one have to come.
					if y.lost != [2]float64{} {
						begin(i)
						return fmt.Sprintf("%+v", y), false
					}
					return "", true
				})
				if of := y.acked / 200; n < x.from*of || n > x.to*of || y.lost != [2]float64{} {
					t.Errorf("%s, %s: %g copies in %+v: %g to %g of 200, and nothing lost, are expected", p.m.Name, x.netem, n, y, x.from, x.to)
				}
			}
		}
		netem(t, a.m, "")
	})

	// again waits until both measure, and returns how long that took after what was done.
	again := func(t *testing.T, what string, since time.Time) {
		t.Helper()
		for _, p := range probers {
			p.answered("rxe0", 5)
		}
		t.Logf("%s: both measured again after %.1f s", what, time.Since(since).Seconds())
	}
	const nic = "h1/rxe0"
	t.Run("link down and up", func(t *testing.T) {
		shell(t, a.m, "ip link set eth0 down")
		a.is(0, "fabric_nic_rdma_usable", "nic", nic)
		shell(t, a.m, "ip link set eth0 up")
		up := time.Now()
		a.is(1, "fabric_nic_rdma_usable", "nic", nic)
		again(t, "link up", up)
		if f := a.scrape(); !has(f, 1, "fabric_nic_rdma_events_total", "nic", nic, "event", "queue_opened") {
			_, _, text := series(f, "fabric_nic_rdma_events_total")
			t.Errorf("the queue pair is expected to outlast the link:\n%s", text)
		}
	})
	t.Run("device deleted and added", func(t *testing.T) {
		shell(t, a.m, "rdma link delete rxe0") // returns when no process has it open
		a.is(1, "fabric_nic_rdma_queue_pair_state", "nic", nic, "state", "absent")
		a.is(1, "fabric_nic_rdma_events_total", "nic", nic, "event", "device_gone")
		shell(t, a.m, "rdma link add rxe0 type rxe netdev eth0")
		back := time.Now()
		a.is(1, "fabric_nic_rdma_usable", "nic", nic)
		if a.qpn() != b.peerQPN {
			until(t, "h2 drops what comes from the new queue pair", func() (string, bool) {
				f := b.scrape()
				v, _, text := series(f, "fabric_nic_rdma_dropped_total", "reason", "wrong_queue_pair")
				return text, len(v) == 1 && v[0] > 0
			})
		}
		learn()
		again(t, "device back", back)
	})
	t.Run("agent killed", func(t *testing.T) {
		if err := a.p.SendSignal(t.Context(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		killed := time.Now()
		a.begin()
		learn()
		again(t, "agent killed", killed)
	})
	t.Run("wrong Q_Key", func(t *testing.T) {
		before := b.value("fabric_nic_rdma_port_qkey_violations", "nic", "h2/rxe0")
		a.peerQKey = qkey + 1
		a.reload()
		x := a.edge("rxe0")
		until(t, "50 probes with a wrong Q_Key, none of which is answered", func() (string, bool) {
			y := a.edge("rxe0")
			if y.acked > x.acked { // one that was on its way with the right one: counted again from here
				x = y
			}
			return fmt.Sprintf("%+v", y.since(x)), y.sent[0]-x.sent[0] >= 50
		})
		t.Logf("port's Q_Key violations at h2: %g before, %g after", before, b.value("fabric_nic_rdma_port_qkey_violations", "nic", "h2/rxe0"))
		a.peerQKey = qkey
		a.reload()
		again(t, "Q_Key right", time.Now())
	})
	t.Run("no GID that is routed", func(t *testing.T) {
		shell(t, a.m, "ip addr flush dev eth0 scope global")
		a.is(0, "fabric_nic_rdma_usable", "nic", nic)
		l := a.line(func(l string) bool {
			return strings.Contains(l, "RDMA cannot be used") && strings.Contains(l, "GID table")
		})
		t.Log(l)
		if !strings.Contains(l, "RDMA device rxe0 port 1: GID table: the table ") {
			t.Errorf("%s: device, port and fault are expected", l)
		}
		shell(t, a.m, "ip addr add 10.0.0.1/24 dev eth0")
		back := time.Now()
		again(t, "GID back", back)
	})
	t.Run("IPv6", func(t *testing.T) {
		for _, p := range probers {
			shell(t, p.m, fmt.Sprintf("ip addr add fd00::%d/64 dev eth0 nodad", p.n))
			p.ipv6 = true
			p.reload()
			p.is(1, "fabric_nic_rdma_info", "nic", fmt.Sprintf("h%d/rxe0", p.n), "gid", fmt.Sprintf("fd00::%d", p.n))
		}
		learn()
		for _, p := range probers {
			if x := p.steady("rxe0", 50); x.mean(0)+x.mean(1) <= 0 {
				t.Errorf("%s: %+v: a round trip above 0 is expected", p.m.Name, x)
			}
		}
		if v := a.value("fabric_nic_rdma_dropped_total", "nic", nic, "reason", "headless"); v != 0 {
			t.Errorf("%g datagrams are without a header", v)
		}
	})
	for _, p := range probers {
		for _, l := range p.p.Lines {
			if strings.Contains(l, "level=ERROR") && !strings.Contains(l, "RDMA cannot be used") {
				t.Errorf("%s logged %s", p.m.Name, l)
			}
		}
		if err := p.p.SendSignal(t.Context(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if code, err := p.p.WaitForExit(ctx); err != nil || code != 0 {
			t.Errorf("the agent of %s ended with %d, %v", p.m.Name, code, err)
		}
	}
	t.Run("by a coordinator", func(t *testing.T) { underCoordinator(t, a, b) })
	t.Run("hundreds of peers", func(t *testing.T) { hundreds(t, a.m, b.m) })
	t.Logf("%.1f s in all", time.Since(began).Seconds())
}

const fleetTopology = `version: 1
switches:
  - {name: spine1, role: spine, pod: p1, plane: a}
  - {name: leaf1, role: leaf, pod: p1, plane: a}
  - {name: leaf2, role: leaf, pod: p1, plane: a}
nodes:
  - {name: h1, nics: [{device: eth0, plane: a, addresses: [10.0.0.1], aliases: [rxe0]}]}
  - {name: h2, nics: [{device: eth0, plane: a, addresses: [10.0.0.2], aliases: [rxe0]}]}
links:
  - {a: "h1/eth0", b: "leaf1:dn1"}
  - {a: "h2/eth0", b: "leaf2:dn1"}
  - {a: "leaf1:up1", b: "spine1:dn1", a_address: 172.16.0.0/31, b_address: 172.16.0.1/31}
  - {a: "leaf2:up1", b: "spine1:dn2", a_address: 172.16.0.2/31, b_address: 172.16.0.3/31}
`

// underCoordinator has agents that know no queue pair but what a coordinator hands out.
func underCoordinator(t *testing.T, a, b *prober) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	c := coordinate(ctx, t, a.m, "10.0.0.1", fleetTopology, map[string]*Machine{"h1": a.m, "h2": b.m}, "--schedule.cadence=20ms", "--schedule.class=roce=26/3")
	defer func() {
		if err := c.SendSignal(ctx, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(strings.Join(c.Lines, "\n"))
		}
	}()
	begin := func(p *prober) {
		t.Helper()
		p.agent = &agent{t: t, m: p.m, p: follow(ctx, t, p.m, fmt.Sprintf("h%d", p.n), "10.0.0.1")}
		p.line(func(l string) bool { return strings.Contains(l, "Listening on") })
	}
	byRDMA := func(p *prober, since account) {
		t.Helper()
		until(t, "20 delays each way by RDMA of "+p.m.Name, func() (string, bool) {
			x := p.edge("eth0")
			y := x.since(since)
			return fmt.Sprintf("%+v, before %+v; agent:\n%s\ncoordinator:\n%s", x, since, strings.Join(p.p.Lines, "\n"), strings.Join(c.Lines, "\n")),
				y.acked >= 20 && y.user[0] >= 20 && y.user[1] >= 20 // the first may go by UDP, until both queue pairs are announced
		})
	}
	started := time.Now()
	begin(a)
	begin(b)
	for _, p := range []*prober{a, b} {
		byRDMA(p, account{})
		if p.peerQPN = ""; !has(p.scrape(), 1, "fabric_nic_rdma_info", "nic", fmt.Sprintf("h%d/eth0", p.n), "device", "rxe0") {
			t.Errorf("%s is not probed by rxe0", p.m.Name)
		}
	}
	t.Logf("both measured, by related clocks, after %.1f s", time.Since(started).Seconds())
	for _, p := range []*prober{a, b} {
		x := p.edge("eth0")
		// Clocks of both machines are the host's, which the relation has to find: what is left is
		// half of the round trip each way, and how much both differ.
		t.Logf("%s: %.2f ms forward, %.2f ms reverse", p.m.Name, 1e3*x.mean(0), 1e3*x.mean(1))
	}

	// An agent that was killed has another queue pair. Its peers hear of it within a round.
	qpn, before := b.qpn(), a.edge("eth0")
	if err := b.p.SendSignal(ctx, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	begin(b)
	if b.qpn() == qpn {
		t.Errorf("the queue pair is %s again: the test shows nothing", qpn)
	}
	byRDMA(a, before)
	t.Logf("after a kill measured again after %.1f s", time.Since(killed).Seconds())
	for _, p := range []*prober{a, b} {
		if v := p.value("fabric_nic_rdma_usable"); v != 1 {
			t.Errorf("%s: usable is %g", p.m.Name, v)
		}
		if err := p.p.SendSignal(ctx, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if code, err := p.p.WaitForExit(ctx); err != nil || code != 0 {
			t.Errorf("the agent of %s ended with %d, %v", p.m.Name, code, err)
		}
	}
}

// has reports whether there is one series with a value.
func has(f map[string]*dto.MetricFamily, value float64, family string, labels ...string) bool {
	v, _, _ := series(f, family, labels...)
	return len(v) == 1 && v[0] == value
}
