package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/bpf"
	"github.com/graylink/graylink/internal/csig/observe"
	"github.com/graylink/graylink/internal/preflight"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/stamp"
)

// csigFlags say how in-band signals are handled.
type csigFlags struct {
	profile, source, signals string
	flows                    int
}

func addCSIGFlags(app *kingpin.Application) *csigFlags {
	f := &csigFlags{}
	app.Flag("csig.profile", "Profile of the domain's in-band signals (CSIG): YAML. Without it, there are none. Without --csig.source, the tags of frames that arrive at the NICs are captured, which needs CAP_NET_RAW.").StringVar(&f.profile)
	app.Flag("csig.source", "Tag the probes of class csig with in-band signals in this format, and read the tags of what arrives: compact or wide. It attaches eBPF programs to the NICs, which needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN.").EnumVar(&f.source, "", csig.Compact.String(), csig.Wide.String())
	app.Flag("csig.signals", "With --csig.source, signals of the tags, which take turns: "+strings.Join(signalNames(), ", ")+".").Default("share,delay").StringVar(&f.signals)
	app.Flag("csig.flows", "Number of flows whose signals are observed, in both directions together: with --csig.source those of a NIC, and otherwise those of the node.").Default(fmt.Sprint(observe.DefaultFlows)).IntVar(&f.flows)
	return f
}

// signalNames returns the names of the signals that have a rule.
func signalNames() (names []string) {
	for s := range csig.Signal(csig.Signals) {
		names = append(names, s.String())
	}
	return names
}

// validate returns an error if the flags do not fit together, or if the profile cannot be used.
func (f *csigFlags) validate() error {
	_, err := f.load()
	return err
}

// load returns how in-band signals are handled, or nil if they are not.
func (f *csigFlags) load() (*probe.Signals, error) {
	switch {
	case f.profile == "" && f.source != "":
		return nil, errors.New("--csig.source needs --csig.profile")
	case f.profile == "":
		return nil, nil
	case f.flows < 1 || f.flows > 1<<20:
		return nil, fmt.Errorf("--csig.flows=%d: want 1 to %d", f.flows, 1<<20)
	}
	p, err := csig.LoadProfile(f.profile)
	if err != nil {
		return nil, err
	}
	s := &probe.Signals{Profile: p, Flows: f.flows}
	if f.source == "" {
		return s, nil
	}
	for _, format := range csig.Formats {
		if format.String() == f.source {
			s.Format = format
		}
	}
	if p.EtherTypes.Of(s.Format) == 0 {
		return nil, fmt.Errorf("--csig.source=%s: %s has no EtherType for %s tags", f.source, f.profile, f.source)
	}
	for _, name := range strings.Split(f.signals, ",") {
		i := slices.Index(signalNames(), strings.TrimSpace(name))
		if i < 0 {
			return nil, fmt.Errorf("--csig.signals: %q: one of %s is expected", name, strings.Join(signalNames(), ", "))
		}
		if !p.HasScale(s.Format, csig.Signal(i)) {
			return nil, fmt.Errorf("--csig.signals: %s has no scale for %s in %s tags", f.profile, signalNames()[i], f.source)
		}
		s.Kinds = append(s.Kinds, csig.Signal(i))
	}
	s.OpenPort = func(at netip.Addr, o probe.SignalPortOptions) (probe.SignalPort, error) { return f.openPort(s, at, o) }
	return s, nil
}

// arrivedTags is how many tags may have arrived at a NIC and wait for their packets to be read.
const arrivedTags = 1 << 14

// openPort attaches the programs that tag and read the packets of the NIC with an address.
func (f *csigFlags) openPort(s *probe.Signals, at netip.Addr, o probe.SignalPortOptions) (probe.SignalPort, error) {
	name, err := probe.HostDeps().Device.InterfaceName(at)
	if err != nil {
		return nil, fmt.Errorf("in-band signals: %w", err)
	}
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("in-band signals: interface %s: %w", name, err)
	}
	options := f.endpoint(s, o)
	options.Interface = i.Index
	return bpf.OpenEndpoint(options)
}

// endpoint returns the options of the programs of a NIC, without its interface.
func (f *csigFlags) endpoint(s *probe.Signals, o probe.SignalPortOptions) bpf.EndpointOptions {
	return bpf.EndpointOptions{EtherTypes: s.Profile.EtherTypes, Format: s.Format, Signals: s.Kinds, StampPorts: []uint16{o.StampPort},
		Authenticated: o.Authenticated, Flows: f.flows, Arrived: arrivedTags}
}

// preflight returns what is checked of in-band signals before a start, or nil if there are none.
func (f *csigFlags) preflight() *preflight.Signals {
	if f.profile == "" && f.source == "" {
		return nil
	}
	s, err := f.load()
	out := &preflight.Signals{Profile: f.profile, ProfileError: err}
	if f.source != "" {
		out.TrySource = func() error { return bpf.TryEndpoint(f.endpoint(s, probe.SignalPortOptions{StampPort: stamp.Port})) }
	}
	return out
}
