package probe

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/graylink/graylink/internal/unix"
)

// A NIC's stamps are times of its own clock. They are used under these rules:
//
//  1. Only a NIC that stamps every packet will do: STAMP is none of the packets
//     that PTP filters let through. What it stamps already is left as it is
//     where it is enough, since a PTP daemon may depend on it.
//  2. A NIC that cannot, or must not be asked, is measured by the kernel's
//     stamps; why is told in the log and by the label.
//  3. Its clock is read against the system's every crossEvery, and each stamp is
//     told as the system's time by the last two readings. A clock that cannot be
//     read, or that stepped, gives no hardware sample until two readings agree.
const (
	crossEvery = int64(1e9) // nanoseconds
	// maxRate is what a clock may gain on the system's between two readings; what
	// gains more was set. A hundred times what a servo of linuxptp may ask for
	// would still be less.
	maxRate = 0.1
	// maxCrossAge is how long after the last reading a stamp can be translated.
	maxCrossAge = 10 * crossEvery
)

// stampDevice is the host's hardware time stamping.
type stampDevice interface {
	Capabilities(name string) (unix.StampCaps, error)
	CurrentFilter(name string) (rx unix.StampFilter, tx bool, err error)
	SetFilter(name string, rx unix.StampFilter) (unix.StampFilter, error)
	OpenClock(n int) (hardwareClock, error)
}

// hardwareClock is the clock of a NIC; Cross reads it and the system's at one
// moment, width nanoseconds wide.
type hardwareClock interface {
	CrossTimestamp() (phc, system, width int64, err error)
	Close() error
}

// kernelDevice is the real one.
type kernelDevice struct{ unix.StampDevice }

func (d kernelDevice) OpenClock(n int) (hardwareClock, error) {
	c, err := d.OpenPHC(n)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// errNoHardware says why a NIC is measured by the kernel's stamps.
type errNoHardware struct{ why string }

func (e errNoHardware) Error() string { return e.why }

// hardwareOf switches an interface's stamps on and opens its clock.
func hardwareOf(d stampDevice, name string) (*nicClock, error) {
	caps, err := d.Capabilities(name)
	switch {
	case err != nil:
		return nil, err
	case !caps.TxHardware:
		return nil, errNoHardware{"it has no transmit stamps"}
	case caps.PHC < 0:
		return nil, errNoHardware{"it has no clock that can be read"}
	}
	rx, tx, err := d.CurrentFilter(name)
	if err != nil || rx != unix.StampAll || !tx {
		if caps.RxFilters&(1<<unix.StampAll) == 0 {
			return nil, errNoHardware{"it stamps received PTP packets only"}
		}
		if rx, err = d.SetFilter(name, unix.StampAll); err != nil {
			return nil, err
		}
		if rx != unix.StampAll {
			return nil, errNoHardware{fmt.Sprintf("its driver made filter %d of the one for all packets", rx)}
		}
	}
	c, err := d.OpenClock(caps.PHC)
	if err != nil {
		return nil, err
	}
	return &nicClock{clock: c}, nil
}

// interfaceOf is the name of the interface that has an address.
func interfaceOf(a netip.Addr) (string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("list interfaces: %w", err)
	}
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, own := range addrs {
			if p, ok := own.(*net.IPNet); ok && p.IP.Equal(a.AsSlice()) {
				return i.Name, nil
			}
		}
	}
	return "", fmt.Errorf("no interface has the address %v", a)
}

// nicClock tells a NIC's stamps as the system's time.
type nicClock struct {
	clock        hardwareClock
	last         int64 // system time of the last reading, also of one that failed
	goodReadings int   // readings that agree, up to two
	phc          int64 // of the last good one
	sys          int64
	rate         float64 // what the system's clock gains per nanosecond of the NIC's
	width        int64   // of the last good reading
	fails        uint64
}

var errClockStepped = errors.New("the NIC's clock was set")

// readIfDue takes a reading when it is time to.
func (c *nicClock) readIfDue(now int64) error {
	if now-c.last < crossEvery && now >= c.last {
		return nil
	}
	c.last = now
	phc, sys, width, err := c.clock.CrossTimestamp()
	if err != nil {
		c.fails++
		return err
	}
	if c.goodReadings > 0 {
		d := phc - c.phc
		rate := float64(sys-c.sys)/float64(d) - 1
		if d <= 0 || rate > maxRate || rate < -maxRate {
			c.fails++
			c.goodReadings, c.phc, c.sys = 1, phc, sys
			return errClockStepped
		}
		c.rate = rate
	}
	c.goodReadings, c.phc, c.sys, c.width = min(c.goodReadings+1, 2), phc, sys, width
	return nil
}

// systemTime tells a stamp of the NIC in nanoseconds of the system's clock; ok is
// false while the clocks' relation is not known.
func (c *nicClock) systemTime(hw int64) (ns int64, ok bool) {
	if c == nil || hw == 0 || c.goodReadings < 2 {
		return 0, false
	}
	d := hw - c.phc
	if d > maxCrossAge || d < -maxCrossAge {
		return 0, false
	}
	return c.sys + d + int64(float64(d)*c.rate), true
}
