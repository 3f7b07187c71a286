//go:build all

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/lease/leasetest"
)

// startPair starts a coordinator of a pair, which uses the lease of an API server, and returns its address for HTTP.
func (f *fleet) startPair(name, other, kubeconfig string) (cmd *exec.Cmd, web string) {
	f.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	web = l.Addr().String()
	l.Close()
	at := func(file string) string { return filepath.Join(f.dir, file) }
	args := append([]string{"--topology.file=" + f.topo, "--state.file=" + at(name+".json"), "--agents.listen-address=unix:" + at(name+".sock"), "--agents.ca=" + at("ca.crt"),
		"--agents.cert=" + at("coordinator.crt"), "--agents.key=" + at("coordinator.key"), "--web.listen-address=" + web, "--ha.mode=lease", "--ha.identity=" + name, "--ha.initial-leader=a",
		"--ha.peers=coordinator", "--ha.peer-address=unix:" + at(other+".sock"), "--ha.lease-namespace=graylink", "--ha.lease-name=coordinator", "--ha.kubeconfig=" + kubeconfig}, f.args...)
	return f.start(exec.Command(filepath.Join(f.bin, "graylink-coordinator"), args...), "coordinator "+name), web
}

type leadership struct {
	Leads  bool
	Leader string
	Epoch  uint64
	Lag    *float64 `json:"replication_lag_seconds"`
}

// leadership returns what a coordinator says of itself, or nothing while it does not answer.
func (f *fleet) leadership(web string) (l leadership) {
	if body, code := f.get("http://"+web+"/api/v1/leader", nil); code == http.StatusOK {
		_ = json.Unmarshal(body, &l)
	}
	return l
}

// clockStates returns the states of the agents' clocks, and the largest bound of their errors in seconds.
func (f *fleet) clockStates() (states map[string]int, bound float64) {
	states = map[string]int{}
	for _, n := range f.nodes() {
		for name, v := range f.agent(n, "/metrics") {
			if m := clockState.FindStringSubmatch(name); m != nil && v == 1 {
				states[m[1]]++
			}
			if strings.HasPrefix(name, "fabric_clock_error_bound_seconds{") {
				bound = max(bound, v)
			}
		}
	}
	return states, bound
}

var clockState = regexp.MustCompile(`^fabric_clock_state\{.*state="(\w+)"`)

// TestTheCoordinatorIsKilledForGood: the leader of two coordinators is killed and stays away. The standby leads by the lease,
// with the same schedule and keys. No agent loses a probe. Its clock stays locked in the frame of the standby, with a bound
// that is at most twice that of before. Then the former leader comes back as the standby.
func TestTheCoordinatorIsKilledForGood(t *testing.T) {
	need(t)
	api := leasetest.NewServer(t)
	f := newFleet(t, "ha", "testdata/readme-fabric.yaml", "--agent.heartbeat=1s")
	kubeconfig := filepath.Join(f.dir, "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\nusers: [{name: u, user: {token: t}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n", api.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	a, webA := f.startPair("a", "b", kubeconfig)
	b, webB := f.startPair("b", "a", kubeconfig)
	defer stop(t, b)
	f.web = webA
	for i, n := range f.nodes() {
		names := []string{"a", "b"}
		if i%2 == 1 {
			slices.Reverse(names)
		}
		args := []string{filepath.Join(f.bin, "graylink-node"), "--coordinator.ca=" + filepath.Join(f.dir, "ca.crt"), "--coordinator.cert=" + filepath.Join(f.dir, n+".crt"),
			"--coordinator.key=" + filepath.Join(f.dir, n+".key"), "--state.file=" + filepath.Join(f.dir, n+".state"), "--web.listen-address=" + agentWeb}
		for _, name := range names {
			args = append(args, "--coordinator.address=unix:"+filepath.Join(f.dir, name+".sock"))
		}
		f.agents[n] = f.start(f.l.Command(t.Context(), n, args...), n)
	}
	n := len(f.nodes())
	f.connected(n)
	f.probing(n)
	f.answering(100)
	f.wait(60*time.Second, "locked clocks", func() bool { s, _ := f.clockStates(); return s["locked"] == n })
	calm := f.base()
	f.answering(100)
	f.usualSkipped = percentile(f.skippedShares(calm), 0.5)
	schedule, keys, epoch := f.scheduled(), f.coordinates().sum("graylink_coordinator_keys_epoch"), f.leadership(webA).Epoch
	f.wait(30*time.Second, "the standby follows", func() bool {
		l := f.leadership(webB)
		return !l.Leads && l.Epoch == epoch && l.Lag != nil && *l.Lag < 2
	})

	calmBound := 0.0
	look := func() (locked bool) {
		s, bound := f.clockStates()
		calmBound = max(calmBound, bound)
		return s["locked"] == n
	}
	each := func(times int, look func()) { // four a second, which takes little from the agents
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		for range times {
			<-tick.C
			look()
		}
	}
	each(40, func() {
		if !look() {
			t.Errorf("clocks were not locked before the leader was killed")
		}
	})
	base, before := f.base(), f.answering(1)
	if err := a.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = a.Wait()
	killed := time.Now()
	largest, samples := 0.0, 0
	watch := func() {
		s, bound := f.clockStates()
		if s["locked"] != n {
			t.Errorf("%.1f s after the leader was killed clocks are %v, want all locked", time.Since(killed).Seconds(), s)
		}
		largest = max(largest, bound)
		samples++
	}
	f.wait(time.Minute, "the standby leads", func() bool { watch(); return f.leadership(webB).Leads })
	t.Logf("the standby led %.1f s after the leader was killed", time.Since(killed).Seconds())
	f.web = webB
	f.wait(2*time.Minute, "clocks that are locked at the new leader", func() bool {
		watch()
		return f.coordinates().sum(`graylink_coordinator_clocks\{state="locked"`) == float64(n)
	})
	f.wait(time.Minute, "all agents are connected to the new leader", func() bool {
		watch()
		return f.coordinates().sum(`graylink_coordinator_agents\{state="connected"`) == float64(n)
	})
	each(40, watch)
	t.Logf("all clocks were locked in %d samples; the largest bound was %.3g us, and %.3g us before", samples, largest*1e6, calmBound*1e6)
	if largest > 2*calmBound {
		t.Errorf("the largest bound was %.3g us, want at most twice that of before, %.3g us", largest*1e6, calmBound*1e6)
	}
	f.connected(n)
	f.answering(100)
	f.undisturbed("the leader is gone", base, before)
	if now := f.scheduled(); !maps.EqualFunc(schedule, now, slices.Equal) {
		t.Errorf("the schedule changed:\n%v\n%v", schedule, now)
	}
	c := f.coordinates()
	if now := c.sum("graylink_coordinator_keys_epoch"); now != keys {
		t.Errorf("the key is %v, and was %v", now, keys)
	}
	if sent := c.sum("graylink_coordinator_assignments_sent_total"); sent != 0 {
		t.Errorf("%v assignments were sent, want none: nothing changed", sent)
	}
	if now := f.leadership(webB).Epoch; now <= epoch {
		t.Errorf("epoch %d after %d", now, epoch)
	}

	a, webA = f.startPair("a", "b", kubeconfig)
	defer stop(t, a)
	f.wait(30*time.Second, "the former leader follows", func() bool {
		l := f.leadership(webA)
		return !l.Leads && l.Epoch == f.leadership(webB).Epoch && l.Lag != nil && *l.Lag < 2
	})
	f.undisturbed("the former leader is back", base, before)
}
