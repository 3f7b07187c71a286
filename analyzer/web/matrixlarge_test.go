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
	"github.com/graylink/graylink/internal/fabric"
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
// and refreshed.
func TestMemoryOfTheMatrix(t *testing.T) {
	w := worldtest.NewScheduledWorld(t, clos{pods: 32, leaves: 16, spines: 4, cores: 4, nodesPerLeaf: 2}.graph(t), 3)
	w.Slow["leaf2-3"] = 2_000_000
	srv := httptest.NewServer(matrixHandler(w))
	t.Cleanup(srv.Close)
	d := startDevtools(t)
	empty := d.privateMemory()
	const limit = 100 << 20
	for _, path := range []string{"/matrix", "/matrix?zoom=8"} {
		d.open(srv.URL + path)
		d.eval(nil, `new Promise((done) => { const box = document.querySelector('.matrix'); let n = 0; const step = () => { box.scrollBy(40, 30); if (++n < 60) setTimeout(step, 30); else done(); }; step(); })`)
		got := d.privateMemory()
		t.Logf("%s: %.0f MB, of which %.0f MB are those of an empty page", path, float64(got)/(1<<20), float64(empty)/(1<<20))
		if got > limit {
			t.Errorf("%s takes %d octets, want at most %d", path, got, limit)
		}
	}
}

// TestLookAtLargeMatrices takes pictures of the matrix of 16,384 NICs with each kind of fault, if somebody wants to look at them.
func TestLookAtLargeMatrices(t *testing.T) {
	if os.Getenv("GRAYLINK_SCREENSHOTS") == "" {
		return
	}
	w := worldtest.NewScheduledWorld(t, clos{pods: 32, leaves: 16, spines: 8, cores: 16, nodesPerLeaf: 32}.graph(t), 3)
	d := startDevtools(t)
	const slow = 2_000_000
	const nic = "h2-3-5/eth1"
	port := w.Graph.PeerOf(nic)
	for _, sc := range []struct {
		name  string
		fault func() (silent map[string]string)
	}{
		{"healthy", func() map[string]string { return nil }},
		{"spine", func() map[string]string { w.Slow["spine2-3"] = slow; return nil }},
		{"leaf", func() map[string]string { w.Slow["leaf2-3"] = slow; return nil }},
		{"nic", func() map[string]string {
			w.Delay[fabric.Direction{From: nic, To: port}] = slow
			w.Delay[fabric.Direction{From: port, To: nic}] = slow
			return nil
		}},
		{"pair", func() map[string]string {
			for e := range w.Paths {
				from, to := e.Endpoints()
				a, _ := w.Graph.LeafOf(from)
				b, _ := w.Graph.LeafOf(to)
				if a == "leaf1-2" && b == "leaf3-5" {
					w.FlowDelay[e] = slow
				}
			}
			return nil
		}},
		{"incast", func() map[string]string { w.Loss[fabric.Direction{From: port, To: nic}] = 0.1; return nil }},
		{"dark", func() map[string]string {
			hosts := map[string]string{}
			for n := range 32 {
				hosts[fmt.Sprintf("h2-3-%d", n+1)] = "does not answer"
			}
			return hosts
		}},
	} {
		clear(w.Slow)
		clear(w.Delay)
		clear(w.Loss)
		clear(w.FlowDelay)
		s, store := measureWorld(w, sc.fault())
		h := handler(w.Graph, s)
		h.Matrix = store
		srv := httptest.NewServer(h)
		d.setMedia(false, false)
		d.open(srv.URL + "/matrix")
		d.keepScreenshot("matrix-16384-" + sc.name)
		t.Logf("%s: %.0f MB", sc.name, float64(d.privateMemory())/(1<<20))
		srv.Close()
	}
}
