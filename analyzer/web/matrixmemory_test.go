package web

import (
	"bytes"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/graylink/graylink/analyzer/worldtest"
)

// privateMemory returns the octets that the process of the page, of the browser's processes, shares with no other one: the most of any.
func (d *devtools) privateMemory() (octets int) {
	d.t.Helper()
	parentOf := func(pid int) int {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if err != nil || len(fields) < 2 {
			return 0
		}
		parent, _ := strconv.Atoi(fields[1])
		return parent
	}
	files, err := filepath.Glob("/proc/[0-9]*/smaps_rollup")
	if err != nil {
		d.t.Fatal(err)
	}
	for _, file := range files {
		pid, _ := strconv.Atoi(strings.Split(file, "/")[2])
		command, err := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
		if err != nil || !bytes.Contains(command, []byte("--type=renderer")) {
			continue
		}
		ancestor := pid
		for ancestor > 1 && ancestor != d.pid {
			ancestor = parentOf(ancestor)
		}
		text, err := os.ReadFile(file)
		if ancestor != d.pid || err != nil {
			continue
		}
		own := 0
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "Private_") {
				kilo, _ := strconv.Atoi(strings.Fields(line)[1])
				own += kilo << 10
			}
		}
		octets = max(octets, own)
	}
	if octets == 0 {
		d.t.Fatal("the browser has no process of a page")
	}
	return octets
}

// TestMemoryOfTheMatrix: the page of a matrix of 512 leaves, which 16,384 NICs have, takes less than 100 MB of its process, after it was panned
// and refreshed. At the largest zoom the picture alone takes 64 MiB.
func TestMemoryOfTheMatrix(t *testing.T) {
	w := worldtest.NewScheduledWorld(t, clos{pods: 32, leaves: 16, spines: 4, cores: 4, nodesPerLeaf: 2}.graph(t), 3)
	w.Slow["leaf2-3"] = 2_000_000
	srv := httptest.NewServer(matrixHandler(w))
	t.Cleanup(srv.Close)
	const limit, pictures = 100 << 20, 64 << 20
	for path, limit := range map[string]int{"/matrix": limit, "/matrix?zoom=8": limit + pictures} {
		d := startDevtools(t)
		empty := d.privateMemory()
		d.open(srv.URL + path)
		d.eval(nil, `new Promise((done) => { const box = document.querySelector('.matrix'); let n = 0; const step = () => { box.scrollBy(40, 30); if (++n < 60) setTimeout(step, 30); else done(); }; step(); })`)
		d.call("HeapProfiler.collectGarbage", nil, nil)
		got := d.privateMemory()
		t.Logf("%s: %.0f MB, of which %.0f MB are those of an empty page", path, float64(got)/(1<<20), float64(empty)/(1<<20))
		if got > limit {
			t.Errorf("%s takes %d octets, want at most %d", path, got, limit)
		}
	}
}
