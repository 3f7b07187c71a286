package probe

import (
	"errors"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/unix"
)

// fakeDevice is a host with one NIC that stamps in hardware, as the kernel's
// interface shows it.
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

func (d *fakeDevice) Caps(string) (unix.StampCaps, error)           { return d.caps, nil }
func (d *fakeDevice) Filter(string) (unix.StampFilter, bool, error) { return d.rx, d.tx, nil }
func (d *fakeDevice) SetFilter(_ string, rx unix.StampFilter) (unix.StampFilter, error) {
	d.sets++
	if d.setErr != nil {
		return 0, d.setErr
	}
	d.rx, d.tx = d.makes, true
	return d.rx, nil
}
func (d *fakeDevice) OpenClock(int) (hardwareClock, error) { return &d.clock, d.openErr }

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
func (c *fakeClock) Cross() (phc, system, width int64, err error) {
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
		{"PTP packets only", fakeDevice{caps: unix.StampCaps{TxHardware: true, RxFilters: 1 << ptpOnly, PHC: 0}, rx: ptpOnly, tx: true}, "PTP packets only", 0},
		{"the driver narrows it", fakeDevice{caps: able, makes: ptpOnly}, "made filter 12", 1},
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

func TestRule3StampsAreToldAsSystemTime(t *testing.T) {
	const start = int64(1.7e18)
	f := &fakeClock{epoch: start - 5e12, rate: 40e-6}
	c := &nicClock{clock: f}
	read := func(at int64) error { f.system = at; return c.read(at) }
	if _, ok := c.system(f.at(start)); ok {
		t.Error("translated before any reading")
	}
	for i := range int64(3) {
		if err := read(start + i*crossEvery); err != nil {
			t.Fatal(err)
		}
		if _, ok := c.system(f.at(f.system)); ok != (i > 0) {
			t.Errorf("after %d readings: translated %v", i+1, ok)
		}
	}
	for _, d := range []int64{-500e6, 0, 1, 500e6, 999e6} {
		want := f.system + d
		if got, ok := c.system(f.at(want)); !ok || got-want > 20 || want-got > 20 {
			t.Errorf("%d ns after the last reading: %d ns off, %v", d, got-want, ok)
		}
	}
	if _, ok := c.system(f.at(f.system + maxCrossAge + 1e9)); ok {
		t.Error("translated long after the last reading")
	}
	// It is set by a second: nothing until two readings agree again.
	f.epoch -= 1e9
	at := f.system + crossEvery
	if err := read(at); !errors.Is(err, errClockStepped) {
		t.Errorf("a step: %v", err)
	}
	if _, ok := c.system(f.at(at)); ok {
		t.Error("translated by a clock that was set")
	}
	if err := read(at + crossEvery); err != nil {
		t.Fatal(err)
	}
	if got, ok := c.system(f.at(f.system)); !ok || got != f.system {
		t.Errorf("after the step: %d ns off, %v", got-f.system, ok)
	}
	// It cannot be read any more: the old relation serves for a while.
	f.err = errors.New("gone")
	if err := read(f.system + crossEvery); err == nil || c.fails != 2 {
		t.Errorf("a failed reading: %v, %d fails", err, c.fails)
	}
}
