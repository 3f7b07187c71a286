package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/bpf"
	"github.com/graylink/graylink/internal/lab"
)

// labCSIG is what graylink lab csig was asked for.
type labCSIG struct {
	lab, profile string
	pass, strip  []string
	wan          []string
	without      []string // switches
}

func addLabCSIG(cmd *kingpin.CmdClause, name *string, commands map[string]command) {
	c := cmd.Command("csig", "Make the lab's switches update the tags of in-band signals (CSIG) at all of their ports, until interrupted.")
	var o labCSIG
	c.Flag("profile", "Profile of the domain (YAML).").Required().StringVar(&o.profile)
	c.Flag("pass", "SWITCH:PORT that leaves tags as they are. Repeatable.").StringsVar(&o.pass)
	c.Flag("strip", "SWITCH:PORT that takes tags off. Repeatable.").StringsVar(&o.strip)
	c.Flag("wan", "SWITCH:PORT between sites, with the profile's interval for that. Repeatable.").StringsVar(&o.wan)
	c.Flag("without", "SWITCH that does not know tags, and drops frames with one. Repeatable.").StringsVar(&o.without)
	commands[c.FullCommand()] = func(ctx context.Context) error {
		o.lab = *name
		return o.run(ctx, os.Stdout)
	}
}

// speedPoll is how often the speeds of shaped ports are read: faults shape ports at any time.
const speedPoll = 250 * time.Millisecond

// run attaches programs to all ports of a lab's switches, and removes them when the context ends.
func (o *labCSIG) run(ctx context.Context, out io.Writer) (err error) {
	profile, err := csig.LoadProfile(o.profile)
	if err != nil {
		return err
	}
	l, err := lab.Open(o.lab)
	if err != nil {
		return err
	}
	if profile.EtherTypes.Wide != 0 {
		// veth devices let 4 octets beyond their MTU pass, but no 8.
		if err := l.SetLinkMTU(lab.DefaultMTU + int(csig.Wide)); err != nil {
			return fmt.Errorf("making room for tags of 8 octets: %w", err)
		}
		defer func() {
			if _, gone := lab.Open(o.lab); gone == nil {
				err = errors.Join(err, l.SetLinkMTU(lab.DefaultMTU))
			}
		}()
	}
	var switches []*bpf.Switch
	defer func() {
		for _, s := range switches {
			err = errors.Join(err, s.Close())
		}
	}()
	if switches, err = o.attach(l, profile, out); err != nil {
		return err
	}
	tick := time.NewTicker(speedPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			for _, s := range switches {
				if err := s.RefreshSpeeds(); err != nil {
					if _, gone := lab.Open(o.lab); gone != nil {
						return nil // the lab was taken down
					}
					return fmt.Errorf("lab %q: reading the speeds of ports: %w", l.Name(), err)
				}
			}
		}
	}
}

// attach attaches programs to all ports, and prints a line for each. It returns the switches that there are in case of an
// error as well.
func (o *labCSIG) attach(l *lab.Lab, profile *csig.Profile, out io.Writer) (switches []*bpf.Switch, err error) {
	named := map[string]bool{}
	for _, ports := range [][]string{o.pass, o.strip, o.wan, o.without} {
		for _, p := range ports {
			named[p] = true
		}
	}
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "PORT\tINTERFACE\tSPEED\tCOMPACT\tWIDE\tACTION")
	count := 0
	err = l.InEachSwitch(func(name string, ports []lab.PortInterface) error {
		if slices.Contains(o.without, name) {
			delete(named, name)
			return nil // Linux drops frames whose EtherType it does not know
		}
		s, err := bpf.NewSwitch(profile)
		if err != nil {
			return err
		}
		switches = append(switches, s)
		for _, p := range ports {
			delete(named, p.End)
			port := bpf.SwitchPort{Name: p.End, Interface: p.Index, Speed: p.Speed, Action: o.actionOf(p.End), WAN: slices.Contains(o.wan, p.End)}
			if err := s.AttachPort(port); err != nil {
				return err
			}
			count++
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", p.End, p.Name, orDash(s.SpeedOf(p.End)), orDash(uint64(profile.CompactLocators[p.End])),
				orDash(uint64(profile.WideLocators[p.End])), port.Action)
		}
		return nil
	})
	if err != nil {
		return switches, err
	}
	if len(named) > 0 {
		return switches, fmt.Errorf("lab %q: %q is not there, or of a switch without programs", l.Name(), slices.Sorted(maps.Keys(named)))
	}
	if err := table.Flush(); err != nil {
		return switches, err
	}
	_, err = fmt.Fprintf(out, "%d ports of %d switches treat tags by profile %s, until this command is interrupted\n", count, len(switches), profile.Hash())
	return switches, err
}

// actionOf returns what a port does with tags.
func (o *labCSIG) actionOf(port string) csig.Action {
	switch {
	case slices.Contains(o.strip, port):
		return csig.StripTags
	case slices.Contains(o.pass, port):
		return csig.PassTags
	}
	return csig.UpdateTags
}

// orDash returns a number, or a dash for what is not known.
func orDash(n uint64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}
