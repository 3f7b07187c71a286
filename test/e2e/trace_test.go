package e2e

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/unix"
)

// The whole of TestTraceBudget, with the default budget:
// go test ./test/e2e -run TestTraceBudget -v -trace.span 60s -trace.budget 50
// The small one has a budget that is less than what is wanted of every switch.
var (
	traceSpan   = flag.Duration("trace.span", 5*time.Second, "how long TestTraceBudget asks for traces")
	traceBudget = flag.Int("trace.budget", 20, "packets a second that a node of TestTraceBudget may ask of a switch")
)

const (
	tracePort, traceSource = 862, 49152
	ample                  = 1000 // packets a second and switch, where budgets are not what is tested
)

// tracers are agents inside the test's process, in a lab.
type tracers struct {
	t       *testing.T
	lab     *lab.Lab
	g       *fabric.Graph
	flows   int
	budget  int                      // packets a second that a node may request from a switch
	engines map[string]*probe.Engine // by node
	truth   map[fabric.Flow]string   // the kernel's own choice
}

func newTracers(t *testing.T, file, name string, flows, budget int) *tracers {
	t.Helper()
	l := fabricOf(t, name, file)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		clean(t, name)
	})
	tr := &tracers{t: t, lab: l, g: fabric.NewGraph(l.Topology()), flows: flows, budget: budget, truth: map[fabric.Flow]string{}}
	for _, src := range tr.g.NICIDs() {
		for _, dst := range tr.g.NICIDs() {
			if fabric.OwnerOf(src) == fabric.OwnerOf(dst) {
				continue
			}
			for flow := range flows {
				e := fabric.Flow{Src: src, Dst: dst, Number: flow}
				tr.truth[e] = tr.kernel(e)
				e.Reply = true
				tr.truth[e] = tr.kernel(e)
			}
		}
	}
	return tr
}

func (tr *tracers) kernel(e fabric.Flow) string {
	tr.t.Helper()
	from, to := e.Endpoints()
	sport, dport := uint16(traceSource+e.Number), uint16(tracePort)
	if e.Reply {
		sport, dport = dport, sport
	}
	p, err := tr.lab.KernelPath(tr.t.Context(), tr.g.ProbeAddress(from), tr.g.ProbeAddress(to), udp, sport, dport)
	if err != nil {
		tr.t.Fatal(err)
	}
	return p.CanonicalKey()
}

// start begins anew, with agents that know nothing.
func (tr *tracers) start() (stop func()) {
	tr.t.Helper()
	tr.engines = map[string]*probe.Engine{}
	for i := range tr.g.Topo.Nodes {
		node := &tr.g.Topo.Nodes[i]
		c := &probe.Config{Node: node.Name, Cadence: 10 * time.Second, ReplyTimeout: 10 * time.Second,
			Stamp: probe.StampConfig{Port: tracePort, SourcePort: traceSource, Classes: []probe.ClassConfig{{}}},
			Trace: probe.TraceConfig{PacketsPerSecond: 2000, PacketsPerSwitch: tr.budget, Concurrency: 64}}
		for _, nic := range tr.g.NICIDs() {
			if fabric.OwnerOf(nic) == node.Name {
				c.NICs = append(c.NICs, probe.NICConfig{NIC: nic, Address: tr.g.ProbeAddress(nic), Timestamps: probe.TimestampsKernel})
			} else {
				c.Peers = append(c.Peers, probe.PeerConfig{NIC: nic, Address: tr.g.ProbeAddress(nic)})
			}
		}
		for e := range tr.truth {
			cfg := probe.EdgeConfig{Src: e.Src, Dst: e.Dst, Flow: e.Number, Tier: 2, Cadence: c.Cadence}
			switch {
			case e.Reply:
			case fabric.OwnerOf(e.Src) == node.Name:
				c.Edges = append(c.Edges, cfg)
			case fabric.OwnerOf(e.Dst) == node.Name:
				c.Answers = append(c.Answers, cfg)
			}
		}
		netns, err := tr.lab.NetnsOf(node.Name)
		if err != nil {
			tr.t.Fatal(err)
		}
		if err := unix.InNetns(netns, func() error {
			e, err := probe.New(c, probe.HostDeps(), slog.New(slog.DiscardHandler))
			if err != nil {
				return err
			}
			e.Start()
			tr.engines[node.Name] = e
			return nil
		}); err != nil {
			tr.t.Fatal(err)
		}
	}
	return func() {
		for _, e := range tr.engines {
			if err := e.Close(); err != nil {
				tr.t.Error(err)
			}
		}
	}
}

// verdicts counts the outcomes of the requested traces.
type verdicts struct {
	asked, known, filled, wrong int
	notes                       map[string]int // by their beginning
}

// ask traces the edges that choose accepts, all nodes at a time, as an analyzer would, and compares the answers with
// the kernel's own choice.
func (tr *tracers) ask(choose func(fabric.Flow) bool) verdicts {
	tr.t.Helper()
	byNode := map[string][]fabric.Flow{}
	for e := range tr.truth {
		if from, _ := e.Endpoints(); choose(e) {
			byNode[fabric.OwnerOf(from)] = append(byNode[fabric.OwnerOf(from)], e)
		}
	}
	ctx, cancel := context.WithTimeout(tr.t.Context(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	v := verdicts{notes: map[string]int{}}
	var wg sync.WaitGroup
	for node, edges := range byNode {
		wg.Go(func() {
			paths, err := tr.engines[node].TraceFlows(ctx, edges)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				tr.t.Errorf("%s: %v", node, err)
				return
			}
			for _, p := range paths {
				tr.judge(&v, p)
			}
		})
	}
	wg.Wait()
	return v
}

func (tr *tracers) judge(v *verdicts, p probe.TracedPath) {
	from, to := p.Edge.Endpoints()
	raw := fabric.Trace{Edge: p.Edge.String(), State: p.State, TracedAt: p.TracedAt, Reached: p.Reached, Balanced: p.Balanced}
	holes := false
	for _, h := range p.Hops {
		raw.Hops = append(raw.Hops, fabric.RawHop{TTL: h.TTL, Address: h.Address, Interface: h.Incoming})
		holes = holes || !h.Address.IsValid()
	}
	r := fabric.ResolveTrace(tr.g, from, to, raw)
	v.asked++
	if p.Balanced {
		tr.t.Errorf("%s: balanced per packet: %q", p.Edge, p.Notes)
	}
	for _, n := range p.Notes {
		_, n, _ = strings.Cut(n, ": ")
		n, _, _ = strings.Cut(n, ": ")
		v.notes[n]++
	}
	if r.State != fabric.PathValid {
		return
	}
	v.known++
	if holes {
		v.filled++
	}
	if r.Path.CanonicalKey() != tr.truth[p.Edge] {
		v.wrong++
		tr.t.Errorf("%s: traced %q (%v), the kernel sends it %q", p.Edge, r.Path.CanonicalKey(), p.Notes, tr.truth[p.Edge])
	}
}

// expired returns how many packets expired at a switch, answered or not, and how many of them it answered.
func (tr *tracers) expired(sw string) (all, answered int) {
	tr.t.Helper()
	netns, err := tr.lab.NetnsOf(sw)
	if err != nil {
		tr.t.Fatal(err)
	}
	if err := unix.InNetns(netns, func() error {
		b, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		all, answered = snmp(string(b), "Ip", "InHdrErrors"), snmp(string(b), "Icmp", "OutTimeExcds")
		return nil
	}); err != nil {
		tr.t.Fatal(err)
	}
	return all, answered
}

// snmp reads a counter of /proc/net/snmp: a line of names, then one of values.
func snmp(text, group, name string) int {
	var names []string
	for _, line := range strings.Split(text, "\n") {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || f[0] != group+":":
		case names == nil:
			names = f
		default:
			for i, n := range names {
				if n == name {
					v, _ := strconv.Atoi(f[i])
					return v
				}
			}
		}
	}
	return -1
}

func (tr *tracers) limitICMP(sw string, settings map[string]string) {
	tr.t.Helper()
	netns, err := tr.lab.NetnsOf(sw)
	if err != nil {
		tr.t.Fatal(err)
	}
	if err := unix.InNetns(netns, func() error {
		for k, v := range settings {
			if err := os.WriteFile(filepath.Join("/proc/sys/net/ipv4", k), []byte(v), 0o644); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		tr.t.Fatal(err)
	}
}

// TestTraceBudget requests the paths of 504 edges every second while a spine reports to each host ten expired packets
// a second and to all of them fifty. Every path that is reported is the kernel's, none is taken for balanced, and no
// switch gets more than the nodes' budgets.
func TestTraceBudget(t *testing.T) {
	const flows = 9 // 8 nodes x 7 peers x 9
	tr := newTracers(t, "../../deploy/lab/demo.yaml", "e2et", flows, *traceBudget)
	// icmp(7): milliseconds between messages to one destination; the mask's bit
	// 11 is time exceeded.
	tr.limitICMP("spine1", map[string]string{"icmp_ratelimit": "100", "icmp_ratemask": strconv.Itoa(1 << 11), "icmp_msgs_per_sec": "50", "icmp_msgs_burst": "10"})
	switches := map[string][2]int{}
	for _, s := range tr.g.Topo.Switches {
		all, answered := tr.expired(s.Name)
		switches[s.Name] = [2]int{all, answered}
	}
	stop := tr.start()
	began := time.Now()
	var total, last verdicts
	for time.Since(began) < *traceSpan {
		at := time.Now()
		v := tr.ask(func(e fabric.Flow) bool { return !e.Reply })
		took := time.Since(at)
		t.Logf("%d asked in %v: %.0f edges/s; %d known, %d of them with a hop filled in; notes %v", v.asked, took.Round(time.Millisecond), float64(v.asked)/took.Seconds(), v.known, v.filled, v.notes)
		last = v
		total.asked += v.asked
		total.known += v.known
		total.wrong += v.wrong
		time.Sleep(time.Until(at.Add(time.Second)))
	}
	took := time.Since(began)
	stop()
	t.Logf("%.0f edges/s asked, %.0f known, %d wrong", float64(total.asked)/took.Seconds(), float64(total.known)/took.Seconds(), total.wrong)
	if last.known < last.asked/2 {
		t.Errorf("%d of %d known at last, want half at least", last.known, last.asked)
	}
	for _, s := range tr.g.Topo.Switches {
		all, answered := tr.expired(s.Name)
		all, answered = all-switches[s.Name][0], answered-switches[s.Name][1]
		// A node begins with a fifth of a second's packets for each of a switch's
		// ports, until it has learnt that they are of one.
		budget := len(tr.engines) * int(float64(*traceBudget)*(took.Seconds()+3.0/5))
		t.Logf("%s: %d packets ended there, %.0f/s, %d answered; the budget of %d nodes is %d", s.Name, all, float64(all)/took.Seconds(), answered, len(tr.engines), budget)
		if all > budget {
			t.Errorf("%s: %d packets ended there, the budget is %d", s.Name, all, budget)
		}
	}
}

// TestTracesPastMuteSwitches mutes each switch in turn, for agents that never had an answer from it and for agents
// that had: no path is wrong.
func TestTracesPastMuteSwitches(t *testing.T) {
	for i, file := range muteTopologies {
		t.Run(filepath.Base(file), func(t *testing.T) {
			tr := newTracers(t, file, fmt.Sprintf("e2em%d", i), 1, ample)
			all := func(fabric.Flow) bool { return true }
			for n, s := range tr.g.Topo.Switches {
				if s.Role == fabric.Leaf && n > len(tr.g.Topo.Switches)/2 {
					continue // one leaf is as the other; time is short
				}
				id, err := tr.lab.AddFault(t.Context(), lab.Fault{Kind: lab.KindMute, At: s.Name})
				if err != nil {
					t.Fatal(err)
				}
				stop := tr.start()
				v := tr.ask(all)
				stop()
				t.Logf("%s mute: %d asked, %d known, %d of them with a hop filled in, %d wrong; notes %v", s.Name, v.asked, v.known, v.filled, v.wrong, v.notes)
				if err := tr.lab.ClearFault(t.Context(), id); err != nil {
					t.Fatal(err)
				}
			}
			defer tr.start()()
			if v := tr.ask(all); v.known != v.asked {
				t.Errorf("%d of %d known though all switches answer; notes %v", v.known, v.asked, v.notes)
			}
			spine := ""
			for _, s := range tr.g.Topo.Switches {
				if s.Role == fabric.Spine {
					spine = s.Name
				}
			}
			if _, err := tr.lab.AddFault(t.Context(), lab.Fault{Kind: lab.KindMute, At: spine}); err != nil {
				t.Fatal(err)
			}
			v := tr.ask(all)
			t.Logf("%s falls mute: %d asked, %d known, %d wrong; notes %v", spine, v.asked, v.known, v.wrong, v.notes)
			if v.known != v.asked {
				t.Errorf("%d of %d known after %s fell mute, want as many as before", v.known, v.asked, spine)
			}
		})
	}
}
