// Package nccl tests the profiler plugin for NCCL (deploy/nccl) with a program that drives it as NCCL does, and with the
// real listener of an agent. No real NCCL has loaded the plugin.
package nccl

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/unix"
)

const (
	patience = 3 * time.Minute // for what takes seconds
	source   = "../../deploy/nccl/"
)

// flags are those with which users build the plugin as well.
var flags = []string{"-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"}

// programs are the plugin and the program that drives it, built with the same flags.
type programs struct{ library, host string }

// requireGCC skips the test if gcc is missing, which is a tool of make test. With GRAYLINK_REQUIRE_ALL=1 the test fails.
func requireGCC(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
			t.Fatal("needs gcc (Debian packages gcc and libc6-dev)")
		}
		t.Skip("needs gcc: apt-get install gcc libc6-dev")
	}
}

// compile runs gcc.
func compile(t testing.TB, args ...string) {
	t.Helper()
	requireGCC(t)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// build builds both in a directory.
func build(t testing.TB, dir string, more ...string) programs {
	t.Helper()
	p := programs{filepath.Join(dir, "libnccl-profiler-graylink.so"), filepath.Join(dir, "host")}
	common := slices.Concat(flags, more)
	compile(t, slices.Concat(common, []string{"-fPIC", "-fvisibility=hidden", "-shared", "-o", p.library, source + "plugin.c", source + "writer.c"})...)
	compile(t, slices.Concat(common, []string{"-Wno-cast-function-type", "-rdynamic", "-o", p.host, "testdata/host.c", "-ldl"})...)
	return p
}

// counted is the flag with which the program counts allocations. Sanitizers replace the allocator themselves.
const counted = "-DCOUNT_ALLOCATIONS"

// shared are the programs without sanitizers, which the tests build once.
var shared struct {
	once sync.Once
	dir  string
	programs
}

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "graylink-nccl-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		shared.dir = dir
		return m.Run()
	}())
}

func buildShared(t testing.TB) programs {
	t.Helper()
	requireGCC(t)
	shared.once.Do(func() { shared.programs = build(t, shared.dir, counted) })
	if shared.library == "" {
		t.Fatal("the plugin could not be built, as another test says")
	}
	return shared.programs
}

func TestLayouts(t *testing.T) {
	compile(t, "-std=c11", "-Wall", "-Werror", "-fsyntax-only", "-I", source, "testdata/layouts.c")
}

// hostProgram is a running program that drives the plugin.
type hostProgram struct {
	t     testing.TB
	cmd   *exec.Cmd
	lines *bufio.Scanner
	input io.WriteCloser
}

// start starts the program without the addresses that gcc's thread sanitizer does not know.
func (p programs) start(t testing.TB, env []string, version int, mode string, n int) *hostProgram {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "setarch", "-R", p.host, p.library, strconv.Itoa(version), mode, strconv.Itoa(n))
	cmd.Env = append(append(os.Environ(), "GRAYLINK_NCCL_RANKS=8", "TSAN_OPTIONS=halt_on_error=1"), env...)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return &hostProgram{t, cmd, bufio.NewScanner(stdout), stdin}
}

// readUntil returns the lines that the program prints before a line.
func (h *hostProgram) readUntil(last string) (lines []string) {
	h.t.Helper()
	for h.lines.Scan() {
		if h.lines.Text() == last {
			return lines
		}
		lines = append(lines, h.lines.Text())
	}
	h.t.Fatalf("the program ended before it said %q: %v", last, h.cmd.Wait())
	return nil
}

// goOn lets the program go on from where it waits.
func (h *hostProgram) goOn() {
	h.t.Helper()
	if _, err := io.WriteString(h.input, "\n"); err != nil {
		h.t.Fatal(err)
	}
}

func (h *hostProgram) wait() {
	h.t.Helper()
	if err := h.cmd.Wait(); err != nil {
		h.t.Fatalf("the program that drives the plugin: %v", err)
	}
}

// agent is the listener of an agent, and what it got.
type agent struct {
	*ccl.Listener
	t    testing.TB
	path string
	mu   sync.Mutex
	recs []ccl.Record
}

func startAgent(t testing.TB) *agent {
	t.Helper()
	a := &agent{t: t, path: filepath.Join(t.TempDir(), "nccl.sock")}
	var err error
	a.Listener, err = ccl.Listen(ccl.ListenerConfig{
		Path:   a.path,
		Source: func(unix.Peer) ccl.Source { return ccl.Source{Job: "t7", Host: "h1"} },
		Sink: func(_ uint32, rec ccl.Record) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.recs = append(a.recs, rec)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return a
}

func (a *agent) env() []string { return []string{"GRAYLINK_NCCL_SOCKET=" + a.path} }

// count returns how many records satisfy ok.
func (a *agent) count(ok func(ccl.Record) bool) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.recs {
		if ok(r) {
			n++
		}
	}
	return n
}

// until waits until ok.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not happen", what)
		}
	}
}

// isOver says whether a record is of an operation or a transfer that is over.
func isOver(r ccl.Record) bool {
	switch r := r.(type) {
	case *ccl.Op:
		return r.State == ccl.Completed
	case *ccl.Edge:
		return r.State == string(ccl.Completed)
	}
	return false
}

// normal returns the line of a record that is over, with the span for its times, since those of the program are of a
// clock of its own.
func normal(t testing.TB, r ccl.Record, change func(from *ccl.From, start, end *ccl.Nanos)) string {
	t.Helper()
	switch r := r.(type) {
	case *ccl.Op:
		change(&r.From, &r.StartNS, &r.EndNS)
	case *ccl.Edge:
		change(&r.From, &r.StartNS, &r.EndNS)
	}
	line, err := ccl.AppendRecord(nil, r)
	if err != nil {
		t.Fatal(err)
	}
	return string(line)
}

func span(from *ccl.From, start, end *ccl.Nanos) {
	from.Job, from.Host = "", ""
	*end, *start = ccl.KnownNanos(end.NS-start.NS), ccl.KnownNanos(0)
}

// parse returns the records that the program printed.
func parse(t testing.TB, lines []string) (recs []ccl.Record) {
	t.Helper()
	for _, l := range lines {
		r, err := ccl.ParseRecord([]byte(l))
		if err != nil {
			t.Fatalf("the program printed %s: %v", l, err)
		}
		recs = append(recs, r)
	}
	return recs
}

// compare fails the test with the first lines that are in one list only.
func compare(t testing.TB, got, want []string) {
	t.Helper()
	slices.Sort(got)
	slices.Sort(want)
	if slices.Equal(got, want) {
		return
	}
	t.Errorf("%d records, and %d should be there", len(got), len(want))
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("the first difference is\n%sand should be\n%s", got[i], want[i])
		}
	}
}

// checkTruth runs the program with threads for programs, proxies and kernels of three communicators, and compares what
// the agent got with what the program did.
func checkTruth(t *testing.T, p programs, version int) {
	a := startAgent(t)
	h := p.start(t, a.env(), version, "truth", 0)
	truth := parse(t, h.readUntil("done"))
	pending := 0 // version 3 does not say how many channels these have: they are over when the communicator is
	for _, r := range truth {
		if o, ok := r.(*ccl.Op); ok && o.Peer != nil && version == 3 {
			pending++
		}
	}
	until(t, "the arrival of all records", func() bool { return a.count(isOver) >= len(truth)-pending })
	h.goOn()
	h.wait()
	until(t, "the arrival of the last records", func() bool { return a.Stats().Connections == 0 })
	var got, want []string
	last := map[string]*ccl.Beat{}
	for _, r := range a.recs {
		if isOver(r) {
			got = append(got, normal(t, r, span))
		}
		if b, ok := r.(*ccl.Beat); ok {
			last[b.Comm] = b
		}
	}
	numbers := map[string]map[string]uint64{}
	for _, r := range truth {
		if o, ok := r.(*ccl.Op); ok {
			if numbers[o.Comm] == nil {
				numbers[o.Comm] = map[string]uint64{}
			}
			numbers[o.Comm][o.Op] = max(numbers[o.Comm][o.Op], o.Seq+1)
		}
		want = append(want, normal(t, r, span))
	}
	compare(t, got, want)
	for comm, n := range numbers {
		if b := last[comm]; b == nil || fmt.Sprint(b.Launched) != fmt.Sprint(n) || fmt.Sprint(b.Completed) != fmt.Sprint(n) {
			t.Errorf("the last beat of %s is %+v, and the counts should be %v", comm, b, n)
		}
	}
	if n := a.count(func(r ccl.Record) bool { c, ok := r.(*ccl.Comm); return ok && strings.HasPrefix(c.Name, `group "`) }); n != 3 {
		t.Errorf("%d communicators were announced, and not 3", n)
	}
	dropped := map[ccl.Reason]uint64{}
	if version >= 6 {
		dropped[ccl.DroppedCopyEngine] = 3 * 210
	}
	if s := a.Stats(); s.Unreadable != 0 || fmt.Sprint(s.Dropped) != fmt.Sprint(dropped) {
		t.Errorf("counts are %+v, and dropped should be %v", s, dropped)
	}
}

func TestRecordsAreWhatTheProgramDid(t *testing.T) {
	p := buildShared(t)
	for version := 3; version <= 7; version++ {
		t.Run(fmt.Sprintf("v%d", version), func(t *testing.T) { checkTruth(t, p, version) })
	}
}

// checkOpen looks at what an agent gets of operations that do not end.
func checkOpen(t *testing.T, p programs) {
	a := startAgent(t)
	h := p.start(t, a.env(), 7, "open", 0)
	h.readUntil("open")
	op := func(seq uint64, state ccl.OpState) func(ccl.Record) bool {
		return func(r ccl.Record) bool {
			o, ok := r.(*ccl.Op)
			return ok && o.Seq == seq && o.State == state
		}
	}
	edge := func(state string, held ccl.Hold) func(ccl.Record) bool {
		return func(r ccl.Record) bool {
			e, ok := r.(*ccl.Edge)
			return ok && e.Seq == 0 && e.Op == "AllReduce" && e.State == state && e.Held == held && e.Since.Known == (held != "")
		}
	}
	until(t, "an open transfer and two open operations", func() bool {
		return a.count(op(0, ccl.Started)) > 0 && a.count(op(1, ccl.Scheduled)) > 0 && a.count(edge(ccl.Open, ccl.HeldByPeer)) > 0
	})
	h.goOn()
	h.readUntil("over")
	until(t, "the end of the transfer and the operation", func() bool {
		return a.count(op(0, ccl.Completed)) == 1 && a.count(edge(string(ccl.Completed), "")) == 1
	})
	h.goOn()
	h.wait()
	until(t, "the count of the operation without an end", func() bool { return a.Stats().Dropped[ccl.DroppedTimes] == 1 })
	if n := a.count(op(1, ccl.Completed)); n != 0 {
		t.Error("an operation that no kernel ran is over")
	}
}

func TestOpenOperationsAreSent(t *testing.T) { checkOpen(t, buildShared(t)) }

// checkFlood sends more than an agent takes, and checks that what is missing is counted exactly.
func checkFlood(t *testing.T, p programs, ops int) {
	path := filepath.Join(t.TempDir(), "nccl.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h := p.start(t, []string{"GRAYLINK_NCCL_SOCKET=" + path}, 7, "flood", ops)
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	h.readUntil("flooded") // although no line was read
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	over, dropped := 0, 0
	lines := bufio.NewScanner(conn)
	for over+dropped < 3*ops && lines.Scan() {
		var d struct {
			Kind  string
			Count int
		}
		if err := json.Unmarshal(lines.Bytes(), &d); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		if d.Kind == "dropped" {
			dropped += d.Count
			continue
		}
		if r, err := ccl.ParseRecord(lines.Bytes()); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		} else if isOver(r) {
			over++
		}
	}
	if over+dropped != 3*ops || dropped == 0 || over == 0 {
		t.Errorf("%d records came and %d were counted as dropped, which should be %d together: %v", over, dropped, 3*ops, lines.Err())
	}
	go io.Copy(io.Discard, conn)
	h.goOn()
	h.wait()
}

func TestNeverWaitsForTheAgent(t *testing.T) { checkFlood(t, buildShared(t), 20000) }

// TestDumpIsThatOfTheInspector reads the file that the plugin writes as the Inspector would, whose times are in
// microseconds, and which has no kind of a transfer and no root.
func TestDumpIsThatOfTheInspector(t *testing.T) {
	dir := t.TempDir()
	h := buildShared(t).start(t, []string{"GRAYLINK_NCCL_SOCKET=none", "GRAYLINK_NCCL_DUMP_DIR=" + dir}, 7, "truth", 0)
	truth := parse(t, h.readUntil("done"))
	h.goOn()
	h.wait()
	files, err := filepath.Glob(filepath.Join(dir, "*-pid*.log"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files are %v: %v", files, err)
	}
	f, err := os.Open(files[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var got, want []string
	untimed := func(from *ccl.From, start, end *ccl.Nanos) {
		from.Job, from.Host = "", ""
		*start, *end = ccl.Nanos{}, ccl.Nanos{}
	}
	counts, err := ccl.ReadInspector(f, ccl.Source{}, func(r ccl.Record) error {
		if isOver(r) {
			got = append(got, normal(t, r, untimed))
		}
		return nil
	}, func(e fabric.LineError) { t.Errorf("line %d: %v", e.Line, e.Err) })
	if err != nil {
		t.Fatal(err)
	}
	if copies := uint64(3 * 210); counts.Dropped[ccl.DroppedByWriter] > copies || len(counts.Dropped) > 1 {
		t.Errorf("dropped is %v, and at most %d collectives of copy engines should be", counts.Dropped, copies)
	}
	for _, r := range truth {
		switch r := r.(type) {
		case *ccl.Op:
			r.Root = nil
			cut(&r.ExecNS)
		case *ccl.Edge:
			if r.Op != "Send" && r.Op != "Recv" {
				r.Op = ""
			} else {
				r.Op = map[ccl.Direction]string{ccl.Send: "Send", ccl.Recv: "Recv"}[r.Direction]
			}
			for _, n := range []*ccl.Nanos{&r.GPUWait, &r.PeerWait, &r.Wire, &r.Flush} {
				cut(n)
			}
		}
		want = append(want, normal(t, r, untimed))
	}
	compare(t, got, want)
}

// cut takes what is less than a microsecond from a duration.
func cut(n *ccl.Nanos) { n.NS -= n.NS % 1000 }

func TestWithoutAnAgentNothingIsAskedFor(t *testing.T) {
	p := buildShared(t)
	for version := 3; version <= 7; version++ {
		p.start(t, []string{"GRAYLINK_NCCL_SOCKET=" + filepath.Join(t.TempDir(), "none")}, version, "idle", 0).wait()
	}
}

// TestVersion3NeedsTheNumberOfRanks runs without GRAYLINK_NCCL_RANKS, which version 3 does not say.
func TestVersion3NeedsTheNumberOfRanks(t *testing.T) {
	a := startAgent(t)
	buildShared(t).start(t, append(a.env(), "GRAYLINK_NCCL_RANKS="), 3, "idle", 0).wait()
	if s := a.Stats(); s.Connections != 0 || s.Lines != 0 {
		t.Errorf("an agent got %+v", s)
	}
}

// measure returns the nanoseconds of a callback and the allocations of all threads after the start.
func measure(t testing.TB, ops int) (ns float64, allocations int) {
	t.Helper()
	p := buildShared(t)
	a := startAgent(t)
	h := p.start(t, a.env(), 7, "bench", ops)
	lines := h.readUntil("benched")
	h.goOn()
	h.wait()
	var m struct {
		NS          float64 `json:"ns_per_call"`
		Allocations int     `json:"allocations"`
	}
	if len(lines) != 1 {
		t.Fatal(errors.New("no figures"))
	}
	if err := json.Unmarshal([]byte(lines[0]), &m); err != nil {
		t.Fatal(err)
	}
	return m.NS, m.Allocations
}

func TestNothingIsAllocatedAfterTheStart(t *testing.T) {
	if ns, n := measure(t, 2000); n != 0 {
		t.Errorf("%d allocations after the start; a callback took %.0f ns", n, ns)
	}
}

// BenchmarkCallback measures a callback of NCCL: a collective of two channels with two transfers of five steps has 62.
func BenchmarkCallback(b *testing.B) {
	for b.Loop() {
		ns, _ := measure(b, 50000)
		b.ReportMetric(ns, "ns/callback")
	}
}
