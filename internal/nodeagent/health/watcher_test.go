package health_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/nichealth"
	"github.com/graylink/graylink/internal/nodeagent/health"
	"github.com/graylink/graylink/internal/nodeagent/health/healthtest"
)

// openFindings returns the open findings in order of their NICs.
func openFindings(p *healthtest.Patient) (out []string) {
	for _, f := range p.Snapshot().Findings {
		out = append(out, fmt.Sprintf("%s %s fatal %v", f.NIC, f.Code, f.Fatal))
	}
	slices.Sort(out)
	return out
}

// TestARestartIsNoNews checks that reported findings are in the state file, and are not reported again.
func TestARestartIsNoNews(t *testing.T) {
	state := filepath.Join(t.TempDir(), "nics.json")
	p := healthtest.NewPatient(t, "h100", func(o *health.Options) { o.StateFile = state })
	p.PollFor(2 * time.Second)
	p.RunSteps("set mlx5_0/1 state 1: DOWN", "add mlx5_1/1 counters/link_downed 1")
	if got := p.PollFor(2 * time.Second); len(got) != 2 {
		t.Errorf("%q", got)
	}
	p.SaveState(false)
	p.Restart()
	if got := p.PollFor(2 * time.Second); len(got) != 0 {
		t.Errorf("reported again: %q", got)
	}
	if got, want := openFindings(p), []string{"h1/mlx5_0 state_down fatal true", "h1/mlx5_1 link_downed fatal true"}; !slices.Equal(got, want) {
		t.Errorf("open findings %q, want %q", got, want)
	}
	p.SaveState(true)
	p.RunSteps("set mlx5_0/1 state 4: ACTIVE", "set mlx5_2/1 state 1: DOWN")
	p.Restart()
	if got, want := p.PollFor(2*time.Second), []string{"healthy state_down NICPort:mlx5_0_port1 NONE", "fatal state_down NICPort:mlx5_2_port1 REPLACE_VM"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if err := os.WriteFile(state, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.Restart() // it logs this and continues
	if got := p.PollFor(2 * time.Second); len(got) != 0 {
		t.Errorf("first sight: %q", got)
	}
	if !strings.Contains(p.Log(), "cannot read the state file of NIC health") {
		t.Error("a state file that cannot be read is not logged")
	}
}

// TestFindingsForKubernetes checks the findings that Kubernetes gets for a tree, and their series.
func TestFindingsForKubernetes(t *testing.T) {
	p := healthtest.NewPatient(t, "h100", nil)
	if _, read := p.OpenFindings(); !read.IsZero() {
		t.Errorf("read at %v before the first poll", read)
	}
	p.PollFor(3 * time.Second)
	p.RunSteps("set mlx5_0/1 state 1: DOWN")
	p.PollFor(3 * time.Second)
	open, read := p.OpenFindings()
	if len(open) != 1 || open[0].Code != nichealth.CodeDown || !open[0].Fatal || open[0].Entity != nichealth.PortEntity("mlx5_0", 1) || p.Now.Sub(read) > 2*time.Second {
		t.Errorf("%+v, read at %v, now is %v", open, read, p.Now)
	}
	// The list of devices cannot be read, because it is a link to itself.
	dir := p.Tree.Path("sys/class/infiniband")
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("infiniband", dir); err != nil {
		t.Fatal(err)
	}
	p.PollFor(30 * time.Second)
	if open, late := p.OpenFindings(); len(open) != 1 || late.Sub(read) > time.Second {
		t.Errorf("%+v, read at %v: the devices cannot be listed since %v", open, late, read)
	}
}

// TestRunPollsAndSaves checks that Run polls the files and the log, and writes the state file at its end at the latest.
func TestRunPollsAndSaves(t *testing.T) {
	dir := t.TempDir()
	p := healthtest.NewPatient(t, "h100", func(o *health.Options) {
		o.StateFile, o.PositionFile, o.Log = filepath.Join(dir, "nics.json"), filepath.Join(dir, "position.json"), health.LogKmsg
		o.Rules.Every = 20 * time.Millisecond
	})
	p.RunSteps("kmsg 3 mlx5_core 0000:18:00.0: Port module event: module 0, Cable unplugged")
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan struct{})
	go func() { defer close(ran); p.Run(ctx) }()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if s := p.Snapshot(); s.Polls >= 3 && s.Events[health.EventKey{Code: "module_absent", Severity: "warning"}] == 1 {
			break
		}
	}
	cancel()
	<-ran
	s := p.Snapshot()
	if s.Polls < 3 || len(s.Ports) == 0 || s.Node != "h1" || s.Log.Lines[health.LogLine{Code: "module_absent", NIC: "h1/mlx5_0", Severity: "warning"}] != 1 {
		t.Errorf("%d polls, %d ports of %s, lines %v", s.Polls, len(s.Ports), s.Node, s.Log.Lines)
	}
	state, position := p.FileWrites()
	if done, failed := state(); done == 0 || failed != 0 {
		t.Errorf("state file: %d writes, %d failures", done, failed)
	}
	if done, failed := position(); done == 0 || failed != 0 {
		t.Errorf("position: %d writes, %d failures", done, failed)
	}
	if _, err := os.Stat(filepath.Join(dir, "nics.json")); err != nil {
		t.Error(err)
	}
}

// TestResetNeedsFindings checks that a reset names the entity that has no findings.
func TestResetNeedsFindings(t *testing.T) {
	p := healthtest.NewPatient(t, "h100", nil)
	p.PollFor(2 * time.Second)
	if _, err := p.Reset("mlx5_7_port1", p.Now); !errors.Is(err, health.ErrNoFindings) || err.Error() != "no findings for mlx5_7_port1" {
		t.Errorf("%v", err)
	}
	p.RunSteps("add mlx5_0/1 counters/link_downed 1")
	p.PollFor(6 * time.Second)
	if n, err := p.Reset("mlx5_0_port1", p.Now); n != 1 || err != nil || len(openFindings(p)) != 0 {
		t.Errorf("%d findings ended, %v, %q are open", n, err, openFindings(p))
	}
}
