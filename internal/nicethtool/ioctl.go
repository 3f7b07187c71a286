package nicethtool

import (
	"encoding/binary"
	"errors"
	"strings"
	"syscall"

	"github.com/graylink/graylink/internal/nicethtool/module"
	"github.com/graylink/graylink/internal/nichw"
)

// Commands of SIOCETHTOOL (ethtool.h).
const (
	getDriver       = 0x03 // ETHTOOL_GDRVINFO
	getStrings      = 0x1b // ETHTOOL_GSTRINGS
	getStatistics   = 0x1d // ETHTOOL_GSTATS
	getModuleInfo   = 0x42 // ETHTOOL_GMODULEINFO
	getModuleEEPROM = 0x43 // ETHTOOL_GMODULEEEPROM

	statisticStrings = 1  // ETH_SS_STATS
	nameLength       = 32 // ETH_GSTRING_LEN
)

// Limits on what a kernel can be believed to have.
const (
	maxStatistics = 1 << 16
	maxEEPROM     = 4096
)

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

// readDriver reads struct ethtool_drvinfo: six strings and five numbers.
func readDriver(k Kernel, name string) (driver, error) {
	b := make([]byte, 196)
	binary.NativeEndian.PutUint32(b, getDriver)
	if err := k.Ioctl(name, b); err != nil {
		return driver{}, err
	}
	n := binary.NativeEndian.Uint32(b[180:]) // n_stats
	if n > maxStatistics {
		return driver{}, malformedError("less than %d statistics are expected, not %d", maxStatistics, n)
	}
	return driver{name: cString(b[4:36]), bus: cString(b[100:132]), number: int(n)}, nil
}

// statisticsCapacity returns for how many statistics a buffer is made. The kernel writes as many as there are now,
// whatever size is given, and a driver may get more queues between two requests.
func statisticsCapacity(n int) int { return max(2*n, n+4096) }

// readStatistics reads the values, and the names if the known ones are not of this driver, place and number (rule 4).
// The library for these ioctls reads names every time, and loses their order and those that occur twice.
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
		binary.NativeEndian.PutUint32(b, getStatistics)
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
	b := make([]byte, 12+nameLength*statisticsCapacity(d.number))
	binary.NativeEndian.PutUint32(b, getStrings)
	binary.NativeEndian.PutUint32(b[4:], statisticStrings)
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
		at := 12 + nameLength*i
		out.all[i] = strings.ToValidUTF8(strings.TrimSpace(cString(b[at:at+nameLength])), "?")
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

// Kinds of a module's memory as the ioctl has it (ETH_MODULE_SFF_*).
const (
	sff8079 = 1
	sff8472 = 2
	sff8636 = 3
	sff8436 = 4
)

// readImage reads a module in the older way: the driver lays its pages end to end.
func readImage(k Kernel, name string) (module.Image, error) {
	info := make([]byte, 4+4+4+8*4) // struct ethtool_modinfo
	binary.NativeEndian.PutUint32(info, getModuleInfo)
	if err := k.Ioctl(name, info); err != nil {
		return nil, err
	}
	kind, length := binary.NativeEndian.Uint32(info[4:]), binary.NativeEndian.Uint32(info[8:])
	if kind < sff8079 || kind > sff8436 {
		return nil, malformedError("a module of type 1 to 4 is expected, not %d", kind)
	}
	if length < 2*module.Half || length > maxEEPROM {
		return nil, malformedError("a module of %d to %d octets is expected, not of %d", 2*module.Half, maxEEPROM, length)
	}
	b := make([]byte, 16+length) // struct ethtool_eeprom
	binary.NativeEndian.PutUint32(b, getModuleEEPROM)
	binary.NativeEndian.PutUint32(b[12:], length)
	if err := k.Ioctl(name, b); err != nil {
		return nil, err
	}
	if n := binary.NativeEndian.Uint32(b[12:]); n != length {
		return nil, malformedError("%d octets of the module are expected, not %d", length, n)
	}
	img := module.Image{}
	for i := range int(length) / module.Half {
		at := module.Block{Address: module.A0}
		switch {
		case i == 0:
		case i == 1 || kind == sff8636 || kind == sff8436:
			at.Upper, at.Page = true, uint8(i-1) // lower memory, then pages 00h to 03h
		case i == 2:
			at.Address = module.A2
		default:
			continue // A2h's upper half is the user's
		}
		img[at] = b[16+i*module.Half:][:module.Half]
	}
	return img, nil
}

// readBlock reads a block of a module, and all there is where only the older way is open.
func readBlock(k Kernel, name string, b module.Block) (img module.Image, all bool, err error) {
	data, err := readEEPROM(k, name, b, b.Offset(), module.Half)
	if errors.Is(err, syscall.EOPNOTSUPP) && b == module.Lower {
		img, err = readImage(k, name)
		return img, true, err
	}
	if err != nil {
		return nil, false, err
	}
	return module.Image{b: data}, false, nil
}
