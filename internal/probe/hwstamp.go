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
//  1. The NIC must stamp every packet, because STAMP packets do not pass PTP filters. If its present setting is
//     sufficient, it stays as it is, since a PTP daemon may depend on it.
//  2. A NIC that cannot do this, or whose configuration excludes it, is measured by the kernel's stamps. The log has
//     the reason, and the label has the kind.
//  3. Its clock is compared with the system's every crossEvery, and each stamp is translated to the system's time by
//     the last two readings. A clock that cannot be read, or that stepped, gives no hardware sample until two readings
//     agree.
const (
	crossEvery = int64(1e9) // nanoseconds
	// maxRate is the largest rate difference between the clock and the system's between two readings. A clock that
	// gains more was set. The limit is more than a hundred times what a servo of linuxptp may request.
	maxRate = 0.1
	// maxCrossAge is the time after the last reading up to which a stamp can be translated.
	maxCrossAge = 10 * crossEvery
)

// StampDevice is the interface to the host's hardware time stamping.
type StampDevice interface {
	// InterfaceName returns the name of the interface that has an address.
	InterfaceName(a netip.Addr) (string, error)
	Capabilities(name string) (unix.StampCaps, error)
	CurrentFilter(name string) (rx unix.StampFilter, tx bool, err error)
	SetFilter(name string, rx unix.StampFilter) (unix.StampFilter, error)
	OpenClock(n int) (HardwareClock, error)
}

// HardwareClock is the interface to the clock of a NIC. CrossTimestamp reads it and the system's clock at one moment, which is
// known to within width nanoseconds.
type HardwareClock interface {
	CrossTimestamp() (phc, system, width int64, err error)
	Close() error
}

// kernelDevice is the StampDevice of the host.
type kernelDevice struct{ unix.StampDevice }

// OpenClock opens the clock of a NIC. It implements StampDevice.
func (d kernelDevice) OpenClock(n int) (HardwareClock, error) {
	c, err := d.OpenPHC(n)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// errNoHardware is the reason why a NIC is measured by the kernel's stamps.
type errNoHardware struct{ why string }

func (e errNoHardware) Error() string { return e.why }

// hardwareOf switches an interface's stamps on and opens its clock. It returns an errNoHardware if the NIC cannot
// stamp.
func hardwareOf(d StampDevice, name string) (*nicClock, error) {
	caps, err := d.Capabilities(name)
	switch {
	case err != nil:
		return nil, err
	case !caps.TxHardware:
		return nil, errNoHardware{"the NIC has no transmit stamps"}
	case caps.PHC < 0:
		return nil, errNoHardware{"the NIC has no clock that can be read"}
	}
	rx, tx, err := d.CurrentFilter(name)
	if err != nil || rx != unix.StampAll || !tx {
		if caps.RxFilters&(1<<unix.StampAll) == 0 {
			return nil, errNoHardware{"the NIC stamps only PTP packets that it receives"}
		}
		if rx, err = d.SetFilter(name, unix.StampAll); err != nil {
			return nil, err
		}
		if rx != unix.StampAll {
			return nil, errNoHardware{fmt.Sprintf("the driver set filter %d instead of the filter for all packets", rx)}
		}
	}
	c, err := d.OpenClock(caps.PHC)
	if err != nil {
		return nil, err
	}
	return &nicClock{clock: c}, nil
}

// InterfaceName returns the name of the interface that has an address. It implements StampDevice.
func (kernelDevice) InterfaceName(a netip.Addr) (string, error) {
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

// nicClock translates a NIC's stamps to the system's time.
type nicClock struct {
	clock        HardwareClock
	last         int64 // system time of the last reading, including one that failed
	goodReadings int   // readings that agree, up to two
	phc          int64 // the NIC's time of the last good reading
	sys          int64
	rate         float64 // nanoseconds that pass on the system's clock per nanosecond of the NIC's
	width        int64   // of the last good reading
	fails        uint64
}

var errClockStepped = errors.New("the NIC's clock was set")

// readIfDue reads the clock if the last reading is old enough.
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

// systemTime translates a stamp of the NIC to nanoseconds of the system's clock. It returns false while the relation of
// the clocks is not known.
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
