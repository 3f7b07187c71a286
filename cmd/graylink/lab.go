package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"text/tabwriter"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

func addLab(app *kingpin.Application, commands map[string]command) {
	cmd := app.Command("lab", "A real fabric of network namespaces on this machine, to break.")
	name := cmd.Flag("name", "The lab's name.").Default(lab.DefaultName).String()

	up := cmd.Command("up", "Build the fabric of a topology file.")
	topology := up.Flag("topology", "The topology file.").Required().String()
	commands[up.FullCommand()] = func(ctx context.Context) error { return labUp(ctx, *topology, *name) }

	status := cmd.Command("status", "Show a lab's namespaces, links, routes, processes and faults.")
	format := status.Flag("format", "Output format.").Default("text").Enum("text", "json")
	commands[status.FullCommand()] = func(ctx context.Context) error { return labStatus(ctx, os.Stdout, *name, *format) }

	down := cmd.Command("down", "Remove a lab, whatever state it is in.")
	commands[down.FullCommand()] = func(ctx context.Context) error { return lab.Down(ctx, *name) }

	list := cmd.Command("list", "List the labs of this machine.")
	commands[list.FullCommand()] = func(context.Context) error {
		names, err := lab.List()
		for _, n := range names {
			fmt.Println(n)
		}
		return err
	}

	ex := cmd.Command("exec", "Run a command inside a node or switch: graylink lab exec NODE -- CMD.")
	node := ex.Arg("node", "The node or switch.").Required().String()
	argv := ex.Arg("command", "The command and its arguments, after --.").Required().Strings()
	commands[ex.FullCommand()] = func(ctx context.Context) error { return labExec(ctx, *name, *node, *argv) }
}

func labUp(ctx context.Context, topology, name string) error {
	topo, findings := fabric.Load(topology)
	for _, f := range findings {
		fmt.Fprintln(os.Stderr, f)
	}
	if findings.Err() != nil {
		return fmt.Errorf("%s cannot be built: correct the errors above", topology)
	}
	_, err := lab.Up(ctx, topo, lab.Options{Name: name, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	return err
}

func labExec(ctx context.Context, name, node string, argv []string) error {
	l, err := lab.Open(name)
	if err != nil {
		return err
	}
	// The terminal's Ctrl-C reaches the command itself, which decides; a
	// context that ends must not kill it first.
	cmd := l.Command(context.WithoutCancel(ctx), node, argv...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var ee *exec.ExitError
	if errors.As(err, &ee) {
		return exitError{code: max(ee.ExitCode(), 1)}
	}
	return err
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func labStatus(ctx context.Context, w io.Writer, name, format string) error {
	s, err := lab.StatusOf(ctx, name)
	if err != nil {
		return err
	}
	if format == "json" {
		return printJSON(w, s)
	}
	fmt.Fprintf(w, "lab %s is %s since %s\n", s.Name, s.Phase, s.Created.Local().Format("2006-01-02 15:04:05"))
	if s.OwnerPID != 0 {
		fmt.Fprintf(w, "it ends with process %d (running: %t)\n", s.OwnerPID, s.OwnerAlive)
	}
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "\nELEMENT\tNAMESPACE\tEXISTS\tLINKS UP\tROUTES\tPROCESSES")
	for _, n := range s.Namespaces {
		fmt.Fprintf(tw, "%s\t%s\t%t\t%d/%d\t%d/%d\t%d\n", n.Element, n.Netns, n.Exists, n.LinksUp, n.LinksUp+n.LinksDown, n.Routes, n.RoutesWant, len(n.Processes))
	}
	fmt.Fprintln(tw, "\nPORT\tINTERFACE\tADDRESS\tPEER\tUP")
	for _, n := range s.Namespaces {
		for _, i := range n.Interfaces {
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%t\n", i.End, i.Interface, i.Address, i.Peer, i.Up)
		}
	}
	return tw.Flush()
}
