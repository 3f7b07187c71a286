package fabric

// NamedHop is a hop of a trace with the switch that the topology has there.
type NamedHop struct {
	Switch  string `json:"switch"`
	In      string `json:"in"`
	Out     string `json:"out"`
	Address string `json:"address,omitempty"`
	RTTNS   *int64 `json:"rtt_ns,omitempty"`

	Interface *Interface `json:"interface,omitempty"`
	MPLS      []Label    `json:"mpls,omitempty"`
}

// NamedTrace is the published form of a trace.
type NamedTrace struct {
	Edge  string     `json:"edge"`
	State PathState  `json:"state"`
	Hops  []NamedHop `json:"hops"`
	Notes []string   `json:"notes"`
}

// NameTrace names the hops of a flow's trace by the topology. Without one they have addresses only.
func NameTrace(g *Graph, e Flow, t Trace) NamedTrace {
	out := NamedTrace{Edge: e.String(), State: t.State, Hops: []NamedHop{}, Notes: append([]string{}, t.Notes...)}
	var path Path
	if g != nil {
		from, to := e.Endpoints()
		r := ResolveTrace(g, from, to, t)
		out.State, path = r.State, r.Path
		out.Notes = append([]string{}, r.Notes...)
		for _, c := range r.Candidates {
			out.Notes = append(out.Notes, "candidate: "+c.CanonicalKey())
		}
	}
	for i := range max(len(t.Hops), len(path)) {
		var h NamedHop
		if i < len(path) {
			h.Switch, h.In, h.Out = path[i].Switch, path[i].In, path[i].Out
		}
		if i < len(t.Hops) {
			raw := t.Hops[i]
			if raw.Address.IsValid() {
				h.Address = raw.Address.String()
				if g != nil && h.Switch == "" {
					h.nameSwitch(g, raw)
				}
			}
			h.RTTNS, h.Interface, h.MPLS = raw.RTTNS, raw.Interface, raw.MPLS
		}
		out.Hops = append(out.Hops, h)
	}
	return out
}

// nameSwitch sets the switch that answered, and its port if it is known.
func (h *NamedHop) nameSwitch(g *Graph, raw RawHop) {
	end, _ := IngressPort(g, raw)
	if sw, port, ok := SplitPort(end); ok {
		h.Switch, h.In = sw, port
	} else if g.Switch(end) != nil {
		h.Switch = end
	}
}

// PortID returns the name of a hop's port as links have it, and "" if it is not known.
func (h *NamedHop) PortID(port string) string {
	if h.Switch == "" || port == "" {
		return ""
	}
	return h.Switch + ":" + port
}
