//go:build all

package e2e

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestKilledRoutedDemo: after a demo that FRR routes was killed, "lab down" leaves no daemon, namespace, process or file of it.
func TestKilledRoutedDemo(t *testing.T) {
	need(t)
	program(t, "vtysh")
	const name = "e2ekd"
	temporary := t.TempDir()
	cmd := exec.Command(filepath.Join(bin, "graylink"), "demo", "--name", name, "--web.listen-address", "127.0.0.1:0", "--routing", "frr", "--fault", "withdrawn")
	cmd.Env = append(os.Environ(), "TMPDIR="+temporary)
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := ""
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		if said += lines.Text() + "\n"; strings.Contains(said, "injecting a fault") {
			break
		}
	}
	daemons := slices.DeleteFunc(processesWith(t, "/labs/"+name+"/frr/"), func(cmd string) bool { return strings.Contains(cmd, bin) })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it says that the process was killed
	if len(daemons) != 18 {
		t.Errorf("%d daemons of FRR run before, want 3 at each of 6 switches:\n%s", len(daemons), said)
	}
	if _, stderr, code := graylink(t, "lab", "--name", name, "down"); code != 0 {
		t.Errorf("lab down: %s", stderr)
	}
	clean(t, name)
	left := append(processesWith(t, "/labs/"+name+"/"), processesWith(t, temporary)...)
	for _, pattern := range []string{temporary + "/*", "/run/graylink/labs/*" + name + "*", "/var/run/netns/gl-" + name + "-*"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, files...)
	}
	if len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// processesWith returns the commands of the processes that have a text in them.
func processesWith(t *testing.T, text string) (out []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), text) {
			out = append(out, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return out
}
