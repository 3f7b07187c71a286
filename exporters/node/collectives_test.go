package node

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/ccl/ccltest"
	"github.com/graylink/graylink/internal/ccl/follow"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/webaccess"
)

// collectivesAt is the time at which files were read last. It is the machine's, as the times of files are.
var collectivesAt = time.Now()

// newFollower returns a Follower that has read a file of the Inspector with n operations of two ranks, half a dump_stats'
// worth of losses, a dump of Flight Recorder with an open operation, and a link.
func newFollower(t *testing.T, n int) *follow.Follower {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, text []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for rank := range 2 {
		d := ccltest.Dump{AtNS: collectivesAt.UnixNano(), Comm: ccl.Comm{Comm: "0x7f8c", Name: "DP 0", NRanks: 8}, Rank: rank, Dropped: 3}
		for i := range n {
			d.Ops = append(d.Ops, &ccl.Op{Seq: uint64(i), Op: "AllReduce", ExecNS: ccl.KnownNanos(5000)})
		}
		write(fmt.Sprintf("h1-pid%d.log", rank), ccltest.AppendDump(nil, "v4.2", d))
	}
	at := collectivesAt.Add(-30 * time.Second).UnixNano()
	write("rank_0", ccltest.Flight{Version: "2.10", Groups: []ccltest.FlightGroup{{Name: "0", Desc: "default_pg", Ranks: []int{0, 1}}},
		Entries: []ccltest.FlightEntry{{Group: "0", Desc: "default_pg", Name: "nccl:all_reduce", Seq: 1, Created: at, Started: at, State: "started"}}}.Pickle())
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link.log")); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "nccl.sock")
	f, err := follow.New(follow.Config{Dir: dir, RAS: ccl.RASAddress, Socket: socket, Job: "t7", Node: "h1"}, collectivesAt.Add(-time.Minute), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		f.Run(ended) // closes the files and the socket
	})
	for i := range 4 {
		f.Poll(collectivesAt.Add(time.Duration(i-3) * time.Second))
	}
	return f
}

// collectivesGatherer returns a gatherer of a Follower's series.
func collectivesGatherer(f *follow.Follower) prometheus.Gatherer {
	from := smallNode().sources()
	from.collectives, from.now = f.CollectPoints, func() time.Time { return collectivesAt }
	return newGatherer(from, []constructor{{"collectives", newCollectivesCollector}}, newRuns(), false)
}

// TestCollectiveSeries compares the whole output with a golden file.
func TestCollectiveSeries(t *testing.T) {
	g := collectivesGatherer(newFollower(t, 10))
	got := encode(t, g, expfmt.NewFormat(expfmt.TypeTextPlain))
	const golden = "testdata/collectives.metrics"
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(golden); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the exposition differs from %s (%v); rewrite it with -update:\n%s", golden, err, got)
	}
	problems, err := testutil.GatherAndLint(g)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	for _, f := range follow.Families() {
		if !bytes.Contains(got, []byte("# TYPE "+f.Name+" ")) {
			t.Errorf("%s has no series", f.Name)
		}
	}
}

// TestRecordsOverHTTP checks what each request for records is answered with.
func TestRecordsOverHTTP(t *testing.T) {
	e := New(startNode(t, writeConfig(t, 1, 2, "")), slog.New(slog.DiscardHandler))
	policy := &webaccess.Policy{}
	if code, _ := do(e.Handler(policy), request("GET", "/api/v1/collectives", "")); code != http.StatusNotFound {
		t.Errorf("without a Follower: %d", code)
	}
	e.AddCollectives(newFollower(t, 20))
	h := e.Handler(policy)
	get := func(query string) (int, string, *ccl.Page) {
		t.Helper()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request("GET", "/api/v1/collectives"+query, ""))
		if w.Code != http.StatusOK {
			return w.Code, w.Body.String(), nil
		}
		if got := w.Header().Get("Content-Type"); got != "application/jsonl" {
			t.Errorf("%s: content type %s", query, got)
		}
		p, err := ccl.ReadPage(w.Body, func(e fabric.LineError) { t.Errorf("%s: %v", query, e) })
		if err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		return w.Code, "", p
	}
	_, _, all := get("")
	if all.Node != "h1" || all.Missed || all.More || all.Dropped[ccl.DroppedByWriter] != 6 || len(all.Records) < 40 {
		t.Errorf("all: %+v", all)
	}
	for _, test := range []struct {
		query   string
		code    int
		message string
		records int
		more    bool
	}{
		{query: "?after=0", code: 200, records: len(all.Records)},
		{query: "?limit=3", code: 200, records: 3, more: true},
		{query: "?limit=65536", code: 200, records: len(all.Records)},
		{query: fmt.Sprint("?after=", all.Cursor), code: 200},
		{query: fmt.Sprint("?after=", all.Cursor-2), code: 200, records: 2},
		{query: "?comm=0x7f8c&op=AllReduce&seq=7", code: 200, records: 2},
		{query: "?comm=0x7f8c&op=AllReduce&seq=99", code: 200},
		{query: "?limit=0", code: 400, message: `parameter "limit": "0": a number from 1 to 65536 is expected`},
		{query: "?limit=65537", code: 400, message: `parameter "limit"`},
		{query: "?after=-1", code: 400, message: `parameter "after": "-1"`},
		{query: "?after=", code: 400, message: `parameter "after": ""`},
		{query: "?after=1&after=2", code: 400, message: `parameter "after": one value is expected, not 2`},
		{query: "?since=1", code: 400, message: `parameter "since": after, limit, comm, op or seq is expected`},
		{query: "?comm=0x7f8c&op=AllReduce", code: 400, message: `parameter "seq": ""`},
		{query: "?comm=0x7f8c&seq=1", code: 400, message: `parameter "op": a name of 1 to 128 bytes is expected`},
		{query: "?seq=1&op=x", code: 400, message: `parameter "comm"`},
		{query: "?comm=" + strings.Repeat("x", 129) + "&op=x&seq=1", code: 400, message: `parameter "comm"`},
		{query: "?comm=0x7f8c&op=AllReduce&seq=1&after=1", code: 400, message: `parameter "after": it cannot be combined`},
	} {
		code, body, page := get(test.query)
		if code != test.code || !strings.Contains(body, test.message) {
			t.Errorf("%s: %d %s, and not %d %s", test.query, code, body, test.code, test.message)
		}
		if page != nil && (len(page.Records) != test.records || page.More != test.more) {
			t.Errorf("%s: %d records, more %v, and not %d, %v", test.query, len(page.Records), page.More, test.records, test.more)
		}
	}
	if code, _ := do(h, request("POST", "/api/v1/collectives", "")); code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", code)
	}
}
