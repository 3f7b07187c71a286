package web

import (
	"bufio"
	"encoding/xml"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/matrix"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/judge"
)

// viewersOf names a page to the process that has the viewers of BenchmarkViewers, and viewersPace how often each fetches it at most.
const viewersOf, viewersPace = "GRAYLINK_TEST_VIEWERS_OF", "GRAYLINK_TEST_VIEWERS_PACE"

const viewers = 50

// TestViewersProcess runs the viewers of BenchmarkViewers in a process of its own, so that what they cost themselves is not counted. It runs
// until it is killed, and does nothing in other runs.
func TestViewersProcess(t *testing.T) {
	page := os.Getenv(viewersOf)
	if page == "" {
		return
	}
	pace, err := time.ParseDuration(os.Getenv(viewersPace))
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2 * viewers}}
	root := page[:strings.LastIndex(page, "/")+1]
	var wg sync.WaitGroup
	for range viewers {
		wg.Go(func() { followPage(client, root, page, pace) })
	}
	wg.Wait()
}

// followPage does what a page in a browser does: it fetches its main part, and the pictures in it, when an event arrives.
func followPage(client *http.Client, root, page string, pace time.Duration) {
	stream, err := client.Get(root + "events")
	if err != nil {
		return
	}
	defer stream.Body.Close()
	var last time.Time
	for lines := bufio.NewScanner(stream.Body); lines.Scan(); {
		if !strings.HasPrefix(lines.Text(), "data:") || time.Since(last) < pace {
			continue
		}
		last = time.Now()
		resp, err := client.Get(page)
		if err != nil {
			return
		}
		for dec := xml.NewDecoder(resp.Body); ; {
			token, err := dec.Token()
			if err != nil {
				break
			}
			if e, ok := token.(xml.StartElement); ok && e.Name.Local == "image" {
				for _, a := range e.Attr {
					if a.Name.Local == "href" {
						if picture, err := client.Get(root + a.Value); err == nil {
							_, _ = io.Copy(io.Discard, picture.Body)
							picture.Body.Close()
						}
					}
				}
			}
		}
		resp.Body.Close()
	}
}

// processorTime returns the processor time that this process has used.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkViewers measures what fifty viewers of a page cost beside the cycles, in processor time of the same run: seconds without any and
// with them follow each other, with a cycle in each. The cycle judges and publishes the flows of 1,024 NICs below 512 leaves. What a real one
// does besides, it reads windows and finds faults, is left out, so that the share of the viewers is the largest there is.
func BenchmarkViewers(b *testing.B) {
	g := clos{pods: 32, leaves: 16, spines: 4, cores: 4, nodesPerLeaf: 2}.graph(b)
	w := worldtest.NewScheduledWorld(b, g, 3)
	observed := w.Observe(0)
	for _, page := range []struct{ name, path, pace string }{{"page", "/?fragment=main", "2s"}, {"matrix", "/matrix?fragment=main", "5s"}} {
		b.Run(page.name, func(b *testing.B) {
			snap := healthy(g)
			snap.FreshFor = time.Minute
			var mu sync.Mutex
			h := handler(g, snap)
			h.Now = time.Now
			h.Changes, h.Matrix = &snapshot.Changes{}, matrix.NewStore()
			h.Snapshot = func() snapshot.Snapshot { mu.Lock(); defer mu.Unlock(); return snap }
			srv := httptest.NewServer(h)
			defer srv.Close()
			cycle := func() {
				next := snap
				next.At = time.Now()
				next.Edges = snapshot.ViewEdges(judge.FindingsOf(observed, judge.DefaultParameters()), maintenance.NewExcluder())
				h.Matrix.Record(g, &next)
				mu.Lock()
				snap = next
				mu.Unlock()
				h.Changes.Announce()
			}
			measure := func(seconds int) time.Duration {
				before := processorTime(b)
				for range seconds {
					begun := time.Now()
					cycle()
					time.Sleep(time.Until(begun.Add(time.Second)))
				}
				return processorTime(b) - before
			}
			var without, with time.Duration
			const seconds, rounds = 10, 3
			for range rounds {
				without += measure(seconds)
				crowd := exec.Command(os.Args[0], "-test.run=^TestViewersProcess$")
				crowd.Env = append(os.Environ(), viewersOf+"="+srv.URL+page.path, viewersPace+"="+page.pace)
				if err := crowd.Start(); err != nil {
					b.Fatal(err)
				}
				for h.streams.Load() < viewers {
					time.Sleep(10 * time.Millisecond)
				}
				with += measure(seconds)
				_ = crowd.Process.Kill()
				_ = crowd.Wait()
				for h.streams.Load() > 0 {
					time.Sleep(10 * time.Millisecond)
				}
			}
			b.ReportMetric(float64(without.Milliseconds())/(rounds*seconds), "ms/cycle")
			b.ReportMetric(float64((with-without).Milliseconds())/(rounds*seconds), "viewers-ms/cycle")
			b.ReportMetric(100*float64(with-without)/float64(without), "%ofcycle")
			b.ReportMetric(float64(len(observed)), "flows")
		})
	}
}
