package program

import (
	"os"
	"strings"
	"text/template"
	"unicode"
	"unicode/utf8"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/buildversion"
)

// manPage is the template of a program's page of the manual (man(7), man-pages(7)). That of kingpin has the whole output of
// --version in its header and no description beside the name, and passes text on unquoted.
const manPage = `{{define "flags" -}}
{{range .}}{{if not .Hidden -}}
.TP
.B "{{if .Short}}\-{{.Short|Char|roff}}, {{end}}\-\-{{.Name|roff}}{{if not .IsBoolFlag}}={{.FormatPlaceHolder|roff}}{{end}}"
{{.Help|roff}}
{{end}}{{end -}}
{{end -}}
{{define "arguments" -}}
{{range .}}{{if not .Hidden}} {{if not .Required}}[{{end}}{{if .PlaceHolder}}{{.PlaceHolder|roff}}{{else}}<{{.Name|roff}}>{{end}}{{if .Value|IsCumulative}}...{{end}}{{if not .Required}}]{{end}}{{end}}{{end -}}
{{end -}}
.TH "{{.App.Name|upper|roff}}" 1 "" "Graylink {{version|roff}}" "User Commands"
.SH NAME
{{.App.Name|roff}} \- {{.App.Help|brief|roff}}
.SH SYNOPSIS
.B {{.App.Name|roff}}
[flags]{{template "arguments" .App.Args}}{{if .App.Commands}} command [arguments]{{end}}
.SH DESCRIPTION
{{.App.Help|roff}}
.SH OPTIONS
{{template "flags" .App.Flags -}}
{{if .App.Commands -}}
.SH COMMANDS
{{range allCommands .App.Commands}}{{if and (not .Hidden) (or .Flags .Args (not .Commands)) -}}
.SS "{{.FullCommand|roff}}{{template "arguments" .Args}}"
{{.Help|roff}}
{{template "flags" .Flags -}}
{{end}}{{end -}}
{{end -}}
`

// NewApplication returns a command line with the flags --help, --version and --help-man.
func NewApplication(name, help string) *kingpin.Application {
	kingpin.ManPageTemplate = manPage // it has no setter
	app := kingpin.New(name, help)
	app.HelpFlag.Short('h')
	addFlagPage(app)
	return app.UsageWriter(os.Stdout).Version(buildversion.Print(name)).UsageFuncs(template.FuncMap{
		"roff": quoteRoff, "brief": briefOf, "upper": strings.ToUpper, "version": buildversion.Version,
		"allCommands": allCommands, "cell": tableCell, "code": codeCell})
}

// WriteManPage writes the program's page of the manual to the writer of usages.
func WriteManPage(app *kingpin.Application) error { return writeTemplate(app, manPage) }

// WriteCompletion writes the script by which a shell, bash or zsh, completes the program's arguments.
func WriteCompletion(app *kingpin.Application, shell string) error {
	if shell == "zsh" {
		return writeTemplate(app, kingpin.ZshCompletionTemplate)
	}
	return writeTemplate(app, kingpin.BashCompletionTemplate)
}

func writeTemplate(app *kingpin.Application, text string) error {
	parsed, err := app.ParseContext(nil)
	if err != nil {
		return err
	}
	return app.UsageForContextWithTemplate(parsed, 2, text)
}

// quoteRoff returns text as roff shows it unchanged: no control line, no escape sequence, no quote that ends an argument,
// and hyphens that can be copied. An empty line is a new paragraph.
func quoteRoff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, `-`, `\-`, `"`, `\(dq`, `'`, `\(aq`, "`", `\(ga`, `^`, `\(ha`, `~`, `\(ti`).Replace(text)
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		switch {
		case strings.TrimSpace(line) == "":
			line = ".PP"
		case line[0] == '.':
			line = `\&` + line
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// briefOf returns the first sentence of a help text as the line under NAME has it.
func briefOf(help string) string {
	brief, _, _ := strings.Cut(help, "\n")
	if sentence, _, more := strings.Cut(brief, ". "); more {
		brief = sentence
	}
	brief = strings.TrimSuffix(brief, ".")
	first, size := utf8.DecodeRuneInString(brief)
	return string(unicode.ToLower(first)) + brief[size:]
}
