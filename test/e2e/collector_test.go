package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/gnmi/gnmitest"
)

// untyped matches the type of a family that has none.
var untyped = regexp.MustCompile(`(?m)^# TYPE \S+ (untyped|unknown)$`)

// collected is a fault, and two switches at its ends that report their pauses by gNMI, each as its vendor does, to a
// Collector that Prometheus scrapes.
type collected struct {
	*chain
	fault    demo.PlannedFault
	from, to string // ports
	storm    atomic.Bool
	metrics  string // address
}

// pauseSeries are the pauses in Prometheus.
const pauseSeries = `fabric_switch_port_pfc_receive_frames_total{job="otelcol-graylink", priority="3"}`

// startCollector starts both switches and the Collector. The port that the fault sends from is paused while storm is
// set, the far end always.
func (c *chain) startCollector() *collected {
	t := c.t
	collector, err := filepath.Abs("../../bin/otelcol-graylink")
	if err == nil {
		_, err = os.Stat(collector)
	}
	switch {
	case err == nil:
	case os.Getenv("GRAYLINK_REQUIRE_ALL") == "1":
		t.Fatalf("needs otelcol-graylink (make collector): %v", err)
	default:
		t.Logf("no causes by a Collector: needs otelcol-graylink (make collector): %v", err)
		return nil
	}
	x := &collected{chain: c, fault: c.planned("delay", 3), metrics: freeAddress(t)}
	x.from, x.to, _ = strings.Cut(x.fault.Fault.Direction, "->")
	neighbour := map[string]string{x.from: x.to, x.to: x.from}
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	var targets []string
	for _, end := range []struct {
		at, vendor string
		pauses     func() uint64 // in a quarter of a second
	}{
		{x.from, "arista", func() uint64 {
			if x.storm.Load() {
				return 500
			}
			return 0
		}},
		{x.to, "cumulus", func() uint64 { return 50 }},
	} {
		name, port, _ := strings.Cut(end.at, ":")
		state := gnmitest.ExampleState(time.Now())
		state.Port, state.PFCReceived = port, 1<<20
		state.Remote, state.RemotePort, _ = strings.Cut(neighbour[end.at], ":")
		sw, err := gnmitest.Start(end.vendor, state, gnmitest.Faults{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(sw.Stop)
		go func() {
			for tick := time.NewTicker(250 * time.Millisecond); ; {
				select {
				case <-done:
					tick.Stop()
					return
				case now := <-tick.C:
					state.At = now
					state.PFCReceived += end.pauses()
					sw.UpdateState(state)
				}
			}
		}()
		targets = append(targets, fmt.Sprintf("  gnmi/%s:\n    preset: %s\n    interval: 1s\n    targets: [{address: %q, name: %s}]\n    tls: {insecure: true}\n", name, end.vendor, sw.Address, name))
	}
	c.write("collector.yaml", fmt.Sprintf("receivers:\n%sexporters:\n  prometheus: {endpoint: %q, metric_expiration: 3s, without_scope_info: true}\nservice:\n  pipelines: {metrics: {receivers: [gnmi/%s, gnmi/%s], exporters: [prometheus]}}\n"+
		"  telemetry: {metrics: {level: none}, logs: {level: warn}}\n", strings.Join(targets, ""), x.metrics, element(x.from), element(x.to)))
	c.run("otelcol-graylink", exec.Command(collector, "--config", c.file("collector.yaml")))
	c.write("graylink/collectors.yml", fmt.Sprintf("- targets: [%q]\n", x.metrics))
	return x
}

// causes checks the cause of a verdict. The link is slow, and since then one of its ports is paused. That is the cause
// of the verdict, at its port. The far end, which is paused as often as before, is not.
func (x *collected) causes() {
	t, from, to := x.t, x.from, x.to
	x.wait(90*time.Second, "Prometheus has the pauses of both ends for a while", func() bool {
		n, err := x.query(`count_over_time(` + pauseSeries + `[20s]) >= 15`)
		return err == nil && n == 2
	})
	if body, _ := x.get("http://"+x.metrics+"/metrics", nil); untyped.Match(body) {
		t.Errorf("series without a type:\n%s", body)
	} else {
		lint := exec.Command(program(t, "promtool"), "check", "metrics")
		lint.Stdin = strings.NewReader(string(body))
		if out, err := lint.CombinedOutput(); err != nil {
			t.Errorf("promtool: %v\n%s", err, out)
		}
	}
	x.wait(time.Minute, "the network is innocent", x.innocent)

	began := time.Now()
	x.storm.Store(true)
	id := x.chain.fault(x.fault.Fault)
	said := map[string]string{}
	pauses := func(end string) func(fabric.Cause) bool {
		return func(x fabric.Cause) bool {
			return x.Cause == fabric.CauseStall && x.Element == end && strings.Contains(x.Text, "pfc_receive_frames")
		}
	}
	x.wait(time.Minute, "every analyzer names the link, and the pauses of "+from, func() bool {
		for _, r := range x.analyzers {
			for _, in := range x.named(r, x.fault, began) {
				a := in.Attribution
				if a == nil {
					continue
				}
				if slices.ContainsFunc(a.Causes, pauses(to)) {
					t.Errorf("%s: %s is paused as before: %s", r.name, to, a.Summary)
				}
				if slices.ContainsFunc(a.Causes, pauses(from)) && slices.Contains(in.Causes, fabric.CauseStall) {
					if said[r.name] == "" {
						t.Logf("%s, %.1f s after the fault: %s; %s", r.name, time.Since(began).Seconds(), in.Summary, a.Summary)
					}
					said[r.name] = a.Summary
				}
			}
		}
		return len(said) == len(x.analyzers)
	})
	x.storm.Store(false)
	x.heal(id)
	x.wait(2*time.Minute, "the network is innocent", x.innocent)
}

// element returns the switch of a port.
func element(port string) string {
	name, _, _ := strings.Cut(port, ":")
	return name
}
