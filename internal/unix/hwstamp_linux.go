package unix

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	sys "golang.org/x/sys/unix"
)

// StampFilter selects the received packets that a NIC stamps (linux/net_tstamp.h).
type StampFilter int32

// Filters that callers use. A NIC has others for PTP only.
const (
	StampNone StampFilter = sys.HWTSTAMP_FILTER_NONE
	StampAll  StampFilter = sys.HWTSTAMP_FILTER_ALL
)

// Errors of the stamping calls that callers decide on with errors.Is.
const (
	EOPNOTSUPP = sys.EOPNOTSUPP
	ERANGE     = sys.ERANGE
	ENODEV     = sys.ENODEV
)

// StampCaps represents the packets that an interface can stamp (ethtool -T).
type StampCaps struct {
	TxHardware bool   // any transmitted packet that requests it
	RxFilters  uint32 // bit f is set if it supports StampFilter f
	PHC        int    // number of its clock, /dev/ptpN; negative: none
}

// StampDevice gives access to the kernel's hardware time stamping of interfaces, in the network namespace of the
// calling thread.
type StampDevice struct{}

func ioctlSocket(f func(fd int) error) error {
	fd, err := sys.Socket(sys.AF_INET, sys.SOCK_DGRAM|sys.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	return errors.Join(f(fd), sys.Close(fd))
}

// Capabilities reads the stamping capabilities of an interface (ETHTOOL_GET_TS_INFO).
func (StampDevice) Capabilities(name string) (c StampCaps, err error) {
	err = ioctlSocket(func(fd int) error {
		info, err := sys.IoctlGetEthtoolTsInfo(fd, name)
		if err != nil {
			return fmt.Errorf("interface %s: read its time stamping abilities: %w", name, err)
		}
		const tx = sys.SOF_TIMESTAMPING_TX_HARDWARE | sys.SOF_TIMESTAMPING_RAW_HARDWARE
		c = StampCaps{PHC: int(info.Phc_index), RxFilters: info.Rx_filters,
			TxHardware: info.So_timestamping&tx == tx && info.Tx_types&(1<<sys.HWTSTAMP_TX_ON) != 0}
		return nil
	})
	return c, err
}

// CurrentFilter reads the filter of the received packets that an interface stamps at present, and whether it stamps
// transmitted ones (SIOCGHWTSTAMP).
func (StampDevice) CurrentFilter(name string) (rx StampFilter, tx bool, err error) {
	err = ioctlSocket(func(fd int) error {
		c, err := sys.IoctlGetHwTstamp(fd, name)
		if err != nil {
			return fmt.Errorf("interface %s: read its time stamping: %w", name, err)
		}
		rx, tx = StampFilter(c.Rx_filter), c.Tx_type == sys.HWTSTAMP_TX_ON
		return nil
	})
	return rx, tx, err
}

// SetFilter enables hardware stamps for transmitted packets, and for received ones by rx. It returns the filter that
// the driver set in place of rx (SIOCSHWTSTAMP, which needs CAP_NET_ADMIN).
func (StampDevice) SetFilter(name string, rx StampFilter) (granted StampFilter, err error) {
	err = ioctlSocket(func(fd int) error {
		c := sys.HwTstampConfig{Tx_type: sys.HWTSTAMP_TX_ON, Rx_filter: int32(rx)}
		if err := sys.IoctlSetHwTstamp(fd, name, &c); err != nil {
			return fmt.Errorf("interface %s: set its time stamping: %w", name, err)
		}
		// The driver writes back the filter that it really uses. Some drivers report it only here.
		now, err := sys.IoctlGetHwTstamp(fd, name)
		if err != nil {
			granted = StampFilter(c.Rx_filter)
			return nil
		}
		granted = StampFilter(now.Rx_filter)
		return nil
	})
	return granted, err
}

// PHC represents a NIC's clock, a PTP hardware clock.
type PHC struct{ f *os.File }

// OpenPHC opens the clock with number n.
func (StampDevice) OpenPHC(n int) (*PHC, error) {
	f, err := os.OpenFile(fmt.Sprintf("/dev/ptp%d", n), os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("open a NIC's clock: %w", err)
	}
	return &PHC{f}, nil
}

// Close closes the clock.
func (p *PHC) Close() error { return p.f.Close() }

// phcSamples is the number of readings of a clock, each between two readings of the system's. The tightest one counts.
const phcSamples = 5

// CrossTimestamp reads the clock and the system's realtime clock at one moment, in nanoseconds. width is the time
// between the system's readings around it. It uses PTP_SYS_OFFSET_PRECISE if the device has it, which is exact, and
// otherwise PTP_SYS_OFFSET_EXTENDED.
func (p *PHC) CrossTimestamp() (phc, system, width int64, err error) {
	defer runtime.KeepAlive(p.f)
	fd := int(p.f.Fd())
	if c, err := sys.IoctlPtpSysOffsetPrecise(fd); err == nil {
		return ptpTime(c.Device), ptpTime(c.Realtime), 0, nil
	}
	c, err := sys.IoctlPtpSysOffsetExtended(fd, phcSamples)
	if err != nil {
		return 0, 0, 0, fmt.Errorf("read %s against the system clock: %w", p.f.Name(), err)
	}
	for i := range c.Samples {
		before, at, after := ptpTime(c.Ts[i][0]), ptpTime(c.Ts[i][1]), ptpTime(c.Ts[i][2])
		if i == 0 || after-before < width {
			phc, system, width = at, before+(after-before)/2, after-before
		}
	}
	return phc, system, width, nil
}

func ptpTime(t sys.PtpClockTime) int64 { return t.Sec*1e9 + int64(t.Nsec) }
