package collectivejob

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ccl"
)

// patience bounds the time of a test.
const patience = 5 * time.Minute

// freePort returns an address of loopback at which nothing listens.
func freePort(t *testing.T, host string) netip.AddrPort {
	t.Helper()
	ln, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

// ranksOf returns ranks at addresses of loopback of their own.
func ranksOf(t *testing.T, n int) (ranks []Rank) {
	for i := range n {
		host := fmt.Sprintf("h%d", i+1)
		ranks = append(ranks, Rank{Host: host, NIC: host + "/eth1", Address: freePort(t, fmt.Sprintf("127.0.0.%d", i+1))})
	}
	return ranks
}

// runJob runs all ranks, and returns the records of each. change alters the options of a rank. It ends when all operations are
// over, or when enough is true of a record.
func runJob(t *testing.T, o Options, change func(*Options), enough func(ccl.Record) bool) [][]ccl.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	o.Job, o.Comm, o.Patience = "t7", "0x7f8c", patience
	out := make([][]ccl.Record, len(o.Ranks))
	var wg sync.WaitGroup
	for i := range o.Ranks {
		own := o
		own.Number = i
		change(&own)
		wg.Go(func() {
			err := Run(ctx, own, func(r ccl.Record) {
				if err := ccl.Check(r); err != nil {
					t.Errorf("rank %d: %+v: %v", i, r, err)
				}
				out[i] = append(out[i], r)
				if enough != nil && enough(r) {
					cancel()
				}
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	return out
}

// medianOf returns the median of a value over the records of a rank that have one.
func medianOf[R ccl.Record](records []ccl.Record, value func(R) (int64, bool)) time.Duration {
	var all []int64
	for _, r := range records {
		if x, ok := r.(R); ok {
			if v, ok := value(x); ok {
				all = append(all, v)
			}
		}
	}
	slices.Sort(all)
	if len(all) == 0 {
		return 0
	}
	return time.Duration(all[len(all)/2])
}

func execOf(o *ccl.Op) (int64, bool) { return o.Duration() }

// waitOf returns a wait of the completed transfers to or from the peer.
func waitOf(direction ccl.Direction, of func(*ccl.Edge) ccl.Nanos) func(*ccl.Edge) (int64, bool) {
	return func(e *ccl.Edge) (int64, bool) {
		return of(e).NS, e.Direction == direction && e.State == string(ccl.Completed)
	}
}

func peerWait(e *ccl.Edge) ccl.Nanos { return e.PeerWait }
func gpuWait(e *ccl.Edge) ccl.Nanos  { return e.GPUWait }
func wire(e *ccl.Edge) ccl.Nanos     { return e.Wire }

// TestOperations: each rank reports each operation once, its transfers with all octets of them, and times that add up.
func TestOperations(t *testing.T) {
	for op, octets := range map[string]func(n, bytes int) int{
		AllReduce: func(n, bytes int) int { return 2 * (n - 1) * bytes / n },
		AllToAll:  func(n, bytes int) int { return bytes / n },
	} {
		t.Run(op, func(t *testing.T) {
			const n, bytes, operations = 4, 16 << 20, 20
			for rank, records := range runJob(t, Options{Ranks: ranksOf(t, n), Op: op, Bytes: bytes, Operations: operations}, func(*Options) {}, nil) {
				seen, edges := map[uint64]int{}, map[string]int{}
				for _, r := range records {
					switch r := r.(type) {
					case *ccl.Op:
						if r.State == ccl.Completed {
							seen[r.Seq]++
						}
					case *ccl.Edge:
						if r.State == ccl.Open {
							continue
						}
						edges[fmt.Sprint(r.Peer, r.Direction)]++
						if want := uint64(octets(n, bytes)); *r.Bytes != want {
							t.Errorf("rank %d, %s %d: %d octets, want %d", rank, r.Direction, r.Peer, *r.Bytes, want)
						}
						// At any moment at least one chunk waits, and at most as many as there are slots.
						span, waits := r.EndNS.NS-r.StartNS.NS, r.GPUWait.NS+r.PeerWait.NS+r.Wire.NS+r.Flush.NS
						if waits < span-1000 || waits > slots*(span+1000) {
							t.Errorf("rank %d, %s %d: waits of %v in %v", rank, r.Direction, r.Peer, time.Duration(waits), time.Duration(span))
						}
					}
				}
				for seq := range uint64(operations) {
					if seen[seq] != 1 {
						t.Errorf("rank %d reports operation %d %d times", rank, seq, seen[seq])
					}
				}
				want := 2
				if op == AllToAll {
					want = 2 * (n - 1)
				}
				if len(edges) != want {
					t.Errorf("rank %d has transfers %v, want %d", rank, edges, want)
				}
			}
		})
	}
}

// TestLateRank: a late rank is the one whose operations are short. The others wait in the operation, and the one before it
// in the ring for its credits.
func TestLateRank(t *testing.T) {
	const late, n = 2, 4
	records := runJob(t, Options{Ranks: ranksOf(t, n), Op: AllReduce, Bytes: 1 << 20, Operations: 10}, func(o *Options) {
		if o.Number == late {
			o.Late = 200 * time.Millisecond
		}
	}, nil)
	for rank := range n {
		exec := medianOf(records[rank], execOf)
		if rank == late && exec > 100*time.Millisecond || rank != late && exec < 100*time.Millisecond {
			t.Errorf("operations of rank %d take %v", rank, exec)
		}
	}
	if got := medianOf(records[late-1], waitOf(ccl.Send, peerWait)); got < 100*time.Millisecond {
		t.Errorf("rank %d waits %v for the credits of rank %d", late-1, got, late)
	}
	if got := medianOf(records[late+1], waitOf(ccl.Send, gpuWait)); got < 100*time.Millisecond {
		t.Errorf("rank %d waits %v for its own data", late+1, got)
	}
}

// TestStoppedRank: the others report the operation that does not end, what holds them, and that they live.
func TestStoppedRank(t *testing.T) {
	const stopped, n = 1, 3
	var mu sync.Mutex
	held := map[int]ccl.Hold{} // of senders, by rank
	beats := map[int]uint64{}  // launched operations of the stopped rank, and of others
	records := runJob(t, Options{Ranks: ranksOf(t, n), Op: AllReduce, Bytes: 1 << 20}, func(o *Options) {
		if o.Number == stopped {
			o.StopBefore = 3
		}
	}, func(r ccl.Record) bool {
		mu.Lock()
		defer mu.Unlock()
		switch r := r.(type) {
		case *ccl.Edge:
			if r.State == ccl.Open && r.Direction == ccl.Send && r.Seq == 3 {
				held[r.Rank] = r.Held
			}
		case *ccl.Beat:
			beats[r.Rank] = r.Launched[AllReduce]
		}
		return len(held) == n-1 && beats[stopped] == 3 && beats[0] == 4
	})
	if want := map[int]ccl.Hold{0: ccl.HeldByPeer, 2: ccl.HeldByGPU}; fmt.Sprint(held) != fmt.Sprint(want) {
		t.Errorf("held by %v, want %v", held, want)
	}
	for rank, of := range records {
		open := slices.ContainsFunc(of, func(r ccl.Record) bool {
			o, ok := r.(*ccl.Op)
			return ok && o.Seq == 3 && o.State == ccl.Started
		})
		if open != (rank != stopped) {
			t.Errorf("rank %d reports operation 3 as open: %v", rank, open)
		}
	}
}

// slowRelay forwards connections to an address, and what they carry later by a delay.
func slowRelay(t *testing.T, at, to netip.AddrPort, from net.IP, delay time.Duration) {
	ln, err := net.Listen("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := dial(t.Context(), from, to.String())
			if err != nil {
				in.Close()
				return
			}
			go func() { io.Copy(in, out); in.Close() }()
			go func() {
				defer out.Close()
				buf := make([]byte, chunkBytes)
				for {
					n, err := in.Read(buf)
					if err != nil {
						return
					}
					time.Sleep(delay)
					if _, err := out.Write(buf[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
}

// TestSlowConnection: the wire time of the sender is what grows, and of no other one.
func TestSlowConnection(t *testing.T) {
	const slow, n = 0, 3
	ranks := ranksOf(t, n)
	relay := freePort(t, "127.0.0.9")
	slowRelay(t, relay, ranks[slow+1].Address, ranks[slow].Address.Addr().AsSlice(), 20*time.Millisecond)
	records := runJob(t, Options{Ranks: ranks, Op: AllReduce, Bytes: 3 * chunkBytes, Operations: 8}, func(o *Options) {
		if o.Number == slow {
			o.Ranks = slices.Clone(o.Ranks)
			o.Ranks[slow+1].Address = relay
		}
	}, nil)
	var wires []time.Duration
	for rank := range n {
		wires = append(wires, medianOf(records[rank], waitOf(ccl.Send, wire)))
	}
	for rank, w := range wires {
		if rank != slow && w > wires[slow]/2 {
			t.Errorf("wire times of the senders: %v", wires)
		}
	}
}

func TestBadOptions(t *testing.T) {
	good := Options{Comm: "a", Ranks: make([]Rank, 2), Op: AllReduce, Bytes: 2, Patience: 1}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Options){
		"comm: ":        func(o *Options) { o.Comm = "" },
		"ranks: ":       func(o *Options) { o.Ranks = o.Ranks[:1] },
		"rank: ":        func(o *Options) { o.Number = 2 },
		"op: ":          func(o *Options) { o.Op = "Barrier" },
		"bytes: ":       func(o *Options) { o.Bytes = 1 },
		"compute_ns, ":  func(o *Options) { o.Late = -1 },
		"chunk: ":       func(o *Options) { o.Chunk = -1 },
		"slots: ":       func(o *Options) { o.Slots = 1 << 20 },
		"operations ":   func(o *Options) { o.StopBefore = -1 },
		"patience_ns: ": func(o *Options) { o.Patience = 0 },
	} {
		bad := good
		change(&bad)
		if err := bad.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
