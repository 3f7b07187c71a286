package nodeagent

import (
	"bytes"
	"encoding/binary"
	"encoding/csv"
	"encoding/hex"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/graylink/graylink/internal/clocksync"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/testneeds"
)

// listen makes a socket as chronyd does.
func listen(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// waiting returns the samples that wait in a socket.
func waiting(t *testing.T, path string, c *net.UnixConn) [][]byte {
	t.Helper()
	const last = "no more"
	end, err := net.Dial("unixgram", path)
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	if _, err := end.Write([]byte(last)); err != nil {
		t.Fatal(err)
	}
	var out [][]byte
	for {
		b := make([]byte, 100)
		n, err := c.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		if string(b[:n]) == last {
			return out
		}
		out = append(out, b[:n])
	}
}

// results returns the counts that are not zero.
func results(t *testing.T, s *steering) string {
	t.Helper()
	var out []string
	counts := s.copyCounts()
	for _, r := range []string{"sent", "failed", "relative", "reference", "settling"} {
		if v := counts[r]; v != 0 {
			out = append(out, fmt.Sprintf("%s %d", r, v))
		}
	}
	return strings.Join(out, ", ")
}

const someday = int64(1_700_000_000_123_456_789)

// patience allows for a machine that is busy with other work.
const patience = 5 * time.Second

// steered is a steering that has settled, with its next window.
type steered struct {
	*steering
	t    *testing.T
	mono time.Duration
	step int64 // how far the clock was set since, ns
}

func newSteered(t *testing.T, socket string) *steered {
	s := &steered{newSteering(socket, slog.New(slog.DiscardHandler)), t, settleTime, 0}
	s.writeTimeout = patience
	return s
}

func (s *steered) window(k clocksync.Status) {
	s.processWindow(s.t.Context(), k, someday+int64(s.mono)+s.step, s.mono)
	s.mono += clocksync.Window
}

func (s *steered) expect(want string) {
	s.t.Helper()
	if got := results(s.t, s.steering); got != want {
		s.t.Errorf("after %v: %s, want %s", s.mono, got, want)
	}
}

// ahead is a locked clock 250 us ahead of a reference.
var ahead = clocksync.Status{State: clocksync.Locked, Known: true, Offset: 250_000, Drift: 1e-6}

// TestSample compares the octets of struct sock_sample with those that a compiler lays out on a 64-bit machine of
// either byte order: 1700000000 s, 123456 us, -250e-6 s, three zeros, and "SOCK".
func TestSample(t *testing.T) {
	want := "00f1536500000000" + "40e2010000000000" + "fca9f1d24d6230bf" + "000000000000000000000000" + "4b434f53"
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		want = "000000006553f100" + "000000000001e240" + "bf30624dd2f1a9fc" + "000000000000000000000000" + "534f434b"
	}
	if got := hex.EncodeToString(appendSample(nil, someday, -250_000)); got != want {
		t.Errorf("sample\n%s, want\n%s", got, want)
	}
}

func TestSteeringRule1OnlyALockedClock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	c, s := listen(t, path), newSteered(t, path)
	for _, state := range []clocksync.State{clocksync.Converging, clocksync.Holdover, clocksync.Lost} {
		k := ahead
		k.State = state
		s.window(k)
	}
	s.expect("")
	s.window(ahead)
	s.expect("sent 1")
	if got := waiting(t, path, c); len(got) != 1 || !bytes.Equal(got[0], appendSample(nil, someday+int64(settleTime+3*clocksync.Window), -250_000)) {
		t.Errorf("received %x, want one sample of the last window", got)
	}
}

func TestSteeringRule2NotByARelativeFrame(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	c, s := listen(t, path), newSteered(t, path)
	var said bytes.Buffer
	s.log = slog.New(slog.NewTextHandler(&said, nil))
	k := ahead
	k.Relative = true
	s.window(k)
	s.window(k)
	s.expect("relative 2")
	if got := waiting(t, path, c); len(got) != 0 {
		t.Errorf("received %x, want nothing", got)
	}
	if n := strings.Count(said.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings, want one:\n%s", n, &said)
	}
}

func TestSteeringRule3NotTheReference(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	c, s := listen(t, path), newSteered(t, path)
	f := clocksync.NewFollower()
	f.ApplyUpdate(&clocksync.Update{Frame: 1, Maps: []clocksync.ClockMap{{Clock: "h1", Map: clocksync.Map{State: clocksync.Locked, Ref: someday, Component: 1}}}}, s.mono, true)
	s.window(f.StatusOf("h1", someday+1e9, s.mono))
	s.expect("reference 1")
	if got := waiting(t, path, c); len(got) != 0 {
		t.Errorf("received %x, want nothing", got)
	}
}

func TestSteeringRule4NotJustAfterTheClockWasSet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listen(t, path)
	s := newSteered(t, path)
	s.mono = clocksync.Window // the first after the start
	for range 9 {
		s.window(ahead)
	}
	s.expect("settling 9")
	s.window(ahead)
	s.expect("sent 1, settling 9")
	s.step = 50e3 // a small step, as when one of both clocks is read late
	s.window(ahead)
	s.expect("sent 2, settling 9")
	s.step = -1e9
	for range 10 {
		s.window(ahead)
	}
	s.expect("sent 2, settling 19")
	s.window(ahead)
	s.expect("sent 3, settling 19")
}

func TestSteeringRule5SocketsComeAndGo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s := newSteered(t, path)
	s.window(ahead)
	s.expect("failed 1")
	first := listen(t, path)
	s.window(ahead)
	s.expect("sent 1, failed 1")
	first.Close()
	s.window(ahead)
	s.expect("sent 1, failed 2")
	if err := os.Remove(path); err != nil { // as chronyd does
		t.Fatal(err)
	}
	listen(t, path)
	s.writeTimeout = 10 * time.Millisecond
	for i := 2; ; i++ {
		s.window(ahead)
		if results(t, s.steering) == fmt.Sprintf("sent %d, failed 3", i-1) {
			break // it is full
		}
		if s.expect(fmt.Sprintf("sent %d, failed 2", i)); t.Failed() || i > 100_000 {
			t.Fatal("a socket without a reader is never full")
		}
	}
}

// still is an engine that measures nothing.
type still struct{}

func (still) DrainExchanges(func(clocksync.PairID, int, int64, int64)) {}
func (still) SetRelations(map[clocksync.PairID]clocksync.Relation)     {}
func (still) SetClockBound(string, time.Duration, bool)                {}
func (still) ClockWitnesses(func(clocksync.Witness))                   {}
func (still) NodeTime(t int64) int64                                   { return t }
func (still) Now() time.Time                                           { return time.Now() }
func (still) Config() *probe.Config                                    { return &probe.Config{Node: "h1"} }
func (still) ClockKinds(func(string, clocksync.Kind, int64))           {}

// TestClocksSteer follows an update of the coordinator to the sample that chronyd reads.
func TestClocksSteer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	socket := listen(t, path)
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		c := newClocks("h1", still{}, func([]byte) {}, log)
		c.steer = newSteering(path, log)
		c.steer.writeTimeout = patience
		done := make(chan struct{})
		go func() { defer close(done); c.run(t.Context()) }()
		t.Cleanup(func() { <-done })
		start := time.Now()
		const windows = 12
		for range windows {
			time.Sleep(clocksync.Window / 2)
			c.applyUpdate((&clocksync.Update{Frame: 7, Maps: []clocksync.ClockMap{{Clock: "h1", Map: clocksync.Map{State: clocksync.Locked, Ref: start.UnixNano(), Offset: -5e9, Component: 1}}}}).AppendTo(nil), true)
			time.Sleep(clocksync.Window / 2)
			synctest.Wait()
		}
		if got, want := results(t, c.steer), "sent 3, settling 9"; got != want {
			t.Fatalf("%s, want %s", got, want)
		}
		var want [][]byte
		for i := 10; i <= windows; i++ {
			want = append(want, appendSample(nil, start.Add(time.Duration(i)*clocksync.Window).UnixNano(), -5e9))
		}
		for i, b := range want {
			got := make([]byte, 100)
			if n, err := socket.Read(got); err != nil || !bytes.Equal(got[:n], b) {
				t.Errorf("sample %d: %x %v, want %x", i, got[:n], err, b)
			}
		}
	})
}

// TestChronydTakesSamples checks that a chronyd that leaves the clock alone reports how wrong the clock is.
func TestChronydTakesSamples(t *testing.T) {
	for _, tool := range []string{"chronyd", "chronyc"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
				t.Fatalf("needs %s (Debian package chrony)", tool)
			}
			t.Skipf("needs %s (Debian package chrony)", tool)
		}
	}
	testneeds.Root(t, "chronyd has to start as root")
	dir, err := os.MkdirTemp("", "graylink-chrony-") // short: the path of a socket has 108 octets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file := func(name string) string { return filepath.Join(dir, name) }
	config := fmt.Sprintf("refclock SOCK %s refid GRAY poll 0 filter 1 noselect\nport 0\ncmdport 0\nbindcmdaddress %s\npidfile %s\n", file("s"), file("cmd"), file("pid"))
	if err := os.WriteFile(file("conf"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	cmd := exec.Command("chronyd", "-x", "-d", "-u", "root", "-f", file("conf"))
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		cmd.Wait() //nolint:errcheck // it was killed
		if t.Failed() {
			t.Logf("chronyd:\n%s", &said)
		}
	}()

	// chronyd accepts only samples of the last seconds, and makes its socket when it is ready for them. They may come
	// more often than once a second.
	s := newSteering(file("s"), slog.New(slog.DiscardHandler))
	start := time.Now()
	report := ""
	until(t, "chronyd's report of the source", func() bool {
		if err := s.sendSample(appendSample(nil, time.Now().UnixNano(), -250_000)); err != nil {
			return false
		}
		out, err := exec.Command("chronyc", "-h", file("cmd"), "-n", "-c", "sources").Output()
		if err != nil {
			return false
		}
		// Mode, state, name, stratum, poll, reach, age of the last sample, its offset
		// with what was corrected since, as measured, its error: chronyc(1), sources.
		report = string(out)
		row, err := csv.NewReader(strings.NewReader(report)).Read()
		if err != nil || len(row) != 10 || row[2] != "GRAY" || row[5] == "0" {
			return false
		}
		measured, err := strconv.ParseFloat(row[8], 64)
		if err != nil {
			t.Fatalf("%q: %v", report, err)
		}
		if math.Abs(measured-250e-6) > 1e-8 {
			t.Fatalf("chronyd finds the clock %g s ahead, want 250e-6: %s", measured, report)
		}
		return true
	})
	t.Logf("after %v: %s", time.Since(start).Round(time.Millisecond), report)
}

func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("%s: not within 20 s", what)
}
