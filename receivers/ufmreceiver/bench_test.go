package ufmreceiver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/graylink/graylink/internal/ufm"
	"github.com/graylink/graylink/internal/ufm/ufmtest"
)

// fleet returns a fabric of 40,000 ports with 50 counters each, and its inventory.
func fleet(b testing.TB) (ufmtest.Fabric, *ufm.Inventory) {
	b.Helper()
	f := ufmtest.Fabric{Switches: 625, Ports: 64, Counters: ufmtest.CounterNames(50), At: 1709652347161000}
	v := &ufm.Inventory{}
	list := func(write func(io.Writer)) {
		r, w := io.Pipe()
		go func() {
			fmt.Fprint(w, "[")
			write(w)
			fmt.Fprint(w, "]")
			w.Close()
		}()
		if err := v.ReadSaved(r); err != nil {
			b.Fatal(err)
		}
	}
	list(func(w io.Writer) {
		for sw := range f.Switches {
			fmt.Fprintf(w, "%s{\"system_guid\":\"%s\",\"guid\":\"%s\",\"type\":\"switch\"}", comma(sw), f.NodeGUID(sw), f.NodeGUID(sw))
		}
	})
	list(func(w io.Writer) {
		for sw := range f.Switches {
			for n := 1; n <= f.Ports; n++ {
				fmt.Fprintf(w, "%s{\"guid\":\"%s\",\"number\":%d,\"systemID\":\"%s\",\"node_description\":\"switch-%04d\",\"logical_state\":\"Active\"}", comma(sw+n-1), f.NodeGUID(sw), n, f.NodeGUID(sw), sw)
			}
		}
	})
	list(func(w io.Writer) {
		fmt.Fprintf(w, "{\"source_guid\":\"%s\",\"source_port\":1,\"destination_guid\":\"%s\",\"destination_port\":1}", f.NodeGUID(0), f.NodeGUID(1))
	})
	if err := v.FinishSaved(); err != nil {
		b.Fatal(err)
	}
	return f, v
}

func comma(i int) string {
	if i == 0 {
		return ""
	}
	return ","
}

// peak returns the most memory that the process held since the last reset, in octets (proc(5): VmHWM,
// clear_refs).
func peak(b *testing.B) float64 {
	b.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if kb, is := strings.CutPrefix(line, "VmHWM:"); is {
			n, err := strconv.ParseFloat(strings.Fields(kb)[0], 64)
			if err != nil {
				b.Fatal(err)
			}
			return n * 1024
		}
	}
	b.Fatal("no VmHWM in /proc/self/status")
	return 0
}

// BenchmarkReceive passes 40,000 ports with 50 counters each through the receiver, from a service over HTTP to
// a consumer, which drops the points or encodes them as OTLP. live-MB is the heap that is held afterwards,
// rss-MB the most that the process held, with the runtime and the test's server.
func BenchmarkReceive(b *testing.B) {
	f, v := fleet(b)
	dir := b.TempDir()
	s := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer s.Close()
	for _, form := range []struct {
		name, path string
		write      func(io.Writer)
	}{{"csv", "/csv/metrics", f.WriteCSV}, {"json", "/json/metrics", f.WriteJSON}, {"prometheus", "/metrics", f.WritePrometheus}} {
		file := filepath.Join(dir, filepath.FromSlash(form.path))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			b.Fatal(err)
		}
		w, err := os.Create(file)
		if err != nil {
			b.Fatal(err)
		}
		buffer := bufio.NewWriterSize(w, 1<<20)
		form.write(buffer)
		if err := buffer.Flush(); err != nil {
			b.Fatal(err)
		}
		info, err := w.Stat()
		if err != nil {
			b.Fatal(err)
		}
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
		for _, sink := range []string{"drop", "otlp"} {
			b.Run(form.name+"/"+sink, func(b *testing.B) {
				points, octets := 0, 0
				next, err := consumer.NewMetrics(func(_ context.Context, m pmetric.Metrics) error {
					points += m.DataPointCount()
					if sink == "otlp" {
						text, err := (&pmetric.ProtoMarshaler{}).MarshalMetrics(m)
						octets += len(text)
						return err
					}
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
				c := defaultConfig()
				c.Telemetry = []Telemetry{{Endpoint: s.URL, Path: form.path, Interval: time.Minute}}
				if err := c.Validate(); err != nil {
					b.Fatal(err)
				}
				r := &ufmReceiver{config: c, settings: receivertest.NewNopSettings(Type), metrics: next, ended: func() {}, log: slog.New(slog.DiscardHandler), began: time.Now()}
				r.names.SetInventory(v)
				t, err := r.newTelemetryReader(&c.Telemetry[0])
				if err != nil {
					b.Fatal(err)
				}
				defer t.client.Close()
				read := func() {
					if err := t.readDocument(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
				read() // fills the memory of counters
				debug.FreeOSMemory()
				if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
					b.Fatal(err)
				}
				points, octets = 0, 0
				b.SetBytes(info.Size())
				b.ReportAllocs()
				b.ResetTimer()
				for range b.N {
					read()
				}
				b.StopTimer()
				b.ReportMetric(peak(b)/1e6, "rss-MB")
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				b.ReportMetric(float64(m.HeapAlloc)/1e6, "live-MB")
				b.ReportMetric(float64(points)/float64(b.N), "points/op")
				if want := 40_000 * 51; points != want*b.N {
					b.Errorf("%d points, want %d", points/b.N, want)
				}
				if octets > 0 {
					b.ReportMetric(float64(octets)/float64(b.N)/1e6, "otlp-MB/op")
				}
				runtime.KeepAlive(t)
			})
		}
	}
}
