package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const inspectorFile = `{"header":{"id":"0x1","rank":0,"n_ranks":2},"metadata":{"inspector_output_format_version":"v4.0"},"coll_perf":{"coll":"AllReduce","coll_sn":7,"coll_msg_size_bytes":8192,"coll_exec_time_us":41}}
`

// TestConvert checks the records of each source, and the exit codes and messages of files that cannot be read, or not all of them.
func TestConvert(t *testing.T) {
	const dumps = "../../internal/ccl/testdata/"
	text, err := os.ReadFile(dumps + "flightrecorder.pickle")
	if err != nil {
		t.Fatal(err)
	}
	named := filepath.Join(t.TempDir(), "nccl_trace_rank_2")
	if err := os.WriteFile(named, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		stdin          string
		args           []string
		code, lines    int
		stdout, stderr string
	}{
		{inspectorFile, []string{"--from", "inspector", "--job", "t7", "--host", "h3", "-"}, 0, 2,
			`{"kind":"op","job":"t7","comm":"0x1","rank":0,"n_ranks":2,"host":"h3","seq":7,"op":"AllReduce","bytes":8192,"exec_ns":41000,"state":"completed"}`, ""},
		{inspectorFile + "{}\n", []string{"--from", "inspector", "-"}, 3, 2, "", `-:2: error: field "header": it is required, since no dump_stats line is before this one; the line is skipped`},
		{"", []string{"--from", "fr", "--rank", "2", dumps + "flightrecorder.json"}, 3, 9, `"comm":"fr/1"`, "2 entries could not be read"},
		{"", []string{"--from", "fr", named}, 3, 9, `"comm":"fr/1"`, "2 entries could not be read"},
		{"", []string{"--from", "fr", dumps + "flightrecorder.json"}, 1, 0, "", "flightrecorder.json: the file's name does not end with a rank; --rank is required"},
		{"\x80\x02cos\nsystem\n", []string{"--from", "fr", "--rank", "0", "-"}, 1, 0, "", "-: byte 3 of the pickle: operation 0x63 is none of plain values"},
		{"", []string{"--from", "inspector", "missing"}, 1, 0, "", "missing: open missing: no such file or directory"},
		{"", []string{"--from", "csv", "-"}, 1, 0, "", "enum value must be one of inspector,fr"},
	} {
		stdout, stderr, code := runGraylink(t, tt.stdin, append([]string{"collectives", "convert"}, tt.args...)...)
		if code != tt.code || strings.Count(stdout, "\n") != tt.lines || !strings.Contains(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) {
			t.Errorf("%q: exit code %d\n%s\n%s", tt.args, code, stdout, stderr)
		}
	}
}
