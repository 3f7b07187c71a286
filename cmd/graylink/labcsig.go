package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/cmd/graylink/labsignals"
	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

// labCSIG holds the flags of graylink lab csig.
type labCSIG struct {
	lab, profile string
	ports        labsignals.Options
}

func addLabCSIG(cmd *kingpin.CmdClause, name *string, commands map[string]command) {
	c := cmd.Command("csig", "Make the lab's switches update the tags of in-band signals (CSIG) at all of their ports, until interrupted.")
	var o labCSIG
	c.Flag("profile", "Profile of the domain (YAML).").Required().StringVar(&o.profile)
	c.Flag("pass", "SWITCH:PORT that leaves tags as they are. Repeatable.").StringsVar(&o.ports.Pass)
	c.Flag("strip", "SWITCH:PORT that takes tags off. Repeatable.").StringsVar(&o.ports.Strip)
	c.Flag("wan", "SWITCH:PORT between sites, with the profile's interval for that. Repeatable.").StringsVar(&o.ports.WAN)
	c.Flag("without", "SWITCH that does not know tags, and drops frames with one. Repeatable.").StringsVar(&o.ports.Without)
	commands[c.FullCommand()] = func(ctx context.Context) error {
		o.lab = *name
		return o.run(ctx, os.Stdout)
	}
}

// run attaches programs to all ports of a lab's switches, and removes them when the context ends.
func (o *labCSIG) run(ctx context.Context, out io.Writer) (err error) {
	if o.ports.Profile, err = csig.LoadProfile(o.profile); err != nil {
		return err
	}
	l, err := lab.Open(o.lab)
	if err != nil {
		return err
	}
	s, err := labsignals.Attach(l, o.ports)
	if err == nil {
		err = o.print(out, s)
	}
	if err == nil {
		err = s.Run(ctx)
	}
	return errors.Join(err, s.Close())
}

// print writes a line for each port.
func (o *labCSIG) print(out io.Writer, s *labsignals.Signals) error {
	profile := o.ports.Profile
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "PORT\tINTERFACE\tSPEED\tCOMPACT\tWIDE\tACTION")
	switches := map[string]bool{}
	for _, p := range s.Ports {
		sw, _, _ := fabric.SplitPort(p.End)
		switches[sw] = true
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", p.End, p.Name, orDash(p.Speed), orDash(uint64(profile.CompactLocators[p.End])),
			orDash(uint64(profile.WideLocators[p.End])), p.Action)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%d ports of %d switches treat tags by profile %s, until this command is interrupted\n", len(s.Ports), len(switches), profile.Hash())
	return err
}

// orDash returns a number, or a dash for what is not known.
func orDash(n uint64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}
