package main

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/daemon"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/looptest"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/testneeds"
	"github.com/graylink/graylink/internal/webaccess"
)

// newSuspectAnalyzer returns the handlers of an analyzer with a verdict on a link that the job ml/train7 crosses.
func newSuspectAnalyzer(t *testing.T) http.Handler {
	t.Helper()
	r := looptest.NewRig(t, 4)
	register := jobs.NewRegister(r.World.Graph)
	register.ReplaceSource("test", []jobs.Placement{{Job: "ml/train7", Nodes: []string{"h1", "h3"}}})
	r.Configure(func(o *analyzer.LoopOptions) { o.Jobs = register })
	r.Learn()
	r.World.Delay[fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}] = 2e6
	r.Until(10, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	return daemon.NewMux(r.Loop, daemon.PageOptions{Policy: &webaccess.Policy{}})
}

// mcpCommand returns this test binary as graylink mcp.
func mcpCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, append([]string{"mcp"}, args...)...)
	cmd.Env = append(os.Environ(), "GRAYLINK_TEST_MAIN=1")
	return cmd
}

// TestMCPOverStandardInput starts graylink mcp as a client does, against an analyzer that wants TLS and a password. A wrong password is
// an error of the answer.
func TestMCPOverStandardInput(t *testing.T) {
	mux := newSuspectAnalyzer(t)
	web := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "secret" {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	defer web.Close()
	for password, want := range map[string]string{"secret": `"answer":"The network is suspect."`, "guess": "401 Unauthorized"} {
		file := filepath.Join(t.TempDir(), "http.yaml")
		if err := os.WriteFile(file, []byte("basic_auth: {username: u, password: "+password+"}\ntls_config: {insecure_skip_verify: true}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: mcpCommand(t, "--analyzer", web.URL, "--http.config", file)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "job", Arguments: map[string]any{"name": "ml/train7"}})
		if err != nil {
			t.Fatal(err)
		}
		if text := res.Content[0].(*mcp.TextContent).Text; !strings.Contains(text, want) || res.IsError != (password != "secret") || strings.Contains(text, "guess") {
			t.Errorf("%s: %s", password, text)
		}
		if err := c.Close(); err != nil {
			t.Errorf("the program did not end with its input: %v", err)
		}
	}
}

var pythonExample = regexp.MustCompile("(?s)```python\n(.*?)```")

// TestMCPExampleOfTheDocs runs the Python example of docs/for-programs.md, which goes from a job to the evidence.
func TestMCPExampleOfTheDocs(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		testneeds.Missing(t, "python3 (Debian package python3)")
	}
	text, err := os.ReadFile("../../docs/for-programs.md")
	if err != nil {
		t.Fatal(err)
	}
	m := pythonExample.FindSubmatch(text)
	if m == nil {
		t.Fatal("docs/for-programs.md has no example in Python")
	}
	web := httptest.NewServer(newSuspectAnalyzer(t))
	defer web.Close()
	graylink := mcpCommand(t)
	dir := t.TempDir()
	if err := os.Symlink(graylink.Path, filepath.Join(dir, "graylink")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), python, "-", "ml/train7", web.URL)
	cmd.Stdin = strings.NewReader(string(m[1]))
	cmd.Env = append(graylink.Env, "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := cmd.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		t.Fatalf("%v: %s", err, failed.Stderr)
	}
	answers := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(answers) != 2 || !strings.HasPrefix(answers[0], "The network is suspect. ") {
		t.Fatalf("%v: %s", err, out)
	}
	var evidence struct {
		Element  string
		Evidence fabric.EvidenceCount
	}
	if err := json.Unmarshal([]byte(answers[1]), &evidence); err != nil || evidence.Element != "leaf1:up1--spine1:dn1" || evidence.Evidence.ExplainedEdges == 0 {
		t.Errorf("%v: %s", err, answers[1])
	}
}

// TestMCPWrongFlags: a wrong URL, and a file that cannot be read, end the program before it answers.
func TestMCPWrongFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"--analyzer":                {"mcp", "--analyzer", "localhost:9872"},
		"--http.config: open /none": {"mcp", "--http.config", "/none"},
	} {
		if stdout, stderr, code := runGraylink(t, "", args...); code != 1 || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit code %d, %s %s", args, code, stdout, stderr)
		}
	}
	if stdout, stderr, code := runGraylink(t, "", "mcp"); code != 0 || stdout != "" || stderr != "" {
		t.Errorf("without a client: exit code %d, %s %s", code, stdout, stderr)
	}
}
