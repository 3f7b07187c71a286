package follow

import (
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/graylink/graylink/internal/ccl"
)

// TestAccounts: the account of a record is the user that the kernel knows, whatever its line says, and unknown without one.
func TestAccounts(t *testing.T) {
	f := newFollowed(t, Config{Dir: t.TempDir()})
	f.poll(1)
	nameless := uint32(987654)
	for _, x := range []struct {
		owner *uint32
		want  string
	}{{nil, ""}, {new(uint32(0)), "root"}, {&nameless, "987654"}, {new(uint32(overflowUser)), ""}, {new(uint32(0)), "root"}} {
		cursor := f.Page(0, ccl.MaxPage).Cursor
		comm := "c" + strconv.FormatUint(cursor, 10)
		from := ccl.From{Comm: comm, NRanks: 4, Host: "h3", Account: "ann"}
		f.Add(f.now, x.owner, &ccl.Comm{Comm: comm, NRanks: 4, Account: "ann"})
		f.Add(f.now, x.owner, &ccl.Op{From: from, Seq: 1, Op: "AllReduce", ExecNS: ccl.KnownNanos(5), State: ccl.Completed})
		f.Add(f.now, x.owner, &ccl.Edge{From: from, Seq: 1, Peer: 2, Direction: ccl.Send, State: ccl.Open, Held: ccl.HeldByWire, Since: ccl.KnownNanos(3)})
		f.Add(f.now, x.owner, &ccl.Beat{From: from, AtNS: ccl.KnownNanos(3)})
		recs := f.Page(cursor, ccl.MaxPage).Records
		for _, rec := range append(recs, f.Operation(comm, "AllReduce", 1).Records...) {
			if got := ccl.AccountOf(rec); got != x.want {
				t.Errorf("a record of user %v has the account %q, want %q: %+v", x.owner, got, x.want, rec)
			}
		}
		if len(recs) != 4 {
			t.Errorf("%d records of 4", len(recs))
		}
	}
}

// TestAccountOfFiles: a file that claims an account has that of its owner.
func TestAccountOfFiles(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	f := newFollowed(t, Config{Dir: dir})
	f.poll(1)
	line := `{"header":{"id":"0x1","rank":2,"n_ranks":4,"nnodes":4,"account":"ann"},"account":"ann","metadata":{"inspector_output_format_version":"v4.0","dump_timestamp_us":1,"hostname":"x","pid":7,"account":"ann"},` +
		`"coll_perf":{"coll":"AllReduce","coll_sn":3,"coll_msg_size_bytes":8192,"coll_exec_time_us":20,"account":"ann"}}` + "\n"
	if err := os.WriteFile(filepath.Join(dir, "a.log"), []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	f.poll(3)
	recs := f.Page(0, ccl.MaxPage).Records
	if len(recs) == 0 {
		t.Fatal("the file gives no records")
	}
	for _, rec := range recs {
		if got := ccl.AccountOf(rec); got != me.Username {
			t.Errorf("a record in a file of %s has the account %q: %+v", me.Username, got, rec)
		}
	}
}
