package ccl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/ccl/ccltest"
	"github.com/graylink/graylink/internal/fabric"
)

// status returns that of a job whose rank 2 launched one operation less, and three of whose ranks are missing.
func status() ccltest.RASStatus {
	return ccltest.RASStatus{Version: "2.28.9", Timestamp: "2026-07-18 12:00:00", Comms: []ccltest.RASComm{{Hash: "0x7f8c", Size: 6, Ranks: []ccltest.RASRank{
		{Rank: 0, Launched: map[string]uint64{"AllReduce": 1408}}, {Rank: 1, Launched: map[string]uint64{"AllReduce": 1408}}, {Rank: 2, Launched: map[string]uint64{"AllReduce": 1407}},
		{Rank: 3, Missing: true, Unresponsive: true, Dead: true}, {Rank: 4, Missing: true, Unresponsive: true}, {Rank: 5, Missing: true}}}, {Hash: "0x7f8d", Size: 1, Ranks: []ccltest.RASRank{{}}}}}
}

func readRAS(t *testing.T, text []byte, at ccl.Nanos) (recs []ccl.Record, bad []string, counts ccl.Counts, err error) {
	t.Helper()
	counts, err = ccl.ReadRAS(bytes.NewReader(text), source, at, time.UTC, func(r ccl.Record) error {
		recs = append(recs, r)
		return nil
	}, func(e fabric.LineError) { bad = append(bad, e.Err.Error()) })
	return recs, bad, counts, err
}

// TestRAS checks the records of a status, with and without the comma that NCCL 2.28.9 leaves out.
func TestRAS(t *testing.T) {
	whole, broken := status(), status()
	broken.MissingComma = true
	if !json.Valid(whole.JSON()) || json.Valid(broken.JSON()) {
		t.Fatal("the comma is not what is missing")
	}
	want := `{"kind":"comm","job":"t7","comm":"0x7f8c","n_ranks":6}
{"kind":"beat","job":"t7","comm":"0x7f8c","rank":0,"n_ranks":6,"at_ns":1784376000000000000,"alive":true,"launched":{"AllGather":0,"AllReduce":1408,"Broadcast":0,"Reduce":0,"ReduceScatter":0}}
{"kind":"beat","job":"t7","comm":"0x7f8c","rank":1,"n_ranks":6,"at_ns":1784376000000000000,"alive":true,"launched":{"AllGather":0,"AllReduce":1408,"Broadcast":0,"Reduce":0,"ReduceScatter":0}}
{"kind":"beat","job":"t7","comm":"0x7f8c","rank":2,"n_ranks":6,"at_ns":1784376000000000000,"alive":true,"launched":{"AllGather":0,"AllReduce":1407,"Broadcast":0,"Reduce":0,"ReduceScatter":0}}
{"kind":"beat","job":"t7","comm":"0x7f8c","rank":3,"n_ranks":6,"at_ns":1784376000000000000,"alive":false}
{"kind":"beat","job":"t7","comm":"0x7f8c","rank":4,"n_ranks":6,"at_ns":1784376000000000000}
{"kind":"beat","job":"t7","comm":"0x7f8c","rank":5,"n_ranks":6,"at_ns":1784376000000000000,"alive":true}
{"kind":"comm","job":"t7","comm":"0x7f8d","n_ranks":1}
{"kind":"beat","job":"t7","comm":"0x7f8d","rank":0,"n_ranks":1,"at_ns":1784376000000000000,"alive":true,"launched":{"AllGather":0,"AllReduce":0,"Broadcast":0,"Reduce":0,"ReduceScatter":0}}
`
	for name, s := range map[string]ccltest.RASStatus{"whole": whole, "2.28.9": broken} {
		recs, bad, counts, err := readRAS(t, s.JSON(), ccl.Nanos{})
		if got := written(t, recs); err != nil || len(bad) > 0 || got != want || counts.Records != 9 {
			t.Errorf("%s: %v %v %+v\n got %s\nwant %s", name, err, bad, counts, got, want)
		}
	}
	recs, _, _, _ := readRAS(t, whole.JSON(), ccl.KnownNanos(5))
	if b := recs[1].(*ccl.Beat); b.AtNS != ccl.KnownNanos(5) {
		t.Errorf("the time of the query does not count: %+v", b)
	}
}

// TestBrokenRAS checks what is made of a status that is not whole.
func TestBrokenRAS(t *testing.T) {
	text := string(status().JSON())
	for _, c := range []struct{ text, err, bad string }{
		{text[:len(text)/2], "not a JSON object: at byte", ""},
		{"NCCL version 2.27.3\n", "a JSON object is expected", ""},
		{strings.Replace(text, `"rank": 2`, `"rank": 6`, 1), "", `communicator 1, rank 6: field "rank": a rank from 0 to 5 is expected, and not 6`},
		{strings.Replace(text, `"size": 6`, `"size": 0`, 1), "", `communicator 1: field "n_ranks"`},
		{strings.Replace(text, `2026-07-18 12:00:00`, `yesterday`, 1), `field "timestamp": a time like 2026-01-31 23:59:59 is expected`, ""},
		{strings.Replace(text, `"unresponsive": true`, `"unresponsive": 1`, 1), `field "unresponsive": true or false is expected, and not 1`, ""},
		{strings.Replace(text, `,`, ``, 1), "", ""}, // any comma between members may be missing
		{strings.Replace(text, "        },\n        {", "        }\n        {", 1), "a comma or", ""},
	} {
		_, bad, _, err := readRAS(t, []byte(c.text), ccl.Nanos{})
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("error %v, and not %q", err, c.err)
		}
		if !strings.Contains(strings.Join(bad, "\n"), c.bad) || (c.bad == "") != (len(bad) == 0) {
			t.Errorf("bad %q, and not %q", bad, c.bad)
		}
	}
}

// TestQueryRAS checks what the client says, that it is all that it says, and that an old service is not asked.
func TestQueryRAS(t *testing.T) {
	for _, hasJSON := range []bool{true, false} {
		server, err := ccltest.NewRASServer(status().JSON(), hasJSON)
		if err != nil {
			t.Fatal(err)
		}
		text, err := ccl.QueryRAS(t.Context(), server.Address)
		server.Close()
		want := []string{"SET FORMAT json"}
		if hasJSON {
			want = append(want, "STATUS")
		}
		if got := server.Commands(); !slices.Equal(got, want) {
			t.Errorf("the client said %q, and not %q", got, want)
		}
		if hasJSON && (err != nil || !bytes.Equal(text, status().JSON())) || !hasJSON && !errors.Is(err, ccl.ErrRASTooOld) {
			t.Errorf("%v: %s", err, text)
		}
	}
	for _, address := range []string{"10.0.0.1:28028", "localhost:28028", "127.0.0.1"} {
		if _, err := ccl.QueryRAS(t.Context(), address); err == nil || !strings.Contains(err.Error(), "a loopback address with a port is expected") {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// TestMuteRAS checks that a service that does not answer is given up when the context ends.
func TestMuteRAS(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		conn.Read(make([]byte, 100))
		cancel()
		<-t.Context().Done()
	}()
	if _, err := ccl.QueryRAS(ctx, l.Addr().String()); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func FuzzRAS(f *testing.F) {
	s := status()
	f.Add(s.JSON())
	s.MissingComma = true
	f.Add(s.JSON())
	f.Fuzz(func(t *testing.T, text []byte) {
		ccl.ReadRAS(bytes.NewReader(text), source, ccl.Nanos{}, time.UTC, canBeRead(t), func(fabric.LineError) {})
	})
}
