package nicethtool

import (
	"encoding/binary"
	"strings"

	"github.com/safchain/ethtool"

	"github.com/graylink/graylink/internal/nichw"
)

// maxStatistics limits the number that a kernel can be believed to have.
const maxStatistics = 1 << 16

// driver identifies the instance of a driver, and the number of its statistics.
type driver struct {
	name, bus string
	number    int
}

// statisticNames are those of the statistics of one instance. They are not changed once made, but that the
// reader adds which are kept.
type statisticNames struct {
	driver      driver
	all         []string
	keptIndexes []int // nil if not known yet
}

// statistics are names and their values.
type statistics struct {
	names  *statisticNames
	values []uint64
}

// readDriver identifies the driver of an interface.
func readDriver(k Kernel, name string) (driver, error) {
	d, err := k.DriverInfo(name)
	if err != nil {
		return driver{}, err
	}
	if d.NStats > maxStatistics {
		return driver{}, malformedError("less than %d statistics are expected, not %d", maxStatistics, d.NStats)
	}
	return driver{name: d.Driver, bus: d.BusInfo, number: int(d.NStats)}, nil
}

// statisticsCapacity returns for how many statistics a buffer is made. The kernel writes as many as there are now,
// whatever size is given, and a driver may get more queues between two requests.
func statisticsCapacity(n int) int { return max(2*n, n+4096) }

// readStatistics reads the values, and the names if the known ones are not of this driver, place and number (rule 4).
// The library for these ioctls reads names every time, and loses their order and the first of those that occur twice
// (ADR 17).
func readStatistics(k Kernel, name string, have *statisticNames) (*statistics, error) {
	d, err := readDriver(k, name)
	if err != nil {
		return nil, err
	}
	for range 2 {
		if d.number == 0 {
			return &statistics{names: &statisticNames{driver: d}}, nil
		}
		if have == nil || have.driver != d {
			if have, err = readNames(k, name, d); err != nil {
				return nil, err
			}
		}
		b := make([]byte, 8+8*statisticsCapacity(d.number))
		binary.NativeEndian.PutUint32(b, ethtool.ETHTOOL_GSTATS)
		binary.NativeEndian.PutUint32(b[4:], uint32(d.number))
		if err := k.Ioctl(name, b); err != nil {
			return nil, err
		}
		n := int(binary.NativeEndian.Uint32(b[4:]))
		if n == len(have.all) {
			s := &statistics{names: have, values: make([]uint64, n)}
			for i := range s.values {
				s.values[i] = binary.NativeEndian.Uint64(b[8+8*i:])
			}
			return s, nil
		}
		// The number has changed since it was read.
		if n > maxStatistics {
			break
		}
		d.number = n
	}
	return nil, malformedError("as many values as names of statistics are expected (%d)", len(have.all))
}

func readNames(k Kernel, name string, d driver) (*statisticNames, error) {
	b := make([]byte, 12+ethtool.ETH_GSTRING_LEN*statisticsCapacity(d.number))
	binary.NativeEndian.PutUint32(b, ethtool.ETHTOOL_GSTRINGS)
	binary.NativeEndian.PutUint32(b[4:], ethtool.ETH_SS_STATS)
	binary.NativeEndian.PutUint32(b[8:], uint32(d.number))
	if err := k.Ioctl(name, b); err != nil {
		return nil, err
	}
	n := int(binary.NativeEndian.Uint32(b[8:]))
	if n > statisticsCapacity(d.number) {
		return nil, malformedError("%d names of statistics are expected, not %d", d.number, n)
	}
	out := &statisticNames{driver: d, all: make([]string, n)}
	for i := range out.all {
		at := 12 + ethtool.ETH_GSTRING_LEN*i
		out.all[i] = strings.ToValidUTF8(strings.TrimSpace(cString(b[at:at+ethtool.ETH_GSTRING_LEN])), "?")
	}
	return out, nil
}

// filteredCounters returns the statistics of a driver that a filter leaves, and the first of those with the same
// name.
func (s *statistics) filteredCounters(excluded func(string) bool) []nichw.Counter {
	if s.names.keptIndexes == nil {
		s.names.keptIndexes = []int{}
		seen := map[string]bool{}
		for i, n := range s.names.all {
			if n != "" && !seen[n] && !excluded(n) {
				seen[n] = true
				s.names.keptIndexes = append(s.names.keptIndexes, i)
			}
		}
	}
	out := make([]nichw.Counter, len(s.names.keptIndexes))
	for i, at := range s.names.keptIndexes {
		out[i] = nichw.Counter{Name: s.names.all[at], Value: s.values[at]}
	}
	return out
}
