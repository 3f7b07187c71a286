package evidence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Neighbour represents the far end of the cable at a switch port, as LLDP reports it in
// fabric_switch_port_neighbor_info. Names are as they were sent.
type Neighbour struct {
	Switch, Port    string
	System, Chassis string // one of them may be empty
	SystemPort      string
}

// neighbourSeries has the neighbours from any receiver.
const neighbourSeries = "fabric_switch_port_neighbor_info"

// neighbourSettles is how much newer the series of one neighbour of a port must be than that of
// another to be the present neighbour. A pushed series ends without a mark, and stays in results
// for five minutes. Pushes and scrapes come about every ten seconds.
const neighbourSettles = 45 * time.Second

// NeighboursAt returns the neighbours of all switches, or of some, at a moment. It leaves out a port
// with two neighbours at the same time, since it is unknown which of them is at the cable. It
// fails if the query fails or its result is incomplete.
func NeighboursAt(ctx context.Context, db Querier, at time.Time, switches []string) ([]Neighbour, error) {
	only := ""
	if len(switches) > 0 {
		only = "{switch=~" + AnyOf(switches) + "}"
	}
	samples, err := rejectPartial(db.QueryInstant(ctx, "max by (switch, port, remote, remote_port, remote_chassis) (timestamp("+neighbourSeries+only+"))", at))
	if err != nil {
		return nil, fmt.Errorf("neighbours: %w", err)
	}
	slices.SortFunc(samples, func(a, b Sample) int {
		return cmp.Or(cmp.Compare(a.Labels["switch"], b.Labels["switch"]), cmp.Compare(a.Labels["port"], b.Labels["port"]), cmp.Compare(b.Value, a.Value))
	})
	var out []Neighbour
	for i := 0; i < len(samples); {
		l := samples[i].Labels
		n := Neighbour{Switch: l["switch"], Port: l["port"], System: l["remote"], Chassis: l["remote_chassis"], SystemPort: l["remote_port"]}
		sure, newest := n.Switch != "" && n.Port != "", samples[i].Value
		for i++; i < len(samples) && samples[i].Labels["switch"] == n.Switch && samples[i].Labels["port"] == n.Port; i++ {
			sure = sure && newest-samples[i].Value >= neighbourSettles.Seconds()
		}
		if sure {
			out = append(out, n)
		}
	}
	return out, nil
}

// ChangedNeighbours returns the switches whose series of neighbours differ from those of an earlier
// moment. It fails if the query fails or its result is incomplete.
func ChangedNeighbours(ctx context.Context, db Querier, at, since time.Time) ([]string, error) {
	before := fmt.Sprintf("%s offset %dms", neighbourSeries, max(at.Sub(since).Milliseconds(), 1))
	samples, err := rejectPartial(db.QueryInstant(ctx, fmt.Sprintf("count by (switch) (%[1]s unless %[2]s) or count by (switch) (%[2]s unless %[1]s)", neighbourSeries, before), at))
	if err != nil {
		return nil, fmt.Errorf("changed neighbours: %w", err)
	}
	var out []string
	for _, s := range samples {
		if sw := s.Labels["switch"]; sw != "" {
			out = append(out, sw)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// rejectPartial makes an answer that the server calls incomplete none: what is missing of it would
// look like a neighbour that is gone, or like the only one.
func rejectPartial(samples []Sample, err error) ([]Sample, error) {
	var partial *PartialError
	if errors.As(err, &partial) {
		return nil, err
	}
	return samples, err
}
