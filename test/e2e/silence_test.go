package e2e

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

var (
	silenceSpan = flag.Duration("silence.span", silenceSpanDefault, "how long TestAlerts/silence listens; make silence does for an hour")
	trafficTo   = flag.String("traffic.to", "", "be a sender of cross traffic to these UDP addresses, separated by commas, and to nothing else")
)

// Cross traffic of a fabric that is well: every host sends bursts, as the steps of a
// training do, and far less than any port passes.
const (
	trafficPort  = 30999
	trafficEvery = 50 * time.Millisecond // between two bursts
	trafficBurst = 8                     // packets to each peer
	trafficSize  = 1400                  // octets
	// trafficLeast is by how much more all ports of switches together send at least, octets per
	// second: what 8 hosts send to 2 peers each, though two or three ports pass it on.
	trafficLeast = 8 * 2 * trafficBurst * trafficSize * int(time.Second/trafficEvery)
)

// traffic sends until it is stopped. A process of this program runs it with -traffic.to.
func traffic(to string) error {
	// A socket receives the packets, though nothing reads them. Otherwise every packet is answered.
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{Port: trafficPort})
	if err != nil {
		return err
	}
	defer conn.Close()
	var peers []*net.UDPAddr
	for _, a := range strings.Split(to, ",") {
		p, err := net.ResolveUDPAddr("udp4", a)
		if err != nil {
			return err
		}
		peers = append(peers, p)
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, os.Interrupt)
	tick := time.NewTicker(trafficEvery)
	defer tick.Stop()
	payload := make([]byte, trafficSize)
	for {
		select {
		case <-end:
			return nil
		case <-tick.C:
			for range trafficBurst {
				for _, p := range peers {
					// A route may be missing for a moment: the packet is not sent.
					_, _ = conn.WriteToUDP(payload, p)
				}
			}
		}
	}
}

// crossTraffic lets every host send to two others behind other leaves, and returns how it ends.
func (c *chain) crossTraffic() (end func()) {
	c.t.Helper()
	self, err := os.Executable()
	if err != nil {
		c.t.Fatal(err)
	}
	nodes := c.l.Topology().Nodes
	var running []*exec.Cmd
	for i, n := range nodes {
		var to []string
		for _, far := range []int{2, 5} { // two hosts are behind each leaf
			peer := nodes[(i+far)%len(nodes)]
			to = append(to, fmt.Sprintf("%s:%d", c.g.ProbeAddress(peer.Name+"/"+peer.NICs[0].Device), trafficPort))
		}
		running = append(running, c.start(c.l.Command(c.t.Context(), n.Name, self, "-traffic.to="+strings.Join(to, ",")), "traffic of "+n.Name))
	}
	return func() {
		for _, cmd := range running {
			stop(c.t, cmd)
		}
	}
}

// disturbance is something that happens to Graylink, and not to the fabric.
type disturbance struct {
	at   float64 // of the span
	what string
	do   func()
}

// silence: a fabric that is well, with cross traffic, is not spoken of, whatever happens to
// agents, scrapes and analyzers. An agent restarts every five minutes at least.
func (c *chain) silence() {
	t := c.t
	began := time.Now()
	const sent = `sum(rate(fabric_switch_port_transmit_bytes_total[10s]))`
	idle, err := c.value(sent)
	if err != nil {
		t.Fatalf("what switches send: %v", err)
	}
	end := c.crossTraffic()
	defer end()
	agent := func(node string, how syscall.Signal) func() {
		return func() {
			cmd := c.agents[node]
			if err := cmd.Process.Signal(how); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			c.agentOf(node)
		}
	}
	plan := []disturbance{
		{0.10, "the agent of h3 restarts", agent("h3", syscall.SIGTERM)},
		{0.25, "no scrapes for 4 s", func() {
			c.gap.Store(true)
			time.AfterFunc(4*time.Second, func() { c.gap.Store(false) })
		}},
		{0.45, "the agent of h6 is killed and restarts", agent("h6", syscall.SIGKILL)},
		{0.60, "all analyzers restart", func() {
			for _, r := range c.analyzers {
				stop(t, r.cmd)
			}
			for _, r := range c.analyzers {
				c.analyze(r)
			}
		}},
	}
	span := *silenceSpan
	nodes := c.nodes()
	for i, at := 0, 5*time.Minute; at < span; i, at = i+1, at+5*time.Minute {
		plan = append(plan, disturbance{float64(at) / float64(span), "the agent of " + nodes[i%len(nodes)] + " restarts", agent(nodes[i%len(nodes)], syscall.SIGTERM)})
	}
	verdicts := map[string]fabric.Verdict{}
	heard := func() (n int) {
		for _, m := range c.messages(began) {
			if m.ofFabric() {
				n++
			}
		}
		return n
	}
	looks, innocent := 0, 0
	said := began
	for done := 0; time.Since(began) < span || done < len(plan); {
		for i := range plan {
			if d := &plan[i]; d.do != nil && time.Since(began) >= time.Duration(d.at*float64(span)) {
				t.Logf("%6.0f s  %s", time.Since(began).Seconds(), d.what)
				d.do()
				d.do = nil
				done++
			}
		}
		for _, r := range c.analyzers {
			_, incidents := c.verdicts(r)
			for _, in := range incidents {
				if _, known := verdicts[in.ID]; !known && in.OpenedAt.After(began) {
					verdicts[in.ID] = in.Verdict
					t.Errorf("%6.0f s  %s: %s", time.Since(began).Seconds(), r.name, in.Summary)
				}
			}
		}
		if looks++; c.innocent() {
			innocent++
		}
		if every := max(10*time.Second, span/60); time.Since(said) >= every {
			said = time.Now()
			t.Logf("%6.0f s  innocent in %d of %d looks, %d verdicts, %d messages about the fabric", time.Since(began).Seconds(), innocent, looks, len(verdicts), heard())
		}
		time.Sleep(500 * time.Millisecond)
	}
	c.wait(60*time.Second, "the network is innocent at the end", c.innocent)
	busy, err := c.value(sent)
	rate := busy - idle
	if err != nil || rate < float64(trafficLeast) {
		t.Errorf("the switches send %.0f octets a second more than before, %v: that is not the cross traffic, which is %d", rate, err, trafficLeast)
	}
	fired, err := c.query(fmt.Sprintf(`count_over_time(ALERTS{alertstate="firing", graylink!="health"}[%ds])`, int(time.Since(began).Seconds())))
	if err != nil || fired > 0 {
		t.Errorf("%d alerts about the fabric fired in Prometheus, %v", fired, err)
	}
	for _, m := range c.messages(began) {
		if m.ofFabric() {
			t.Errorf("at the webhook: %s", m)
		} else {
			t.Logf("about Graylink itself: %s", m)
		}
	}
	t.Logf("%.0f s with %.1f MB/s of cross traffic over all ports and %d disturbances: innocent in %d of %d looks, %d verdicts, %d messages about the fabric", time.Since(began).Seconds(), rate/1e6, len(plan),
		innocent, looks, len(verdicts), heard())
}
