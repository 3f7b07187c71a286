//go:build all

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRenewalUnderLoad: agents that enrolled probe at the usual rate while each renews its certificate, whose life is the
// shortest that a coordinator signs. No probe is lost, and no session ends for longer than a reconnection.
func TestRenewalUnderLoad(t *testing.T) {
	need(t)
	dir := t.TempDir()
	tokens := filepath.Join(dir, "join-tokens")
	if err := os.WriteFile(tokens, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFleet(t, "renewal", "testdata/readme-fabric.yaml")
	f.args = []string{"--enroll.ca-cert=" + filepath.Join(f.dir, "ca.crt"), "--enroll.ca-key=" + filepath.Join(f.dir, "ca.key"),
		"--enroll.join-token-file=" + tokens, "--enroll.certificate-life=15m"}
	f.startCoordinator()
	out, stderr, code := graylink(t, append([]string{"join-token", "--file", tokens, "--ca", filepath.Join(f.dir, "ca.crt")}, f.nodes()...)...)
	if code != 0 {
		t.Fatalf("join-token: %s", stderr)
	}
	for i, token := range strings.Fields(out) {
		node := f.nodes()[i]
		cmd := f.l.Command(t.Context(), node, filepath.Join(bin, "graylink-node"), "--enroll", "--enroll.join-token-file=-", "--enroll.directory", filepath.Join(dir, node),
			"--coordinator.address=unix:"+filepath.Join(f.dir, "agents.sock"), "--coordinator.server-name=coordinator", "--web.listen-address="+agentWeb)
		cmd.Stdin = strings.NewReader(token)
		f.agents[node] = f.start(cmd, node)
	}
	f.connected(len(f.nodes()))
	f.probing(len(f.nodes()))
	before := f.answering(100)
	base := f.base()
	serials := func() map[string]string {
		found := map[string]string{}
		for _, n := range f.nodes() {
			for name := range f.agent(n, "/metrics") {
				if strings.HasPrefix(name, "graylink_certificate_expiry_timestamp_seconds{") && strings.Contains(name, "node.pem") {
					found[n] = name
				}
			}
		}
		return found
	}
	first := serials()
	if len(first) != len(f.nodes()) {
		t.Fatalf("certificates of agents: %v", first)
	}
	// A certificate begins five minutes before it is signed and ends fifteen after, and is renewed after two thirds of that.
	f.wait(10*time.Minute, "every agent has a new certificate", func() bool {
		now := serials()
		for n, was := range first {
			if now[n] == "" || now[n] == was {
				return false
			}
		}
		return true
	})
	f.answering(100)
	f.undisturbed("renewal", base, before)
}
