package program

import (
	"os"
	"strings"

	"github.com/alecthomas/kingpin/v2"
)

// flagPage is the template of a program's part of docs/reference/flags.md. All texts stand in tables, where lines may be
// long.
const flagPage = `{{define "rows" -}}
| flag or argument | default | meaning |
| --- | --- | --- |
{{range .Args}}{{if not .Hidden}}| ` + "`{{.Name}}{{if .Value|IsCumulative}}...{{end}}`" + ` | {{if .Required}}required{{else}}{{.Default|code}}{{end}} | {{.Help|cell}} |
{{end}}{{end -}}
{{range .Flags}}{{if not .Hidden}}| ` + "`{{if .Short}}-{{.Short|Char}}, {{end}}--{{if .IsBoolFlag}}[no-]{{end}}{{.Name}}{{if .Value|IsCumulative}}...{{end}}`" + ` | {{if .Required}}required{{else}}{{.Default|code}}{{end}} | {{.Help|cell}} |
{{end}}{{end -}}
{{end -}}
## Which flags does ` + "`{{.App.Name}}`" + ` have?

{{template "rows" .App -}}
{{if .App.Commands}}
| command | what it does |
| --- | --- |
{{range .App.FlattenedCommands}}{{if not .Hidden}}| ` + "`{{.FullCommand}}`" + ` | {{.Help|cell}} |
{{end}}{{end -}}
{{$app := .App.Name}}{{range allCommands .App.Commands}}{{if and (not .Hidden) (or .Flags .Args)}}
### ` + "`{{$app}} {{.FullCommand}}`" + `
{{if .Commands}}
These flags are for all of its commands.
{{end}}
{{template "rows" .}}{{end}}{{end -}}
{{end -}}
`

// addFlagPage adds the hidden flag that prints the program's part of docs/reference/flags.md.
func addFlagPage(app *kingpin.Application) {
	app.Flag("help-markdown", "Generate the program's part of the documentation.").Hidden().PreAction(func(c *kingpin.ParseContext) error {
		if err := app.UsageForContextWithTemplate(c, 2, flagPage); err != nil {
			return err
		}
		os.Exit(0)
		return nil
	}).Bool()
}

// allCommands returns commands, each before those below it.
func allCommands(commands []*kingpin.CmdModel) (out []*kingpin.CmdModel) {
	for _, c := range commands {
		out = append(append(out, c), allCommands(c.Commands)...)
	}
	return out
}

// tableCell returns text as a table of Markdown shows it unchanged.
func tableCell(text string) string {
	return strings.NewReplacer(`|`, `\|`, `*`, `\*`, `_`, `\_`, `<`, `&lt;`, "\n", " ").Replace(text)
}

// codeCell returns the values of a default as code, or nothing.
func codeCell(values []string) string {
	text := strings.Join(values, " ")
	if text == "" {
		return ""
	}
	return "`" + strings.ReplaceAll(text, "|", `\|`) + "`"
}
