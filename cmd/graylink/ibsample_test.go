package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibfabric/ibtest"
	"github.com/graylink/graylink/internal/ibsample"
)

func TestIBSampleArguments(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("metrics: [PortXmitWiat]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"ib", "sample", "--metric", "PortXmitWiat"}, `metrics: metric "PortXmitWiat"`},
		{[]string{"ib", "sample", "--device", "ibsim:x"}, "ibsim:SOCKET/NODE is expected"},
		{[]string{"ib", "sample", "--port", "[", "--device", "ibsim:x/y"}, `port "["`},
		{[]string{"ib", "sample", "--interval", "1ms"}, "interval: 1ms"},
		{[]string{"ib", "serve", "--config.file", bad}, `bad.yaml: metrics: metric "PortXmitWiat"`},
		{[]string{"ib", "serve", "--config.file", "/nowhere"}, "/nowhere"},
	} {
		if _, stderr, code := runGraylink(t, "", tc.args...); code != 1 || !strings.Contains(stderr, tc.want) {
			t.Errorf("%v: exit code %d, %s; want %q", tc.args, code, stderr, tc.want)
		}
	}
}

// TestIBSampleAndServe checks that the counters that the fabric's console set are printed, and served by a process
// that others can scrape.
func TestIBSampleAndServe(t *testing.T) {
	sim := ibtest.Start(t, ibtest.FatTree(2, 2, 2), ibtest.Options{})
	sim.ChangeAndWait(`Unlink "leaf0"[2]`) // a port whose counters only the console changes
	sim.RunConsole(`PerformanceSet "leaf0"[2] PortCountersExtended.PortRcvData=5000000000`)
	sim.RunConsole(`PerformanceSet "leaf0"[2] PortCounters.SymbolErrorCounter=65535`)
	device := "ibsim:" + sim.SocketName() + "/h0"

	var stdout, stderr string
	var code int
	var p ibsample.PortSample
	// A busy machine may leave a query without an answer in time. Its counters are absent then, in that sample.
	for range 20 {
		stdout, stderr, code = runGraylink(t, "", "ib", "sample", "--device", device, "--interval", "200ms", "--port", "leaf0:*", "--format", "json")
		lines := strings.Split(strings.TrimSpace(stdout), "\n")
		p = ibsample.PortSample{}
		if code != 0 || len(lines) != 4 || json.Unmarshal([]byte(lines[1]), &p) != nil {
			t.Fatalf("exit code %d, %s%s", code, stdout, stderr)
		}
		if p.Counters["PortCountersExtended.PortRcvData"].Rate != nil && p.Counters["PortCounters.SymbolErrorCounter"].Saturated {
			break
		}
	}
	octets, errors := p.Counters["PortCountersExtended.PortRcvData"], p.Counters["PortCounters.SymbolErrorCounter"]
	if p.Port != "leaf0:2" || p.LID == 0 || octets.Raw != 5_000_000_000 || octets.Rate == nil || *octets.Rate != 0 || errors.Raw != 65535 || !errors.Saturated || errors.Rate != nil {
		t.Errorf("%s", stdout)
	}
	stdout, stderr, code = runGraylink(t, "", "ib", "sample", "--device", device, "--interval", "200ms", "--port", "leaf0:2")
	if code != 0 || !strings.Contains(stdout, ">=65535") || strings.Contains(stdout, "leaf0:1 ") {
		t.Errorf("exit code %d, %s%s", code, stdout, stderr)
	}

	file := filepath.Join(t.TempDir(), "ib.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "device: %q\ninterval: 200ms\ndiscovery_interval: 1s\n", device), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "ib", "serve", "--config.file", file, "--web.listen-address", address)
	cmd.Env = append(os.Environ(), "GRAYLINK_TEST_MAIN=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	want := `fabric_switch_port_receive_bytes_total{port="2",switch="leaf0"} 2e+10`
	for end := time.Now().Add(30 * time.Second); !has(address, want); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s is not served", want)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("stopped by a signal: %v", err)
	}
}

func has(address, line string) bool {
	r, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		return false
	}
	defer r.Body.Close()
	found := false
	for s := bufio.NewScanner(io.LimitReader(r.Body, 64<<20)); s.Scan(); {
		found = found || s.Text() == line
	}
	return found
}
