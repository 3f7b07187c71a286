// Package labsignals makes the switches of a lab treat the tags of in-band signals (CSIG) at all of their ports. It joins internal/lab
// and internal/csig/bpf, which do not know each other.
package labsignals

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/bpf"
	"github.com/graylink/graylink/internal/lab"
)

// Options say what switches and ports do with tags. Ports are named as switch:port.
type Options struct {
	Profile *csig.Profile
	// Others are the profiles of switches that have another one.
	Others map[string]*csig.Profile
	// Without are switches that do not know tags. Linux drops frames whose EtherType it does not know.
	Without []string
	Pass    []string // leave tags as they are
	Strip   []string // take tags off
	WAN     []string // are between sites, with the profile's interval for that
}

// Port is a port whose tags are treated.
type Port struct {
	lab.PortInterface
	Speed  uint64 // bit/s, of its shaper if it has one; 0: not known
	Action csig.Action
}

// Signals are the programs at the ports of a lab's switches. They end with the process, or with Close.
type Signals struct {
	Ports    []Port
	lab      *lab.Lab
	name     string // of the lab
	wider    bool   // the links have a larger MTU than before
	switches []*bpf.Switch
}

// Attach attaches the programs. The caller closes what it returns, also in case of an error.
func Attach(l *lab.Lab, o Options) (*Signals, error) {
	s := &Signals{lab: l, name: l.Name()}
	if o.Profile.EtherTypes.Wide != 0 {
		// veth devices let 4 octets beyond their MTU pass, but no 8.
		s.wider = true
		if err := l.SetLinkMTU(lab.DefaultMTU + int(csig.Wide)); err != nil {
			return s, fmt.Errorf("making room for tags of 8 octets: %w", err)
		}
	}
	named := map[string]bool{}
	for _, name := range slices.Concat(o.Pass, o.Strip, o.WAN, o.Without, slices.Collect(maps.Keys(o.Others))) {
		named[name] = true
	}
	err := l.InEachSwitch(func(name string, ports []lab.PortInterface) error {
		if slices.Contains(o.Without, name) {
			delete(named, name)
			return nil
		}
		if o.Others[name] != nil {
			delete(named, name)
		}
		sw, err := bpf.NewSwitch(cmp.Or(o.Others[name], o.Profile))
		if err != nil {
			return err
		}
		s.switches = append(s.switches, sw)
		for _, p := range ports {
			delete(named, p.End)
			port := Port{PortInterface: p, Action: o.actionOf(p.End)}
			if err := sw.AttachPort(bpf.SwitchPort{Name: p.End, Interface: p.Index, Speed: p.Speed, Action: port.Action, WAN: slices.Contains(o.WAN, p.End)}); err != nil {
				return err
			}
			port.Speed = sw.SpeedOf(p.End)
			s.Ports = append(s.Ports, port)
		}
		return nil
	})
	if err != nil {
		return s, err
	}
	if len(named) > 0 {
		return s, fmt.Errorf("lab %q: %q is not there, or of a switch without programs", l.Name(), slices.Sorted(maps.Keys(named)))
	}
	return s, nil
}

// actionOf returns what a port does with tags.
func (o *Options) actionOf(port string) csig.Action {
	switch {
	case slices.Contains(o.Strip, port):
		return csig.StripTags
	case slices.Contains(o.Pass, port):
		return csig.PassTags
	}
	return csig.UpdateTags
}

// speedPoll is how often the speeds of shaped ports are read: faults shape ports at any time.
const speedPoll = 250 * time.Millisecond

// Run keeps the speeds of ports up to date until the context ends, or the lab is taken down.
func (s *Signals) Run(ctx context.Context) error {
	tick := time.NewTicker(speedPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			for _, sw := range s.switches {
				if err := sw.RefreshSpeeds(); err != nil {
					if _, gone := lab.Open(s.name); gone != nil {
						return nil
					}
					return fmt.Errorf("lab %q: reading the speeds of ports: %w", s.name, err)
				}
			}
		}
	}
}

// Close removes the programs, and the room for tags if the lab is still there.
func (s *Signals) Close() error {
	var errs []error
	for _, sw := range s.switches {
		errs = append(errs, sw.Close())
	}
	if s.wider {
		if _, gone := lab.Open(s.name); gone == nil {
			errs = append(errs, s.lab.SetLinkMTU(lab.DefaultMTU))
		}
	}
	return errors.Join(errs...)
}
