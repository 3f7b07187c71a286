package nichealth

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/nichw"
)

// Product holds the expected ports of a node with a GPU of a product.
type Product struct {
	// Match is part of the product's name, in any case; the longest that matches counts.
	Match string `yaml:"match" schema:"required"`
	// Ports is the number of ports.
	Ports int `yaml:"ports" schema:"required,min=1"`
	// Rate is the rate of each port.
	Rate int64 `yaml:"rate_bits_per_second" schema:"required,min=1"`
}

// Sort is how a rule of counters reads growth.
type Sort string

// Sorts of rules.
const (
	// Any growth breaches.
	Growth Sort = "growth"
	// Rate is growth per second over the window.
	Rate Sort = "rate"
	// Share is the part of the time that the growth, in ticks of Config.XmitWaitTick, stands for.
	Share Sort = "share"
)

// Threshold is a rule of one counter.
type Threshold struct {
	// Counter is the name of the counter.
	Counter string `yaml:"counter" schema:"required"`
	// Sort is how the rule reads growth: any growth, the rate per second, or the share of the time that it stands for.
	Sort Sort `yaml:"sort" schema:"required,enum=growth|rate|share"`
	// Above is the value above which the rule is breached.
	Above float64 `yaml:"above" schema:"min=0"`
	// Window is the time over which growth is measured: 1s to 24h.
	Window time.Duration `yaml:"window" schema:"required"`
	// Fatal makes the events of the rule fatal instead of warnings.
	Fatal bool `yaml:"fatal"`
	// Code is the error code of its events, by default the counter's name. The codes of two rules for one counter
	// must differ.
	Code string `yaml:"code"`
}

// Config holds the parameters of the rules.
type Config struct {
	Node string
	// Every is the time between polls, Confirm and ConfirmEvery are rule 2's, Stuck is rule 5's,
	// Misses rule 3's.
	Every, Confirm, ConfirmEvery, Stuck time.Duration
	Misses                              int
	// Excluded, Management and ExpectedDown are matched against names of devices and interfaces.
	Excluded, Management, ExpectedDown []*regexp.Regexp
	// Products is the table, and GPU the name of this node's product, "" if it is not known.
	Products []Product
	GPU      string
	// Thresholds are the rules of counters.
	Thresholds []Threshold
	// XmitWaitTick is how long a tick of port_xmit_wait is; 0: not known, and rules of shares
	// say nothing.
	XmitWaitTick time.Duration
}

// perSecond is the window of rates per second.
const perSecond = 10 * time.Second

// DefaultConfig returns the published rules.
func DefaultConfig() Config {
	re := func(s ...string) (out []*regexp.Regexp) {
		for _, x := range s {
			out = append(out, regexp.MustCompile(x))
		}
		return out
	}
	return Config{Every: time.Second, Confirm: 500 * time.Millisecond, ConfirmEvery: 100 * time.Millisecond, Stuck: 30 * time.Second, Misses: 3,
		Excluded: re(`^veth`, `^docker`, `^br-`, `^lo$`, `^cali`, `^cilium`, `^virbr`), Thresholds: DefaultThresholds()}
}

// DefaultThresholds returns those of the seed, as corrected. Each correction has its reason.
func DefaultThresholds() []Threshold {
	out := []Threshold{}
	// A single link_downed is fatal to the workload that runs: its connections are lost. That
	// it happens three times in ten minutes is another rule's, and worse.
	//
	// rnr_nak_retry_err is not here: it counts retries that went on within the limit. What
	// the sender gave up is in the two counters of retries exceeded.
	for _, name := range []string{"link_downed", "excessive_buffer_overrun_errors", "local_link_integrity_errors", "req_rnr_retries_exceeded", "req_transport_retries_exceeded"} {
		out = append(out, Threshold{Counter: name, Sort: Growth, Window: time.Minute, Fatal: true})
	}
	out = append(out,
		// Over a whole hour: projecting one error of a poll of five seconds made it hundreds an hour.
		Threshold{Counter: "symbol_error", Sort: Rate, Above: 120.0 / 3600, Window: time.Hour, Fatal: true, Code: "symbol_error_hourly"},
		Threshold{Counter: "symbol_error", Sort: Rate, Above: 10, Window: perSecond},
		Threshold{Counter: "link_error_recovery", Sort: Rate, Above: 5.0 / 60, Window: time.Minute},
		Threshold{Counter: "port_rcv_errors", Sort: Rate, Above: 10, Window: perSecond},
		Threshold{Counter: "local_ack_timeout_err", Sort: Rate, Above: 1, Window: perSecond},
		Threshold{Counter: "port_xmit_discards", Sort: Rate, Above: 100, Window: perSecond},
		Threshold{Counter: "roce_slow_restart", Sort: Rate, Above: 10, Window: perSecond},
		Threshold{Counter: "out_of_sequence", Sort: Rate, Above: 100, Window: perSecond},
		// What a tick of port_xmit_wait is depends on the device. Where it is configured, the share
		// of time counts; the raw number is the seed's.
		Threshold{Counter: "port_xmit_wait", Sort: Share, Above: 0.1, Window: perSecond, Code: "port_xmit_wait_share"},
		Threshold{Counter: "port_xmit_wait", Sort: Rate, Above: 10000, Window: perSecond},
		// carrier_changes lies beside statistics/ and not in it. Down and up again are two.
		Threshold{Counter: "carrier_changes", Sort: Rate, Above: 2.0 / 60, Window: time.Minute})
	for i := range out {
		if out[i].Code == "" {
			out[i].Code = out[i].Counter
		}
	}
	return out
}

// Validate names the field that is wrong.
func (c *Config) Validate() error {
	for _, x := range []struct {
		name string
		d    time.Duration
	}{{"every", c.Every}, {"confirm", c.Confirm}, {"confirm_every", c.ConfirmEvery}, {"stuck", c.Stuck}} {
		if x.d <= 0 {
			return fmt.Errorf("%s: a duration above 0 is expected, not %s", x.name, x.d)
		}
	}
	if c.Misses < 1 {
		return fmt.Errorf("misses: 1 or more is expected, not %d", c.Misses)
	}
	for i, p := range c.Products {
		if p.Match == "" || p.Ports < 1 || p.Rate < 1 {
			return fmt.Errorf("products[%d]: match, ports and rate_bits_per_second are expected, not %+v", i, p)
		}
	}
	codes := map[string]bool{}
	for i := range c.Thresholds {
		t := &c.Thresholds[i]
		if t.Code == "" {
			t.Code = t.Counter
		}
		switch {
		case t.Counter == "":
			return fmt.Errorf("thresholds[%d].counter: the name of a counter is expected", i)
		case t.Sort != Growth && t.Sort != Rate && t.Sort != Share:
			return fmt.Errorf("thresholds[%d].sort: %s, %s or %s is expected, not %q", i, Growth, Rate, Share, t.Sort)
		case t.Window < time.Second || t.Window > 24*time.Hour:
			return fmt.Errorf("thresholds[%d].window: 1s to 24h is expected, not %s", i, t.Window)
		case !(t.Above >= 0):
			return fmt.Errorf("thresholds[%d].above: 0 or more is expected, not %g", i, t.Above)
		case codes[t.Code]:
			return fmt.Errorf("thresholds[%d].code: %q is that of another rule", i, t.Code)
		}
		codes[t.Code] = true
	}
	return nil
}

// nodeProduct returns the table's line for this node, and nil if none matches.
func (c *Config) nodeProduct() (best *Product) {
	name := strings.ToLower(c.GPU)
	for i := range c.Products {
		p := &c.Products[i]
		if name != "" && strings.Contains(name, strings.ToLower(p.Match)) && (best == nil || len(p.Match) > len(best.Match)) {
			best = p
		}
	}
	return best
}

func matchesAny(res []*regexp.Regexp, name string) bool {
	for _, re := range res {
		if re.MatchString(name) {
			return true
		}
	}
	return false
}

// IsExcluded reports whether a device or interface is left out of everything.
func (c *Config) IsExcluded(name string) bool { return matchesAny(c.Excluded, name) }

// isQuiet reports whether a device makes no events (rule 13).
func (c *Config) isQuiet(name string) bool {
	return c.IsExcluded(name) || matchesAny(c.Management, name)
}

// mayBeDown reports whether a port may be down by rule 4.
func (c *Config) mayBeDown(name string, f nichw.Function) bool {
	return f == nichw.Virtual || matchesAny(c.ExpectedDown, name)
}

// widths are the bits of counters that stop at the end of their range (IBA 16.1.3.5,
// PortCounters), by the names of sysfs.
var widths = map[string]uint{"symbol_error": 16, "link_error_recovery": 8, "link_downed": 8, "port_rcv_errors": 16, "port_rcv_remote_physical_errors": 16, "port_rcv_switch_relay_errors": 16,
	"port_xmit_discards": 16, "port_xmit_constraint_errors": 8, "port_rcv_constraint_errors": 8, "local_link_integrity_errors": 4, "excessive_buffer_overrun_errors": 4, "VL15_dropped": 16}

// isSaturated reports whether a counter is saturated by rule 11.
func isSaturated(counter string, v uint64) bool {
	w, ok := widths[counter]
	return ok && v == 1<<w-1
}
