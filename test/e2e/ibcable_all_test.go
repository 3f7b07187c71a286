//go:build all

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibfabric/ibtest"
)

// cableMessage is an alert about a cable as the webhook received it.
type cableMessage struct {
	Status              string
	Labels, Annotations map[string]string
}

// TestBrokenInfiniBandCable runs OpenSM on ibsim, graylink ib serve, and Debian's Prometheus and Alertmanager with the
// files of deploy/ and rules/, and makes the symbol errors of one port grow. The one message about a cable has to name
// both of its ends and their counters.
func TestBrokenInfiniBandCable(t *testing.T) {
	programs(t)
	prometheus, alertmanager := program(t, "prometheus"), program(t, "prometheus-alertmanager")
	sim := ibtest.Start(t, ibtest.FatTree(4, 2, 2), ibtest.Options{})
	dir := t.TempDir()
	server, manager, agent := freeAddress(t), freeAddress(t), freeAddress(t)
	received := make(chan cableMessage, 64)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Alerts []cableMessage }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		for _, m := range body.Alerts {
			if strings.HasSuffix(m.Labels["alertname"], "CableErrors") {
				received <- m
			}
		}
	}))
	t.Cleanup(hook.Close)

	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	install := func(from, to string) string {
		t.Helper()
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		return write(to, strings.NewReplacer("127.0.0.1:9090", server, "127.0.0.1:9093", manager, "http://127.0.0.1:9099", hook.URL).Replace(string(b)))
	}
	rules, err := filepath.Glob("../../rules/*.rules.yaml")
	if err != nil || len(rules) == 0 {
		t.Fatal(rules, err)
	}
	for _, r := range rules {
		install(r, "graylink/"+filepath.Base(r))
	}
	write("graylink/collectors.yml", fmt.Sprintf("- targets: [%q]\n", agent))
	write("graylink/switches.yml", "[]\n")
	serve := write("ib.yaml", fmt.Sprintf("device: \"ibsim:%s/h0\"\nname: ib1\n", sim.SocketName()))
	runBeside(t, dir, filepath.Join(bin, "graylink"), "ib", "serve", "--config.file", serve, "--web.listen-address", agent)
	runBeside(t, dir, alertmanager, "--config.file", install("../../deploy/alertmanager/alertmanager.yml", "alertmanager.yml"), "--storage.path", filepath.Join(dir, "alertmanager"),
		"--web.listen-address", manager, "--cluster.listen-address=")
	runBeside(t, dir, prometheus, "--config.file", install("../../deploy/prometheus/prometheus.yml", "prometheus.yml"), "--storage.tsdb.path", filepath.Join(dir, "tsdb"),
		"--web.listen-address", server, "--enable-feature=native-histograms")

	m := breakCable(t, sim, received)
	t.Logf("%s\n%s", m.Annotations["summary"], m.Annotations["description"])
	if m.Labels["alertname"] != "FabricCableErrors" || m.Labels["switch"] != "leaf1" || m.Labels["port"] != "4" || m.Labels["severity"] != "warning" {
		t.Errorf("labels %v", m.Labels)
	}
	if want := "Signals arrive damaged at port 4 of leaf1, from the cable to port 2 of spine1."; m.Annotations["summary"] != want {
		t.Errorf("summary %q, want %q", m.Annotations["summary"], want)
	}
	for _, want := range []string{"leaf1:4 counted within two minutes: symbol_errors ", "symbol_errors is ", "link_downed is 0 in all.", "The other end of its cable is spine1:2."} {
		if !strings.Contains(m.Annotations["description"], want) {
			t.Errorf("the description lacks %q: %s", want, m.Annotations["description"])
		}
	}
	select {
	case another := <-received:
		t.Errorf("another message: %+v", another)
	default:
	}
}

// breakCable makes the symbol errors of port 4 of leaf1 grow until a message about a cable is received, and returns it.
func breakCable(t *testing.T, sim *ibtest.Fabric, received <-chan cableMessage) cableMessage {
	t.Helper()
	began, tick := time.Now(), time.NewTicker(time.Second)
	defer tick.Stop()
	// The alert needs two minutes of errors. The bound is for hangs.
	for errors, late := 0, time.After(15*time.Minute); ; {
		select {
		case m := <-received:
			t.Logf("the message came %.0f s after the first error", time.Since(began).Seconds())
			return m
		case <-late:
			t.Fatal("no message about a cable came")
		case <-tick.C:
			errors += 7
			sim.RunConsole(fmt.Sprintf(`PerformanceSet "leaf1"[4] PortCounters.SymbolErrorCounter=%d`, errors))
		}
	}
}

// runBeside runs a program until the test ends, and logs what it wrote if the test fails.
func runBeside(t *testing.T, dir, program string, args ...string) {
	t.Helper()
	var out lockedBuffer
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop(t, cmd)
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(program), out.String())
		}
	})
}
