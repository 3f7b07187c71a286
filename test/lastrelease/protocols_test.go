package lastrelease

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	root      = "../.."
	protocols = "internal/agentapi"
)

// breaking runs buf breaking of a directory of protocols against another one, and returns what it prints and whether it
// found nothing.
func breaking(t *testing.T, buf, now, before string) (text string, compatible bool) {
	t.Helper()
	cmd := exec.Command(buf, "breaking", now, "--against", before, "--config", `{"version":"v2","breaking":{"use":["FILE"]}}`)
	cmd.Env = append(os.Environ(), "BUF_CACHE_DIR="+t.TempDir())
	b, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	// 100 is buf's exit code for findings (bufctl.ExitCodeFileAnnotation of 1.75.0).
	if code := cmd.ProcessState.ExitCode(); code != 0 && code != 100 {
		t.Fatalf("buf breaking: %v: %s", err, b)
	}
	return string(b), err == nil
}

// copyProtocols writes the protocols of this checkout into a directory, changed by edit, and returns the directory.
func copyProtocols(t *testing.T, edit *strings.Replacer) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, protocols, "*.proto"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	dir := t.TempDir()
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(f)), []byte(edit.Replace(string(b))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestProtocolsAreCompatible compares the protocols of this checkout with those of the last release by buf breaking. They
// may have more, but nothing of the release is removed, renamed, or of another type. It checks as well that buf finds
// such changes.
func TestProtocolsAreCompatible(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: buf takes two minutes to compile")
	}
	release := Find(t, root)
	buf := filepath.Join(t.TempDir(), "buf")
	if text, err := exec.Command("go", "build", "-C", filepath.Join(root, "tools/buf"), "-o", buf, "github.com/bufbuild/buf/cmd/buf").CombinedOutput(); err != nil {
		t.Fatalf("go build buf: %v: %s", err, text)
	}
	before := t.TempDir()
	release.Extract(t, root, before, protocols)
	before = filepath.Join(before, protocols)

	if text, compatible := breaking(t, buf, copyProtocols(t, strings.NewReplacer()), before); !compatible {
		t.Errorf("the protocols break what release %s has:\n%s", release.Version, text)
	}
	for name, tt := range map[string]struct{ old, new, want string }{
		"a removed field":     {"  optional uint64 life = 10;\n", "", `Previously present field "10" with name "life" on message "Hello" was deleted`},
		"a reserved field":    {"  optional uint64 life = 10;\n", "  reserved 10;\n", `Previously present field "10" with name "life" on message "Hello" was deleted`},
		"another type":        {"  uint32 port = 1;\n  uint32 source_port = 2;\n", "  uint32 port = 1;\n  string source_port = 2;\n", `Field "2" with name "source_port" on message "Stamp" changed type`},
		"a renamed field":     {"  string boot_id = 3;", "  string boot = 3;", `Field "3" on message "Hello" changed name`},
		"a removed procedure": {"  rpc Ask(Question) returns (Answer);\n", "", `Previously present RPC "Ask" on service "Agents" was deleted`},
	} {
		text, compatible := breaking(t, buf, copyProtocols(t, strings.NewReplacer(tt.old, tt.new)), before)
		if compatible || !strings.Contains(text, tt.want) {
			t.Errorf("%s: compatible %v, %q, want %q", name, compatible, text, tt.want)
		}
	}
}
