package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/graylink/graylink/internal/unix"
)

// process is a program in a host's namespace.
type process struct {
	cmd       *exec.Cmd
	out, errs bytes.Buffer
	ended     chan error
}

func (p *pair) startProcess(host int, program string, args ...string) (*process, error) {
	c := &process{cmd: exec.Command(program, args...), ended: make(chan error, 1)}
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.errs
	if err := unix.InNetns(p.hosts[host], c.cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	go func() { c.ended <- c.cmd.Wait() }()
	return c, nil
}

// stop ends the process, with SIGTERM first, and waits for it.
func (c *process) stop() error {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-c.ended:
		c.ended <- err
		return err
	case <-time.After(10 * time.Second):
		return errors.Join(errors.New("did not stop in 10 s"), c.cmd.Process.Kill(), <-c.ended)
	}
}

// endedError returns the error of the process, and nil while it runs.
func (c *process) endedError() error {
	select {
	case err := <-c.ended:
		c.ended <- err
		if err == nil {
			err = errors.New("exit status 0")
		}
		return fmt.Errorf("%s ended: %w: %s", filepath.Base(c.cmd.Path), err, c.stderrHead())
	default:
		return nil
	}
}

// stderrHead returns the beginning of what the process wrote to standard error.
func (c *process) stderrHead() string {
	s := strings.TrimSpace(c.errs.String())
	return s[:min(len(s), 400)]
}

// contender is a program that probes at a rate. count has what it says itself
// it has done by now; its CPU time is that of measured.
type contender struct {
	name, description string
	processes         []*process
	measured          []*process
	// perProbe is how many packets of host 0's link belong to one probe: two
	// where that host reflects as many as it sends.
	perProbe float64
	count    func() (counts, error)
	final    func() string // after the processes have ended
	scraped  []string      // what a Prometheus would read
}

// counts are a contender's own.
type counts struct {
	sent     float64
	stamped  float64            // packets with the kernel's stamps, of four per exchange
	symptoms map[string]float64 // what should not grow
}

func (c *contender) stop() error {
	var errs []error
	for _, p := range slices.Backward(c.processes) {
		if err := p.stop(); err != nil && !strings.Contains(err.Error(), "signal: terminated") {
			errs = append(errs, fmt.Errorf("%s: %w: %s", c.name, err, p.stderrHead()))
		}
	}
	return errors.Join(errs...)
}

// startProcesses starts contenders' processes one after the other; on a failure those
// that run are stopped.
func (c *contender) startProcesses(start ...func() (*process, error)) error {
	for _, s := range start {
		p, err := s()
		if err != nil {
			return errors.Join(err, c.stop())
		}
		c.processes = append(c.processes, p)
	}
	return nil
}

func (r *rig) startFloor(rate int, tick time.Duration) (*contender, error) {
	c := &contender{name: fmt.Sprintf("floor, %v ticks", tick), description: "bare loop: batches, stamps read, nothing else", perProbe: 2}
	end := func(host int) func() (*process, error) {
		return func() (*process, error) {
			return r.startProcess(host, filepath.Join(r.bin, "floor"), "--local", hostAddress(host, 0), "--remote", hostAddress(1-host, 0), "--rate", strconv.Itoa(rate), "--tick", tick.String())
		}
	}
	if err := c.startProcesses(end(0), end(1)); err != nil {
		return nil, err
	}
	c.measured = c.processes[:1]
	c.final = func() string { return strings.TrimSpace(c.processes[0].out.String()) }
	return c, nil
}

// spreadEdges spreads edges at a cadence over NICs: as many as twelve edges each
// allow, up to eight, so that each NIC has the same.
func spreadEdges(edges int) (nics, peers int) {
	for nics = max(1, min(8, (edges+11)/12)); edges%nics != 0; nics-- {
	}
	return nics, edges / nics
}

func nodeConfig(host, own, others int, cadence time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "node: h%d\ncadence: %v\nreply_timeout: 1s\nstamp: {port: 8862, source_port: 50000}\nnics:\n", host+1, cadence)
	for i := range own {
		fmt.Fprintf(&b, "  - {nic: h%d/e%d, address: %s, leaf: leaf1, leaf_port: dn%d}\n", host+1, i, hostAddress(host, i), host+1)
	}
	b.WriteString("peers:\n")
	for i := range others {
		fmt.Fprintf(&b, "  - {nic: h%d/e%d, address: %s, leaf: leaf1, tier: 1}\n", 2-host, i, hostAddress(1-host, i))
	}
	return b.String()
}

// startGraylink runs graylink-node on both hosts; the first one, whose NICs have
// several peers each as in a fabric, is measured.
func (r *rig) startGraylink(rate int, cadence time.Duration) (*contender, error) {
	edges := int(float64(rate) * cadence.Seconds())
	nics, peers := spreadEdges(edges)
	if float64(edges)/cadence.Seconds() != float64(rate) || peers > maxAddresses {
		return nil, fmt.Errorf("graylink-node: %d probes/s at %v cannot be laid out over this pair, want a multiple of %.0f, %d at most", rate, cadence, 1/cadence.Seconds(), 8*int(maxAddresses/cadence.Seconds()))
	}
	c := &contender{name: "graylink-node", description: fmt.Sprintf("%d NICs with %d peers each, cadence %v", nics, peers, cadence), perProbe: 2}
	end := func(host, own, others int) func() (*process, error) {
		return func() (*process, error) {
			file := filepath.Join(r.dir, fmt.Sprintf("h%d.yaml", host+1))
			if err := os.WriteFile(file, []byte(nodeConfig(host, own, others, cadence)), 0o644); err != nil {
				return nil, err
			}
			return r.startProcess(host, r.node, "--config.file", file, "--web.listen-address", "127.0.0.1:9868")
		}
	}
	if err := c.startProcesses(end(0, nics, peers), end(1, peers, nics)); err != nil {
		return nil, err
	}
	c.measured = c.processes[:1]
	c.scraped = []string{"http://127.0.0.1:9868/metrics", "http://127.0.0.1:9868/metrics/nics", "http://127.0.0.1:9868/metrics/edges"}
	c.count = func() (counts, error) {
		metrics, err := r.scrapeHost(0, "http://127.0.0.1:9868/metrics")
		if err != nil {
			return counts{}, err
		}
		lost := sumCounters(metrics["fabric_leaf_pair_probe_lost_total"], "", "")
		missing := sumCounters(metrics["graylink_node_stamps_missing_total"], "", "")
		sent := sumCounters(metrics["fabric_leaf_pair_probe_sent_total"], "side", "source")
		return counts{sent: sent, stamped: 4*sent - missing, symptoms: map[string]float64{
			"probes lost":                         lost,
			"samples without a stamp they wanted": missing,
			stalled:                               sumCounters(metrics["graylink_node_stalled_seconds_total"], "", ""),
			"probes skipped":                      sumCounters(metrics["graylink_node_probes_skipped_total"], "", ""),
			"packets dropped by full sockets":     sumCounters(metrics["graylink_node_socket_drops_total"], "", ""),
			"send errors":                         sumCounters(metrics["graylink_node_send_errors_total"], "", ""),
			"packets rate-limited":                sumCounters(metrics["graylink_node_dropped_packets_total"], "reason", "rate_limited"),
		}}, nil
	}
	return c, nil
}

// irttCount holds the counts that an irtt client reports.
type irttCount struct {
	Stats struct {
		Sent     uint64 `json:"packets_sent"`
		Received uint64 `json:"packets_received"`
	} `json:"stats"`
}

// irttTrial is how long a trial run of an irtt client takes.
const irttTrial = 2 * time.Second

// startIRTT runs as few clients as keep the rate together. The timer of one is late by a part of a millisecond every
// time, so that it cannot keep short intervals. Trials show how many clients are needed.
func (r *rig) startIRTT(rate int, length time.Duration) (*contender, error) {
	c := &contender{name: "irtt", perProbe: 1}
	server := func() (*process, error) {
		p, err := r.startProcess(1, "irtt", "server", "-b", hostAddress(1, 0), "-i", "0")
		if err != nil {
			return nil, err
		}
		return p, r.awaitListener(1, 2112)
	}
	file := func(i int) string { return filepath.Join(r.dir, fmt.Sprintf("irtt%d.json", i)) }
	client := func(i int, interval, length time.Duration) (*process, error) {
		return r.startProcess(0, "irtt", "client", "-Q", "-o", file(i), "-i", interval.String(), "-d", length.String(), "--wait=500ms", hostAddress(1, 0))
	}
	said := func(i int) (c irttCount, err error) {
		b, err := os.ReadFile(file(i))
		if err != nil {
			return c, err
		}
		return c, json.Unmarshal(b, &c)
	}
	if err := c.startProcesses(server); err != nil {
		return nil, err
	}
	clients, interval := 0, time.Duration(0)
	for _, clients = range []int{1, 2, 5, 10, 20, 50, 100} {
		interval = time.Duration(clients) * time.Second / time.Duration(rate)
		p, err := client(0, interval, irttTrial)
		if err == nil {
			err = <-p.ended
			p.ended <- err
		}
		trial, serr := said(0)
		if err = errors.Join(err, serr); err != nil {
			return nil, errors.Join(fmt.Errorf("irtt's trial run: %w", err), c.stop())
		}
		if float64(trial.Stats.Sent) >= 0.98*float64(irttTrial/interval) {
			break
		}
	}
	c.description = fmt.Sprintf("server and %d clients every %v added: one side probes, the other reflects; user-space time stamps", clients, interval)
	var start []func() (*process, error)
	for i := range clients {
		start = append(start, func() (*process, error) { return client(i, interval, length) })
	}
	if err := c.startProcesses(start...); err != nil {
		return nil, err
	}
	c.measured = c.processes
	c.final = func() string {
		var sent, received uint64
		for i := range clients {
			n, err := said(i)
			if err != nil {
				return err.Error()
			}
			sent, received = sent+n.Stats.Sent, received+n.Stats.Received
		}
		return fmt.Sprintf("%d sent, %d received over the whole run", sent, received)
	}
	return c, nil
}

// awaitListener waits for a UDP socket at a port of a host.
func (r *rig) awaitListener(host int, port int) error {
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		var b []byte
		err := unix.InNetns(r.hosts[host], func() (err error) {
			b, err = os.ReadFile("/proc/thread-self/net/udp")
			return err
		})
		if err != nil {
			return err
		}
		if strings.Contains(string(b), fmt.Sprintf(":%04X ", port)) {
			return nil
		}
	}
	return fmt.Errorf("nothing listens on UDP port %d after 5 s", port)
}

func (r *rig) startSmokeping(rate int, cadence time.Duration) (*contender, error) {
	hosts := int(float64(rate) * cadence.Seconds())
	if hosts > maxAddresses {
		return nil, fmt.Errorf("smokeping_prober: %d targets at %v, want %d at most", hosts, cadence, maxAddresses)
	}
	c := &contender{name: "smokeping_prober", description: fmt.Sprintf("ICMP to %d targets every %v; the kernel reflects; user-space round trips only", hosts, cadence), perProbe: 1}
	args := []string{"--privileged", "--ping.interval", cadence.String(), "--config.file", "", "--web.listen-address", "127.0.0.1:9374"}
	for i := range hosts {
		args = append(args, hostAddress(1, i))
	}
	if err := c.startProcesses(func() (*process, error) { return r.startProcess(0, "prometheus-smokeping-prober", args...) }); err != nil {
		return nil, err
	}
	c.measured = c.processes
	c.count = func() (counts, error) {
		metrics, err := r.scrapeHost(0, "http://127.0.0.1:9374/metrics")
		return counts{sent: sumCounters(metrics["smokeping_requests_total"], "", "")}, err
	}
	return c, nil
}

// sumCounters adds a family up, over the series with a label value if one is given.
func sumCounters(f *dto.MetricFamily, label, value string) (sum float64) {
	for _, m := range f.GetMetric() {
		match := label == ""
		for _, l := range m.GetLabel() {
			match = match || l.GetName() == label && l.GetValue() == value
		}
		if match {
			sum += m.GetCounter().GetValue()
		}
	}
	return sum
}

// scrapeHost reads series from inside a host's namespace.
func (r *rig) scrapeHost(host int, url string) (map[string]*dto.MetricFamily, error) {
	dial := func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		err = unix.InNetns(r.hosts[host], func() error {
			c, err = (&net.Dialer{}).DialContext(ctx, network, addr)
			return err
		})
		return c, err
	}
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", string(expfmt.NewFormat(expfmt.TypeProtoDelim)))
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, answer.Status)
	}
	families := map[string]*dto.MetricFamily{}
	for d := expfmt.NewDecoder(answer.Body, expfmt.ResponseFormat(answer.Header)); ; {
		f := &dto.MetricFamily{}
		if err := d.Decode(f); errors.Is(err, io.EOF) {
			return families, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", url, err)
		}
		families[f.GetName()] = f
	}
}
