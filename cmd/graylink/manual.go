package main

import (
	"context"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/program"
)

// addManual adds the commands that print the page of the manual, and the scripts of shells.
func addManual(app *kingpin.Application, commands map[string]command) {
	app.Command("man", "Print the page of the manual: graylink man | man -l -")
	commands["man"] = func(context.Context) error { return program.WriteManPage(app) }

	c := app.Command("completion", `Print the script by which a shell completes arguments: source <(graylink completion bash)`)
	shell := c.Arg("shell", "Shell: bash or zsh.").Required().Enum("bash", "zsh")
	commands[c.FullCommand()] = func(context.Context) error { return program.WriteCompletion(app, *shell) }
}
