package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/unix"
)

// Kinds of faults of routing, in a lab with RoutingFRR. No part of the fabric is broken by them.
const (
	KindBGPFlap         = "bgp-flap"         // a link between switches: its session of BGP is reset, again and again
	KindWithdrawn       = "withdrawn"        // prefixes at a switch: it accepts them from no neighbour, and announces them to none
	KindBlackholeFIB    = "blackhole-fib"    // prefixes at a switch: the kernel's entries are not those that FRR selected
	KindPolarized       = "polarized"        // switches of two tiers: one seed for their hashes
	KindSlowConvergence = "slow-convergence" // a switch: only the hold time of BGP ends its sessions
	KindECMPShrunk      = "ecmp-shrunk"      // a switch: it uses fewer equal paths than there are
	KindWrongASPath     = "wrong-as-path"    // prefixes at a switch: it announces them with a longer path than there is
	KindBFDFalse        = "bfd-false"        // a direction of a link: BFD's packets are lost for a moment, again and again
)

// RoutingFaultKinds lists the faults of AllFaultKinds that only a lab with RoutingFRR can have, sorted.
func RoutingFaultKinds() []string {
	return []string{KindBFDFalse, KindBGPFlap, KindBlackholeFIB, KindECMPShrunk, KindPolarized, KindSlowConvergence, KindWithdrawn, KindWrongASPath}
}

// Defaults and bounds of the parameters of routing faults.
const (
	// DefaultPeriod is the time from one reset of a session to the next. A session is back after about four seconds.
	DefaultPeriod = 10 * time.Second
	minPeriod     = 2 * time.Second
	maxPeriod     = time.Hour
	// DefaultHold is BGP's hold time of every session. RFC 4271 section 4.2: at least 3 s.
	DefaultHold = 9 * time.Second
	minHold     = 3 * time.Second
	maxHold     = 3 * time.Minute
)

// checkSessionTimes sets the defaults of the parameters of the kind, and removes those of other kinds.
func (af *ActiveFault) checkSessionTimes() error {
	switch af.Kind {
	case KindBGPFlap, KindBFDFalse:
		if af.Period == 0 {
			af.Period = DefaultPeriod
		}
		if af.Period < minPeriod || af.Period > maxPeriod {
			return fmt.Errorf("period %s: want %s to %s", af.Period, minPeriod, maxPeriod)
		}
	default:
		af.Period = 0
	}
	if af.Kind != KindSlowConvergence {
		af.Hold = 0
		return nil
	}
	if af.Hold == 0 {
		af.Hold = DefaultHold
	}
	if af.Hold < minHold || af.Hold > maxHold || af.Hold%time.Second != 0 {
		return fmt.Errorf("hold time %s: want whole seconds from %s to %s", af.Hold, minHold, maxHold)
	}
	return nil
}

// checkPathCount sets the default of the number of equal paths that are left, and removes it from faults that have none.
func (af *ActiveFault) checkPathCount() error {
	switch {
	case af.Kind != KindBlackholeFIB && af.Kind != KindECMPShrunk:
		af.Paths = 0
	case af.Kind == KindECMPShrunk && af.Paths == 0:
		af.Paths = 1
	}
	if af.Paths < 0 || af.Paths >= maxPaths {
		return fmt.Errorf("paths %d: want fewer than %d, and not less than 0", af.Paths, maxPaths)
	}
	return nil
}

// checkRouted returns an error if no daemon routes in the lab.
func (x *index) checkRouted(what string) error {
	if x.Routing == RoutingFRR {
		return nil
	}
	return fmt.Errorf("%s needs switches that run FRR, and this lab has installed its routes itself: build it with graylink lab up --routing %s", what, RoutingFRR)
}

// resolveRouting resolves the faults of routing.
func (x *index) resolveRouting(af *ActiveFault) error {
	if err := x.checkRouted(af.Kind); err != nil {
		return err
	}
	af.Mechanism = "frr"
	sessionsOnly := []string{KindBGPFlap, KindBFDFalse, KindSlowConvergence}
	if x.family() != ipv4Family && !slices.Contains(sessionsOnly, af.Kind) {
		return fmt.Errorf("%s changes routes of IPv4, and this fabric has %s: its faults of routing are %s", af.Kind, x.family().title, strings.Join(sessionsOnly, ", "))
	}
	switch af.Kind {
	case KindBGPFlap:
		return x.resolveSessionFlap(af)
	case KindBFDFalse:
		return x.resolveDirected(af, nil)
	case KindPolarized:
		return x.resolvePolarized(af)
	case KindSlowConvergence, KindECMPShrunk:
		if ns := x.byElement[af.At]; ns == nil || !ns.Switch {
			return fmt.Errorf("%q is not a switch of the lab: %s changes a whole switch", af.At, af.Kind)
		}
		if most := x.mostHops(af.At, nil); af.Kind == KindECMPShrunk && most <= af.Paths {
			return fmt.Errorf("no route of %s to a node has more than %d next hops: %s to %d changes nothing", af.At, most, af.Kind, af.Paths)
		}
		af.Exclusive = af.Kind + " " + af.At
		return nil
	}
	return x.resolvePrefixes(af)
}

// resolveSessionFlap resolves bgp-flap at a link between switches. The end that is named first resets the session.
func (x *index) resolveSessionFlap(af *ActiveFault) error {
	id, first, directed, err := x.findLink(af.At)
	if err != nil {
		return err
	}
	if directed || fabric.IsNIC(first.From) || fabric.IsNIC(first.To) {
		return fmt.Errorf("%q: %s takes a link END--END between switches", af.At, af.Kind)
	}
	af.At, af.Home, af.ResetAt, af.Exclusive = id, fabric.OwnerOf(first.From), first.From, af.Kind+" "+id
	return nil
}

// loseBFD completes bfd-false in a direction of a link. Its helper adds and removes the rule.
func (x *index) loseBFD(af *ActiveFault, d fabric.Direction) error {
	if fabric.IsNIC(d.From) || fabric.IsNIC(d.To) {
		return fmt.Errorf("%q is an access link, and no session of BFD runs on it", af.At)
	}
	r := x.crossingRule(d)
	r.IPv6 = true
	r.Args = append(r.Args, "-p", "udp", "--dport", bfdPort, "-j", "DROP")
	af.Mechanism, af.Rules, af.Home, af.Exclusive = "iptables", []rule{r}, r.Element, af.Kind+" "+af.At
	return nil
}

// bfdPort is the port of single-hop BFD control packets (RFC 5881 section 4).
const bfdPort = "3784"

// resolvePrefixes resolves the faults of a leaf's prefixes, or of one prefix, at a switch.
func (x *index) resolvePrefixes(af *ActiveFault) error {
	sw, target, ok := strings.Cut(af.At, "->")
	if ns := x.byElement[sw]; !ok || ns == nil || !ns.Switch {
		return fmt.Errorf("%q: %s takes SWITCH->LEAF or SWITCH->PREFIX, such as spine1->leaf3 or spine1->10.0.5.0/24", af.At, af.Kind)
	}
	origin := target
	if p, err := netip.ParsePrefix(target); err == nil {
		i := slices.IndexFunc(x.Namespaces, func(ns Namespace) bool { return ns.Switch && slices.Contains(x.announcedPrefixes(ns.Element), p) })
		if i < 0 {
			return fmt.Errorf("%q: no switch announces the prefix %s", af.At, p)
		}
		af.Prefixes, origin = []netip.Prefix{p}, x.Namespaces[i].Element
	} else if ns := x.byElement[target]; ns == nil || !ns.Switch {
		return fmt.Errorf("%q: %q is neither a switch of the lab nor a prefix", af.At, target)
	} else if af.Prefixes = x.announcedPrefixes(target); len(af.Prefixes) == 0 {
		return fmt.Errorf("%q: %s announces no prefix", af.At, target)
	}
	if origin == sw {
		return fmt.Errorf("%q: the prefixes of %s at another switch are expected", af.At, sw)
	}
	if most := x.mostHops(sw, af.Prefixes); most <= af.Paths {
		return fmt.Errorf("%q: the routes have %d next hops, want more than %d", af.At, most, af.Paths)
	}
	// Two faults of a kind at a switch could be about the same prefix.
	af.Exclusive = af.Kind + " " + sw
	if af.Kind == KindBlackholeFIB {
		af.Mechanism, af.Home = "routes", sw
	}
	return nil
}

// routesAt returns the switch of a fault that resolvePrefixes resolved.
func (af *ActiveFault) routesAt() string {
	sw, _, _ := strings.Cut(af.At, "->")
	return sw
}

// mostHops returns the most next hops that a route of a switch has: of those to nodes, or of those to some prefixes.
func (x *index) mostHops(sw string, prefixes []netip.Prefix) int {
	if prefixes == nil {
		for _, d := range x.allDestinations() {
			if d.end != "" {
				prefixes = append(prefixes, d.prefix)
			}
		}
	}
	most := 0
	for _, r := range x.computeRoutes(nil, nil)[sw] {
		if !r.isLocal() && slices.Contains(prefixes, r.dst) {
			most = max(most, len(r.hops))
		}
	}
	return most
}

// resolvePolarized resolves polarized at a switch, or at two tiers.
func (x *index) resolvePolarized(af *ActiveFault) (err error) {
	if af.Alike, err = x.alikeSwitches(af.At); err != nil {
		return err
	}
	if !x.choosesTwice(af.Alike) {
		return fmt.Errorf("%q: no flow crosses two of the switches %s that both choose among equal paths; this takes three tiers, or parallel links",
			af.At, strings.Join(af.Alike, ", "))
	}
	af.Mechanism, af.Exclusive = "hash", af.Kind
	return nil
}

// alikeSwitches returns the switches that hash alike in a polarized fabric: a switch and those below it that it is linked with,
// or all switches of two tiers.
func (x *index) alikeSwitches(at string) ([]string, error) {
	var out []string
	if ns := x.byElement[at]; ns != nil && ns.Switch {
		out = append(out, at)
		for _, i := range ns.Interfaces {
			if peer := fabric.OwnerOf(i.Peer); !fabric.IsNIC(i.Peer) && x.graph.SwitchTier(peer) < x.graph.SwitchTier(at) && !slices.Contains(out, peer) {
				out = append(out, peer)
			}
		}
		return out, nil
	}
	var one, two int
	if n, err := fmt.Sscanf(at, "tier%d,tier%d", &one, &two); err != nil || n != 2 || at != fmt.Sprintf("tier%d,tier%d", one, two) || one == two {
		return nil, fmt.Errorf("%q: %s takes a switch, or two tiers such as tier1,tier2", at, KindPolarized)
	}
	for _, ns := range x.Namespaces {
		if tier := x.graph.SwitchTier(ns.Element); ns.Switch && (tier == one || tier == two) {
			out = append(out, ns.Element)
		}
	}
	return out, nil
}

// choosesTwice reports whether a flow can cross two of these switches, one after the other, that have several next hops
// to its destination.
func (x *index) choosesTwice(switches []string) bool {
	chooses := map[string]map[netip.Prefix][]hop{}
	all := x.computeRoutes(nil, nil)
	for _, sw := range switches {
		chooses[sw] = map[netip.Prefix][]hop{}
		for _, r := range all[sw] {
			if len(r.hops) > 1 {
				chooses[sw][r.dst] = r.hops
			}
		}
	}
	for _, sw := range switches {
		for dst, hops := range chooses[sw] {
			for _, h := range hops {
				if next := fabric.OwnerOf(x.byEnd[h.end].Peer); len(chooses[next][dst]) > 1 {
					return true
				}
			}
		}
	}
	return false
}

// setHashSeeds gives all of these switches the seed of the first, or each its own again.
func (x *index) setHashSeeds(switches []string, alike bool) error {
	var errs []error
	for _, sw := range switches {
		ns := x.byElement[sw]
		from := ns
		if alike {
			from = x.byElement[switches[0]]
		}
		err := unix.InNetns(ns.Netns, hashSeedSetting(from).write)
		if errors.Is(err, os.ErrNotExist) && alike {
			return fmt.Errorf("this kernel has one hash seed for all namespaces, so that all switches hash alike already: Linux 6.11 has %s: %w", hashSeedSetting(from).path, err)
		}
		if !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// applyRouting applies a fault of routing, but for what its helper does.
func (l *Lab) applyRouting(ctx context.Context, f *ActiveFault) error {
	switch f.Kind {
	case KindPolarized:
		return l.x.setHashSeeds(f.Alike, true)
	case KindSlowConvergence:
		return l.setSessionTimes(ctx, f.At, slowBFD, f.Hold, f.Hold != DefaultHold)
	case KindECMPShrunk:
		return l.configureBGP(ctx, f.At, "address-family ipv4 unicast", fmt.Sprintf("maximum-paths %d", f.Paths))
	case KindWithdrawn, KindWrongASPath:
		return l.addPolicy(ctx, f)
	}
	return nil
}

// undoRouting undoes a fault of routing, whatever part of it was applied. Its helper has ended.
func (l *Lab) undoRouting(ctx context.Context, f *ActiveFault) error {
	switch f.Kind {
	case KindPolarized:
		return l.x.setHashSeeds(f.Alike, false)
	case KindSlowConvergence:
		return l.setSessionTimes(ctx, f.At, fastBFD, DefaultHold, f.Hold != DefaultHold)
	case KindECMPShrunk:
		return l.configureBGP(ctx, f.At, "address-family ipv4 unicast", fmt.Sprintf("maximum-paths %d", maxPaths))
	case KindWithdrawn, KindWrongASPath:
		return l.removePolicy(ctx, f)
	case KindBlackholeFIB:
		return l.restoreEntries(ctx, f)
	}
	return nil
}

// configureBGP runs commands below "router bgp" of a switch.
func (l *Lab) configureBGP(ctx context.Context, sw string, commands ...string) error {
	return l.configureSwitch(ctx, sw, append([]string{fmt.Sprintf("router bgp %d", l.x.asnOf(sw))}, commands...)...)
}

// configureSwitch changes the running configuration of a switch's FRR. Its files stay as they are.
func (l *Lab) configureSwitch(ctx context.Context, sw string, commands ...string) error {
	_, err := runVtysh(ctx, l.root, l.name, sw, append([]string{"configure terminal"}, commands...)...)
	return err
}

// policyOf returns the name of a fault's route map and prefix list, and the way in which it is applied to sessions.
func policyOf(f *ActiveFault) (name, way string) {
	if f.Kind == KindWithdrawn {
		return "graylink-" + f.Kind, "in"
	}
	return "graylink-" + f.Kind, "out"
}

// addPolicy makes a switch refuse prefixes of every neighbour, or announce them with its own number twice more.
func (l *Lab) addPolicy(ctx context.Context, f *ActiveFault) error {
	sw := f.routesAt()
	name, way := policyOf(f)
	var commands []string
	for i, p := range f.Prefixes {
		commands = append(commands, fmt.Sprintf("ip prefix-list %s seq %d permit %s", name, i+1, p))
	}
	if f.Kind == KindWithdrawn {
		commands = append(commands, fmt.Sprintf("route-map %s deny 1", name), "match ip address prefix-list "+name)
	} else {
		commands = append(commands, fmt.Sprintf("route-map %s permit 1", name), "match ip address prefix-list "+name,
			fmt.Sprintf("set as-path prepend %[1]d %[1]d", l.x.asnOf(sw)))
	}
	commands = append(commands, "exit", fmt.Sprintf("route-map %s permit 2", name), "exit")
	if err := l.configureSwitch(ctx, sw, commands...); err != nil {
		return err
	}
	return l.configureBGP(ctx, sw, "address-family ipv4 unicast", fmt.Sprintf("neighbor fabric route-map %s %s", name, way))
}

// removePolicy undoes addPolicy. FRR accepts that a part of it is not there.
func (l *Lab) removePolicy(ctx context.Context, f *ActiveFault) error {
	sw := f.routesAt()
	name, way := policyOf(f)
	if err := l.configureBGP(ctx, sw, "address-family ipv4 unicast", fmt.Sprintf("no neighbor fabric route-map %s %s", name, way)); err != nil {
		return err
	}
	return l.configureSwitch(ctx, sw, "no route-map "+name, "no ip prefix-list "+name)
}

// bfdTimers are the values of a profile of BFD.
type bfdTimers struct {
	multiplier        int
	receive, transmit time.Duration
}

var (
	fastBFD = bfdTimers{multiplier: 3, receive: 100 * time.Millisecond, transmit: 100 * time.Millisecond}
	// slowBFD detects nothing within three minutes: neighbours send one packet a minute, and wait for 255 of the own. These are
	// sent each second, so that neighbours learn soon that the timers have changed. To remove BFD from a session in place
	// of this would reset the session (FRR 8.4.4).
	slowBFD = bfdTimers{multiplier: 255, receive: time.Minute, transmit: time.Second}
)

// profileLines returns the lines of a profile of BFD.
func (t bfdTimers) profileLines() []string {
	return []string{fmt.Sprintf("detect-multiplier %d", t.multiplier), fmt.Sprintf("receive-interval %d", t.receive.Milliseconds()),
		fmt.Sprintf("transmit-interval %d", t.transmit.Milliseconds())}
}

// setSessionTimes sets the timers of BFD of a switch, which its neighbours follow, and the hold time of BGP if holds is true. A
// session of BGP takes its hold time when it begins, so that holds resets all sessions of the switch.
func (l *Lab) setSessionTimes(ctx context.Context, sw string, t bfdTimers, hold time.Duration, holds bool) error {
	if err := l.configureSwitch(ctx, sw, append([]string{"bfd", "profile " + bfdProfile}, t.profileLines()...)...); err != nil || !holds {
		return err
	}
	seconds := int(hold.Seconds())
	if err := l.configureBGP(ctx, sw, fmt.Sprintf("timers bgp %d %d", seconds/3, seconds)); err != nil {
		return err
	}
	for _, i := range l.x.byElement[sw].Interfaces {
		if !i.Unnumbered {
			continue
		}
		line := fmt.Sprintf("neighbor %s timers %d %d", l.x.byEnd[i.Peer].Name, seconds/3, seconds)
		if hold == DefaultHold {
			line = fmt.Sprintf("no neighbor %s timers", l.x.byEnd[i.Peer].Name)
		}
		if err := l.configureBGP(ctx, fabric.OwnerOf(i.Peer), line); err != nil {
			return err
		}
	}
	_, err := runVtysh(ctx, l.root, l.name, sw, "clear bgp *")
	return err
}

// resetSessions resets the session of BGP at a port, at once and then each period, until ctx ends. It is the body of
// bgp-flap's helper.
func resetSessions(ctx context.Context, root, name string, f ActiveFault, port string, started func() error) error {
	for first := true; ; first = false {
		_, err := runVtysh(ctx, root, name, fabric.OwnerOf(f.ResetAt), "clear bgp "+port)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if first {
			if err := started(); err != nil {
				return err
			}
		}
		if sleepContext(ctx, f.Period) != nil {
			return nil
		}
	}
}

// bfdLost is how long bfd-false loses packets. A session ends after 300 ms.
const bfdLost = 500 * time.Millisecond

// dropBFD loses the packets of BFD for bfdLost in each period, until ctx ends. It is the body of bfd-false's helper.
func dropBFD(ctx context.Context, root, name string, f ActiveFault, started func() error) error {
	set := func(lost bool) error {
		return changeFault(ctx, root, name, f.ID, func(st *state, f *ActiveFault) error {
			f.Down = lost
			return st.currentFabric().changeRule(ctx, f.Rules[0], lost)
		})
	}
	if err := started(); err != nil {
		return err
	}
	for lost := true; ; lost = !lost {
		err := set(lost)
		if ctx.Err() != nil || errors.Is(err, errCleared) {
			return nil // clearing the fault removes the rule
		}
		if err != nil {
			return err
		}
		pause := f.Period - bfdLost
		if lost {
			pause = bfdLost
		}
		if sleepContext(ctx, pause) != nil {
			return nil
		}
	}
}

// RoutingPlaces lists where a fault of routing can be seen in a topology: values of Fault.At, for all kinds but polarized at two
// tiers. It returns none if there is no such place.
func RoutingPlaces(topo *fabric.Topology, kind string) ([]string, error) {
	x, err := planLayout("places", topo)
	if err != nil {
		return nil, err
	}
	x.setRouting(RoutingFRR)
	var candidates []string
	switch kind {
	case KindBGPFlap, KindBFDFalse:
		for _, l := range topo.Links {
			if !l.IsAccess() {
				candidates = append(candidates, l.ID())
			}
		}
	case KindPolarized, KindECMPShrunk, KindSlowConvergence:
		for _, ns := range x.Namespaces {
			if ns.Switch {
				candidates = append(candidates, ns.Element)
			}
		}
	default:
		candidates = x.prefixPlaces(kind)
	}
	return slices.DeleteFunc(candidates, func(at string) bool {
		_, err := x.resolveFault(Fault{Kind: kind, At: at}, func() bool { return false })
		return err != nil
	}), nil
}

// prefixPlaces lists the pairs SWITCH->LEAF where flows to the leaf cross the switch. For faults that make flows avoid the
// switch, these have another way.
func (x *index) prefixPlaces(kind string) []string {
	all := x.computeRoutes(nil, nil)
	leaves := map[string]bool{}
	for _, ns := range x.Namespaces {
		for _, i := range ns.Interfaces {
			if !ns.Switch {
				leaves[fabric.OwnerOf(i.Peer)] = true
			}
		}
	}
	var out []string
	add := func(at string) {
		if !slices.Contains(out, at) {
			out = append(out, at)
		}
	}
	for _, d := range x.allDestinations() {
		if d.end == "" {
			continue
		}
		// Switches that flows to the destination reach, in the order in which they do.
		reached := slices.DeleteFunc(slices.Sorted(maps.Keys(leaves)), func(leaf string) bool { return leaf == d.sw })
		for n := 0; n < len(reached); n++ {
			i := slices.IndexFunc(all[reached[n]], func(r route) bool { return r.dst == d.prefix && !r.isLocal() })
			if i < 0 {
				continue
			}
			if kind == KindBlackholeFIB {
				add(reached[n] + "->" + d.sw)
			}
			hops := all[reached[n]][i].hops
			for _, h := range hops {
				next := fabric.OwnerOf(x.byEnd[h.end].Peer)
				if next != d.sw && !slices.Contains(reached, next) {
					reached = append(reached, next)
				}
				if next != d.sw && kind != KindBlackholeFIB && len(hops) > 1 {
					add(next + "->" + d.sw)
				}
			}
		}
	}
	return out
}
