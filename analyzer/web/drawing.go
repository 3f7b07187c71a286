package web

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
)

// maxPairs bounds the strokes in a drawing of a fabric whose groups have more links
// between them than this.
const maxPairs = 600

// denseFrom is the number of strokes from which the healthy ones are drawn
// faintly, since they would hide the others.
const denseFrom = 240

// drawing represents the fabric as the template draws it. Lengths are SVG user units.
type drawing struct {
	W, H    float64
	Wide    bool // wider than a screen: scrolls
	Dense   bool
	Held    bool // a held suspect is drawn
	Planes  []caption
	Tiers   []caption
	Strokes []stroke // in drawing order, the implicated ones last
	Boxes   []boxView
	Labels  []label
	Notes   []string
	Pod     string
	Legend  []legendItem
}

type caption struct {
	X, Y int
	Text string
}

type stroke struct {
	Link, From, To string
	Group          int // links drawn as this one; 0 for a single link
	State, Class   string
	Mark           string
	D              string
	Title          string
	Arrow          string // points of the arrow's polygon
}

type boxView struct {
	ID, Class, Mark, Title string
	X, Y, W, H             int
	Lines                  []caption
	Turn                   bool // text runs upwards
	CX, CY                 int
	Href                   string
	Tabs                   []tabView
}

type tabView struct {
	ID, Mark, Title, Text string
	X, Y, W, H, CX, CY    int
}

type label struct {
	Href           string
	X, Y, W, H     int
	CX, CY, LX, LY int // the leader line, from the middle to the named element
	Lines          []caption
	Mark           string
}

type legendItem struct{ Class, Text string }

// Metrics of the drawing.
const (
	minWidth   = 1180.0
	screen     = 1700.0 // beyond this the drawing scrolls instead of shrinking
	margin     = 14.0
	leftMargin = 66.0
	tabHeight  = 15.0
	nodeHeight = 24.0
)

// cable represents a link of the drawing: one of the fabric, or all links between two groups.
type cable struct {
	a, b           *box      // a is the upper one
	ends           [2]string // NIC tabs or box ids
	links          []*fabric.Link
	down, up       tally // a to b, b to a
	ax, ay, bx, by float64
	rank           int
	aTab, bTab     *tab
	sameRow        bool
	onTop          bool // in the highest row, above which there is room
}

func (h *Handler) drawFabric(s snapshot.Snapshot, open []incident.Incident, pod string) drawing {
	g := h.Store.Graph()
	m := newMarks(g, open)
	pinned := map[string]bool{}
	for _, in := range open[:min(len(open), maxLabels)] {
		for _, o := range locateElement(g, in.Element, in.Direction).ownersOf() {
			if len(pinned) < 4*maxLabels {
				pinned[o] = true
			}
		}
	}
	f := foldFabric(g, pinned, pod)
	d := drawing{Notes: f.notes, Pod: f.pod}
	rows := d.layOutRows(g, &f)
	cables := gatherCables(g, s, &f, m)
	if len(cables) > maxPairs {
		slices.SortStableFunc(cables, func(x, y *cable) int { return y.rank - x.rank })
		d.Notes = append(d.Notes, fmt.Sprintf("%s of %s links between groups are not drawn, the least conspicuous ones", formatCount(len(cables)-maxPairs), formatCount(len(cables))))
		cables = cables[:maxPairs]
	}
	attachCables(cables, rows)
	at := map[fabric.Direction]point{}
	d.addStrokes(cables, at)
	d.Dense = len(d.Strokes) > denseFrom
	d.addBoxes(g, &f, m)
	d.addLabels(g, open, &f, at)
	d.addLegend()
	return d
}

// gatherCables gathers links into cables and sums up the evidence about each direction.
func gatherCables(g *fabric.Graph, s snapshot.Snapshot, f *folded, m marks) []*cable {
	views := newLinkViews(s.Links)
	tabs := map[string]*tab{}
	for _, b := range f.boxes {
		for _, t := range b.tabs {
			tabs[t.id] = t
		}
	}
	byKey := map[[2]string]*cable{}
	var out []*cable
	for i := range g.Topo.Links {
		l := &g.Topo.Links[i]
		from, to := l.A, l.B
		a, b := f.of[fabric.OwnerOf(from)], f.of[fabric.OwnerOf(to)]
		if a == nil || b == nil || a == b {
			continue
		}
		if a.tier < b.tier || a.tier == b.tier && a.x > b.x {
			a, b, from, to = b, a, to, from
		}
		ends := [2]string{a.id, b.id}
		for k, e := range []string{from, to} {
			if tabs[e] != nil {
				ends[k] = e
			}
		}
		key := ends
		if !a.group && !b.group {
			key = [2]string{from, to}
		}
		c := byKey[key]
		if c == nil {
			c = &cable{a: a, b: b, ends: ends, aTab: tabs[from], bTab: tabs[to], sameRow: a.tier == b.tier, onTop: a.tier == b.tier && a.tier == f.top}
			byKey[key] = c
			out = append(out, c)
		}
		c.links = append(c.links, l)
		down := fabric.Direction{From: from, To: to}
		c.down.addLink(views.viewOf(i, down), m.dirs[down])
		c.up.addLink(views.viewOf(i, down.Reverse()), m.dirs[down.Reverse()])
	}
	for _, c := range out {
		c.rank = max(c.down.drawRank(), c.up.drawRank())
	}
	return out
}

// linkViews finds the view of a direction. The analyzer lists two for each
// link, in the topology's order; the index serves lists that do not.
type linkViews struct {
	list  []snapshot.LinkView
	index map[fabric.Direction]*snapshot.LinkView
}

func newLinkViews(list []snapshot.LinkView) *linkViews { return &linkViews{list: list} }

func (v *linkViews) viewOf(link int, d fabric.Direction) *snapshot.LinkView {
	for i := 2 * link; i < min(2*link+2, len(v.list)); i++ {
		if l := &v.list[i]; l.From == d.From && l.To == d.To {
			return l
		}
	}
	if v.index == nil {
		v.index = make(map[fabric.Direction]*snapshot.LinkView, len(v.list))
		for i := range v.list {
			v.index[fabric.Direction{From: v.list[i].From, To: v.list[i].To}] = &v.list[i]
		}
	}
	return v.index[d]
}

type point struct{ x, y float64 }

// layOutRows gives every box its rectangle: a row for each tier, planes side by
// side, nodes at the bottom ordered by the leaves they hang from.
func (d *drawing) layOutRows(g *fabric.Graph, f *folded) (rows map[int][]*box) {
	rows = map[int][]*box{}
	perPlane := map[string]map[int]int{}
	for _, b := range f.boxes {
		rows[b.tier] = append(rows[b.tier], b)
		if b.tier == 0 {
			continue
		}
		if perPlane[b.plane] == nil {
			perPlane[b.plane] = map[int]int{}
		}
		perPlane[b.plane][b.tier]++
	}
	bottom := 0.0
	for _, b := range rows[0] {
		bottom += nodeNeed(b)
	}
	span := d.layOutPlanes(f.planes, perPlane, bottom)
	tiers := slices.SortedFunc(maps.Keys(rows), func(a, b int) int { return b - a })
	gap := 92.0
	if len(tiers) > 3 {
		gap = 66
	}
	gap *= min(max(d.W/minWidth, 1), 1.8)
	y := 8.0
	if len(d.Planes) > 0 {
		y = 22
	}
	if f.joinsTop(g) {
		y += archOf(d.W-leftMargin-margin) / 2
	}
	for _, t := range tiers {
		if t == 0 {
			break
		}
		sortRow(g, rows[t])
		height := placeRow(rows[t], y, span, perPlane)
		d.Tiers = append(d.Tiers, caption{4, int(y + height/2), tierName(g, rows[t])})
		y += height + gap
	}
	if len(rows[0]) > 0 {
		y = d.layOutNodes(g, f, rows[0], y, (d.W-leftMargin-margin)/max(bottom, 1))
	} else {
		y -= gap
	}
	d.H = y + 10
	return rows
}

// extent is where a plane begins, and how wide it is.
type extent struct{ x, width float64 }

// layOutPlanes sets the width of the drawing, and divides it among the planes by the switches of their widest tier.
// bottom is the width that the nodes need.
func (d *drawing) layOutPlanes(planes []string, perPlane map[string]map[int]int, bottom float64) map[string]extent {
	weight := map[string]int{}
	need, total := 0.0, 0
	for _, p := range planes {
		for _, k := range perPlane[p] {
			weight[p] = max(weight[p], k)
		}
		need += float64(weight[p])*26 + 20
		total += weight[p]
	}
	d.W = leftMargin + max(minWidth-leftMargin-margin, need, bottom) + margin
	d.Wide = d.W > screen
	inner := d.W - leftMargin - margin
	x := leftMargin
	span := map[string]extent{}
	for _, p := range planes {
		w := inner * float64(weight[p]) / float64(max(total, 1))
		span[p] = extent{x, w}
		if len(planes) > 1 && p != "" {
			d.Planes = append(d.Planes, caption{int(x + w/2), 12, "plane " + shortenMiddle(p, 40)})
		}
		x += w
	}
	return span
}

// sortRow sorts the switches of a tier by plane, pod and name.
func sortRow(g *fabric.Graph, row []*box) {
	slices.SortFunc(row, func(a, b *box) int {
		return cmp.Or(fabric.CompareNatural(a.plane, b.plane), fabric.CompareNatural(g.Switch(a.members[0]).PodName(), g.Switch(b.members[0]).PodName()), fabric.CompareNatural(a.members[0], b.members[0]))
	})
}

// placeRow places the switches of a tier beside each other, and returns the height of the row.
func placeRow(row []*box, y float64, span map[string]extent, perPlane map[string]map[int]int) (height float64) {
	at := map[string]int{}
	for _, b := range row {
		pitch := span[b.plane].width / float64(perPlane[b.plane][b.tier])
		b.w, b.h = min(132, pitch-12), 27
		if b.group {
			b.w, b.h = min(150, pitch-8), 38
		}
		if pitch < 74 {
			b.w, b.h = min(26, pitch-5), 92
		}
		b.x = span[b.plane].x + (float64(at[b.plane])+0.5)*pitch - b.w/2
		b.y = y
		at[b.plane]++
		height = max(height, b.h)
	}
	return height
}

func tierName(g *fabric.Graph, row []*box) string {
	if s := g.Switch(row[0].members[0]); s != nil {
		switch s.Role {
		case fabric.Leaf:
			return "leaves"
		case fabric.Spine:
			return "spines"
		case fabric.Core:
			return "cores"
		}
	}
	return fmt.Sprintf("tier %d", row[0].tier)
}

func nodeNeed(b *box) float64 {
	if b.group {
		return 34
	}
	return max(24, float64(len(b.tabs))*12+8)
}

func (d *drawing) layOutNodes(g *fabric.Graph, f *folded, row []*box, y, stretch float64) float64 {
	centre := map[*box]float64{}
	for _, b := range row {
		sum, n := 0.0, 0.0
		for _, m := range b.members {
			for _, end := range g.EndsOf(m) {
				if up := f.of[fabric.OwnerOf(g.PeerOf(end))]; up != nil {
					sum, n = sum+up.x+up.w/2, n+1
				}
			}
		}
		centre[b] = sum / max(n, 1)
	}
	slices.SortStableFunc(row, func(a, b *box) int {
		if c := math.Round(centre[a] - centre[b]); c != 0 {
			return int(c)
		}
		return fabric.CompareNatural(a.members[0], b.members[0])
	})
	d.Tiers = append(d.Tiers, caption{4, int(y + tabHeight + nodeHeight/2), "nodes"})
	x, height := leftMargin, 0.0
	for _, b := range row {
		pitch := nodeNeed(b) * stretch
		b.y = y + tabHeight
		b.w, b.h = min(pitch-8, max(112, float64(len(b.tabs))*46)), nodeHeight
		if b.group {
			b.y = y
			b.w, b.h = min(pitch-8, 150), 38
		}
		if b.w < 40 {
			b.h = 92
		}
		b.x = x + (pitch-b.w)/2
		x += pitch
		slices.SortFunc(b.tabs, func(p, q *tab) int { return fabric.CompareNatural(p.id, q.id) })
		for i, t := range b.tabs {
			slot := b.w / float64(len(b.tabs))
			t.w = min(slot-2, 46)
			t.x = b.x + (float64(i)+0.5)*slot - t.w/2
			t.y = y
		}
		height = max(height, b.y+b.h-y)
	}
	return y + height
}

// attachCables spreads the ends of the cables along the edges of the boxes, in the
// order of where they lead, so that they cross as little as they must.
func attachCables(cables []*cable, rows map[int][]*box) {
	type end struct {
		c      *cable
		isA    bool
		target float64
	}
	upper, lower := map[*box][]end{}, map[*box][]end{}
	for _, c := range cables {
		ca, cb := c.a.x+c.a.w/2, c.b.x+c.b.w/2
		if c.aTab != nil {
			ca = c.aTab.x
		}
		if c.bTab != nil {
			cb = c.bTab.x
		}
		if c.sameRow {
			upper[c.a] = append(upper[c.a], end{c, true, cb})
		} else {
			lower[c.a] = append(lower[c.a], end{c, true, cb})
		}
		upper[c.b] = append(upper[c.b], end{c, false, ca})
	}
	spread := func(b *box, ends []end, y float64) {
		slices.SortStableFunc(ends, func(p, q end) int {
			if p.target != q.target {
				return int(math.Copysign(1, p.target-q.target))
			}
			return fabric.CompareNatural(p.c.links[0].ID(), q.c.links[0].ID())
		})
		for i, e := range ends {
			x, ey := b.x+b.w*(float64(i)+1)/(float64(len(ends))+1), y
			t := e.c.bTab
			if e.isA {
				t = e.c.aTab
			}
			if t != nil {
				x, ey = t.x+t.w/2, t.y
			}
			if e.isA {
				e.c.ax, e.c.ay = x, ey
			} else {
				e.c.bx, e.c.by = x, ey
			}
		}
	}
	for _, row := range rows {
		for _, b := range row {
			spread(b, upper[b], b.y)
			spread(b, lower[b], b.y+b.h)
		}
	}
}

// addStrokes draws every cable as two, one for each direction, each on its own
// right-hand side. at receives the middles of those that a callout may name.
func (d *drawing) addStrokes(cables []*cable, at map[fabric.Direction]point) {
	var last, pale []stroke
	for _, c := range cables {
		marked := max(c.down.mark, c.up.mark) >= held
		for _, way := range []struct {
			t              tally
			x1, y1, x2, y2 float64
			from, to       string
			down           bool
		}{{c.down, c.ax, c.ay, c.bx, c.by, c.ends[0], c.ends[1], true}, {c.up, c.bx, c.by, c.ax, c.ay, c.ends[1], c.ends[0], false}} {
			off := 2.3
			if marked {
				off = 5
			}
			s, mid := shapeOf(way.x1, way.y1, way.x2, way.y2, off, c.bend())
			st := stroke{D: s.d, State: way.t.linkState(), Class: way.t.cssClass(), Mark: way.t.mark.String()}
			if len(c.links) == 1 {
				l := c.links[0]
				st.Link, st.From, st.To = l.ID(), l.A, l.B
				if (c.upperEnd(l) == l.A) != way.down {
					st.From, st.To = l.B, l.A
				}
			} else {
				st.Link, st.From, st.To, st.Group = "group", way.from, way.to, len(c.links)
			}
			st.Title = way.t.strokeTitle(st)
			for _, l := range c.links {
				if way.t.mark < held {
					break
				}
				dir := fabric.Direction{From: l.A, To: l.B}
				if (c.upperEnd(l) == l.A) != way.down {
					dir = dir.Reverse()
				}
				at[dir] = mid
			}
			if way.t.mark >= held {
				st.Arrow = s.arrow
				d.Held = d.Held || way.t.mark == held
				last = append(last, st)
			} else if marked {
				// The halo of the other direction must not hide this one.
				pale = append(pale, st)
			} else {
				d.Strokes = append(d.Strokes, st)
			}
		}
	}
	d.Strokes = append(append(d.Strokes, last...), pale...)
}

// upperEnd returns the end of a link that is in the cable's upper box.
func (c *cable) upperEnd(l *fabric.Link) string {
	if slices.Contains(c.a.members, fabric.OwnerOf(l.A)) {
		return l.A
	}
	return l.B
}

type shape struct{ d, arrow string }

// bend returns by how much the control point of a stroke is above its ends. Between boxes of one row a stroke bends
// upwards, over the boxes between them. In the highest row it does so the more, the farther it leads.
func (c *cable) bend() float64 {
	switch {
	case c.onTop:
		return archOf(math.Abs(c.ax - c.bx))
	case c.sameRow:
		return 40
	}
	return 0
}

// archOf returns the bend of a stroke of the highest row over a distance.
func archOf(distance float64) float64 { return 40 + distance/9 }

// shapeOf returns the stroke from 1 to 2, shifted to its right by off, with a bend upwards if that is not 0.
func shapeOf(x1, y1, x2, y2, off, bend float64) (shape, point) {
	dx, dy := x2-x1, y2-y1
	n := math.Hypot(dx, dy)
	if n == 0 {
		n = 1
	}
	ux, uy := dx/n, dy/n
	rx, ry := -uy, ux
	x1, y1, x2, y2 = x1+rx*off, y1+ry*off, x2+rx*off, y2+ry*off
	mx, my := (x1+x2)/2, (y1+y2)/2
	d := fmt.Sprintf("M%.1f %.1fL%.1f %.1f", x1, y1, x2, y2)
	if bend > 0 {
		cy := my - bend + ry*off
		d = fmt.Sprintf("M%.1f %.1fQ%.1f %.1f %.1f %.1f", x1, y1, mx, cy, x2, y2)
		my = (my + cy) / 2
	}
	// The tip stands a little past the middle, in the direction of travel.
	const long, half = 13.0, 8.5
	tx, ty := mx+ux*long, my+uy*long
	bx, by := mx-ux*long/2, my-uy*long/2
	arrow := fmt.Sprintf("%.1f,%.1f %.1f,%.1f %.1f,%.1f", tx, ty, bx+rx*half, by+ry*half, bx-rx*half, by-ry*half)
	return shape{d, arrow}, point{mx, my}
}

func (d *drawing) addBoxes(g *fabric.Graph, f *folded, m marks) {
	for _, b := range f.boxes {
		v := boxView{ID: b.id, X: int(b.x), Y: int(b.y), W: max(int(b.w), 3), H: int(b.h), CX: int(b.x + b.w/2), CY: int(b.y + b.h/2), Class: "switch"}
		if b.tier == 0 {
			v.Class = "node"
		}
		mark := unmarked
		for _, o := range b.members {
			mark = max(mark, m.owners[o])
		}
		v.Mark = mark.String()
		v.Turn = b.h > 40
		lines := []string{b.id}
		v.Title = b.id
		if b.tier > 0 && !b.group {
			s := g.Switch(b.id)
			v.Title += ", " + string(s.Role)
			for _, part := range [][2]string{{"pod", s.Pod}, {"group", s.Group}, {"plane", s.Plane}} {
				if part[1] != "" {
					v.Title += ", " + part[0] + " " + part[1]
				}
			}
		}
		if b.group {
			v.Class += " group"
			lines, v.Title = groupText(g, b)
			v.Href = b.pod
		}
		if mark > unmarked {
			v.Title += ": " + v.Mark
		}
		room := v.W
		if v.Turn {
			room = v.H
			if b.group {
				lines = []string{shortGroup(b)}
			}
		}
		for i, t := range lines {
			v.Lines = append(v.Lines, caption{v.CX, v.CY + 4 + i*14 - (len(lines)-1)*7, shortenMiddle(t, max((room-4)*10/78, 3))})
		}
		for _, t := range b.tabs {
			tv := tabView{ID: t.id, Title: t.id, X: int(t.x), Y: int(t.y), W: max(int(t.w), 2), H: int(tabHeight), CX: int(t.x + t.w/2), CY: int(t.y) + 11}
			if l := m.nics[t.id]; l > unmarked {
				tv.Mark = l.String()
				tv.Title += ": " + tv.Mark
			}
			if _, dev, ok := fabric.SplitNIC(t.id); ok && t.w >= 26 {
				tv.Text = shortenMiddle(dev, max(int(t.w-2)/6, 3))
			}
			v.Tabs = append(v.Tabs, tv)
		}
		d.Boxes = append(d.Boxes, v)
	}
}

func groupText(g *fabric.Graph, b *box) (lines []string, title string) {
	names := b.members[0] + " … " + b.members[len(b.members)-1]
	if b.tier == 0 {
		what := pluralCount(len(b.members), "node", "nodes")
		return []string{what, pluralCount(b.nics, "NIC", "NICs")}, what + ", " + pluralCount(b.nics, "NIC", "NICs") + ": " + names
	}
	what := formatCount(len(b.members)) + " " + tierName(g, []*box{b})
	title = what + ": " + names
	first := names
	word := "pod"
	if s := g.Switch(b.members[0]); s.Pod == "" && s.Group != "" {
		word = "group"
	}
	if b.pod != "" {
		first = word + " " + b.pod
		title += ", " + first
	} else if n := len(b.pods); n > 1 && b.pods[0] != "" && b.pods[0] != b.pods[n-1] {
		first = b.pods[0] + " … " + b.pods[n-1]
		title += ", " + word + "s " + first
		if word == "pod" {
			first = "pods " + first
		}
	}
	if b.plane != "" {
		title += ", plane " + b.plane
	}
	return []string{first, what}, title
}

// shortGroup returns the text of a group for a narrow box.
func shortGroup(b *box) string {
	if b.tier > 0 && b.pod != "" {
		return fmt.Sprintf("%s ×%d", b.pod, len(b.members))
	}
	if b.tier == 0 {
		return pluralCount(len(b.members), "node", "nodes")
	}
	if n := len(b.pods); n > 1 && b.pods[0] != "" && b.pods[0] != b.pods[n-1] {
		return b.pods[0] + " … " + b.pods[n-1]
	}
	return fmt.Sprintf("%s ×%d", shortenMiddle(b.members[0], 6), len(b.members))
}

// maxLabels bounds the suspects that are pinned and labelled in the drawing.
const maxLabels = 8

func (d *drawing) addLabels(g *fabric.Graph, open []incident.Incident, f *folded, at map[fabric.Direction]point) {
	for _, in := range open[:min(len(open), maxLabels)] {
		t := locateElement(g, in.Element, in.Direction)
		p, ok, side := point{}, false, beside
		switch {
		case len(t.nics) > 0:
			b := f.of[fabric.OwnerOf(t.nics[0])]
			if ok = b != nil; ok {
				p, side = point{b.x + b.w/2, b.y + b.h}, below
				for _, tb := range b.tabs {
					if tb.id == t.nics[0] {
						p.x = tb.x + tb.w/2
					}
				}
			}
		case len(t.dirs) > 0:
			p, ok = at[t.dirs[0]]
		case len(t.owners) > 0:
			b := f.of[t.owners[0]]
			if ok = b != nil; ok {
				p, side = point{b.x + b.w/2, b.y + b.h}, below
			}
		}
		if !ok {
			continue
		}
		d.Labels = append(d.Labels, d.newCallout(in, p, side))
	}
}

// Where a callout stands: beside a stroke, or below a box, so that it covers
// strokes rather than boxes.
const (
	beside = iota
	below
)

func (d *drawing) newCallout(in incident.Incident, p point, side int) label {
	mark := suspect
	second := formatSymptom(in.Symptom)
	if second == "" {
		second = string(in.Scenario)
	}
	if from, to, ok := directionOwners(in.Direction); ok {
		second += ", " + from + " → " + to
	}
	if in.Held != "" {
		mark = held
		second += " (held)"
	}
	first, second := shortenMiddle(in.Element.ID, 60), shortenMiddle(second, 64)
	const height, away = 38.0, 26.0
	w := max(float64(len([]rune(first)))*7.6, float64(len([]rune(second)))*6.8) + 16
	x := p.x + away
	if p.x > d.W/2 && p.x-away-w > 2 || x+w > d.W-2 {
		x = p.x - away - w
	}
	x = max(2, min(x, d.W-2-w))
	y := p.y - height/2
	if side == below {
		x, y = max(2, min(p.x-w/2, d.W-2-w)), p.y+14
	}
	y = max(2, y)
	for range d.Labels {
		for _, o := range d.Labels {
			if x < float64(o.X+o.W) && float64(o.X) < x+w && y < float64(o.Y+o.H) && float64(o.Y) < y+height {
				y = float64(o.Y+o.H) + 4
			}
		}
	}
	d.H = max(d.H, y+height+4)
	cx := int(x + w/2)
	return label{Href: in.ID, X: int(x), Y: int(y), W: int(w), H: int(height), CX: cx, CY: int(y + height/2), LX: int(p.x), LY: int(p.y), Mark: mark.String(),
		Lines: []caption{{cx, int(y) + 16, first}, {cx, int(y) + 31, second}}}
}

func (d *drawing) addLegend() {
	d.Legend = []legendItem{{"healthy", "healthy"}}
	for i, text := range delaySteps {
		d.Legend = append(d.Legend, legendItem{fmt.Sprintf("d%d", i+1), text})
	}
	d.Legend = append(d.Legend, legendItem{"loss", "loses packets"}, legendItem{"unknown", "crossed, own share unknown"}, legendItem{"none", "no evidence"})
}

// directionOwners names the owners at the two ends of a direction.
func directionOwners(direction string) (from, to string, ok bool) {
	d, err := fabric.ParseDirection(direction)
	if err != nil {
		return "", "", false
	}
	return fabric.OwnerOf(d.From), fabric.OwnerOf(d.To), true
}
