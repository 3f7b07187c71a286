package ufm

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// Reason is why paths may be others than before. It is a label of series.
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
	PortSet     Reason = "port_set"    // somebody reset, enabled or disabled a port
	Unhealthy   Reason = "unhealthy"   // the subnet manager routes around a port
	SMUp        Reason = "sm_up"
	SMDown      Reason = "sm_down"
	SMFailover  Reason = "sm_failover"
	SMState     Reason = "sm_state"
	SMLID       Reason = "sm_lid"
	UFMFailover Reason = "ufm_failover" // its subnet manager goes with it
	Rerouted    Reason = "rerouted"     // the subnet manager says so in its log
)

// Reasons are all of them, for series that begin with 0.
var Reasons = []Reason{LinkUp, LinkDown, NodeUp, NodeDown, SwitchUp, SwitchDown, SwitchPart, PortSet, Unhealthy, SMUp, SMDown, SMFailover, SMState, SMLID, UFMFailover, Rerouted}

// reasonByCode are the types of events that tell of a change (eventTypes).
var reasonByCode = map[string]Reason{
	"328": LinkUp, "329": LinkDown, "331": NodeDown, "332": NodeUp, "336": PortSet, "344": SwitchPart, "398": SwitchPart, "399": SwitchPart,
	"510": SMFailover, "511": SMState, "512": SMUp, "514": SMLID, "530": SMDown, "545": SMDown, "602": UFMFailover, "702": Unhealthy,
	"907": SwitchDown, "908": SwitchUp, "909": SwitchDown, "910": SwitchUp, "1312": SwitchUp,
}

// smLog is the type of events that hold a line of the subnet manager's log.
const smLog = "513"

// reroutingTexts are texts of the subnet manager's log; internal/ibfabric reads the same.
var reroutingTexts = []string{"SUBNET UP", "REROUTE", "HEAVY SWEEP", "heavy sweep", "tables configured on all switches", "Entering MASTER state", "routing engine"}

// ChangeReason is why paths may be others since an event; false: it does not touch them.
func (e *Event) ChangeReason() (Reason, bool) {
	if e.Code == smLog {
		return Rerouted, slices.ContainsFunc(reroutingTexts, func(s string) bool { return strings.Contains(e.Description, s) })
	}
	r, there := reasonByCode[e.Code]
	return r, there
}

// Changes tells a reader of forwarding tables that something changed, by UFM's events,
// as OpenSM's log does on the machine of the subnet manager (internal/ibfabric: a
// Teller). It may be used by many goroutines.
//
// UFM's events come with a delay: that of UFM, and the time between two readings of
// them. A reader that waits for calm must wait for longer than both (Watch.Settle).
type Changes struct {
	// Now is the clock.
	Now func() time.Time
	// StaleAfter is after what time without a whole reading of events something may have
	// changed unseen; 0: never.
	StaleAfter time.Duration

	mu          sync.Mutex
	changed     bool
	lastReading time.Time // the last whole reading of events
}

// RecordEvents takes the new events of a whole reading.
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

// PollChange reports whether UFM told of a change since it was last asked, or may have
// without being heard.
func (c *Changes) PollChange() (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	told := c.changed || c.StaleAfter > 0 && c.Now().Sub(c.lastReading) > c.StaleAfter
	c.changed = false
	return told, nil
}
