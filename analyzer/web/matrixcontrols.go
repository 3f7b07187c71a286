package web

import (
	"slices"

	"github.com/graylink/graylink/analyzer/matrix"
	"github.com/graylink/graylink/internal/fabric"
)

func controls(q *matrixQuery, of *fabric.Graph, classes []string, past bool) (out []control) {
	add := func(name, label string, options ...option) {
		if len(options) > 1 {
			for i := range options {
				options[i].Chosen = options[i].Value == q.values.Get(name)
			}
			out = append(out, control{name, label, options})
		}
	}
	all := func(what string, values []string) (options []option) {
		options = append(options, option{"", what, false})
		for _, v := range values {
			if v != "" {
				options = append(options, option{v, v, false})
			}
		}
		return options
	}
	var quantities []option
	for i, x := range matrix.Quantities() {
		value := string(x)
		if i == 0 {
			value = ""
		}
		quantities = append(quantities, option{value, quantityName(x), false})
	}
	add("of", "show", quantities...)
	add("by", "rows and columns", option{"", "leaves", false}, option{"nic", "NICs", false})
	add("pod", "pod", all("all", podNames(of))...)
	add("plane", "plane", all("all", matrix.Planes(of))...)
	add("class", "class", all("all", classes)...)
	add("direction", "packets", option{"", "probes and replies", false}, option{string(matrix.Probes), "probes", false}, option{string(matrix.Replies), "replies", false})
	if past {
		moments := []option{{"", "now", false}}
		for _, ago := range []string{"1m", "2m", "5m", "10m", "20m", "30m", "1h"} {
			moments = append(moments, option{ago, ago + " ago", false})
		}
		if at := q.values.Get("at"); at != "" && !slices.ContainsFunc(moments, func(o option) bool { return o.Value == at }) {
			moments = append(moments, option{at, shortenMiddle(at, 40), false})
		}
		add("at", "moment", moments...)
	}
	return out
}

// podNames returns the names of the pods, if there are not too many to choose from.
func podNames(g *fabric.Graph) (out []string) {
	const maxPods = 512
	for i := range g.Topo.Switches {
		if p := g.Topo.Switches[i].PodName(); p != "" && !slices.Contains(out, p) && len(out) < maxPods {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, fabric.CompareNatural)
	return out
}
