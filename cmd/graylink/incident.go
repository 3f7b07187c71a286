package main

import (
	"context"
	"fmt"
	"net/url"
	"os"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/durable"
)

// addIncident adds the command incident, which writes the report of a verdict.
func addIncident(app *kingpin.Application, commands map[string]command) {
	cmd := app.Command("incident", "Write the report of a verdict as one file for a ticket: what happened, who was affected, the evidence, causes and actions. Exit code 0: it is written, 1: the analyzer does not answer, it knows no such verdict, or the file cannot be written.")
	id := cmd.Arg("id", "Identifier of the verdict, as the page, the API and alerts have it.").Required().String()
	base := cmd.Flag("analyzer", "Base URL of the analyzer.").Default("http://127.0.0.1:9872").String()
	httpConfig := cmd.Flag("http.config", "File with the TLS and authentication settings for the analyzer "+
		"(Prometheus' HTTP client configuration).").String()
	format := cmd.Flag("format", "Output format. html has pictures, and needs no network to be read.").Default("markdown").Enum("html", "markdown", "json")
	output := cmd.Flag("output", "File to write. The default is the standard output.").String()
	commands[cmd.FullCommand()] = func(ctx context.Context) error {
		client, err := newAnalyzerClient(*httpConfig)
		if err != nil {
			return err
		}
		file, err := readFromAnalyzer(ctx, client, *base, "/api/v1/verdicts/"+url.PathEscape(*id)+"/report?format="+*format)
		if err != nil {
			return err
		}
		if *output != "" {
			return durable.WritePublicFile(*output, file)
		}
		if _, err := os.Stdout.Write(file); err != nil {
			return fmt.Errorf("cannot write the report: %w", err)
		}
		return nil
	}
}
