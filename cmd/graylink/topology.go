package main

import (
	"context"
	"fmt"
	"os"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plainjson"
)

func addTopology(app *kingpin.Application, commands map[string]command) {
	topo := app.Command("topology", "Work with topology files.")
	check := topo.Command("check", "Print every error and warning of a topology file. Exit code 0: usable, 1: it has errors.")
	addDiscover(topo, commands)
	addTopologyImport(topo, commands)
	file := check.Arg("file", "Topology file (YAML).").Required().String()
	format := check.Flag("format", "Output format.").Default("text").Enum("text", "json")
	commands[check.FullCommand()] = func(context.Context) error {
		t, found := fabric.LoadTopology(*file)
		if *format == "json" {
			if found == nil {
				found = fabric.Problems{}
			}
			if err := plainjson.NewEncoder(os.Stdout).Encode(found); err != nil {
				return fmt.Errorf("cannot write the findings: %w", err)
			}
		} else {
			for _, f := range found {
				fmt.Println(f)
			}
		}
		if n := len(found.OnlyErrors()); n > 0 {
			return exitError{code: 1, err: fmt.Errorf("%s: %d of %d findings are errors", *file, n, len(found))}
		}
		if *format == "text" {
			nics := 0
			for _, n := range t.Nodes {
				nics += len(n.NICs)
			}
			fmt.Printf("%s: usable: %d switches, %d nodes, %d NICs, %d links; %d warnings\n", *file, len(t.Switches), len(t.Nodes), nics, len(t.Links), len(found))
		}
		return nil
	}
}

// loadGraph loads a topology for a command that needs a usable one. Warnings go to standard error.
func loadGraph(file string) (*fabric.Topology, *fabric.Graph, error) {
	t, found := fabric.LoadTopology(file)
	if err := found.Err(); err != nil {
		return nil, nil, err
	}
	for _, f := range found {
		fmt.Fprintln(os.Stderr, f)
	}
	return t, fabric.NewGraph(t), nil
}
