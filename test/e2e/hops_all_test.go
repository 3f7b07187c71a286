//go:build all

package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

// limitAnswers gives the switches the kernel's default limits of ICMP errors, and has the core switches drop 30 % of theirs.
func (c *chain) limitAnswers() {
	c.t.Helper()
	for _, sw := range c.l.Topology().Switches {
		commands := []string{"sysctl -q -w net.ipv4.icmp_ratelimit=1000 net.ipv4.icmp_ratemask=6168"}
		if sw.Role == "core" {
			commands = append(commands, "iptables -A OUTPUT -p icmp --icmp-type time-exceeded -m statistic --mode random --probability 0.3 -j DROP")
		}
		for _, text := range commands {
			if out, err := c.l.Command(c.t.Context(), sw.Name, strings.Fields(text)...).CombinedOutput(); err != nil {
				c.t.Fatalf("%s: %s: %v: %s", sw.Name, text, err, out)
			}
		}
	}
}

// openIncident returns the open incident if there is exactly one.
func (c *chain) openIncident(r *replica) (in incident.Incident, ok bool) {
	_, all := c.verdicts(r)
	open := slices.DeleteFunc(all, func(in incident.Incident) bool { return !in.Open })
	if len(open) != 1 {
		return in, false
	}
	return open[0], true
}

// TestHopLimitedProbesInAFabric breaks links of core switches between two pods, which no flow distinguishes from the other link
// of the same switch. The switches have the kernel's default limits of ICMP errors, and the core switches drop 30 % of theirs.
// Hop-limited probes of eight hosts narrow the verdict to the truth under the same identifier, or to nothing where a part of the
// packets is lost and a minute does not decide.
func TestHopLimitedProbesInAFabric(t *testing.T) {
	program(t, "tcpdump")
	program(t, "iptables")
	c := newChainOn(t, "e2ep", "testdata/two-pods.yaml", 1, nil)
	r := c.analyzers[0]
	c.wait(2*time.Minute, "the fabric is innocent", c.innocent)
	c.wait(30*time.Second, "every probe is traced", c.everyPathTraced)
	c.limitAnswers()
	faults := []lab.Fault{
		{Kind: lab.KindBlackhole, Direction: "p1s1:up1->c1:dn1"},
		{Kind: lab.KindBlackhole, Direction: "c2:dn1->p1s2:up1"},
		{Kind: lab.KindLoss, Direction: "c1:dn2->p2s1:up1", Loss: 0.6},
		{Kind: lab.KindLoss, Direction: "p2s2:up1->c2:dn2", Loss: 0.4},
	}
	for _, broken := range faults {
		d, err := fabric.ParseDirection(broken.Direction)
		if err != nil {
			t.Fatal(err)
		}
		broken.At = d.LinkID()
		truth := fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink}
		core := fabric.OwnerOf(d.From)
		if c.g.Switch(core).Role != "core" {
			core = fabric.OwnerOf(d.To)
		}
		id := c.fault(broken)
		began := time.Now()
		var first, last incident.Incident
		c.wait(40*time.Second, "a verdict", func() (ok bool) {
			first, ok = c.openIncident(r)
			return ok
		})
		at := time.Now()
		var captures []func() string
		for _, device := range []string{"dn1", "dn2"} {
			captures = append(captures, c.capture(core, "-i", device, "icmp[icmptype] = icmp-timxceed"))
		}
		done := time.Duration(0)
		for time.Since(at) < 70*time.Second && done == 0 {
			time.Sleep(500 * time.Millisecond)
			var ok bool
			if last, ok = c.openIncident(r); !ok {
				_, all := c.verdicts(r)
				t.Fatalf("%s: not one open verdict: %+v", d, all)
			}
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
		span := time.Since(at)
		answers := 0
		for _, end := range captures {
			answers += strings.Count(end(), "\n")
		}
		t.Logf("%s, %s: %s with %v after %.1f s, %s with %v %.1f s later; asked %+v; %s sent %d answers in %.1f s", broken.Kind, d, first.Element.ID, first.Equivalent, at.Sub(began).Seconds(),
			last.Element.ID, last.Equivalent, done.Seconds(), last.Evidence.Asked, core, answers, span.Seconds())
		if broken.Kind == lab.KindBlackhole && (done == 0 || done > 12*time.Second) {
			t.Errorf("%s: %s with %v, %v after the verdict", d, last.Element.ID, last.Equivalent, done)
		}
		checkHopProbes(t, last.Evidence.Asked, span)
		c.heal(id)
		c.wait(2*time.Minute, "the fabric is innocent again", c.innocent)
	}
}

// checkHopProbes checks that hop-limited probes were asked for, and their numbers against the limits.
func checkHopProbes(t *testing.T, asked []fabric.Asked, span time.Duration) {
	t.Helper()
	perSwitch := map[string]uint64{}
	for _, a := range asked {
		for _, h := range a.Hops {
			if limit := uint64(span.Seconds()) + 5; h.Sent > limit {
				t.Errorf("%s at %s sent %d in %v, want one a second", h.Flow, h.Switch, h.Sent, span)
			}
			perSwitch[h.Switch] += h.Sent
		}
	}
	if len(perSwitch) == 0 {
		t.Errorf("asked %+v, want hop-limited probes", asked)
	}
	for sw, sent := range perSwitch {
		if float64(sent) > 50*(span.Seconds()+5) {
			t.Errorf("%d probes to %s in %v", sent, sw, span)
		}
	}
}
