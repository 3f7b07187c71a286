package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/unix"
)

// SwitchPort describes a port of a switch.
type SwitchPort struct {
	Name      string // as in the profile's locators
	Interface int    // its number in the namespace of the switch
	Speed     uint64 // bit/s, where no TBF shapes the port; 0: unknown
	Overhead  int    // octets that a frame takes besides its own; 0 under TBF
	WAN       bool   // the port has the profile's interval for wide areas
	Action    csig.Action
}

// Counts has the number of frames by outcome. Those that have no tag are counted at the egress only.
type Counts struct {
	Outcomes [csig.Outcomes]uint64
	Failed   uint64 // tags that are lost, because the kernel refused to take them off or to put them back
}

// Switch treats tags at the ports of a Linux router. It belongs to the network namespace in which it was made.
type Switch struct {
	profile *csig.Profile
	netlink *netlink.Handle
	counts  *ebpf.Map // of the ingress
	ingress *ebpf.Program
	carry   *ebpf.Program
	enter   *ebpf.Program // of tunnels
	leave   *ebpf.Program
	ports   []*attachedPort
	tunnels []io.Closer
}

// attachedPort is an egress port with its program.
type attachedPort struct {
	SwitchPort
	given   portConfig
	written portConfig
	egress  *egress
	links   []io.Closer
}

// NewSwitch loads the programs of a switch into the kernel. They are attached by AttachPort.
func NewSwitch(p *csig.Profile) (*Switch, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("eBPF memory limit: %w", err)
	}
	s := &Switch{profile: p}
	if err := s.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("CSIG switch: %w", err), s.Close())
	}
	return s, nil
}

func (s *Switch) load() (err error) {
	if s.netlink, err = netlink.NewHandle(); err != nil {
		return fmt.Errorf("opening a netlink socket: %w", err)
	}
	if s.counts, err = newCounts(); err != nil {
		return err
	}
	if s.ingress, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "csig_ingress", Type: ebpf.XDP, License: license, Flags: xdpHasFrags,
		Instructions: assembleIngress(s.profile.EtherTypes, s.counts.FD())}); err != nil {
		return fmt.Errorf("ingress program: %w", err)
	}
	for _, p := range []struct {
		at           **ebpf.Program
		name         string
		instructions asm.Instructions
	}{{&s.carry, "csig_carry", assembleCarry()}, {&s.enter, "csig_enter", assembleEnter()}, {&s.leave, "csig_leave", assembleLeave()}} {
		*p.at, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: p.name, Type: ebpf.SchedCLS, License: license, Instructions: p.instructions})
		if err != nil {
			return fmt.Errorf("program %s: %w", p.name, err)
		}
	}
	return nil
}

// newCounts makes the map of a program's counters.
func newCounts() (*ebpf.Map, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "csig_counts", Type: ebpf.Array, KeySize: 4, ValueSize: 8 * maxCounters, MaxEntries: 1})
	if err != nil {
		return nil, fmt.Errorf("map csig_counts: %w", err)
	}
	return m, nil
}

// configOf returns what the program at a port knows, with the speed that is given for the port.
func configOf(p *csig.Profile, o *SwitchPort) (portConfig, error) {
	interval := p.DC
	if o.WAN {
		interval = p.WAN
	}
	c := portConfig{Speed: o.Speed, Interval: uint64(interval), Overhead: uint32(o.Overhead), Action: uint32(o.Action),
		Locators: [2]uint32{uint32(p.CompactLocators[o.Name]), uint32(p.WideLocators[o.Name])}}
	if interval <= 0 {
		return c, fmt.Errorf("port %s: the profile has no interval", o.Name)
	}
	if err := checkSpeed(o.Speed); err != nil {
		return c, fmt.Errorf("port %s: %w", o.Name, err)
	}
	shared := gcd(octetNanos, c.Interval)
	c.RateBy, c.RateOf = octetNanos/shared, c.Interval/shared
	c.MaxLast = math.MaxUint64 / c.RateBy
	for i, f := range csig.Formats {
		if p.DoNotUpdate.Format == f {
			c.NoUpdate[i] = uint32(p.DoNotUpdate.Mask)
		}
		for s := range csig.Signal(csig.Signals) {
			if p.HasScale(f, s) {
				c.Scales[i] |= 1 << s
			}
		}
	}
	for s := range csig.Signals {
		if t := p.Steps[s]; t != nil {
			c.Bases[s], c.Steps[s] = t.Base, t.Step
		}
		for i := range c.Tables[s].Edges {
			c.Tables[s].Edges[i] = math.MaxUint64
			if t := p.Tables[s]; t != nil && i < len(t.Edges) {
				c.Tables[s].Edges[i], c.Tables[s].Codes[i] = t.Edges[i], uint64(t.Codes[i])
			}
		}
	}
	return c, nil
}

// maxSpeed is the largest speed of which a millionth times a million fits the program's numbers.
const maxSpeed = math.MaxUint64 / csig.Million

func checkSpeed(speed uint64) error {
	if speed > maxSpeed {
		return fmt.Errorf("speed of %d bit/s: at most %d is expected", speed, uint64(maxSpeed))
	}
	return nil
}

// gcd returns the greatest common divisor.
func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// egress is the program at an egress port with its maps.
type egress struct {
	config, state, counts *ebpf.Map
	program               *ebpf.Program
}

// monotonicClock returns the instructions that read the clock of unix.MonotonicNanos.
func monotonicClock() asm.Instructions { return asm.Instructions{asm.FnKtimeGetNs.Call()} }

// newEgress loads the program of an egress port, whose first window begins now. assembleEgress says what before and clock are.
func newEgress(e csig.EtherTypes, c *portConfig, now uint64, before, clock asm.Instructions) (out *egress, err error) {
	out = &egress{}
	defer func() {
		if err != nil {
			err = errors.Join(err, out.Close())
		}
	}()
	if out.config, err = ebpf.NewMap(&ebpf.MapSpec{Name: "csig_config", Type: ebpf.Array, KeySize: 4, ValueSize: configSize, MaxEntries: 1}); err != nil {
		return out, fmt.Errorf("map csig_config: %w", err)
	}
	if out.state, err = ebpf.NewMap(stateSpec()); err != nil {
		return out, fmt.Errorf("map csig_state: %w", err)
	}
	if out.counts, err = newCounts(); err != nil {
		return out, err
	}
	if err = out.config.Put(uint32(0), c); err != nil {
		return out, fmt.Errorf("map csig_config: %w", err)
	}
	if err = out.state.Put(uint32(0), &portState{Start: now}); err != nil {
		return out, fmt.Errorf("map csig_state: %w", err)
	}
	maps := portMaps{out.config.FD(), out.state.FD(), out.counts.FD()}
	if out.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "csig_egress", Type: ebpf.SchedCLS, License: license,
		Instructions: assembleEgress(e, maps, before, clock)}); err != nil {
		return out, fmt.Errorf("egress program: %w", err)
	}
	return out, nil
}

func (e *egress) Close() error {
	return errors.Join(e.program.Close(), e.config.Close(), e.state.Close(), e.counts.Close())
}

// stateSpec describes the map of portState. The kernel finds the lock by the type of the value.
func stateSpec() *ebpf.MapSpec {
	number := &btf.Int{Name: "unsigned int", Size: 4}
	long := &btf.Int{Name: "unsigned long long", Size: 8}
	lock := &btf.Struct{Name: "bpf_spin_lock", Size: 4, Members: []btf.Member{{Name: "val", Type: number}}}
	value := &btf.Struct{Name: "csig_state", Size: stateSize, Members: []btf.Member{{Name: "lock", Type: lock}}}
	for i, name := range []string{"start", "current", "last", "free"} {
		value.Members = append(value.Members, btf.Member{Name: name, Type: long, Offset: btf.Bits(8 * (stateStart + 8*i))})
	}
	return &ebpf.MapSpec{Name: "csig_state", Type: ebpf.Array, KeySize: 4, ValueSize: stateSize, MaxEntries: 1, Key: number, Value: value}
}

// AttachPort attaches the programs to a port of the calling thread's namespace, which is that of the switch.
func (s *Switch) AttachPort(o SwitchPort) (err error) {
	port := &attachedPort{SwitchPort: o}
	if port.given, err = configOf(s.profile, &o); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("port %s: %w", o.Name, err), port.Close())
		}
	}()
	port.written = port.given
	if port.egress, err = newEgress(s.profile.EtherTypes, &port.given, uint64(unix.MonotonicNanos()), nil, monotonicClock()); err != nil {
		return err
	}
	if err = s.refreshPort(port); err != nil {
		return err
	}
	x, err := link.AttachXDP(link.XDPOptions{Program: s.ingress, Interface: o.Interface})
	if err != nil {
		return fmt.Errorf("XDP: %w", err)
	}
	port.links = append(port.links, x)
	if err = s.separateFrames(o.Interface); err != nil {
		return err
	}
	if err = attachPair(&port.links, o.Interface, s.carry, port.egress.program); err != nil {
		return err
	}
	s.ports = append(s.ports, port)
	return nil
}

// AttachTunnel attaches programs to the device of a tunnel (VXLAN) in the calling thread's namespace. The tag of a packet that
// enters the tunnel goes to the tunnel's link header, and comes back from there at the tunnel's end. The ports by which the
// packets of the tunnel leave and arrive have their own programs.
func (s *Switch) AttachTunnel(ifindex int) error {
	if err := attachPair(&s.tunnels, ifindex, s.leave, s.enter); err != nil {
		return fmt.Errorf("tunnel at interface %d: %w", ifindex, err)
	}
	return nil
}

// attachPair attaches classifiers to both directions of an interface, and adds their links to a list.
func attachPair(links *[]io.Closer, ifindex int, ingress, egress *ebpf.Program) error {
	for program, at := range map[*ebpf.Program]ebpf.AttachType{ingress: ebpf.AttachTCXIngress, egress: ebpf.AttachTCXEgress} {
		l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: program, Attach: at})
		if err != nil {
			return fmt.Errorf("TCX, which Linux has from 6.6 on: %w", err)
		}
		*links = append(*links, l)
	}
	return nil
}

// separateFrames turns generic receive offload off, which XDP turns on at a veth device: the kernel would join frames to
// packets that no tag can be put into. It comes on again with the next program.
func (s *Switch) separateFrames(ifindex int) error {
	l, err := s.netlink.LinkByIndex(ifindex)
	if err != nil {
		return err
	}
	request := binary.NativeEndian.AppendUint32(nil, ethtoolSetGRO)
	if err := unix.EthtoolIoctl(l.Attrs().Name, append(request, 0, 0, 0, 0)); err != nil {
		return fmt.Errorf("turning generic receive offload off: %w", err)
	}
	return nil
}

// ethtoolSetGRO is ETHTOOL_SGRO: Linux, include/uapi/linux/ethtool.h.
const ethtoolSetGRO = 0x2c

// RefreshSpeeds reads the TBF of all ports, which may change at any time. It may be called from any namespace.
func (s *Switch) RefreshSpeeds() error {
	var errs []error
	for _, p := range s.ports {
		if err := s.refreshPort(p); err != nil {
			errs = append(errs, fmt.Errorf("port %s: %w", p.Name, err))
		}
	}
	return errors.Join(errs...)
}

// refreshPort gives the program of a port the speed, the burst and the limit of the port's TBF, or the speed given.
func (s *Switch) refreshPort(p *attachedPort) error {
	l, err := s.netlink.LinkByIndex(p.Interface)
	if err != nil {
		return err
	}
	list, err := s.netlink.QdiscList(l)
	if err != nil {
		return fmt.Errorf("listing queueing disciplines: %w", err)
	}
	c := p.given
	for _, q := range list {
		if t, ok := q.(*netlink.Tbf); ok && t.Parent == netlink.HANDLE_ROOT {
			if err := c.shape(t); err != nil {
				return err
			}
		}
	}
	if c == p.written {
		return nil
	}
	if err := p.egress.config.Put(uint32(0), &c); err != nil {
		return fmt.Errorf("map csig_config: %w", err)
	}
	p.written = c
	return nil
}

// shape takes over what a TBF says: tc-tbf(8). Its frames have no overhead.
func (c *portConfig) shape(t *netlink.Tbf) error {
	if t.Rate == 0 {
		return errors.New("TBF: a rate is expected")
	}
	if t.Rate > maxSpeed/8 {
		return fmt.Errorf("TBF of %d octets/s: at most %d is expected", t.Rate, uint64(maxSpeed/8))
	}
	c.Speed = 8 * t.Rate
	c.Burst = uint64(float64(t.Buffer) / netlink.TickInUsec() * float64(time.Microsecond))
	c.Limit = uint64(float64(t.Limit) * float64(time.Second) / float64(t.Rate))
	c.Overhead = 0
	return nil
}

// SpeedOf returns the speed of a port in bit/s as of the last refresh, and 0 if it is not known.
func (s *Switch) SpeedOf(name string) uint64 {
	for _, p := range s.ports {
		if p.Name == name {
			return p.written.Speed
		}
	}
	return 0
}

// CountsOf returns the frames that a port has sent, by outcome. A port without programs has none.
func (s *Switch) CountsOf(name string) (Counts, error) {
	for _, p := range s.ports {
		if p.Name == name {
			return readCounts(p.egress.counts)
		}
	}
	return Counts{}, nil
}

// IngressCounts returns the frames that the ports of the switch have received and did not take the tag off: malformed ones,
// and those that passed as they are (rule 3).
func (s *Switch) IngressCounts() (Counts, error) { return readCounts(s.counts) }

func readCounts(m *ebpf.Map) (Counts, error) {
	var all [maxCounters]uint64
	if err := m.Lookup(uint32(0), &all); err != nil {
		return Counts{}, fmt.Errorf("map csig_counts: %w", err)
	}
	return Counts{Outcomes: [csig.Outcomes]uint64(all[:csig.Outcomes]), Failed: all[failedTag]}, nil
}

// Close removes the programs from all ports. An interface that is gone is no error.
func (s *Switch) Close() error {
	var errs []error
	for _, p := range s.ports {
		errs = append(errs, p.Close())
	}
	for _, l := range s.tunnels {
		errs = append(errs, l.Close())
	}
	s.ports, s.tunnels = nil, nil
	if s.netlink != nil {
		s.netlink.Close()
	}
	return errors.Join(append(errs, s.ingress.Close(), s.carry.Close(), s.enter.Close(), s.leave.Close(), s.counts.Close())...)
}

func (p *attachedPort) Close() error {
	var errs []error
	for _, l := range p.links {
		errs = append(errs, l.Close())
	}
	if p.egress != nil {
		errs = append(errs, p.egress.Close())
	}
	return errors.Join(errs...)
}
