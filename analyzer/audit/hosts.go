package audit

import (
	"fmt"
	"time"
)

// checkClocks makes check A11: whether the clock of every NIC was locked, did not step, and is known to the criterion. A clock that was
// not locked makes the check unknown, since its delays say nothing of the fabric.
func checkClocks(st *study) Check {
	limit := st.c.Clocks.MaxBound.Seconds()
	c := Check{ID: "A11", Title: "Clocks", Status: Pass, Unit: "seconds", Bound: &limit, Of: "clocks of NICs"}
	locked := 0
	for _, nic := range st.e.Graph.NICIDs() {
		if leaf, _ := st.e.Graph.LeafOf(nic); leaf == "" || !st.scope.hasNIC(nic) {
			continue
		}
		c.Population++
		k, known := st.e.Clocks[nic]
		i := Item{Element: nic, Kind: "clock", Population: k.Windows, Bound: &limit}
		if k.WorstBoundNS != nil {
			bound := float64(*k.WorstBoundNS) / second
			i.Value = &bound
			c.noteValue(bound)
		}
		switch {
		case !known:
			i.Status, i.Text = Unknown, "Its agent reports no clock."
		case k.Steps > 0:
			i.Status, i.Text = Fail, fmt.Sprintf("The clock stepped %.0f times during the audit.", k.Steps)
		case k.Locked < k.Windows:
			i.Status, i.Text = Unknown, fmt.Sprintf("The clock was locked in %d of %d windows, and %q in others.", k.Locked, k.Windows, k.State)
		case k.WorstBoundNS == nil:
			i.Status, i.Text = Unknown, "The error of the clock has no bound."
		case time.Duration(*k.WorstBoundNS) > st.c.Clocks.MaxBound:
			i.Status, i.Text = Fail, fmt.Sprintf("The error of the clock is known to %s only.", formatNS(float64(*k.WorstBoundNS)))
		default:
			locked++
			continue
		}
		c.addItem(i)
	}
	if c.Population > 0 {
		c.Text = fmt.Sprintf("%d of %d clocks were locked within the criterion in all windows.", locked, c.Population)
	}
	return c
}

// checkHosts makes check A13: whether hosts let the evidence be taken. It is never failed, since a starved host says nothing of the fabric.
func checkHosts(st *study) Check {
	c := Check{ID: "A13", Title: "Hosts", Status: Pass, Unit: "share of windows", Bound: &st.c.Hosts.MaxExcluded, Of: "nodes"}
	good := 0
	for i := range st.e.Graph.Topo.Nodes {
		node := st.e.Graph.Topo.Nodes[i].Name
		if !st.scope.hasNode(node) {
			continue
		}
		c.Population++
		h := st.e.Hosts[node]
		item := Item{Element: node, Kind: "host", Status: Unknown, Population: h.Windows, Bound: &st.c.Hosts.MaxExcluded}
		if h.Windows == 0 {
			item.Text = "There is no evidence of its agent."
			c.addItem(item)
			continue
		}
		share := float64(h.Excluded) / float64(h.Windows)
		c.noteValue(share)
		if share <= st.c.Hosts.MaxExcluded {
			good++
			continue
		}
		item.Value = &share
		item.Text = fmt.Sprintf("%d of %d windows are no evidence: %s.", h.Excluded, h.Windows, h.Reason)
		c.addItem(item)
	}
	if c.Population > 0 {
		c.Text = fmt.Sprintf("%d of %d hosts let their flows be measured.", good, c.Population)
	}
	return c
}
