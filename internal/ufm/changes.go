package ufm

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// Reason states why paths may differ from before. It is a label value of series.
type Reason string

// Reasons.
const (
	LinkUp      Reason = "link_up"
	LinkDown    Reason = "link_down"
	NodeUp      Reason = "node_up"
	NodeDown    Reason = "node_down"
	SwitchUp    Reason = "switch_up"
	SwitchDown  Reason = "switch_down"
	SwitchPart  Reason = "switch_part" // a chip of a switch came or went, or its ports fail
	PortSet     Reason = "port_set"    // a port was reset, enabled or disabled by request
	Unhealthy   Reason = "unhealthy"   // the subnet manager routes around a port
	SMUp        Reason = "sm_up"
	SMDown      Reason = "sm_down"
	SMFailover  Reason = "sm_failover"
	SMState     Reason = "sm_state"
	SMLID       Reason = "sm_lid"
	UFMFailover Reason = "ufm_failover" // its subnet manager goes with it
	Rerouted    Reason = "rerouted"     // the subnet manager says so in its log
)

// Reasons lists all reasons, for series that begin with 0.
var Reasons = []Reason{LinkUp, LinkDown, NodeUp, NodeDown, SwitchUp, SwitchDown, SwitchPart, PortSet, Unhealthy, SMUp, SMDown, SMFailover, SMState, SMLID, UFMFailover, Rerouted}

// reasonByCode gives the reason for the types of events that report a change (eventTypes).
var reasonByCode = map[string]Reason{
	"328": LinkUp, "329": LinkDown, "331": NodeDown, "332": NodeUp, "336": PortSet, "344": SwitchPart, "398": SwitchPart, "399": SwitchPart,
	"510": SMFailover, "511": SMState, "512": SMUp, "514": SMLID, "530": SMDown, "545": SMDown, "602": UFMFailover, "702": Unhealthy,
	"907": SwitchDown, "908": SwitchUp, "909": SwitchDown, "910": SwitchUp, "1312": SwitchUp,
}

// smLog is the type of the events that hold a line of the subnet manager's log.
const smLog = "513"

// reroutingTexts are texts in the subnet manager's log that report new routes; internal/ibfabric looks for the
// same.
var reroutingTexts = []string{"SUBNET UP", "REROUTE", "HEAVY SWEEP", "heavy sweep", "tables configured on all switches", "Entering MASTER state", "routing engine"}

// ChangeReason returns the reason why paths may differ after an event. It returns false for an event that does
// not affect paths.
func (e *Event) ChangeReason() (Reason, bool) {
	if e.Code == smLog {
		return Rerouted, slices.ContainsFunc(reroutingTexts, func(s string) bool { return strings.Contains(e.Description, s) })
	}
	r, there := reasonByCode[e.Code]
	return r, there
}

// Changes reports to a reader of forwarding tables, from UFM's events, that something changed, as OpenSM's log
// does on the machine of the subnet manager. It implements internal/ibfabric.ChangeSource and may be used by
// many goroutines. UFM's events arrive with a delay: UFM's own, and the time between two readings of them. A
// reader that waits until changes stop must wait for longer than both (Watch.Settle).
type Changes struct {
	// Now returns the current time.
	Now func() time.Time
	// StaleAfter is the time without a complete reading of events after which a change may have gone unseen. 0
	// means never.
	StaleAfter time.Duration

	mu          sync.Mutex
	changed     bool
	lastReading time.Time // when all events were last read
}

// RecordEvents takes the new events of a complete reading.
func (c *Changes) RecordEvents(fresh []Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastReading = c.Now()
	for _, e := range fresh {
		if _, is := e.ChangeReason(); is {
			c.changed = true
		}
	}
}

// PollChange reports whether UFM reported a change since the last call, or may have done so unseen because its
// events could not be read for longer than StaleAfter.
func (c *Changes) PollChange() (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed := c.changed || c.StaleAfter > 0 && c.Now().Sub(c.lastReading) > c.StaleAfter
	c.changed = false
	return changed, nil
}
