package probe

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/clocksync"
	"github.com/graylink/graylink/internal/rdma"
	"github.com/graylink/graylink/internal/rdma/rdmatest"
	"github.com/graylink/graylink/internal/unix"
)

// rdmaConfig has one NIC with RDMA and no address, and the other end as its peer.
func rdmaConfig(self, other int, qpn uint32) *Config {
	c := defaultConfig()
	c.Node = fmt.Sprintf("h%d", self)
	c.ErrorBound = new(time.Duration)
	c.Stamp.Port = 8862
	c.Stamp.Classes = []ClassConfig{{Name: "roce", DSCP: 26, SL: 3}}
	c.NICs = []NICConfig{{NIC: c.Node + "/rdma0", RDMA: &RDMAConfig{Device: "rdma0", Port: 1, PKey: rdma.DefaultPKey, QKey: 77}}}
	if qpn != 0 {
		c.reconnect(filePeer{PeerConfig: PeerConfig{NIC: fmt.Sprintf("h%d/rdma0", other),
			RDMA: &RDMAPeer{GID: netip.AddrFrom4([4]byte{10, 0, 0, byte(other)}), QPN: qpn, QKey: 77}}, flows: 2, probe: true})
	}
	return &c
}

func newIdleRDMA(t testing.TB, c *Config, v rdma.Verbs) idle {
	t.Helper()
	deps := HostDeps()
	deps.Verbs = v
	return newIdle(t, c, deps)
}

func (i idle) qpn() uint32 { return i.e.Snapshot().NICs[0].Port.QPN }

// rdmaPair returns two NICs that probe each other by RDMA in memory, and that only the test drives.
func rdmaPair(t testing.TB) (a, b idle, da *rdmatest.Device) {
	t.Helper()
	f := rdmatest.New(func() int64 { return time.Now().UnixNano() })
	da = f.AddDevice("h1", "rdma0", "10.0.0.1")
	f.AddDevice("h2", "rdma0", "10.0.0.2")
	a, b = newIdleRDMA(t, rdmaConfig(1, 2, 0), f.HostVerbs("h1")), newIdleRDMA(t, rdmaConfig(2, 1, 0), f.HostVerbs("h2"))
	qa, qb := a.qpn(), b.qpn()
	if err := errors.Join(a.e.Apply(rdmaConfig(1, 2, qb)), b.e.Apply(rdmaConfig(2, 1, qa))); err != nil {
		t.Fatal(err)
	}
	return a, b, da
}

func exchangeAll(t testing.TB, ends ...idle) {
	t.Helper()
	for _, n := range ends {
		n.dueNow()
	}
	for range 2 {
		for _, n := range ends {
			n.step(t)
		}
	}
}

// Probes by RDMA give the same accounts as those by UDP, with the program's times.
func TestRDMAEndToEnd(t *testing.T) {
	a, b, _ := rdmaPair(t)
	until(t, 20*time.Second, "50 answers each way", func() bool {
		exchangeAll(t, a, b)
		return a.sender.edges[0].Acked >= 50 && a.sender.edges[1].Acked >= 50 && b.sender.edges[0].Acked >= 50
	})
	for _, n := range []idle{a, b} {
		s := n.e.Snapshot().NICs[0]
		for _, e := range s.Edges {
			if e.OWD[0].User.Count < e.Acked || e.OWD[1].User.Count+2 < e.Acked || // the next reply has the last one's time
				e.OWD[0].Kernel.Count+e.OWD[0].Hardware.Count != 0 || e.Lost != [2]uint64{} || e.Class != "roce" {
				t.Errorf("%v: %d and %d delays by the program's times of %d answers, lost %v", e.Edge, e.OWD[0].User.Count, e.OWD[1].User.Count, e.Acked, e.Lost)
			}
			if p50, ok := e.OWD[0].User.Quantile(0.5); !ok || math.Abs(p50) > 1e9 {
				t.Errorf("median %v ns", p50)
			}
		}
		for k, v := range s.Missing {
			if v != 0 {
				t.Errorf("%d of stamp %s are missed, which RDMA has not here", v, k)
			}
		}
		for k, v := range s.Dropped {
			if v != 0 {
				t.Errorf("%d dropped: %s", v, k)
			}
		}
		if len(s.Received) != 2 || s.Received[0].Received == 0 || len(s.Sockets) != 0 || s.TxKind != "user" || s.RxKind != "user" {
			t.Errorf("%+v", s)
		}
	}
	if got := a.traceableFlows(); len(got) != 4 {
		t.Errorf("%d flows by RDMA can be traced, want two to the peer and two from it", len(got))
	}
}

// Loss has its direction by RDMA as well.
func TestRDMALossHasItsDirection(t *testing.T) {
	a, b, da := rdmaPair(t)
	until(t, 20*time.Second, "20 answers", func() bool {
		exchangeAll(t, a, b)
		return a.sender.edges[0].Acked >= 20 && b.sender.edges[0].Acked >= 20
	})
	before := [2]FlowCounters{a.sender.edges[0].FlowCounters, b.sender.edges[0].FlowCounters}
	n := 0
	da.SetLoss(func([]byte) bool { n++; return n%5 == 0 })
	until(t, 20*time.Second, "100 more answers", func() bool { exchangeAll(t, a, b); return a.sender.edges[0].Acked >= before[0].Acked+100 })
	da.SetLoss(nil)
	for range 3 {
		exchangeAll(t, a, b)
	}
	for i, e := range []*edge{a.sender.edges[0], b.sender.edges[0]} {
		for range 2 { // a gap that lasts from one to the next is loss
			e.settleLoss()
		}
		if lost := e.Lost[i] - before[i].Lost[i]; lost < 10 || e.Lost[1-i] != 0 {
			t.Errorf("lost %v; what the first NIC sends was, one in five", e.Lost)
		}
	}
}

// ibPair represents two NICs that probe each other on InfiniBand in memory.
type ibPair struct {
	ends [2]idle
	dev  [2]*rdmatest.Device
}

func newIBPair(t *testing.T) *ibPair {
	t.Helper()
	f := rdmatest.New(func() int64 { return time.Now().UnixNano() })
	p := &ibPair{}
	for i := range p.ends {
		host := fmt.Sprintf("h%d", i+1)
		p.dev[i] = f.AddInfiniBandDevice(host, "rdma0", uint16(11+i), fmt.Sprintf("fe80::2:c903:0:%d", i+1))
		p.ends[i] = newIdleRDMA(t, rdmaConfig(i+1, 2-i, 0), f.HostVerbs(host))
	}
	p.learn(t, 0)
	p.learn(t, 1)
	return p
}

// learn gives one end what the other one's port says of itself, as the coordinator does.
func (p *ibPair) learn(t *testing.T, end int) {
	t.Helper()
	s := p.ends[1-end].e.Snapshot().NICs[0].Port
	c := rdmaConfig(end+1, 2-end, s.QPN)
	c.Peers[0].RDMA.GID, c.Peers[0].RDMA.LID = s.GID, s.LID
	if err := p.ends[end].e.Apply(c); err != nil {
		t.Fatal(err)
	}
}

// exchange lets each end get 20 answers on each edge, and returns the accounts.
func (p *ibPair) exchange(t *testing.T) (out []FlowCounters) {
	t.Helper()
	acked := func() (least uint64) {
		least = math.MaxUint64
		for _, n := range p.ends {
			for _, e := range n.sender.edges {
				least = min(least, e.Acked)
			}
		}
		return least
	}
	want := acked() + 20
	until(t, 20*time.Second, "20 answers each way", func() bool { exchangeAll(t, p.ends[0], p.ends[1]); return acked() >= want })
	for _, n := range p.ends {
		for _, e := range n.sender.edges {
			e.settleLoss()
			e.settleLoss() // a gap that lasts from one to the next is loss
			out = append(out, e.FlowCounters)
		}
	}
	return out
}

// Probes on InfiniBand have the LID of the peer and the service level of their class.
func TestInfiniBandEndToEnd(t *testing.T) {
	p := newIBPair(t)
	for i, c := range p.exchange(t) {
		if c.Lost != [2]uint64{} {
			t.Errorf("edge %d: lost %v", i, c.Lost)
		}
	}
	for i, d := range p.dev {
		targets := d.Targets()
		for _, to := range targets {
			if to.LID != uint16(12-i) || to.SL != 3 || to.TClass>>2 != 26 {
				t.Errorf("%+v", to)
			}
		}
		if len(targets) != 2 { // one for each flow, and its replies
			t.Errorf("%d address handles, want 2", len(targets))
		}
	}
	for _, n := range p.ends {
		if s := n.e.Snapshot().NICs[0]; len(s.ServiceLevels) != 1 || s.ServiceLevels[0].SL != 3 || s.Port.LID == 0 || s.Port.Headless+s.Port.Strangers+s.Port.WrongQPN != 0 {
			t.Errorf("%+v", s.Port)
		}
	}
	if got := p.ends[0].traceableFlows(); len(got) != 4 {
		t.Errorf("%d flows", len(got))
	}
}

// A port that gets another LID, with or without being down, is probed on by the same edges once its peers know the LID.
// What was sent to the former one does not count as lost at either end, and what is lost later does.
func TestInfiniBandLIDChangesInTheMiddle(t *testing.T) {
	for _, down := range []bool{false, true} {
		p := newIBPair(t)
		a, b := p.ends[0], p.ends[1]
		before := p.exchange(t)
		if down {
			p.dev[1].SetActive(false)
			for range 5 {
				exchangeAll(t, a, b)
			}
		}
		p.dev[1].SetLID(40, false)
		if down {
			p.dev[1].SetActive(true)
		}
		until(t, 20*time.Second, "the port notices its LID", func() bool { exchangeAll(t, a, b); return b.e.Snapshot().NICs[0].Port.LID == 40 })
		for range 5 { // neither end hears of the other
			exchangeAll(t, a, b)
		}
		p.learn(t, 0)
		after := p.exchange(t)
		for i := range after {
			if after[i].Lost != before[i].Lost || after[i].Lost != [2]uint64{} || after[i].Restarts != 0 {
				t.Errorf("down %v, edge %d: %+v, before %+v; want no loss by a LID", down, i, after[i], before[i])
			}
			if after[i].Sent < after[i].Acked+5 {
				t.Errorf("down %v, edge %d: %+v; some probes have no answer", down, i, after[i])
			}
		}
		n := 0
		p.dev[1].SetLoss(func([]byte) bool { n++; return n%5 == 0 })
		p.exchange(t)
		p.dev[1].SetLoss(nil)
		lost := p.exchange(t)
		if lost[0].Lost[reverse]+lost[1].Lost[reverse] == 0 || lost[2].Lost[forward]+lost[3].Lost[forward] == 0 {
			t.Errorf("down %v: %+v; what the port loses later is lost", down, lost)
		}
	}
}

// The device's own stamps are used if both ends have them.
func TestRDMAHardwareStamps(t *testing.T) {
	f := rdmatest.New(func() int64 { return time.Now().UnixNano() })
	for i := 1; i <= 2; i++ {
		f.AddDevice(fmt.Sprintf("h%d", i), "rdma0", fmt.Sprintf("10.0.0.%d", i)).SetClockRate(1e6)
	}
	var ends [2]idle
	for i := range ends {
		ends[i] = newIdleRDMA(t, rdmaConfig(i+1, 2-i, 0), f.HostVerbs(fmt.Sprintf("h%d", i+1)))
	}
	q := [2]uint32{ends[0].qpn(), ends[1].qpn()}
	for i, n := range ends {
		c := rdmaConfig(i+1, 2-i, q[1-i])
		c.Peers[0].RDMA.Hardware = true
		if err := n.e.Apply(c); err != nil {
			t.Fatal(err)
		}
		n.step(t) // which sees that the device stamps, and reads its clock
		n.ports.rdma.clock.sys -= crossEvery
		n.ports.rdma.clock.phc -= crossEvery
		n.ports.rdma.clock.last -= crossEvery
		n.step(t)
	}
	a, b := ends[0], ends[1]
	until(t, 20*time.Second, "50 delays each way by the devices' stamps", func() bool {
		exchangeAll(t, a, b)
		e := a.sender.edges[0]
		return e.owd[forward][hardwareStamps].Count >= 50 && e.owd[reverse][hardwareStamps].Count >= 50
	})
	if s := a.e.Snapshot().NICs[0]; s.TxKind != "hardware" || s.RxKind != "hardware" {
		t.Errorf("stamped by %q and %q", s.TxKind, s.RxKind)
	}
	a.e.ClockKinds(func(nic string, k clocksync.Kind, _ int64) {
		if k != clocksync.Hardware {
			t.Errorf("the clock of %s is of kind %v", nic, k)
		}
	})
	if e := a.sender.edges[0]; e.owd[forward][userStamps].Count > 20 {
		t.Errorf("%d delays by the program's times", e.owd[forward][userStamps].Count)
	}
}

// One NIC probes those that have RDMA by it, and others by UDP.
func TestRDMABesideUDP(t *testing.T) {
	f := rdmatest.New(func() int64 { return time.Now().UnixNano() })
	f.AddDevice("h1", "rdma0", "10.0.0.1")
	c := loopConfig("h1", 1, 2, "h2/eth1", 1)
	c.NICs[0].RDMA = rdmaConfig(1, 2, 0).NICs[0].RDMA
	a := newIdleRDMA(t, c, f.HostVerbs("h1"))
	b := newIdle(t, loopConfig("h2", 2, 1, "h1/eth1", 1), HostDeps())
	until(t, 20*time.Second, "20 answers by UDP", func() bool { exchangeAll(t, a, b); return a.sender.edges[0].Acked >= 20 })
	if a.sender.edges[0].sock.rdma || a.sender.edges[0].userStampsOnly {
		t.Error("a peer without RDMA is probed by it")
	}
	// It gets a queue pair: the edge continues by RDMA, with its numbers.
	f.AddDevice("h2", "rdma0", "10.0.0.2")
	cb := loopConfig("h2", 2, 1, "h1/eth1", 1)
	cb.NICs[0].RDMA = rdmaConfig(2, 1, 0).NICs[0].RDMA
	b2 := newIdleRDMA(t, func() *Config {
		c := *rdmaConfig(2, 1, 0)
		c.NICs = cb.NICs[:1]
		n := c.NICs[0]
		n.Address = netip.Addr{}
		c.NICs = []NICConfig{n}
		return &c
	}(), f.HostVerbs("h2"))
	with := *c
	with.Peers = []PeerConfig{c.Peers[0]}
	with.Peers[0].RDMA = &RDMAPeer{GID: netip.AddrFrom4([4]byte{10, 0, 0, 2}), QPN: b2.qpn(), QKey: 77}
	far := *cb
	far.NICs = []NICConfig{b2.cfg}
	far.Peers = []PeerConfig{cb.Peers[0]}
	far.Peers[0].RDMA = &RDMAPeer{GID: netip.AddrFrom4([4]byte{10, 0, 0, 1}), QPN: a.qpn(), QKey: 77}
	if err := errors.Join(a.e.Apply(&with), b2.e.Apply(&far)); err != nil {
		t.Fatal(err)
	}
	seq, acked := a.sender.edges[0].seq, a.sender.edges[0].Acked
	until(t, 20*time.Second, "20 answers by RDMA", func() bool { exchangeAll(t, a, b2); return a.sender.edges[0].Acked >= acked+20 })
	if !a.sender.edges[0].sock.rdma || a.sender.edges[0].seq <= seq || a.sender.edges[0].Lost != [2]uint64{} {
		t.Errorf("%+v", a.sender.edges[0].FlowCounters)
	}
	// Packets that it sends by UDP now do not count as its probes, and neither do those from an address that is its
	// GID.
	with.Peers = []PeerConfig{c.Peers[0]}
	with.Peers[0].RDMA = &RDMAPeer{GID: netip.MustParseAddr("fd00::2"), QPN: 99, QKey: 77}
	if err := a.e.Apply(&with); err != nil {
		t.Fatal(err)
	}
	for _, from := range []netip.Addr{loopback(2), netip.MustParseAddr("fd00::2")} {
		drops := a.filter.dropped[dropUnregistered]
		if err := a.takeProbe(&unix.Datagram{Data: request(0, 10), From: netip.AddrPortFrom(from, 49152)}, time.Now()); err != nil || a.filter.dropped[dropUnregistered] != drops+1 {
			t.Errorf("a UDP packet of a peer by RDMA from %v: %v, %d dropped", from, err, a.filter.dropped[dropUnregistered]-drops)
		}
	}
	if s := a.socketOf(a.ports.rdma.queue, &unix.Datagram{}); s != nil {
		t.Errorf("a datagram for port 0 of the queue pair is for %s", s.name)
	}
}

// A program without RDMA reports that, and a missing device is not an error.
func TestRDMAStartErrors(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	deps := HostDeps()
	deps.Verbs = nil
	if _, err := New(rdmaConfig(1, 2, 9), deps, log); !errors.Is(err, rdma.ErrNotBuilt) || !strings.Contains(err.Error(), "NIC h1/rdma0: RDMA: ") {
		t.Errorf("%v", err)
	}
	a := newIdleRDMA(t, rdmaConfig(1, 2, 9), rdmatest.New(func() int64 { return 1 }).HostVerbs("h1"))
	exchangeAll(t, a)
	s := a.e.Snapshot().NICs[0]
	if s.Port.Queue || s.Edges[0].Sent != 0 || s.SendErrors["ENETDOWN"] == 0 {
		t.Errorf("%+v", s)
	}
}

func TestRDMAConfigurationErrors(t *testing.T) {
	const head = "node: h1\nnics: [{nic: h1/rdma0, rdma: {device: rdma0, qkey: 7}}]\npeers: "
	for text, want := range map[string]string{
		"node: h1\nnics: [{nic: h1/eth1, rdma: {qkey: 7}}]":                                             `line 2: field "nics[0].rdma.device": missing`,
		"node: h1\nnics: [{nic: h1/eth1, rdma: {device: rdma0}}]":                                       `line 2: field "nics[0].rdma.qkey": missing`,
		"node: h1\nnics: [{nic: h1/eth1, rdma: {device: rdma0, qkey: 0x80000000}}]":                     `line 2: field "nics[0].rdma.qkey": "0x80000000", want a whole number from 1 to 0x7fffffff`,
		"node: h1\nnics: [{nic: h1/eth1, rdma: {device: rdma0, qkey: 1, busy_poll: 1s}}]":               `field "nics[0].rdma.busy_poll"`,
		"node: h1\nnics: [{nic: h1/eth1, rdma: {device: rdma0, qkey: 1, pkey: 0x8001, pkey_index: 1}}]": `line 2: field "nics[0].rdma.pkey_index": given beside pkey`,
		"node: h1\nnics: [{nic: h1/eth1, rdma: {device: rdma0, qkey: 1, pkey_index: 65536}}]":           `field "nics[0].rdma.pkey_index"`,
		head + "[{nic: h2/rdma0}]":                                                                                       `line 3: field "peers[0].address": missing`,
		head + "[{nic: h2/rdma0, gid: \"::ffff:10.0.0.2\", qpn: 17}]":                                                    `line 3: field "peers[0].qkey": missing`,
		head + "[{nic: h2/rdma0, qpn: 17, qkey: 7}]":                                                                     `line 3: field "peers[0].gid": missing`,
		head + "[{nic: h2/rdma0, gid: 10.0.0.2, qpn: 1, qkey: 7}]":                                                       `line 3: field "peers[0].qpn": "1", want a whole number from 2 to 0xffffff`,
		head + "[{nic: h2/rdma0, gid: 10.0.0.2, qpn: 0x1000000, qkey: 7}]":                                               `field "peers[0].qpn"`,
		head + "[{nic: h2/rdma0, gid: \"ff02::1\", qpn: 17, qkey: 7}]":                                                   `field "peers[0].gid": "ff02::1", want a GID`,
		head + "[{nic: h2/a, gid: 10.0.0.2, qpn: 17, qkey: 7}, {nic: h2/b, gid: \"::ffff:10.0.0.2\", qpn: 18, qkey: 7}]": `field "peers[1].gid": ::ffff:10.0.0.2 is also that of h2/a`,
	} {
		if _, err := ParseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngives %v\nwant  %s", text, err, want)
		}
	}
	c, err := ParseConfig([]byte(head + "[{nic: h2/rdma0, gid: \"::ffff:10.0.0.2\", qpn: 17, qkey: 0x7}, {nic: h2/eth1, address: 10.0.0.2}]"))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Edges) != 1 || c.Edges[0].Dst != "h2/rdma0" || c.NICs[0].RDMA.Port != 1 || c.NICs[0].RDMA.PKey != rdma.DefaultPKey || c.Peers[0].RDMA.QPN != 17 {
		t.Errorf("%+v", c)
	}
}

// BenchmarkExchangeRDMA measures the exchange of BenchmarkExchange by RDMA in memory. It shows what the transport
// allocates, apart from the device.
func BenchmarkExchangeRDMA(b *testing.B) {
	x, y, _ := rdmaPair(b)
	for x.sender.edges[0].Acked == 0 || x.sender.edges[1].Acked == 0 { // address handles are made beside
		exchangeAll(b, x, y)
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, n := range []idle{x, y} {
			for _, s := range n.reflector.sessions {
				s.bucket.tokens = s.bucket.burst
			}
		}
		exchangeAll(b, x, y)
	}
}
