package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kingpin/v2"
	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/locator"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plainjson"
)

// exitTooFewLocators is the exit code for a fabric that has too many ports for the locators of a format.
const exitTooFewLocators = 2

// addCSIG adds the commands for in-band signals.
func addCSIG(app *kingpin.Application, commands map[string]command) {
	group := app.Command("csig", "In-band signals in packets (CSIG).")
	cmd := group.Command("locators", "Give every egress port of the switches its locators, for the profile of a domain. Exit code 0: done, 1: bad arguments or topology, 2: the fabric has too many ports for a format; the others are written.")
	topology := cmd.Flag("topology", "Topology file (YAML).").Required().String()
	tags := cmd.Flag("tags", "Format of the tags that need locators.").Default("both").Enum("both", "compact", "wide")
	format := cmd.Flag("format", "Output format: for people, JSON, or locators of a profile (YAML).").Default("text").Enum("text", "json", "yaml")
	commands[cmd.FullCommand()] = func(context.Context) error {
		_, g, err := loadGraph(*topology)
		if err != nil {
			return err
		}
		return writeLocators(os.Stdout, g, *tags, *format)
	}
	check := group.Command("check", "Check the profile of a domain, and print its hash. Exit code 0: usable, 1: it has an error.")
	file := check.Arg("file", "Profile (YAML).").Required().String()
	commands[check.FullCommand()] = func(context.Context) error {
		p, err := csig.LoadProfile(*file)
		if err != nil {
			return err
		}
		fmt.Printf("%s: usable: hash %s; %d compact and %d wide locators\n", *file, p.Hash(), len(p.CompactLocators), len(p.WideLocators))
		return nil
	}
}

// locatorFile is what the command writes. In YAML, it has the key of a profile alone.
type locatorFile struct {
	// CodesNeeded is the number of compact locators without which ports of one path would be equal.
	CodesNeeded int             `json:"compact_locators_needed,omitempty" yaml:"-"`
	LongestPath int             `json:"longest_path_switches,omitempty" yaml:"-"`
	Ports       int             `json:"ports" yaml:"-"`
	Locators    locatorsByWidth `json:"locators" yaml:"locators"`
}

type locatorsByWidth struct {
	Compact map[string]uint16 `json:"compact,omitempty" yaml:"compact,omitempty"`
	Wide    map[string]uint16 `json:"wide,omitempty" yaml:"wide,omitempty"`
}

// writeLocators writes the locators of a fabric for one format of tags or both. It writes those that there are, and fails if
// a format has too few.
func writeLocators(out io.Writer, g *fabric.Graph, tags, format string) error {
	a := locator.AssignLocators(g)
	f := locatorFile{Ports: len(a.Ports)}
	var tooFew error
	if tags != "wide" {
		f.CodesNeeded, f.LongestPath = a.CodesNeeded, a.LongestPath
		f.Locators.Compact, tooFew = a.LocatorsOf(csig.Compact), a.CheckCompact()
	}
	if tags != "compact" {
		f.Locators.Wide = a.LocatorsOf(csig.Wide)
		tooFew = errors.Join(tooFew, a.CheckWide())
	}
	var err error
	switch format {
	case "json":
		err = plainjson.NewEncoder(out).Encode(f)
	case "yaml":
		e := yaml.NewEncoder(out)
		e.SetIndent(2)
		err = errors.Join(e.Encode(f), e.Close())
	default:
		err = writeLocatorTable(out, a, &f)
	}
	if err != nil {
		return fmt.Errorf("cannot write the locators: %w", err)
	}
	if tooFew != nil {
		return exitError{exitTooFewLocators, tooFew}
	}
	return nil
}

// writeLocatorTable writes a line for each port, and one with the figures.
func writeLocatorTable(out io.Writer, a *locator.Assignment, f *locatorFile) error {
	show := func(locators map[string]uint16, port string) string {
		if l := locators[port]; l != 0 {
			return fmt.Sprint(l)
		}
		return "-"
	}
	if _, err := fmt.Fprintf(out, "%7s  %5s  %s\n", "COMPACT", "WIDE", "PORT"); err != nil {
		return err
	}
	for _, p := range a.Ports {
		if _, err := fmt.Fprintf(out, "%7s  %5s  %s\n", show(f.Locators.Compact, p.Port), show(f.Locators.Wide, p.Port), p.Port); err != nil {
			return err
		}
	}
	summary := fmt.Sprintf("%d ports", len(a.Ports))
	if f.CodesNeeded > 0 {
		summary += fmt.Sprintf("; compact tags need %d of %d locators, so that no two ports of a path are equal", f.CodesNeeded, csig.Compact.MaxLocator())
	}
	_, err := fmt.Fprintln(out, summary)
	return err
}
