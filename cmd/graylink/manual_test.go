package main

import (
	"os/exec"
	"strings"
	"testing"
)

func TestManualAndCompletion(t *testing.T) {
	page, stderr, code := runGraylink(t, "", "man")
	if code != 0 || !strings.HasPrefix(page, `.TH "GRAYLINK" 1 "" "Graylink `) || !strings.Contains(page, "\n.SS \"lab up") {
		t.Errorf("man: code %d, %s\n%.400s", code, stderr, page)
	}
	for _, shell := range []string{"bash", "zsh"} {
		script, stderr, code := runGraylink(t, "", "completion", shell)
		if code != 0 || !strings.Contains(script, "--completion-bash") {
			t.Errorf("completion %s: code %d, %s\n%s", shell, code, stderr, script)
		}
		if shell == "bash" {
			cmd := exec.Command("bash", "-n")
			cmd.Stdin = strings.NewReader(script)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("bash: %v\n%s", err, out)
			}
		}
	}
	if _, stderr, code := runGraylink(t, "", "completion", "csh"); code != 1 || !strings.Contains(stderr, "bash") {
		t.Errorf("completion csh: code %d, %s", code, stderr)
	}
}
