// Package routetable represents what a switch reports of its routes and of its sessions with neighbours: by which ports
// its kernel sends to a prefix, which ports its routing daemon selected, and by which ports the daemon has a valid path.
// It is the vocabulary that graylink-switch, which makes the reports, shares with the analyzer, which reads them.
//
// Where a map is nil, nothing is known. A map without entries says that there are no routes.
package routetable

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Protocols of sessions.
const (
	BGP = "bgp"
	BFD = "bfd"
)

// Session represents a session of the switch with the neighbour at a port.
type Session struct {
	Port     string `json:"port"`
	Peer     string `json:"peer,omitempty"` // address of the neighbour; empty if it is not known
	Protocol string `json:"protocol"`       // BGP or BFD
	Up       bool   `json:"up"`
	// Established counts how often a session of BGP was established, and Downs how often one of BFD went down, since the
	// daemon started. They are nil if they are not known.
	Established *uint64 `json:"established,omitempty"`
	Downs       *uint64 `json:"downs,omitempty"`
	// Changed is when the session went up or down last. BGP's is exact to a second.
	Changed time.Time `json:"changed,omitzero"`
	// Detection is how long a neighbour may be silent until the session ends: BGP's hold time, or BFD's detection time.
	Detection time.Duration `json:"detection_ns,omitempty"`
}

// Report answers a query for the changes since a version.
//
// If Since is 0, the report has the whole table. If Since is Version, nothing changed, and the report has no table and no
// sessions. Otherwise it has all sessions, and what the table says now of each prefix that changed since. Prefixes that
// the table no longer has are Gone.
type Report struct {
	Switch string `json:"switch"`
	// Instance is a new random value with every start. Versions of different instances cannot be compared.
	Instance string `json:"instance"`
	Since    uint64 `json:"since"`
	Version  uint64 `json:"version"`
	// At is the time of the answer by the switch's clock. FIBAt and RIBAt are the times at which the last reading began
	// of the kernel's table and of the daemon's. They are zero if there was none.
	At    time.Time `json:"at"`
	FIBAt time.Time `json:"fib_at,omitzero"`
	RIBAt time.Time `json:"rib_at,omitzero"`
	// Groups are lists of ports, each in alphabetical order. An entry of a table is the number of its group. An empty group
	// stands for a route that discards packets.
	Groups [][]string `json:"groups,omitzero"`
	// FIB has the ports by which the kernel sends. RIB has the ports that the routing daemon selected. Paths has all ports
	// over which the daemon has a valid path, also those that it did not select.
	FIB   map[netip.Prefix]int `json:"fib,omitzero"`
	RIB   map[netip.Prefix]int `json:"rib,omitzero"`
	Paths map[netip.Prefix]int `json:"paths,omitzero"`
	// Changed is when an entry of FIB changed last since the agent started. It has prefixes that left FIB within ChangeKept.
	Changed  map[netip.Prefix]time.Time `json:"changed,omitzero"`
	Gone     []netip.Prefix             `json:"gone,omitempty"`
	Sessions []Session                  `json:"sessions,omitzero"`
	// Omitted counts the prefixes that the table has no room for. Tables are incomplete if it is not 0.
	Omitted int `json:"omitted,omitempty"`
}

// ChangeKept is how long a report says when a prefix left FIB.
const ChangeKept = 10 * time.Minute

const (
	// MaxPrefixes is how many prefixes a report has at most.
	MaxPrefixes = 1 << 16
	// maxSessions and maxPorts are how many sessions a report has at most, and ports a group.
	maxSessions = 4096
	maxPorts    = 4096
)

// ParseReport reads a report, and checks it.
func ParseReport(text []byte) (*Report, error) {
	var out Report
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	if err := out.validate(); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	return &out, nil
}

// validate returns an error that names the first field that is not valid.
func (r *Report) validate() error {
	switch {
	case r.Switch == "":
		return fmt.Errorf(`"switch": a name is expected`)
	case r.Instance == "":
		return fmt.Errorf(`"instance": a value is expected`)
	case r.Since > r.Version:
		return fmt.Errorf(`"since" %d: at most the version %d is expected`, r.Since, r.Version)
	case len(r.Sessions) > maxSessions:
		return fmt.Errorf(`"sessions": %d, at most %d are expected`, len(r.Sessions), maxSessions)
	}
	for i, g := range r.Groups {
		if len(g) > maxPorts {
			return fmt.Errorf(`"groups": %d ports in group %d, at most %d are expected`, len(g), i, maxPorts)
		}
		if !slices.IsSorted(g) {
			return fmt.Errorf(`"groups": ports in alphabetical order are expected in group %d: %q`, i, g)
		}
	}
	for name, table := range map[string]map[netip.Prefix]int{"fib": r.FIB, "rib": r.RIB, "paths": r.Paths} {
		if len(table) > MaxPrefixes {
			return fmt.Errorf("%q: %d prefixes, at most %d are expected", name, len(table), MaxPrefixes)
		}
		for p, g := range table {
			if !p.IsValid() {
				return fmt.Errorf("%q: a prefix is expected as name of each field", name)
			}
			if g < 0 || g >= len(r.Groups) {
				return fmt.Errorf("%q: group %d of %s: one of %d groups is expected", name, g, p, len(r.Groups))
			}
		}
	}
	for i := range r.Sessions {
		s := &r.Sessions[i]
		if s.Port == "" || s.Protocol != BGP && s.Protocol != BFD {
			return fmt.Errorf(`"sessions": port %q, protocol %q: a port, and %s or %s are expected`, s.Port, s.Protocol, BGP, BFD)
		}
	}
	return nil
}
