package ibsample

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// PortSample is a reading of a port as graylink prints it in JSON.
type PortSample struct {
	Port       string                   `json:"port"`
	LID        uint16                   `json:"lid"`
	Number     uint8                    `json:"number"`
	Remote     string                   `json:"remote,omitempty"`
	RemoteLID  uint16                   `json:"remote_lid,omitempty"`
	RemotePort uint8                    `json:"remote_port,omitempty"`
	At         *time.Time               `json:"at,omitempty"`
	Suspect    bool                     `json:"suspect,omitempty"`
	Counters   map[string]CounterSample `json:"counters,omitempty"`
	Errors     map[string]uint64        `json:"errors,omitempty"`
}

// CounterSample represents a counter as the port holds it: data in words of 4 octets. The rate is in octets.
type CounterSample struct {
	Raw       uint64   `json:"raw"`
	Rate      *float64 `json:"rate,omitempty"`
	Saturated bool     `json:"saturated,omitempty"`
}

// NewPortSample returns the reading of a port.
func NewPortSample(p *PortState) PortSample {
	t := p.Target
	s := PortSample{Port: t.Element, LID: t.LID, Number: t.Port, Remote: t.Remote, RemoteLID: t.RemoteLID, RemotePort: t.RemotePort,
		Suspect: p.Suspect, Errors: p.Errors, Counters: map[string]CounterSample{}}
	if p.At != 0 {
		at := time.Unix(0, p.At).UTC()
		s.At = &at
	}
	for _, n := range p.Counts {
		c := CounterSample{Raw: n.Raw, Saturated: n.IsSaturated()}
		if n.Rated {
			c.Rate = &n.Rate
		}
		s.Counters[Counters[n.ID].String()] = c
	}
	return s
}

// WriteTable writes the most important counters. A dash stands for a counter that was not measured.
func WriteTable(w io.Writer, ports []PortState) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "PORT\tREMOTE\tSENT MB/s\tRECEIVED MB/s\tWAIT TICKS/s\tSYMBOL ERRORS\tLINK DOWNED\tRECEIVE ERRORS\tDISCARDS\tNOTES")
	for _, p := range ports {
		rates, counts := p.texts()
		dash := func(m map[string]string, name string) string { return cmp.Or(m[name], "-") }
		notes := ""
		for kind, n := range p.Errors {
			notes += fmt.Sprintf("%s %d ", kind, n)
		}
		if p.Suspect {
			notes += "suspect: management packets were dropped"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Target.Element, cmp.Or(p.Target.Remote, "-"), dash(rates, "transmit_bytes"), dash(rates, "receive_bytes"), dash(rates, "transmit_wait_ticks"),
			dash(counts, "symbol_errors"), dash(counts, "link_downed"), dash(counts, "receive_errors"), dash(counts, "transmit_discards"), notes)
	}
	return t.Flush()
}

// texts returns the rates and the values of a port's most important counters, by their names.
func (p *PortState) texts() (rates, counts map[string]string) {
	rates, counts = map[string]string{}, map[string]string{}
	for _, n := range p.Counts {
		c := &Counters[n.ID]
		if c.Value != "" && c.Value != "damaged" {
			continue
		}
		if counts[c.Name] = fmt.Sprint(n.Raw); n.IsSaturated() {
			counts[c.Name] = fmt.Sprintf(">=%d", n.Raw)
		}
		if n.Rated {
			rates[c.Name] = fmt.Sprintf("%.0f", n.Rate)
			if c.UnitScale() > 1 {
				rates[c.Name] = fmt.Sprintf("%.3f", n.Rate/1e6)
			}
		}
	}
	return rates, counts
}
