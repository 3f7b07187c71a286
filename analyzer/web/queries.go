package web

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
)

// promQuery represents a query to Prometheus about something that the page shows.
type promQuery struct {
	Name, Expr string
	Href       string // the query in the user interface of Prometheus; "" means that its address is unknown
}

func (h *Handler) newPromQuery(name, expr string) promQuery {
	a := promQuery{Name: name, Expr: expr}
	if h.Prometheus != "" {
		a.Href = strings.TrimRight(h.Prometheus, "/") + "/graph?" + url.Values{"g0.expr": {expr}, "g0.tab": {"0"}, "g0.range_input": {"1h"}}.Encode()
	}
	return a
}

// labelMatcher returns the matchers of a selector in braces, from pairs of label and value.
func labelMatcher(pairs ...string) string {
	var out []string
	for i := 0; i+1 < len(pairs); i += 2 {
		out = append(out, pairs[i]+"="+strconv.Quote(pairs[i+1]))
	}
	return "{" + strings.Join(out, ",") + "}"
}

// aboutFlow returns queries for the delay and the loss of one directed flow.
func (h *Handler) aboutFlow(e fabric.Flow) []promQuery {
	direction := "forward"
	if e.Reply {
		direction = "reverse"
	}
	of := labelMatcher("src", e.Src, "dst", e.Dst, "flow", strconv.Itoa(e.Number), "direction", direction)
	return []promQuery{
		h.newPromQuery("delay", fmt.Sprintf("histogram_quantile(0.5, sum(rate(fabric_probe_owd_seconds%s[1m])))", of)),
		h.newPromQuery("loss", fmt.Sprintf("sum(rate(fabric_probe_lost_total%s[1m])) / sum(rate(fabric_probe_sent_total%s[1m]))", of, of)),
	}
}

// aboutElement returns queries for the published series of an element and for the series of its ports.
func (h *Handler) aboutElement(e fabric.Element) []promQuery {
	of := labelMatcher("element", e.ID, "kind", string(e.Kind))
	out := []promQuery{
		h.newPromQuery("score", "fabric_suspect_score"+of),
		h.newPromQuery("delay it adds", "fabric_suspect_added_delay_seconds"+of),
		h.newPromQuery("what it loses", "fabric_suspect_loss_ratio"+of),
	}
	all := func(family string, pairs ...string) string {
		return `{__name__=~"` + family + `_.+",` + strings.TrimPrefix(labelMatcher(pairs...), "{")
	}
	end := func(name string) {
		if sw, port, ok := fabric.SplitPort(name); ok {
			out = append(out, h.newPromQuery("port "+name, all("fabric_switch_port", "switch", sw, "port", port)))
		} else if fabric.IsNIC(name) {
			out = append(out, h.newPromQuery("NIC "+name, all("fabric_nic", "nic", name)))
		}
	}
	switch e.Kind {
	case fabric.KindLink, fabric.KindAccessLink:
		for _, name := range e.Ends() {
			end(name)
		}
	case fabric.KindNIC, fabric.KindPort:
		end(e.ID)
	case fabric.KindSwitch, fabric.KindLeafUplinks:
		out = append(out, h.newPromQuery("ports of "+e.ID, all("fabric_switch_port", "switch", e.ID)))
	case fabric.KindClock:
		out = append(out, h.newPromQuery("clock", "fabric_clock_offset_seconds"+labelMatcher("clock", e.ID)))
	}
	return out
}
