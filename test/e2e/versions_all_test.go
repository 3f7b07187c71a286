//go:build all

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/lab"
)

// mixed is a chain whose coordinator and agents are those of the last release or of this checkout.
type mixed struct {
	*chain
	release string // its version
	old     string // directory of its programs
	since   time.Time
}

// mix is which programs are those of the last release.
type mix struct {
	coordinator bool
	agents      []string // nodes
}

func (m mix) String() string {
	return fmt.Sprintf("coordinator %s, agents of %d of 8 nodes old", map[bool]string{true: "old", false: "new"}[m.coordinator], len(m.agents))
}

// agentOfRelease starts a node's agent of the last release, which lacks some flags of agentOf.
func (c *mixed) agentOfRelease(node string) {
	c.t.Helper()
	c.bin = c.old
	c.startAgent(node, "--web.advertise-address="+node+":9868", "--clock-bend-file="+c.l.BendFile(node))
}

// agentOfCheckout starts a node's agent of this checkout.
func (c *mixed) agentOfCheckout(node string) {
	c.t.Helper()
	c.bin = bin
	c.agentOf(node)
}

// change replaces the programs that differ between two mixes, one after another. It asserts that the coordinator's replacement
// costs no probe, and returns how many probes were lost towards agents while they were replaced.
func (c *mixed) change(from, to mix) (lost float64) {
	c.t.Helper()
	if from.coordinator != to.coordinator {
		what := fmt.Sprintf("%v: the coordinator's replacement", to)
		base, before := c.base(), c.answering(10)
		stop(c.t, c.coordinator)
		c.bin = bin
		if to.coordinator {
			c.bin = c.old
		}
		c.startCoordinator()
		c.connected(len(c.nodes()))
		c.answering(100)
		c.nothingLost(what, base, before)
	}
	for _, n := range c.nodes() {
		was, is := slices.Contains(from.agents, n), slices.Contains(to.agents, n)
		switch {
		case is && !was:
			lost += c.replaceAgent(to.String(), n, c.agentOfRelease)
		case was && !is:
			lost += c.replaceAgent(to.String(), n, c.agentOfCheckout)
		}
	}
	return lost
}

// falseVerdicts returns the verdicts since the last fault was healed. None is right, since nothing was broken.
func (c *mixed) falseVerdicts() (summaries []string) {
	c.t.Helper()
	for _, r := range c.analyzers {
		_, incidents := c.verdicts(r)
		for i := range incidents {
			if incidents[i].OpenedAt.After(c.since) {
				summaries = append(summaries, r.name+": "+incidents[i].Summary)
			}
		}
	}
	return summaries
}

// broken breaks the fabric, and returns a cell of the table: when the analyzers named the fault.
func (c *mixed) broken(m mix, kind string, seed uint64) string {
	c.t.Helper()
	p := c.planned(kind, seed)
	o := c.strike([]demo.PlannedFault{p}, seed, nil)[0]
	c.since = time.Now()
	if !o.right || len(o.besides) > 0 || len(o.wrong) > 0 || o.resolved == 0 {
		c.t.Errorf("%v: %s at %s: named %v, over after %.1f s; besides %q, wrong %q", m, kind, o.element, o.right, o.resolved, o.besides, o.wrong)
	}
	return fmt.Sprintf("%s: verdict %.1f s, webhook %.1f s, over %.1f s", o.element, o.verdict, o.webhook, o.resolved)
}

// agentVersions asserts that the coordinator counts the agents by version, which that of release 0.1.0 does not.
func (c *mixed) agentVersions(m mix) {
	c.t.Helper()
	if got := c.coordinates().sum(`graylink_coordinator_agent_versions\{version="` + c.release + `"`); !m.coordinator && got != float64(len(m.agents)) {
		c.t.Errorf("%v: the coordinator counts %v agents of %s", m, got, c.release)
	}
}

// TestVersionsInAnyMix: a fabric whose coordinator and agents are those of the last release and of this checkout in six mixes,
// beside an analyzer of each, with the rules of this checkout. In each mix the healthy fabric is innocent, and both analyzers
// name a link that is slow, and then one that loses packets, and nothing else. The changes between the mixes, which go all the
// way round, lose no probe but those towards an agent while it starts, and cause no verdict.
func TestVersionsInAnyMix(t *testing.T) {
	need(t)
	release, old := lastRelease(t)
	c := &mixed{chain: newChain(t, "e2emix", 2), release: release.Version, old: old, since: time.Now()}
	second := c.analyzers[1]
	stop(t, second.cmd)
	second.bin = old
	c.analyze(second)
	c.wait(3*time.Minute, "the network is innocent", c.innocent)
	c.wait(30*time.Second, "every probe is traced", c.everyPathTraced)

	nodes := c.nodes()
	half := []string{nodes[0], nodes[2], nodes[4], nodes[6]} // one behind each leaf
	mixes := []mix{{false, nil}, {false, half}, {false, nodes}, {true, nodes}, {true, half}, {true, nil}}
	table := []string{fmt.Sprintf("| coordinator | agents of %s | healthy | slow link | lossy link | probes lost towards agents that were replaced |", release.Version)}
	at := mixes[0]
	for i, m := range mixes {
		lost := c.change(at, m)
		at = m
		c.agentVersions(m)
		c.wait(time.Minute, m.String()+": the network is innocent", c.innocent)
		c.pass(5, nil)
		verdicts := c.falseVerdicts()
		if len(verdicts) > 0 {
			t.Errorf("%v: verdicts without a fault: %s", m, strings.Join(verdicts, "; "))
		}
		seed := uint64(i + 1)
		row := []string{map[bool]string{true: release.Version, false: "today's"}[m.coordinator], fmt.Sprintf("%d of %d", len(m.agents), len(nodes)), fmt.Sprintf("%d verdicts", len(verdicts)),
			c.broken(m, lab.KindDelay, seed), c.broken(m, lab.KindLoss, seed), fmt.Sprint(lost)}
		t.Log(strings.Join(row, " | "))
		table = append(table, "| "+strings.Join(row, " | ")+" |")
	}
	lost := c.change(at, mixes[0])
	c.wait(time.Minute, "the network is innocent at the end", c.innocent)
	c.pass(5, nil)
	if verdicts := c.falseVerdicts(); len(verdicts) > 0 {
		t.Errorf("back at this checkout: verdicts without a fault: %s", strings.Join(verdicts, "; "))
	}
	t.Logf("back at this checkout: %v probes lost\n%s", lost, strings.Join(table, "\n"))
}
