package probe

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/unix"
)

// fakeDevice is a host with one NIC that stamps in hardware, as the kernel's interface presents it.
type fakeDevice struct {
	caps    unix.StampCaps
	rx      unix.StampFilter
	tx      bool
	makes   unix.StampFilter // of StampAll
	setErr  error
	openErr error
	sets    int
	clock   fakeClock
}

func (d *fakeDevice) InterfaceName(netip.Addr) (string, error)             { return "eth1", nil }
func (d *fakeDevice) Capabilities(string) (unix.StampCaps, error)          { return d.caps, nil }
func (d *fakeDevice) CurrentFilter(string) (unix.StampFilter, bool, error) { return d.rx, d.tx, nil }
func (d *fakeDevice) SetFilter(_ string, rx unix.StampFilter) (unix.StampFilter, error) {
	d.sets++
	if d.setErr != nil {
		return 0, d.setErr
	}
	d.rx, d.tx = d.makes, true
	return d.rx, nil
}
func (d *fakeDevice) OpenClock(int) (HardwareClock, error) { return &d.clock, d.openErr }

// fakeClock counts from another epoch than the system's, at another rate.
type fakeClock struct {
	system int64 // its idea of the system's time
	epoch  int64
	rate   float64 // what it gains per nanosecond
	err    error
	closed bool
}

func (c *fakeClock) at(system int64) int64 {
	return system - c.epoch + int64(float64(system-c.epoch)*c.rate)
}
func (c *fakeClock) CrossTimestamp() (phc, system, width int64, err error) {
	return c.at(c.system), c.system, 100, c.err
}
func (c *fakeClock) Close() error { c.closed = true; return nil }

const ptpOnly unix.StampFilter = 12 // HWTSTAMP_FILTER_PTP_V2_EVENT

func TestRule1And2WhichNICsStampInHardware(t *testing.T) {
	able := unix.StampCaps{TxHardware: true, RxFilters: 1<<unix.StampNone | 1<<unix.StampAll | 1<<ptpOnly, PHC: 0}
	for _, tc := range []struct {
		name string
		dev  fakeDevice
		why  string // "": hardware
		sets int
	}{
		{"switched on for us", fakeDevice{caps: able, makes: unix.StampAll}, "", 1},
		{"on already", fakeDevice{caps: able, rx: unix.StampAll, tx: true}, "", 0},
		{"on for PTP, made wider", fakeDevice{caps: able, rx: ptpOnly, tx: true, makes: unix.StampAll}, "", 1},
		{"no transmit stamps", fakeDevice{caps: unix.StampCaps{RxFilters: 2, PHC: 0}}, "no transmit stamps", 0},
		{"no clock", fakeDevice{caps: unix.StampCaps{TxHardware: true, RxFilters: 2, PHC: -1}}, "no clock", 0},
		{"PTP packets only", fakeDevice{caps: unix.StampCaps{TxHardware: true, RxFilters: 1 << ptpOnly, PHC: 0}, rx: ptpOnly, tx: true}, "stamps only PTP packets", 0},
		{"the driver narrows it", fakeDevice{caps: able, makes: ptpOnly}, "set filter 12", 1},
		{"not allowed", fakeDevice{caps: able, setErr: unix.EPERM}, "operation not permitted", 1},
		{"clock not readable", fakeDevice{caps: able, makes: unix.StampAll, openErr: errors.New("no such file")}, "no such file", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := hardwareOf(&tc.dev, "eth1")
			switch {
			case tc.why == "" && (err != nil || c == nil):
				t.Errorf("error %v, want hardware stamps", err)
			case tc.why != "" && (err == nil || !strings.Contains(err.Error(), tc.why)):
				t.Errorf("error %v, want %q", err, tc.why)
			}
			if tc.dev.sets != tc.sets {
				t.Errorf("the filter was set %d times, want %d", tc.dev.sets, tc.sets)
			}
		})
	}
}

func TestRule3StampsAreTranslatedToSystemTime(t *testing.T) {
	const start = int64(1.7e18)
	f := &fakeClock{epoch: start - 5e12, rate: 40e-6}
	c := &nicClock{clock: f}
	read := func(at int64) error { f.system = at; return c.readIfDue(at) }
	if _, ok := c.systemTime(f.at(start)); ok {
		t.Error("translated before any reading")
	}
	for i := range int64(3) {
		if err := read(start + i*crossEvery); err != nil {
			t.Fatal(err)
		}
		if _, ok := c.systemTime(f.at(f.system)); ok != (i > 0) {
			t.Errorf("after %d readings: translated %v", i+1, ok)
		}
	}
	for _, d := range []int64{-500e6, 0, 1, 500e6, 999e6} {
		want := f.system + d
		if got, ok := c.systemTime(f.at(want)); !ok || got-want > 20 || want-got > 20 {
			t.Errorf("%d ns after the last reading: %d ns off, %v", d, got-want, ok)
		}
	}
	if _, ok := c.systemTime(f.at(f.system + maxCrossAge + 1e9)); ok {
		t.Error("translated long after the last reading")
	}
	// The clock is set by a second. There are no samples until two readings agree again.
	f.epoch -= 1e9
	at := f.system + crossEvery
	if err := read(at); !errors.Is(err, errClockStepped) {
		t.Errorf("a step: %v", err)
	}
	if _, ok := c.systemTime(f.at(at)); ok {
		t.Error("translated by a clock that was set")
	}
	if err := read(at + crossEvery); err != nil {
		t.Fatal(err)
	}
	if got, ok := c.systemTime(f.at(f.system)); !ok || got != f.system {
		t.Errorf("after the step: %d ns off, %v", got-f.system, ok)
	}
	// The clock can no longer be read. The old relation is used for a while.
	f.err = errors.New("gone")
	if err := read(f.system + crossEvery); err == nil || c.fails != 2 {
		t.Errorf("a failed reading: %v, %d fails", err, c.fails)
	}
}

// fakeNIC gives every packet the stamps of a NIC in addition to the kernel's. Those of sent packets are wireAfter later
// than the kernel's, and those of received packets are as much earlier.
type fakeNIC struct {
	*unix.Batch
	clock   *fakeClock
	receive bool // received packets are stamped, too
	reports []unix.Report
}

const wireAfter = 300 // nanoseconds

func (f *fakeNIC) Recv(s *unix.UDP) (int, error) {
	k, err := f.Batch.Recv(s)
	for i := range k {
		if g := f.DatagramAt(i); f.receive && g.Stamp != 0 {
			g.Hardware = f.clock.at(g.Stamp - wireAfter)
		}
	}
	return k, err
}

func (f *fakeNIC) RecvErrors(s *unix.UDP) (int, error) {
	f.reports = f.reports[:0]
	k, err := f.Batch.RecvErrors(s)
	for i := range k {
		r := *f.Batch.ReportAt(i)
		f.reports = append(f.reports, r)
		if r.Kind == unix.ReportTxStamp {
			f.reports = append(f.reports, unix.Report{Kind: unix.ReportTxStamp, ID: r.ID, Hardware: f.clock.at(r.Stamp + wireAfter)})
		}
	}
	return len(f.reports), err
}

func (f *fakeNIC) ReportAt(i int) *unix.Report { return &f.reports[i] }

// liveClock reads the fake clock at the real system time.
type liveClock struct{ *fakeClock }

func (c liveClock) CrossTimestamp() (phc, system, width int64, err error) {
	now := time.Now().UnixNano()
	return c.at(now), now, 100, nil
}

type liveDevice struct{ *fakeDevice }

func (d liveDevice) OpenClock(int) (HardwareClock, error) { return liveClock{&d.clock}, nil }

// hardwareIdle returns an engine whose NIC stamps in hardware, by a clock of its own epoch and rate.
func hardwareIdle(t *testing.T, c *Config, deps Deps, clock fakeClock, receive bool) idle {
	t.Helper()
	d := liveDevice{&fakeDevice{caps: unix.StampCaps{TxHardware: true, RxFilters: 1 << unix.StampAll}, makes: unix.StampAll, clock: clock}}
	c.NICs[0].Device = "eth1"
	deps.Device = d
	n := newIdle(t, c, deps)
	f := &fakeNIC{Batch: unix.NewBatch(unix.BatchSize), clock: &d.clock, receive: receive}
	n.sockets().in, n.sockets().errs = f, f
	return n
}

// crossed gives the NIC's clock two readings, a second apart.
func (i idle) crossed(t *testing.T) {
	t.Helper()
	if err := i.ports.udp.clock.readIfDue(time.Now().UnixNano()); err != nil {
		t.Fatal(err)
	}
	i.ports.udp.clock.sys -= crossEvery
	i.ports.udp.clock.phc = i.ports.udp.clock.clock.(liveClock).at(i.ports.udp.clock.sys)
	i.ports.udp.clock.last -= crossEvery
}

// Delays between two NICs' stamps are published under their own label, although their clocks have nothing in common.
func TestHardwareStampsEndToEnd(t *testing.T) {
	for _, tc := range []struct {
		name      string
		declared  bool // the peers are known to stamp in hardware
		receive   bool // the far NIC stamps what it receives
		fwd, kind string
	}{
		{"both ends", true, true, "hardware", "hardware"},
		{"the far end is not known to", false, true, "kernel", "hardware"},
		{"the far end stamps what it sends only", true, false, "kernel", "hardware"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ca, cb := loopConfig("h1", 1, 2, "h2/eth1", 1), loopConfig("h2", 2, 1, "h1/eth1", 1)
			ca.Peers[0].Hardware, cb.Peers[0].Hardware = tc.declared, tc.declared
			cb.Edges = nil
			a, b := hardwareIdle(t, ca, HostDeps(), fakeClock{epoch: 5e17, rate: 20e-6}, true), hardwareIdle(t, cb, HostDeps(), fakeClock{epoch: -3e17, rate: -30e-6}, tc.receive)
			a.crossed(t)
			b.crossed(t)
			until(t, 20*time.Second, "200 answers", func() bool {
				a.dueNow()
				for _, n := range []idle{a, b, a, b} {
					n.step(t)
				}
				return a.sender.edges[0].Acked >= 200
			})
			s := a.e.Snapshot().NICs[0]
			e := s.Edges[0]
			got := map[string]*Histogram{"hardware": &e.OWD[0].Hardware, "kernel": &e.OWD[0].Kernel}
			for kind, h := range got {
				if full := h.Count+10 >= e.Acked; full != (kind == tc.fwd) || !full && h.Count > 10 {
					t.Errorf("%d of %d forward delays by %s stamps, want them by %s", h.Count, e.Acked, kind, tc.fwd)
				}
			}
			if s.TxKind != tc.kind || s.KindWhy != "" {
				t.Errorf("kind %q because %q, want %q", s.TxKind, s.KindWhy, tc.kind)
			}
			if low, _ := s.NICDelay.Quantile(0.01); low < wireAfter*0.9 || s.NICDelay.Count < e.Acked {
				t.Errorf("%d NIC delays, the lowest %v ns; want %d ns", s.NICDelay.Count, low, wireAfter)
			}
			if high, _ := s.NICDelay.Quantile(0.9); high > wireAfter*1.2 {
				t.Errorf("NIC delays up to %v ns; want %d ns", high, wireAfter)
			}
			if p50, ok := got[tc.fwd].Quantile(0.5); !ok || p50 < -2*wireAfter || p50 > 1e6 {
				t.Errorf("median forward delay %v ns by %s stamps", p50, tc.fwd)
			}
			if rev := e.OWD[1]; tc.declared && rev.Hardware.Count+20 < e.Acked {
				t.Errorf("%d of %d reverse delays by hardware stamps", rev.Hardware.Count, e.Acked)
			}
		})
	}
}
