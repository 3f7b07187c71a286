package lab

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// convergedWithin is the time within which a fabric that FRR routes is up and uses all of its equal paths, on a machine that does
// nothing else.
const convergedWithin = 15 * time.Second

// TestUpAndConverged measures the time until every host reaches every other one over all equal paths: the kernels' tables have the
// paths, and a packet arrives over each of them. Where other programs take a share of the processors, it may take longer by that.
func TestUpAndConverged(t *testing.T) {
	for _, file := range []string{demoFile, clos3File} {
		t.Run(filepath.Base(file), func(t *testing.T) {
			needsFRR(t)
			busy, own, start := processorTime(t), ownTime(t, ""), time.Now()
			l := upFRR(t, file, "conv")
			up := time.Since(start)
			pairs, paths := reachOverAllPaths(t, l)
			took := time.Since(start)
			others := processorTime(t) - busy - (ownTime(t, l.name) - own)
			share := min(0.9, max(0, others.Seconds()/took.Seconds()/float64(runtime.NumCPU())))
			bound := time.Duration(float64(convergedWithin) / (1 - share))
			t.Logf("%d switches, %d hosts: up after %.1f s, %d pairs over %d paths after %.1f s; other programs took %.0f %% of the processors",
				len(l.Topology().Switches), len(l.Topology().Nodes), up.Seconds(), pairs, paths, took.Seconds(), 100*share)
			if took > bound {
				t.Errorf("after %s, want %s, which is %s with the share of the processors that was left", took, bound, convergedWithin)
			}
		})
	}
}

// reachOverAllPaths sends a packet over each shortest path between any two NICs, and returns the numbers of pairs and of paths.
func reachOverAllPaths(t *testing.T, l *Lab) (pairs, paths int) {
	t.Helper()
	const first, most = 20000, 512
	nics := l.x.graph.NICIDs()
	w, err := l.NewWalk()
	if err != nil {
		t.Fatal(err)
	}
	receivers, senders := map[string]*net.UDPConn{}, map[string]*net.UDPConn{}
	for _, nic := range nics {
		receivers[nic] = socket(t, l, nic, 862)
	}
	for _, src := range nics {
		for _, dst := range nics {
			if fabric.OwnerOf(src) == fabric.OwnerOf(dst) {
				continue
			}
			want := map[string]bool{}
			for _, p := range l.x.graph.ShortestPaths(src, dst, 64) {
				want[p.CanonicalKey()] = true
			}
			for sport := first; len(want) > 0; sport++ {
				if sport == first+most {
					t.Fatalf("%s to %s: %d flows take none of %d shortest paths", src, dst, most, len(want))
				}
				p, err := w.KernelPath(t.Context(), l.addr(src), l.addr(dst), syscall.IPPROTO_UDP, uint16(sport), 862)
				if err != nil {
					t.Fatal(err)
				}
				if !want[p.CanonicalKey()] {
					continue
				}
				delete(want, p.CanonicalKey())
				from := fmt.Sprint(src, " ", sport)
				if senders[from] == nil {
					senders[from] = socket(t, l, src, sport)
				}
				sendOne(t, senders[from], receivers[dst], netip.AddrPortFrom(l.addr(dst), 862), from)
				paths++
			}
			pairs++
		}
	}
	return pairs, paths
}

// sendOne sends a packet and checks that it arrives.
func sendOne(t *testing.T, from, to *net.UDPConn, dst netip.AddrPort, text string) {
	t.Helper()
	if _, err := from.WriteToUDPAddrPort([]byte(text), dst); err != nil {
		t.Fatal(err)
	}
	deadline(t, to, 10*time.Second)
	buf := make([]byte, 64)
	if n, _, err := to.ReadFromUDPAddrPort(buf); err != nil || string(buf[:n]) != text {
		t.Fatalf("from %s to %s: %q arrived, %v", text, dst, buf[:n], err)
	}
}

// tick is the unit of times in /proc: a hundredth of a second on every architecture (USER_HZ).
const tick = 10 * time.Millisecond

// processorTime returns the time that all processors were busy since the machine was booted.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	var total time.Duration
	for i, s := range strings.Fields(line)[1:] {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if i != 3 && i != 4 && i < 8 { // idle and waiting for disks; guests are in the others
			total += time.Duration(n) * tick
		}
	}
	return total
}

// ownTime returns the processor time of this process, of those that it started and that ended, and of the daemons of a lab.
func ownTime(t *testing.T, name string) time.Duration {
	t.Helper()
	var total time.Duration
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if err := syscall.Getrusage(who, &u); err != nil {
			t.Fatal(err)
		}
		total += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	if name == "" {
		return total
	}
	for _, cmdline := range daemonsOf(name) {
		b, err := os.ReadFile(filepath.Join(filepath.Dir(cmdline), "stat"))
		if err != nil {
			continue // it ended
		}
		// The name of the program, in parentheses, may have spaces: proc(5). utime and stime are the fields 14 and 15.
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		for _, s := range fields[11:13] {
			n, err := strconv.ParseInt(s, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			total += time.Duration(n) * tick
		}
	}
	return total
}
