package main

import (
	"context"
	"os"
	"strings"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/schema"
)

// addConfig adds the command that prints the schemas of configuration files.
func addConfig(app *kingpin.Application, commands map[string]command) {
	c := app.Command("config", "Work with configuration files.").Command("schema", "Print the JSON Schema of a YAML file, by which editors and CI check it.")
	names := schema.ListNames()
	name := c.Arg("name", "File: "+strings.Join(names, ", ")+".").Required().Enum(names...)
	commands[c.FullCommand()] = func(context.Context) error {
		text, err := schema.ReadText(*name)
		if err != nil {
			return err
		}
		_, err = os.Stdout.Write(text)
		return err
	}
}
