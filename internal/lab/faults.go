package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/unix"
)

// Kinds of faults.
const (
	KindDelay      = "delay"       // a direction of a link: every packet later
	KindLoss       = "loss"        // a direction of a link: some packets gone
	KindECN        = "ecn"         // a direction of a link: ECT packets leave marked CE (RFC 3168)
	KindBlackhole  = "blackhole"   // a direction of a link: every packet gone, the port stays up
	KindLinkDown   = "link-down"   // a link between switches: both ends down
	KindNICSlow    = "nic-slow"    // a NIC: packets to it, from it or both later
	KindSwitchSlow = "switch-slow" // a switch: all it forwards later
	KindHostStall  = "host-stall"  // a node: its processes starved of CPU
	KindCongest    = "congest"     // a switch's port: more traffic than it lets pass
	KindIncast     = "incast"      // a NIC: many hosts send to it at once
	KindFlap       = "flap"        // a link between switches: down and up again, and again
	KindMiscable   = "miscable"    // two links between switches: their cables swapped
	KindMute       = "mute"        // a switch: it sends no message that packets expired
	KindClockStep  = "clock-step"  // a NIC: the clock its agent reads jumps
	KindClockDrift = "clock-drift" // a NIC: the clock its agent reads runs at another rate
	KindMTU        = "mtu"         // a link: both ends take shorter packets only
	KindTrim       = "trim"        // a direction of a link: longer packets lose what is behind their headers
	KindSIDUnknown = "sid-unknown" // a switch and a neighbour: the switch does not know the identifiers that lead there (SRv6)
)

// AllFaultKinds lists the faults that AddFault knows, sorted.
func AllFaultKinds() []string {
	all := append(append(FaultKinds(), KindMTU, KindTrim, KindSIDUnknown), RoutingFaultKinds()...)
	slices.Sort(all)
	return all
}

// FaultKinds lists the faults of AllFaultKinds that packets of any length meet, sorted.
func FaultKinds() []string {
	return []string{KindBlackhole, KindClockDrift, KindClockStep, KindCongest, KindDelay, KindECN, KindFlap, KindHostStall, KindIncast, KindLinkDown, KindLoss,
		KindMiscable, KindMute, KindNICSlow, KindSwitchSlow}
}

// Defaults of a fault's parameters.
const (
	DefaultDelay    = 2 * time.Millisecond
	DefaultLoss     = 0.1
	DefaultStep     = time.Millisecond
	DefaultDriftPPM = 50
	maxDelay        = 10 * time.Second
	maxStep         = time.Hour
	maxDriftPPM     = 100_000
	// ShortMTU is shorter than packets of RoCE with the shortest active MTU that an interface of DefaultMTU has, and longer
	// than probes.
	ShortMTU = 1000
	minMTU   = 576 // RFC 791: every host takes as much
)

// WithdrawAfter is how long the fabric's other switches keep routes over a
// link that is down, with RoutingStatic: the time a routing daemon with a hold timer of 3 s takes.
const WithdrawAfter = 3 * time.Second

// Directions of nic-slow, seen from the NIC.
const (
	DirectionIn   = "in"
	DirectionOut  = "out"
	DirectionBoth = "both"
)

// Fault is a request to break something.
type Fault struct {
	Kind string `json:"kind"`
	// At is the element: a link (or one direction of it), two links separated by a comma, a port, a NIC, a switch or
	// a node, depending on the kind.
	At string `json:"at"`
	// Direction is FROM->TO of a link, by default from the end that At names
	// first; in, out or both (the default) for nic-slow.
	Direction string        `json:"direction,omitempty"`
	Delay     time.Duration `json:"delay_ns,omitempty"`  // DefaultDelay when 0
	Loss      float64       `json:"loss,omitempty"`      // 0 to 1; DefaultLoss when 0
	Step      time.Duration `json:"step_ns,omitempty"`   // of the clock, either way; DefaultStep when 0
	DriftPPM  float64       `json:"drift_ppm,omitempty"` // of the clock, millionths, either way; DefaultDriftPPM when 0
	MTU       int           `json:"mtu,omitempty"`       // of the link, octets; ShortMTU or ShortMTUv6 when 0
	Period    time.Duration `json:"period_ns,omitempty"` // from one loss of a session to the next; DefaultPeriod when 0
	Hold      time.Duration `json:"hold_ns,omitempty"`   // of sessions of BGP; DefaultHold when 0
	// Paths is how many next hops are left: of blackhole-fib 0 and more, of ecmp-shrunk 1 when 0.
	Paths int `json:"paths,omitempty"`
	// Sessions makes blackhole lose the packets of BGP and BFD as well, where FRR routes.
	Sessions bool `json:"sessions,omitempty"`
	// Length is what trim leaves of a packet, octets from the IP header on; DefaultTrimLength when 0. Share is the share of
	// the longer packets that it trims, 0 to 1; all when 0.
	Length int     `json:"length,omitempty"`
	Share  float64 `json:"share,omitempty"`
}

// ActiveFault is a fault that is in force.
type ActiveFault struct {
	ID string `json:"id"`
	Fault
	// Mechanism is netem, relay (NFQUEUE and a user-space process), iptables,
	// routes, interfaces, traffic, cables, signals, bpf, bend (of the clock an agent reads), frr (its running configuration or
	// a command to it) or hash (the seed by which the kernel chooses among equal routes).
	Mechanism string    `json:"mechanism"`
	Since     time.Time `json:"since"`
	Rules     []rule    `json:"rules,omitempty"`
	Queue     uint16    `json:"queue,omitempty"`
	NetemAt   string    `json:"netem_at,omitempty"`  // the port that has the queueing discipline
	ShapedAt  string    `json:"shaped_at,omitempty"` // the port that has a rate
	TrimAt    string    `json:"trim_at,omitempty"`   // the port that has the program which trims
	Down      bool      `json:"down,omitempty"`      // flap: the link is down at the moment; bfd-false: packets are lost
	Withdrawn bool      `json:"withdrawn,omitempty"` // link-down: the lab took the routes of the other switches back
	WasMTU    int       `json:"was_mtu,omitempty"`   // mtu: that of the link before
	Home      string    `json:"home,omitempty"`      // the element whose namespace the helper runs in
	Helper    Process   `json:"helper,omitzero"`
	// Prefixes are those that withdrawn, blackhole-fib and wrong-as-path are about.
	Prefixes []netip.Prefix `json:"prefixes,omitempty"`
	ResetAt  string         `json:"reset_at,omitempty"` // bgp-flap: the port at which the session is reset
	Alike    []string       `json:"alike,omitempty"`    // polarized: the switches that hash alike
	// exclusive names a resource that at most one fault can hold at a time.
	Exclusive string `json:"exclusive,omitempty"`
}

// rule is one line of a switch's iptables mangle table.
type rule struct {
	Element string   `json:"element"`
	Chain   string   `json:"chain"`
	Args    []string `json:"args"`
	// Last rules stand behind the others: a packet that comes back from a
	// queue skips the rest of the chain.
	Last bool `json:"last,omitempty"`
	IPv6 bool `json:"ipv6,omitempty"` // of ip6tables
}

// firstQueue leaves the numbers that people use by hand.
const firstQueue = 1000

// AddFault breaks something and returns the fault's identifier.
func (l *Lab) AddFault(ctx context.Context, f Fault) (id string, err error) {
	af, err := l.addFault(ctx, f)
	return af.ID, err
}

func (l *Lab) addFault(ctx context.Context, f Fault) (ActiveFault, error) {
	if err := needRoot(); err != nil {
		return ActiveFault{}, err
	}
	af, err := l.x.resolveFault(f, l.netem)
	if err != nil {
		return ActiveFault{}, err
	}
	if len(af.Rules) > 0 {
		if _, err := needTool(l.x.family().iptables, "iptables"); err != nil {
			return ActiveFault{}, err
		}
	}
	unlock, err := lockLab(ctx, l.root, l.name)
	if err != nil {
		return ActiveFault{}, err
	}
	defer unlock()
	st, err := loadState(l.root, l.name)
	if err != nil {
		return ActiveFault{}, fmt.Errorf("lab %q: %w", l.name, err)
	}
	for _, have := range st.Faults {
		if a, b := have.touchesCables(), af.touchesCables(); a && b && (have.Kind == KindMiscable || af.Kind == KindMiscable) {
			return ActiveFault{}, fmt.Errorf("fault %s (%s at %s) is already there: %s and %s do not go together; clear it first", have.ID, have.Kind, have.At, have.Kind, af.Kind)
		}
		if af.Exclusive != "" && have.Exclusive == af.Exclusive {
			return ActiveFault{}, fmt.Errorf("fault %s (%s at %s) already exists, and a second %s cannot be distinguished from it; clear it first", have.ID, have.Kind, have.At, af.Kind)
		}
	}
	st.LastFault++
	af.ID = "f" + strconv.Itoa(st.LastFault)
	af.Since = time.Now().UTC()
	if af.Mechanism == "relay" {
		af.Queue = uint16(firstQueue + st.LastFault%(1<<16-firstQueue))
		for i := range af.Rules {
			af.Rules[i].Args = append(af.Rules[i].Args, "-j", "NFQUEUE", "--queue-num", strconv.Itoa(int(af.Queue)), "--queue-bypass")
		}
	}
	for i := range af.Rules {
		af.Rules[i].Args = append(af.Rules[i].Args, "-m", "comment", "--comment", "graylink "+af.ID)
	}
	st.Faults = append(st.Faults, af)
	if err := st.saveState(l.root); err != nil {
		return ActiveFault{}, err
	}
	cur := &st.Faults[len(st.Faults)-1]
	if err := l.applyFault(ctx, st, cur); err != nil {
		err = fmt.Errorf("applying %s at %s: %w", f.Kind, f.At, err)
		failed := *cur
		st.Faults = st.Faults[:len(st.Faults)-1]
		err = errors.Join(err, l.undoFault(context.WithoutCancel(ctx), st, failed))
		return ActiveFault{}, errors.Join(err, st.saveState(l.root))
	}
	if err := st.saveState(l.root); err != nil {
		return ActiveFault{}, err
	}
	l.log.Info("fault added", "lab", l.name, "id", cur.ID, "kind", cur.Kind, "at", cur.At, "direction", cur.Direction, "mechanism", cur.Mechanism)
	return *cur, nil
}

// ClearFault undoes one fault, or all when id is empty.
func (l *Lab) ClearFault(ctx context.Context, id string) error {
	st, unlock, err := l.lockState(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	var errs []error
	found := id == ""
	for _, f := range slices.Clone(st.Faults) {
		if id != "" && f.ID != id {
			continue
		}
		found = true
		rest := slices.DeleteFunc(slices.Clone(st.Faults), func(o ActiveFault) bool { return o.ID == f.ID })
		all := st.Faults
		st.Faults = rest
		if err := l.undoFault(ctx, st, f); err != nil {
			st.Faults = all
			errs = append(errs, fmt.Errorf("clearing fault %s (%s at %s): %w", f.ID, f.Kind, f.At, err))
			continue
		}
		if err := st.saveState(l.root); err != nil {
			return err
		}
		l.log.Info("fault cleared", "lab", l.name, "id", f.ID, "kind", f.Kind, "at", f.At)
	}
	if !found {
		return fmt.Errorf("lab %q has no fault %q; see: graylink lab fault list --name %s", l.name, id, l.name)
	}
	return errors.Join(errs...)
}

// lockState locks the lab, which takes root, and returns its recorded state.
func (l *Lab) lockState(ctx context.Context) (st *state, unlock func(), err error) {
	if err := needRoot(); err != nil {
		return nil, nil, err
	}
	if unlock, err = lockLab(ctx, l.root, l.name); err != nil {
		return nil, nil, err
	}
	if st, err = loadState(l.root, l.name); err != nil {
		unlock()
		return nil, nil, fmt.Errorf("lab %q: %w", l.name, err)
	}
	return st, unlock, nil
}

// ChangeDelay makes the delay of an active fault longer or shorter. Packets that are held already keep theirs. It fails for
// a fault that no relay brings about.
func (l *Lab) ChangeDelay(ctx context.Context, id string, delay time.Duration) error {
	if delay <= 0 || delay > maxDelay {
		return fmt.Errorf("delay %v: want more than 0 and at most %v", delay, maxDelay)
	}
	st, unlock, err := l.lockState(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	i := slices.IndexFunc(st.Faults, func(f ActiveFault) bool { return f.ID == id })
	if i < 0 {
		return fmt.Errorf("lab %q has no fault %q; see: graylink lab fault list --name %s", l.name, id, l.name)
	}
	f := &st.Faults[i]
	if f.Mechanism != "relay" {
		return fmt.Errorf("fault %s (%s at %s): its mechanism is %s, and only a relay's delay can be changed", f.ID, f.Kind, f.At, f.Mechanism)
	}
	f.Delay = delay
	if err := st.saveState(l.root); err != nil {
		return err
	}
	if err := f.Helper.sendSignal(syscall.SIGHUP); err != nil {
		return fmt.Errorf("changing the delay of fault %s: %w", f.ID, err)
	}
	l.log.Info("delay changed", "lab", l.name, "id", f.ID, "at", f.At, "delay", delay)
	return nil
}

// ActiveFaults lists what is broken on purpose, oldest first.
func (l *Lab) ActiveFaults() ([]ActiveFault, error) {
	st, err := loadState(l.root, l.name)
	if err != nil {
		return nil, fmt.Errorf("lab %q: %w", l.name, err)
	}
	return st.Faults, nil
}

// resolveFault turns a request into what has to be done, with names made canonical
// and defaults filled in. It changes nothing.
func (x *index) resolveFault(f Fault, netem func() bool) (ActiveFault, error) {
	af := ActiveFault{Fault: f}
	switch f.Kind {
	case KindDelay, KindNICSlow, KindSwitchSlow, KindCongest, KindIncast:
		if af.Delay == 0 {
			af.Delay = DefaultDelay
		}
		if af.Delay < 0 || af.Delay > maxDelay {
			return af, fmt.Errorf("delay %s: want more than 0 and at most %s", af.Delay, maxDelay)
		}
		af.Loss = 0
	case KindLoss:
		if af.Loss == 0 {
			af.Loss = DefaultLoss
		}
		if !(af.Loss > 0 && af.Loss <= 1) {
			return af, fmt.Errorf("loss %v: want a ratio above 0 and up to 1", af.Loss)
		}
		af.Delay = 0
	default:
		af.Delay, af.Loss = 0, 0
	}
	if f.Kind != KindMTU {
		af.MTU = 0
	}
	if f.Kind != KindTrim {
		af.Length, af.Share = 0, 0
	}
	if err := errors.Join(af.checkSessionTimes(), af.checkPathCount()); err != nil {
		return af, err
	}
	if af.Kind != KindBlackhole {
		af.Sessions = false
	}
	if !af.bendsClock() {
		af.Step, af.DriftPPM = 0, 0
	} else if err := af.checkClock(); err != nil {
		return af, err
	}
	var err error
	switch f.Kind {
	case KindDelay, KindLoss, KindECN, KindBlackhole, KindTrim:
		err = x.resolveDirected(&af, netem)
	case KindLinkDown, KindFlap:
		err = x.resolveLinkDown(&af)
	case KindMTU:
		err = x.resolveMTU(&af)
	case KindMiscable:
		err = x.resolveMiscable(&af)
	case KindCongest:
		err = x.resolveCongest(&af)
	case KindIncast:
		err = x.resolveIncast(&af)
	case KindMute:
		if ns := x.byElement[f.At]; ns == nil || !ns.Switch {
			err = fmt.Errorf("%q is not a switch of the lab: %s silences a switch", f.At, f.Kind)
			break
		}
		af.Mechanism = "iptables"
		af.Rules = []rule{{Element: f.At, Chain: "OUTPUT", Args: append(slices.Clone(x.family().expired), "-j", "DROP")}}
	case KindNICSlow:
		err = x.resolveNIC(&af, netem)
	case KindSwitchSlow:
		if ns := x.byElement[f.At]; ns == nil || !ns.Switch {
			err = fmt.Errorf("%q is not a switch of the lab: %s slows a whole switch", f.At, f.Kind)
			break
		}
		af.relayAt(f.At, rule{Element: f.At, Chain: "FORWARD", Last: true})
	case KindSIDUnknown:
		err = x.resolveSIDUnknown(&af)
	case KindHostStall:
		if ns := x.byElement[f.At]; ns == nil || ns.Switch {
			err = fmt.Errorf("%q is not a node of the lab: %s starves a node", f.At, f.Kind)
			break
		}
		af.Mechanism, af.Home, af.Exclusive = "signals", f.At, f.Kind+" "+f.At
	case KindClockStep, KindClockDrift:
		err = x.resolveClock(&af)
	case KindBFDFalse, KindBGPFlap, KindBlackholeFIB, KindECMPShrunk, KindPolarized, KindSlowConvergence, KindWithdrawn, KindWrongASPath:
		err = x.resolveRouting(&af)
	default:
		err = fmt.Errorf("fault kind %q: want one of %s", f.Kind, strings.Join(AllFaultKinds(), ", "))
	}
	if err == nil && f.Direction != "" && !f.hasDirection() {
		err = fmt.Errorf("direction %q: %s has none", af.Direction, f.Kind)
	}
	return af, err
}

// hasDirection reports whether faults of the kind can have a direction.
func (f *Fault) hasDirection() bool {
	switch f.Kind {
	case KindDelay, KindLoss, KindECN, KindBlackhole, KindTrim, KindNICSlow, KindBFDFalse:
		return true
	}
	return false
}

// findLink finds the link that at names, in either order of its ends, or one
// direction of it. first is the direction from the end that was named first.
func (x *index) findLink(at string) (id string, first fabric.Direction, directed bool, err error) {
	a, b, ok := fabric.SplitLink(at)
	if !ok {
		if a, b, directed = strings.Cut(at, "->"); !directed {
			return "", first, false, fmt.Errorf("%q is not a link: want END--END or FROM->TO with ends such as leaf1:up1 or h1/eth1", at)
		}
	}
	if x.graph.LinkAt(a) == nil || x.graph.PeerOf(a) != b {
		return "", first, false, fmt.Errorf("the lab has no link between %q and %q", a, b)
	}
	return fabric.LinkID(a, b), fabric.Direction{From: a, To: b}, directed, nil
}

func (x *index) resolveDirected(af *ActiveFault, netem func() bool) error {
	id, dir, directed, err := x.findLink(af.At)
	if err != nil {
		return err
	}
	if af.Direction != "" {
		want, err := fabric.ParseDirection(af.Direction)
		if err != nil {
			return err
		}
		if want.LinkID() != id || directed && want != dir {
			return fmt.Errorf("direction %q is not a direction of %q", af.Direction, af.At)
		}
		dir = want
	}
	af.At, af.Direction = id, dir.String()
	r := x.crossingRule(dir)
	switch af.Kind {
	case KindDelay:
		x.delayDirections(af, netem, dir)
	case KindLoss:
		af.Mechanism = "iptables"
		r.Args = append(r.Args, "-m", "statistic", "--mode", "random", "--probability", strconv.FormatFloat(af.Loss, 'f', -1, 64), "-j", "DROP")
		if af.Loss == 1 {
			r.Args = append(x.crossingRule(dir).Args, "-j", "DROP")
		}
		af.Rules = []rule{r}
	case KindBlackhole:
		af.Mechanism = "iptables"
		r.Args = append(r.Args, "-j", "DROP")
		af.Rules = []rule{r}
		if af.Sessions {
			r.IPv6 = true
			af.Rules = append(af.Rules, r)
			return x.checkRouted("to lose the packets of sessions")
		}
	case KindBFDFalse:
		return x.loseBFD(af, dir)
	case KindTrim:
		return x.resolveTrim(af, dir)
	case KindECN:
		af.Mechanism = "iptables"
		// ECT(1) and ECT(0) of RFC 3168 section 5; a packet that is not
		// ECN-capable is left as it is.
		for _, ect := range []string{"0x01/0x03", "0x02/0x03"} {
			one := x.crossingRule(dir)
			one.Args = append(one.Args, "-m", "tos", "--tos", ect, "-j", "TOS", "--set-tos", "0x03/0x03")
			af.Rules = append(af.Rules, one)
		}
	}
	return nil
}

// crossingRule matches the packets that cross a link in one direction, where the
// switch that sends them does it; those of a NIC where the switch receives
// them, which is beyond the NIC's transmit stamp.
func (x *index) crossingRule(d fabric.Direction) rule {
	if !fabric.IsNIC(d.From) {
		return rule{Element: fabric.OwnerOf(d.From), Chain: "POSTROUTING", Args: append([]string{"-o", x.byEnd[d.From].Name}, x.family().forwarded...)}
	}
	return rule{Element: fabric.OwnerOf(d.To), Chain: "PREROUTING", Args: append([]string{"-i", x.byEnd[d.To].Name}, x.family().forwarded...)}
}

// delayDirections delays directions of one switch's ports: by netem where the kernel has
// it and the switch sends the packets, else by the relay.
func (x *index) delayDirections(af *ActiveFault, netem func() bool, dirs ...fabric.Direction) {
	if len(dirs) == 1 && !fabric.IsNIC(dirs[0].From) && netem() {
		af.Mechanism, af.NetemAt, af.Exclusive = "netem", dirs[0].From, "delay "+dirs[0].From
		return
	}
	var rules []rule
	for _, d := range dirs {
		r := x.crossingRule(d)
		r.Last = true
		rules = append(rules, r)
	}
	af.relayAt(rules[0].Element, rules...)
}

func (af *ActiveFault) relayAt(home string, rules ...rule) {
	af.Mechanism, af.Home, af.Rules = "relay", home, rules
	af.Exclusive = "delay " + home
	for _, r := range rules {
		af.Exclusive += " " + r.Chain + " " + strings.Join(r.Args, " ")
	}
}

func (x *index) resolveNIC(af *ActiveFault, netem func() bool) error {
	nic := x.graph.NIC(af.At)
	if nic == nil {
		return fmt.Errorf("%q is not a NIC of the lab: want node/device", af.At)
	}
	af.At = nic.ID()
	port := x.graph.PeerOf(af.At)
	if port == "" {
		return fmt.Errorf("NIC %q has no link", af.At)
	}
	in, out := fabric.Direction{From: port, To: af.At}, fabric.Direction{From: af.At, To: port}
	switch af.Direction {
	case DirectionIn:
		x.delayDirections(af, netem, in)
	case DirectionOut:
		x.delayDirections(af, netem, out)
	case "", DirectionBoth:
		af.Direction = DirectionBoth
		x.delayDirections(af, netem, in, out)
	default:
		return fmt.Errorf("direction %q of %s: want %s, %s or %s", af.Direction, af.Kind, DirectionIn, DirectionOut, DirectionBoth)
	}
	return nil
}

func (x *index) resolveLinkDown(af *ActiveFault) error {
	id, dir, directed, err := x.findLink(af.At)
	if err != nil {
		return err
	}
	if directed {
		return fmt.Errorf("%q is one direction: %s takes a link END--END down, both ways", af.At, af.Kind)
	}
	if fabric.IsNIC(dir.From) || fabric.IsNIC(dir.To) {
		return fmt.Errorf("%q is an access link: %s takes a link between switches", af.At, af.Kind)
	}
	af.At, af.Mechanism, af.Home, af.Exclusive = id, "routes", fabric.OwnerOf(dir.From), KindLinkDown+" "+id
	if x.Routing == RoutingFRR {
		af.Mechanism = "interfaces"
		if af.Kind == KindLinkDown {
			af.Home = "" // FRR withdraws the routes
		}
	}
	return nil
}

// applyFault applies a recorded fault. The caller holds the lock.
func (l *Lab) applyFault(ctx context.Context, st *state, f *ActiveFault) error {
	// The helper first: a relay listens before the first packet is queued.
	switch f.Kind {
	case KindLinkDown:
		if err := l.x.setLink(f.At, false); err != nil {
			return err
		}
	case KindMTU:
		was, err := l.x.setMTU(f.At, f.MTU)
		f.WasMTU = was
		return err
	case KindSIDUnknown:
		return st.currentFabric().syncRoutes(ctx, st.routeState())
	case KindMiscable:
		one, two, _ := splitPair(f.At)
		return st.currentFabric().replugCables(ctx, st, l.x, []string{one, two})
	}
	if f.ShapedAt != "" {
		if err := l.x.setShaper(f.ShapedAt, f.Delay); err != nil {
			return err
		}
	}
	if f.Home != "" {
		if err := l.startHelper(st, f); err != nil {
			return err
		}
	}
	if f.bendsClock() {
		return st.bendClock(l.root, fabric.OwnerOf(f.At))
	}
	if f.NetemAt != "" {
		return l.x.setNetem(f.NetemAt, f.Delay)
	}
	if f.TrimAt != "" {
		return l.x.setTrimming(f, true)
	}
	if slices.Contains(RoutingFaultKinds(), f.Kind) {
		return l.applyRouting(ctx, f)
	}
	for _, r := range f.Rules {
		if err := l.x.changeRule(ctx, r, true); err != nil {
			return err
		}
	}
	return nil
}

// drainSlack is the time that a helper gets beyond its delay to release its packets.
const drainSlack = 2 * time.Second

// undoFault takes a fault back, whatever part of it was applied; st holds the
// faults that stay. The caller holds the lock.
func (l *Lab) undoFault(ctx context.Context, st *state, f ActiveFault) error {
	x := l.x
	var errs []error
	if f.NetemAt != "" {
		errs = append(errs, x.setNetem(f.NetemAt, 0))
	}
	if f.TrimAt != "" {
		errs = append(errs, x.setTrimming(&f, false))
	}
	for _, r := range f.Rules {
		errs = append(errs, x.changeRule(ctx, r, false))
	}
	errs = append(errs, stopHelper(f.Helper, f.Delay+drainSlack))
	if f.ShapedAt != "" {
		errs = append(errs, x.setShaper(f.ShapedAt, 0))
	}
	errs = append(errs, l.undoRouting(ctx, &f))
	switch f.Kind {
	case KindMiscable:
		one, two, _ := splitPair(f.At)
		errs = append(errs, st.currentFabric().replugCables(ctx, st, x.withSwappedCables(one, two), x.pluggedBy(f.At)))
	case KindSIDUnknown:
		errs = append(errs, st.currentFabric().syncRoutes(ctx, st.routeState()))
	case KindMTU:
		if f.WasMTU > 0 {
			_, err := x.setMTU(f.At, f.WasMTU)
			errs = append(errs, err)
		}
	case KindHostStall:
		errs = append(errs, x.resumeProcesses(f.At))
	case KindClockStep, KindClockDrift:
		errs = append(errs, st.bendClock(l.root, fabric.OwnerOf(f.At)))
	case KindLinkDown, KindFlap:
		errs = append(errs, x.restoreLink(ctx, st, f.At))
	}
	return errors.Join(errs...)
}

// touchesCables reports whether the fault touches cables.
func (f *ActiveFault) touchesCables() bool {
	return f.Kind == KindMiscable || f.Kind == KindLinkDown || f.Kind == KindFlap
}

// routeState returns the links that faults hold down, those that the other switches have noticed, and the switches that do
// not know their neighbours.
func (st *state) routeState() routeState {
	rs := routeState{down: linkSet{}, withdrawn: linkSet{}, unknown: map[unknownNeighbour]bool{}}
	for _, f := range st.Faults {
		if f.Kind == KindLinkDown || f.Kind == KindFlap && f.Down {
			rs.down[f.At] = true
			if f.Withdrawn {
				rs.withdrawn[f.At] = true
			}
		}
		if first, second, ok := strings.Cut(f.At, "->"); ok && f.Kind == KindSIDUnknown {
			rs.unknown[unknownNeighbour{first, second}] = true
		}
	}
	return rs
}

// restoreLink brings a link and every route over it back.
func (x *index) restoreLink(ctx context.Context, st *state, link string) error {
	if err := x.setLink(link, true); err != nil {
		return err
	}
	if err := x.syncRoutes(ctx, st.routeState()); err != nil {
		return err
	}
	a, b, _ := fabric.SplitLink(link)
	return x.awaitStableRoutes(ctx, []Namespace{*x.byElement[fabric.OwnerOf(a)], *x.byElement[fabric.OwnerOf(b)]})
}

// withdrawRoutes lets the fabric notice the links that are down. It is the body of
// link-down's helper and takes the lock itself.
func withdrawRoutes(ctx context.Context, root, name, id string) error {
	err := changeFault(ctx, root, name, id, func(st *state, f *ActiveFault) error {
		f.Withdrawn = true
		return st.currentFabric().syncRoutes(ctx, st.routeState())
	})
	if errors.Is(err, errCleared) {
		return nil
	}
	return err
}

var errCleared = errors.New("the fault was cleared")

// changeFault changes a fault that is in force, and saves the lab's state with it.
// errors.Is holds for errCleared when it is in force no more. A helper calls it: it
// takes the lock itself.
func changeFault(ctx context.Context, root, name, id string, change func(*state, *ActiveFault) error) error {
	unlock, err := lockLab(ctx, root, name)
	if err != nil {
		return err
	}
	defer unlock()
	st, err := loadState(root, name)
	if err != nil {
		return fmt.Errorf("lab %q: %w", name, err)
	}
	i := slices.IndexFunc(st.Faults, func(f ActiveFault) bool { return f.ID == id })
	if i < 0 {
		return errCleared
	}
	if err := change(st, &st.Faults[i]); err != nil {
		return err
	}
	return st.saveState(root)
}

// How a flapping link goes: down for less than the fabric's other switches wait
// before they withdraw routes, and up for long enough to be used again.
const (
	flapDown = 400 * time.Millisecond
	flapUp   = 1600 * time.Millisecond
)

// flapLink takes a link down and up until ctx ends. It is the body of its helper.
func flapLink(ctx context.Context, root, name, id string, started func() error) error {
	set := func(down bool) error {
		return changeFault(ctx, root, name, id, func(st *state, f *ActiveFault) error {
			f.Down = down
			if down {
				return st.currentFabric().setLink(f.At, false)
			}
			return st.currentFabric().restoreLink(ctx, st, f.At)
		})
	}
	if err := started(); err != nil {
		return err
	}
	for down := true; ; down = !down {
		err := set(down)
		if ctx.Err() != nil || errors.Is(err, errCleared) {
			return nil // clearing the fault brings the link up
		}
		if err != nil {
			return err
		}
		pause := flapUp
		if down {
			pause = flapDown
		}
		if sleepContext(ctx, pause) != nil {
			return nil
		}
	}
}

// resumeProcesses continues every process of a node, stopped or not.
func (x *index) resumeProcesses(node string) error {
	pids, err := x.processesOf(node)
	if err != nil {
		return err
	}
	return signalAll(pids, syscall.SIGCONT)
}

func (x *index) processesOf(element string) ([]int, error) {
	id, err := unix.NetnsIDOf(unix.NetnsPath(x.byElement[element].Netns))
	if err != nil {
		return nil, fmt.Errorf("identifying the namespace of %q: %w", element, err)
	}
	found, err := unix.NetnsProcesses(map[unix.NetnsID]bool{id: true})
	if err != nil {
		return nil, fmt.Errorf("finding the processes of %q: %w", element, err)
	}
	sort.Ints(found[id])
	return found[id], nil
}

func signalAll(pids []int, sig syscall.Signal) error {
	var errs []error
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("signalling process %d: %w", pid, err))
		}
	}
	return errors.Join(errs...)
}
