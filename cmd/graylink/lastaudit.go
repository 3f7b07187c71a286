package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/analyzer/audit/latest"
)

// addLastAudit adds the command last-audit, which prints the audit that an analyzer has.
func addLastAudit(app *kingpin.Application, commands map[string]command) {
	cmd := app.Command("last-audit", "Print the latest audit that an analyzer has. Exit code 0: it passed, 1: the analyzer does not answer, or has no report that can be used, 2: it failed, 3: its evidence does not suffice.")
	base := cmd.Flag("analyzer", "Base URL of the analyzer.").Default("http://127.0.0.1:9872").String()
	format := cmd.Flag("format", "Output format.").Default("text").Enum("text", "json")
	commands[cmd.FullCommand()] = func(ctx context.Context) error {
		var v latest.View
		raw, err := fetchFromAnalyzer(ctx, http.DefaultClient, *base, "/api/v1/audit", &v)
		if err != nil {
			return err
		}
		if *format == "json" {
			if _, err := os.Stdout.Write(raw); err != nil {
				return fmt.Errorf("cannot write the answer: %w", err)
			}
		} else if v.Report != nil {
			fmt.Printf("Scope %s, ended %s.\n", v.Report.Scope, v.Report.End.Local().Format(time.RFC3339))
			printAudit(os.Stdout, v.Report)
			if v.Old {
				fmt.Printf("The audit ended more than %.0f days ago. It says little of the fabric as it is.\n", latest.OldAfter.Hours()/24)
			}
		}
		switch {
		case v.Report == nil || v.Problem != "":
			return fmt.Errorf("the analyzer cannot use its report of an audit: %s", v.Problem)
		case v.Report.ExitCode() != 0:
			return exitError{code: v.Report.ExitCode()}
		}
		return nil
	}
}
