//go:build all

package collectives_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/analyzer/collectives"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/publish"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/fabric"
)

// The job of TestShow8Live: each rank is in one communicator of each axis.
const (
	scaleNodes     = 1280
	scaleGPUs      = 8
	scaleRanks     = scaleNodes * scaleGPUs
	scaleAxes      = 4
	scaleSize      = 10 // ranks of a communicator
	scaleSeconds   = 26
	scaleLateFrom  = 20 // second from which one rank comes late
	scaleLateAxis  = 1
	scaleLateGroup = 77
	scaleLateRank  = 3
	scaleLateBy    = 38_000_000 // ns
	scaleExec      = 17_000_000 // ns
	scaleBegin     = 1_790_000_000
	scaleMemory    = 900 << 20 // what GOMEMLIMIT=900MiB is for an analyzer
)

// scaleOps are the kinds of operations of the axes, and scaleStrides the distances between the ranks of their communicators. With
// the first one a communicator has ranks of one or two nodes.
var (
	scaleOps     = [scaleAxes]string{"AllToAll", "AllGather", "ReduceScatter", "AllReduce"}
	scaleStrides = [scaleAxes]int{1, 16, 128, 1024}
)

// scalePerSecond returns how many operations a second of a rank in a communicator agents hand out: four at most, or one with its
// transfers, as those of a job with steps of a second.
func scalePerSecond(transfers bool) int {
	if transfers {
		return 1
	}
	return 4
}

// scaleProcess returns the number of the process that is a rank of a communicator.
func scaleProcess(axis, group, rank int) int {
	s := scaleStrides[axis]
	return group/s*s*scaleSize + rank*s + group%s
}

// scaleRankOf returns the communicator of a process on an axis, and its rank there.
func scaleRankOf(axis, process int) (group, rank int) {
	s := scaleStrides[axis]
	return process/(s*scaleSize)*s + process%s, process / s % scaleSize
}

// scalePage returns what the agent of a node hands out of the seconds after one of them up to another.
func scalePage(node, after, until int, transfers bool) *ccl.Page {
	p := &ccl.Page{Node: "h" + strconv.Itoa(node), Cursor: uint64(until)}
	bytes, alive, perSecond := uint64(64<<20), true, scalePerSecond(transfers)
	for second := after + 1; second <= until; second++ {
		for gpu := range scaleGPUs {
			for axis := range scaleAxes {
				group, rank := scaleRankOf(axis, node*scaleGPUs+gpu)
				comm, op := fmt.Sprintf("0x7f%02x%06x", axis, group), scaleOps[axis]
				from := ccl.From{Comm: comm, Rank: rank, NRanks: scaleSize, Host: p.Node, Account: "user1"}
				if second == 1 {
					p.Records = append(p.Records, &ccl.Comm{Comm: comm, Name: fmt.Sprintf("axis%d %d", axis, group), NRanks: scaleSize, Account: "user1",
						Ranks: []ccl.Member{{Rank: rank, Host: p.Node, NIC: p.Node + "/eth" + strconv.Itoa(gpu), GPU: &gpu}}})
				}
				for k := range perSecond {
					seq := uint64((second*perSecond + k) * 8) // one operation in eight is handed out
					start := int64(scaleBegin+second)*1e9 + int64(k)*1e9/int64(perSecond) + int64(axis)*60_000_000 - 1e9
					exec, gap := int64(scaleExec+(seq/8*7+uint64(rank)*3)%5*100_000), int64(10_000_000)
					switch late := second >= scaleLateFrom && axis == scaleLateAxis && group == scaleLateGroup; {
					case late && rank == scaleLateRank:
						start, gap = start+scaleLateBy, gap+scaleLateBy
					case late:
						exec += scaleLateBy
					}
					p.Records = append(p.Records, &ccl.Op{From: from, Seq: seq, Op: op, Algo: "RING", Proto: "SIMPLE", Bytes: &bytes, StartNS: ccl.KnownNanos(start), EndNS: ccl.KnownNanos(start + exec),
						ExecNS: ccl.KnownNanos(exec), Timing: ccl.TimingKernelGPU, State: ccl.Completed, ClockError: ccl.KnownNanos(20_000), GapNS: ccl.KnownNanos(gap)})
					if !transfers || axis == 0 {
						continue
					}
					for _, x := range []struct {
						peer int
						way  ccl.Direction
					}{{(rank + 1) % scaleSize, ccl.Send}, {(rank + scaleSize - 1) % scaleSize, ccl.Recv}} {
						p.Records = append(p.Records, &ccl.Edge{From: from, Seq: seq, Op: op, Peer: x.peer, Direction: x.way, Bytes: &bytes, StartNS: ccl.KnownNanos(start), EndNS: ccl.KnownNanos(start + exec),
							GPUWait: ccl.KnownNanos(1_000_000), PeerWait: ccl.KnownNanos(exec - scaleExec), Wire: ccl.KnownNanos(scaleExec - 2_000_000), Flush: ccl.KnownNanos(0), State: string(ccl.Completed), ClockError: ccl.KnownNanos(20_000)})
					}
				}
				done := uint64((second*perSecond + perSecond - 1) * 8)
				p.Records = append(p.Records, &ccl.Beat{From: from, AtNS: ccl.KnownNanos(int64(scaleBegin+second) * 1e9), Alive: &alive, Launched: map[string]uint64{op: done + 1}, Completed: map[string]uint64{op: done}})
			}
		}
	}
	return p
}

// serveScale answers as the agents of all nodes until standard input ends: at /TRANSFERS/SECOND/NODE/api/v1/collectives, with what
// they hand out until that second.
func serveScale() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var transfers bool
		var second, node int
		if _, err := fmt.Sscanf(r.URL.Path, "/%t/%d/h%d/api/v1/collectives", &transfers, &second, &node); err != nil {
			http.NotFound(w, r)
			return
		}
		after, err := strconv.Atoi(r.URL.Query().Get("after"))
		if err != nil { // a question for a single operation, of which nothing more is held
			after = second
		}
		out := bufio.NewWriterSize(w, 1<<16)
		_, _ = scalePage(node, after, second, transfers).WriteTo(out) // the client may have gone
		_ = out.Flush()
	})}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		s.Close()
	}()
	fmt.Println("http://" + l.Addr().String())
	if err := s.Serve(l); err != http.ErrServerClosed {
		return err
	}
	return nil
}

// TestMain serves as the agents of TestShow8Live in a process of its own, so that what they use is not counted.
func TestMain(m *testing.M) {
	if os.Getenv("GRAYLINK_SCALE_AGENTS") == "" {
		os.Exit(m.Run())
	}
	if err := serveScale(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// startScale starts the agents, and returns the beginning of their URLs.
func startScale(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "GRAYLINK_SCALE_AGENTS=1", "GOGC=400")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	base, err := bufio.NewReader(out).ReadString('\n')
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(base)
}

// scaleGraph returns a fabric of rails: pods of 32 nodes with a leaf for each NIC, below eight spines.
func scaleGraph(t *testing.T) *fabric.Graph {
	t.Helper()
	var switches, nodes, links strings.Builder
	for s := range 8 {
		fmt.Fprintf(&switches, "  - {name: spine%d, role: spine, tier: 2, plane: a}\n", s)
	}
	for pod := range scaleNodes / 32 {
		for rail := range scaleGPUs {
			fmt.Fprintf(&switches, "  - {name: leaf%dr%d, role: leaf, tier: 1, pod: p%d, plane: a}\n", pod, rail, pod)
			for s := range 8 {
				fmt.Fprintf(&links, "  - {a: \"leaf%dr%d:up%d\", b: \"spine%d:dn%dr%d\", speed_gbps: 400}\n", pod, rail, s, s, pod, rail)
			}
		}
	}
	for h := range scaleNodes {
		fmt.Fprintf(&nodes, "  - name: h%d\n    nics:\n", h)
		for rail := range scaleGPUs {
			fmt.Fprintf(&nodes, "      - {device: eth%d, plane: a, rail: %d, addresses: [10.%d.%d.%d]}\n", rail, rail, rail, h/250, 1+h%250)
			fmt.Fprintf(&links, "  - {a: \"h%d/eth%d\", b: \"leaf%dr%d:h%d\", speed_gbps: 400}\n", h, rail, h/32, rail, h)
		}
	}
	topology, findings := fabric.ParseTopology("test", []byte("version: 1\nswitches:\n"+switches.String()+"nodes:\n"+nodes.String()+"links:\n"+links.String()))
	if err := findings.Err(); err != nil {
		t.Fatal(err)
	}
	return fabric.NewGraph(topology)
}

// processorTime returns the time of processors that the process has used.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// peakMemory returns the most memory that the process held, in octets (proc(5): VmHWM).
func peakMemory(t *testing.T) uint64 {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if kb, is := strings.CutPrefix(line, "VmHWM:"); is {
			n, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kb), "kB")), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatal("no VmHWM in /proc/self/status")
	return 0
}

// scaleRig is a Follower of the agents, by a clock that the test sets, with the series of an analyzer.
type scaleRig struct {
	*collectives.Follower
	second int
	series *prometheus.Registry
}

func newScaleRig(t *testing.T, transfers bool) *scaleRig {
	t.Helper()
	base, g := startScale(t), scaleGraph(t)
	r := &scaleRig{series: prometheus.NewRegistry()}
	now := func() time.Time { return time.Unix(scaleBegin+int64(r.second), 0) }
	placed := jobs.NewRegister(g)
	p := jobs.Placement{Job: "train"}
	for h := range scaleNodes {
		p.Nodes = append(p.Nodes, "h"+strconv.Itoa(h))
	}
	placed.ReplaceSource("test", []jobs.Placement{p})
	var clean []snapshot.LinkView
	for _, d := range g.LinkDirections() {
		clean = append(clean, snapshot.LinkView{From: d.From, To: d.To, Edges: 1})
	}
	series := publish.NewCollectives(now)
	r.Follower = collectives.New(collectives.Options{Graph: g, Client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}, Jobs: placed, Judged: series.Observe, Now: now,
		URL:      func(node string) string { return fmt.Sprintf("%s/%t/%d/%s", base, transfers, r.second, node) },
		Snapshot: func() snapshot.Snapshot { return snapshot.Snapshot{At: now().Truncate(10 * time.Second), Links: clean} }})
	r.series.MustRegister(publish.CollectivesCollector{Series: series, Follower: r.Follower})
	return r
}

// pull reads all nodes, as many at the same time as Run does.
func (r *scaleRig) pull(t *testing.T) {
	t.Helper()
	var wg sync.WaitGroup
	nodes := make(chan int)
	for range scaleNodes / 64 {
		wg.Go(func() {
			for h := range nodes {
				r.Pull(context.Background(), "h"+strconv.Itoa(h))
			}
		})
	}
	for h := range scaleNodes {
		nodes <- h
	}
	close(nodes)
	wg.Wait()
}

// checkSeries checks that communicators have no more series than is stated: those of 64 and of the others together, with their kinds
// of operations, and 16 ranks.
func (r *scaleRig) checkSeries(t *testing.T) (total int) {
	t.Helper()
	families, err := r.series.Gather()
	if err != nil {
		t.Fatal(err)
	}
	comms := map[string]bool{}
	for _, f := range families {
		n := len(f.GetMetric())
		total += n
		switch most := map[string]int{"fabric_collective_transfer_seconds": 64 + scaleAxes, "fabric_collective_wait_seconds": 64 + scaleAxes, "fabric_collective_rank_late_total": 16}[f.GetName()]; {
		case most > 0 && n > most:
			t.Errorf("%s has %d series, want %d at most", f.GetName(), n, most)
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "comm_name" {
					comms[l.GetValue()] = true
				}
			}
		}
	}
	if len(comms) != 65 || !comms["other"] {
		t.Errorf("series are of %d communicators, want 64 and one that stands for the others", len(comms))
	}
	return total
}

// TestShow8Live lets a Follower read the records of 10,240 ranks in 4,096 communicators from 1,280 agents: four operations a second
// of a rank in a communicator, which is the most that agents hand out, and a beat; then one operation with its transfers. A cycle
// takes 2 s of a processor at most, the process has 1 GB of memory at most with GOMEMLIMIT=900MiB, nothing is lost, the series have
// their bound, and the one rank that comes late is found, and nothing else.
func TestShow8Live(t *testing.T) {
	t.Run("operations", func(t *testing.T) { showLive(t, false) })
	t.Run("operations and transfers", func(t *testing.T) { showLive(t, true) })
}

func showLive(t *testing.T, transfers bool) {
	r := newScaleRig(t, transfers)
	limit := debug.SetMemoryLimit(scaleMemory)
	defer debug.SetMemoryLimit(limit)
	debug.FreeOSMemory()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil { // the peak of memory begins anew
		t.Fatal(err)
	}
	var cycles, clocks, pulls []time.Duration
	var last collectives.State
	for r.second = 1; r.second <= scaleSeconds; r.second++ {
		began := processorTime(t)
		r.pull(t)
		read, clock := processorTime(t), time.Now()
		last = r.Cycle(time.Unix(scaleBegin+int64(r.second), 0))
		pulls, cycles, clocks = append(pulls, read-began), append(cycles, processorTime(t)-read), append(clocks, time.Since(clock))
	}
	r.second--
	peak := peakMemory(t)
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	counts, n := r.Counts(), r.checkSeries(t)
	median := func(d []time.Duration) time.Duration { return slices.Sorted(slices.Values(d))[len(d)/2] }
	t.Logf("%d records a second; reading a second of them takes %v of a processor, a cycle %v (%v at most; by the clock %v, and %v at most); heap %d MiB, process %d MiB at most; %d series",
		counts.Records/scaleSeconds, median(pulls), median(cycles), slices.Max(cycles), median(clocks), slices.Max(clocks), m.HeapAlloc>>20, peak>>20, n)
	// Other work on the machine makes single cycles longer.
	if median(cycles) > 2*time.Second || peak > 1<<30 {
		t.Errorf("a cycle takes %v of a processor, and the process %d MiB", median(cycles), peak>>20)
	}
	for reason, dropped := range counts.Dropped {
		if dropped != 0 {
			t.Errorf("%d records: %s", dropped, reason)
		}
	}
	cov := last.Report.Coverage
	if counts.Nodes != scaleNodes || cov.Communicators != scaleAxes*scaleRanks/scaleSize || cov.RanksSeen != scaleAxes*scaleRanks || cov.Dropped != 0 {
		t.Errorf("%d nodes, %+v", counts.Nodes, cov)
	}
	if transfers { // too few operations to know what is normal
		if d := last.Report.Diagnoses; len(d) != 0 {
			t.Errorf("%+v", d)
		}
		return
	}
	host := "h" + strconv.Itoa(scaleProcess(scaleLateAxis, scaleLateGroup, scaleLateRank)/scaleGPUs)
	if d := last.Report.Diagnoses; len(d) != 1 || d[0].Syndrome != workload.NonCommSlow || !slices.Equal(d[0].Ranks, []int{scaleLateRank}) || !slices.Equal(d[0].Nodes, []string{host}) || d[0].Job != "train" {
		t.Errorf("%+v, want rank %d on %s", d, scaleLateRank, host)
	}
}
