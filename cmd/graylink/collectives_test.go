package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/ccl/ccltest"
	"github.com/graylink/graylink/internal/fabric"
)

// collectiveFiles writes a file of each source, and returns their names.
func collectiveFiles(t *testing.T) (inspector, flight, ras string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	op := &ccl.Op{Seq: 7, Op: "AllReduce", ExecNS: ccl.KnownNanos(5000), Timing: "kernel_gpu"}
	return write("h1-pid1.log", ccltest.AppendDump(nil, "v4.3", ccltest.Dump{AtNS: 1e18, Comm: ccl.Comm{Comm: "0x1", NRanks: 2}, Rank: 1, Ops: []*ccl.Op{op}, Dropped: 3})),
		write("nccl_trace_rank_1", ccltest.Flight{Version: "2.10", Groups: []ccltest.FlightGroup{{Name: "0", Ranks: []int{0, 1}}}, Entries: []ccltest.FlightEntry{
			{Group: "0", Name: "nccl:all_reduce", Seq: 7, Created: 1e18, State: "scheduled"}, {Group: "0", Name: "nccl:all_reduce", Seq: 8, Created: 1e18, State: "lost"}}}.Pickle()),
		write("status.json", ccltest.RASStatus{Timestamp: "2026-07-18 12:00:00", Comms: []ccltest.RASComm{{Hash: "0x1", Size: 1, Ranks: []ccltest.RASRank{{}}}}}.JSON())
}

// TestCollectivesConvert checks exit codes, what is written, and that the records can be read.
func TestCollectivesConvert(t *testing.T) {
	inspector, flight, ras := collectiveFiles(t)
	text, err := os.ReadFile(inspector)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		stdin          string
		args           []string
		code, records  int
		stdout, stderr string
	}{
		{args: []string{"--from", "inspector", "--job", "t7", "--host", "h1", inspector, inspector}, records: 6, stdout: `"job":"t7","comm":"0x1","rank":1,"n_ranks":2,"host":"h1","seq":7`, stderr: "h1-pid1.log: 3 records are missing: the library overwrote them"},
		{stdin: string(text), args: []string{"--from", "inspector"}, records: 3, stderr: "-: 3 records are missing"},
		{stdin: string(text), args: []string{"--from", "inspector", "-"}, records: 3, stderr: "-: 3 records are missing"},
		{stdin: string(text) + "{\n", args: []string{"--from", "inspector"}, code: 3, records: 3, stderr: "-:3: error: not a JSON object"},
		{args: []string{"--from", "fr", flight}, code: 3, records: 3, stdout: `"state":"scheduled"`, stderr: `nccl_trace_rank_1: error: entry 2: field "state": scheduled, started or completed is expected`},
		{stdin: "x", args: []string{"--from", "fr"}, code: 1, stderr: "-: the name does not end in the rank of the process: give it with --rank"},
		{stdin: "x", args: []string{"--from", "fr", "--rank", "1", "-", flight}, code: 3, records: 3, stdout: `"state":"scheduled"`, stderr: "-: error: byte 0 of the pickle: opcode 0x78 is refused"},
		{args: []string{"--from", "ras", "--time-zone", "UTC", ras}, records: 2, stdout: `"at_ns":1784376000000000000`},
		{args: []string{"--from", "ras", "--time-zone", "Mars", ras}, code: 1, stderr: "flag --time-zone: unknown time zone Mars"},
		{args: []string{"--from", "ras", ras + ".missing"}, code: 1, stderr: "no such file or directory"},
		{args: []string{"--from", "c4", ras}, code: 1, stderr: "enum value must be one of inspector,fr,ras, got 'c4'"},
	} {
		stdout, stderr, code := runGraylink(t, c.stdin, append([]string{"collectives", "convert"}, c.args...)...)
		if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) {
			t.Errorf("%v: exit code %d\n%s%s", c.args, code, stdout, stderr)
		}
		records := 0
		err := ccl.ReadRecords(bytes.NewReader([]byte(stdout)), func(int, ccl.Record) error {
			records++
			return nil
		}, func(e fabric.LineError) { t.Error(e) })
		if err != nil || records != c.records {
			t.Errorf("%v: %d records, and not %d: %v", c.args, records, c.records, err)
		}
	}
}
