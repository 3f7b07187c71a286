// Command graylink is the operator's tool.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/program"
)

// command runs the chosen sub-command.
type command func(ctx context.Context) error

// exitError ends the program with its code, and without a message if err is nil.
type exitError struct {
	code int
	err  error
}

func (e exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func main() {
	app := program.NewApplication("graylink", "Finds the element of a GPU fabric that is slow, lossy or broken.")
	commands := map[string]command{}
	for _, add := range []func(*kingpin.Application, map[string]command){
		addAudit, addCert, addClocksim, addCollectives, addCompare, addConfig, addCSIG, addDemo, addFakesys, addIB, addIncident, addJob, addJoinToken, addLab, addLastAudit, addLocalize, addManual, addMCP, addPlan, addSchedule, addServe, addSize, addTopology, addTrace,
	} {
		add(app, commands)
	}
	os.Exit(run(app, commands, os.Args[1:]))
}

func run(app *kingpin.Application, commands map[string]command, args []string) int {
	name, err := app.Parse(program.JoinDash(args))
	if err != nil {
		fmt.Fprintf(os.Stderr, "graylink: %v; try: graylink --help\n", err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err = commands[name](ctx)
	var ee exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &ee):
		if ee.err != nil {
			fmt.Fprintf(os.Stderr, "graylink: %v\n", ee.err)
		}
		return ee.code
	}
	fmt.Fprintf(os.Stderr, "graylink: %v\n", err)
	return 1
}
