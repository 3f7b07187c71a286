package audit

import "fmt"

// checkCoverage makes check A1: whether every link direction is crossed by flows with a known path.
func checkCoverage(st *study) Check {
	c := Check{ID: "A1", Title: "Coverage of link directions", Status: Pass, Unit: "share", Bound: &st.c.Coverage.MinShare, Of: "link directions"}
	flows := make([]int, len(st.directions))
	for i, crosses := range st.crosses {
		if st.e.Flows[i].Sent == 0 {
			continue
		}
		for _, d := range crosses {
			flows[d]++
		}
	}
	covered := 0
	for d := range int32(st.planned) {
		if !st.inScope(d) {
			continue
		}
		c.Population++
		if flows[d] >= st.c.Coverage.MinFlows {
			covered++
			continue
		}
		i := st.newItem(d, Unknown)
		i.Population = flows[d]
		i.Text = fmt.Sprintf("%d flows with a known path cross it; at least %d are expected.", flows[d], st.c.Coverage.MinFlows)
		c.Items = append(c.Items, i)
	}
	if c.Population == 0 {
		return c
	}
	share := float64(covered) / float64(c.Population)
	c.Value = &share
	if share < st.c.Coverage.MinShare {
		c.Status = Unknown
	}
	c.Text = fmt.Sprintf("Flows with a known path cross %d of %d link directions.", covered, c.Population)
	return c
}
