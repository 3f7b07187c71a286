package ibagent

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ibfabric/ibtest"
	"github.com/graylink/graylink/internal/ibmad"
	"github.com/graylink/graylink/internal/ibsample"
)

// start runs an agent on a node of a fabric for the duration of the test.
func start(tb testing.TB, c Config) *Agent {
	tb.Helper()
	a, err := Start(c, ibmad.Open, slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := a.Close(); err != nil {
			tb.Error(err)
		}
	})
	return a
}

// fabricOf runs ibsim and OpenSM, without the race detector.
func fabricOf(t *testing.T, net string) *ibtest.Fabric {
	if testing.Short() {
		t.Skip("runs a fabric")
	}
	return ibtest.Start(t, net, ibtest.Options{})
}

func on(f *ibtest.Fabric, node string) string { return "ibsim:" + f.SocketName() + "/" + node }

// hangLimit is after how long a test gives up. A busy machine may run no test at idle priority for half a minute.
const hangLimit = 5 * time.Minute

// until waits for a condition.
func until(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(hangLimit); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("not within %v: %s", hangLimit, what)
		}
	}
}

// sample returns a point of a port by its element, found by name.
func sample(a *Agent, name string, labels ...string) (float64, bool) {
	for _, p := range a.CollectPoints(time.Now()) {
		if p.Name == name && slices.Equal(p.Values, labels) {
			return p.Value, true
		}
	}
	return 0, false
}

// TestCountersAreWhatTheConsoleSet checks that counters of every width arrive exactly as ibsim's console sets
// them, that one at its limit is reported as saturated, that one that is reset begins again, and that a port
// that dies is absent and has errors.
func TestCountersAreWhatTheConsoleSet(t *testing.T) {
	f := fabricOf(t, ibtest.FatTree(4, 2, 2))
	// ibsim also counts the queries that cross a port: none cross this one.
	f.ChangeAndWait(`Unlink "leaf0"[2]`)
	set := func(field string, value uint64) {
		if out := f.RunConsole(fmt.Sprintf(`PerformanceSet "leaf0"[2] %s=%d`, field, value)); strings.Contains(out, "#") {
			t.Fatal(out)
		}
	}
	type setting struct {
		field  string
		value  uint64
		series string
		reason string
		want   float64
	}
	settings := []setting{
		{"PortCounters.LocalLinkIntegrityErrors", 9, "local_link_integrity_errors_total", "", 9},
		{"PortCounters.LinkDownedCounter", 200, "link_downed_total", "", 200},
		{"PortCounters.SymbolErrorCounter", 40000, "symbol_errors_total", "", 40000},
		{"PortCounters.PortRcvErrors", 77, "receive_errors_total", "damaged", 77},
		{"PortCounters.PortXmitWait", 4_000_000_000, "transmit_wait_ticks_total", "", 4_000_000_000},
		{"PortCountersExtended.PortXmitData", 1 << 40, "transmit_bytes_total", "", 1 << 42},
		{"PortCountersExtended.PortRcvPkts", 1<<53 - 1, "receive_packets_total", "", 1<<53 - 1},
	}
	for _, s := range settings {
		set(s.field, s.value)
	}
	c := DefaultConfig()
	c.Name, c.Device, c.Interval, c.Forget = "s", on(f, "h0"), 250*time.Millisecond, time.Hour
	c.Discovery = c.Interval
	a := start(t, c)
	at := func(s *setting) (float64, bool) {
		labels := []string{"leaf0", "2"}
		if s.reason != "" {
			labels = append(labels, s.reason)
		}
		return sample(a, "fabric_switch_port_"+s.series, labels...)
	}
	until(t, "readings", func() bool {
		return !slices.ContainsFunc(settings, func(s setting) bool { _, ok := at(&s); return !ok })
	})
	for _, s := range settings {
		if got, ok := at(&s); !ok || got != s.want {
			t.Errorf("%s=%d is %v, %v; want %v", s.field, s.value, got, ok, s.want)
		}
	}
	for _, p := range a.CollectPoints(time.Now()) {
		// A sweep that is cut short is due to a busy machine. ibsim does not answer unknown queries, which must
		// not affect others.
		if strings.HasSuffix(p.Name, "_sample_errors_total") && !slices.Contains(p.Values, "cut_short") {
			t.Errorf("%s %v: %v", p.Name, p.Values, p.Value)
		}
	}

	for field, full := range map[string]uint64{"LocalLinkIntegrityErrors": 15, "LinkDownedCounter": 255, "SymbolErrorCounter": 65535} {
		set("PortCounters."+field, full)
		until(t, field+" saturated", func() bool {
			v, ok := sample(a, "fabric_switch_port_saturated", "leaf0", "2", "PortCounters."+field)
			return ok && v == 1
		})
	}
	set("PortCountersExtended.PortXmitData", math.MaxUint64)
	until(t, "64 bits saturated", func() bool {
		v, ok := sample(a, "fabric_switch_port_transmit_bytes_total", "leaf0", "2")
		_, rated := sample(a, "fabric_switch_port_transmit_rate_bytes_per_second", "leaf0", "2")
		return ok && v == math.MaxUint64*4.0 && !rated
	})
	if v, _ := sample(a, "fabric_switch_port_resets_total", "leaf0", "2"); v != 0 {
		t.Errorf("%v resets before any", v)
	}
	set("PortCounters.SymbolErrorCounter", 3)
	until(t, "a reset", func() bool {
		v, ok := sample(a, "fabric_switch_port_symbol_errors_total", "leaf0", "2")
		n, _ := sample(a, "fabric_switch_port_resets_total", "leaf0", "2")
		return ok && v == 3 && n == 1
	})

	const dead = "fabric_nic_port_receive_packets_total"
	if _, ok := sample(a, dead, "h7/hca"); !ok {
		t.Fatal("h7 was not read")
	}
	f.RunConsole(`Unlink "leaf3"[2]`)
	until(t, "a dead port's errors, and no counters of it", func() bool {
		_, there := sample(a, dead, "h7/hca")
		timeouts, _ := sample(a, "fabric_nic_port_sample_errors_total", "h7/hca", "timeout")
		up, hasUp := sample(a, "fabric_nic_port_sample_up", "h7/hca")
		return !there && timeouts > 0 && hasUp && up == 0
	})
	// A busy machine cuts sweeps short, so that any port may be old for a moment.
	until(t, "the switch's port at the other end is read all the same", func() bool {
		_, ok := sample(a, "fabric_switch_port_receive_packets_total", "leaf3", "2")
		return ok
	})
}

// samplerEnv makes the test's program a sampler: "name device delegator".
const samplerEnv = "GRAYLINK_TEST_IBSAMPLER"

func TestMain(m *testing.M) {
	if s := strings.Fields(os.Getenv(samplerEnv)); len(s) == 3 {
		os.Exit(beSampler(s[0], s[1], s[2]))
	}
	os.Exit(m.Run())
}

func beSampler(name, device, delegator string) int {
	c := DefaultConfig()
	c.Name, c.Device, c.Delegator, c.Interval = name, device, delegator, crewInterval
	a, err := Start(c, ibmad.Open, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer a.Close()
	select {} // killed by the parent, or by the kernel when the parent ends
}

const crewInterval = 500 * time.Millisecond

// TestFourSamplersAndOneIsKilled runs real processes on a real fabric. After one is killed, its ports are read
// again within two ticks and no port twice on a tick, counters do not go back, and pinned ports go where they
// are pinned.
func TestFourSamplersAndOneIsKilled(t *testing.T) {
	f := fabricOf(t, ibtest.FatTree(6, 3, 3))
	c := DefaultConfig()
	c.Name, c.Device, c.Sample, c.Listen, c.Interval, c.Discovery = "delegator", on(f, "h0"), false, "127.0.0.1:0", crewInterval, time.Hour
	c.Assignments = map[string][]string{"s1": {"leaf5", "h0"}, "s2": {"leaf0:1"}}
	a := start(t, c)
	crew := map[string]*exec.Cmd{}
	for i := range 4 {
		name := fmt.Sprintf("s%d", i)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s http://%s", samplerEnv, name, on(f, fmt.Sprintf("h%d", i+1)), a.ListenAddress()))
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		crew[name] = cmd
	}
	until(t, "four samplers with rates of all ports", func() bool {
		s := a.delegator.Store.Snapshot(time.Now())
		for _, p := range s.Ports {
			if len(p.Counts) == 0 || !p.Counts[0].Rated && !p.Counts[0].IsSaturated() {
				return false
			}
		}
		return len(a.delegator.Status().Samplers) == 4 && len(s.Ports) == 6*6+3*6+18
	})
	checkShares(t, a, c.Assignments)

	// The last reading of each port, while samplers change.
	before := a.delegator.Store.Snapshot(time.Now())
	killed := time.Now()
	if err := crew["s3"].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	lost := map[ibsample.Key]bool{}
	for k, holders := range a.delegator.Status().Plan {
		if slices.Contains(holders, "s3") {
			lost[k] = true
		}
	}
	if len(lost) == 0 {
		t.Fatal("the dead sampler had no ports")
	}
	last := map[ibsample.Key]ibsample.PortState{}
	for _, p := range before.Ports {
		last[p.Target.Key] = p
	}
	again := map[ibsample.Key]time.Duration{}
	for end := killed.Add(6 * crewInterval); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for _, p := range a.delegator.Store.Snapshot(time.Now()).Ports {
			k := p.Target.Key
			for i, n := range p.Counts {
				if old := last[k].Counts; i < len(old) && old[i].ID == n.ID && n.Raw < old[i].Raw {
					t.Fatalf("%s: %s went from %d to %d", p.Target.Element, ibsample.Counters[n.ID].String(), old[i].Raw, n.Raw)
				}
			}
			if at := time.Unix(0, p.At); lost[k] && at.After(killed) && again[k] == 0 {
				again[k] = at.Sub(killed)
			}
			last[k] = p
		}
	}
	var gaps []time.Duration
	for k := range lost {
		if again[k] == 0 {
			t.Errorf("%s is not read again", last[k].Target.Element)
		}
		gaps = append(gaps, again[k])
	}
	slices.Sort(gaps)
	t.Logf("%d ports of the dead sampler are read again %v to %v after its death (interval %v)", len(gaps), gaps[0], gaps[len(gaps)-1], crewInterval)
	// The rule is two intervals, and is tested in synthetic time; the rest is the delay of a busy machine.
	if most := gaps[len(gaps)-1]; most > 2*crewInterval+time.Second {
		t.Errorf("a port is read again only after %v", most)
	}
	s, st := a.delegator.Store.Snapshot(time.Now()), a.delegator.Status()
	if len(st.Samplers) != 3 || st.Deaths < 1 {
		t.Errorf("%d samplers, %d deaths", len(st.Samplers), st.Deaths)
	}
	checkShares(t, a, c.Assignments)
	t.Logf("%d starts of sweeps: p99 %v, at most %v from their ticks; %d readings, %d duplicates, %d late", s.Starts, s.SkewP99, s.SkewMax, s.Accepted, s.Duplicates, s.Late)
	// A sweep that starts later than the next tick may read what another sampler was given for that tick.
	if onTime := s.SkewMax < crewInterval; onTime && (s.Duplicates != 0 || s.Late != 0) {
		t.Errorf("%d ports were read twice on a tick, %d late", s.Duplicates, s.Late)
	}
}

// checkShares checks that pinned ports go where they are pinned, and that the rest is divided within one port
// of even.
func checkShares(t *testing.T, a *Agent, assignments map[string][]string) {
	t.Helper()
	st := a.delegator.Status()
	load := map[string]int{}
	for _, m := range st.Samplers {
		load[m.Name] = 0
	}
	for _, target := range st.Targets {
		holders := st.Plan[target.Key]
		if len(holders) != 1 {
			t.Fatalf("%s goes to %v", target.Element, holders)
		}
		pinned := ""
		for sampler, ports := range assignments {
			for _, p := range ports {
				if target.Element == p || strings.HasPrefix(target.Element, p+":") || strings.HasPrefix(target.Element, p+"/") {
					pinned = sampler
				}
			}
		}
		switch {
		case pinned == "":
			load[holders[0]]++
		case holders[0] != pinned:
			t.Errorf("%s is pinned to %s and goes to %s", target.Element, pinned, holders[0])
		}
	}
	low, high := math.MaxInt, 0
	for _, n := range load {
		low, high = min(low, n), max(high, n)
	}
	if high-low > 1 {
		t.Errorf("ports that are not pinned: %v, want them within one of even", load)
	}
}

// switchPorts returns a fabric's switch ports, the first of every switch before the second of any.
func switchPorts(b *testing.B, client *ibmad.Client) []ibsample.Target {
	b.Helper()
	fabric, _, err := ibfabric.Discover(context.Background(), client)
	if err != nil {
		b.Fatal(err)
	}
	var list []ibsample.Target
	for _, p := range fabricTargets(fabric, time.Now()) {
		if p.Switch {
			list = append(list, p.Target)
		}
	}
	slices.SortFunc(list, func(x, y ibsample.Target) int { return int(x.Port) - int(y.Port) })
	return list
}

// BenchmarkSweep reads every switch port of 54 switches: extended counters and the details of errors, as in the
// target of 250 ms, and all counters.
func BenchmarkSweep(b *testing.B) {
	f := ibtest.Start(b, ibtest.FatTree(36, 18, 18), ibtest.Options{Engine: "ftree"})
	t, err := ibmad.DialIbsim(f.SocketName(), "h0")
	if err != nil {
		b.Fatal(err)
	}
	client := ibmad.NewClient(t, ibmad.Config{})
	defer client.Close()
	list := switchPorts(b, client)
	for name, metrics := range map[string]ibsample.Selection{"extended+details": {"PortCountersExtended", "PortRcvErrorDetails", "PortXmitDiscardDetails"}, "extended": {"PortCountersExtended"}, "all": nil} {
		b.Run(name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				readings := ibsample.SweepTargets(context.Background(), client, list, metrics, 0)
				took = append(took, time.Since(began))
				for i := range readings {
					if len(readings[i].Errors) > 0 || len(readings[i].Answers) == 0 {
						b.Fatalf("%s: %v", list[i].Element, readings[i].Errors)
					}
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(len(list)), "ports")
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "max-ms")
		})
	}
}

// BenchmarkPeers measures what the diagnostics need for the same work on the same fabric in the same minutes:
// perfquery once a switch and query, as infiniband_exporter runs it, and ibqueryerrors over all switches, which
// requests details only where there are errors.
func BenchmarkPeers(b *testing.B) {
	f := ibtest.Start(b, ibtest.FatTree(36, 18, 18), ibtest.Options{Engine: "ftree"})
	b.Run("ibqueryerrors", func(b *testing.B) {
		for b.Loop() {
			if _, err := f.Run("h1", "ibqueryerrors", "--switch", "--data", "--details", "--counters"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("perfquery", func(b *testing.B) {
		for b.Loop() {
			for s := range 54 {
				for _, query := range []string{"-x", "-E", "-D"} {
					if out, err := f.Run("h1", "perfquery", query, "-l", "-G", fmt.Sprintf("%#x", 0x200000+s), "1-36"); err != nil {
						b.Fatal(err, out)
					}
				}
			}
		}
	})
}
