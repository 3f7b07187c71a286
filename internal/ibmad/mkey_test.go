package ibmad

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMKeyFiles(t *testing.T) {
	p := filepath.Join(t.TempDir(), "key")
	for text, want := range map[string]MKey{"0x12ab\n": 0x12ab, "ffffffffffffffff": 1<<64 - 1, "no": 0} {
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadMKey(p); got != want || (err == nil) != (want != 0) {
			t.Errorf("%q: %d, %v", text, uint64(got), err)
		}
	}
	if k, err := ReadMKey(""); k != 0 || err != nil {
		t.Error("no file is no key")
	}
}
