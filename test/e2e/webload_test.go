package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/graylink/graylink/internal/unix"
)

var webLoadRounds = flag.Int("web.load-rounds", 0, "rounds of TestWebLoadKernelDelay, which compares kernel delays with and without hostile clients")

// crowd are clients of a node that hold connections: half say nothing, the others send a
// header octet by octet or do not read the answer.
type crowd struct {
	a    *arena
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// gather opens idle and slow connections to h2 and keeps that number open: one that the
// node closes is opened again.
func (a *arena) gather(idle, slow int) *crowd {
	a.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	c := &crowd{a: a, stop: stop}
	for i := range idle + slow {
		c.wg.Go(func() {
			for ctx.Err() == nil {
				c.hold(ctx, i < idle, i%2 == 0)
				select { // a client that was refused tries again
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
			}
		})
	}
	return c
}

// hold opens a connection and holds it until the node closes it or ctx ends.
func (c *crowd) hold(ctx context.Context, idle, header bool) {
	var conn net.Conn
	err := unix.InNetns(c.a.near, func() (err error) { conn, err = net.Dial("tcp", victimAddr+":9868"); return err })
	if err != nil {
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	switch {
	case idle:
	case header:
		for _, b := range []byte("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: " + strings.Repeat("a", 1000)) {
			if _, err := conn.Write([]byte{b}); err != nil {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(500 * time.Millisecond):
			}
		}
	default:
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetReadBuffer(4096)
		}
		if _, err := io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"); err != nil {
			return
		}
		one := make([]byte, 1)
		for ctx.Err() == nil {
			if _, err := conn.Read(one); err != nil {
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
		return
	}
	_, _ = conn.Read(make([]byte, 1))
}

func (c *crowd) leave() {
	c.stop()
	c.wg.Wait()
}

// webNodes starts h1 and h2, which probe each other. Hosts that reach h2 reach its web listener.
func (a *arena) webNodes(cadence string, flags ...string) {
	a.t.Helper()
	for _, n := range []struct{ ns, self, addr, peer, peerAddr string }{{a.near, "h1", peerAddr, "h2", victimAddr}, {a.far, "h2", victimAddr, "h1", peerAddr}} {
		conf := a.file(n.self+".yaml", fmt.Sprintf("node: %s\ncadence: %s\nnics: [{nic: %s/eth1, address: %s, leaf: leaf1}]\npeers: [{nic: %s/eth1, address: %s, leaf: leaf1, tier: 1, flows: 4}]\n",
			n.self, cadence, n.self, n.addr, n.peer, n.peerAddr))
		a.run(n.ns, os.Stderr, append([]string{filepath.Join(bin, "graylink-node"), "--config.file=" + conf, "--web.listen-address=:9868", "--log.level=error"}, flags...)...)
	}
	a.wait("h1's probes answered", func() bool { return a.metric("/metrics/edges", "fabric_probe_received_total{") > 20 })
}

// accepted counts the connections that the kernel has for h2's web listener.
func (a *arena) accepted() int {
	a.t.Helper()
	out, err := exec.Command("ip", "netns", "exec", a.far, "cat", "/proc/net/tcp", "/proc/net/tcp6").Output()
	if err != nil {
		a.t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(out)) {
		// local_address rem_address st: 9868 is 268C, an established connection 01.
		if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1], ":268C") && f[3] == "01" {
			n++
		}
	}
	return n
}

// TestWebLoad: 200 idle and 200 slow clients of a node hold a bounded number of
// connections, every scrape is answered meanwhile, and
// probing goes on.
func TestWebLoad(t *testing.T) {
	a := newArena(t)
	a.webNodes("10ms", "--web.max-connections-per-address=64")
	sent := a.metric("/metrics/edges", "fabric_probe_sent_total{")
	c := a.gather(200, 200)
	defer c.leave()
	a.wait("the crowd has come", func() bool { return a.accepted() >= 60 })
	worst, most := time.Duration(0), 0
	for range 50 {
		began := time.Now()
		resp, err := a.client.Get("http://127.0.0.1:9868/metrics")
		if err != nil {
			t.Fatalf("a scrape beside 400 clients: %v", err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("a scrape beside 400 clients: %s, %v", resp.Status, err)
		}
		resp.Body.Close()
		worst, most = max(worst, time.Since(began)), max(most, a.accepted())
	}
	// 64 of an address are served, and some more are about to be accepted and closed.
	if most > 2*64 {
		t.Errorf("%d connections were open", most)
	}
	if now := a.metric("/metrics/edges", "fabric_probe_sent_total{"); now <= sent {
		t.Errorf("%v probes were sent, %v before", now, sent)
	}
	t.Logf("scrapes took %v at most; %d connections were open at most; %v probes were skipped", worst, most, a.metric("/metrics", "graylink_node_probes_skipped_total{"))
}

// TestWebLoadKernelDelay compares the 99th percentile of a node's kernel delay with and without 400 hostile clients,
// in turns. Time on a shared machine is noisy: it runs only when rounds are requested, and reports what it measured.
func TestWebLoadKernelDelay(t *testing.T) {
	if *webLoadRounds == 0 {
		return // a measurement, made by hand: -web.load-rounds
	}
	a := newArena(t)
	a.webNodes("2ms")
	const span = 10 * time.Second
	measure := func() float64 {
		before := a.buckets()
		time.Sleep(span)
		return bucketPercentile(before, a.buckets(), 0.99)
	}
	var calm, crowded []float64
	for i := range *webLoadRounds {
		calm = append(calm, measure())
		c := a.gather(200, 200)
		a.wait("the crowd has come", func() bool { return a.accepted() >= 300 })
		crowded = append(crowded, measure())
		c.leave()
		t.Logf("round %d: p99 of the kernel delay %.1f us without, %.1f us with 400 clients", i+1, calm[i]*1e6, crowded[i]*1e6)
	}
	slices.Sort(calm)
	slices.Sort(crowded)
	m := len(calm) / 2
	t.Logf("medians of %d rounds: %.1f us without, %.1f us with: %+.1f %%", len(calm), calm[m]*1e6, crowded[m]*1e6, (crowded[m]/calm[m]-1)*100)
}

// buckets reads how many of h2's kernel delays are in each bucket, by upper bound.
func (a *arena) buckets() map[float64]float64 {
	a.t.Helper()
	req, err := http.NewRequestWithContext(a.t.Context(), http.MethodGet, "http://127.0.0.1:9868/metrics", nil)
	if err != nil {
		a.t.Fatal(err)
	}
	format := expfmt.NewFormat(expfmt.TypeProtoDelim) // only this form has native histograms
	req.Header.Set("Accept", string(format))
	resp, err := a.client.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	out := map[float64]float64{}
	for d := expfmt.NewDecoder(resp.Body, format); ; {
		var family dto.MetricFamily
		if err := d.Decode(&family); err != nil {
			if errors.Is(err, io.EOF) && len(out) > 0 {
				return out
			}
			a.t.Fatalf("%v; %d buckets", err, len(out))
		}
		if family.GetName() != "fabric_nic_kernel_delay_seconds" {
			continue
		}
		h := family.GetMetric()[0].GetHistogram()
		index, count, deltas := 0, int64(0), h.GetPositiveDelta()
		for _, span := range h.GetPositiveSpan() {
			index += int(span.GetOffset())
			for range span.GetLength() {
				count += deltas[0]
				deltas = deltas[1:]
				out[math.Exp2(float64(index)*math.Exp2(-float64(h.GetSchema())))] = float64(count)
				index++
			}
		}
	}
}

// bucketPercentile returns the upper bound of the bucket with a percentile of what was added
// between two readings.
func bucketPercentile(before, after map[float64]float64, q float64) float64 {
	bounds, all := slices.Sorted(maps.Keys(after)), 0.0
	for _, b := range bounds {
		all += after[b] - before[b]
	}
	sum := 0.0
	for _, b := range bounds {
		if sum += after[b] - before[b]; sum >= q*all {
			return b
		}
	}
	return 0
}
