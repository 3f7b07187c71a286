package plan

import (
	"html"
	"io"
	"math"
	"strings"
)

// Drawing shows what each link between switches has to carry for the jobs to have the rates of a plan: with ports that are drawn at random, and with
// those of the plan.
type Drawing struct {
	Network   *Network
	Catalogue *Catalogue
	Jobs      []Job
	Plan      *Plan
	Seed      uint64 // of the random ports
}

// offered returns the loads of links by their directions, as shares of their capacity.
func (d *Drawing) offered() (hashed, planned []float64, err error) {
	n := d.Network
	conns, err := n.connections(d.Jobs)
	if err != nil {
		return nil, nil, err
	}
	rate := map[string]float64{}
	for _, j := range d.Plan.Jobs {
		if j.BusbwGbps != nil {
			rate[j.Job] = *j.BusbwGbps
		}
	}
	hashed, planned = make([]float64, len(n.links)), make([]float64, len(n.links))
	for i := range conns {
		c := &conns[i]
		job := d.Jobs[c.job].Name()
		options, _ := d.Catalogue.options(c, true)
		count := c.qps
		if count == 0 {
			count = d.Plan.qpsOf(job, c.share)
		}
		if len(options) == 0 {
			continue
		}
		c.draw(options, count, d.Seed, i, func(o *option) {
			for _, l := range o.links {
				hashed[l] += c.share / float64(count) * rate[job] / n.links[l].capacity
			}
		})
	}
	for i := range d.Plan.Assignments {
		a := &d.Plan.Assignments[i]
		for _, name := range a.Links {
			from, _, _ := strings.Cut(name, "->")
			if l, ok := n.byEnd[from]; ok {
				planned[l] += a.Weight * rate[a.Job] / n.links[l].capacity
			}
		}
	}
	return hashed, planned, nil
}

// Sizes of the drawing, in pixels.
const (
	drawWidth, drawLeft = 960, 60
	panelHeight         = 180
	panelGap            = 70
)

// WriteSVG writes the drawing: a panel of bars for the random ports, and one for the plan, with the same scale.
func (d *Drawing) WriteSVG(w io.Writer) error {
	hashed, planned, err := d.offered()
	if err != nil {
		return err
	}
	var links []int
	top := 1.0
	for l := range d.Network.links {
		if d.Network.to[l] >= 0 && d.Network.switchOf(d.Network.links[l].from) >= 0 {
			links = append(links, l)
			top = max(top, hashed[l], planned[l])
		}
	}
	top = math.Ceil(top*4) / 4
	out := errWriter{w: w}
	out.print(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">`+"\n", drawWidth+drawLeft+20, 2*(panelHeight+panelGap)+20)
	out.print("<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n")
	for i, panel := range []struct {
		title string
		loads []float64
	}{{"Random source ports", hashed}, {"Source ports of the plan", planned}} {
		d.writePanel(&out, panel.title, panel.loads, links, top, 40+i*(panelHeight+panelGap))
	}
	out.print("<text x=\"%d\" y=\"%d\" fill=\"#333\">Bars: directions of links between switches, in the order of the topology. Height: the load at the planned rates, as a share of the capacity.</text>\n", drawLeft, 2*(panelHeight+panelGap)+8)
	out.print("</svg>\n")
	return out.err
}

// writePanel writes one panel whose upper edge is at y.
func (d *Drawing) writePanel(out *errWriter, title string, loads []float64, links []int, top float64, y int) {
	most, over := 0.0, 0
	for _, l := range links {
		if most = max(most, loads[l]); loads[l] > 1.001 {
			over++
		}
	}
	out.print("<text x=\"%d\" y=\"%d\" font-weight=\"bold\">%s: the fullest link has %.0f %% of its capacity, and %d of %d have too much</text>\n", drawLeft, y-10, html.EscapeString(title), 100*most, over, len(links))
	width := float64(drawWidth) / float64(max(1, len(links)))
	for i, l := range links {
		if loads[l] <= 0 {
			continue
		}
		color := "#2b7bba"
		if loads[l] > 1.001 {
			color = "#c8372d"
		}
		height := loads[l] / top * panelHeight
		out.print("<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\"><title>%s %.0f %%</title></rect>\n", float64(drawLeft)+float64(i)*width, float64(y+panelHeight)-height, width*0.85, height, color, html.EscapeString(d.Network.links[l].name), 100*loads[l])
	}
	for share := 0.0; share <= top+slack; share += 0.5 {
		at, style := float64(y+panelHeight)-share/top*panelHeight, "#ddd"
		if share == 1 {
			style = "#222"
		}
		out.print("<line x1=\"%d\" x2=\"%d\" y1=\"%.2f\" y2=\"%.2f\" stroke=\"%s\"/><text x=\"%d\" y=\"%.2f\" text-anchor=\"end\">%.0f %%</text>\n", drawLeft, drawLeft+drawWidth, at, at, style, drawLeft-6, at+4, 100*share)
	}
}
