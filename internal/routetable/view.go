package routetable

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// View is a reader's copy of a switch's table, made of the reports that it applied. Its maps are not changed: a report
// makes new ones, so that a copy of a View stays as it was.
type View struct {
	Switch   string
	Instance string
	Version  uint64
	// At, FIBAt and RIBAt are those of the last report.
	At, FIBAt, RIBAt time.Time
	// FIB, RIB and Paths are as in a Report, with the ports of each prefix. A nil map is not known.
	FIB, RIB, Paths Routes
	Changed         map[netip.Prefix]time.Time
	Sessions        []Session // nil means that they are not known
	Omitted         int       // prefixes that are missing in the tables
}

// Apply applies a report of the switch. It returns an error, and changes nothing, if the report does not continue the
// view: the next query has to be for the whole table.
func (v *View) Apply(r *Report) error {
	if r.Since != 0 && (r.Instance != v.Instance || r.Since != v.Version) {
		return fmt.Errorf("report of instance %q since version %d: instance %q and version %d are expected", r.Instance, r.Since, v.Instance, v.Version)
	}
	if v.Switch != "" && r.Switch != v.Switch {
		return fmt.Errorf("report of switch %q: %q is expected", r.Switch, v.Switch)
	}
	unchanged := r.Since != 0 && r.Since == r.Version
	v.Switch, v.Instance, v.Version, v.At, v.FIBAt, v.RIBAt, v.Omitted = r.Switch, r.Instance, r.Version, r.At, r.FIBAt, r.RIBAt, r.Omitted
	if unchanged {
		return nil
	}
	v.Sessions = slices.Clone(r.Sessions)
	if r.Since == 0 {
		v.FIB, v.RIB, v.Paths, v.Changed = nil, nil, nil, nil
	}
	stale := r.prefixes()
	v.FIB, v.RIB, v.Paths = r.replace(v.FIB, r.FIB, stale), r.replace(v.RIB, r.RIB, stale), r.replace(v.Paths, r.Paths, stale)
	changed := without(v.Changed, stale)
	maps.Copy(changed, r.Changed)
	v.Changed = changed
	return nil
}

// prefixes returns the prefixes that a report says something of.
func (r *Report) prefixes() map[netip.Prefix]bool {
	out := map[netip.Prefix]bool{}
	for _, m := range r.maps() {
		for p := range *m {
			out[p] = true
		}
	}
	for p := range r.Changed {
		out[p] = true
	}
	for _, p := range r.Gone {
		out[p] = true
	}
	return out
}

// replace returns a table without the stale prefixes, and with those of a report. It returns nil if the report does not
// know the table.
func (r *Report) replace(old Routes, now map[netip.Prefix]int, stale map[netip.Prefix]bool) Routes {
	if now == nil {
		return nil
	}
	out := without(old, stale)
	for p, g := range now {
		out[p] = r.Groups[g]
	}
	return out
}

// without returns a copy of a map without some prefixes. It is not nil.
func without[M ~map[netip.Prefix]V, V any](m M, stale map[netip.Prefix]bool) M {
	out := make(M, len(m))
	for p, v := range m {
		if !stale[p] {
			out[p] = v
		}
	}
	return out
}
