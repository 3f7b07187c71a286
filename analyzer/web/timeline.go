package web

import (
	"cmp"
	"time"

	"github.com/graylink/graylink/analyzer/display"
	"github.com/graylink/graylink/analyzer/incident"
)

// The timeline shows timelineSpan with at most timelineTicks marks, and at most maxTimeline elements, those that were named last.
const (
	timelineSpan  = time.Hour
	timelineTicks = 6
	maxTimeline   = 12
)

// Sizes of the timeline, in pixels of its own.
const (
	timelineLeft, timelineRight, timelineWidth, timelineRow, timelineTop = 260.0, 1160.0, 1180.0, 22.0, 20.0
)

// timeline represents the incidents of the last hour by element.
type timeline struct {
	W, H  float64
	Left  float64
	Ticks []display.Tick
	Rows  []timeRow
	More  int // elements that are not shown
}

type timeRow struct {
	Y       float64 // of its middle
	Element string
	Text    string // the element's name, shortened
	Bars    []timeBar
}

type timeBar struct {
	X, Y, W, H float64
	Class      string // open, held, past
	Href       string // the verdict's page, or its place on this one, or ""
	Title      string
}

// newTimeline draws incidents, the newest first, against the hour that ended with the last
// cycle. pageOf returns the address of a verdict's page, or "".
func newTimeline(incidents []incident.Incident, until time.Time, pageOf func(id string) string) timeline {
	t := timeline{W: timelineWidth, Left: timelineLeft}
	from := until.Add(-timelineSpan)
	axis := display.NewTimeAxis(from, until, timelineLeft, timelineRight)
	rows := map[string]int{}
	for _, in := range incidents {
		end := until
		if in.Cleared != nil {
			end = *in.Cleared
		}
		if end.Before(from) || in.FirstSeen.After(until) {
			continue
		}
		at, known := rows[in.Element.ID]
		if !known {
			at = len(t.Rows)
			if at == maxTimeline {
				at = -1
				t.More++
			} else {
				t.Rows = append(t.Rows, timeRow{Y: timelineTop + timelineRow*(float64(at)+0.5), Element: in.Element.ID, Text: shortenMiddle(in.Element.ID, 38)})
			}
			rows[in.Element.ID] = at
		}
		if at < 0 {
			continue
		}
		const least = 4 // pixels, so that an incident of seconds stays visible
		b := timeBar{X: axis.Place(in.FirstSeen), Y: t.Rows[at].Y - 7, H: 14, Class: "past", Title: suspectLine(in) + ", " + clockTime(in.FirstSeen) + ", lasted " + formatAge(end.Sub(in.FirstSeen))}
		b.W = max(axis.Place(end)-b.X, least)
		b.Href = pageOf(in.ID)
		if in.Open {
			b.Class, b.Href = "open", cmp.Or(b.Href, "#v-"+in.ID)
			if in.Held != "" {
				b.Class = "held"
			}
		}
		t.Rows[at].Bars = append(t.Rows[at].Bars, b)
	}
	t.H = timelineTop + timelineRow*float64(len(t.Rows)) + 4
	t.Ticks = axis.Ticks(timelineTicks)
	return t
}
