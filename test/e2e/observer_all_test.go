//go:build all

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/graylink/graylink/test/chaos"
)

// observer watches a chain from outside. What it knows of packets and of processes, it has from the kernel.
type observer struct {
	c       *chain
	at      map[string][]time.Time // of the samples, by program
	usage   map[string][]chaos.Usage
	routine map[string][]float64 // goroutines, as the program publishes them
}

func (c *chain) observe() *observer {
	o := &observer{c: c, at: map[string][]time.Time{}, usage: map[string][]chaos.Usage{}, routine: map[string][]float64{}}
	o.countPackets()
	return o
}

// programs returns the names of Graylink's programs in the chain.
func (o *observer) programs() (names []string) {
	for name, cmd := range o.c.running {
		if strings.HasPrefix(filepath.Base(cmd.Path), "graylink") || slices.ContainsFunc(cmd.Args, func(a string) bool { return strings.HasPrefix(filepath.Base(a), "graylink-") }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// pidOf returns the process of a program. A lab's command is the program itself: ip netns exec replaces itself by it.
func (o *observer) pidOf(name string) int { return o.c.running[name].Process.Pid }

// sample reads the usage of every program once.
func (o *observer) sample() {
	o.c.t.Helper()
	for _, name := range o.programs() {
		u, err := chaos.ReadUsage(o.pidOf(name))
		if err != nil {
			o.c.t.Errorf("%s: %v", name, err)
			continue
		}
		o.at[name], o.usage[name] = append(o.at[name], u.At), append(o.usage[name], u)
		o.routine[name] = append(o.routine[name], o.series(name)["go_goroutines"])
	}
}

// series returns what a program publishes of itself.
func (o *observer) series(name string) series {
	c := o.c
	if i := slices.IndexFunc(c.analyzers, func(r *replica) bool { return r.name == name }); i >= 0 {
		body, _ := c.get("http://"+c.analyzers[i].address+"/metrics", nil)
		return readSeries(bytes.NewReader(body))
	}
	if name == "coordinator" {
		return c.coordinates()
	}
	if _, ok := c.agents[name]; ok {
		return c.agent(name, "/metrics")
	}
	body, _ := c.get("http://127.0.0.1:9871/metrics", func(ctx context.Context, network, addr string) (net.Conn, error) {
		return c.l.DialContext(ctx, name, network, addr)
	})
	return readSeries(bytes.NewReader(body))
}

// trend fits the trend of one value of a program's samples.
func (o *observer) trend(name string, value func(chaos.Usage) float64) (chaos.Trend, bool) {
	var v []float64
	for _, u := range o.usage[name] {
		v = append(v, value(u))
	}
	return chaos.FitTrend(o.at[name], v)
}

// table returns the trends of all programs as a table.
func (o *observer) table() string {
	var b strings.Builder
	b.WriteString("| program | RSS, MB, first and last tenth | peak | MB/h | files | threads | goroutines | cores |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, name := range slices.Sorted(maps.Keys(o.usage)) {
		rss, ok := o.trend(name, rssOf)
		if !ok {
			continue
		}
		files, _ := o.trend(name, filesOf)
		threads, _ := o.trend(name, func(u chaos.Usage) float64 { return float64(u.Threads) })
		routines, _ := chaos.FitTrend(o.at[name], o.routine[name])
		all := o.usage[name]
		first, last := all[0], all[len(all)-1]
		fmt.Fprintf(&b, "| %s | %.1f, %.1f | %.1f | %+.1f | %.0f, %.0f | %.0f, %.0f | %.0f, %.0f | %.3f |\n", name, rss.First, rss.Last, rss.Peak, rss.PerHour, files.First, files.Last,
			threads.First, threads.Last, routines.First, routines.Last, (last.CPU-first.CPU).Seconds()/last.At.Sub(first.At).Seconds())
	}
	return b.String()
}

// rssOf returns the resident memory in MB.
func rssOf(u chaos.Usage) float64 { return float64(u.RSS) / 1e6 }

func filesOf(u chaos.Usage) float64 { return float64(u.Files) }

// pair is two nodes, in the order in which packets travel.
type pair struct{ from, to string }

// packetCount is what the kernel of one node sent to another one, and what the other one's kernel took.
type packetCount struct{ sent, arrived uint64 }

// The kernel counts packets of the port of reflectors whose hop limit lets them reach any node. Those that trace paths have
// a lower one.
const (
	packetTable  = "mangle"
	leastSentTTL = "60"
	leastTTL     = "40" // on arrival
)

// countPackets has the kernel of every node count the probes and replies to and from every other node.
func (o *observer) countPackets() {
	t := o.c.t
	t.Helper()
	for _, n := range o.c.nodes() {
		var rules strings.Builder
		fmt.Fprintf(&rules, "*%s\n", packetTable)
		for _, p := range o.c.nodes() {
			if p == n {
				continue
			}
			for _, a := range o.addresses(p) {
				for _, port := range []string{"--dport", "--sport"} {
					fmt.Fprintf(&rules, "-A OUTPUT -d %s/32 -p udp -m udp %s %d -m ttl --ttl-gt %s -m comment --comment %s\n", a, port, stampPort, leastSentTTL, p)
					fmt.Fprintf(&rules, "-A INPUT -s %s/32 -p udp -m udp %s %d -m ttl --ttl-gt %s -m comment --comment %s\n", a, port, stampPort, leastTTL, p)
				}
			}
		}
		rules.WriteString("COMMIT\n")
		cmd := o.c.l.Command(t.Context(), n, "iptables-restore", "--noflush")
		cmd.Stdin = strings.NewReader(rules.String())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("iptables-restore at %s: %v: %s", n, err, out)
		}
	}
}

// stampPort is the UDP port of reflectors, RFC 8762.
const stampPort = 862

// addresses returns the addresses of a node's NICs.
func (o *observer) addresses(node string) (out []string) {
	for _, x := range o.c.l.Topology().Nodes {
		for _, nic := range x.NICs {
			if x.Name == node {
				out = append(out, o.c.g.ProbeAddress(node+"/"+nic.Device).String())
			}
		}
	}
	return out
}

// packets reads what was counted, at all nodes at the same time.
func (o *observer) packets() map[pair]packetCount {
	t := o.c.t
	t.Helper()
	nodes := o.c.nodes()
	texts, errs := make([][]byte, len(nodes)), make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() {
			texts[i], errs[i] = o.c.l.Command(t.Context(), n, "iptables-save", "-c", "-t", packetTable).Output()
		})
	}
	wg.Wait()
	out := map[pair]packetCount{}
	for i, n := range nodes {
		if errs[i] != nil {
			t.Fatalf("iptables-save at %s: %v", n, errs[i])
		}
		for line := range strings.Lines(string(texts[i])) {
			count, rule, ok := strings.Cut(strings.TrimPrefix(line, "["), ":")
			packets, err := strconv.ParseUint(count, 10, 64)
			_, peer, commented := strings.Cut(rule, "--comment ")
			if !ok || err != nil || !commented {
				continue
			}
			peer, _, _ = strings.Cut(strings.TrimSpace(peer), " ")
			if strings.Contains(rule, "-A OUTPUT") {
				x := out[pair{n, peer}]
				x.sent += packets
				out[pair{n, peer}] = x
			} else {
				x := out[pair{peer, n}]
				x.arrived += packets
				out[pair{peer, n}] = x
			}
		}
	}
	return out
}

// dropped returns the datagrams that the sockets of a node's agent had no room for, by its kernel.
func (o *observer) dropped(node string) (n uint64) {
	t := o.c.t
	t.Helper()
	for _, file := range []string{"udp", "udp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", o.pidOf(node), file))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) < 2 || fields[0] == "sl" || strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", trafficPort)) {
				continue
			}
			drops, err := strconv.ParseUint(fields[len(fields)-1], 10, 64)
			if err != nil {
				t.Fatalf("%s: %s: drops of %q: %v", node, file, line, err)
			}
			n += drops
		}
	}
	return n
}

// accounts is what agents and kernels have counted up to a moment.
type accounts struct {
	packets map[pair]packetCount
	lost    map[pair]float64 // by the agents, of either direction
	dropped map[string]uint64
}

// lossKnown is the time after which an agent counts a probe without an answer as lost, and a margin.
const lossKnown = 4 * time.Second

// onTheWay is the longest time that a packet is on the way, with what faults add.
const onTheWay = 20 * time.Millisecond

// pause stops a program, and returns how it goes on.
func pause(cmd *exec.Cmd) (undo func()) {
	_ = cmd.Process.Signal(syscall.SIGSTOP)
	return func() { _ = cmd.Process.Signal(syscall.SIGCONT) }
}

// account reads what agents and kernels have counted. The agents stand still meanwhile, so that nothing is on the way, and the
// counts of all kernels are of one moment. Probes without an answer are known to be lost afterwards.
func (o *observer) account() accounts {
	var goOn []func()
	for _, n := range o.c.nodes() {
		goOn = append(goOn, pause(o.c.agents[n]))
	}
	time.Sleep(onTheWay)
	packets := o.packets()
	for _, undo := range goOn {
		undo()
	}
	a := accounts{packets: packets, lost: map[pair]float64{}, dropped: map[string]uint64{}}
	for _, n := range o.c.nodes() {
		a.dropped[n] = o.dropped(n)
	}
	time.Sleep(lossKnown)
	for id, e := range o.c.edges() {
		src, rest, _ := strings.Cut(id, ">")
		dst, _, _ := strings.Cut(rest, "#")
		a.lost[pair{nodeOf(src), nodeOf(dst)}] += e.lost
	}
	return a
}

func nodeOf(nic string) string {
	node, _, _ := strings.Cut(nic, "/")
	return node
}

// ledger compares what agents count as lost with what kernels did not deliver.
type ledger struct {
	probes        uint64  // packets that kernels sent
	lost          float64 // by the agents
	missing       uint64  // packets that were sent and did not arrive
	dropped       uint64  // that arrived, and for which a socket had no room
	lostByUs      float64 // counted as lost, though all packets of the pair arrived
	pairs, judged int
	wrong         []string
}

// settle compares two accounts. Pairs with a node that left out holds are not judged.
func settle(before, after accounts, leftOut map[string]bool) (l ledger) {
	pairs := map[pair]bool{}
	for p := range after.packets {
		pairs[p] = true
	}
	for _, p := range slices.SortedFunc(maps.Keys(pairs), func(a, b pair) int { return strings.Compare(a.from+" "+a.to, b.from+" "+b.to) }) {
		there, back := pair{p.from, p.to}, pair{p.to, p.from}
		l.pairs++
		if leftOut[p.from] || leftOut[p.to] {
			continue
		}
		l.judged++
		missing := uint64(0)
		for _, way := range []pair{there, back} {
			sent, arrived := after.packets[way].sent-before.packets[way].sent, after.packets[way].arrived-before.packets[way].arrived
			if sent > arrived {
				missing += sent - arrived
			}
			if way == there {
				l.probes += sent
				l.missing += sent - min(sent, arrived)
			}
		}
		lost := after.lost[p] - before.lost[p]
		l.lost += lost
		if more := lost - float64(missing); more > 0 {
			l.lostByUs += more
			l.wrong = append(l.wrong, fmt.Sprintf("%s to %s: %.0f lost by the agents, %d by the fabric", p.from, p.to, lost, missing))
		}
	}
	for n := range after.dropped {
		if !leftOut[n] {
			l.dropped += after.dropped[n] - before.dropped[n]
		}
	}
	return l
}

func (l ledger) String() string {
	return fmt.Sprintf("%d of %d pairs of nodes judged: %d packets sent, %d did not arrive, %.0f probes counted as lost, %.0f of them lost by us; sockets had no room for %d", l.judged, l.pairs, l.probes, l.missing,
		l.lost, l.lostByUs, l.dropped)
}
