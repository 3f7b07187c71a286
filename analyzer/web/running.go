package web

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/graylink/graylink/analyzer/catalogue"
	"github.com/graylink/graylink/internal/plan"
)

// Observer observes the queue pairs of running jobs. catalogue.Observer implements it.
type Observer interface {
	Kept(q catalogue.Question) *catalogue.Running
	Want(q catalogue.Question)
}

// runningView says what the queue pairs of a job do.
type runningView struct {
	// Jobs are the running jobs, of which Job was chosen. Off is set if the NICs are known not to mark packets for adaptive routing.
	Jobs  []string
	Job   string
	Off   bool
	Error string
	Busy  bool // no answer is known yet
	// Refused says why nothing is observed for this client.
	Refused string
	Age     string
	Rows    []runningRow
	Texts   []string // what holds the jobs back, and what other numbers of queue pairs would give
	Why     []string // why no rate is known
	Panels  []loadPanel
	Note    string
}

// runningRow is a line of the table of jobs.
type runningRow struct{ Job, QPs, Known, Rate, Plan, Ideal string }

// buildRunning returns what is known of the queue pairs of the job that the query names, and has it observed if that is not fresh and the client
// may make agents send packets.
func (h *Handler) buildRunning(names []string, q query, now time.Time) *runningView {
	if h.Observer == nil || len(names) == 0 {
		return nil
	}
	v := &runningView{Jobs: names, Job: q.job, Off: q.routing == "off"}
	if q.job == "" {
		return v
	}
	if !slices.Contains(names, q.job) {
		v.Error = "No such job runs now on a node of the topology."
		return v
	}
	question, err := catalogue.ParseQuestion(url.Values{"job": {q.job}, "dscp": {q.dscp}, "adaptive_routing": {q.routing}})
	if err != nil {
		v.Error = err.Error()
		return v
	}
	if v.Refused = q.refused; v.Refused == "" {
		h.Observer.Want(question)
	}
	r := h.Observer.Kept(question)
	if r == nil {
		v.Busy = v.Refused == ""
		return v
	}
	v.Age = fmt.Sprintf("%.0f s", max(0, now.Sub(r.At).Seconds()))
	v.Why = r.Reasons
	if r.Observed == nil {
		return v
	}
	for _, j := range append([]plan.ObservedJob{*r.Observed}, r.Others...) {
		gbps := func(x *float64) string {
			if x == nil {
				return "unknown"
			}
			return fmt.Sprintf("%.1f Gb/s", *x)
		}
		v.Rows = append(v.Rows, runningRow{j.Job, strconv.Itoa(j.QPs), strconv.Itoa(j.Known), j.RateText(), gbps(j.PlannedGbps), gbps(j.IdealGbps)})
	}
	v.Rows = v.Rows[:min(len(v.Rows), maxRows)]
	v.Texts = append(r.Observed.HurtTexts(), r.Observed.DrawTexts()...)
	if r.Observed.Assumed != "" {
		v.Note = "No placement file has what the job sends: a ring in the order of its nodes is assumed."
	}
	v.Panels = drawLoads(r.Links)
	return v
}

// loadPanel is a row of bars, one for each direction of a link between switches that carries something.
type loadPanel struct {
	Title string
	W, H  float64
	Full  float64 // height of the line at the capacity
	Bars  []loadBar
}

// loadBar is the load of a link. Class is over if the link has too much.
type loadBar struct {
	X, Y, W, H  float64
	Class, Text string
}

// Sizes of a panel, in pixels.
const (
	loadWidth, loadHeight = 900.0, 110.0
	maxBars               = 300
)

// drawLoads returns the panels of the loads with the paths of now and with those of a plan, with the same scale. Of more links than maxBars,
// the fullest are drawn.
func drawLoads(links []plan.LinkShare) []loadPanel {
	links = fullest(links)
	if len(links) == 0 {
		return nil
	}
	top := 1.0
	for _, l := range links {
		top = max(top, l.Now, l.Plan)
	}
	var out []loadPanel
	width := min(24, loadWidth/float64(len(links)))
	for _, x := range []struct {
		title string
		load  func(l *plan.LinkShare) float64
	}{{"Queue pairs as they run", func(l *plan.LinkShare) float64 { return l.Now }}, {"With the source ports of a plan", func(l *plan.LinkShare) float64 { return l.Plan }}} {
		p := loadPanel{W: width * float64(len(links)), H: loadHeight, Full: loadHeight - loadHeight/top}
		most, over := 0.0, 0
		for i := range links {
			share := x.load(&links[i])
			most = max(most, share)
			bar := loadBar{X: float64(i) * width, W: width * 0.85, H: share / top * loadHeight, Class: "load", Text: fmt.Sprintf("%s %.0f %%", links[i].Link, 100*share)}
			bar.Y = loadHeight - bar.H
			if share > 1.001 {
				over++
				bar.Class = "load over"
			}
			p.Bars = append(p.Bars, bar)
		}
		p.Title = fmt.Sprintf("%s: the fullest link would need %.0f %% of its capacity, and %s more than all of it.", x.title, 100*most, cmp.Or(map[int]string{0: "none needs", 1: "one needs"}[over], fmt.Sprintf("%d need", over)))
		out = append(out, p)
	}
	return out
}

// fullest returns the links that carry something, in their order, and the fullest of them where there are more than maxBars.
func fullest(links []plan.LinkShare) (out []plan.LinkShare) {
	least := 0.0
	if len(links) > maxBars {
		var loads []float64
		for _, l := range links {
			loads = append(loads, max(l.Now, l.Plan))
		}
		slices.Sort(loads)
		least = loads[len(loads)-maxBars]
	}
	for _, l := range links {
		if load := max(l.Now, l.Plan); load > 0 && load >= least && len(out) < maxBars {
			out = append(out, l)
		}
	}
	return out
}
