package follow

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/ccl/ccltest"
	"github.com/graylink/graylink/internal/points"
)

// epoch is when the tests begin, since the times of files are those of the machine.
var epoch = time.Now()

// followed is a Follower whose time the test passes.
type followed struct {
	*Follower
	t   testing.TB
	now time.Time
	log bytes.Buffer
}

func newFollowed(t testing.TB, c Config) *followed {
	t.Helper()
	c.Node = "h3"
	f := &followed{t: t, now: epoch}
	var err error
	if f.Follower, err = New(c, f.now, slog.New(slog.NewTextHandler(&f.log, nil))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.closeFiles)
	return f
}

// poll polls n times, at the Follower's interval.
func (f *followed) poll(n int) {
	for range n {
		f.now = f.now.Add(pollEvery)
		f.Poll(f.now)
	}
}

// values returns the values of a family by its labels.
func (f *followed) values(family *points.Family) map[string]float64 {
	out := map[string]float64{}
	for _, p := range f.CollectPoints(f.now) {
		if p.Family == family {
			out[strings.Join(p.Values, ",")] = p.Value
		}
	}
	return out
}

// expect compares the series of a family that are not 0.
func (f *followed) expect(what string, family *points.Family, want map[string]float64) {
	f.t.Helper()
	got := f.values(family)
	maps.DeleteFunc(got, func(_ string, v float64) bool { return v == 0 })
	if !maps.Equal(got, want) {
		f.t.Errorf("%s: %s is %v, and not %v", what, family.Name, got, want)
	}
}

func write(t testing.TB, path string, text ...[]byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Join(text, nil), 0o600); err != nil {
		t.Fatal(err)
	}
}

// writer is a rank that writes a file as the Inspector does, and keeps a list of what it wrote.
type writer struct {
	t    testing.TB
	path string
	pid  int
	seq  uint64
	file *os.File
	done []uint64 // numbers of the operations whose lines are complete
	half []byte   // the rest of a line
}

func (w *writer) start() {
	w.pid++
	var err error
	if w.file, err = os.OpenFile(w.path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { w.file.Close() })
}

func (w *writer) put(text []byte) {
	if _, err := w.file.Write(text); err != nil {
		w.t.Fatal(err)
	}
}

// dump returns the lines of one operation, which is the next one.
func (w *writer) dump() []byte {
	w.seq++
	op := &ccl.Op{Seq: w.seq, Op: "AllReduce", ExecNS: ccl.KnownNanos(5000)}
	comm := ccl.Comm{Comm: "0x7f8c", Name: "DP 0", NRanks: 8}
	return ccltest.AppendDump(nil, "v4.2", ccltest.Dump{AtNS: int64(w.seq)*1_000_000 + int64(w.pid), Comm: comm, Rank: 2, Ops: []*ccl.Op{op}})
}

// write writes whole operations.
func (w *writer) write(n int) {
	for range n {
		w.put(w.dump())
		w.done = append(w.done, w.seq)
	}
}

// begin writes all but the end of an operation's line, and finish the rest.
func (w *writer) begin() {
	text := w.dump()
	w.half = text[len(text)-30:]
	w.put(text[:len(text)-30])
}

func (w *writer) finish() {
	w.put(w.half)
	w.done = append(w.done, w.seq)
}

// TestEachOperationOnce follows a writer whose file is rotated, copied and truncated, and that is killed and started again.
// What is found is the writer's own list, without the lines that were destroyed before a poll could see them.
func TestEachOperationOnce(t *testing.T) {
	dir := t.TempDir()
	f := newFollowed(t, Config{Dir: dir, Job: "t7"})
	path := filepath.Join(dir, "user1", "pod-pid7.log")
	write(t, path)
	w := &writer{t: t, path: path}
	w.start()
	w.write(3)
	f.poll(1)
	w.begin()
	f.poll(2)
	if recs := f.Find("0x7f8c", "AllReduce", w.seq); len(recs) != 0 {
		t.Errorf("half a line is a record: %v", recs)
	}
	w.finish()
	w.write(2)
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	w.write(2) // into the file that was renamed
	w.start()
	w.write(4)
	f.poll(1)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path+".2", text) // a copy before the truncation
	if err := w.file.Truncate(0); err != nil {
		t.Fatal(err)
	}
	w.pid++
	w.write(5)
	f.poll(1)
	w.write(3) // destroyed: no poll sees them
	w.done = w.done[:len(w.done)-3]
	if err := w.file.Truncate(0); err != nil {
		t.Fatal(err)
	}
	w.pid++
	w.write(1)
	f.poll(1)
	w.begin() // killed within a line
	f.poll(1)
	w.start()
	w.write(2)
	f.poll(2)
	found := 0
	for seq := range w.seq {
		found += len(f.Find("0x7f8c", "AllReduce", seq+1))
	}
	for _, seq := range w.done {
		recs := f.Find("0x7f8c", "AllReduce", seq)
		if len(recs) != 1 {
			t.Errorf("operation %d has %d records", seq, len(recs))
			continue
		}
		if op := recs[0].(*ccl.Op); op.Job != "t7" || op.Host != "h3" || op.Rank != 2 {
			t.Errorf("operation %d: %+v", seq, op)
		}
	}
	if found != len(w.done) {
		t.Errorf("%d operations are found, and %d were written", found, len(w.done))
	}
	f.expect("the series", operations, map[string]float64{"DP 0,t7,AllReduce": float64(len(w.done))})
	f.expect("half a line, which dump_stats has announced", dropped, map[string]float64{"cut": 1, "dump": 1})
	f.expect("truncated twice; of the first one there was a copy, which is read on", truncated, map[string]float64{"": 2})
}

// TestRefusedFiles checks that links, FIFOs, directories, files of others and malicious dumps change nothing, and that each
// is counted once however often it is seen.
func TestRefusedFiles(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	text := (&writer{t: t}).dump()
	write(t, filepath.Join(outside, "secret.log"), text)
	user := filepath.Join(dir, "user1")
	write(t, filepath.Join(user, "mine.log"), text)
	for name, to := range map[string]string{filepath.Join(dir, "away"): outside, filepath.Join(user, "link.log"): filepath.Join(outside, "secret.log"), filepath.Join(user, "rank_1"): "/proc/self/environ"} {
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(user, "fifo.log"), 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(user, "deeper", "x.log"), text)
	write(t, filepath.Join(user, "rank_0"), []byte("cos\nsystem\n(S'touch /tmp/x'\ntR."))
	write(t, filepath.Join(user, "rank_2"), []byte(`{"version":"1.0"}`))
	f := newFollowed(t, Config{Dir: dir})
	f.poll(10)
	f.expect("refused", refused, map[string]float64{"link": 3, "not_regular": 2, "content": 2})
	f.expect("followed", files, map[string]float64{"": 1})
	f.expect("read", operations, map[string]float64{"DP 0,,AllReduce": 1})
	if n := strings.Count(f.log.String(), "not reading a file"); n != 4 {
		t.Errorf("%d refusals are logged, and not the first for each reason and kind of file: %s", n, f.log.String())
	}

	d := f.newDirectory(f.now, uint32(os.Getuid())+1)
	opened, err := ccl.OpenDirectory(user)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	for range 3 {
		if err := d.poll(f.now, opened, opened.Entries); err != nil {
			t.Fatal(err)
		}
	}
	if c := d.counts(); c.Records != 0 || c.refused[ccl.RefusedOwner] != 3 {
		t.Errorf("as another user: %+v", c)
	}
}

// TestUsersCannotWriteForEachOther checks that records of a communicator that another user's files have are dropped until
// that user has written none for long, and that the job of a line is not taken.
func TestUsersCannotWriteForEachOther(t *testing.T) {
	f := newFollowed(t, Config{Dir: t.TempDir()})
	mine, other := uint32(1000), uint32(1001)
	op := func(comm string, seq uint64) *ccl.Op {
		return &ccl.Op{From: ccl.From{Comm: comm, NRanks: 2}, Seq: seq, Op: "AllReduce", ExecNS: ccl.KnownNanos(1), State: ccl.Completed}
	}
	f.Add(f.now, &mine, op("0x1", 1))
	f.Add(f.now, &other, op("0x1", 2))
	f.Add(f.now, &other, op("fr:0:1", 1))
	f.Add(f.now, &mine, op("fr:0:1", 2))
	if len(f.Find("0x1", "AllReduce", 2)) != 0 || len(f.Find("fr:0:1", "AllReduce", 2)) != 1 {
		t.Error("the records of another user are taken, or those of Flight Recorder are not")
	}
	f.expect("dropped", dropped, map[string]float64{"owner": 1})
	f.now = f.now.Add(claimKeep)
	f.Add(f.now, &other, op("0x1", 3))
	f.Add(f.now, &mine, op("0x1", 4))
	if len(f.Find("0x1", "AllReduce", 3)) != 1 || len(f.Find("0x1", "AllReduce", 4)) != 0 {
		t.Error("a communicator that is not used any more is not given up")
	}
}

// TestDirectoriesAreBounded checks that of too many directories those are followed in which something was written last.
func TestDirectoriesAreBounded(t *testing.T) {
	dir := t.TempDir()
	for i := range maxDirectories + 6 {
		name := filepath.Join(dir, fmt.Sprintf("job%03d", i))
		w := &writer{t: t, seq: uint64(i)}
		write(t, filepath.Join(name, "x.log"), w.dump())
		at := epoch.Add(-time.Duration(i) * time.Hour)
		if err := os.Chtimes(name, at, at); err != nil {
			t.Fatal(err)
		}
	}
	f := newFollowed(t, Config{Dir: dir})
	f.poll(3)
	if len(f.dirs) != maxDirectories || f.dirs["job000"] == nil || f.dirs[fmt.Sprintf("job%03d", maxDirectories)] != nil {
		t.Errorf("%d directories are followed", len(f.dirs))
	}
	f.expect("refused", refused, map[string]float64{"too_many": 7})
	f.expect("read", operations, map[string]float64{"DP 0,,AllReduce": maxDirectories - 1})
	newest := filepath.Join(dir, fmt.Sprintf("job%03d", maxDirectories+5))
	if err := os.Chtimes(newest, f.now, f.now.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	f.poll(2)
	f.expect("a newer one is read", operations, map[string]float64{"DP 0,,AllReduce": maxDirectories})
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	f.poll(40)
	if len(f.dirs) != 0 {
		t.Errorf("%d directories are followed that do not exist", len(f.dirs))
	}
	f.expect("all directories are gone", operations, map[string]float64{"DP 0,,AllReduce": maxDirectories})
}

// TestOldFilesAreOver checks that a start of the agent does not bring back what files had before.
func TestOldFilesAreOver(t *testing.T) {
	dir := t.TempDir()
	w := &writer{t: t, path: filepath.Join(dir, "x.log")}
	w.start()
	w.write(3)
	dump := filepath.Join(dir, "rank_0")
	write(t, dump, flight(5, "started").Pickle())
	for path, age := range map[string]time.Duration{w.path: 2 * recentFiles, dump: 2 * recentDumps} {
		if err := os.Chtimes(path, epoch.Add(-age), epoch.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	f := newFollowed(t, Config{Dir: dir})
	f.poll(5)
	f.expect("a file and a dump of a job that has ended", operations, map[string]float64{})
	f.expect("a dump of a job that has ended", openSeconds, map[string]float64{})
	w.write(2)
	f.poll(1)
	f.expect("what is appended", operations, map[string]float64{"DP 0,,AllReduce": 2})
	f.expect("nothing is half a line", unreadable, map[string]float64{})
}

func flight(n int, state string) ccltest.Flight {
	out := ccltest.Flight{Version: "2.10", Groups: []ccltest.FlightGroup{{Name: "0", Desc: "default_pg", Ranks: []int{0, 1, 2, 3}}}}
	for i := range n {
		at := epoch.Add(time.Duration(i)*time.Second - time.Minute).UnixNano()
		e := ccltest.FlightEntry{Group: "0", Desc: "default_pg", Name: "nccl:all_reduce", Seq: int64(i), Sizes: [][]int64{{1024}}, Types: []string{"Float"}, Created: at, Started: at + 1, Completed: at + 2, State: "completed", Retired: true}
		if i == n-1 && state != "completed" {
			e.State, e.Completed, e.Retired = state, 0, false
		}
		out.Entries = append(out.Entries, e)
	}
	return out
}

// TestDumpsAreReadOnce checks that a dump is read when its size stands still, once, and again when it was written anew, and
// how long its open operation has been open.
func TestDumpsAreReadOnce(t *testing.T) {
	dir := t.TempDir()
	f := newFollowed(t, Config{Dir: dir})
	path := filepath.Join(dir, "rank_2")
	text := flight(5, "started").Pickle()
	write(t, path, text[:len(text)/2])
	f.poll(1)
	write(t, path, text)
	f.poll(2)
	f.expect("before the size stands still", operations, map[string]float64{})
	f.poll(10)
	f.expect("a dump", operations, map[string]float64{"default_pg,,AllReduce": 4})
	f.expect("a dump", files, map[string]float64{"": 1})
	f.expect("a dump", refused, map[string]float64{})
	if open := f.values(openSeconds)["default_pg,"]; open < 60 || open > 90 {
		t.Errorf("open for %v s", open)
	}
	if p := f.Page(0, 100); len(p.Records) != 1+4+1+1 {
		t.Errorf("the communicator, five operations and a beat are expected: %v", p.Records)
	}
	write(t, path, flight(7, "completed").JSON())
	f.poll(10)
	f.expect("written anew within a minute", operations, map[string]float64{"default_pg,,AllReduce": 4})
	f.poll(int(dumpAgain / pollEvery))
	f.expect("written anew", operations, map[string]float64{"default_pg,,AllReduce": 7})
	f.expect("the operation has ended", openSeconds, map[string]float64{})
}

// TestOpenOperations checks from when to when an operation is open.
func TestOpenOperations(t *testing.T) {
	f := newFollowed(t, Config{Dir: t.TempDir()})
	from := ccl.From{Comm: "0x1", Rank: 1, NRanks: 2}
	beat := func(launched, completed uint64) {
		f.Add(f.now, nil, &ccl.Beat{From: from, AtNS: ccl.KnownNanos(f.now.UnixNano()), Launched: map[string]uint64{"AllReduce": launched}, Completed: map[string]uint64{"AllReduce": completed}})
	}
	beat(5, 5)
	f.Add(f.now, nil, &ccl.Beat{From: from, AtNS: ccl.KnownNanos(f.now.UnixNano()), Launched: map[string]uint64{"AllReduce": 9}})
	f.expect("nothing says that any is open", openSeconds, map[string]float64{})
	beat(6, 5)
	f.now = f.now.Add(10 * time.Second)
	f.expect("one is open", openSeconds, map[string]float64{"0x1,": 10})
	beat(8, 6)
	if got := f.values(openSeconds); !maps.Equal(got, map[string]float64{"0x1,": 0}) {
		t.Errorf("another one is open: %v", got)
	}
	f.now = f.now.Add(3 * time.Second)
	f.Add(f.now, nil, &ccl.Op{From: from, Seq: 6, Op: "AllReduce", ExecNS: ccl.KnownNanos(1), State: ccl.Completed})
	f.expect("it has completed", openSeconds, map[string]float64{})
	f.Add(f.now, nil, &ccl.Op{From: from, Seq: 7, Op: "AllReduce", StartNS: ccl.KnownNanos(f.now.Add(time.Hour).UnixNano()), State: ccl.Started})
	f.now = f.now.Add(openKeep)
	f.poll(0)
	f.expect("its start is after now", openSeconds, map[string]float64{"0x1,": openKeep.Seconds()})
	f.poll(1)
	f.expect("nothing has confirmed it", openSeconds, map[string]float64{})
}

// TestSeriesAreBounded checks the number of series when users write as many names as they can.
func TestSeriesAreBounded(t *testing.T) {
	f := newFollowed(t, Config{Dir: t.TempDir(), RAS: ccl.RASAddress, Job: "t7"})
	mine, other := uint32(1000), uint32(1001)
	for i := range ccl.MaxComms + 500 {
		from := ccl.From{Job: "t7", Comm: fmt.Sprint("0x", i), NRanks: 2}
		f.Add(f.now, &mine, &ccl.Comm{Job: "t7", Comm: from.Comm, Name: fmt.Sprint("TP ", i), NRanks: 2})
		for k := range 10 {
			f.Add(f.now, &mine, &ccl.Op{From: from, Op: fmt.Sprint("Op", k), Seq: 1, ExecNS: ccl.KnownNanos(1), State: ccl.Completed})
		}
		f.Add(f.now, &mine, &ccl.Op{From: from, Op: "Op0", Seq: 2, State: ccl.Scheduled})
		f.Add(f.now, &other, &ccl.Op{From: from, Op: "Op0", Seq: 3, ExecNS: ccl.KnownNanos(1), State: ccl.Completed})
	}
	f.mu.Lock()
	f.files.Dropped = map[ccl.Reason]uint64{}
	for _, why := range ccl.Reasons() {
		f.files.Dropped[why] = 1
	}
	f.mu.Unlock()
	points := f.CollectPoints(f.now)
	if len(points) > 600 {
		t.Errorf("%d series", len(points))
	}
	sum, seen := 0.0, map[string]bool{}
	for _, p := range points {
		key := p.Name + strings.Join(p.Values, ",")
		if seen[key] || len(p.Values) != len(p.Labels) {
			t.Errorf("%s is there twice, or has %d values", key, len(p.Values))
		}
		seen[key] = true
		if p.Family == operations {
			sum += p.Value
		}
	}
	if want := 10 * (ccl.MaxComms + 500); int(sum) < want {
		t.Errorf("%v operations are counted, and %d were completed", sum, want)
	}
	if len(f.values(openSeconds)) != maxPairs {
		t.Errorf("%d communicators are open", len(f.values(openSeconds)))
	}
	t.Logf("%d series", len(points))
	f.now = f.now.Add(pairKeep + time.Second)
	f.Poll(f.now)
	f.Add(f.now, &mine, &ccl.Op{From: ccl.From{Job: "t7", Comm: "0xnew", NRanks: 2}, Op: "Op0", Seq: 1, ExecNS: ccl.KnownNanos(1), State: ccl.Completed})
	if got := f.values(operations); got["0xnew,t7,Op0"] != 1 || len(got) > 1+maxKinds {
		t.Errorf("an hour later: %v", got)
	}
}

// TestPages checks that pages follow each other, and say what is missing.
func TestPages(t *testing.T) {
	f := newFollowed(t, Config{Dir: t.TempDir()})
	for i := range 10 {
		f.Add(f.now, nil, &ccl.Beat{From: ccl.From{Comm: "0x1", NRanks: 2}, AtNS: ccl.KnownNanos(int64(i))})
	}
	got, after := 0, uint64(0)
	for _, want := range []struct {
		records int
		more    bool
	}{{4, true}, {4, true}, {2, false}, {0, false}} {
		p := f.Page(after, 4)
		if len(p.Records) != want.records || p.More != want.more || p.Missed || p.Node != "h3" || p.Cursor < after {
			t.Errorf("after %d: %+v", after, p)
		}
		got, after = got+len(p.Records), p.Cursor
	}
	if p := f.Page(0, 10); p.More {
		t.Error("there are more than all")
	}
	if p := f.Page(after+1000, 10); !p.Missed || len(p.Records) != 10 {
		t.Errorf("a cursor of another life: %+v", p)
	}
	f.now = f.now.Add(2 * time.Minute)
	f.Poll(f.now)
	if p := f.Page(after-5, 10); !p.Missed || len(p.Records) != 0 {
		t.Errorf("a cursor of what is no longer held: %+v", p)
	}
}

// TestRAS checks what is read of the service, and how its states are counted.
func TestRAS(t *testing.T) {
	status := ccltest.RASStatus{Version: "2.28.9", Timestamp: "2026-11-27 10:00:00", MissingComma: true, Comms: []ccltest.RASComm{{Hash: "0x7f8c", Size: 3, Ranks: []ccltest.RASRank{
		{Rank: 0, Launched: map[string]uint64{"AllReduce": 9}}, {Rank: 1, Launched: map[string]uint64{"AllReduce": 9}}, {Rank: 2, Missing: true, Dead: true}}}}}
	server, err := ccltest.NewRASServer(status.JSON(), true)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	f := newFollowed(t, Config{RAS: server.Address, Job: "t7"})
	f.PollRAS(t.Context(), f.now)
	if p := f.Page(0, 100); len(p.Records) != 1+3 {
		t.Errorf("a communicator and three beats are expected: %v", p.Records)
	}
	uid := uint32(1000)
	f.Add(f.now, &uid, &ccl.Comm{Job: "t7", Comm: "0x7f8c", NRanks: 3, Ranks: []ccl.Member{{Rank: 1, Host: "h3"}}})
	before := f.Page(0, 100).Cursor
	f.PollRAS(t.Context(), f.now)
	ranks := map[int]bool{}
	for _, r := range f.Page(before, 100).Records {
		if b, ok := r.(*ccl.Beat); ok {
			ranks[b.Rank] = true
		}
	}
	if !maps.Equal(ranks, map[int]bool{1: true, 2: true}) {
		t.Errorf("beats of ranks %v: the rank of this node and the dead one are expected", ranks)
	}
	f.expect("answers", queries, map[string]float64{"done": 2})

	old, err := ccltest.NewRASServer(nil, false)
	if err != nil {
		t.Fatal(err)
	}
	f.config.RAS = old.Address
	f.PollRAS(t.Context(), f.now)
	old.Close()
	f.PollRAS(t.Context(), f.now)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	f.PollRAS(ended, f.now)
	broken, err := ccltest.NewRASServer([]byte("{"), true)
	if err != nil {
		t.Fatal(err)
	}
	defer broken.Close()
	f.config.RAS = broken.Address
	f.PollRAS(t.Context(), f.now)
	f.expect("all", queries, map[string]float64{"done": 2, "too_old": 1, "absent": 1, "failed": 1})
}

// TestPlugin checks that records of the profiler plugin are taken from the socket, with the job and the host of the
// configuration, and that Run closes it.
func TestPlugin(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nccl.sock")
	f := newFollowed(t, Config{Socket: path, Job: "t7"})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		f.Run(ctx)
		close(ended)
	}()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	line, err := ccl.AppendRecord(nil, &ccl.Op{From: ccl.From{Job: "forged", Comm: "0x1", NRanks: 2, Host: "forged"}, Seq: 5, Op: "AllReduce", ExecNS: ccl.KnownNanos(1), State: ccl.Completed})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"{}\n", `{"kind":"dropped","reason":"untimed","count":3}` + "\n", string(line)} {
		if _, err := conn.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	var recs []ccl.Record
	for end := time.Now().Add(time.Minute); len(recs) == 0 && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		recs = f.Find("0x1", "AllReduce", 5)
	}
	if len(recs) != 1 {
		t.Fatal("the record did not arrive within a minute")
	}
	if op := recs[0].(*ccl.Op); op.Job != "t7" || op.Host != "h3" {
		t.Errorf("%+v", op)
	}
	f.expect("the connection", connections, map[string]float64{"": 1})
	f.expect("a line that is no record", unreadable, map[string]float64{"": 1})
	f.expect("what the plugin did not send", dropped, map[string]float64{"times": 3})
	cancel()
	<-ended
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is there after the end: %v", err)
	}
}

// TestRun checks that files are polled at the interval, and that everything has ended when Run returns.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, err := New(Config{Dir: dir, Node: "h3"}, time.Now(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			f.Run(ctx)
			close(ended)
		}()
		time.Sleep(10 * pollEvery)
		synctest.Wait()
		w := &writer{t: t}
		write(t, filepath.Join(dir, "x.log"), w.dump())
		time.Sleep(pollEvery)
		synctest.Wait()
		if len(f.Find("0x7f8c", "AllReduce", 1)) != 1 {
			t.Error("the file was not read within an interval")
		}
		cancel()
		<-ended
		if len(f.dirs) != 0 {
			t.Error("files are open after the end")
		}
	})
}

// TestBadConfigs checks that errors name the key.
func TestBadConfigs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file)
	for want, c := range map[string]Config{
		"dir, ras or socket is required":                   {},
		"socket_group: it needs socket":                    {RAS: "127.0.0.1:1", SocketGroup: "x"},
		"socket for profiler plugins: " + file + " exists": {Socket: file},
		"dir: " + file:                    {Dir: file},
		"ras: RAS address \"10.0.0.1:1\"": {RAS: "10.0.0.1:1"},
		"ras: RAS address \"localhost\"":  {RAS: "localhost"},
		"job: at most 128":                {Dir: "/x", Job: strings.Repeat("x", 129)},
		"node: at most 128":               {Dir: "/x", Node: "\xff"},
	} {
		if _, err := New(c, epoch, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", c, err, want)
		}
	}
	if _, err := New(Config{Dir: filepath.Join(t.TempDir(), "later")}, epoch, slog.New(slog.DiscardHandler)); err != nil {
		t.Errorf("a directory that does not exist yet: %v", err)
	}
}

// BenchmarkNode follows what eight ranks write in a minute, 1,000 verbose lines a second each. It reports the share of a
// core.
func BenchmarkNode(b *testing.B) {
	const ranks, perSecond, seconds = 8, 1000, 60
	var cpu time.Duration
	for b.Loop() {
		f := newFollowed(b, Config{Dir: b.TempDir(), Job: "t7"})
		logs := make([]*os.File, ranks)
		for r := range logs {
			var err error
			if logs[r], err = os.Create(filepath.Join(f.config.Dir, fmt.Sprintf("h3-pid%d.log", r))); err != nil {
				b.Fatal(err)
			}
			defer logs[r].Close()
		}
		cursor := uint64(0)
		for second := range seconds {
			for part := range 2 {
				for r, file := range logs {
					if _, err := file.Write(verboseLines(f.now, r, second*perSecond+part*perSecond/2, perSecond/2)); err != nil {
						b.Fatal(err)
					}
				}
				began := cpuTime(b)
				f.poll(1)
				cpu += cpuTime(b) - began
			}
			began := cpuTime(b)
			cursor = f.Page(cursor, ccl.DefaultPage).Cursor
			f.CollectPoints(f.now)
			cpu += cpuTime(b) - began
		}
		if got := f.values(held)["op"]; got < ranks*perSecond*(seconds-1) {
			b.Fatalf("%v operations are held", got)
		}
		f.closeFiles()
	}
	b.ReportMetric(100*cpu.Seconds()/float64(seconds*b.N), "%core")
}

// verboseLines returns the lines of n operations of a rank.
func verboseLines(now time.Time, rank, first, n int) []byte {
	ops := make([]*ccl.Op, n)
	for i := range ops {
		at := now.Add(time.Duration(i) * time.Millisecond).UnixNano()
		ops[i] = &ccl.Op{Seq: uint64(first + i), Op: "AllReduce", Algo: "RING", Proto: "SIMPLE", Bytes: new(uint64(1 << 26)), StartNS: ccl.KnownNanos(at), EndNS: ccl.KnownNanos(at + 41_000), ExecNS: ccl.KnownNanos(41_000), Timing: ccl.TimingKernelGPU}
	}
	return ccltest.AppendDump(nil, "v4.2", ccltest.Dump{AtNS: now.UnixNano(), Comm: ccl.Comm{Comm: "0x7f8c", Name: "DP 0", NRanks: 8}, Rank: rank, Ops: ops, Verbose: true})
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
