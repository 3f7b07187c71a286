package clocksync

// termGraph is the graph of clocks and terms. It numbers the clocks in the order of their names.
type termGraph struct {
	offsets, rates laplacian // both have the same shape
	termOf         []int32   // term of an entry of the matrices
	next           []int32
	union          unionFind
	component      []int32 // index of the part, by number
	parts          []part
	members        []int32 // numbers, sorted by part
	partIndex      []int32 // index within the part, by number
}

// part is a connected component.
type part struct {
	first, last    int32 // bounds in members
	terms          int
	id             uint32
	continuedID    uint32  // component whose predictions the part continues; 0 if there is none
	reference      int32   // number of the reference clock, or -1
	unit, rateUnit float64 // variance of unit weight, at least 1
}

func (p *part) clockCount() int { return int(p.last - p.first) }

// build builds the shape of the matrices and the parts of n clocks. Rejected terms count again where no other
// term connects the clocks.
func (g *termGraph) build(n int, terms []term) {
	g.union.reset(n)
	for i := range terms {
		if t := &terms[i]; !t.rejected {
			g.union.joinSets(t.a, t.b)
		}
	}
	for i := range terms {
		if t := &terms[i]; t.rejected && g.union.joinSets(t.a, t.b) {
			t.rejected, t.e.rejected = false, false
		}
	}
	g.buildRows(n, terms)
	g.buildParts(n, terms)
}

// buildRows builds the shape of the matrices.
func (g *termGraph) buildRows(n int, terms []term) {
	start := resizeSlice(g.offsets.start, n+1)
	clear(start)
	for i := range terms {
		start[terms[i].a+1]++
		start[terms[i].b+1]++
	}
	for k := range n {
		start[k+1] += start[k]
	}
	g.offsets.start, g.rates.start = start, start
	m := 2 * len(terms)
	g.next, g.termOf = resizeSlice(g.next, n), resizeSlice(g.termOf, m)
	copy(g.next, start[:n])
	for _, l := range []*laplacian{&g.offsets, &g.rates} {
		l.entries, l.diag = resizeSlice(l.entries, m), resizeSlice(l.diag, n)
	}
	for i := range terms {
		t := &terms[i]
		t.inA, t.inB = g.next[t.a], g.next[t.b]
		g.next[t.a]++
		g.next[t.b]++
		g.termOf[t.inA], g.termOf[t.inB] = int32(i), int32(i)
		g.offsets.entries[t.inA].to, g.offsets.entries[t.inB].to = t.b, t.a
		g.rates.entries[t.inA].to, g.rates.entries[t.inB].to = t.b, t.a
	}
}

// buildParts divides the clocks into connected components.
func (g *termGraph) buildParts(n int, terms []term) {
	g.component, g.parts = resizeSlice(g.component, n), g.parts[:0]
	for k := range n {
		root := g.union.find(int32(k)) // the smallest number of its component
		if int(root) == k {
			g.component[k] = int32(len(g.parts))
			g.parts = append(g.parts, part{reference: -1, unit: 1, rateUnit: 1})
		} else {
			g.component[k] = g.component[root]
		}
		g.parts[g.component[k]].last++
	}
	at := int32(0)
	for i := range g.parts {
		p := &g.parts[i]
		p.first, p.last, at = at, at, at+p.last
	}
	g.members, g.partIndex = resizeSlice(g.members, n), resizeSlice(g.partIndex, n)
	for k := range n {
		p := &g.parts[g.component[k]]
		g.members[p.last], g.partIndex[k] = int32(k), p.last-p.first
		p.last++
	}
	for i := range terms {
		g.parts[g.component[terms[i].a]].terms++
	}
}

// unionFind joins numbers to sets. The smallest number identifies a set.
type unionFind struct{ parents []int32 }

func (u *unionFind) reset(n int) {
	u.parents = resizeSlice(u.parents, n)
	for i := range u.parents {
		u.parents[i] = int32(i)
	}
}

func (u *unionFind) find(i int32) int32 {
	for u.parents[i] != i {
		u.parents[i] = u.parents[u.parents[i]]
		i = u.parents[i]
	}
	return i
}

// joinSets joins the sets of two numbers. It reports whether the sets were different.
func (u *unionFind) joinSets(i, j int32) bool {
	i, j = u.find(i), u.find(j)
	u.parents[max(i, j)] = min(i, j)
	return i != j
}
