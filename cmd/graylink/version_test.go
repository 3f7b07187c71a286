package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryProgram checks what all programs have in common: --version, the page of the manual and --check.
func TestEveryProgram(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the programs are not built")
	}
	dir := t.TempDir()
	programs := []string{"graylink", "graylink-node", "graylink-switch", "graylink-coordinator", "graylink-analyzer"}
	args := []string{"build", "-ldflags", "-X github.com/prometheus/common/version.Version=9.8.7", "-o", dir}
	for _, p := range programs {
		args = append(args, "../"+p)
	}
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	checkFlagPage(t, dir, programs)
	for _, p := range programs {
		out, err := exec.Command(filepath.Join(dir, p), "--version").Output()
		if err != nil || !strings.HasPrefix(string(out), p+", version 9.8.7 ") {
			t.Errorf("%s --version printed %q, %v", p, out, err)
		}
		if flags := "../../deploy/systemd/flags/" + strings.TrimPrefix(p, "graylink-") + ".flags"; p != "graylink" {
			if out, err := exec.Command(filepath.Join(dir, p), "@"+flags, "--version").CombinedOutput(); err != nil {
				t.Errorf("%s refuses its example of flags: %v\n%s", p, err, out)
			}
		}
		checkManPage(t, filepath.Join(dir, p))
	}
	t.Run("check", func(t *testing.T) { checkOfPrograms(t, dir) })
}

const flagPageHead = `# Flags

This page lists the flags of all programs. Every program prints it with ` + "`--help`" + `, and as a page of the manual with
` + "`--help-man`" + `. An argument ` + "`@FILE`" + ` stands for the arguments in a file, one a line. A flag with ` + "`[no-]`" + ` is true or false:
` + "`--no-NAME`" + ` is false. One with dots may be repeated.

` + "`otelcol-graylink`" + ` has the flags of the OpenTelemetry Collector, of which ` + "`--config FILE`" + ` is required, and no others:
` + "`otelcol-graylink --help`" + ` lists them.

`

// checkFlagPage compares docs/reference/flags.md with what the programs in a directory print. -update writes it.
func checkFlagPage(t *testing.T, dir string, programs []string) {
	t.Helper()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	var parts []string
	for _, p := range programs {
		out, err := exec.Command(filepath.Join(dir, p), "--help-markdown").CombinedOutput()
		if err != nil {
			t.Fatalf("%s --help-markdown: %v\n%s", p, err, out)
		}
		parts = append(parts, strings.ReplaceAll(string(out), "`"+host+"`", "the host's name"))
	}
	const file = "../../docs/reference/flags.md"
	want := flagPageHead + strings.Join(parts, "\n")
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("%s is not what the programs print (%v); run: go test ./cmd/graylink -run EveryProgram -update", file, err)
	}
}

// checkOfPrograms runs --check of the daemons in a directory with files that are right and wrong.
func checkOfPrograms(t *testing.T, programs string) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if out, err := exec.Command(filepath.Join(programs, "graylink"), "cert", "ca", "--dir", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := exec.Command(filepath.Join(programs, "graylink"), "cert", "issue", "--dir", dir, "coordinator").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	coordinator := func(topology, state, key string, more ...string) []string {
		return append([]string{"graylink-coordinator", "--topology.file", topology, "--state.file", state, "--agents.listen-address", "127.0.0.1:0",
			"--agents.ca", in("ca.crt"), "--agents.cert", in("coordinator.crt"), "--agents.key", key, "--web.listen-address", "127.0.0.1:0"}, more...)
	}
	bad := file("bad.yaml", "planes: 3\n")
	for _, tc := range []struct {
		name string
		args []string
		want []string // errors; none if nothing is wrong
	}{
		{"a coordinator", coordinator(demoTopology, in("state.json"), in("coordinator.key")), nil},
		{"a coordinator with two wrong files", coordinator(bad, in("state.json"), in("absent.key")), []string{"bad.yaml:1: error: planes: unknown key", "version: 1 is expected", "switches: at least one", "nodes: at least two", "absent.key"}},
		{"a state that is none", coordinator(demoTopology, file("state.bad", "{"), in("coordinator.key")), []string{"state.bad"}},
		{"an address of another host", coordinator(demoTopology, in("state.json"), in("coordinator.key"), "--agents.listen-address", "192.0.2.1:9870"), []string{"--agents.listen-address"}},
		{"a switch", []string{"graylink-switch", "--web.listen-address", "127.0.0.1:0"}, nil},
		{"a switch without flows", []string{"graylink-switch", "--flows", "0", "--web.listen-address", "127.0.0.1:0"}, []string{"flows"}},
		{"a web configuration that is none", []string{"graylink-switch", "--web.config.file", bad, "--web.listen-address", "127.0.0.1:0"}, []string{"--web.config.file"}},
		{"an analyzer without its file", []string{"graylink-analyzer", "--config.file", in("absent.yml"), "--web.listen-address", "127.0.0.1:0"}, []string{"absent.yml"}},
		{"a node without a source", []string{"graylink-node", "--web.listen-address", "127.0.0.1:0"}, []string{"--config.file or --coordinator.address is required"}},
		{"a node with two wrong files", []string{"graylink-node", "--config.file", bad, "--nic.config", in("absent.yml"), "--web.listen-address", "127.0.0.1:0"}, []string{"bad.yaml", "absent.yml"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, err := exec.Command(filepath.Join(programs, tc.args[0]), append(tc.args[1:], "--check")...).CombinedOutput()
			if (err != nil) != (tc.want != nil) {
				t.Fatalf("%v: %s", err, out)
			}
			if tc.want == nil {
				tc.want = []string{"nothing wrong was found"}
			}
			if n := strings.Count("\n"+string(out), "\n"+tc.args[0]+": "); n != len(tc.want) {
				t.Errorf("%d errors, want %d:\n%s", n, len(tc.want), out)
			}
			for _, want := range tc.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
		})
	}
	if _, err := os.Stat(in("state.json")); err == nil {
		t.Error("--check has written the state of the coordinator")
	}
}

// checkManPage checks the header of a program's page of the manual, and that groff has nothing to warn of.
func checkManPage(t *testing.T, program string) {
	t.Helper()
	page, err := exec.Command(program, "--help-man").Output()
	name := strings.ReplaceAll(strings.ToUpper(filepath.Base(program)), "-", `\-`)
	if header := `.TH "` + name + `" 1 "" "Graylink 9.8.7" "User Commands"`; err != nil || !strings.HasPrefix(string(page), header+"\n") {
		t.Errorf("%s --help-man: %v, begins with %.90q, want %q", program, err, page, header)
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Log("groff does not check the pages: it is missing (Debian: groff-base)")
		return
	}
	cmd := exec.Command(groff, "-man", "-Tutf8", "-ww", "-z")
	cmd.Stdin = bytes.NewReader(page)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("groff: %s: %v\n%s", program, err, out)
	}
}
