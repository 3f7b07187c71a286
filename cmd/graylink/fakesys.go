package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/fakesys"
)

func addFakesys(app *kingpin.Application, commands map[string]command) {
	cmd := app.Command("fakesys", "Make directory trees that look like a node's /sys, /proc and /dev, and let NICs fail in them.")

	build := cmd.Command("build", "Make a tree. A directory that holds something else is refused; a tree made before is replaced.")
	profile := build.Flag("profile", "Built-in node to make, from graylink fakesys list.").String()
	file := build.Flag("file", "File (YAML) that describes a node, as graylink fakesys show prints it.").String()
	buildDir := build.Arg("dir", "Directory of the tree.").Required().String()
	commands[build.FullCommand()] = func(context.Context) error { return buildFakesys(os.Stdout, *profile, *file, *buildDir) }

	play := cmd.Command("play", "Play a script on a tree, in real time, and print its steps as they are applied.")
	script := play.Flag("script", "File of the script; - is standard input.").Required().String()
	playDir := play.Arg("dir", "Directory of the tree.").Required().String()
	commands[play.FullCommand()] = func(ctx context.Context) error {
		return playFakesys(ctx, os.Stdin, os.Stdout, *script, *playDir)
	}

	list := cmd.Command("list", "List the built-in nodes.")
	commands[list.FullCommand()] = func(context.Context) error { return listFakesys(os.Stdout) }

	show := cmd.Command("show", "Print the description of a built-in node, as a starting point for a file.")
	shown := show.Arg("profile", "Built-in node.").Required().String()
	commands[show.FullCommand()] = func(context.Context) error { return showFakesys(os.Stdout, *shown) }
}

func buildFakesys(out io.Writer, profile, file, dir string) error {
	var n fakesys.Node
	var err error
	switch {
	case (profile == "") == (file == ""):
		return fmt.Errorf("fakesys build: one of --profile and --file is expected")
	case profile != "":
		if n, err = fakesys.FindProfile(profile); err != nil {
			return fmt.Errorf("--profile: %w", err)
		}
	default:
		if n, err = fakesys.LoadNode(file); err != nil {
			return fmt.Errorf("--file: %w", err)
		}
	}
	if err := fakesys.BuildTree(dir, n); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %s; its roots are %s/sys, %s/proc and %s/dev\n", dir, n.Summary(), dir, dir, dir)
	return nil
}

func playFakesys(ctx context.Context, in io.Reader, out io.Writer, script, dir string) error {
	name := script
	if script == "-" {
		name = "standard input"
	} else {
		f, err := os.Open(script)
		if err != nil {
			return fmt.Errorf("--script: %w", err)
		}
		defer f.Close()
		in = f
	}
	s, err := fakesys.ParseScript(name, in)
	if err != nil {
		return err
	}
	tree, err := fakesys.Open(dir)
	if err != nil {
		return err
	}
	if n := len(s.Steps); n > 0 {
		fmt.Fprintf(out, "%s: steps: %d, the last after %s\n", name, n, s.Steps[n-1].At)
	}
	err = fakesys.NewPlayer(tree, s).Play(ctx, func(s fakesys.Step) {
		fmt.Fprintf(out, "%9.3fs  line %d: %s\n", s.At.Round(time.Millisecond).Seconds(), s.Line, s.Text)
	})
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: stopped before its end", name)
	}
	return err
}

func listFakesys(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, p := range fakesys.Profiles() {
		fmt.Fprintf(w, "%s\t%s\n", p.Name, p.Help)
	}
	return w.Flush()
}

func showFakesys(out io.Writer, profile string) error {
	n, err := fakesys.FindProfile(profile)
	if err != nil {
		return err
	}
	return n.WriteYAML(out)
}
