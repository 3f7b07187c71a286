package web

import (
	"cmp"
	"time"

	"github.com/graylink/graylink/internal/ibsubnet"
)

// subnetRow says where an InfiniBand subnet is read, and how old that is.
type subnetRow struct{ Subnet, Class, State, Source, Age, Size string }

// subnetRows returns a row for each subnet.
func subnetRows(views []ibsubnet.View, now time.Time) (rows []subnetRow) {
	for _, v := range views {
		row := subnetRow{Subnet: v.Subnet, Class: "innocent", State: "confirmed", Source: cmp.Or(v.Origin, absent), Age: absent, Size: absent}
		if !v.ReadAt.IsZero() {
			row.Age = formatAge(now.Sub(v.ReadAt))
			row.Size = formatCount(v.Switches) + " switches, " + formatCount(v.Nodes) + " other nodes"
			if v.Silent > 0 {
				row.Size += ", " + formatCount(v.Silent) + " queries without an answer"
			}
		}
		switch {
		case v.Err != "":
			row.Class, row.State = "insufficient", "cannot be read: "+v.Err
		case v.Switches > 0 && v.Tables == 0:
			row.Class, row.State = "insufficient", "no forwarding tables: there are cables, and no paths"
			if len(v.Found) > 0 {
				row.State += ": " + v.Found[len(v.Found)-1]
			}
		case !v.Confirmed:
			row.Class, row.State = "insufficient", "not confirmed yet: paths are stale"
		}
		if v.IsStale(now) {
			row.Class = "insufficient"
			row.State = "paths are stale, and no verdict rests on them: confirmed last " + formatAge(now.Sub(v.ConfirmedAt)) + " ago; " + row.State
		}
		rows = append(rows, row)
	}
	return rows
}
