package main

import (
	"fmt"
	"os"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/coordinator"
	"github.com/graylink/graylink/internal/program"
)

// stateCommands are what the program does with a state file instead of coordinating, by the first argument.
var stateCommands = map[string]func(args []string) int{"backup": runBackup, "restore": runRestore}

const (
	backupHelp  = `Writes a copy of the state of a coordinator, which may run. The copy has mode 0600, since it holds secrets.`
	restoreHelp = `Replaces the state of a coordinator, which must not run, by a backup. Nothing is changed unless the backup can be used.`
)

func runBackup(args []string) int {
	app := program.NewApplication("graylink-coordinator backup", backupHelp)
	state := app.Flag("state.file", "State file of the coordinator.").Required().String()
	output := app.Flag("output", "File to write. It is replaced if it exists.").Required().String()
	return runStateCommand(app, args, func() (coordinator.StateSummary, string, error) {
		s, err := coordinator.Backup(*state, *output)
		return s, *output, err
	})
}

func runRestore(args []string) int {
	app := program.NewApplication("graylink-coordinator restore", restoreHelp)
	state := app.Flag("state.file", "State file of the coordinator.").Required().String()
	input := app.Flag("input", "Backup to restore.").Required().String()
	return runStateCommand(app, args, func() (coordinator.StateSummary, string, error) {
		s, err := coordinator.Restore(*state, *input)
		return s, *state, err
	})
}

// runStateCommand parses the arguments of a command, runs it, and prints what it wrote. It returns the exit code.
func runStateCommand(app *kingpin.Application, args []string, do func() (coordinator.StateSummary, string, error)) int {
	if _, err := app.Parse(args); err != nil {
		app.Errorf("%s, try --help", err)
		return exitSetup
	}
	s, file, err := do()
	if err != nil {
		app.Errorf("%s", err)
		return exitSetup
	}
	written := "at an unknown time"
	if !s.Written.IsZero() {
		written = s.Written.UTC().Format("2006-01-02 15:04:05 UTC")
	}
	fmt.Fprintf(os.Stdout, "%s: %d agents, %d keys, epoch %d, written %s\n", file, s.Agents, s.Keys, s.Epoch, written)
	return 0
}
