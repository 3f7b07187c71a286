package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kingpin/v2"
	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ufm"
)

// addTopologyImport adds the command topology import, which writes a topology file from the output of other programs.
func addTopologyImport(topo *kingpin.CmdClause, commands map[string]command) {
	c := topo.Command("import", "Write a topology file from another program's output. Findings go to standard error. Exit code 0: done, 1: bad arguments or the file cannot be read, 3: done, but with contradictions.")
	from := c.Flag("from", "Program: csv for a list of cables with a header (docs/topology.md), as spreadsheets and NetBox export it; lldpd for the output of lldpcli -f json show neighbors of each device, in files with the devices' names; ibnetdiscover; or ufm with its saved resources/systems, resources/ports and resources/links.").Required().Enum("csv", "ibnetdiscover", "lldpd", "ufm")
	list := c.Arg("file", "Output of the program. For csv and ibnetdiscover the default, or -, is standard input.").Strings()
	patterns := c.Flag("switches", "Shell pattern of the names of switches, for lldpd, and for csv where the list has no roles. May be given several times.").Strings()
	output := c.Flag("output", "File to write. Default: standard output.").String()
	commands[c.FullCommand()] = func(context.Context) error {
		switch *from {
		case "ufm":
			return importUFM(*list, *output)
		case "lldpd":
			return importLLDP(*list, *patterns, *output)
		}
		if len(*list) > 1 {
			return fmt.Errorf("%d files: one is expected", len(*list))
		}
		file := new(string)
		if len(*list) == 1 {
			*file = (*list)[0]
		}
		r, name := io.Reader(os.Stdin), *from
		if *file != "" { // kingpin passes an empty string for a lone dash
			f, err := os.Open(*file)
			if err != nil {
				return err
			}
			defer f.Close()
			r, name = f, *file
		}
		if *from == "csv" {
			return importCableList(name, r, *patterns, *output)
		}
		f, found, err := ibfabric.ReadNetDiscover(name, r)
		if err != nil {
			return err
		}
		return writeTopology(f, found, *output)
	}
}

// importCableList writes a topology from a list of cables.
func importCableList(name string, r io.Reader, patterns []string, output string) error {
	t, problems, err := fabric.ReadCableList(name, r, patterns)
	if err != nil {
		return err
	}
	return writeWithProblems(name, "rows", t, problems, output)
}

// importLLDP writes a topology from the neighbours of devices.
func importLLDP(files, patterns []string, output string) error {
	if len(files) == 0 || len(patterns) == 0 {
		return errors.New("--from lldpd: files with the names of devices are expected, such as h1.json, and --switches")
	}
	texts := map[string][]byte{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		texts[name] = text
	}
	t, problems, err := fabric.ReadLLDPNeighbours(texts, patterns)
	if err != nil {
		return err
	}
	return writeWithProblems("lldpd", "neighbours", t, problems, output)
}

// writeWithProblems writes a topology from a list. What cannot be used goes to standard error.
func writeWithProblems(name, what string, t *fabric.Topology, problems fabric.Problems, output string) error {
	for _, p := range problems {
		fmt.Fprintln(os.Stderr, p)
	}
	if err := writeImported(t, nil, nil, output); err != nil {
		return err
	}
	if n := len(problems.OnlyErrors()); n > 0 {
		return exitError{code: 3, err: fmt.Errorf("%s: %d %s cannot be used", name, n, what)}
	}
	return nil
}

// importUFM writes a topology from saved documents of UFM's REST interface, in any order.
func importUFM(files []string, output string) error {
	if len(files) == 0 {
		return errors.New("files are expected: resources/systems, resources/ports and resources/links as UFM answers them")
	}
	v := &ufm.Inventory{}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = v.ReadSaved(f)
		f.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := v.FinishSaved(); err != nil {
		return err
	}
	t, found, left := v.BuildTopology()
	return writeImported(t, found, left, output)
}

// describeGroups describes that groups were found.
func describeGroups(n int) string {
	return fmt.Sprintf("links between spines join %d parts: it is taken for a Dragonfly+ of %d groups", n, n)
}

// writeImported writes a topology, with groups where it looks like a Dragonfly+. It reports contradictions (found) and what
// a topology file cannot represent (left).
func writeImported(t *fabric.Topology, found, left []string, file string) error {
	if n := t.FindGroups(); n > 0 {
		left = append(left, describeGroups(n))
	}
	text, err := yaml.Marshal(t)
	if err != nil {
		return fmt.Errorf("cannot write the topology: %w", err)
	}
	if file == "" {
		_, err = os.Stdout.Write(text)
	} else {
		err = os.WriteFile(file, text, 0o644)
	}
	if err != nil {
		return fmt.Errorf("cannot write the topology: %w", err)
	}
	_, checked := fabric.ParseTopology("the topology", text)
	for _, x := range checked {
		fmt.Fprintln(os.Stderr, x)
	}
	contradictory := printWarnings("the fabric", found)
	printWarnings("the fabric", left)
	fmt.Fprintf(os.Stderr, "%d switches, %d nodes, %d links\n", len(t.Switches), len(t.Nodes), len(t.Links))
	if contradictory+len(checked.OnlyErrors()) > 0 {
		return exitError{code: 3}
	}
	return nil
}
