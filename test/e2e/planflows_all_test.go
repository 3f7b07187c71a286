//go:build all

package e2e

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/internal/plan"
)

const (
	planFlowFabric = "testdata/planflows-fabric.yaml"
	flowsOfJob     = 8
	rocePort       = 4791
	flowPayload    = 1400             // octets
	flowFrame      = flowPayload + 42 // with the headers of UDP, IPv4 and Ethernet
	// nicGoodput is what a NIC of planFlowFabric sends, bit/s of payload: the planner's share of its 20 Mb/s.
	nicGoodput = 20_000_000 * plan.DefaultGoodput
	flowDraws  = 10
)

// flowPackets is the number of packets that a flow sends in ten seconds, at an eighth of its NIC.
var flowPackets = int(math.Round(10 * nicGoodput / flowsOfJob / (8 * flowPayload)))

// flowJobs are the jobs of the test, one on each side.
var flowJobs = []struct{ name, src, dst string }{
	{"left", "h1/eth1", "h3/eth1"},
	{"right", "h2/eth2", "h4/eth2"},
}

// shape gives each port the rate of its link. A NIC sends at the rate of its goodput. Its queue holds all packets of a run, so
// that the kernel paces them, and the offered load does not depend on when a process runs.
func (l planLab) shape() {
	l.t.Helper()
	for _, link := range l.Topology().Links {
		for _, end := range []string{link.A, link.B} {
			owner := fabric.OwnerOf(end)
			rate, burst, limit := link.SpeedGbps*1e9, 16_000, 64_000
			if fabric.IsNIC(end) {
				rate, burst, limit = rate*plan.DefaultGoodput*flowFrame/flowPayload, 16_000, 2*flowsOfJob*flowPackets*flowFrame
			}
			l.inNetns(owner, fmt.Sprintf("tc qdisc replace dev %s root tbf rate %.0fbit burst %d limit %d", end[len(owner)+1:], rate, burst, limit))
		}
	}
}

// countPackets makes the kernel of a node count the packets of flows, and drop them.
func (l planLab) countPackets(node string, ports []uint16) {
	l.t.Helper()
	var b strings.Builder
	b.WriteString("*mangle\n")
	for _, port := range ports {
		fmt.Fprintf(&b, "-A PREROUTING -p udp --sport %d --dport %d -j DROP\n", port, rocePort)
	}
	b.WriteString("COMMIT\n")
	cmd := l.Command(l.t.Context(), node, "iptables-restore")
	cmd.Stdin = strings.NewReader(b.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		l.t.Fatalf("iptables-restore at %s: %v: %s", node, err, out)
	}
}

// packetsOf returns the packets of each flow that have arrived at a node since countPackets.
func (l planLab) packetsOf(node string) map[uint16]int {
	l.t.Helper()
	text, err := l.Command(l.t.Context(), node, "iptables-save", "-c", "-t", "mangle").Output()
	if err != nil {
		l.t.Fatal(err)
	}
	out := map[uint16]int{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		at := slices.Index(fields, "--sport")
		if at < 0 {
			continue
		}
		port, err1 := strconv.ParseUint(fields[at+1], 10, 16)
		count, _, _ := strings.Cut(strings.TrimPrefix(fields[0], "["), ":")
		n, err2 := strconv.Atoi(count)
		if err1 != nil || err2 != nil {
			l.t.Fatalf("iptables-save: %q", line)
		}
		out[uint16(port)] = n
	}
	return out
}

// sendBuffer bounds what the kernel keeps of a flow, octets: more than flowPackets packets with the kernel's own part of each.
const sendBuffer = 16 << 20

// bufferedSender opens a socket whose packets of a whole run the kernel keeps. The caller closes it, also after an error.
func (l planLab) bufferedSender(node, address string) (net.PacketConn, error) {
	c, err := l.ListenPacket(l.t.Context(), node, "udp4", address)
	if err != nil {
		return nil, err
	}
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err == nil {
		var set error
		err = raw.Control(func(fd uintptr) {
			// The limit of net.core.wmem_max does not hold for it.
			set = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUFFORCE, sendBuffer)
		})
		err = errors.Join(err, set)
	}
	return c, err
}

// queued reports whether packets wait at a NIC.
func (l planLab) queued(nic string) bool {
	l.t.Helper()
	owner := fabric.OwnerOf(nic)
	text, err := l.Command(l.t.Context(), owner, "tc", "-s", "qdisc", "show", "dev", nic[len(owner)+1:]).Output()
	if err != nil || !strings.Contains(string(text), "backlog") {
		l.t.Fatalf("tc at %s: %v: %s", nic, err, text)
	}
	return !strings.Contains(string(text), " 0p ")
}

// sendFlows gives flowPackets packets of each port to the kernel. Each round of one packet for each port has
// another order. In one order, a full queue would drop the packets of always the same flow.
func (l planLab) sendFlows(src, dst string, ports []uint16) error {
	g := fabric.NewGraph(l.Topology())
	to := &net.UDPAddr{IP: g.ProbeAddress(dst).AsSlice(), Port: rocePort}
	var senders []net.PacketConn
	for _, port := range ports {
		c, err := l.bufferedSender(fabric.OwnerOf(src), fmt.Sprintf("%s:%d", g.ProbeAddress(src), port))
		if c != nil {
			defer c.Close()
		}
		if err != nil {
			return err
		}
		if err := c.SetWriteDeadline(time.Now().Add(5 * time.Minute)); err != nil {
			return err
		}
		senders = append(senders, c)
	}
	payload := make([]byte, flowPayload)
	rng := rand.New(rand.NewPCG(uint64(ports[0]), 2))
	for range flowPackets {
		rng.Shuffle(len(senders), func(a, b int) { senders[a], senders[b] = senders[b], senders[a] })
		for _, c := range senders {
			if _, err := c.WriteTo(payload, to); err != nil {
				return err
			}
		}
	}
	return nil
}

// slowestTimesEight runs both jobs, and returns for each one what its slowest flow received, times the number of flows, in
// bit/s. A flow's rate is its share of the NIC's goodput times the share of its packets that arrived.
func (l planLab) slowestTimesEight(ports map[string][]uint16) map[string]float64 {
	l.t.Helper()
	for _, j := range flowJobs {
		l.countPackets(fabric.OwnerOf(j.dst), ports[j.name])
	}
	began := time.Now()
	var senders sync.WaitGroup
	for _, j := range flowJobs {
		senders.Go(func() {
			if err := l.sendFlows(j.src, j.dst, ports[j.name]); err != nil {
				l.t.Errorf("%s: %v", j.name, err)
			}
		})
	}
	senders.Wait()
	out := map[string]float64{}
	for _, j := range flowJobs {
		received := l.packetsOf(fabric.OwnerOf(j.dst))
		for { // until what is in the queues has arrived
			time.Sleep(500 * time.Millisecond)
			more := l.packetsOf(fabric.OwnerOf(j.dst))
			if !l.queued(j.src) && fmt.Sprint(more) == fmt.Sprint(received) {
				break
			}
			received = more
		}
		slowest := flowPackets
		for _, port := range ports[j.name] {
			slowest = min(slowest, received[port])
		}
		out[j.name] = nicGoodput * float64(slowest) / float64(flowPackets)
	}
	l.t.Logf("slowest flow times 8, Mb/s: left %.2f, right %.2f; all has arrived after %v", out["left"]/1e6, out["right"]/1e6, time.Since(began).Round(time.Second/10))
	return out
}

// makePlan traces the catalogue and has a plan made of it. It returns the plan and its file.
func (l planLab) makePlan(args ...string) (*plan.Plan, string) {
	l.t.Helper()
	dir := l.t.TempDir()
	jobs, catalogue := "jobs:\n", []string{"plan", "catalogue", "--lab", l.Name(), "--qps", strconv.Itoa(flowsOfJob)}
	for _, j := range flowJobs {
		jobs += fmt.Sprintf("  - {job: %s, qps: %d, flows: [{src: %s, dst: %s}]}\n", j.name, flowsOfJob, j.src, j.dst)
		catalogue = append(catalogue, "--pair", j.src+">"+j.dst)
	}
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			l.t.Fatal(err)
		}
		return path
	}
	run := func(args []string) string {
		stdout, stderr, code := graylink(l.t, args...)
		if code != 0 {
			l.t.Fatalf("graylink %v: exit code %d: %s", args, code, stderr)
		}
		return stdout
	}
	text := run(append([]string{"plan", "--topology", planFlowFabric, "--jobs", write("jobs.yaml", jobs),
		"--catalogue", write("paths.jsonl", run(catalogue)), "--format", "json"}, args...))
	p, err := plan.Read(strings.NewReader(text))
	if err != nil {
		l.t.Fatal(err)
	}
	return p, write("plan.json", text)
}

// plannedPorts returns the ports of a plan by job.
func plannedPorts(p *plan.Plan) map[string][]uint16 {
	out := map[string][]uint16{}
	for _, a := range p.Assignments {
		out[a.Job] = append(out[a.Job], a.SPort)
	}
	return out
}

// checkIdeal runs a plan, and checks that each job reaches 95 % of its ideal rate.
func (l planLab) checkIdeal(what string, p *plan.Plan) (worst float64) {
	l.t.Helper()
	got := l.slowestTimesEight(plannedPorts(p))
	worst = nicGoodput
	for _, j := range p.Jobs {
		if j.IdealGbps == nil {
			l.t.Fatalf("%s: job %s has no ideal rate", what, j.Job)
		}
		worst = min(worst, got[j.Job])
		if ratio := got[j.Job] / 1e9 / *j.IdealGbps; ratio < 0.95 {
			l.t.Errorf("%s: the slowest flow of %s times 8 is %.1f %% of the ideal %v Gb/s, want 95 %%", what, j.Job, 100*ratio, *j.IdealGbps)
		}
	}
	return worst
}

// TestPlanFlows: the slowest flow of two jobs gets 95 % of the ideal with the ports of a plan, also after an uplink was lost and
// one new plan, and 1.3 times what it gets with ports that are drawn. Eight flows on five uplinks, each of which carries two of them,
// collide in 97 of 100 draws of two jobs, and four uplinks suffice. With four uplinks, three would be left for eight flows,
// and no plan of whole flows reaches 95 % there.
func TestPlanFlows(t *testing.T) {
	const name = "e2eflows"
	l := planLab{fabricOf(t, name, planFlowFabric), t}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		clean(t, name)
	})
	l.shape()
	var drawn []float64
	for draw := range flowDraws {
		rng := rand.New(rand.NewPCG(uint64(draw), 1))
		ports := map[string][]uint16{}
		for _, j := range flowJobs {
			for _, n := range rng.Perm(1<<16 - plan.FirstRoCEPort)[:flowsOfJob] {
				ports[j.name] = append(ports[j.name], uint16(plan.FirstRoCEPort+n))
			}
		}
		got := l.slowestTimesEight(ports)
		drawn = append(drawn, min(got["left"], got["right"]))
	}
	slices.Sort(drawn)
	median := (drawn[flowDraws/2-1] + drawn[flowDraws/2]) / 2

	p, file := l.makePlan()
	planned := l.checkIdeal("plan", p)
	t.Logf("median of the draws %.2f Mb/s, planned %.2f Mb/s", median/1e6, planned/1e6)
	if planned < 1.3*median {
		t.Errorf("planned %.2f Mb/s, want 1.3 times the median of the draws, %.2f Mb/s", planned/1e6, median/1e6)
	}

	d, err := fabric.ParseDirection(p.Assignments[0].Links[1])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.AddFault(t.Context(), lab.Fault{Kind: lab.KindLinkDown, At: d.LinkID()}); err != nil {
		t.Fatal(err)
	}
	again, _ := l.makePlan("--previous", file, "--exclude", d.LinkID())
	l.checkIdeal("after the loss of "+d.LinkID(), again)
	if before, after := plannedPorts(p)["right"], plannedPorts(again)["right"]; fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("ports of the job that does not use the lost link: %v, and %v before", after, before)
	}
}
