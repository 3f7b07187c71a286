package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/program"

	"github.com/graylink/graylink/internal/fakesys"
)

func fakesysCommand(t *testing.T, args ...string) error {
	t.Helper()
	app := kingpin.New("graylink", "")
	commands := map[string]command{}
	addFakesys(app, commands)
	name, err := app.Parse(program.JoinDash(append([]string{"fakesys"}, args...)))
	if err != nil {
		t.Fatal(err)
	}
	return commands[name](context.Background())
}

func TestFakesysBuildAndPlay(t *testing.T) {
	dir := t.TempDir()
	tree, script := filepath.Join(dir, "tree"), filepath.Join(dir, "flap.script")
	if err := os.WriteFile(script, []byte("set rxe0/1 state 1: DOWN\nadd rxe0/1 hw_counters/link_downed 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := fakesysCommand(t, "play", "--script", script, tree); err == nil || !strings.Contains(err.Error(), "graylink fakesys build") {
		t.Errorf("without a tree: %v", err)
	}
	var out bytes.Buffer
	if err := buildFakesys(&out, "rxe", "", tree); err != nil || !strings.Contains(out.String(), "RDMA devices: 1, interfaces: 2;") {
		t.Fatalf("%q %v", out.String(), err)
	}
	out.Reset()
	if err := playFakesys(t.Context(), nil, &out, script, tree); err != nil {
		t.Fatal(err)
	}
	if err := playFakesys(t.Context(), strings.NewReader("net eth0 operstate down"), &out, "-", tree); err != nil {
		t.Fatal(err)
	}
	want := script + `: steps: 2, the last after 0s
    0.000s  line 1: set rxe0/1 state 1: DOWN
    0.000s  line 2: add rxe0/1 hw_counters/link_downed 1
standard input: steps: 1, the last after 0s
    0.000s  line 1: net eth0 operstate down
`
	if out.String() != want {
		t.Errorf("%s\nwant\n%s", out.String(), want)
	}
	for file, want := range map[string]string{
		"sys/class/infiniband/rxe0/ports/1/state":                   "1: DOWN\n",
		"sys/class/infiniband/rxe0/ports/1/hw_counters/link_downed": "1\n",
		"sys/class/net/eth0/operstate":                              "down\n",
	} {
		if b, err := os.ReadFile(filepath.Join(tree, file)); err != nil || string(b) != want {
			t.Errorf("%s: %q %v", file, b, err)
		}
	}
}

func TestFakesysShowIsWhatBuildReads(t *testing.T) {
	var out bytes.Buffer
	if err := listFakesys(&out); err != nil || strings.Count(out.String(), "\n") != len(fakesys.Profiles()) {
		t.Errorf("%q %v", out.String(), err)
	}
	out.Reset()
	if err := showFakesys(&out, "mlx4"); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "node.yaml")
	if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := fakesysCommand(t, "build", "--file", file, filepath.Join(dir, "tree")); err != nil {
		t.Error(err)
	}
}

func TestFakesysRefuses(t *testing.T) {
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "x"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"one of --profile and --file is expected":      {"build", full},
		`--profile: "h101": one of the profiles`:       {"build", "--profile", "h101", full},
		"is not empty and holds no tree":               {"build", "--profile", "rxe", full},
		"--file: open " + full + "/none: no such file": {"build", "--file", full + "/none", full},
		`"h101": one of the profiles`:                  {"show", "h101"},
		"--script: open " + full + "/none":             {"play", "--script", full + "/none", full},
		"holds no tree of graylink fakesys":            {"play", "--script", full + "/x", full},
	} {
		if err := fakesysCommand(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}
