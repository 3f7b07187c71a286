package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
)

func TestMain(m *testing.M) {
	if os.Getenv("GRAYLINK_TEST_MAIN") == "1" {
		main()
		return
	}
	os.Exit(m.Run())
}

// runGraylink runs this test binary as graylink: TestMain calls main if the environment says so.
func runGraylink(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), "GRAYLINK_TEST_MAIN=1")
	cmd.Stdin = strings.NewReader(stdin)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

const demoTopology = "../../deploy/lab/demo.yaml"

// TestLocalizeRecorded judges testdata/delay.jsonl, which the analyzer recorded on the demo's fabric while 2 ms were
// added from spine1:dn2 to leaf2:up1.
func TestLocalizeRecorded(t *testing.T) {
	stdout, stderr, code := runGraylink(t, "", "localize", "--topology", demoTopology, "--observations", "testdata/delay.jsonl", "--format", "json")
	var rep fabric.Report
	if err := json.Unmarshal([]byte(stdout), &rep); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s%s", code, err, stdout, stderr)
	}
	if rep.State != fabric.Suspect || len(rep.Verdicts) != 1 {
		t.Fatalf("state %s, %d verdicts", rep.State, len(rep.Verdicts))
	}
	v := rep.Verdicts[0]
	if v.Element.ID != "leaf2:up1--spine1:dn2" || v.Kind != fabric.KindLink || v.Direction != "spine1:dn2->leaf2:up1" || v.Scenario != fabric.Corridor {
		t.Errorf("verdict %+v", v)
	}
	if d := v.Symptom.AddedDelayNS; d < 2e6 || d > 2.5e6 {
		t.Errorf("added delay %d ns, 2 ms were injected", d)
	}
	if len(rep.LinkDelays) == 0 || rep.LinkDelays[0].Direction != v.Direction || !rep.LinkDelays[0].Identifiable {
		t.Errorf("link delays %+v", rep.LinkDelays)
	}
	if rep.Coverage.Links != 1 || rep.Edges.Total != 112 {
		t.Errorf("coverage %+v, edges %+v", rep.Coverage, rep.Edges)
	}
}

func TestLocalizeText(t *testing.T) {
	stdout, _, code := runGraylink(t, "", "localize", "--topology", demoTopology, "--observations", "testdata/delay.jsonl")
	for _, want := range []string{"SUSPECT  leaf2:up1--spine1:dn2", "direction  spine1:dn2->leaf2:up1", "no probe can distinguish these"} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("exit code %d, %q is missing in\n%s", code, want, stdout)
		}
	}
}

func TestLocalizeReportsEveryBadLine(t *testing.T) {
	data, err := os.ReadFile("testdata/delay.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	bad := "not JSON\n" + strings.ReplaceAll(strings.SplitN(string(data), "\n", 2)[0], "h1/eth1", "h99/eth1") + "\n"
	stdout, stderr, code := runGraylink(t, bad+string(data), "localize", "--topology", demoTopology, "--observations", "-", "--format", "json")
	if code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	for _, want := range []string{"-:1: error: not a JSON object", "-:2: error:", "h99/eth1", "2 lines could not be read"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("%q is missing in\n%s", want, stderr)
		}
	}
	if !strings.Contains(stdout, `"state":"suspect"`) {
		t.Errorf("the rest was not judged: %s", stdout)
	}
}

// TestLocalizeHostileFile checks that every kind of bad line is counted and skipped, that the first ones are shown,
// and that the rest is judged.
func TestLocalizeHostileFile(t *testing.T) {
	data, err := os.ReadFile("testdata/delay.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	good := strings.SplitN(string(data), "\n", 2)[0]
	field := regexp.MustCompile(`"(sent|lost|window_ns)":[0-9]+`)
	with := func(name, value string) string {
		return field.ReplaceAllStringFunc(good, func(s string) string {
			if strings.HasPrefix(s, `"`+name+`"`) {
				return `"` + name + `":` + value
			}
			return s
		})
	}
	bad := []string{with("sent", "NaN"), with("sent", "-5"), with("lost", "99999"), with("sent", "1e300"), with("window_ns", "9223372036854775808"), with("window_ns", "9223372036854775807"),
		strings.Replace(good, `"start":"2026`, `"start":"0001`, 1), strings.Replace(good, `"start":"2026`, `"start":"9999`, 1), `[]`, `null`, `{}`, "\x00\xff",
		strings.Replace(good, `"out":"`, `"out":"nowhere`, 1), strings.Replace(good, `"switch":"`, `"switch":"x`, 1), strings.Repeat("{", 2<<20)}
	rubbish := strings.Repeat("rubbish\n", 10_000)
	stdout, stderr, code := runGraylink(t, strings.Join(bad, "\n")+"\n"+rubbish+string(data), "localize", "--topology", demoTopology, "--observations", "-", "--format", "json")
	if want := fmt.Sprintf("%d lines could not be read", len(bad)+10_000); code != 3 || !strings.Contains(stderr, want) {
		t.Errorf("exit code %d, want 3 with %q in\n%s", code, want, stderr)
	}
	if lines := strings.Count(stderr, "\n"); lines > maxLineErrors+3 || len(stderr) > 16<<10 {
		t.Errorf("%d lines, %d octets of complaints", lines, len(stderr))
	}
	var rep fabric.Report
	if err := json.Unmarshal([]byte(stdout), &rep); err != nil || len(rep.Verdicts) != 1 || rep.Verdicts[0].Direction != "spine1:dn2->leaf2:up1" {
		t.Errorf("%v: %s", err, stdout)
	}
}

func TestArgumentsAndTopology(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.jsonl")
	tests := map[string]struct {
		args []string
		code int
		want string
	}{
		"no observations":      {[]string{"localize", "--topology", demoTopology}, 1, "observations"},
		"no such observations": {[]string{"localize", "--topology", demoTopology, "--observations", missing}, 1, "no such file"},
		"no such topology":     {[]string{"localize", "--topology", "none.yaml", "--observations", "-"}, 1, "none.yaml"},
		"a bad topology":       {[]string{"localize", "--topology", "../../internal/fabric/testdata/values.bad.yaml", "--observations", "-"}, 1, "values.bad.yaml:5:"},
		"unknown command":      {[]string{"divine"}, 1, "divine"},
		"check of a good file": {[]string{"topology", "check", demoTopology}, 0, ""},
		"check of a bad file":  {[]string{"topology", "check", "../../internal/fabric/testdata/references.bad.yaml"}, 1, "findings are errors"},
		"check with warnings":  {[]string{"topology", "check", "../../internal/fabric/testdata/warnings.bad.yaml"}, 0, ""},
		"trace of no NIC":      {[]string{"trace", "h1", "h2/eth1"}, 1, "SRC>DST"},
		"trace without agent":  {[]string{"trace", "h1/eth1", "h2/eth1", "--agent", "http://127.0.0.1:1"}, 1, "agent of \"h1\""},
	}
	for name, tt := range tests {
		_, stderr, code := runGraylink(t, "", tt.args...)
		if code != tt.code || !strings.Contains(stderr, tt.want) {
			t.Errorf("%s: exit code %d, want %d with %q in\n%s", name, code, tt.code, tt.want, stderr)
		}
	}
}

func TestTopologyCheckPrintsAllFindings(t *testing.T) {
	stdout, _, _ := runGraylink(t, "", "topology", "check", "../../internal/fabric/testdata/references.bad.yaml")
	want, err := os.ReadFile("../../internal/fabric/testdata/references.bad.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.ReplaceAll(stdout, "../../internal/fabric/testdata/", ""); got != string(want) {
		t.Errorf("printed\n%s\nwant\n%s", got, want)
	}
}

// TestLocalizeStats checks that the phases are those that ran, in their order, and that the report is the same.
func TestLocalizeStats(t *testing.T) {
	args := []string{"localize", "--topology", demoTopology, "--observations", "testdata/delay.jsonl"}
	want, _, _ := runGraylink(t, "", args...)
	stdout, stderr, code := runGraylink(t, "", append(args, "--stats")...)
	if code != 0 || stdout != want {
		t.Errorf("exit code %d, %q, want %q", code, stdout, want)
	}
	if form := regexp.MustCompile(`^\d+ observations: reading \d+\.\d{3} s, binding \d+\.\d{3} s, inference \d+\.\d{3} s\n$`); !form.MatchString(stderr) {
		t.Errorf("standard error %q", stderr)
	}
}

// TestRoutingVerdictText checks what is printed of verdicts on routing.
func TestRoutingVerdictText(t *testing.T) {
	spine, other := fabric.Element{ID: "spine1", Kind: fabric.KindSwitch}, fabric.Element{ID: "spine2", Kind: fabric.KindSwitch}
	for _, c := range []struct {
		scenario  fabric.Scenario
		prefix    string
		want, not []string
	}{
		{fabric.RoutingFault, "leaf3", []string{"SUSPECT  spine1  (switch, routing, warning,", "  prefix     leaf3\n", "or         spine2 (switch): no probe can distinguish these\n"}, nil},
		{fabric.Polarization, "", []string{"also       spine2 (switch): the same hash, and the leaves whose flows crowd\n"}, []string{"prefix", "no probe can"}},
		{fabric.Convergence, "", []string{"(switch, convergence, warning,"}, []string{"prefix"}},
		{fabric.FIBMismatch, "10.0.3.0/24", []string{"(switch, fib_mismatch, warning,", "  prefix     10.0.3.0/24\n"}, nil},
	} {
		text := verdictText(fabric.Verdict{Element: spine, Prefix: c.prefix, Scenario: c.scenario, Severity: fabric.SeverityWarning, Equivalent: []fabric.Element{other}})
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q is not in\n%s", c.scenario, want, text)
			}
		}
		for _, not := range c.not {
			if strings.Contains(text, not) {
				t.Errorf("%s: %q is in\n%s", c.scenario, not, text)
			}
		}
	}
}

func TestSprayedModeText(t *testing.T) {
	rate := 2225.5
	for _, c := range []struct {
		paths fabric.PathChoice
		want  string
	}{
		{fabric.PathChoice{Mode: fabric.ECMP}, ""},
		{fabric.PathChoice{Mode: fabric.Spray, Sprayed: 192}, "Switches choose the path of each packet of 192 flows.\n"},
		{fabric.PathChoice{Mode: fabric.Spray, Sprayed: 192, LeastProbesPerSecond: &rate},
			"Switches choose the path of each packet of 192 flows: every direction of a link between switches that is covered has 2225.5 probes a second or more.\n"},
	} {
		if got := modeText(&fabric.Report{Paths: c.paths}); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
