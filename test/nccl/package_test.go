package nccl

import (
	"debug/elf"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

// TestLibraryOfThePackage builds the library as releases have it: it needs no C library after version 2.17, and does what the one
// does that users build.
func TestLibraryOfThePackage(t *testing.T) {
	p := programs{filepath.Join(t.TempDir(), "libnccl-profiler-graylink.so"), buildShared(t).host}
	if out, err := exec.Command("../../tools/nccl/build", runtime.GOARCH, p.library).CombinedOutput(); err != nil {
		t.Fatalf("tools/nccl/build: %v\n%s", err, out)
	}
	f, err := elf.Open(p.library)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	needs, err := f.DynamicVersionNeeds()
	if err != nil || len(needs) == 0 {
		t.Fatalf("%v, %v", needs, err)
	}
	for _, n := range needs {
		for _, v := range n.Needs {
			if !slices.Contains([]string{"GLIBC_2.2.5", "GLIBC_2.12", "GLIBC_2.14", "GLIBC_2.17"}, v.Dep) {
				t.Errorf("%s of %s, want nothing after GLIBC_2.17", v.Dep, n.Name)
			}
		}
	}
	checkTruth(t, p, 7)
}
