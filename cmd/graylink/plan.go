package main

import (
	"github.com/alecthomas/kingpin/v2"
)

func addPlan(app *kingpin.Application, commands map[string]command) {
	cmd := app.Command("plan", "Choose UDP source ports for the queue pairs of jobs, so that they fill the fabric evenly.")
	addPlanCatalogue(cmd, commands)
}
