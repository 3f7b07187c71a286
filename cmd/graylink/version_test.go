package main

import (
	"bytes"
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
		checkManPage(t, filepath.Join(dir, p))
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
