//go:build alone

package vm

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/internal/fabric"
)

// shellBlocks returns the blocks of commands of a document.
func shellBlocks(t *testing.T, file string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?s)\n```sh\n(.*?)\n```\n").FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

// TestSmallSite: three machines with two NICs each, no Prometheus, no topology, and no file that somebody wrote. graylink
// serve runs on the first machine, and an agent with a join token on each. The verdict about an injected delay comes
// within five minutes of the first command. The commands are those of docs/serve.md, but for the cadence: machines whose
// processors are emulated send ten probes a second and edge.
func TestSmallSite(t *testing.T) {
	parts := require(t)
	precedence(t)
	programs, err := BuildPrograms(t.Context(), t.TempDir(), "github.com/graylink/graylink/cmd/graylink", "github.com/graylink/graylink/cmd/graylink-node")
	if err != nil {
		t.Fatal(err)
	}
	names, networks := []string{"h1", "h2", "h3"}, []*Network{network(t), network(t)}
	var all []Options
	for _, name := range names {
		o := Options{Name: name, Networks: networks, Parts: parts, Programs: map[string]string{"/usr/bin/graylink-node": programs[1]}}
		if name == "h1" {
			o.Memory, o.Programs["/usr/bin/graylink"] = 1024, programs[0]
		}
		all = append(all, o)
	}
	machines := together(t, all...)
	for i, name := range names {
		shell(t, machines[name], "ip link set lo up",
			fmt.Sprintf("ip addr add 10.1.0.%d/24 dev eth0 && ip link set eth0 up", i+1), fmt.Sprintf("ip addr add 10.2.0.%d/24 dev eth1 && ip link set eth1 up", i+1))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()

	commands := shellBlocks(t, "../../docs/serve.md")
	if len(commands) != 3 {
		t.Fatalf("docs/serve.md has %d blocks of commands, want three: %q", len(commands), commands)
	}
	began := time.Now()
	site, err := machines["h1"].Start(ctx, "sh", "-c", "exec "+commands[0]+" --schedule.cadence 100ms")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("graylink serve said:\n%s", strings.Join(site.Lines, "\n"))
		}
	})
	within(t, 2*time.Minute, "the site is served", func() (string, bool) {
		b, err := machines["h1"].HTTPGet(ctx, "http://127.0.0.1:9872/-/healthy")
		return fmt.Sprint(string(b), err), err == nil
	})
	tokens := strings.Fields(shell(t, machines["h1"], commands[1]))
	if len(tokens) != len(names) {
		t.Fatalf("%q: want a token for each node", tokens)
	}
	for i, name := range names {
		agent, err := machines[name].Start(ctx, "sh", "-c", "TOKEN="+tokens[i]+"\n"+commands[2])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("the agent of %s said:\n%s", name, strings.Join(agent.Lines, "\n"))
			}
		})
	}
	verdicts := func() (state fabric.State, open []incident.Incident, text string) {
		b, err := machines["h1"].HTTPGet(ctx, "http://127.0.0.1:9872/api/v1/verdicts")
		if err != nil {
			return "", nil, err.Error()
		}
		var v struct {
			State    fabric.State
			Verdicts []incident.Incident
		}
		if err := json.Unmarshal(b, &v); err != nil {
			return "", nil, string(b)
		}
		return v.State, v.Verdicts, string(b)
	}
	within(t, 4*time.Minute, "the network is innocent", func() (string, bool) {
		state, _, text := verdicts()
		return text, state == fabric.Innocent
	})
	t.Logf("innocent %.1f s after the first command", time.Since(began).Seconds())

	// A qdisc of the machine would delay packets before they are stamped, which is no delay of the network.
	if err := networks[1].Delay("h3", 1, 40*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	broken := time.Now()
	within(t, 3*time.Minute, "a verdict names eth1 of h3", func() (string, bool) {
		_, all, text := verdicts()
		for i := range all {
			v := &all[i]
			isIt := func(e fabric.Element) bool { return e.ID == "h3/eth1" }
			if v.OpenedAt.After(broken) && (isIt(v.Element) || slices.ContainsFunc(v.Equivalent, isIt)) {
				t.Logf("after %.1f s: %s", time.Since(broken).Seconds(), v.Summary)
				if v.Symptom.AddedDelayNS < 36e6 || v.Symptom.AddedDelayNS > 60e6 {
					t.Errorf("%v ns are added, want 40 ms", v.Symptom.AddedDelayNS)
				}
				return "", true
			}
		}
		return text, false
	})
	if took := time.Since(began); took > 5*time.Minute {
		t.Errorf("the verdict came %v after the first command, want five minutes at most", took)
	}
	t.Logf("the verdict came %.1f s after the first command", time.Since(began).Seconds())
}
