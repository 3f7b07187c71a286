// Package routing finds faults of routing, which no broken part explains: by the paths of flows, by what they lost, and by
// what switches report of their routes and sessions.
//
// Rules:
//
//  1. A next hop is expected of a switch toward a leaf if it is on a shortest path of the topology and its link works: flows
//     cross it now in either direction, and it is not known to be down.
//  2. A next hop that no flow takes is missing if chance leaves it out less than once in 10,000, over all questions of the
//     cycle together, or if the switch's table of routes lacks it. A table that has it refutes it. A switch that no flow to a
//     leaf enters has no preferred route to it; a switch that takes too few next hops toward every leaf has too few.
//  3. Flows of one leaf that crowd on few next hops of the second tier are polarized, if that holds at two switches with
//     different next hops, or if the table of the one switch has the others too.
//  4. A link that flows left twice in five minutes, and came back to, flaps. That its session flaps and not the link is
//     claimed only if sessions or the carrier say so, and if flows lost nothing there that another link at fault does not
//     explain. If the carrier came and went as often, the link itself flaps.
//  5. A link is left if all flows that crossed it have other paths for a while. What carries its load now is said with it. The
//     link is at fault if no flow is known to use it and a port of it is down, or if it lost packets until it was left and no
//     session has crossed it since. It flaps if its carrier went down and came back more than once.
//  6. Loss that ended when the flows' paths left a link, which no flow crosses any more, was failover. Its duration is that of
//     unanswered probes.
//  7. A FIB that differs from the RIB for five seconds is a mismatch, or for one if flows lose packets there. It explains what
//     flows show from when it differs until ten seconds after it differs no more. Tables are compared when they change.
//  8. A switch that refuses an identifier of chosen paths explains what is missing of all flows that need it there. Flows of
//     chosen paths say nothing of next hops, since no switch chose them.
//  9. A switch that chooses a next hop anew for each packet, or by flow, where the topology file says the other, is information.
//     It explains nothing: what sprayed flows show is weighed as a mixture of their paths.
//  10. A switch sends packets elsewhere than their next identifier says if at least two flows, whose traces leave their chosen paths,
//     show it.
//  11. Temporary flows are no evidence, since they were asked for by their path. Flows without a valid path are unknown.
//
// The package does no I/O and reads no clock.
package routing

import (
	"net/netip"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

const (
	// chance is the probability from which something is not by chance, over all questions of a cycle together.
	chance = 1e-4
	// settleTime is for how long a finding by paths must hold before it is one, in which the paths of all flows are learnt.
	settleTime = 5 * time.Second
	// flapSpan is the span in which flapTimes departures make a flap.
	flapSpan  = CarrierSpan
	flapTimes = 2
	// flapCalm is for how long nothing has flapped until a flap is over.
	flapCalm = time.Minute
	// convergedFor is for how long a failover is reported after it ended.
	convergedFor = 30 * time.Second
	// fewFlows is the number of flows that must show a departure or a failover.
	fewFlows = 3
	// mismatchTime is for how long a FIB must differ from the RIB: a busy switch installs routes late. lossyMismatchTime is that if
	// flows lose packets there.
	mismatchTime      = 5 * time.Second
	lossyMismatchTime = time.Second
	// downTime is for how long no flow must be known to use a link until its ports are believed to be down.
	downTime = 2 * time.Second
	// explainFor is for how long a finding that ended explains what flows show, whose windows reach back.
	explainFor = 10 * time.Second
	// returnTime is how long flows take to return to a link that was at fault, until they are said to have left it.
	returnTime = 3 * settleTime
	// forgetAfter is after how long a flow that is not seen is forgotten.
	forgetAfter = 10 * time.Minute
	// mostMayHold bounds the findings of mismatches that may hold.
	mostMayHold = 64
	// longLoss is for how long flows must lose packets to show that a link passes none: half of the time in which BFD detects that
	// with three packets each 100 ms. Routes that move lose packets for less.
	longLoss = 150 * time.Millisecond
	// mostListed bounds what a finding lists.
	mostListed = 8
)

// CarrierSpan is the span of Moment.CarrierChanges.
const CarrierSpan = 5 * time.Minute

// Kind is what a finding is about.
type Kind string

// Kinds of findings.
const (
	// MissingPrefix: a switch has no preferred route to a leaf. MissingHop: one switch does not use a next hop to a leaf
	// that others use.
	MissingPrefix Kind = "missing_prefix"
	MissingHop    Kind = "missing_hop"
	// FewHops: a switch uses fewer next hops than the topology has, toward every leaf.
	FewHops Kind = "few_hops"
	// SessionFlap: a routing session of a link comes and goes. FalseBFD: BFD ends it although data passes.
	SessionFlap Kind = "session_flap"
	FalseBFD    Kind = "false_bfd"
	// LeftLink: no flow uses a link any more.
	LeftLink Kind = "left_link"
	// PrefixLost: packets of one prefix are lost at a switch.
	PrefixLost   Kind = "prefix_lost"
	Polarized    Kind = "polarized"
	Converged    Kind = "converged"
	FIBMismatch  Kind = "fib_mismatch"
	SessionsDown Kind = "session_down"
	// UnknownSID: a switch refuses packets of chosen paths, since it does not know an identifier.
	UnknownSID Kind = "unknown_sid"
	// Sprays: a switch chooses a next hop anew for each packet, though the topology file does not say so. HashesFlows: it chooses one
	// for each flow, though the file says spray.
	Sprays      Kind = "sprays"
	HashesFlows Kind = "hashes_flows"
	// Misforwarded: a switch sends packets of chosen paths elsewhere than their next identifier says.
	Misforwarded Kind = "misforwarded"
	// LinkDown, LinkFlap and LinkSilent blame a link that routing left: a port of it is down, its carrier comes and goes, or it
	// lost packets until its flows had left it and carries no session since.
	LinkDown   Kind = "link_down"
	LinkFlap   Kind = "link_flap"
	LinkSilent Kind = "link_silent"
)

// BlamesLink reports whether a finding of this kind is on a link that is at fault itself.
func (k Kind) BlamesLink() bool { return k == LinkDown || k == LinkFlap || k == LinkSilent }

// Phase is how far a finding is.
type Phase int

// Phases of findings. Only a finding that holds is a verdict. One that may hold soon, and one that held a moment ago, explain what
// flows show as well: windows reach back, and reports come late.
const (
	Holds Phase = iota
	MayHold
	Ended
)

// Finding is one fault of routing.
type Finding struct {
	fabric.Element
	Kind  Kind
	Phase Phase
	// Prefix is the destination that it is about: a leaf's name, or a prefix where tables are known. It is empty if the
	// finding is about all of them.
	Prefix string
	// Others are elements that share the finding: other crowded switches, or the link of a missing next hop.
	Others []fabric.Element
	// Since is when it was seen first.
	Since time.Time
	// Confidence is the probability that it is not by chance. Claimed means that what it says excludes other reasons.
	Confidence float64
	Claimed    bool
	// Used and Expected are numbers of next hops, Flows is the number of flows that show it.
	Used, Expected, Flows int
	// Lost are the flows that lose packets for it, and Explained those whose symptoms it explains.
	Lost, Explained []fabric.Flow
	// Times is how often it happened in Span.
	Times int
	Span  time.Duration
	// Failovers are durations of a failover, by direction of the link, the longest first.
	Failovers []Failover
	// Carries are the links that carry the load of a link now, those that took most of it first.
	Carries []Share
	// Reported means that the switches' own reports show it.
	Reported bool
	// Text has details in words.
	Text string
}

// Failover is how long a direction of a link lost packets until flows avoided it, by so many flows. The direction is zero if these
// flows crossed both.
type Failover struct {
	fabric.Direction
	Loss  time.Duration
	Flows int
}

// Longest returns the longest duration of a failover, and 0 of another finding.
func (f *Finding) Longest() time.Duration {
	if len(f.Failovers) == 0 {
		return 0
	}
	return f.Failovers[0].Loss
}

// IsSame reports whether another finding is about the same fault.
func (f *Finding) IsSame(o Finding) bool {
	return f.Element == o.Element && f.Kind == o.Kind && f.Prefix == o.Prefix
}

// Share is a direction of a link with the number of flows that it has, and how many of them came from elsewhere.
type Share struct {
	Direction    fabric.Direction
	Flows, Moved int
}

// Flow is what is known of a directed flow in a cycle.
type Flow struct {
	fabric.Flow
	// Path is the path by which its packets went, and Valid means that it is confirmed.
	Path  fabric.Path
	Valid bool
	// Sent and Unanswered count the probes of the last second, both directions together, if Counted is set.
	Sent, Unanswered uint64
	Counted          bool
	// Lossy and Healthy are the judgement of the cycle. A flow may be neither.
	Lossy, Healthy bool
}

// Session is a routing session of a switch's port.
type Session struct {
	Port string
	// Protocol is "bgp" or "bfd".
	Protocol string
	Up       bool
	// Established is how often a session of BGP was established, and Downs how often one of BFD went down.
	Established, Downs uint64
	Detection          time.Duration
}

// PortSessions is what a database has of the sessions at a port that no report has: the numbers of times in the last flapSpan that a
// session of BGP was established again, and that one of BFD went down.
type PortSessions struct {
	Resets, Lapses int
	// HasBGP and HasBFD mean that it is known whether a session is up.
	HasBGP, HasBFD bool
	BGPUp, BFDUp   bool
}

// Switch is what a switch reports. A nil map is not known.
type Switch struct {
	Name string
	At   time.Time
	// FIB has the ports by which the kernel sends, by prefix; RIB those that the routing daemon selected; and Paths those by
	// which it has a valid path.
	FIB, RIB, Paths map[netip.Prefix][]string
	// TableVersion changes whenever one of them does. If it is 0, they are compared in every cycle.
	TableVersion uint64
	// RIBAt is when the daemon began to be asked for RIB, by the clock that made At. It is zero if that is not known.
	RIBAt    time.Time
	Sessions []Session
}

// Moment is what is known in a cycle.
type Moment struct {
	Now time.Time
	// Step is the time between two cycles, and so what one cycle's LastSecond stands for.
	Step  time.Duration
	Graph *fabric.Graph
	Flows []Flow
	// Refusals are the identifiers of chosen paths that switches say they do not know.
	Refusals []Refusal
	// Modes are the switches that choose next hops otherwise than the topology file says.
	Modes []fabric.SwitchMode
	// Strays are flows whose packets do not take their chosen path, as traces show.
	Strays []Stray
	// Switches are the reports of switches, by name.
	Switches map[string]*Switch
	// CarrierChanges is how often the carrier of a port changed in the last flapSpan, by port. Ports that are absent are not known.
	CarrierChanges map[string]int
	// PortUp is whether a port carries packets, by port. Ports that are absent are not known.
	PortUp map[string]bool
	// SessionHistory is what is known of sessions at ports without a report, by port. They are those of FlappingPorts and LeftPorts.
	SessionHistory map[string]PortSessions
	// Down reports whether a link or a switch is known to be down, or at fault by another verdict. It may be nil.
	Down func(fabric.Element) bool
	// LossCounts are the counts for the spans of LossSpans that are known.
	LossCounts []LossCount
	// LossyLinks are the links to which other verdicts put lost packets.
	LossyLinks []string
}

func (m *Moment) isDown(e fabric.Element) bool { return m.Down != nil && m.Down(e) }

// linkIsDown reports whether a link, or a switch at one of its ends, is known to be down.
func (m *Moment) linkIsDown(d fabric.Direction) bool {
	return m.isDown(fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink}) || m.isDown(fabric.Element{ID: fabric.OwnerOf(d.From), Kind: fabric.KindSwitch}) ||
		m.isDown(fabric.Element{ID: fabric.OwnerOf(d.To), Kind: fabric.KindSwitch})
}
