package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Every program prints its name and a version on standard output, and exits with 0.
func TestVersionOfEveryProgram(t *testing.T) {
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
	for _, p := range programs {
		out, err := exec.Command(filepath.Join(dir, p), "--version").Output()
		if err != nil || !strings.HasPrefix(string(out), p+", version 9.8.7 ") {
			t.Errorf("%s --version printed %q, %v", p, out, err)
		}
	}
}
