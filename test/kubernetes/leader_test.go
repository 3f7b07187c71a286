//go:build kubernetes

package kubernetes

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/graylink/graylink/internal/kubeapi"
	"github.com/graylink/graylink/internal/lease"
)

const leasePath = "/apis/coordination.k8s.io/v1/namespaces/graylink/leases/graylink-coordinator"

// holdLease takes or renews the coordinators' lease with the rights of the chart.
func (k *cluster) holdLease() error {
	api, err := kubeapi.Open(k.write("lease.kubeconfig", k.kubeconfig(k.token("graylink", "graylink-coordinator", "", "", ""))), "test")
	if err != nil {
		return err
	}
	l := lease.New(api, "graylink", "graylink-coordinator", "test", func() time.Duration { return 0 })
	_, err = l.Hold(k.t.Context(), lease.Request{Force: true})
	return err
}

// leader kills the leader of two coordinators, with the arguments of the chart as far as they fit outside of pods. The
// standby leads by the lease of a real API server.
func (k *cluster) leader() {
	t := k.t
	kubeconfig := k.write("leader.kubeconfig", k.kubeconfig(k.token("graylink", "graylink-coordinator", "", "", "")))
	ports := freePorts(t, 4)
	ca, cert, key := k.tlsFile("ca.crt"), k.tlsFile("coordinator.crt"), k.tlsFile("coordinator.key")
	start := func(i int) *exec.Cmd {
		c := exec.Command(filepath.Join(built, "graylink-coordinator"), "--topology.file", topologyFile, "--state.file", filepath.Join(k.dir, fmt.Sprintf("pair-%d.json", i)),
			"--agents.listen-address", "127.0.0.1:"+ports[i], "--agents.ca", ca, "--agents.cert", cert, "--agents.key", key, "--web.listen-address", "127.0.0.1:"+ports[2+i],
			"--ha.mode", "lease", "--ha.identity", fmt.Sprintf("graylink-coordinator-%d", i), "--ha.initial-leader", "graylink-coordinator-0",
			"--ha.peers", "graylink-coordinator.graylink.svc", "--ha.peer-server-name", "graylink-coordinator.graylink.svc", "--ha.peer-address", "127.0.0.1:"+ports[1-i],
			"--ha.lease-namespace", "graylink", "--ha.kubeconfig", kubeconfig, "--registry.settle", "1s")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
		return c
	}
	var state struct {
		Leads bool
		Epoch uint64
		Lag   *float64 `json:"replication_lag_seconds"`
	}
	wait := func(what string, i int, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			answer, err := http.Get("http://127.0.0.1:" + ports[2+i] + "/api/v1/leader")
			if err != nil {
				continue
			}
			text, _ := io.ReadAll(answer.Body)
			answer.Body.Close()
			state.Lag = nil
			if json.Unmarshal(text, &state) == nil && ok() {
				return
			}
		}
		t.Fatalf("not within a minute: %s; %+v", what, state)
	}
	isReady := func(i int) bool {
		answer, err := http.Get("http://127.0.0.1:" + ports[2+i] + "/-/ready")
		if err != nil {
			return false
		}
		answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	}
	first := start(0)
	wait("the initial leader leads", 0, func() bool { return state.Leads })
	epoch := state.Epoch
	start(1)
	wait("the other one follows, and is ready", 1, func() bool {
		return !state.Leads && state.Epoch == epoch && state.Lag != nil && *state.Lag < 2 && isReady(1)
	})
	spec := func() map[string]any { return k.do("GET", leasePath, nil)["spec"].(map[string]any) }
	if s := spec(); s["holderIdentity"] != "graylink-coordinator-0" {
		t.Errorf("the lease is %v", s)
	}

	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	killed := time.Now()
	wait("the standby leads", 1, func() bool { return state.Leads })
	t.Logf("the standby led %.1f s after the leader was killed", time.Since(killed).Seconds())
	if s := spec(); s["holderIdentity"] != "graylink-coordinator-1" || s["leaseTransitions"] != 1. || state.Epoch <= epoch {
		t.Errorf("epoch %d after %d, and the lease is %v", state.Epoch, epoch, s)
	}
	start(0)
	wait("the former leader follows", 0, func() bool { return !state.Leads && state.Epoch > epoch && state.Lag != nil && *state.Lag < 2 })
	k.do("DELETE", leasePath, nil)
}
