package program

import (
	"bytes"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/buildversion"
)

func TestManPage(t *testing.T) {
	app := NewApplication("graylink-test", "Prints \"a\\b\" at ~/c. It does nothing else.\n\n.Exit codes: 0 - always.")
	app.Flag("a-flag", "A flag's `text`.").Short('a').Default("1").Int()
	app.Flag("hidden", "Not shown.").Hidden().Bool()
	c := app.Command("do it", "Does it.")
	c.Arg("what", "What.").Required().String()
	var out bytes.Buffer
	app.UsageWriter(&out)
	if err := WriteManPage(app); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`.TH "GRAYLINK\-TEST" 1 "" "Graylink ` + quoteRoff(buildversion.Version()) + `" "User Commands"`,
		`graylink\-test \- prints \(dqa\eb\(dq at \(ti/c`,
		"[flags] command [arguments]",
		".PP\n\\&.Exit codes: 0 \\- always.",
		`.B "\-a, \-\-a\-flag=1"` + "\nA flag\\(aqs \\(gatext\\(ga.\n",
		`.SS "do it <what>"` + "\nDoes it.\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "hidden") || strings.Count(out.String(), ".TH") != 1 {
		t.Errorf("a hidden flag, or a second header:\n%s", out.String())
	}
}

func TestCompletion(t *testing.T) {
	for shell, want := range map[string]string{"bash": "complete -F", "zsh": "#compdef graylink-test"} {
		app := NewApplication("graylink-test", "Does nothing.")
		var out bytes.Buffer
		app.UsageWriter(&out)
		if err := WriteCompletion(app, shell); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v, no %q in\n%s", shell, err, want, out.String())
		}
	}
}
