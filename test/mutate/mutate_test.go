package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestListMutations(t *testing.T) {
	const src = `package p

import "fmt"

const limit = 1.5

func f(a, b int) bool {
	fmt.Println("a" + "b")
	return !(a < b+2) && a != 0x10
}

func g() (int, bool) {
	return 0, false
}

func h() (int, bool) {
	return 7, true
}
`
	all, err := listMutations("p.go", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range all {
		got = append(got, m.String())
		if changed := string(m.apply([]byte(src))); len(changed) != len(src)+len(m.new)-len(m.old) || !strings.Contains(changed, m.new) {
			t.Errorf("%s makes %s", m, changed)
		}
	}
	want := []string{"p.go:5: 1.5 -> 2.25", "p.go:9: ! -> ", "p.go:9: < -> <=", "p.go:9: < -> >=", "p.go:9: + -> -", "p.go:9: 2 -> 3", "p.go:9: && -> ||", "p.go:9: != -> ==", "p.go:9: 0x10 -> 17", "p.go:17: 7 -> 8"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestRun changes a package with one line that its test checks and one that it does not.
func TestRun(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"go.mod":      "module p\n\ngo 1.24\n",
		"p/p.go":      "package p\n\nfunc checked(a int) bool { return a > 3 }\n\nfunc unchecked(a int) int { return a * 2 }\n",
		"p/p_test.go": "package p\n\nimport \"testing\"\n\nfunc TestP(t *testing.T) {\n\tif checked(3) || !checked(4) || unchecked(0) != 0 {\n\t\tt.Fail()\n\t}\n}\n",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var said strings.Builder
	alive, judged, err := run(t.Context(), &said, "p", options{count: 100, timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	// Three of the line that is checked; of the other * and 2.
	if alive != 2 || judged != 5 || !strings.Contains(said.String(), "SURVIVED           p/p.go:5: 2 -> 3") {
		t.Errorf("%d of %d survived:\n%s", alive, judged, said.String())
	}
	if _, _, err := run(t.Context(), &said, "p", options{at: "p.go:1", timeout: time.Minute}); err == nil || !strings.Contains(err.Error(), "nothing to change") {
		t.Errorf("a line without operators: %v", err)
	}
}
