//go:build all

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/agentapi/client"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/internal/pki"
)

// alikeDirections returns groups of directions between switches that the same flows cross, by the paths that an analyzer
// knows.
func (c *chain) alikeDirections(r *replica) (groups [][]fabric.Direction) {
	c.t.Helper()
	crossing := map[fabric.Direction][]string{}
	for edge, o := range c.observations(r) {
		for _, d := range o.Path.LinkDirections(o.Src, o.Dst) {
			if !fabric.IsNIC(d.From) && !fabric.IsNIC(d.To) {
				crossing[d] = append(crossing[d], edge)
			}
		}
	}
	by := map[string][]fabric.Direction{}
	for d, edges := range crossing {
		slices.Sort(edges)
		if len(edges) >= 2 {
			key := strings.Join(edges, " ")
			by[key] = append(by[key], d)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(by)) {
		if group := by[key]; len(group) > 1 {
			slices.SortFunc(group, func(a, b fabric.Direction) int { return strings.Compare(a.String(), b.String()) })
			groups = append(groups, group)
		}
	}
	return groups
}

// TestAskingInAFabric breaks links that the flows of a thin schedule cannot distinguish from others. The verdict comes as
// always, and temporary flows narrow it to the truth under the same identifier. tcpdump counts their packets.
func TestAskingInAFabric(t *testing.T) {
	program(t, "tcpdump")
	c := newChainOn(t, "e2eq", "testdata/asking-fabric.yaml", 1, []string{"--schedule.min-flows=1", "--schedule.link-edges=0", "--schedule.cadence=5ms"})
	r := c.analyzers[0]
	c.wait(2*time.Minute, "the fabric is innocent", c.innocent)
	groups := c.alikeDirections(r)
	t.Logf("%d groups of directions are crossed by the same flows: %v", len(groups), groups)
	if len(groups) < 1 {
		t.Fatal("the schedule distinguishes nearly everything")
	}
	asked, narrowed := 0, 0
	for i, group := range groups[:min(len(groups), 4)] {
		d := group[i%len(group)]
		packets := c.countTemporary()
		broken := lab.Fault{Kind: lab.KindDelay, At: d.LinkID(), Direction: d.String(), Delay: 2 * time.Millisecond}
		if i%2 == 1 {
			broken = lab.Fault{Kind: lab.KindLoss, At: d.LinkID(), Direction: d.String(), Loss: 0.2}
		}
		id := c.fault(broken)
		began := time.Now()
		truth := fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink}
		var first, last incident.Incident
		c.wait(40*time.Second, "a verdict", func() bool {
			_, all := c.verdicts(r)
			i := slices.IndexFunc(all, func(in incident.Incident) bool { return in.Open })
			if i >= 0 {
				first = all[i]
			}
			return i >= 0
		})
		at := time.Now()
		alike := slices.ContainsFunc(first.Equivalent, func(e fabric.Element) bool { return e != truth && e.Kind == fabric.KindLink }) || first.Element != truth
		done := time.Duration(0)
		for time.Since(at) < 25*time.Second && done == 0 {
			time.Sleep(500 * time.Millisecond)
			_, all := c.verdicts(r)
			i := slices.IndexFunc(all, func(in incident.Incident) bool { return in.Open })
			if i < 0 {
				t.Fatalf("%s: the verdict is gone: %+v", d, all)
			}
			last = all[i]
			if last.ID != first.ID {
				t.Errorf("%s: the identifier changed from %s to %s", d, first.ID, last.ID)
			}
			if last.Element != truth && !slices.Contains(last.Equivalent, truth) {
				t.Errorf("%s: %s with %v excludes the truth", d, last.Element.ID, last.Equivalent)
			}
			if last.Element == truth && !slices.ContainsFunc(last.Equivalent, func(e fabric.Element) bool { return e.Kind == fabric.KindLink }) {
				done = time.Since(at)
			}
		}
		flows, sent, span := packets()
		t.Logf("%s: verdict on %s with %v after %.1f s, %s with %v %.1f s later; asked %+v; %d temporary flows, %d packets in %.1f s", d, first.Element.ID, first.Equivalent, at.Sub(began).Seconds(),
			last.Element.ID, last.Equivalent, done.Seconds(), last.Evidence.Asked, flows, sent, span.Seconds())
		if alike {
			asked++
			if done > 0 && done <= 12*time.Second {
				narrowed++
			}
			if len(last.Evidence.Asked) == 0 || flows == 0 {
				t.Errorf("%s: asked %+v, %d temporary flows on the wire", d, last.Evidence.Asked, flows)
			}
		}
		scheduled := c.coordinates()[`graylink_coordinator_edges{state="all"}`]
		if limit := 0.01 * scheduled * 200 * span.Seconds(); float64(sent) > limit {
			t.Errorf("%s: %d probes of temporary flows in %.1f s, want at most %.0f: 1 %% of the probes", d, sent, span.Seconds(), limit)
		}
		c.heal(id)
		c.wait(2*time.Minute, "the fabric is innocent again", c.innocent)
	}
	t.Logf("%d of %d were narrowed to the truth", narrowed, asked)
	if asked == 0 || narrowed*10 < asked*8 {
		t.Errorf("%d of %d were narrowed to the truth", narrowed, asked)
	}
}

var temporaryPacket = regexp.MustCompile(`IP (\d+\.\d+\.\d+\.\d+)\.(\d+) > (\d+\.\d+\.\d+\.\d+)\.\d+`)

// countTemporary records the probes of temporary flows where hosts send them, until the function that it returns is
// called. That returns the number of flows and probes, and the time.
func (c *chain) countTemporary() (end func() (flows, probes int, span time.Duration)) {
	c.t.Helper()
	first := 49152 + fabric.ScheduledFlows
	filter := fmt.Sprintf("udp and dst port 862 and src portrange %d-%d", first, first+fabric.TemporaryFlows-1)
	var captures []func() string
	for _, node := range c.nodes() {
		captures = append(captures, c.capture(node, "-i", "eth1", "-Q", "out", filter))
	}
	began := time.Now()
	return func() (flows, probes int, span time.Duration) {
		span = time.Since(began)
		seen := map[string]bool{}
		for _, end := range captures {
			for _, m := range temporaryPacket.FindAllStringSubmatch(end(), -1) {
				seen[m[1]+" "+m[2]+" "+m[3]] = true
				probes++
			}
		}
		return len(seen), probes, span
	}
}

// capture runs tcpdump in a node or switch until the function that it returns is called, which returns a line for each packet.
func (c *chain) capture(node string, args ...string) (end func() string) {
	c.t.Helper()
	cmd := c.l.Command(context.Background(), node, append([]string{"tcpdump", "-n", "-l", "-Z", "root"}, args...)...)
	text := &bytes.Buffer{}
	cmd.Stdout = text
	stderr, err := cmd.StderrPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	for lines.Scan() && !strings.Contains(lines.Text(), "listening on") {
	}
	return func() string {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		return text.String()
	}
}

// askAs asks the coordinator for a flow with a certificate.
func (f *fleet) askAs(who string) error {
	f.t.Helper()
	at := func(name string) string { return filepath.Join(f.dir, name) }
	keeper, err := pki.Open(pki.Files{CA: at("ca.crt"), Cert: at(who + ".crt"), Key: at(who + ".key")}, func(err error) { f.t.Error(err) })
	if err != nil {
		f.t.Fatal(err)
	}
	asker, err := client.NewAsker([]string{"unix:" + at("agents.sock")}, "", keeper)
	if err != nil {
		f.t.Fatal(err)
	}
	a, err := asker.Ask(f.t.Context(), &agentapi.Question{Incident: "test", Wanted: []*agentapi.WantedFlows{{Src: "h1/eth1", Dst: "h8/eth1", Flows: 2}}})
	if err == nil && len(a.GetFlows()) != 2 {
		f.t.Errorf("%s got %v", who, a)
	}
	return err
}

// TestAskingIsRefused: the coordinator answers only those that its flag names, and a stranger's certificate gets nothing.
func TestAskingIsRefused(t *testing.T) {
	f := newFleet(t, "e2er", "../../deploy/lab/demo.yaml", "--ask.clients=analyzer")
	f.startCoordinator()
	for _, n := range f.nodes() {
		f.startAgent(n)
	}
	f.connected(8)
	f.probing(8)
	f.issue("stranger")
	f.issue("analyzer")
	for who, want := range map[string]string{"analyzer": "", "stranger": "PermissionDenied", "h1": "PermissionDenied"} {
		err := f.askAs(who)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", who, err, want)
		}
	}
	var s series
	f.wait(10*time.Second, "questions are counted", func() bool {
		s = f.coordinates()
		return s[`graylink_coordinator_questions_total{result="denied"}`] == 2 && s[`graylink_coordinator_questions_total{result="answered"}`] == 1
	})
}
