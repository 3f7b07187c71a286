package ccl_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// python runs a script in Python and returns what it writes.
func python(t *testing.T, script string, args ...string) []byte {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
			t.Fatal("needs python3 (Debian package python3)")
		}
		t.Skip("needs python3 (Debian package python3)")
	}
	var stderr bytes.Buffer
	cmd := exec.Command(path, append([]string{"-c", script}, args...)...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.Bytes())
	}
	return out
}

// TestPythonReadsAndWritesDumps checks with Python's own pickle: it reads the dump of ccltest as the same values that the
// dump in JSON has, and a dump that Python wrote gives the same records.
func TestPythonReadsAndWritesDumps(t *testing.T) {
	dir := t.TempDir()
	f := flight()
	ours, inJSON := filepath.Join(dir, "nccl_trace_rank_3"), filepath.Join(dir, "trace.json")
	if err := os.WriteFile(ours, f.Pickle(), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(inJSON, f.JSON(), 0o600); err != nil {
		t.Fatal(err)
	}
	theirs := python(t, `
import json, pickle, sys
dump = pickle.load(open(sys.argv[1], "rb"))
want = json.load(open(sys.argv[2]))
again = pickle.dumps(dump, protocol=2)
for e in dump["entries"]:
    assert e.pop("frames") == [{"name": "train", "filename": "train.py", "line": 42}] * 2
    for key in "time_discovered_started_ns", "time_discovered_completed_ns":
        e[key] = e[key] or 0
for s in dump["pg_status"].values():
    for key in s:
        s[key] = str(s[key])
assert json.loads(json.dumps(dump)) == want, (dump, want)
sys.stdout.buffer.write(again)
`, ours, inJSON)
	want, _, _, _ := readFlight(t, f.Pickle())
	recs, bad, _, err := readFlight(t, theirs)
	if err != nil || len(bad) > 0 || written(t, recs) != written(t, want) {
		t.Errorf("%v %v\n%s", err, bad, written(t, recs))
	}
}

// TestMaliciousPickle checks that a pickle that runs a program when Python reads it runs none here, and gives no record.
func TestMaliciousPickle(t *testing.T) {
	proof := filepath.Join(t.TempDir(), "proof")
	for _, protocol := range []string{"0", "2", "4"} {
		evil := python(t, `
import os, pickle, sys
class Evil:
    def __reduce__(self):
        return os.system, ("touch " + sys.argv[1],)
sys.stdout.buffer.write(pickle.dumps({"version": "2.10", "pg_config": {}, "entries": [Evil()]}, protocol=int(sys.argv[2])))
`, proof, protocol)
		recs, _, _, err := readFlight(t, evil)
		if err == nil || !strings.Contains(err.Error(), "is refused: Flight Recorder does not write it") || len(recs) > 0 {
			t.Errorf("protocol %s: %v, %d records", protocol, err, len(recs))
		}
		if _, err := os.Stat(proof); err == nil {
			t.Fatal("the program of the pickle ran")
		}
		if protocol == "2" {
			file := filepath.Join(t.TempDir(), "evil")
			if err := os.WriteFile(file, evil, 0o600); err != nil {
				t.Fatal(err)
			}
			python(t, `import pickle, sys; pickle.load(open(sys.argv[1], "rb"))`, file)
			if err := os.Remove(proof); err != nil {
				t.Errorf("the pickle is harmless: %v", err)
			}
		}
	}
}
