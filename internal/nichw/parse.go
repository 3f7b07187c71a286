package nichw

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// State is a port's logical state (IBA 14.2.5.6, and the file state of sysfs); 0: not known.
type State uint8

// Logical states. ActiveDefer is the architecture's fifth.
const (
	StateUnknown State = iota
	Down
	Init
	Armed
	Active
	ActiveDefer
)

// States are the names, as sysfs has them, by number; 0 has none.
var States = [...]string{Down: "DOWN", Init: "INIT", Armed: "ARMED", Active: "ACTIVE", ActiveDefer: "ACTIVE_DEFER"}

func (s State) String() string { return nameOf(States[:], int(s)) }

// Phys is a port's physical state (IBA 14.2.5.6, and the file phys_state); 0: not known.
type Phys uint8

// Physical states.
const (
	PhysUnknown Phys = iota
	Sleep
	Polling
	Disabled
	Training
	LinkUp
	LinkErrorRecovery
	PhyTest
)

// PhysStates are the names by number; 0 has none.
var PhysStates = [...]string{Sleep: "Sleep", Polling: "Polling", Disabled: "Disabled", Training: "PortConfigurationTraining", LinkUp: "LinkUp",
	LinkErrorRecovery: "LinkErrorRecovery", PhyTest: "Phy Test"}

func (p Phys) String() string { return nameOf(PhysStates[:], int(p)) }

func nameOf(names []string, i int) string {
	if i <= 0 || i >= len(names) {
		return "unknown"
	}
	return names[i]
}

// parseState reads "4: ACTIVE": the number is what counts, as the name of one is not the
// same in all kernels ("7: Phy Test", "7: Phy test").
func parseState(s string, names []string) (int, error) {
	head, _, _ := strings.Cut(s, ":")
	n, err := strconv.Atoi(strings.TrimSpace(head))
	if err != nil || n < 0 || n >= len(names) {
		return 0, fmt.Errorf(`"N: NAME" with N up to %d was expected, not %q`, len(names)-1, clipText(s))
	}
	return n, nil
}

func clipText(s string) string { return s[:min(len(s), 40)] }

// maxRate is beyond any link: 100 Tb/s, in bytes per second.
const maxRate = 100e12 / 8

// parseRate reads "400 Gb/sec (4X NDR)", in bytes per second; "0 Gb/sec" is no rate.
func parseRate(s string) (bytes int64, ok bool, err error) {
	fail := func() (int64, bool, error) {
		return 0, false, fmt.Errorf(`"400 Gb/sec (4X NDR)" or the like was expected, not %q`, clipText(s))
	}
	fields := strings.Fields(s)
	if len(fields) < 2 || fields[1] != "Gb/sec" {
		return fail()
	}
	gb, err := strconv.ParseFloat(fields[0], 64)
	if err != nil || !(gb >= 0 && gb*1e9/8 <= maxRate) {
		return fail()
	}
	return int64(gb * 1e9 / 8), gb > 0, nil
}

// parseSpeed reads an interface's speed, in Mb/s; -1 is what a link that is down has, and
// 0 what a device has that does not know.
func parseSpeed(s string) (bytes int64, ok bool, err error) {
	mb, err := strconv.ParseInt(s, 10, 64)
	if err != nil || mb > maxRate/1e6*8 {
		return 0, false, fmt.Errorf("megabits per second were expected, not %q", clipText(s))
	}
	return mb * 1e6 / 8, mb > 0, nil
}

// parseLinkSpeed reads "16.0 GT/s PCIe" or "16 GT/s", in transfers per second; "Unknown" is none.
func parseLinkSpeed(s string) (float64, bool, error) {
	head, rest, _ := strings.Cut(s, " ")
	if head == "Unknown" {
		return 0, false, nil
	}
	gt, err := strconv.ParseFloat(head, 64)
	if err != nil || !strings.HasPrefix(rest, "GT/s") || !(gt > 0 && gt < 1000) {
		return 0, false, fmt.Errorf(`"16.0 GT/s PCIe" was expected, not %q`, clipText(s))
	}
	return gt * 1e9, true, nil
}

// GID is one entry of a port's table (IBA 4.1.1).
type GID struct {
	Index int
	// Address is the GID; an IPv4 address is mapped into it.
	Address netip.Addr
	// Type is "IB", "RoCE v1" or "RoCE v2" as the kernel reports it, and "" if it does not.
	Type string
	// Netdev is the interface behind it, "" if the kernel does not report it.
	Netdev string
}

// parseGID reads eight groups of four digits; an entry that is all zeros is empty. So is one
// whose lower half is zeros: a prefix without an interface.
func parseGID(s string) (a netip.Addr, ok bool, err error) {
	a, err = netip.ParseAddr(s)
	if err != nil || !a.Is6() || a.Zone() != "" {
		return netip.Addr{}, false, fmt.Errorf("an address of eight groups was expected, not %q", clipText(s))
	}
	b := a.As16()
	for _, x := range b[8:] {
		ok = ok || x != 0
	}
	return a, ok, nil
}

// IsIPv4 reports whether the GID is that of an IPv4 address.
func (g *GID) IsIPv4() bool { return g.Address.Is4In6() }

// findLine finds the rest of the line that begins with a word and a separator.
func findLine(s, word, separator string) (string, bool) {
	for len(s) > 0 {
		var l string
		l, s, _ = strings.Cut(s, "\n")
		if k, v, ok := strings.Cut(l, separator); ok && k == word {
			return v, true
		}
	}
	return "", false
}

// parseUevent finds a variable of a uevent file.
func parseUevent(s, name string) string {
	v, _ := findLine(s, name, "=")
	return v
}

// parseAER finds a total of a file of PCI error counts: "TOTAL_ERR_FATAL 3".
func parseAER(s, total string) (uint64, error) {
	v, ok := findLine(s, total, " ")
	if !ok {
		return 0, fmt.Errorf("a line %s was expected", total)
	}
	return parseNumber([]byte(v))
}
