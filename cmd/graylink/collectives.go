package main

import "github.com/alecthomas/kingpin/v2"

func addCollectives(app *kingpin.Application, commands map[string]command) {
	cmd := app.Command("collectives", "Work with what collective communication libraries (NCCL, RCCL, PyTorch) record.")
	addCollectivesDiagnose(cmd, commands)
	addCollectivesSimulate(cmd, commands)
}
